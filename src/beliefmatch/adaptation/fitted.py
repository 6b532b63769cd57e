"""A fitted head, and how good it is."""

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from torch import Tensor

from beliefmatch.adaptation.candidates import Candidate
from beliefmatch.methods.base import Prediction

__all__ = ["FittedHead", "HeadScores", "Init", "Point"]

Init = tuple[Tensor, Tensor]
"""Weight (K, F) and bias (K,) of an existing head."""


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
    notes: tuple[str, ...] = field(default=())

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
