"""Augmentation of whole batches at once, on the device that they are on.

Small images are kept as bytes with the channels last. Indexing then moves whole pixels, and the result, seen
with the channels second, already lies in the layout that convolutions are fastest in.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from beliefmatch._validate import fail

__all__ = ["crop_and_flip", "noisy", "normalised"]


def crop_and_flip(
    images: Tensor, *, padding: int = 4, flips: bool = True, generator: torch.Generator | None = None
) -> Tensor:
    """Shift each image by up to `padding` pixels, black coming in, and mirror every other one.

    Args:
        images: shape (N, H, W, C).
        padding: the largest shift in each direction.
        flips: whether left and right may change places.
        generator: of the shifts and flips, on the images' device; the global one if not given.
    """
    if images.dim() != 4:
        raise fail("crop_and_flip", f"`images` must have shape (N, H, W, C), got {tuple(images.shape)}.")
    n, height, width, _ = images.shape
    device = images.device

    def chance(below: int) -> Tensor:
        return torch.randint(below, (n, 1), generator=generator, device=device)

    rows = chance(2 * padding + 1) + torch.arange(height, device=device)
    columns = torch.arange(width, device=device).expand(n, width)
    shift = chance(2 * padding + 1)
    if flips:
        columns = torch.where(chance(2) == 1, columns.flip(1), columns)
    columns = columns + shift
    padded = functional.pad(images, (0, 0, padding, padding, padding, padding))
    return padded[torch.arange(n, device=device)[:, None, None], rows[:, :, None], columns[:, None, :]]


def normalised(
    images: Tensor, *, mean: Sequence[float], std: Sequence[float], dtype: torch.dtype = torch.float32
) -> Tensor:
    """Bytes (N, H, W, C) as numbers of about unit variance (N, C, H, W), in the channels-last layout.

    `mean` and `std` are of pixels between 0 and 1.
    """
    shift, scale = (torch.tensor(list(values), device=images.device) for values in (mean, std))
    return torch.addcmul(-shift / scale, images.float(), 1 / (255 * scale)).to(dtype).permute(0, 3, 1, 2)


def noisy(inputs: Tensor, *, std: float, generator: torch.Generator | None = None) -> Tensor:
    """Inputs with Gaussian noise of one standard deviation added, in their memory layout.

    Args:
        inputs: of any shape.
        std: of the noise; without any they are returned as they are.
        generator: of the noise, on the inputs' device; the global one if not given.
    """
    if not std:
        return inputs
    noise = torch.empty_like(inputs).normal_(std=std, generator=generator)
    return inputs + noise
