"""Predictions and targets as metrics need them: checked, and read once into a few numbers a row."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from beliefmatch import kernels
from beliefmatch._validate import (
    SUM_TOLERANCE,
    describe,
    fail,
    require_floating,
    require_index,
    require_values,
)
from beliefmatch.kernels import LogitsReading, ProbsReading

__all__ = [
    "BINARY",
    "Array",
    "Outcomes",
    "answers",
    "below_top",
    "best_of_logits",
    "best_of_probs",
    "check_layout",
    "check_rows",
    "chunks",
    "columns",
    "observe",
    "only_given",
    "outcomes",
    "read_logits",
    "read_probs",
    "require_at_least_one",
    "require_share",
    "row_sums",
]

Array = npt.NDArray[Any]
BINARY = {
    "logits": "of a binary classifier, stack [-z/2, z/2] of the decision function z",
    "probs": "of a binary classifier, stack [1 - p, p] of the probability p of class 1",
}
"""What to do where a binary classifier gives one number for each example."""


@dataclass(frozen=True, eq=False)
class Outcomes:
    """What metrics need of N predictions: columns of shape (N,), on the CPU."""

    targets: Tensor
    """Class that came true, int64."""
    predicted: Tensor
    """Most probable class, int64; of tied classes the first."""
    confidence: Tensor
    """Probability of the predicted class, float64."""
    nll: Tensor
    """−ln of the probability of the target, float64; infinite where that is zero."""
    brier: Tensor
    """Σ_k (p_k − 1{k = target})², float64, in [0, 2]."""
    entropy: Tensor
    """−Σ_k p_k ln p_k in nats, float64."""
    rank: Tensor
    """Number of classes that come before the target, int64: more probable, or tied and of smaller id."""

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def correct(self) -> Tensor:
        """Whether the predicted class came true."""
        return self.predicted == self.targets


def outcomes(target: Tensor, *, probs: Tensor | None = None, logits: Tensor | None = None) -> Outcomes:
    """Read predictions once and keep what every metric needs.

    Args:
        target: class ids, shape (N,).
        probs: class probabilities, shape (N, K); rows sum to 1 within 0.01 and are taken as they are.
        logits: log-probabilities up to a constant in each row, shape (N, K), in place of `probs`. Exact
            where a softmax would round to 0 or 1; −∞ is an impossible class.

    >>> import torch
    >>> seen = outcomes(torch.tensor([1, 2]), logits=torch.tensor([[0.0, 50.0, 0.0], [0.0, 0.0, -200.0]]))
    >>> seen.correct.tolist(), seen.rank.tolist(), [f"{nll:.5g}" for nll in seen.nll]
    ([True, False], [0, 2], ['3.8575e-22', '200.69'])
    """
    name, values = only_given("outcomes", probs=probs, logits=logits)
    return observe("outcomes", name, values, target)


def observe(function: str, name: str, values: Tensor, target: Tensor, *, entropy: bool = True) -> Outcomes:
    """`outcomes` of `values` that `function` calls `name`: logits if that is "logits", else probabilities.

    Without `entropy`, the most expensive column, that column is NaN.
    """
    check_layout(function, name, values, target)
    target = target.detach().to("cpu", torch.int64).contiguous()
    if name == "logits":
        return _of_logits(target, read_logits(function, values, target, entropy=entropy))
    return _of_probs(target, read_probs(function, values, target, entropy=entropy, name=name))


def _of_probs(targets: Tensor, seen: ProbsReading) -> Outcomes:
    return Outcomes(
        targets=targets,
        predicted=seen.best,
        confidence=seen.top,
        nll=-seen.own.log(),
        brier=(1 - seen.own).square() + seen.squares,
        entropy=seen.entropy,
        rank=seen.rank,
    )


def _of_logits(targets: Tensor, seen: LogitsReading) -> Outcomes:
    total, log_total = 1 + seen.rest, seen.rest.log1p()
    sure = seen.rest.square() + seen.squares
    wrong = (total - seen.share).square() + 1 + seen.squares - seen.share.square()
    return Outcomes(
        targets=targets,
        predicted=seen.best,
        confidence=1 / total,
        nll=(seen.top - seen.own) + log_total,
        brier=torch.where(seen.best == targets, sure, wrong) / total.square(),
        entropy=log_total - seen.depths / total,
        rank=seen.rank,
    )


# Rows of predictions, by the compiled kernel or by numpy


def read_probs(
    function: str, probs: Tensor, targets: Tensor, *, entropy: bool = True, name: str = "probs"
) -> ProbsReading:
    """What there is to know of rows of probabilities, which are checked; targets are int64 on the CPU."""
    reading = kernels.read_probs(probs, targets, SUM_TOLERANCE, entropy)
    if reading is not None:
        return reading
    parts = [
        _read_probs(best_of_probs(function, rows, name), rows, targets[span, None].numpy(), scratch, entropy)
        for span, rows, scratch in chunks(probs)
    ]
    return ProbsReading(*_joined(parts))


def read_logits(function: str, logits: Tensor, targets: Tensor, *, entropy: bool = True) -> LogitsReading:
    """What there is to know of rows of logits, which are checked; targets are int64 on the CPU."""
    reading = kernels.read_logits(logits, targets, entropy)
    if reading is not None:
        return reading
    parts = [
        _read_logits(best_of_logits(function, rows), rows, targets[span, None].numpy(), scratch, entropy)
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


def best_of_probs(function: str, probs: Array, name: str = "probs") -> tuple[Array, Array]:
    """The most probable class and its probability, each (N, 1), of rows that were checked."""
    best, sums = probs.argmax(1)[:, None], row_sums(probs)
    top = np.take_along_axis(probs, best, 1)
    off = np.abs(sums - 1).max()
    if not (probs.min() >= 0 and top.max() <= 1 and off <= SUM_TOLERANCE):  # false for NaN too
        _check_probs(function, name, torch.from_numpy(probs), torch.from_numpy(sums))
    return best, top


def best_of_logits(function: str, logits: Array) -> tuple[Array, Array]:
    """The most probable class and its logit, each (N, 1), of rows that were checked."""
    best = logits.argmax(1)[:, None]
    top = np.take_along_axis(logits, best, 1)
    if not np.isfinite(top).all():  # NaN and +∞ count as the largest
        _check_logits(function, torch.from_numpy(logits))
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
    best_and_top: tuple[Array, Array], probs: Array, target: Array, scratch: Array, entropy: bool
) -> tuple[Array, ...]:
    """The columns of a `ProbsReading`."""
    best, top = best_and_top
    own, rank = np.take_along_axis(probs, target, 1), _rank(probs, best, target, scratch)
    squares = np.multiply(probs, probs, out=scratch[0])
    np.put_along_axis(squares, target, 0, 1)
    others = row_sums(squares)
    doubt = _entropy_of_probs(probs, scratch) if entropy else np.full_like(others, np.nan)
    return best, rank, top, own, others, doubt


def _read_logits(
    best_and_top: tuple[Array, Array], logits: Array, target: Array, scratch: Array, entropy: bool
) -> tuple[Array, ...]:
    """The columns of a `LogitsReading`."""
    best, top = best_and_top
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


# Arguments


def only_given(function: str, **values: Tensor | None) -> tuple[str, Tensor]:
    """Name and value of the one that was passed."""
    passed = [(name, value) for name, value in values.items() if value is not None]
    if len(passed) != 1:
        names, received = " or ".join(f"`{name}`" for name in values), "both" if passed else "neither"
        raise fail(function, f"expected either {names}, got {received}.", TypeError)
    return passed[0]


def check_layout(function: str, name: str, values: Tensor, target: Tensor) -> None:
    """`values` must be (N, K) in floating point and `target` N class ids."""
    check_rows(function, name, values)
    if not isinstance(target, Tensor) or not _holds_ids(target):
        expected = "a tensor of integer class ids"
        raise fail(function, f"`target` must be {expected}, got {describe(target)}.", TypeError)
    if target.shape != values.shape[:1]:
        raise fail(
            function,
            f"`target` must have shape ({len(values)},) to match `{name}` {tuple(values.shape)}, "
            f"got {tuple(target.shape)}.",
        )
    _check_ids(function, target.cpu(), values.shape[1])


def _check_ids(function: str, target: Tensor, classes: int) -> None:
    ids = target.to(torch.int64)  # torch compares no unsigned ones; those too large for it turn negative
    invalid = ((ids < 0) | (ids >= classes)).nonzero()
    if len(invalid):
        received = target[int(invalid[0])].item()
        raise fail(function, f"`target` must be class ids from 0 to {classes - 1}, got {received}.")


def check_rows(function: str, name: str, values: Tensor) -> None:
    """`values` must be (N, K) in floating point."""
    require_floating(function, name, values)
    if values.ndim != 2 or 0 in values.shape:
        shape = tuple(values.shape)
        remedy = f"; {BINARY[name]}" if values.ndim == 1 and len(values) and name in BINARY else ""
        raise fail(function, f"`{name}` must have shape (N, K) with N, K >= 1, got {shape}{remedy}.")


def _check_probs(function: str, name: str, probs: Tensor, sums: Tensor) -> None:
    """`probs` must lie in [0, 1], and `sums`, those of its rows, be one."""
    probs, sums = probs.cpu(), sums.double().cpu()
    within = (probs >= 0) & (probs <= 1)  # false for NaN
    require_values(function, name, probs, within, "in [0, 1] (probabilities, not logits)")
    even = (sums - 1).abs() <= SUM_TOLERANCE
    require_values(function, name, sums, even, "rows that sum to 1")


def _check_logits(function: str, logits: Tensor) -> None:
    """`logits` may be −∞, where a class is impossible, but leave one possible."""
    logits = logits.cpu()
    require_values(function, "logits", logits, logits < torch.inf, "finite or -inf")
    top = logits.amax(1)
    require_values(function, "logits", top, top > -torch.inf, "finite for one class of each row")


def columns(function: str, **values: Any) -> list[Tensor]:
    """Each of `values`, by name, as a column of doubles on the CPU; of like lengths, and free of NaN."""
    checked = []
    for name, value in values.items():
        if not isinstance(value, Tensor) or value.is_complex():
            raise fail(function, f"`{name}` must be a tensor of numbers, got {describe(value)}.", TypeError)
        if value.ndim != 1 or not len(value):
            shape = tuple(value.shape)
            raise fail(function, f"`{name}` must have shape (N,) with N >= 1, got {shape}.")
        column = value.detach().to("cpu", torch.float64).contiguous()
        require_values(function, name, column, ~column.isnan(), "free of NaN")
        checked.append(column)
    return checked


def answers(function: str, confidence: Any, correct: Any) -> tuple[Tensor, Tensor]:
    """Columns of scores and of hits, 0 or 1, for the same examples."""
    confidence, hits = columns(function, confidence=confidence, correct=correct)
    if len(confidence) != len(hits):
        expected = f"shape ({len(confidence)},) to match `confidence`"
        raise fail(function, f"`correct` must have {expected}, got ({len(hits)},).")
    if correct.dtype != torch.bool:
        require_values(function, "correct", hits, (hits == 0) | (hits == 1), "0 or 1")
    return confidence, hits


def require_at_least_one(function: str, name: str, value: Any) -> int:
    """`value` must be a positive whole number."""
    number = require_index(function, name, value)
    if number < 1:
        raise fail(function, f"`{name}` must be at least 1, got {number}.")
    return number


def require_share(function: str, name: str, value: float) -> float:
    """`value` must lie strictly between 0 and 1."""
    if not 0 < value < 1:
        raise fail(function, f"`{name}` must be between 0 and 1, got {value!r}.")
    return float(value)


def _holds_ids(target: Tensor) -> bool:
    return not (target.is_floating_point() or target.is_complex() or target.dtype == torch.bool)
