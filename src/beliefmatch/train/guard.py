"""Steps whose loss or gradient is not finite: skipped, counted, and no longer borne when they persist."""

import math
from dataclasses import dataclass

__all__ = ["Guard"]

ADVICE = (
    "Try a lower `learning_rate`, a longer `warmup`, a smaller `clip_norm`, `precision` 32, "
    "or for belief matching a larger `kl_weight`."
)


@dataclass
class Guard:
    """Count of the steps that had to be skipped.

    Args:
        limit: of steps skipped in a row; the next ends the training.
        in_a_row: how many they were up to now.
    """

    limit: int = 20
    in_a_row: int = 0

    def passed(self) -> None:
        """A step was taken."""
        self.in_a_row = 0

    def skipped(self, loss: float, gradient_norm: float) -> None:
        """A step was not taken. FloatingPointError if it was one too many."""
        self.in_a_row += 1
        if self.in_a_row >= self.limit:
            what = f"loss {loss:.4g}, gradient norm {gradient_norm:.4g}"
            raise FloatingPointError(
                f"fit: {self.in_a_row} steps in a row were not finite (the last: {what}). {ADVICE}"
            )

    @staticmethod
    def epoch_ended(epoch: int, steps: int, skipped: int) -> None:
        """FloatingPointError if more than half of an epoch was skipped."""
        if skipped > steps / 2:
            raise FloatingPointError(
                f"fit: {skipped} of the {steps} steps of epoch {epoch + 1} were not finite. {ADVICE}"
            )

    @staticmethod
    def is_finite(loss: float, gradient_norm: float) -> bool:
        """Whether a step may be taken."""
        return math.isfinite(loss) and math.isfinite(gradient_norm)
