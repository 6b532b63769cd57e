"""Metrics: probabilities and class ids in, one number out."""

from beliefmatch.metrics.calibration import expected_calibration_error
from beliefmatch.metrics.scoring import error, nll

__all__ = ["error", "expected_calibration_error", "nll"]
