"""Belief matching: a Dirichlet belief over the class probabilities."""

from functools import partial

from torch import Tensor

from beliefmatch.belief import Belief
from beliefmatch.loss import BeliefMatchingLoss
from beliefmatch.methods.base import Method, NetworkPredictor, Prediction

__all__ = ["belief_matching"]


def belief_matching(*, kl_weight: float) -> Method:
    """Train with the belief matching loss; the probabilities are the mean of the belief."""
    return Method(
        objective=BeliefMatchingLoss(kl_weight=kl_weight),
        predictor=partial(NetworkPredictor, read=_read),
        options={"kl_weight": kl_weight},
    )


def _read(logits: Tensor) -> Prediction:
    belief = Belief(logits)
    return Prediction(probs=belief.probs, belief=belief)
