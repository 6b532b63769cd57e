"""What metrics need of each prediction: a few numbers instead of K, read in one pass."""

from dataclasses import dataclass

import torch
from torch import Tensor

from beliefmatch.kernels import LogitsReading, ProbsReading
from beliefmatch.metrics._inputs import check_layout, only_given
from beliefmatch.metrics.readings import read_logits, read_probs

__all__ = ["Outcomes", "observe", "outcomes"]


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
    """`outcomes` for another function; without `entropy`, the most expensive column, that column is NaN."""
    name, values = only_given(function, probs, logits)
    check_layout(function, name, values, targets)
    targets = targets.detach().to("cpu", torch.int64).contiguous()
    if name == "probs":
        return _of_probs(targets, read_probs(function, values, targets, entropy=entropy))
    return _of_logits(targets, read_logits(function, values, targets, entropy=entropy))


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
