"""What may be fitted: a kind of head, its options, and the seed of its first weights."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Literal

from torch import Tensor, nn

from beliefmatch._labels import require_kl_weight, require_prior_number
from beliefmatch._utils import require_options
from beliefmatch._validate import describe, fail, require_choice, require_index
from beliefmatch.adaptation.adapt_config import CONTROLS
from beliefmatch.methods import build
from beliefmatch.methods.base import Method, Prediction
from beliefmatch.methods.cross_entropy import matched_smoothing

__all__ = ["BASELINES", "KINDS", "Candidate", "Kind", "candidates", "default_kl_weights"]

Kind = Literal[
    "belief_matching", "softmax", "label_smoothing", "evidential", "untouched", "temperature", "laplace"
]
KINDS = ("belief_matching", "softmax", "label_smoothing", "evidential")
BASELINES = ("untouched", "temperature", "laplace")
"""Kinds that are not trained: the head as it was, its temperature scaled, or its Laplace approximation."""
_MOST_KL_WEIGHT = 0.01
_LEAST_DOUBT, _MOST_DOUBT = 1e-3, 1.0  # of λK


@dataclass(frozen=True)
class Candidate:
    """A head to fit.

    Args:
        name: tells it from the others of a fit.
        kind: what it is trained towards.
        options: of belief matching `kl_weight` and `prior` (a number, or one a class); of the others those
            of the method of that name.
        seed: of its first weights, where they are not given.
    """

    name: str
    kind: Kind
    options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        require_choice("Candidate", "kind", self.kind, KINDS + BASELINES)
        require_index("Candidate", "seed", self.seed)
        if self.kind == "belief_matching":
            require_options("Candidate", self.kind, _belief_options, self.options)
            _belief_options(**self.options)
        elif self.kind not in BASELINES:
            build(self.kind, **self.options)

    @property
    def kl_weight(self) -> float:
        """λ of belief matching."""
        return require_kl_weight("Candidate", self.options.get("kl_weight"))

    @property
    def prior(self) -> float | tuple[float, ...]:
        """β of belief matching, one number or one a class."""
        return _prior(self.options.get("prior", 1.0))

    @property
    def method(self) -> Method:
        """The method of this kind; belief matching's without the prior, which only training needs."""
        if self.kind == "belief_matching":
            return build("belief_matching", kl_weight=self.kl_weight)
        if self.kind in BASELINES:
            return build("softmax")
        return build(self.kind, **self.options)

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
        raise fail(
            "Candidate", f"`prior` must be a number or a list of them, got {describe(prior)}.", TypeError
        )
    if isinstance(prior, (list, tuple)):
        return tuple(require_prior_number("Candidate", one) for one in prior)
    return require_prior_number("Candidate", prior)


def candidates(
    classes: int,
    *,
    kl_weights: Iterable[float] | None = None,
    priors: Iterable[float | Sequence[float]] = (1.0,),
    seeds: Iterable[int] = (0,),
    controls: Iterable[str] = CONTROLS,
) -> list[Candidate]:
    """Belief matching for every λ, prior and seed, and what it has to be compared with.

    Args:
        classes: K.
        kl_weights: values of λ, `default_kl_weights(classes)` if not given.
        priors: values of β.
        seeds: of the first weights. One will do where all heads start from the same weights.
        controls: any of "softmax"; "label_smoothing", one for each λ that asks for the confidence that belief
            matching with this λ and β = 1 asks for; and "evidential", with its default options.

    >>> [one.name for one in candidates(10, kl_weights=[0.01], controls=["softmax"])]
    ['belief_matching kl_weight=0.01', 'softmax']
    """
    if require_index("candidates", "classes", classes) < 2:
        raise fail("candidates", f"`classes` must be at least 2, got {classes}.")
    weights = default_kl_weights(classes) if kl_weights is None else [*kl_weights]
    controls, seeds, priors = [*controls], [*seeds], [*priors]
    for control in controls:
        require_choice("candidates", "controls", control, CONTROLS)
    settings: list[tuple[Kind, dict[str, Any]]] = []
    for prior, one in product(priors, weights):
        uneven = {} if prior == 1 else {"prior": prior}
        settings.append(("belief_matching", {"kl_weight": one, **uneven}))
    if "softmax" in controls:
        settings.append(("softmax", {}))
    if "label_smoothing" in controls:
        for one in weights:
            settings.append(("label_smoothing", {"matched_kl_weight": one}))
    if "evidential" in controls:
        settings.append(("evidential", {}))
    return [
        Candidate(_name(kind, options, seed if len(seeds) > 1 else None), kind, options, seed)
        for (kind, options), seed in product(settings, seeds)
    ]


def _name(kind: str, options: Mapping[str, Any], seed: int | None) -> str:
    texts = [f"{option}={_short(value)}" for option, value in options.items()]
    return " ".join([kind, *texts, *([] if seed is None else [f"seed={seed}"])])


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, (int, float)) else ",".join(f"{one:g}" for one in value)


def default_kl_weights(classes: int) -> list[float]:
    """1 and 3 times powers of ten, from 0.01 or 1/K, the less, down to 0.001/K.

    What λ asks for depends on λK: with β = 1 the label of one vote gets about 1/(1 + λK). So the grid goes
    from one half, or the 0.01 of the paper, to a doubt of one in a thousand.

    >>> default_kl_weights(10), len(default_kl_weights(1000))
    ([0.01, 0.003, 0.001, 0.0003, 0.0001], 7)
    """
    most, least = min(_MOST_KL_WEIGHT, _MOST_DOUBT / classes), _LEAST_DOUBT / classes
    first, last = math.floor(math.log10(least)) - 1, math.ceil(math.log10(most))
    grid = [float(f"{digit}e{power}") for power in range(last, first, -1) for digit in (3, 1)]
    return [one for one in grid if least * (1 - 1e-9) <= one <= most * (1 + 1e-9)]
