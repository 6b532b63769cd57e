"""Divisions that are the same on every machine, and their fingerprint.

Each image draws a random word, and within each class the images with the smallest go first. The words are
the raw output of PCG64 seeded through `numpy.random.SeedSequence`, both of which numpy promises never to
change; nothing depends on how numpy shuffles, on the platform, or on the number of threads.
"""

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from beliefmatch._utils import derive_seed
from beliefmatch._validate import fail

__all__ = ["TEST_SHARE", "Division", "balanced", "chosen", "divided", "fingerprint", "halved", "wanted"]

TEST_SHARE = 0.2
"""Of all images, where a set comes without images to report on."""

# Streams of chance: changing one share leaves the others' draws alone.
_TEST, _VALIDATION, _LIMIT, _HALF, _LABELS = 1, 2, 3, 4, 5


class Division(NamedTuple):
    """Rows to fit on, to choose settings on and to report on; disjoint, each in ascending order."""

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray


def divided(
    labels: np.ndarray, *, validation: float, test: float = 0.0, limit: int | None = None, seed: int = 0
) -> Division:
    """Divide one set of images, each class in proportion.

    Args:
        labels: class id of each image.
        validation: of what `test` leaves: a share below 1, or a number; 0 for none.
        test: of all images, likewise.
        limit: of the images left for training, as many are kept at most.
        seed: of the division.
    """
    everything = np.arange(len(labels))
    reported = chosen(labels, wanted(test, len(labels)), derive_seed(seed, _TEST))
    rest = np.setdiff1d(everything, reported, assume_unique=True)
    picked = rest[chosen(labels[rest], wanted(validation, len(rest)), derive_seed(seed, _VALIDATION))]
    fitted = np.setdiff1d(rest, picked, assume_unique=True)
    if limit is not None:
        fitted = fitted[chosen(labels[fitted], min(limit, len(fitted)), derive_seed(seed, _LIMIT))]
    return Division(fitted, picked, reported)


def halved(labels: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of two halves, each class in proportion; of an odd number the second has one more."""
    if len(labels) < 2:
        raise fail("data", f"images to report on must be at least 2 to be halved, got {len(labels)}.")
    first = chosen(labels, len(labels) // 2, derive_seed(seed, _HALF))
    return first, np.setdiff1d(np.arange(len(labels)), first, assume_unique=True)


def chosen(labels: np.ndarray, count: int, seed: int) -> np.ndarray:
    """As many rows, drawn by the seed, each class in proportion (Sainte-Laguë's method); ascending.

    The choice of a smaller number is part of the choice of a larger one.
    """
    words = np.random.PCG64(seed).random_raw(len(labels))
    order = np.lexsort((words, labels))  # by class, then by chance
    sizes = np.unique(labels, return_counts=True)[1]
    within = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    turn = (within + 0.5) / np.repeat(sizes, sizes)
    return np.sort(order[np.argsort(turn, kind="stable")[:count]])


def balanced(labels: np.ndarray, count: int, seed: int = 0) -> np.ndarray:
    """As many rows, drawn by the seed, equally many of each class; ascending.

    Where the classes do not divide the number, some have one more; one that has too few images gives all of
    them. The choice of a smaller number is part of the choice of a larger one.

    >>> balanced(np.array([0, 0, 0, 0, 1, 1, 1]), 4).shape
    (4,)
    """
    words = np.random.PCG64(derive_seed(seed, _LABELS)).random_raw(len(labels))
    order = np.lexsort((words, labels))  # by class, then by chance
    sizes = np.unique(labels, return_counts=True)[1]
    turn = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return np.sort(order[np.lexsort((words[order], turn))[:count]])


def wanted(amount: float, available: int) -> int:
    """A share below 1 of what there is, rounded, or a number of images."""
    count = round(amount * available) if amount < 1 else int(amount)
    if amount >= 1 and (count != amount or count >= available):
        expected = f"a share below 1 or a whole number below the {available} images there are"
        raise fail("data", f"`validation` must be {expected}, got {amount:g}.")
    return max(count, 1) if amount > 0 else 0


def fingerprint(pieces: Iterable[bytes | str | np.ndarray]) -> str:
    """SHA-256 over texts, bytes and arrays with their lengths; the same on every platform."""
    state = hashlib.sha256()
    for piece in pieces:
        if isinstance(piece, np.ndarray):
            little = np.ascontiguousarray(piece, dtype=piece.dtype.newbyteorder("<"))
            state.update(f"{piece.dtype.kind}{piece.dtype.itemsize}{piece.shape}".encode())
            state.update(little.reshape(-1).view(np.uint8).data)
        else:
            content = piece.encode("utf-8", "surrogateescape") if isinstance(piece, str) else piece
            state.update(f"{len(content)}:".encode() + content)
    return state.hexdigest()
