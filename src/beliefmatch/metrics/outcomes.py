"""What metrics need of each prediction: a few numbers instead of K, read in one pass."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from beliefmatch.metrics._inputs import SUM_TOLERANCE, check_layout, check_logits, check_probs, the_given

__all__ = [
    "Array",
    "Outcomes",
    "below_top",
    "best_of_logits",
    "best_of_probs",
    "chunks",
    "entropy_of_probs",
    "observe",
    "outcomes",
    "row_sums",
]

Array = npt.NDArray[Any]
_CHUNK = 1 << 18  # numbers read at a time: a megabyte in single precision, which stays in the cache


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Of each of N predictions what the metrics are made of; columns of shape (N,), on the CPU."""

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


def outcomes(targets: Tensor, *, probs: Tensor | None = None, logits: Tensor | None = None) -> Outcomes:
    """Read predictions once and keep what every metric needs.

    Args:
        targets: class ids, shape (N,).
        probs: class probabilities, shape (N, K); rows sum to 1 within 0.01 and are taken as they are.
        logits: log-probabilities up to a constant in each row, shape (N, K), in place of `probs`. Exact
            where a softmax would round to 0 or 1; −∞ is an impossible class.

    >>> import torch
    >>> seen = outcomes(torch.tensor([1, 2]), logits=torch.tensor([[0.0, 50.0, 0.0], [0.0, 0.0, -200.0]]))
    >>> seen.correct.tolist(), seen.rank.tolist(), [f"{nll:.5g}" for nll in seen.nll]
    ([True, False], [0, 2], ['3.8575e-22', '200.69'])
    """
    return observe("outcomes", targets, probs=probs, logits=logits)


def observe(
    function: str,
    targets: Tensor,
    *,
    probs: Tensor | None = None,
    logits: Tensor | None = None,
    entropy: bool = True,
) -> Outcomes:
    """`outcomes` in the name of another function; without `entropy`, the dearest, that column is NaN."""
    name, values = the_given(function, probs, logits)
    check_layout(function, name, values, targets)
    targets = targets.detach().to("cpu", torch.int64)
    read, finish = (_read_probs, _of_probs) if name == "probs" else (_read_logits, _of_logits)
    parts = [
        read(function, rows, targets[span, None].numpy(), scratch, entropy)
        for span, rows, scratch in chunks(values)
    ]
    # What is one number a row waits for the end: on each block a call would cost more than its arithmetic.
    best, rank, *rest = (torch.from_numpy(np.concatenate(column)) for column in zip(*parts, strict=True))
    found = finish(best[:, 0] == targets, *(column.flatten().double() for column in rest))
    named = dict(zip(("confidence", "nll", "brier", "entropy"), found, strict=True))
    return Outcomes(targets=targets, predicted=best[:, 0], rank=rank, **named)


def chunks(values: Tensor) -> Iterator[tuple[slice, Array, Array]]:
    """Blocks of rows that fit the cache, in single or double precision, and two scratch arrays like them.

    The scratch is the same memory each time: fresh megabytes would cost more than the arithmetic on them.
    The blocks are numpy's and one thread's: torch would divide each short operation among its threads, and on
    a busy machine their waiting for each other takes ten times as long as the work. Threads with blocks of
    their own were no faster either; they wait for Python's lock.
    """
    step = max(1, _CHUNK // values.shape[1])
    dtype = torch.float64 if values.dtype == torch.float64 else torch.float32
    scratch = torch.empty((2, min(step, len(values)), values.shape[1]), dtype=dtype).numpy()
    for start in range(0, len(values), step):
        rows = values[start : start + step].detach().to("cpu", dtype).contiguous().numpy()
        yield slice(start, start + step), rows, scratch[:, : len(rows)]


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


def entropy_of_probs(probs: Array, scratch: Array) -> Array:
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
    """Best class, rank, its and the target's probability, Σ p² without the target's, entropy."""
    best, top = best_of_probs(function, probs)
    own, rank = np.take_along_axis(probs, target, 1), _rank(probs, best, target, scratch)
    squares = np.multiply(probs, probs, out=scratch[0])
    np.put_along_axis(squares, target, 0, 1)
    others = row_sums(squares)
    doubt = entropy_of_probs(probs, scratch) if entropy else np.full_like(others, np.nan)
    return best, rank, top, own, others, doubt


def _of_probs(
    correct: Tensor, top: Tensor, own: Tensor, squares: Tensor, doubt: Tensor
) -> tuple[Tensor, ...]:
    return top, -own.log(), (1 - own).square() + squares, doubt


def _read_logits(
    function: str, logits: Array, target: Array, scratch: Array, entropy: bool
) -> tuple[Array, ...]:
    """Best class, rank, its and the target's logit; with d = z − max z the target's e^d, Σe^d, Σe^2d, Σd e^d.

    The sums leave out the largest term, 1, so that they keep their digits where it is nearly all.
    """
    best, top = best_of_logits(function, logits)
    own, rank = np.take_along_axis(logits, target, 1), _rank(logits, best, target, scratch)
    depth = below_top(logits, top, scratch)
    others = np.exp(depth, out=scratch[1])
    np.put_along_axis(others, best, 0, 1)
    share, rest, squares = np.take_along_axis(others, target, 1), row_sums(others), row_sums(others, others)
    depths = row_sums(depth, others) if entropy else np.full_like(rest, np.nan)
    return best, rank, top, own, share, rest, squares, depths


def _of_logits(
    correct: Tensor,
    top: Tensor,
    own: Tensor,
    share: Tensor,
    rest: Tensor,
    squares: Tensor,
    depths: Tensor,
) -> tuple[Tensor, ...]:
    total, log_total = 1 + rest, rest.log1p()
    sure = rest.square() + squares
    wrong = (total - share).square() + 1 + squares - share.square()
    brier = torch.where(correct, sure, wrong) / total.square()
    return 1 / total, (top - own) + log_total, brier, log_total - depths / total


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
