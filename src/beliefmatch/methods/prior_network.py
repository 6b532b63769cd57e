"""Prior networks (Malinin and Gales 2018, 2019): a sharp Dirichlet in distribution, a flat one OOD.

The target is Dir(1 + precision · onehot) for an in-distribution example and Dir(1) for an OOD example.
"forward" is KL(target ‖ model) of the first paper, and "reverse" is KL(model ‖ target) of the second, which
does not spread over classes that are confused.
"""

import math
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from beliefmatch._validate import fail, require_choice, require_finite_number
from beliefmatch.belief import dirichlet_kl
from beliefmatch.methods.base import Method, NetworkPredictor
from beliefmatch.methods.belief_matching import read

__all__ = ["prior_network"]

Direction = Literal["reverse", "forward"]


def prior_network(
    *, direction: Direction = "reverse", precision: float = 100.0, ood_weight: float = 1.0
) -> Method:
    """Train towards a Dirichlet for each example; needs OOD examples to train on.

    Args:
        direction: order of the arguments of the divergence.
        precision: concentration of the label's class in addition to one.
        ood_weight: weight of the loss of OOD examples.
    """
    require_choice("prior_network", "direction", direction, ("reverse", "forward"))
    if not require_finite_number("prior_network", "precision", precision) > 0:
        raise fail("prior_network", f"`precision` must be positive, got {precision!r}.")
    if not require_finite_number("prior_network", "ood_weight", ood_weight) >= 0:
        raise fail("prior_network", f"`ood_weight` must not be negative, got {ood_weight!r}.")
    return Method(
        objective=partial(_in_distribution_loss, direction=direction, precision=precision),
        ood=partial(_ood_loss, direction=direction, weight=ood_weight),
        predictor=partial(NetworkPredictor, read=read),
        options={"direction": direction, "precision": precision, "ood_weight": ood_weight},
        reads="belief",
    )


def _in_distribution_loss(
    logits: Tensor, targets: Tensor, *, direction: Direction, precision: float
) -> Tensor:
    target = torch.zeros_like(logits).scatter(1, targets[:, None], math.log1p(precision))
    return _divergence(logits, target, direction)


def _ood_loss(logits: Tensor, *, direction: Direction, weight: float) -> Tensor:
    return weight * _divergence(logits, torch.zeros_like(logits), direction)


def _divergence(logits: Tensor, target: Tensor, direction: Direction) -> Tensor:
    pair = (logits, target) if direction == "reverse" else (target, logits)
    return dirichlet_kl(*pair, dim=1).mean()
