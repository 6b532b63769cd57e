"""Handwritten digits that ship inside scikit-learn: 1797 grey images of 8 by 8 pixels."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from beliefmatch._environment import needs

__all__ = ["DigitSplits", "Examples", "digit_rows", "load_digits", "rotated"]


@dataclass(frozen=True, eq=False)
class Examples:
    """Images (N, 1, 8, 8) with values in [0, 1] and their class ids (N,)."""

    images: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.targets)


@dataclass(frozen=True, eq=False)
class DigitSplits:
    """Disjoint sets to fit on, to choose settings on, and to report on."""

    train: Examples
    validation: Examples
    test: Examples


def load_digits(*, validation_share: float = 0.2, test_share: float = 0.3, seed: int = 0) -> DigitSplits:
    """Load the digits and split them, each class in the same proportions.

    Args:
        validation_share: share of all images to choose settings on.
        test_share: share of all images to report on; the rest is for training.
        seed: of the split. Keep it fixed while the training seed varies, so that no image
            serves for choosing in one run and for reporting in another.
    """
    _check_shares(validation_share, test_share)
    pixels, labels, rows = digit_rows(validation_share, test_share, seed)
    images = torch.from_numpy(pixels.reshape(-1, 1, 8, 8) / 16).float()
    targets = torch.from_numpy(labels)
    return DigitSplits(*(Examples(images[i], targets[i]) for i in rows))


def digit_rows(
    validation_share: float, test_share: float, seed: int
) -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Levels (N, 64) from 0 to 16, class ids (N,), and the rows of the three splits."""
    with needs("scikit-learn", extra="sklearn", caller="load_digits"):
        from sklearn.datasets import load_digits as bunch
        from sklearn.model_selection import train_test_split

    pixels, labels = bunch(return_X_y=True)
    held_out = validation_share + test_share
    train, rest = train_test_split(
        np.arange(len(labels)), test_size=held_out, stratify=labels, random_state=seed
    )
    validation, test = train_test_split(
        rest, test_size=test_share / held_out, stratify=labels[rest], random_state=seed
    )
    rows = (np.asarray(train), np.asarray(validation), np.asarray(test))
    return np.asarray(pixels), np.asarray(labels, dtype=np.int64), rows


def rotated(image: Tensor, angles: Sequence[float]) -> Tensor:
    """Turn one image counter-clockwise by each angle in degrees.

    Args:
        image: shape (1, H, W); what is turned in from outside is 0, the background.
        angles: degrees.

    Returns:
        Shape (len(angles), 1, H, W). Cubic splines keep the strokes sharper than straight lines
        would; what they overshoot is cut to the image's range.
    """
    if image.ndim != 3 or image.shape[0] != 1:
        raise ValueError(f"rotated: `image` must have shape (1, H, W), got {tuple(image.shape)}.")
    with needs("scipy", extra="stats", caller="rotated"):
        from scipy import ndimage

    pixels = image.detach().cpu().numpy()
    turned = [ndimage.rotate(pixels[0], angle, reshape=False, order=3) for angle in angles]
    within = np.clip(np.stack(turned), pixels.min(), pixels.max())
    return torch.from_numpy(within)[:, None].to(image)


def _check_shares(validation_share: float, test_share: float) -> None:
    for name, share in (("validation_share", validation_share), ("test_share", test_share)):
        if not 0 < share < 1:
            raise ValueError(f"load_digits: `{name}` must lie strictly in (0, 1), got {share}.")
    if validation_share + test_share >= 1:
        raise ValueError(
            "load_digits: `validation_share` + `test_share` must be below 1 to leave images "
            f"for training, got {validation_share} + {test_share}."
        )
