"""What metrics need of each prediction: a few numbers instead of K, read in one pass."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from beliefmatch.metrics._inputs import check_layout, check_logits, check_probs, the_given

__all__ = ["Outcomes", "chunks", "observe", "outcomes", "split_top"]

_CHUNK = 1 << 18  # numbers read at a time: 1 MB in single precision, which stays in the cache
_COLUMNS = ("predicted", "rank", "confidence", "nll", "brier", "entropy")


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
    of_chunk = _of_probs if name == "probs" else _of_logits
    parts = [of_chunk(function, rows, targets[span], entropy) for span, rows in chunks(values)]
    whole = (torch.cat(column).cpu() for column in zip(*parts, strict=True))
    return Outcomes(targets=targets.cpu(), **dict(zip(_COLUMNS, whole, strict=True)))


def chunks(values: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Blocks of rows, in single or double precision, that fit the cache; on accelerators far larger ones."""
    step = max(1, (_CHUNK if values.device.type == "cpu" else 64 * _CHUNK) // values.shape[1])
    for start in range(0, len(values), step):
        rows = values[start : start + step].detach()
        yield slice(start, start + step), rows if rows.dtype == torch.float64 else rows.float()


def split_top(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The best class, e^(z − max z) with its own 1 taken out, and z − max z kept from −∞."""
    best = _argmax(logits)
    top = logits.gather(1, best)
    depth = (logits - top).clamp_(min=-1e4)  # e^-1e4 is 0 in double precision, and 0 · 1e4 is 0
    return best, depth.exp().scatter_(1, best, 0.0), depth


def _of_probs(function: str, probs: Tensor, targets: Tensor, entropy: bool) -> tuple[Tensor, ...]:
    sums, best, target = probs.sum(1), _argmax(probs), targets[:, None]
    top, own = probs.gather(1, best), probs.gather(1, target)
    fine = (probs.amin() >= 0) & (top.amax() <= 1) & ((sums - 1).abs().amax() <= 1e-3)
    if not fine:  # false for NaN too
        check_probs(function, probs, sums.double())
    rank = _rank(probs, own, best, target)
    squares = probs.square().scatter_(1, target, (1 - own.double()).square().to(probs.dtype)).sum(1)
    logs = torch.special.entr(probs).sum(1) if entropy else torch.full_like(sums, torch.nan)
    return best[:, 0], rank, top[:, 0].double(), -own[:, 0].double().log(), squares.double(), logs.double()


def _of_logits(function: str, logits: Tensor, targets: Tensor, entropy: bool) -> tuple[Tensor, ...]:
    target = targets[:, None]
    best, others, depth = split_top(logits)
    check_logits(function, logits)
    own = logits.gather(1, target)
    rank = _rank(logits, own, best, target)
    right, top = (best == target)[:, 0], logits.gather(1, best)
    # All sums leave out the largest term, 1, so that they keep their digits where it is nearly all.
    rest, squares = others.sum(1).double(), others.square().sum(1).double()
    total, miss = 1 + rest, others.gather(1, target)[:, 0].double()
    nll = (top.double() - own.double())[:, 0] + rest.log1p()
    sure = (rest.square() + squares) / total.square()
    wrong = ((total - miss).square() + 1 + squares - miss.square()) / total.square()
    doubt = torch.full_like(rest, torch.nan)
    if entropy:
        doubt = rest.log1p() - (others * depth).sum(1).double() / total
    return best[:, 0], rank, 1 / total, nll, torch.where(right, sure, wrong), doubt


def _argmax(values: Tensor) -> Tensor:
    """First of the largest of each row, shape (N, 1)."""
    if values.device.type == "cpu":  # numpy's runs in vector registers, torch's does not
        return torch.from_numpy(values.numpy().argmax(1))[:, None]
    return values.argmax(1, keepdim=True)


def _rank(values: Tensor, own: Tensor, best: Tensor, target: Tensor) -> Tensor:
    """How many classes come before the target."""
    rank = torch.zeros(len(values), dtype=torch.int64, device=values.device)
    wrong = (best != target)[:, 0].nonzero()[:, 0]
    if len(wrong):
        values, own, target = values[wrong], own[wrong], target[wrong]
        before = torch.arange(values.shape[1], device=values.device) < target
        rank[wrong] = ((values > own) | ((values == own) & before)).sum(1)
    return rank
