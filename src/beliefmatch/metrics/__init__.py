"""Metrics of predictions and targets.

Functions take probabilities and class ids. `outcomes` reads predictions once, probabilities or logits, and
keeps what all metrics need. The classes (`Error`, `NLL`, ...) take batches; they need torchmetrics and are
loaded on first use.
"""

from typing import TYPE_CHECKING

from beliefmatch._utils import lazy_names
from beliefmatch.metrics._readings import Outcomes, outcomes
from beliefmatch.metrics.calibration import (
    ClassBins,
    Overconfidence,
    ReliabilityBins,
    adaptive_calibration_error,
    calibration_error,
    class_bins,
    classwise_calibration_error,
    debiased_calibration_error,
    expected_calibration_error,
    maximum_calibration_error,
    overconfidence,
    reliability_bins,
)
from beliefmatch.metrics.conformal import (
    class_coverage,
    conformal_sets,
    conformal_threshold,
    mean_set_size,
    set_coverage,
)
from beliefmatch.metrics.intervals import (
    DeLong,
    DetectionArea,
    Interval,
    area_difference,
    aupr_interval,
    auroc_difference,
    auroc_interval,
    binomial_interval,
    bootstrap,
    bootstrap_differences,
    bootstrap_outcomes,
    delong,
    detection_area,
    detection_intervals,
    fpr_at_tpr_interval,
)
from beliefmatch.metrics.ood import (
    SCORES,
    Score,
    aupr,
    auroc,
    energy,
    fpr_at_tpr,
    knn_distance,
    mahalanobis_distance,
    max_logit,
    roc,
)
from beliefmatch.metrics.scores import (
    BrierParts,
    brier,
    brier_parts,
    brier_parts_of,
    error,
    nll,
    top_k_error,
)
from beliefmatch.metrics.selective import (
    CoverageAtRisk,
    RiskCoverage,
    aurc,
    coverage_at_risk,
    excess_aurc,
    risk_coverage,
)

if TYPE_CHECKING:
    from beliefmatch.metrics.modules import (
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
    "CoverageAtRisk",
    "DeLong",
    "DetectionArea",
    "Error",
    "ExpectedCalibrationError",
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
    "area_difference",
    "aupr",
    "aupr_interval",
    "aurc",
    "auroc",
    "auroc_difference",
    "auroc_interval",
    "binomial_interval",
    "bootstrap",
    "bootstrap_differences",
    "bootstrap_outcomes",
    "brier",
    "brier_parts",
    "brier_parts_of",
    "calibration_error",
    "class_bins",
    "class_coverage",
    "classwise_calibration_error",
    "conformal_sets",
    "conformal_threshold",
    "coverage_at_risk",
    "debiased_calibration_error",
    "delong",
    "detection_area",
    "detection_intervals",
    "energy",
    "error",
    "excess_aurc",
    "expected_calibration_error",
    "fpr_at_tpr",
    "fpr_at_tpr_interval",
    "knn_distance",
    "mahalanobis_distance",
    "max_logit",
    "maximum_calibration_error",
    "mean_set_size",
    "nll",
    "outcomes",
    "overconfidence",
    "reliability_bins",
    "risk_coverage",
    "roc",
    "set_coverage",
    "top_k_error",
]


__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "modules": "AURC AUROC NLL Brier ClasswiseCalibrationError Error ExpectedCalibrationError "
        "MaximumCalibrationError Summary TopKError"
    },
)
