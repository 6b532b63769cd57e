"""Bootstrap heads: heads fitted to resampled rows, whose disagreement is a doubt that shrinks with data.

The spread of one Dirichlet belief says how the labels of similar rows scatter; the number of rows enters it
only by how sure the fitted head is. How much the weights would change with other rows is a second doubt.
Each head gives a Dirichlet; the ensemble is their mixture, and its belief the Dirichlet with the mean of the
mixture and the same total variance, so that both doubts are in it.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from beliefmatch._utils import derive_seed
from beliefmatch.adaptation.fitted import FittedHead
from beliefmatch.belief import Belief
from beliefmatch.methods.base import Prediction

__all__ = ["EnsembleHead", "bootstrap_weights", "disagreement", "mixed"]

_BOOTSTRAP = 31  # what a seed is for


@dataclass(frozen=True, eq=False)
class EnsembleHead(FittedHead):
    """Heads of one setting, each fitted to its own sample of the rows.

    `weight` and `bias` are those of the head fitted to all rows.
    """

    is_linear: ClassVar[bool] = False
    weights: Tensor = field(default_factory=lambda: torch.empty(0))
    """(H, K, F)."""
    biases: Tensor = field(default_factory=lambda: torch.empty(0))
    """(H, K)."""

    def member_logits(self, rows: Tensor) -> Tensor:
        """Logits of every head, (H, N, K), double."""
        return torch.einsum("hkf,nf->hnk", self.weights, rows.float()).add_(self.biases[:, None]).double()

    def predict(self, rows: Tensor) -> Prediction:
        """The belief with mean and variance of the mixture."""
        belief = Belief(mixed(self.member_logits(rows)))
        return Prediction(probs=belief.probs, logits=belief.log_alpha, belief=belief)

    def disagreement(self, rows: Tensor) -> Tensor:
        """How much the heads' predictions differ, without the spread of each (see `disagreement`)."""
        return disagreement(self.member_logits(rows))


def mixed(logits: Tensor) -> Tensor:
    """Log-concentrations (N, K) of the Dirichlet with the mean and the total variance of a mixture.

    Args:
        logits: Log-concentrations of the members, (H, N, K).
    """
    log_total = logits.logsumexp(2, keepdim=True)
    means = (logits - log_total).exp()
    mean = means.mean(0)
    within = (means * (1 - means)).sum(2) / (1 + log_total[..., 0].exp())  # variance of each member
    between = (means - mean).square().sum(2)
    variance = (within + between).mean(0)
    most = (mean * (1 - mean)).sum(1)
    precision = (most / variance.clamp(min=1e-300) - 1).clamp(min=1e-6)
    log_mean = (logits - log_total).logsumexp(0) - torch.tensor(float(len(logits))).log()
    return log_mean + precision.log()[:, None]


def disagreement(logits: Tensor) -> Tensor:
    """Mutual information between the class and the member: entropy of the mean less mean entropy, (N,)."""
    logs = logits.log_softmax(2)
    mean = logs.exp().mean(0)
    return torch.special.entr(mean).sum(1) - torch.special.entr(logs.exp()).sum(2).mean(0)


def bootstrap_weights(members: int, rows: int, seed: int = 0) -> Tensor:
    """How often each row is drawn for each head, (H, N): samples of N rows with replacement."""
    weights = torch.empty(members, rows)
    for member, out in enumerate(weights):
        generator = torch.Generator().manual_seed(derive_seed(seed, _BOOTSTRAP, member))
        drawn = torch.randint(rows, (rows,), generator=generator)
        out.copy_(drawn.bincount(minlength=rows))
    return weights
