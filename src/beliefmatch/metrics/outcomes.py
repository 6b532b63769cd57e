"""What metrics need of each prediction: a few numbers instead of K, read in one pass."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from beliefmatch.metrics._inputs import SUM_TOLERANCE, check_layout, check_logits, check_probs, the_given

__all__ = [
    "Outcomes",
    "below_top",
    "best_of_logits",
    "best_of_probs",
    "chunks",
    "entropy_of_probs",
    "observe",
    "outcomes",
]

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
    targets = targets.detach().to(values.device, torch.int64)
    read, finish = (_read_probs, _of_probs) if name == "probs" else (_read_logits, _of_logits)
    parts = [
        read(function, rows, targets[span][:, None], scratch, entropy)
        for span, rows, scratch in chunks(values)
    ]
    # What is one number a row waits for the end: on each block a call would cost more than its arithmetic.
    best, rank, *rest = (torch.cat(column).cpu() for column in zip(*parts, strict=True))
    targets = targets.cpu()
    found = finish(best[:, 0] == targets, *(column.flatten().double() for column in rest))
    named = dict(zip(("confidence", "nll", "brier", "entropy"), found, strict=True))
    return Outcomes(targets=targets, predicted=best[:, 0], rank=rank, **named)


def chunks(values: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Blocks of rows that fit the cache, in single or double precision, and two scratch tensors like them.

    The scratch is the same memory each time: fresh megabytes would cost more than the arithmetic on them.
    """
    step = max(1, (_CHUNK if values.device.type == "cpu" else 64 * _CHUNK) // values.shape[1])
    dtype = torch.float64 if values.dtype == torch.float64 else torch.float32
    scratch = torch.empty((2, min(step, len(values)), values.shape[1]), dtype=dtype, device=values.device)
    for start in range(0, len(values), step):
        rows = values[start : start + step].detach().to(dtype).contiguous()
        yield slice(start, start + step), rows, scratch[:, : len(rows)]


def best_of_probs(function: str, probs: Tensor) -> tuple[Tensor, Tensor]:
    """The most probable class and its probability, each (N, 1), of rows that were checked."""
    best, sums = _argmax(probs), probs.sum(1)
    top = probs.gather(1, best)
    off = (sums - 1).abs().amax()
    if not ((probs.amin() >= 0) & (top.amax() <= 1) & (off <= SUM_TOLERANCE)):  # false for NaN too
        check_probs(function, probs, sums)
    return best, top


def best_of_logits(function: str, logits: Tensor) -> tuple[Tensor, Tensor]:
    """The most probable class and its logit, each (N, 1), of rows that were checked."""
    best = _argmax(logits)
    top = logits.gather(1, best)
    if not top.isfinite().all():  # NaN and +∞ count as the largest
        check_logits(function, logits)
    return best, top


def _argmax(values: Tensor) -> Tensor:
    """First of the largest of each row, shape (N, 1)."""
    if values.device.type == "cpu":  # numpy's runs in vector registers, torch's does not
        return torch.from_numpy(values.numpy().argmax(1))[:, None]
    return values.argmax(1, keepdim=True)


def entropy_of_probs(probs: Tensor, scratch: Tensor) -> Tensor:
    """−Σ p ln p of each row."""
    tiny = torch.finfo(probs.dtype).tiny  # 0 ln 0 is 0
    return -torch.clamp(probs, min=tiny, out=scratch[0]).log_().mul_(probs).sum(1)


def below_top(logits: Tensor, top: Tensor, scratch: Tensor) -> Tensor:
    """z − max z ≤ 0 of each class, in `scratch`, kept from −∞: e^−10000 is 0, and so is 0 · 10000."""
    return torch.sub(logits, top, out=scratch[0]).clamp_(min=-1e4)


def _read_probs(
    function: str, probs: Tensor, target: Tensor, scratch: Tensor, entropy: bool
) -> tuple[Tensor, ...]:
    """Best class, rank, its and the target's probability, Σ p² without the target's, entropy."""
    best, top = best_of_probs(function, probs)
    own, rank = probs.gather(1, target), _rank(probs, best, target, scratch)
    squares = torch.mul(probs, probs, out=scratch[0]).scatter_(1, target, 0.0).sum(1)
    doubt = entropy_of_probs(probs, scratch) if entropy else torch.full_like(squares, torch.nan)
    return best, rank, top, own, squares, doubt


def _of_probs(
    correct: Tensor, top: Tensor, own: Tensor, squares: Tensor, doubt: Tensor
) -> tuple[Tensor, ...]:
    return top, -own.log(), (1 - own).square() + squares, doubt


def _read_logits(
    function: str, logits: Tensor, target: Tensor, scratch: Tensor, entropy: bool
) -> tuple[Tensor, ...]:
    """Best class, rank, its and the target's logit; with d = z − max z the target's e^d, Σe^d, Σe^2d, Σd e^d.

    The sums leave out the largest term, 1, so that they keep their digits where it is nearly all.
    """
    best, top = best_of_logits(function, logits)
    own, rank = logits.gather(1, target), _rank(logits, best, target, scratch)
    depth = below_top(logits, top, scratch)
    others = torch.exp(depth, out=scratch[1]).scatter_(1, best, 0.0)
    share, rest = others.gather(1, target), others.sum(1)
    depths = depth.mul_(others).sum(1) if entropy else torch.full_like(rest, torch.nan)
    return best, rank, top, own, share, rest, others.square_().sum(1), depths


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


def _rank(values: Tensor, best: Tensor, target: Tensor, scratch: Tensor) -> Tensor:
    """How many classes come before the target; none where it is the best."""
    rank = torch.zeros(len(values), dtype=torch.int64, device=values.device)
    wrong = (best != target)[:, 0].nonzero()[:, 0]
    if len(wrong):
        values = torch.index_select(values, 0, wrong, out=scratch[1, : len(wrong)])
        rank[wrong] = _count_before(values, target[wrong], scratch[0, : len(wrong)])
    return rank


def _count_before(values: Tensor, target: Tensor, scratch: Tensor) -> Tensor:
    own = values.gather(1, target)
    # Comparisons written as floating-point numbers are far quicker to make and to add than truth values.
    before = torch.gt(values, own, out=scratch).sum(1).long()
    tied = (torch.eq(values, own, out=scratch).sum(1) > 1).nonzero()[:, 0]
    if len(tied):
        smaller = torch.arange(values.shape[1], device=values.device) < target[tied]
        before[tied] += ((values[tied] == own[tied]) & smaller).sum(1)
    return before
