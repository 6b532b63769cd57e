"""Some of the rows of features, left where they are."""

import hashlib

import numpy as np
import torch

from beliefmatch._utils import derive_seed
from beliefmatch._validate import fail
from beliefmatch.adaptation.rows import PickedRows
from beliefmatch.adaptation.types import Features
from beliefmatch.data.splits import resolve_count, stratified_rows

__all__ = ["parted", "parted_numbers", "subset"]

_SPLIT = 21  # what a seed is for


def subset(features: Features, numbers: np.ndarray) -> Features:
    """The features of these rows, in this order; nothing is read.

    Args:
        features: of all examples.
        numbers: which rows, from 0.
    """
    numbers = np.asarray(numbers, dtype=np.int64)
    if numbers.ndim != 1 or not len(numbers):
        raise fail("subset", f"`numbers` must be at least one row number, got shape {numbers.shape}.")
    if numbers.min() < 0 or numbers.max() >= len(features):
        got = f"{numbers.min()} to {numbers.max()}"
        raise fail("subset", f"`numbers` must lie in 0 to {len(features) - 1}, got {got}.")
    digest = hashlib.sha256(features.digest.encode() + numbers.astype("<i8").tobytes())
    return Features(
        PickedRows(features.rows, numbers), features.targets[torch.from_numpy(numbers)], digest.hexdigest()
    )


def parted(features: Features, share: float, *, seed: int = 0) -> tuple[Features, Features]:
    """The rest, and a share of the rows drawn in proportion to the classes; see `parted_numbers`."""
    rest, picked = parted_numbers(features, share, seed=seed)
    return subset(features, rest), subset(features, picked)


def parted_numbers(features: Features, share: float, *, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of the rest, and of a share of the rows drawn in proportion to the classes, ascending.

    Of counts, the class of the most votes decides. Rows of no class stay with the rest.

    Args:
        features: to be divided.
        share: below 1 of the rows that have a class, or a number of rows.
        seed: of the draw.
    """
    if not share > 0:
        raise fail("parted", f"`share` must be positive, got {share!r}.")
    targets = features.targets
    ids = targets if targets.dim() == 1 else torch.where(targets.sum(1) > 0, targets.argmax(1), -1)
    places = (ids >= 0).nonzero()[:, 0].numpy()
    count = resolve_count(share, len(places))
    if not 0 < count < len(places):
        raise fail("parted", f"`share` must leave rows on both sides, got {count} of {len(places)}.")
    picked = places[stratified_rows(ids.numpy()[places], count, derive_seed(seed, _SPLIT))]
    return np.setdiff1d(np.arange(len(features)), picked, assume_unique=True), picked
