"""What can be said about learning from unlabelled examples; read without torch."""

import math
from typing import Annotated, Literal

from msgspec import Meta

from beliefmatch._config import Config, Count, Index, NonNegative, Positive

__all__ = ["SemiConfig"]

KINDS = ("vat", "pi")
WITHOUT = "none"
"""In place of a kind, where a recipe has one."""
ORDERS = ("paper", "release")
TARGETS = ("still", "stochastic")
PAPER_WEIGHT = {"vat": 0.03, "pi": 0.5}


class SemiConfig(Config, frozen=True, kw_only=True):
    """A consistency loss and how its weight grows; the defaults are the paper's.

    Args:
        kind: "vat", two predictions at an image and beside it, or "pi", two predictions of a network with
            stochastic parts.
        weight: of the loss after the ramp; if not given the paper's, 0.03 for "vat" and 0.5 for "pi" (the
            authors' release has 1 for "pi").
        ramp_up: share of the training over which the weight grows by e^(−5(1−x)²); 0 for none.
        batch_size: unlabelled examples in a step of our own loop; as many as labelled ones if not given.
        divergence: "categorical", "dirichlet", "squared", or "auto": "dirichlet" for methods with a belief,
            for others "categorical" with "vat" and "squared" with "pi".
        order: "paper", the target first, or "release", the target second.
        epsilon: length of VAT's perturbation.
        xi: smallest step of its finite difference.
        iterations: of its power method.
        direction: the divergence that the adversarial direction is searched with; "auto" for the one that is
            trained (the release: "categorical").
        target: of "pi": "still", without the stochastic parts of the network, as in the paper, or
            "stochastic", a second draw of them.
    """

    kind: Literal["vat", "pi"] = "vat"
    weight: NonNegative | None = None
    ramp_up: Annotated[float, Meta(ge=0, le=1)] = 0.4
    batch_size: Count | None = None
    divergence: Literal["auto", "categorical", "dirichlet", "squared"] = "auto"
    order: Literal["paper", "release"] = "paper"
    epsilon: Positive = 6.0
    xi: Positive = 1e-6
    iterations: Index = 1
    direction: Literal["auto", "categorical", "dirichlet", "squared"] = "auto"
    target: Literal["still", "stochastic"] = "still"

    @property
    def full_weight(self) -> float:
        """The weight after the ramp."""
        return PAPER_WEIGHT[self.kind] if self.weight is None else self.weight

    def weight_at(self, progress: float) -> float:
        """The weight after a share of the training.

        >>> [round(SemiConfig(kind="pi").weight_at(share), 4) for share in (0, 0.2, 0.4, 1)]
        [0.0034, 0.1433, 0.5, 0.5]
        """
        share = progress / self.ramp_up if progress < self.ramp_up else 1.0
        return self.full_weight * math.exp(-5 * (1 - share) ** 2)

    def divergence_for(self, *, has_belief: bool) -> str:
        """The divergence that is trained for a method with, or without, a belief of log-concentrations."""
        if self.divergence != "auto":
            return self.divergence
        if has_belief:
            return "dirichlet"
        return "categorical" if self.kind == "vat" else "squared"

    def direction_for(self, *, has_belief: bool) -> str:
        """The divergence that the adversarial direction is searched with."""
        return self.divergence_for(has_belief=has_belief) if self.direction == "auto" else self.direction
