"""Predictions read once: of each row a few numbers instead of K, by the compiled kernel or by numpy."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from beliefmatch import kernels
from beliefmatch._validate import SUM_TOLERANCE
from beliefmatch.kernels import LogitsReading, ProbsReading
from beliefmatch.metrics._inputs import check_logits, check_probs

__all__ = [
    "Array",
    "below_top",
    "best_of_logits",
    "best_of_probs",
    "chunks",
    "read_logits",
    "read_probs",
    "row_sums",
]

Array = npt.NDArray[Any]


def read_probs(function: str, probs: Tensor, targets: Tensor, *, entropy: bool = True) -> ProbsReading:
    """What there is to know of rows of probabilities, which are checked; targets are int64 on the CPU."""
    reading = kernels.read_probs(probs, targets, SUM_TOLERANCE, entropy)
    if reading is not None:
        return reading
    parts = [
        _read_probs(function, rows, targets[span, None].numpy(), scratch, entropy)
        for span, rows, scratch in chunks(probs)
    ]
    return ProbsReading(*_joined(parts))


def read_logits(function: str, logits: Tensor, targets: Tensor, *, entropy: bool = True) -> LogitsReading:
    """What there is to know of rows of logits, which are checked; targets are int64 on the CPU."""
    reading = kernels.read_logits(logits, targets, entropy)
    if reading is not None:
        return reading
    parts = [
        _read_logits(function, rows, targets[span, None].numpy(), scratch, entropy)
        for span, rows, scratch in chunks(logits)
    ]
    return LogitsReading(*_joined(parts))


def _joined(parts: list[tuple[Array, ...]]) -> Iterator[Tensor]:
    """Columns of all blocks, the first two of whole numbers."""
    for i, column in enumerate(zip(*parts, strict=True)):
        joined = torch.from_numpy(np.concatenate(column)).flatten()
        yield joined if i < 2 else joined.double()


def chunks(values: Tensor) -> Iterator[tuple[slice, Array, Array]]:
    """Blocks of rows that fit the cache, in single or double precision, and two scratch arrays like them.

    The scratch is the same memory each time: fresh megabytes would cost more than the arithmetic on them.
    The blocks are numpy's and one thread's: torch would divide each short operation among its threads, and on
    a busy machine their waiting for each other takes ten times as long as the work. Threads with blocks of
    their own were no faster either; they wait for Python's lock. The compiled kernel, which takes most
    predictions before they come here, has neither trouble: it divides all the rows among its threads once.
    """
    scratch = None
    for span, rows in kernels.blocks(values):
        if scratch is None:
            scratch = torch.empty((2, *rows.shape), dtype=rows.dtype).numpy()
        yield span, rows.numpy(), scratch[:, : len(rows)]


def best_of_probs(function: str, probs: Array) -> tuple[Array, Array]:
    """The most probable class and its probability, each (N, 1), of rows that were checked."""
    best, sums = probs.argmax(1)[:, None], row_sums(probs)
    top = np.take_along_axis(probs, best, 1)
    off = np.abs(sums - 1).max()
    if not (probs.min() >= 0 and top.max() <= 1 and off <= SUM_TOLERANCE):  # false for NaN too
        check_probs(function, torch.from_numpy(probs), torch.from_numpy(sums))
    return best, top


def best_of_logits(function: str, logits: Array) -> tuple[Array, Array]:
    """The most probable class and its logit, each (N, 1), of rows that were checked."""
    best = logits.argmax(1)[:, None]
    top = np.take_along_axis(logits, best, 1)
    if not np.isfinite(top).all():  # NaN and +∞ count as the largest
        check_logits(function, torch.from_numpy(logits))
    return best, top


def row_sums(values: Array, factors: Array | None = None) -> Array:
    """Sum of each row, or of its products with `factors`, without writing them down."""
    return np.einsum("ij->i", values) if factors is None else np.einsum("ij,ij->i", values, factors)


def _entropy_of_probs(probs: Array, scratch: Array) -> Array:
    """−Σ p ln p of each row."""
    tiny = np.finfo(probs.dtype).tiny  # 0 ln 0 is 0
    return -row_sums(np.log(np.maximum(probs, tiny, out=scratch[0]), out=scratch[0]), probs)


def below_top(logits: Array, top: Array, scratch: Array) -> Array:
    """z − max z ≤ 0 of each class, in `scratch`, kept from −∞: e^−10000 is 0, and so is 0 · 10000."""
    with np.errstate(over="ignore"):  # −∞ is as good as any depth
        return np.maximum(np.subtract(logits, top, out=scratch[0]), -1e4, out=scratch[0])


def _read_probs(
    function: str, probs: Array, target: Array, scratch: Array, entropy: bool
) -> tuple[Array, ...]:
    """The columns of a `ProbsReading`."""
    best, top = best_of_probs(function, probs)
    own, rank = np.take_along_axis(probs, target, 1), _rank(probs, best, target, scratch)
    squares = np.multiply(probs, probs, out=scratch[0])
    np.put_along_axis(squares, target, 0, 1)
    others = row_sums(squares)
    doubt = _entropy_of_probs(probs, scratch) if entropy else np.full_like(others, np.nan)
    return best, rank, top, own, others, doubt


def _read_logits(
    function: str, logits: Array, target: Array, scratch: Array, entropy: bool
) -> tuple[Array, ...]:
    """The columns of a `LogitsReading`."""
    best, top = best_of_logits(function, logits)
    own, rank = np.take_along_axis(logits, target, 1), _rank(logits, best, target, scratch)
    depth = below_top(logits, top, scratch)
    others = np.exp(depth, out=scratch[1])
    np.put_along_axis(others, best, 0, 1)
    share, rest, squares = np.take_along_axis(others, target, 1), row_sums(others), row_sums(others, others)
    depths = row_sums(depth, others) if entropy else np.full_like(rest, np.nan)
    return best, rank, top, own, squares, depths, share, rest


def _rank(values: Array, best: Array, target: Array, scratch: Array) -> Array:
    """How many classes come before the target; none where it is the best."""
    rank = np.zeros(len(values), dtype=np.int64)
    wrong = np.flatnonzero(best != target)
    if len(wrong):
        rows = np.take(values, wrong, axis=0, out=scratch[1, : len(wrong)])
        rank[wrong] = _count_before(rows, target[wrong])
    return rank


def _count_before(values: Array, target: Array) -> Array:
    own = np.take_along_axis(values, target, 1)
    before = _count(values > own)
    tied = np.flatnonzero(_count(values == own) > 1)
    if len(tied):
        smaller = np.arange(values.shape[1]) < target[tied]
        before[tied] += _count((values[tied] == own[tied]) & smaller)
    return before


def _count(true: Array) -> Array:
    return np.add.reduce(true.view(np.uint8), axis=1, dtype=np.uint32).astype(np.int64)
