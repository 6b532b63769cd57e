"""The options of an evaluation, and what each of its numbers means with them; imports without torch."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from msgspec import Meta
from msgspec.structs import asdict

from beliefmatch._config import Config, Count, Index, Probability, Seed
from beliefmatch._errors import fail

__all__ = ["EvaluateConfig", "ModelFiles", "conventions", "require_enough_resamples", "require_ood_name"]

_FEWEST_RESAMPLES = 1000  # of fewer, a bias-corrected interval may end short of where it should
_MISCLASSIFICATION = "misclassification"  # the name of the set of wrong predictions in tables


@dataclass(frozen=True)
class ModelFiles:
    """Where the predictions of one model are."""

    name: str
    path: Path
    ood: dict[str, Path] = field(default_factory=dict)
    """For OOD examples, by the name of the set."""


class EvaluateConfig(Config, frozen=True, kw_only=True):
    """How predictions are evaluated.

    Args:
        n_bins: number of confidence bins; the paper's 15.
        resamples: of the bootstrap, thousands for ends that are not chance; 0 for no intervals at all.
        level: of the intervals.
        seed: of the bootstrap.
        top_k: how many classes `top_k_error` may name.
        risks: error rates for which to look for a confidence threshold that guarantees them.
        delta: probability with which each threshold may fail.
        coverages: probabilities with which prediction sets are to hold the true class.
        shown: how many of the most confident mistakes, and of the most uncertain examples, are kept.
    """

    n_bins: Annotated[int, Meta(ge=1, le=10_000)] = 15
    resamples: Annotated[int, Meta(ge=0, le=100_000)] = 4000
    level: Probability = 0.95
    seed: Seed = 0
    top_k: Count = 5
    risks: tuple[Probability, ...] = (0.01, 0.05)
    delta: Probability = 0.05
    coverages: tuple[Probability, ...] = (0.9, 0.95)
    shown: Index = 12


def require_enough_resamples(resamples: int) -> None:
    """None at all, or enough for intervals whose ends are not chance."""
    if 0 < resamples < _FEWEST_RESAMPLES:
        expected = f"0 or at least {_FEWEST_RESAMPLES}: fewer give unstable intervals"
        raise fail("evaluate", f"`resamples` must be {expected}, got {resamples}.")


def require_ood_name(name: str) -> None:
    """OOD sets may have any name but that of another set of the tables."""
    if name.casefold() == _MISCLASSIFICATION:
        raise fail("evaluate", f"`ood` must not be named {name!r}, the set of wrong predictions.")


def conventions(settings: EvaluateConfig) -> dict[str, str]:
    """By metric, as computed with these settings."""
    words = {**_WORDS, "intervals": _INTERVALS if settings.resamples else "None were requested."}
    if settings.resamples:
        words["differences"] = _DIFFERENCES
    return {key: text.format(**asdict(settings)) for key, text in words.items()}


_WORDS = {
    "error": (
        "Share of examples whose most probable class is not the target; of tied classes the first is taken."
    ),
    "top_k_error": "Share of examples whose target is not among the {top_k} most probable classes.",
    "nll": "Mean of −ln p(target), in nats.",
    "brier": (
        "Mean of Σ (p − one-hot)² over all classes, from 0 to 2. Its parts are Murphy's (1973), class"
        " by class over {n_bins} bins of equal width; the remainder is what differs within bins."
    ),
    "ece": (
        "Mean gap between confidence and accuracy over {n_bins} bins (i/M, (i+1)/M] of equal width;"
        " a confidence of 0 counts in the first. Biased upwards in small samples."
    ),
    "mce": "Largest gap of these bins; one of few examples can decide it.",
    "adaptive_ece": "Mean gap over {n_bins} bins of equal size.",
    "classwise_ece": (
        "Mean gap between a class's probability and its frequency over {n_bins} bins of equal "
        "width, and mean of that over the classes. It has no interval."
    ),
    "debiased_ece": (
        "Root mean squared gap over {n_bins} bins of equal size less what chance adds to it (Kumar,"
        " Liang and Ma 2019)."
    ),
    "overconfidence": "Mean confidence less accuracy: positive if overconfident, negative if underconfident.",
    "aurc": "Area under the risk-coverage curve: error among the k most confident, mean over all k.",
    "excess_aurc": "That area less the area of the best order of the same predictions.",
    "mean_confidence": "Mean of the largest probability.",
    "mean_entropy": "Mean of −Σ p ln p, in nats.",
    "detection": (
        "Higher scores mean OOD, or wrong. AUROC counts ties one half; AUPR is average precision "
        "with either side as positive; FPR95 is the share of OOD (or wrong) examples that pass "
        "where 95 % of the known (or right) ones do."
    ),
    "scores": (
        "Predictive entropy: of the probabilities. 1 − largest probability: from logits with all its digits. "
        "Mutual information and differential entropy: of the Dirichlet that logits stand for under belief "
        "matching; of MC dropout and ensembles without one, mutual information is the entropy of the mean "
        "probabilities less the mean entropy over masks or members. Energy: −ln Σ exp(logits), which is "
        "−ln α₀ of that Dirichlet. "
        "Negative largest logit: −max of the logits."
    ),
    "risk_thresholds": (
        "Answering at or above the threshold keeps the error among answers below the bound, except "
        "with probability {delta}: Clopper and Pearson's bound at 50 coverages fixed beforehand, with"
        " Bonferroni's correction. It holds for examples drawn like these, if these chose nothing "
        "else. Each risk has a guarantee of its own."
    ),
    "density": (
        "Of the predictive entropy over [0, ln K]; Gaussian kernel with a standard deviation of 0.02 "
        "ln K, folded back at both ends."
    ),
}
_DIFFERENCES = (
    "Of error, negative log-likelihood, Brier score and expected calibration error, how far a model is above "
    "the best one; the same rows are drawn for both, {resamples} times. Error rates that differ by fewer "
    "examples than an exact sign test needs are called indistinguishable. Of AUROC, how far a model is from "
    "the best one: DeLong's paired variance, for models that were evaluated together."
)
_INTERVALS = (
    "Error and top-k error: Clopper and Pearson. AUROC: DeLong's variance on the logit scale. AUPR: "
    "infinitesimal jackknife on the logit scale. FPR95: bias-corrected bootstrap of 10,000 draws of its "
    "ranks; Clopper and Pearson's interval at 0 and 1. All others: bias-corrected bootstrap (Efron 1981) of "
    "{resamples} resamples of the examples (fewer for more than 50,000 examples), seed {seed}. Level {level}."
)
