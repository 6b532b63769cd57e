"""The record of an evaluation: every number of a model's report, as JSON read without torch."""

from typing import Any

from msgspec import field

from beliefmatch._config import Record, RecordPart
from beliefmatch._errors import fail

__all__ = [
    "PAIRED",
    "SCHEMA",
    "AurocDifference",
    "Bins",
    "BrierShares",
    "ClassScores",
    "Confusion",
    "Curve",
    "Detection",
    "Draws",
    "EvaluationRecord",
    "Example",
    "Number",
    "OODSet",
    "PredictionSets",
    "RiskThresholdRecord",
]

SCHEMA = "beliefmatch.evaluation/5"
PAIRED = ("error", "nll", "brier", "ece")
"""Metrics whose draws a record keeps, to compare models by; of all of them less is better."""
_OLDER = tuple(f"beliefmatch.evaluation/{version}" for version in (1, 2, 3, 4))  # are read as well


class Number(RecordPart, frozen=True):
    """A metric and its interval; `value` is None where it is not finite, and `why` the reason."""

    value: float | None
    low: float | None = None
    high: float | None = None
    why: str = ""
    is_infinite: bool = False
    """Whether there is no `value` because it is infinite."""


class Curve(RecordPart, frozen=True):
    """Points of a line."""

    x: list[float]
    y: list[float]


class Bins(RecordPart, frozen=True):
    """A reliability diagram; means are None in empty bins. Bin i is (lower, upper]."""

    lower: list[float]
    upper: list[float]
    count: list[int]
    confidence: list[float | None]
    accuracy: list[float | None]


class BrierShares(RecordPart, frozen=True):
    """Brier score = reliability − resolution + uncertainty + remainder."""

    reliability: float
    resolution: float
    uncertainty: float
    remainder: float


class AurocDifference(RecordPart, frozen=True):
    """How much larger an AUROC is than that of another model on the same examples, by DeLong's method."""

    source: str
    """File of the other model, as in its record."""
    difference: Number


class Detection(RecordPart, frozen=True):
    """How well one score separates two groups; higher scores mean OOD, or wrong."""

    score: str
    auroc: Number
    aupr_ood: Number
    aupr_id: Number
    fpr95: Number
    roc: Curve
    auroc_differences: list[AurocDifference] = field(default_factory=list)
    """From the other models that were evaluated together with this one, on the same examples."""


class OODSet(RecordPart, frozen=True):
    """Predictions of the model for a set of examples that belong to no class."""

    name: str
    source: str
    examples: int
    mean_confidence: float
    entropy: Curve
    """Density of the predictive entropy over [0, ln K]."""
    detections: list[Detection]
    """One for each score that the predictions allow."""


class RiskThresholdRecord(RecordPart, frozen=True):
    """Answer only above `threshold`, and the error among the answers stays below `risk`."""

    risk: float
    delta: float
    threshold: float | None
    """The least confidence to answer at; None where no threshold meets the risk."""
    coverage: float
    observed_risk: float | None
    bound: float | None


class PredictionSets(RecordPart, frozen=True):
    """Conformal sets of classes, calibrated on one half of the examples and scored on the other, in turn."""

    method: str
    """ "lac", "aps" or "raps"."""
    wanted: float
    """Coverage that was asked for."""
    coverage: float
    """Share of the sets that hold the true class."""
    mean_size: float
    worst_class: int | None
    """The class whose examples are held least often, among those with at least ten."""
    worst_coverage: float | None


class ClassScores(RecordPart, frozen=True):
    """Scores of one class."""

    index: int
    examples: int
    predicted: int
    error: float | None
    """Share of its examples that were taken for another class; None if there are none."""
    mean_probability: float
    calibration_error: float


class Confusion(RecordPart, frozen=True):
    """Counts of (target, predicted): a matrix if the classes are few, else the most frequent mistakes."""

    matrix: list[list[int]] | None
    pairs: list[list[int]]
    """[target, predicted, count], the most frequent mistakes first."""


class Example(RecordPart, frozen=True):
    """One prediction to look at."""

    index: int
    """Row in the file, from 0."""
    target: int
    predicted: int
    confidence: float
    target_probability: float
    entropy: float
    image: str | None = None
    """A PNG in base64, where images were given."""


class Draws(RecordPart, frozen=True):
    """The main metrics on bootstrap resamples of the same examples.

    Two models that drew the same rows of the same examples can be compared draw by draw.
    """

    rows_sha256: str
    """Digest of the rows that were drawn."""
    metrics: dict[str, list[float]]
    """By metric of `PAIRED` one value a draw; without those that are infinite."""


class EvaluationRecord(Record, frozen=True):
    """One model on one set of labelled examples, and on OOD ones."""

    name: str
    source: str
    kind: str
    """What the file held: "logits" or "probs"."""
    examples: int
    class_names: list[str]
    scores: dict[str, Number]
    """By metric: error, top_k_error, nll, brier, ece, mce, adaptive_ece, classwise_ece, debiased_ece,
    overconfidence (signed), aurc, excess_aurc; mean_confidence, mean_entropy."""
    brier_shares: BrierShares
    reliability: Bins
    reliability_by_mass: Bins
    entropy: Curve
    misclassification: list[Detection]
    ood: list[OODSet]
    risk_coverage: Curve
    risk_thresholds: list[RiskThresholdRecord]
    confusion: Confusion
    classes: list[ClassScores]
    mistakes: list[Example]
    """The most confident ones first."""
    doubtful: list[Example]
    """The highest predictive entropies first."""
    conventions: dict[str, str]
    """By metric, in words."""
    settings: dict[str, Any]
    """Bins, resamples, seed, level, names of fields, ..."""
    versions: dict[str, str]
    hardware: dict[str, Any]
    created: str
    wall_seconds: float
    prediction_sets: list[PredictionSets] = field(default_factory=list)
    """None where there are too few examples to calibrate on."""
    draws: Draws | None = None
    """None without intervals, or where there is only one example."""
    schema: str = SCHEMA

    @classmethod
    def upgraded(cls, content: dict[str, Any]) -> dict[str, Any]:
        """Records of older schemas as of this one.

        They may have no draws, prediction sets or differences, and do not say that an NLL is infinite; in
        them, an NLL without a value is.
        """
        if content.get("schema") not in _OLDER:
            return content
        content = {**content, "schema": SCHEMA}
        scores = content.get("scores")
        if isinstance(scores, dict) and isinstance(nll := scores.get("nll"), dict):
            content["scores"] = {**scores, "nll": {**nll, "is_infinite": nll.get("value", 0) is None}}
        return content

    def check(self) -> None:
        """Every class has one entry, no class is beyond them, and all metrics have as many draws."""
        classes = len(self.class_names)
        if [one.index for one in self.classes] != list(range(classes)):
            raise fail("EvaluationRecord", f"`classes` must be 0 to {classes - 1}, as `class_names`.")
        shown = [i for one in (*self.mistakes, *self.doubtful) for i in (one.target, one.predicted)]
        shown += [i for pair in self.confusion.pairs for i in pair[:2]]
        if any(not 0 <= i < classes for i in shown):
            raise fail("EvaluationRecord", f"`classes` must be below {classes}, got {max(shown)}.")
        sizes = {len(values) for values in self.draws.metrics.values()} if self.draws else set()
        if len(sizes) > 1 or 0 in sizes:
            received = " and ".join(map(str, sorted(sizes)))
            raise fail("EvaluationRecord", f"`draws` must be as many of each metric, got {received}.")
