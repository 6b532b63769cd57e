"""The confidence penalty (Pereyra et al. 2017): cross-entropy minus a share of the predictive entropy."""

from functools import partial

from torch import Tensor
from torch.nn import functional

from beliefmatch.checks import fail, require_finite_number
from beliefmatch.methods.base import Method, NetworkPredictor
from beliefmatch.methods.softmax import read

__all__ = ["confidence_penalty"]


def confidence_penalty(*, weight: float = 0.1) -> Method:
    """Train with CE − weight · H(softmax(logits)), a divergence from the uniform distribution in reverse."""
    if not require_finite_number("confidence_penalty", "weight", weight) >= 0:
        raise fail("confidence_penalty", f"`weight` must not be negative, got {weight!r}.")
    return Method(
        objective=partial(_loss, weight=weight),
        predictor=partial(NetworkPredictor, read=read),
        options={"weight": weight},
        reads="softmax",
    )


def _loss(logits: Tensor, targets: Tensor, *, weight: float) -> Tensor:
    log_probs = logits.log_softmax(1)
    entropy = -(log_probs.exp() * log_probs).sum(1).mean()
    return functional.nll_loss(log_probs, targets) - weight * entropy
