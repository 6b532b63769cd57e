"""Cropping, resizing, mirroring, scaling and noise: of single large images, and of batches of small ones.

Batches are kept as bytes with the channels last. Indexing then moves whole pixels, and the result, viewed
with the channels second, already has the memory layout in which convolutions are fastest.
"""

import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from beliefmatch._validate import fail

__all__ = ["add_noise", "center_crop", "crop_and_flip", "normalise", "random_crop", "to_pixels"]

_AREA, _RATIO, _TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10  # of random crops, as in Inception


def center_crop(image: Any, height: int, width: int, margin: float = 1.0) -> Any:
    """The centre of a Pillow image whose short side is first scaled to `margin` times the size."""
    if image.size == (width, height) and margin == 1:
        return image
    scale = max(width * margin / image.width, height * margin / image.height)
    across, down = width / scale, height / scale
    left, top = (image.width - across) / 2, (image.height - down) / 2
    return _resize(image, height, width, (left, top, left + across, top + down))


def random_crop(image: Any, height: int, width: int, *, flip: bool, rng: random.Random) -> Any:
    """A crop of 8 to 100 % of a Pillow image, of aspect ratio 3/4 to 4/3, resized; mirrored half the time."""
    crop = _resize(image, height, width, _random_box(image.width, image.height, rng))
    if flip and rng.random() < 0.5:
        from PIL import Image

        return crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return crop


def _random_box(width: int, height: int, rng: random.Random) -> tuple[float, float, float, float]:
    for _ in range(_TRIES):
        area = width * height * rng.uniform(*_AREA)
        ratio = math.exp(rng.uniform(math.log(_RATIO[0]), math.log(_RATIO[1])))
        across, down = max(1, round(math.sqrt(area * ratio))), max(1, round(math.sqrt(area / ratio)))
        if across <= width and down <= height:
            left, top = rng.randint(0, width - across), rng.randint(0, height - down)
            return left, top, left + across, top + down
    across, down = min(width, height * _RATIO[1]), min(height, width / _RATIO[0])
    left, top = (width - across) / 2, (height - down) / 2
    return left, top, left + across, top + down


def _resize(image: Any, height: int, width: int, box: tuple[float, float, float, float]) -> Any:
    from PIL import Image

    left, top, right, bottom = box  # rounding may have put it outside
    inside = max(left, 0.0), max(top, 0.0), min(right, image.width), min(bottom, image.height)
    return image.resize((width, height), Image.Resampling.BILINEAR, box=inside)  # antialiased when it shrinks


def to_pixels(image: Any, channels: int) -> np.ndarray:
    """Bytes (H, W, C) of a Pillow image, C of 1 or 3."""
    pixels = np.asarray(image.convert("L" if channels == 1 else "RGB"))
    return pixels[..., None] if channels == 1 else pixels


def crop_and_flip(
    images: Tensor, *, padding: int = 4, flip: bool = True, generator: torch.Generator | None = None
) -> Tensor:
    """Shift each image by up to `padding` pixels, filled with black, and mirror half of them.

    Args:
        images: shape (N, H, W, C).
        padding: the largest shift in each direction.
        flip: whether to mirror left and right.
        generator: of the shifts and flips, on the images' device; the global one if not given.
    """
    if images.dim() != 4:
        raise fail("crop_and_flip", f"`images` must have shape (N, H, W, C), got {tuple(images.shape)}.")
    n, height, width, _ = images.shape
    device = images.device

    def draw(below: int) -> Tensor:
        return torch.randint(below, (n, 1), generator=generator, device=device)

    rows = draw(2 * padding + 1) + torch.arange(height, device=device)
    columns = torch.arange(width, device=device).expand(n, width)
    shift = draw(2 * padding + 1)
    if flip:
        columns = torch.where(draw(2) == 1, columns.flip(1), columns)
    columns = columns + shift
    padded = functional.pad(images, (0, 0, padding, padding, padding, padding))
    return padded[torch.arange(n, device=device)[:, None, None], rows[:, :, None], columns[:, None, :]]


def normalise(images: Tensor, *, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Bytes (N, H, W, C) as numbers of about unit variance (N, C, H, W), in the channels-last layout.

    `mean` and `std` are of pixels between 0 and 1.
    """
    shift, scale = (torch.tensor(list(values), device=images.device) for values in (mean, std))
    return torch.addcmul(-shift / scale, images.float(), 1 / (255 * scale)).permute(0, 3, 1, 2)


def add_noise(inputs: Tensor, *, std: float, generator: torch.Generator | None = None) -> Tensor:
    """Add Gaussian noise, keeping the memory layout; without noise the inputs are returned unchanged.

    Args:
        inputs: of any shape.
        std: standard deviation of the noise.
        generator: of the noise, on the inputs' device; the global one if not given.
    """
    if not std:
        return inputs
    noise = torch.empty_like(inputs).normal_(std=std, generator=generator)
    return inputs + noise
