"""Deep ensembles (Lakshminarayanan et al. 2017): networks trained from different seeds, averaged."""

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from beliefmatch._validate import fail, require_index
from beliefmatch.belief import Belief
from beliefmatch.methods.base import Method, Prediction
from beliefmatch.methods.belief_matching import belief_matching
from beliefmatch.methods.cross_entropy import softmax

__all__ = ["EnsemblePredictor", "belief_ensemble", "combine", "ensemble"]


def ensemble(*, members: int = 5) -> Method:
    """Train with cross-entropy from several seeds; the probabilities are the mean of the members'."""
    return _ensemble(softmax(), members, {"members": members})


def belief_ensemble(*, kl_weight: float, members: int = 5) -> Method:
    """Train with belief matching from several seeds; the members' Dirichlets are combined (`combine`)."""
    return _ensemble(
        belief_matching(kl_weight=kl_weight), members, {"kl_weight": kl_weight, "members": members}
    )


def _ensemble(member: Method, members: int, options: dict[str, float]) -> Method:
    if require_index("ensemble", "members", members) < 1:
        raise fail("ensemble", f"`members` must be at least 1, got {members!r}.")
    return Method(
        objective=member.objective,
        predictor=partial(EnsemblePredictor, member),
        options=options,
        members=members,
        reads=member.reads,
        takes_counts=member.takes_counts,
    )


@dataclass(frozen=True, init=False)
class EnsemblePredictor:
    """The mean of the members' probabilities, and one belief that combines theirs if they have beliefs."""

    networks: tuple[nn.Module, ...]
    member: Method

    def __init__(self, member: Method, *networks: nn.Module) -> None:
        object.__setattr__(self, "member", member)
        object.__setattr__(self, "networks", networks)

    def predict(self, x: Tensor) -> Prediction:
        """Predict the classes of a batch."""
        predictions = [self.member.predictor(network).predict(x) for network in self.networks]
        beliefs = [prediction.belief for prediction in predictions if prediction.belief is not None]
        if len(beliefs) == len(predictions):
            belief = combine(beliefs)
            return Prediction(probs=belief.probs, belief=belief)
        return Prediction(probs=torch.stack([p.probs for p in predictions]).mean(0))


def combine(beliefs: list[Belief]) -> Belief:
    r"""One Dirichlet with the mean and the total variance of an equal mixture of Dirichlets.

    Disagreement between members adds variance, so the result is less certain than its members. With mean
    :math:`m` and variances :math:`v_k` of the mixture,
    :math:`α_0 = \sum_k m_k(1 - m_k) / \sum_k v_k - 1` and :math:`α = α_0 m`.
    """
    log_means = torch.stack([belief.log_alpha.log_softmax(-1) for belief in beliefs])
    log_mean = log_means.logsumexp(0) - math.log(len(beliefs))
    means, mean = log_means.exp(), log_mean.exp()
    within = torch.stack([belief.variance for belief in beliefs]).mean(0)
    variance = (within + (means - mean).square().mean(0)).sum(-1, keepdim=True)
    log_precisions = torch.stack([belief.log_precision[..., None] for belief in beliefs])
    ratio = (mean * (1 - mean)).sum(-1, keepdim=True) / variance - 1
    # where all members are certain to the last digit of their probabilities, their mean precision is used
    is_resolved = (variance > 1e-12) & (ratio > 0)
    log_precision = torch.where(is_resolved, ratio.clamp(min=1e-300).log(), log_precisions.mean(0))
    return Belief(log_mean + log_precision)
