"""Metrics of predictions and targets.

Functions take probabilities and class ids. `outcomes` reads predictions once, probabilities or logits, and
keeps what all metrics need. The classes (`Error`, `NLL`, ...) take batches; they need torchmetrics and are
loaded on first use.
"""

from typing import TYPE_CHECKING

from beliefmatch._utils import lazy_names
from beliefmatch.metrics.binomial import binomial_interval
from beliefmatch.metrics.bootstrap import (
    Interval,
    bootstrap,
    bootstrap_detection,
    bootstrap_differences,
    bootstrap_outcomes,
)
from beliefmatch.metrics.calibration import (
    ClassBins,
    Overconfidence,
    ReliabilityBins,
    adaptive_calibration_error,
    calibration_error,
    class_bins,
    classwise_calibration_error,
    debiased_calibration_error,
    debiased_error_of,
    expected_calibration_error,
    maximum_calibration_error,
    overconfidence,
    overconfidence_of,
    reliability_bins,
)
from beliefmatch.metrics.detection import aupr, auroc, fpr_at_tpr, roc
from beliefmatch.metrics.outcomes import Outcomes, outcomes
from beliefmatch.metrics.scores import SCORES, Score
from beliefmatch.metrics.scoring import (
    BrierParts,
    brier,
    brier_parts,
    brier_parts_of,
    error,
    nll,
    top_k_error,
)
from beliefmatch.metrics.selective import (
    Guarantee,
    RiskCoverage,
    aurc,
    coverage_at_risk,
    excess_aurc,
    risk_coverage,
)

if TYPE_CHECKING:
    from beliefmatch.metrics.streaming import (
        AURC,
        AUROC,
        NLL,
        Brier,
        ClasswiseCalibrationError,
        Error,
        ExpectedCalibrationError,
        MaximumCalibrationError,
        Summary,
        TopKError,
    )

__all__ = [
    "AURC",
    "AUROC",
    "NLL",
    "SCORES",
    "Brier",
    "BrierParts",
    "ClassBins",
    "ClasswiseCalibrationError",
    "Error",
    "ExpectedCalibrationError",
    "Guarantee",
    "Interval",
    "MaximumCalibrationError",
    "Outcomes",
    "Overconfidence",
    "ReliabilityBins",
    "RiskCoverage",
    "Score",
    "Summary",
    "TopKError",
    "adaptive_calibration_error",
    "aupr",
    "aurc",
    "auroc",
    "binomial_interval",
    "bootstrap",
    "bootstrap_detection",
    "bootstrap_differences",
    "bootstrap_outcomes",
    "brier",
    "brier_parts",
    "brier_parts_of",
    "calibration_error",
    "class_bins",
    "classwise_calibration_error",
    "coverage_at_risk",
    "debiased_calibration_error",
    "debiased_error_of",
    "error",
    "excess_aurc",
    "expected_calibration_error",
    "fpr_at_tpr",
    "maximum_calibration_error",
    "nll",
    "outcomes",
    "overconfidence",
    "overconfidence_of",
    "reliability_bins",
    "risk_coverage",
    "roc",
    "top_k_error",
]


__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "streaming": "AURC AUROC NLL Brier ClasswiseCalibrationError Error ExpectedCalibrationError "
        "MaximumCalibrationError Summary TopKError"
    },
)
