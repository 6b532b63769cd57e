"""Bootstrap heads: heads fitted to resampled rows, whose disagreement is uncertainty that shrinks with data.

The spread of one Dirichlet belief says how the labels of similar rows scatter; the number of rows enters it
only by how sure the fitted head is. How much the weights would change with other rows is a second source.
Each head gives a Dirichlet; the ensemble is their mixture, and its belief the Dirichlet with the mean and the
mutual information of the mixture, so that both are in it.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from beliefmatch._utils import derive_seed
from beliefmatch.adaptation.fitted import FittedHead
from beliefmatch.belief import Belief
from beliefmatch.methods.base import Prediction

__all__ = ["EnsembleHead", "bootstrap_weights", "mixed"]

_BOOTSTRAP = 31  # what a seed is for
_MAX_LOG_PRECISION, _BISECTIONS = 30.0, 45


@dataclass(frozen=True, eq=False, kw_only=True)
class EnsembleHead(FittedHead):
    """Heads of one setting, each fitted to its own sample of the rows.

    `weight` and `bias` are those of the head fitted to all rows.
    """

    is_linear: ClassVar[bool] = False
    weights: Tensor
    """(H, K, F)."""
    biases: Tensor
    """(H, K)."""

    def member_logits(self, rows: Tensor) -> Tensor:
        """Logits of every head, (H, N, K), double."""
        return torch.einsum("hkf,nf->hnk", self.weights, rows.float()).add_(self.biases[:, None]).double()

    def predict(self, rows: Tensor) -> Prediction:
        """The belief with the mean and the mutual information of the mixture."""
        belief = Belief(mixed(self.member_logits(rows)))
        return Prediction(probs=belief.probs, logits=belief.log_alpha, belief=belief)


def mixed(logits: Tensor) -> Tensor:
    """Log-concentrations (N, K) of the Dirichlet with the mean and the mutual information of a mixture.

    The expected entropy of a Dirichlet with mean m and precision s is ψ(s + 1) − Σ m ψ(s m + 1), which grows
    with s from 0 to the entropy of m. So one s has the mean of the members' expected entropies.

    Args:
        logits: Log-concentrations of the members, (H, N, K).
    """
    logs = logits.log_softmax(2)
    log_mean = logs.logsumexp(0) - math.log(len(logits))
    mean = log_mean.exp()
    expected = _expected_entropy(logs.exp(), logits.logsumexp(2).clamp(max=_MAX_LOG_PRECISION)).mean(0)
    low, high = (torch.full_like(expected, one) for one in (-_MAX_LOG_PRECISION, _MAX_LOG_PRECISION))
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        is_below = _expected_entropy(mean, middle) < expected
        low, high = torch.where(is_below, middle, low), torch.where(is_below, high, middle)
    return log_mean + ((low + high) / 2)[:, None]


def _expected_entropy(mean: Tensor, log_precision: Tensor) -> Tensor:
    """Of Dirichlets with means (..., K) and precisions (...)."""
    precision = log_precision.exp()
    concentrations = mean * precision[..., None]
    return torch.digamma(precision + 1) - (mean * torch.digamma(concentrations + 1)).sum(-1)


def bootstrap_weights(members: int, rows: int, seed: int = 0) -> Tensor:
    """How often each row is drawn for each head, (H, N): samples of N rows with replacement."""
    weights = torch.empty(members, rows, dtype=torch.float32)
    for member, out in enumerate(weights):
        generator = torch.Generator().manual_seed(derive_seed(seed, _BOOTSTRAP, member))
        drawn = torch.randint(rows, (rows,), generator=generator)
        out.copy_(drawn.bincount(minlength=rows))
    return weights
