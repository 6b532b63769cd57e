"""Splits that are the same on every machine, and the digest of data.

Each example draws a random word, and within each class the examples with the smallest words go first. The
words are the raw output of PCG64 seeded through `numpy.random.SeedSequence`, which numpy guarantees not to
change; nothing depends on how numpy shuffles, on the platform, or on the number of threads.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

import numpy as np

from beliefmatch._utils import derive_seed
from beliefmatch._validate import fail

if TYPE_CHECKING:
    from beliefmatch.data.config import DataConfig, TextConfig

__all__ = [
    "ROLES",
    "TEST_SHARE",
    "RowSelection",
    "Split",
    "ValidationFrom",
    "assign_roles",
    "balanced_rows",
    "content_digest",
    "halves",
    "named_parts",
    "require_every_class",
    "resolve_count",
    "split_rows",
    "stratified_rows",
]

Part = TypeVar("Part")

ROLES = ("train", "validation", "test")
ValidationFrom = Literal["train", "test"]

TEST_SHARE = 0.2
"""Of all images, where a dataset comes without a test part."""

# Random streams: changing one share does not change the draws of the others.
_TEST, _VALIDATION, _LIMIT, _HALF, _LABELS = 1, 2, 3, 4, 5


class RowSelection(NamedTuple):
    """Some rows of a part of a dataset, ascending; int64."""

    part: str
    rows: np.ndarray


class Split(NamedTuple):
    """Rows to train, validate and test on; disjoint, each in ascending order."""

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray


def named_parts(found: Mapping[str, Part]) -> dict[str, Part]:
    """A train and a test part, or one undivided part; without a test part, validation is reported on."""
    parts = dict(found)
    if set(parts) == {"train", "validation"}:
        parts["test"] = parts.pop("validation")
    if not ({"train", "test"} <= set(parts) or set(parts) == {"all"}):
        expected = "a train part and one to report on (test or validation), or one undivided set"
        got = f"only {', '.join(parts) or 'nothing'}"
        remedy = "give the path of that part itself to have it split"
        raise fail("data", f"`name` must hold {expected}, got {got}; {remedy}.")
    return parts


def require_every_class(labels: np.ndarray, names: tuple[str, ...]) -> None:
    """Require two classes, and an example of each to train on."""
    if len(names) < 2:
        raise fail("data", f"`name` must hold 2 classes or more, got {len(names)} ({', '.join(names)}).")
    absent = np.flatnonzero(np.bincount(labels, minlength=len(names)) == 0)
    if len(absent):
        which = f"class {absent[0]} ({names[absent[0]]})"
        which += f" and {len(absent) - 1} more" if len(absent) > 1 else ""
        remedy = "add examples, raise `limit`, or lower `validation`"
        raise fail("data", f"every class must have an example to train on, got none of {which}; {remedy}.")


def assign_roles(
    labels: Mapping[str, np.ndarray], config: DataConfig | TextConfig, *, validation_from: ValidationFrom
) -> dict[str, RowSelection]:
    """The rows for training, validation and test.

    Args:
        labels: class ids of each part: of "train" and "test", perhaps "validation"; or of "all".
        config: the number of validation examples, the limit and the seed.
        validation_from: "train", unless there is a validation part; or "test", of which one half is then for
            validation and the other for the test, while all of the train part is for training.
    """
    first, from_test = "all" if "all" in labels else "train", validation_from == "test"
    has_own = "validation" in labels and not from_test
    split = split_rows(
        labels[first],
        validation=0 if has_own or from_test else config.validation,
        test=TEST_SHARE if first == "all" else 0,
        limit=config.limit,
        seed=config.split_seed,
    )
    roles = {role: RowSelection(first, rows) for role, rows in split._asdict().items()}
    for role in ("validation",) * has_own + ("test",) * ("test" in labels):
        roles[role] = RowSelection(role, np.arange(len(labels[role])))
    if from_test:
        part, rows = roles["test"]
        for role, half in zip(ROLES[1:], halves(labels[part][rows], config.split_seed), strict=True):
            roles[role] = RowSelection(part, rows[half])
    return roles


def split_rows(
    labels: np.ndarray, *, validation: float, test: float = 0.0, limit: int | None = None, seed: int = 0
) -> Split:
    """Split one set of images, each class in proportion.

    Args:
        labels: class id of each image.
        validation: of what `test` leaves: a share below 1, or a number; 0 for none.
        test: of all images, likewise.
        limit: the largest number of images kept for training.
        seed: of the split.
    """
    everything = np.arange(len(labels))
    tested = stratified_rows(labels, resolve_count(test, len(labels)), derive_seed(seed, _TEST))
    rest = np.setdiff1d(everything, tested, assume_unique=True)
    count = resolve_count(validation, len(rest))
    validated = rest[stratified_rows(labels[rest], count, derive_seed(seed, _VALIDATION))]
    trained = np.setdiff1d(rest, validated, assume_unique=True)
    if limit is not None:
        count = min(limit, len(trained))
        trained = trained[stratified_rows(labels[trained], count, derive_seed(seed, _LIMIT))]
    return Split(trained, validated, tested)


def halves(labels: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of two halves, each class in proportion; of an odd number the second has one more."""
    if len(labels) < 2:
        raise fail("data", f"test examples must be at least 2 to be halved, got {len(labels)}.")
    first = stratified_rows(labels, len(labels) // 2, derive_seed(seed, _HALF))
    return first, np.setdiff1d(np.arange(len(labels)), first, assume_unique=True)


def stratified_rows(labels: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Draw `count` rows, each class in proportion (Sainte-Laguë's method); ascending.

    The rows of a smaller count are among those of a larger one.
    """
    order, within, sizes, _ = _by_class(labels, seed)
    turn = (within + 0.5) / np.repeat(sizes, sizes)
    return np.sort(order[np.argsort(turn, kind="stable")[:count]])


def balanced_rows(labels: np.ndarray, count: int, seed: int = 0) -> np.ndarray:
    """Draw `count` rows, equally many of each class; ascending.

    Where the number of classes does not divide the count, some have one more; a class with too few images
    gives all of them. The rows of a smaller count are among those of a larger one.

    >>> balanced_rows(np.array([0, 0, 0, 0, 1, 1, 1]), 4).shape
    (4,)
    """
    order, turn, _, words = _by_class(labels, derive_seed(seed, _LABELS))
    return np.sort(order[np.lexsort((words[order], turn))[:count]])


def _by_class(labels: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Rows sorted by class and then at random, their ranks within the class, class sizes, random words."""
    words = np.random.PCG64(seed).random_raw(len(labels))
    order = np.lexsort((words, labels))
    sizes = np.unique(labels, return_counts=True)[1]
    return order, np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes), sizes, words


def resolve_count(amount: float, available: int) -> int:
    """A share below 1 of the available images, rounded, or a number of images."""
    count = round(amount * available) if amount < 1 else int(amount)
    if amount >= 1 and (count != amount or count >= available):
        expected = f"a share below 1 or a whole number below the {available} examples there are"
        raise fail("data", f"`validation` must be {expected}, got {amount:g}.")
    return max(count, 1) if amount > 0 else 0


def content_digest(pieces: Iterable[bytes | str | np.ndarray]) -> str:
    """SHA-256 of texts, bytes and arrays with their lengths; the same on every platform."""
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
