"""PNG files from arrays, without an imaging library."""

import struct
import zlib

import numpy as np

__all__ = ["png_bytes"]

_COLOUR_TYPE = {1: 0, 3: 2, 4: 6}  # by the number of channels: grey, RGB, RGB with opacity


def png_bytes(pixels: np.ndarray) -> bytes:
    """Bytes (H, W, C), C of 1, 3 or 4, as a PNG file."""
    height, width, channels = pixels.shape
    rows = pixels.reshape(height, width * channels)
    unfiltered = np.zeros((height, 1), dtype=np.uint8)  # the filter of each row: none
    data = zlib.compress(np.concatenate([unfiltered, rows], 1).tobytes(), 9)
    head = struct.pack(">IIBBBBB", width, height, 8, _COLOUR_TYPE[channels], 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", data), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in chunks
    )
