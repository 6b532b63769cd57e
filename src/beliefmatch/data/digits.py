"""Handwritten digits that ship inside scikit-learn: 1797 grey images of 8 by 8 pixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from beliefmatch._environment import needs
from beliefmatch._errors import fail
from beliefmatch.data.images import ArrayImages
from beliefmatch.data.raw import LabelledImages
from beliefmatch.data.splits import ROLES, split_rows

if TYPE_CHECKING:
    from beliefmatch.data.config import DataConfig

__all__ = ["STEP", "DigitSplits", "Examples", "digits_parts", "load_digits", "rotated"]

STEP = 15
"""A pixel's level from 0 to 16 is kept as a byte of 15 times the level and normalised to level / 16."""

_VALIDATION_SHARE, _TEST_SHARE = 0.2, 0.3


@dataclass(frozen=True, eq=False)
class Examples:
    """Images (N, 1, 8, 8) with values in [0, 1] and their class ids (N,)."""

    images: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.targets)


@dataclass(frozen=True, eq=False)
class DigitSplits:
    """Disjoint sets to train, validate and test on."""

    train: Examples
    validation: Examples
    test: Examples


def load_digits(
    *, validation_share: float = _VALIDATION_SHARE, test_share: float = _TEST_SHARE, seed: int = 0
) -> DigitSplits:
    """Load the digits and split them, each class in the same proportions.

    Args:
        validation_share: share of all images to choose settings on.
        test_share: share of all images to report on; the rest is for training.
        seed: of the split. Keep it fixed while the training seed varies, so that no image
            serves for validation in one run and for the test in another.
    """
    for name, share in (("validation_share", validation_share), ("test_share", test_share)):
        if not 0 < share < 1:
            raise fail("load_digits", f"`{name}` must lie strictly in (0, 1), got {share}.")
    if validation_share + test_share >= 1:
        raise fail(
            "load_digits",
            "`validation_share` + `test_share` must be below 1 to leave images "
            f"for training, got {validation_share} + {test_share}.",
        )
    levels, labels, rows = _split_digits(validation_share, test_share, seed)
    images = torch.from_numpy(levels.reshape(-1, 1, 8, 8) / 16).float()
    targets = torch.from_numpy(labels)
    return DigitSplits(*(Examples(images[i], targets[i]) for i in rows))


def digits_parts(config: DataConfig) -> dict[str, LabelledImages]:
    """The digits in three parts; 540 are to report on, and the split seed alone decides which.

    A fifth of all digits is for validation unless another share or number is configured, which is then taken
    of the 1257 that are not reported on.
    """
    levels, labels, rows = _split_digits(_VALIDATION_SHARE, _TEST_SHARE, config.split_seed)
    if config.validation != _VALIDATION_SHARE:
        pool = np.sort(np.concatenate(rows[:2]))
        own = split_rows(labels[pool], validation=config.validation, seed=config.split_seed)
        rows = (pool[own.train], pool[own.validation], rows[2])
    images = (levels.reshape(-1, 8, 8, 1) * STEP).astype(np.uint8)
    return {
        part: LabelledImages(ArrayImages(images[i], f"digits/{part}"), labels[i], format="embedded")
        for part, i in zip(ROLES, rows, strict=True)
    }


def _split_digits(
    validation_share: float, test_share: float, seed: int
) -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Levels (N, 64) from 0 to 16, class ids (N,), and the rows of the three splits."""
    with needs("scikit-learn", extra="sklearn", caller="load_digits"):
        from sklearn.datasets import load_digits as bunch
        from sklearn.model_selection import train_test_split

    levels, labels = bunch(return_X_y=True)
    held_out = validation_share + test_share
    train, rest = train_test_split(
        np.arange(len(labels)), test_size=held_out, stratify=labels, random_state=seed
    )
    validation, test = train_test_split(
        rest, test_size=test_share / held_out, stratify=labels[rest], random_state=seed
    )
    rows = (np.asarray(train), np.asarray(validation), np.asarray(test))
    return np.asarray(levels), np.asarray(labels, dtype=np.int64), rows


def rotated(image: Tensor, angles: Sequence[float]) -> Tensor:
    """Rotate one image counter-clockwise by each angle in degrees.

    Args:
        image: shape (1, H, W); pixels from outside the image are 0, the background.
        angles: degrees.

    Returns:
        Shape (len(angles), 1, H, W). Cubic splines keep the strokes sharper than linear interpolation; their
        overshoot is clipped to the image's range.
    """
    if image.ndim != 3 or image.shape[0] != 1:
        raise fail("rotated", f"`image` must have shape (1, H, W), got {tuple(image.shape)}.")
    with needs("scipy", extra="stats", caller="rotated"):
        from scipy import ndimage

    pixels = image.detach().cpu().numpy()
    turned = [ndimage.rotate(pixels[0], angle, reshape=False, order=3) for angle in angles]
    within = np.clip(np.stack(turned), pixels.min(), pixels.max())
    return torch.from_numpy(within)[:, None].to(image)
