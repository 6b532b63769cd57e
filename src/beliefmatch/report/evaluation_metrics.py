"""The metrics that are shown: their names, their units and which way is better."""

from typing import Literal, NamedTuple

__all__ = [
    "BRIER",
    "CALIBRATION",
    "PREDICTIONS",
    "SELECTION",
    "Better",
    "Metric",
    "detection_metrics",
    "difference_of",
    "metric_title",
    "score_title",
    "set_title",
    "sides",
    "unit",
]

Better = Literal["low", "high", "zero", ""]


class Metric(NamedTuple):
    """A number of a record and how it is shown."""

    key: str
    title: str
    better: Better
    is_share: bool = True
    """Shown in percent."""
    comparable: bool = True
    """Whether the values of different models can be held against each other."""
    short: str = ""
    """A shorter title for a terminal, if the title is long."""


PREDICTIONS = (
    Metric("error", "Error", "low"),
    Metric("top_k_error", "Top-k error", "low"),
    Metric("nll", "Negative log-likelihood", "low", False),
    Metric("brier", "Brier score", "low", False),
)
BRIER = (
    Metric("brier_reliability", "Brier: reliability", "low", False),
    Metric("brier_resolution", "Brier: resolution", "high", False),
    Metric("brier_uncertainty", "Brier: uncertainty", "", False),
    Metric("brier_remainder", "Brier: remainder", "", False),
)
CALIBRATION = (
    Metric("ece", "Expected calibration error", "low"),
    Metric("mce", "Maximum calibration error", "low"),
    Metric("adaptive_ece", "Adaptive calibration error", "low"),
    Metric("classwise_ece", "Classwise calibration error", "low"),
    Metric("debiased_ece", "Debiased calibration error, RMS", "low"),
    Metric("overconfidence", "Overconfidence", "zero"),
    Metric("mean_confidence", "Mean confidence", ""),
    Metric("mean_entropy", "Mean predictive entropy", "", False),
)
SELECTION = (
    Metric("aurc", "Area under risk-coverage", "low"),
    Metric("excess_aurc", "Excess of that area", "low"),
)
_SCORES = {
    "entropy": "predictive entropy",
    "confidence": "1 − largest probability",
    "mutual_information": "mutual information",
    "differential_entropy": "differential entropy",
    "precision": "−ln α₀ (energy)",
    "energy": "energy",
}
_DIFFERENCE = "_difference"
_SHORT = {"nll": "Neg. log-likelihood", "ece": "Exp. calibration error"}
_IN_NATS = ("nll", "nll_difference", "mean_entropy")


def sides(name: str | None) -> tuple[str, str]:
    """What a score is to flag, and what it is to let pass; `name` is None for wrong predictions."""
    return ("wrong", "right") if name is None else ("OOD", "in-distribution")


def set_title(name: str | None) -> str:
    """The name of an OOD set, or what stands in its place."""
    return "wrong predictions" if name is None else name


def detection_metrics(name: str | None) -> dict[str, Metric]:
    """The metrics of detection by key.

    The area under a precision-recall curve starts from the share of positives. Among predictions that is
    each model's own error, so there no model is the best.
    """
    ood, in_distribution = sides(name)
    comparable = name is not None
    passing = f"{ood[0].upper() + ood[1:]} that pass where 95 % of {in_distribution} pass (FPR95)"
    metrics = (
        Metric("auroc", "AUROC", "high"),
        Metric("aupr_ood", f"AUPR, {ood} positive", "high", comparable=comparable),
        Metric("aupr_id", f"AUPR, {in_distribution} positive", "high", comparable=comparable),
        Metric("fpr95", passing, "low", short="FPR95"),
    )
    return {metric.key: metric for metric in metrics}


def difference_of(metric: Metric) -> Metric:
    """How far that metric is above the one of the best model; nothing to be the best of."""
    short = f"{_SHORT.get(metric.key, metric.title)} above the best"
    return metric._replace(key=f"{metric.key}{_DIFFERENCE}", better="", comparable=False, short=short)


def score_title(score: str) -> str:
    """A score's name in words."""
    return _SCORES.get(score, score.replace("_", " "))


def metric_title(key: str) -> str:
    """A metric's name in words."""
    metrics = (*PREDICTIONS, *CALIBRATION, *SELECTION, *detection_metrics("").values())
    return next((metric.title for metric in metrics if metric.key == key), _in_words(key))


def _in_words(key: str) -> str:
    return key.replace("_", " ")[:1].upper() + key.replace("_", " ")[1:]


def unit(metric: Metric) -> str:
    """Percent sign, nats, or nothing."""
    if metric.is_share and metric.key.endswith(_DIFFERENCE):
        return "% points"
    return "%" if metric.is_share else "(nats)" if metric.key in _IN_NATS else ""
