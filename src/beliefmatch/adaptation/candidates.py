"""What may be fitted: a kind of head and its options."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor, nn

from beliefmatch._labels import require_kl_weight, require_prior_number
from beliefmatch._utils import require_options
from beliefmatch._validate import describe, fail, require_choice, require_index
from beliefmatch.methods import build
from beliefmatch.methods.base import Method, Prediction
from beliefmatch.methods.cross_entropy import matched_smoothing

__all__ = ["FITTED_KINDS", "KINDS", "Calibration", "Candidate", "Kind", "default_kl_weights"]

Kind = Literal["belief_matching", "softmax", "label_smoothing", "evidential", "untouched", "laplace"]
FITTED_KINDS = ("belief_matching", "softmax", "label_smoothing", "evidential")
KINDS = (*FITTED_KINDS, "untouched", "laplace")
"""All kinds; the last two are the network's own head, and a Gaussian around a softmax head."""
Calibration = Literal["temperature", "vector_scaling"]
_MOST_KL_WEIGHT = 0.01
_LEAST_DOUBT, _MOST_DOUBT = 1e-3, 1.0  # of λK


@dataclass(frozen=True)
class Candidate:
    """A head to fit.

    Args:
        kind: The loss that it minimises, or where it comes from.
        options: Of belief matching `kl_weight` and `prior` (a number, or one for each class); of the others
            those of the method of that name.
        weight_decay: Times half the squared norm of the weights (of standardised features) in the objective.
        calibration: What was fitted to the validation rows on top.
        background: Whether rows of no class take part in the fit.
        exposure: Weight of such a row for softmax.
        members: Number of heads fitted to resampled rows; 1 for a head of its own.
        seed: Of the first weights and the order of batches, in the paper's protocol.
    """

    kind: Kind
    options: Mapping[str, Any] = field(default_factory=dict)
    weight_decay: float = 0.0
    calibration: Calibration | None = None
    background: bool = False
    exposure: float = 0.0
    members: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        require_choice("Candidate", "kind", self.kind, KINDS)
        require_index("Candidate", "seed", self.seed)
        if self.kind == "belief_matching":
            require_options("Candidate", self.kind, _belief_options, self.options)
            _belief_options(**self.options)
        elif self.kind in FITTED_KINDS:
            build(self.kind, **self.options)

    @property
    def name(self) -> str:
        """A text that tells it from the other candidates.

        >>> Candidate("belief_matching", {"kl_weight": 0.01}, weight_decay=1e-3).name
        'belief_matching kl_weight=0.01 weight_decay=0.001'
        """
        parts = [f"{option}={_short(value)}" for option, value in self.options.items()]
        parts += [f"weight_decay={self.weight_decay:g}"] if self.weight_decay else []
        parts += ["with background"] if self.background else []
        parts += [f"{self.members} heads"] if self.members > 1 else []
        parts += [f"seed={self.seed}"] if self.seed else []
        parts += [f"+ {self.calibration.replace('_', ' ')}"] if self.calibration else []
        return " ".join([self.kind, *parts])

    @property
    def label(self) -> str:
        """Its line in the table of an adaptation: everything that no search chooses.

        >>> Candidate("softmax", background=True, calibration="temperature").label
        'softmax with outlier exposure + temperature'
        """
        text = self.kind.replace("_", " ")
        if self.background:
            text += " with outlier exposure" if self.kind == "softmax" else " with background"
        text += f", {self.members} heads" if self.members > 1 else ""
        return f"{text} + {self.calibration.replace('_', ' ')}" if self.calibration else text

    @property
    def kl_weight(self) -> float:
        """λ of belief matching."""
        return require_kl_weight("Candidate", self.options.get("kl_weight"))

    @property
    def prior(self) -> float | tuple[float, ...]:
        """β of belief matching, one number or one for each class."""
        return _prior(self.options.get("prior", 1.0))

    @property
    def method(self) -> Method:
        """The method of this kind; belief matching's without the prior, which only training needs."""
        if self.kind == "belief_matching":
            return build("belief_matching", kl_weight=self.kl_weight)
        if self.kind in FITTED_KINDS:
            return build(self.kind, **self.options)
        return build("softmax")

    def smoothing(self, classes: int) -> float:
        """ε of a head that is trained by cross-entropy: 0 for softmax."""
        if self.kind == "softmax":
            return 0.0
        options = self.method.options
        if "matched_kl_weight" in options:
            return matched_smoothing(options["matched_kl_weight"], classes)
        return options["smoothing"]

    @property
    def read(self) -> Callable[[Tensor], Prediction]:
        """How logits (N, K) become a prediction."""
        return self.method.predictor(nn.Identity()).predict


def _belief_options(*, kl_weight: float | None = None, prior: float | Sequence[float] = 1.0) -> None:
    require_kl_weight("Candidate", kl_weight)
    _prior(prior)


def _prior(prior: Any) -> float | tuple[float, ...]:
    if isinstance(prior, Tensor):
        expected = "a number or a list of them"
        raise fail("Candidate", f"`prior` must be {expected}, got {describe(prior)}.", TypeError)
    if isinstance(prior, (list, tuple)):
        return tuple(require_prior_number("Candidate", one) for one in prior)
    return require_prior_number("Candidate", prior)


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, (int, float)) else ",".join(f"{one:g}" for one in value)


def default_kl_weights(classes: int) -> list[float]:
    """1 and 3 times powers of ten, from 0.01 or 1/K, the less, down to 0.001/K.

    What λ asks for depends on λK: with β = 1 the label of one vote gets about 1/(1 + λK). So the grid goes
    from one half, or the 0.01 of the paper, to a doubt of one in a thousand.

    >>> default_kl_weights(10), len(default_kl_weights(1000))
    ([0.01, 0.003, 0.001, 0.0003, 0.0001], 7)
    """
    if require_index("default_kl_weights", "classes", classes) < 2:
        raise fail("default_kl_weights", f"`classes` must be at least 2, got {classes}.")
    most, least = min(_MOST_KL_WEIGHT, _MOST_DOUBT / classes), _LEAST_DOUBT / classes
    first, last = math.floor(math.log10(least)) - 1, math.ceil(math.log10(most))
    grid = [float(f"{digit}e{power}") for power in range(last, first, -1) for digit in (3, 1)]
    return [one for one in grid if least * (1 - 1e-9) <= one <= most * (1 + 1e-9)]
