"""Belief matching: a Dirichlet belief over the class probabilities."""

from dataclasses import replace
from functools import partial

from torch import Tensor

from beliefmatch.belief import Belief
from beliefmatch.loss import BeliefMatchingLoss
from beliefmatch.methods.base import Method, NetworkPredictor, Prediction

__all__ = ["belief_matching", "belief_matching_without_kl", "read"]


def belief_matching(*, kl_weight: float, prior: float = 1.0) -> Method:
    """Train with the belief matching loss; the probabilities are the mean of the belief.

    Args:
        kl_weight: λ, the weight of the prior.
        prior: β, the same for every class.
    """
    other = {} if prior == 1 else {"prior": prior}
    return Method(
        objective=BeliefMatchingLoss(kl_weight=kl_weight, prior=prior),
        predictor=partial(NetworkPredictor, read=read),
        options={"kl_weight": kl_weight, **other},
        reads="belief",
        takes_counts=True,
    )


def belief_matching_without_kl() -> Method:
    """The paper's ablation: the expected log-likelihood alone, without a prior."""
    return replace(belief_matching(kl_weight=0.0), options={}, takes_counts=False)


def read(logits: Tensor) -> Prediction:
    """The belief with these log-concentrations, and its mean."""
    belief = Belief(logits)
    return Prediction(probs=belief.probs, belief=belief)
