"""A head: what is to be fitted, the weights that came of it, and how good they are."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

from torch import Tensor, nn

from beliefmatch.methods import build
from beliefmatch.methods.base import Method, Prediction
from beliefmatch.methods.cross_entropy import matched_smoothing

__all__ = ["Calibration", "Candidate", "FittedHead", "HeadScores", "Init", "Kind", "Point"]

Init = tuple[Tensor, Tensor]
"""Weight (K, F) and bias (K,) of an existing head."""
Kind = Literal["belief_matching", "softmax", "label_smoothing", "evidential", "untouched", "laplace"]
"""The last two are the network's own head, and a Gaussian around a softmax head."""
Calibration = Literal["temperature", "vector_scaling", "matrix_scaling"]


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
        return self.options["kl_weight"]

    @property
    def prior(self) -> float | tuple[float, ...]:
        """β of belief matching, one number or one for each class."""
        prior = self.options.get("prior", 1.0)
        return prior if isinstance(prior, int | float) else tuple(prior)

    @property
    def method(self) -> Method:
        """The method of this kind; belief matching's without the prior, which only training needs."""
        if self.kind == "belief_matching":
            return build("belief_matching", kl_weight=self.kl_weight)
        return build("softmax") if self.kind in ("untouched", "laplace") else build(self.kind, **self.options)

    def smoothing(self, classes: int) -> float:
        """ε of a head that is trained by cross-entropy: 0 for softmax."""
        if self.kind == "softmax":
            return 0.0
        if "matched_kl_weight" in self.options:
            return matched_smoothing(self.options["matched_kl_weight"], classes)
        return self.method.options["smoothing"]

    @property
    def has_belief(self) -> bool:
        """Whether its logits are log-concentrations; those of all other kinds are read otherwise."""
        return self.method.reads == "belief"

    @property
    def read(self) -> Callable[[Tensor], Prediction]:
        """How logits (N, K) become a prediction."""
        return self.method.predictor(nn.Identity()).predict


def _short(value: Any) -> str:
    if isinstance(value, str):
        return value
    return f"{value:g}" if isinstance(value, int | float) else ",".join(f"{one:g}" for one in value)


class HeadScores(NamedTuple):
    """Means over rows; of counts, each row's votes count by their shares."""

    nll: float
    error: float
    ece: float
    """In 15 bins of equal width."""
    rows: int


class Point(NamedTuple):
    """A head after some epochs of training with Adam."""

    epoch: int
    loss: float
    """Mean over the steps of this epoch."""
    nll: float | None
    """On the validation rows, where there are any."""
    error: float | None


@dataclass(frozen=True, eq=False)
class FittedHead:
    """The weights of one candidate."""

    is_linear: ClassVar[bool] = True
    """Whether all that it says follows from its logits, ``weight @ row + bias``."""
    candidate: Candidate
    weight: Tensor
    """(K, F), float32."""
    bias: Tensor
    """(K,), float32."""
    validation: HeadScores | None = None
    """With a calibration, those of cross-fitting: no row is scored by a calibration fitted to it."""
    converged: bool = True
    """Whether it met its tolerance. A head that did not is compared with no other."""
    gap: float | None = None
    """Estimate of the relative distance of its objective to the minimum."""
    iterations: int = 0
    """Of L-BFGS, or epochs of Adam."""
    curve: tuple[Point, ...] = ()
    notes: tuple[str, ...] = ()

    def predict(self, rows: Tensor) -> Prediction:
        """Read rows of features (N, F) with this head, in double precision from the logits on."""
        return self.candidate.read(rows @ self.weight.t() + self.bias)

    @property
    def nll(self) -> float | None:
        """Of the validation rows."""
        return self.validation.nll if self.validation else None

    @property
    def error(self) -> float | None:
        """Of the validation rows."""
        return self.validation.error if self.validation else None

    @property
    def ece(self) -> float | None:
        """Of the validation rows."""
        return self.validation.ece if self.validation else None

    @property
    def selection_nll(self) -> float:
        """What heads are compared by: the validation NLL, infinite where there is no finite one."""
        return self.nll if self.nll is not None and math.isfinite(self.nll) else math.inf
