"""Configuration of the losses on unlabelled examples; importing it does not import torch."""

import math
from typing import Annotated, Literal, get_args

from msgspec import Meta

from beliefmatch._config import Config, Count, Index, NonNegative, Positive

__all__ = ["SemiConfig"]

Kind = Literal["vat", "pi"]
Order = Literal["paper", "release"]
Target = Literal["still", "stochastic"]
KINDS, ORDERS, TARGETS = get_args(Kind), get_args(Order), get_args(Target)
WITHOUT = "none"
"""Given as the kind, it switches off the consistency loss of a recipe."""
PAPER_WEIGHT = {"vat": 0.03, "pi": 0.5}


class SemiConfig(Config, frozen=True, kw_only=True):
    """A consistency loss and the schedule of its weight; the defaults are those of the paper.

    Args:
        kind: "vat" compares the predictions at an image and at its worst perturbation; "pi" compares two
            predictions of a network with stochastic parts.
        weight: weight of the loss after the ramp. Default: that of the paper, 0.03 for "vat" and 0.5 for "pi"
            (the authors' release has 1 for "pi").
        ramp_up: fraction of the training over which the weight grows as e^(−5(1−x)²); 0 for no ramp.
        batch_size: unlabelled examples in a step of the training loop; as many as labelled ones if not given.
        divergence: "categorical", "dirichlet", "squared" or "auto". "auto" is "dirichlet" for methods with a
            belief; for other methods it is "categorical" with "vat" and "squared" with "pi".
        order: order of the arguments of the divergence: the target first ("paper") or second ("release").
        epsilon: Euclidean length of VAT's perturbation.
        xi: smallest step of VAT's finite difference.
        iterations: iterations of VAT's power method.
        direction: divergence that VAT searches the adversarial direction with; "auto" is `divergence`. The
            authors' release has "categorical".
        target: target of "pi": computed without the stochastic parts of the network, as in the paper
            ("still"), or with a second draw of them ("stochastic").
    """

    kind: Kind = "vat"
    weight: NonNegative | None = None
    ramp_up: Annotated[float, Meta(ge=0, le=1)] = 0.4
    batch_size: Count | None = None
    divergence: Literal["auto", "categorical", "dirichlet", "squared"] = "auto"
    order: Order = "paper"
    epsilon: Positive = 6.0
    xi: Positive = 1e-6
    iterations: Index = 1
    direction: Literal["auto", "categorical", "dirichlet", "squared"] = "auto"
    target: Target = "still"

    @property
    def full_weight(self) -> float:
        """The weight after the ramp."""
        return PAPER_WEIGHT[self.kind] if self.weight is None else self.weight

    def weight_at(self, progress: float) -> float:
        """The weight at a fraction of the training.

        >>> [round(SemiConfig(kind="pi").weight_at(progress), 4) for progress in (0, 0.2, 0.4, 1)]
        [0.0034, 0.1433, 0.5, 0.5]
        """
        x = progress / self.ramp_up if progress < self.ramp_up else 1.0
        return self.full_weight * math.exp(-5 * (1 - x) ** 2)

    def divergence_for(self, *, has_belief: bool) -> str:
        """The divergence of the loss for a method whose logits are, or are not, log-concentrations."""
        if self.divergence != "auto":
            return self.divergence
        if has_belief:
            return "dirichlet"
        return "categorical" if self.kind == "vat" else "squared"

    def direction_for(self, *, has_belief: bool) -> str:
        """The divergence that the adversarial direction is searched with."""
        return self.divergence_for(has_belief=has_belief) if self.direction == "auto" else self.direction
