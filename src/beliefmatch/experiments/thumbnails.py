"""Small pictures of single examples, as PNG text that a page can show."""

import base64
import struct
import zlib

import numpy as np
import torch
from torch import Tensor

__all__ = ["png", "thumbnail"]

LONGEST_SIDE = 96  # pixels; larger images are averaged down to it
_CHANNELS = (1, 3, 4)
_COLOUR_TYPE = {1: 0, 3: 2, 4: 6}  # of PNG: grey, RGB, RGB with opacity


def thumbnail(image: Tensor) -> str:
    """One image (H, W), (H, W, C) or (C, H, W) as a PNG in base64.

    Bytes are shown as they are and other values in [0, 1] as shares of white. Values outside, as of
    normalised images, are stretched from the least to the largest of the image. Where both ends of the
    shape could be channels, the first are.
    """
    pixels = _unit(_channels_first(image))
    height, width = pixels.shape[1:]
    scale = LONGEST_SIDE / max(height, width)
    if scale < 1:
        size = (max(1, round(height * scale)), max(1, round(width * scale)))
        pixels = torch.nn.functional.interpolate(pixels[None], size, mode="area")[0]
    return base64.b64encode(png((255 * pixels).round().byte().permute(1, 2, 0).numpy())).decode("ascii")


def _channels_first(image: Tensor) -> Tensor:
    if image.ndim == 2:
        return image[None]
    return image if image.shape[0] in _CHANNELS else image.permute(2, 0, 1)


def _unit(image: Tensor) -> Tensor:
    """Values in [0, 1] as float32."""
    if image.dtype == torch.uint8:
        return image.float() / 255
    pixels = image.double()
    low, high = (
        (bound.item() for bound in pixels[pixels.isfinite()].aminmax()) if _any(pixels) else (0.0, 1.0)
    )
    if low < 0 or high > 1:
        pixels = (pixels - low) / (high - low or 1.0)
    return pixels.nan_to_num(0.0, 1.0, 0.0).clamp(0, 1).float()


def _any(pixels: Tensor) -> bool:
    return bool(pixels.isfinite().any())


def png(pixels: np.ndarray) -> bytes:
    """Write bytes (H, W, C), C of 1, 3 or 4, as a PNG file."""
    height, width, channels = pixels.shape
    rows = pixels.reshape(height, width * channels)
    unfiltered = np.zeros((height, 1), dtype=np.uint8)  # the filter of each row: none
    data = zlib.compress(np.concatenate([unfiltered, rows], 1).tobytes(), 9)
    head = struct.pack(">IIBBBBB", width, height, 8, _COLOUR_TYPE[channels], 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", data), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, content) for kind, content in parts)


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
