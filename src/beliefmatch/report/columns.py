"""The metrics that reports show: names, units, digits, and which way is better."""

from collections.abc import Collection, Iterable

from beliefmatch.report.table import Column

__all__ = [
    "AUROC_DIFFERENCE",
    "BRIER",
    "CALIBRATION",
    "DETECTION",
    "PREDICTIONS",
    "SELECTION",
    "distinct_scores",
    "metric_title",
    "score_title",
]


def _share(key: str, title: str, better: str = "low", help: str = "", digits: int = 2) -> Column:
    return Column(key, title, "%", better, digits, 100.0, help=help)  # type: ignore[arg-type]


def _number(key: str, title: str, better: str = "low", help: str = "", unit: str = "") -> Column:
    return Column(key, title, unit, better, 4, help=help)  # type: ignore[arg-type]


PREDICTIONS = (
    _share("error", "Error", help="Share of the examples whose class was predicted wrongly."),
    _share(
        "top_k_error", "Top-k error", help="Share of the examples whose class is not among the k likeliest."
    ),
    _number("nll", "NLL", help="Negative log-likelihood: mean of −ln p of the true class, in nats."),
    _number("brier", "Brier score", help="Mean squared distance of the probabilities to the true class."),
)
BRIER = (
    _number("brier_reliability", "Brier: reliability"),
    _number("brier_resolution", "Brier: resolution", "high"),
    _number("brier_uncertainty", "Brier: uncertainty", ""),
    _number("brier_remainder", "Brier: remainder", ""),
)
CALIBRATION = (
    _share(
        "ece", "ECE", help="Expected calibration error: mean distance of confidence and accuracy, by bins."
    ),
    _share("overconfidence", "Overconfidence", "zero", "Mean confidence less accuracy."),
    _share("mean_confidence", "Mean confidence", ""),
    _share("mce", "Maximum calibration error"),
    _share("adaptive_ece", "Adaptive ECE", help="Expected calibration error in bins of equal size."),
    _share("classwise_ece", "Classwise ECE"),
    _share("debiased_ece", "Debiased ECE, RMS"),
    _number("mean_entropy", "Mean entropy", "", unit="(nats)"),
)
SELECTION = (
    _share("aurc", "AURC", help="Area under the risk-coverage curve."),
    _share("excess_aurc", "Excess AURC", help="That area beyond the one of a perfect ranking."),
)
DETECTION = (
    _share("auroc", "AUROC", "high", "Area under the ROC curve; 50 % is chance.", 1),
    _share(
        "fpr95", "FPR95", "low", "Share of what should be flagged that passes where 95 % of the rest pass.", 1
    ),
    _share(
        "aupr_ood", "AUPR, flagged", "high", "Area under the precision-recall curve; chance is the share.", 1
    ),
    _share("aupr_id", "AUPR, passed", "high", "The same with what passes as the positive class.", 1),
)
AUROC_DIFFERENCE = Column(
    "auroc_difference",
    "AUROC, from the best",
    "% points",
    "",
    1,
    100.0,
    help="Paired difference from the best model on the same examples, with DeLong's interval.",
)
_SCORES = {
    "entropy": "predictive entropy",
    "confidence": "1 − largest probability",
    "mutual_information": "mutual information",
    "differential_entropy": "differential entropy",
    "precision": "−ln α₀",
    "energy": "energy",
    "max_logit": "negative largest logit",
    "mahalanobis_distance": "Mahalanobis distance",
    "knn_distance": "k-nearest-neighbour distance",
}


def distinct_scores(groups: Iterable[Collection[str]]) -> list[str]:
    """Every score of groups of scores, the paper's predictive entropy first.

    Without "precision" wherever there is the energy beside it: older records have both names of −ln α₀.
    """
    found = dict.fromkeys(
        score for group in groups for score in group if score != "precision" or "energy" not in group
    )
    return sorted(found, key=lambda score: score != "entropy")


def score_title(score: str) -> str:
    """A score's name in words."""
    return _SCORES.get(score, score.replace("_", " "))


def metric_title(key: str) -> str:
    """A metric's name in words."""
    known = (*PREDICTIONS, *CALIBRATION, *SELECTION, *DETECTION)
    words = key.replace("_", " ")
    return next((column.title for column in known if column.key == key), words[:1].upper() + words[1:])
