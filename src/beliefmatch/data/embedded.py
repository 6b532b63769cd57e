"""The embedded digits as a `Dataset`, and what stands beside them as OOD.

A digit's level from 0 to 16 is kept as a byte of 15 times the level and read as the level over 16.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from beliefmatch._environment import needs
from beliefmatch._utils import derive_seed
from beliefmatch.data.digits import digit_rows, rotated
from beliefmatch.data.found import Found, Habits, Part
from beliefmatch.data.pictures import Arrays
from beliefmatch.data.splits import divided

if TYPE_CHECKING:
    from beliefmatch.data.config import DataConfig

__all__ = ["DIGITS", "STILL_DIGITS", "Digits", "patches", "rotations"]

STEP = 15  # of a byte, for each of 16 levels
STILL_DIGITS = (0, 1, 6, 8, 9)
"""Turned, a 0, a 1 and an 8 look like themselves and a 6 like a 9: nothing OOD about them."""

_VALIDATION_SHARE = 0.2
_ANGLES = (60.0, 300.0)


class Digits:
    """1797 grey images of 8 by 8 pixels, of which 540 are to report on.

    Which ones depends on the split seed alone. Of all digits a fifth is for choosing unless another share or
    number is asked for, which is then taken of the 1257 that are not reported on.
    """

    habits = Habits((0.0,), (STEP * 16 / 255,), "none", class_names=tuple("0123456789"))

    def find(self, settings: DataConfig, *, only: str | None = None) -> Found:
        """All three parts; there is nothing to save."""
        pixels, labels, rows = digit_rows(_VALIDATION_SHARE, 0.3, settings.split_seed)
        if settings.validation != _VALIDATION_SHARE:
            pool = np.sort(np.concatenate(rows[:2]))
            own = divided(labels[pool], validation=settings.validation, seed=settings.split_seed)
            rows = (pool[own.train], pool[own.validation], rows[2])
        images = (pixels.reshape(-1, 8, 8, 1) * STEP).astype(np.uint8)
        parts = {
            name: Part(Arrays(images[chosen], f"digits/{name}"), labels[chosen])
            for name, chosen in zip(("train", "validation", "test"), rows, strict=True)
        }
        return Found("embedded", parts, self.habits.class_names)


DIGITS = Digits()


def rotations(images: np.ndarray, labels: np.ndarray, *, seed: int) -> np.ndarray:
    """Digits (N, H, W, 1) turned by 60 to 300 degrees, without those that would be digits still."""
    rotated_digit = images[~np.isin(labels, STILL_DIGITS)]
    low, high = _ANGLES
    shares = np.random.PCG64(derive_seed(seed, 60)).random_raw(len(rotated_digit)) / 2.0**64
    levels = torch.from_numpy(rotated_digit).permute(0, 3, 1, 2).double()
    turned = [rotated(one, [low + (high - low) * share]) for one, share in zip(levels, shares, strict=True)]
    return torch.cat(turned).round().to(torch.uint8).permute(0, 2, 3, 1).contiguous().numpy()


def patches(count: int, *, seed: int) -> np.ndarray:
    """Grey squares of 8 by 8 pixels out of scikit-learn's two photographs: bytes (count, 8, 8, 1)."""
    with needs("scikit-learn and pillow", extra="sklearn,data", caller="patches"):
        from sklearn.datasets import load_sample_images

        photographs = load_sample_images().images  # china.jpg and flower.jpg
    grey = [(image @ np.array([0.299, 0.587, 0.114])) * (16 * STEP / 255) for image in photographs]
    draws = np.random.PCG64(derive_seed(seed, 8)).random_raw(3 * count).reshape(count, 3) / 2.0**64
    result = np.empty((count, 8, 8, 1), np.uint8)
    for place, (which, down, across) in enumerate(draws):
        image = grey[int(which * len(grey))]
        top, left = int(down * (image.shape[0] - 7)), int(across * (image.shape[1] - 7))
        result[place, :, :, 0] = np.rint(image[top : top + 8, left : left + 8])
    return result
