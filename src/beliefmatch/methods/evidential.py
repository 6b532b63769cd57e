"""Evidential deep learning (Sensoy, Kaplan and Kandemir 2018): evidence plus a uniform prior.

α = 1 + evidence(logits), with "relu" (the paper), "exp" or "softplus" as evidence. The loss is equation 3
("likelihood", type II), 4 ("cross_entropy", expected) or 5 ("squared", recommended) of the paper, plus the KL
divergence of the belief without the label's evidence from the uniform Dirichlet. Its weight grows to one over
the first part of the training.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from beliefmatch._validate import fail, require_choice, require_finite_number
from beliefmatch.belief import Belief, dirichlet_kl
from beliefmatch.methods.base import Method, NetworkPredictor, Objective, Prediction

__all__ = ["evidential", "evidential_losses"]

Data = Literal["squared", "cross_entropy", "likelihood"]
LARGEST_LOGIT = 30.0  # of "exp"
EVIDENCE: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "exp": lambda logits: logits.clamp(max=LARGEST_LOGIT).exp(),
    "softplus": functional.softplus,
}


def evidential(*, data: Data = "squared", evidence: str = "relu", annealing: float = 0.2) -> Method:
    """Train on evidence; the probabilities are the mean α/α₀ of the belief.

    Args:
        data: data term of the loss.
        evidence: function that turns logits into evidence.
        annealing: fraction of the training over which the weight of the divergence grows; the paper has ten
            epochs of fifty.
    """
    require_choice("evidential", "data", data, tuple(_DATA))
    require_choice("evidential", "evidence", evidence, tuple(EVIDENCE))
    if not 0 <= require_finite_number("evidential", "annealing", annealing) <= 1:
        raise fail("evidential", f"`annealing` must lie in [0, 1], got {annealing!r}.")

    def at(progress: float) -> Objective:
        options = {"data": data, "evidence": evidence, "annealing": annealing, "progress": progress}
        return partial(_mean_loss, **options)

    return Method(
        objective=at(1.0),
        schedule=at,
        predictor=partial(NetworkPredictor, read=partial(_read, evidence=EVIDENCE[evidence])),
        options={"data": data, "evidence": evidence, "annealing": annealing},
    )


def _read(logits: Tensor, *, evidence: Callable[[Tensor], Tensor]) -> Prediction:
    belief = Belief(evidence(logits).log1p())
    return Prediction(probs=belief.probs, belief=belief)


def _mean_loss(logits: Tensor, targets: Tensor, **options: Any) -> Tensor:
    return evidential_losses(logits, targets, **options).mean()


def evidential_losses(
    logits: Tensor, targets: Tensor, *, data: Data, evidence: str, annealing: float, progress: float
) -> Tensor:
    """The loss of each row, (N,), at a fraction `progress` of the training; see `evidential`."""
    weight = min(1.0, progress / annealing) if annealing else 1.0
    alpha = 1 + EVIDENCE[evidence](logits)
    label = functional.one_hot(targets, logits.shape[1]).to(alpha)
    misleading = (label + (1 - label) * alpha).log()  # α = 1 for the label
    divergence = dirichlet_kl(misleading, torch.zeros_like(misleading))
    return _DATA[data](alpha, label) + weight * divergence


def _squared(alpha: Tensor, label: Tensor) -> Tensor:
    total = alpha.sum(1, keepdim=True)
    mean = alpha / total
    return ((label - mean).square() + mean * (1 - mean) / (total + 1)).sum(1)


def _cross_entropy(alpha: Tensor, label: Tensor) -> Tensor:
    return (label * (alpha.sum(1, keepdim=True).digamma() - alpha.digamma())).sum(1)


def _likelihood(alpha: Tensor, label: Tensor) -> Tensor:
    return (label * (alpha.sum(1, keepdim=True).log() - alpha.log())).sum(1)


_DATA: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "squared": _squared,
    "cross_entropy": _cross_entropy,
    "likelihood": _likelihood,
}
