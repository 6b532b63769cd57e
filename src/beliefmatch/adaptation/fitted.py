"""A head that was fitted, and how good it is."""

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from torch import Tensor

from beliefmatch.adaptation.candidates import Candidate
from beliefmatch.methods.base import Prediction

__all__ = ["FittedHead", "HeadScores", "Point"]


class HeadScores(NamedTuple):
    """Means over rows; of counts, each row's votes count by their shares."""

    nll: float
    error: float
    ece: float
    """In 15 bins of equal width."""
    rows: int


class Point(NamedTuple):
    """A head after some epochs, or some iterations of L-BFGS."""

    epoch: int
    loss: float
    """Mean over the steps of this epoch."""
    nll: float | None
    """On the validation rows, where there are any."""
    error: float | None


@dataclass(frozen=True, eq=False)
class FittedHead:
    """The weights of one candidate at its best epoch."""

    is_linear: ClassVar[bool] = True
    """Whether all that it says follows from its logits, ``weight @ row + bias``."""
    candidate: Candidate
    weight: Tensor
    """(K, F), float32."""
    bias: Tensor
    """(K,), float32."""
    epoch: int
    """Epochs that these weights were trained for."""
    validation: HeadScores | None = None
    curve: tuple[Point, ...] = ()
    diverged: bool = False
    """Its loss was not finite at some step: it was left out from there on, and is not to be chosen."""
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
