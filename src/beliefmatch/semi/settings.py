"""What can be said about learning from unlabelled examples; read without torch."""

import math
from dataclasses import dataclass
from typing import Literal

__all__ = ["SemiSettings"]

KINDS = ("vat", "pi")
ORDERS = ("paper", "release")
DIVERGENCES = ("categorical", "dirichlet", "squared")
TARGETS = ("still", "stochastic")
PAPER_WEIGHT = {"vat": 0.03, "pi": 0.5}


@dataclass(frozen=True)
class SemiSettings:
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
    weight: float | None = None
    ramp_up: float = 0.4
    batch_size: int | None = None
    divergence: Literal["auto", "categorical", "dirichlet", "squared"] = "auto"
    order: Literal["paper", "release"] = "paper"
    epsilon: float = 6.0
    xi: float = 1e-6
    iterations: int = 1
    direction: Literal["auto", "categorical", "dirichlet", "squared"] = "auto"
    target: Literal["still", "stochastic"] = "still"

    def __post_init__(self) -> None:
        choices = {"kind": KINDS, "divergence": ("auto", *DIVERGENCES), "order": ORDERS}
        for name, allowed in {**choices, "direction": ("auto", *DIVERGENCES), "target": TARGETS}.items():
            value = getattr(self, name)
            if value not in allowed:
                raise ValueError(f"semi: `{name}` must be one of {', '.join(allowed)}, got {value!r}.")
        if self.weight is not None and not 0 <= self.weight < math.inf:
            raise ValueError(f"semi: `weight` must be finite and not negative, got {self.weight!r}.")
        if self.batch_size is not None and self.batch_size < 1:
            raise ValueError(f"semi: `batch_size` must be at least 1, got {self.batch_size!r}.")
        if not 0 <= self.ramp_up <= 1:
            raise ValueError(f"semi: `ramp_up` must be a share from 0 to 1, got {self.ramp_up!r}.")
        for name in ("epsilon", "xi"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"semi: `{name}` must be finite and positive, got {getattr(self, name)!r}.")
        if type(self.iterations) is not int or self.iterations < 0:
            raise ValueError(f"semi: `iterations` must be a whole number from 0, got {self.iterations!r}.")

    @property
    def full_weight(self) -> float:
        """The weight after the ramp."""
        return PAPER_WEIGHT[self.kind] if self.weight is None else self.weight

    def weight_at(self, progress: float) -> float:
        """The weight after a share of the training.

        >>> [round(SemiSettings("pi").weight_at(share), 4) for share in (0, 0.2, 0.4, 1)]
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
