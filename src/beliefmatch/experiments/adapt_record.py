"""What is known of an adaptation: every head, the choice, and how good it is, as JSON read without torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from beliefmatch._config import Record, RecordPart
from beliefmatch._errors import fail
from beliefmatch._files import file_names
from beliefmatch.experiments.evaluation_record import Number
from beliefmatch.experiments.records import OODScores, Scores

__all__ = [
    "ADAPT_SCHEMA",
    "BATCHNORM_LABEL",
    "AdaptRecord",
    "BestRecord",
    "FeatureDetection",
    "FeatureFacts",
    "HeadFacts",
    "RiskThresholdCheck",
    "ScoredHead",
    "TriedHead",
    "ValidationCurve",
    "VerdictRecord",
    "VoteScaleRecord",
    "adapt_evaluation_paths",
]

ADAPT_SCHEMA = "beliefmatch.adaptation/3"
_OLDER = ("beliefmatch.adaptation/2",)  # is read as well
BATCHNORM_LABEL = "belief matching and BatchNorm"
"""Of the row of the network whose BatchNorm layers were trained with the chosen head."""


class HeadFacts(RecordPart, frozen=True):
    """The last layer of the network, as it was."""

    name: str
    in_features: int
    out_features: int
    kind: str


class ValidationCurve(RecordPart, frozen=True):
    """Validation NLL by epoch, thinned; None where it is not finite."""

    epoch: list[int]
    nll: list[float | None]


class TriedHead(RecordPart, frozen=True):
    """A head that was fitted, or taken as it was, with its scores on the validation rows."""

    name: str
    kind: str
    options: dict[str, Any]
    seed: int
    weight_decay: float
    calibration: str | None
    iterations: int
    """Of L-BFGS, or epochs of Adam."""
    gap: float | None
    """Bound on the relative distance of its objective to the minimum; None where none is known."""
    converged: bool
    nll: float | None
    error: float | None
    ece: float | None
    notes: list[str]
    curve: ValidationCurve
    background: bool = False
    """Whether rows of no class took part in the fit."""
    members: int = 1
    """Number of heads fitted to resampled rows; 1 for a head of its own."""


class BestRecord(RecordPart, frozen=True):
    """The head of the lowest validation NLL, and how much higher that of the delivered head is."""

    label: str
    nll: float
    excess: float
    standard_error: float | None


class VerdictRecord(RecordPart, frozen=True):
    """Whether the network was trained on the validation rows, None where that is unknown; and why."""

    seen: bool | None
    why: str
    evidence: dict[str, float] = msgspec.field(default_factory=dict)
    """Accuracies of the existing head, its temperature, and the p-values of the tests, by name."""


class ScoredHead(RecordPart, frozen=True):
    """A head of the comparison table on the rows that it is scored by."""

    label: str
    """Of its line, such as "label smoothing"; heads of other seeds have the same."""
    name: str
    """As among the tried ones."""
    seed: int
    options: dict[str, Any]
    converged: bool
    has_belief: bool
    scores: Scores
    """Of votes, each row's votes count by their shares."""
    kl: float | None
    """Mean KL(shares of the votes ‖ probabilities) in nats; None for labels, and where it is infinite."""
    ood: list[OODScores]


class VoteScaleRecord(RecordPart, frozen=True):
    """The scale of the delivered belief that was fitted to validation votes, and what it changed.

    Args:
        scale: Factor on α, which is in the bias of the head; None where none was fitted.
        reason: Why none was fitted.
        examples: Validation examples with two votes or more.
        nll_before: Nats of a vote after the votes before it, on the scored rows, without the scale; None
            where these have no votes.
        nll: The same with the scale.
    """

    scale: float | None
    reason: str = ""
    examples: int = 0
    nll_before: float | None = None
    nll: float | None = None


class RiskThresholdCheck(RecordPart, frozen=True):
    """A risk threshold computed on validation rows, and its coverage and error on test rows.

    Args:
        threshold: Least confidence to answer at; None where no threshold meets the risk.
        coverage: Share of the validation rows that are answered.
        bound: Bound on their error, which holds with probability 1 − delta.
        test_coverage: Share of the test rows that are answered; None where there are none.
        test_risk: Error among these answers; None where there are none.
    """

    risk: float
    delta: float
    threshold: float | None
    coverage: float
    bound: float | None
    test_coverage: float | None
    test_risk: float | None


class FeatureFacts(RecordPart, frozen=True):
    """One set of rows that heads see."""

    set: str
    rows: int
    width: int
    bytes: int


class FeatureDetection(RecordPart, frozen=True):
    """How well a distance between features detects an OOD set, without any head.

    Args:
        ood: Name of the OOD set.
        score: "mahalanobis_distance" or "knn_distance".
        auroc: With DeLong's interval.
        fpr95: Share of the OOD examples that pass where 95 % of the others do.
        train_rows: Training rows that distances are measured to, evenly spaced among all.
        examples: Examples of the scored set, evenly spaced among all.
        ood_examples: OOD examples, evenly spaced among all.
        neighbour: Which nearest neighbour; None for the Mahalanobis distance.
    """

    ood: str
    score: str
    auroc: Number
    fpr95: Number
    train_rows: int
    examples: int
    ood_examples: int
    neighbour: int | None = None


class AdaptRecord(Record, frozen=True):
    """One network, or its features alone, and all heads that were tried for it."""

    model: str
    head: HeadFacts | None
    labels: str
    """"same" where the existing head was repaired, "new" for other classes."""
    classes: int
    class_names: list[str]
    tried: list[TriedHead]
    chosen: str
    """The name of the delivered head among the tried."""
    label: str
    """Its line among the scored."""
    best: BestRecord
    verdict: VerdictRecord
    scored_on: str
    """"test", or "validation": then these rows chose as well."""
    targets: str
    """"labels" or "votes"."""
    scored: list[ScoredHead]
    risk_thresholds: list[RiskThresholdCheck]
    batchnorm: dict[str, Any] | None
    """Result of training the BatchNorm layers too, if requested."""
    notes: list[str]
    """What could not be done, and why."""
    data: dict[str, Any]
    config: dict[str, Any]
    """The whole configuration, where there is more than the options of the adaptation."""
    features: list[FeatureFacts]
    adapt_config: dict[str, Any]
    seconds: dict[str, float]
    command: list[str]
    versions: dict[str, str]
    hardware: dict[str, Any]
    created: str
    wall_seconds: float
    feature_detection: list[FeatureDetection] = msgspec.field(default_factory=list)
    """OOD detection by the features alone."""
    vote_scale: VoteScaleRecord | None = None
    """Of the delivered head; None for labels, and where none was asked for."""
    schema: str = ADAPT_SCHEMA

    @classmethod
    def upgraded(cls, content: dict[str, Any]) -> dict[str, Any]:
        """Records of the older schema, which have no detection by features, as those of this one."""
        return {**content, "schema": ADAPT_SCHEMA} if content.get("schema") in _OLDER else content

    def check(self) -> None:
        """The chosen head was tried and judged, and every class has a name."""
        if self.chosen not in {one.name for one in self.tried}:
            raise fail("AdaptRecord", f"`chosen` must be one of the tried heads, got {self.chosen!r}.")
        if self.label not in self.row_labels:
            raise fail("AdaptRecord", f"`scored` must have a line {self.label!r}, got none.")
        if len(self.class_names) != self.classes:
            expected, received = f"{self.classes}, one a class", len(self.class_names)
            raise fail("AdaptRecord", f"`class_names` must be {expected}, got {received}.")

    @property
    def row_labels(self) -> list[str]:
        """The lines of the comparison table, each once, in their order."""
        return list(dict.fromkeys(one.label for one in self.scored))

    @property
    def chosen_head(self) -> TriedHead:
        """The chosen one of those that were tried."""
        return next(one for one in self.tried if one.name == self.chosen)

    @property
    def new_label(self) -> str:
        """The line of what is delivered: with trained BatchNorm layers where they were taken."""
        return BATCHNORM_LABEL if BATCHNORM_LABEL in self.row_labels else self.label

    def delivered(self, label: str) -> ScoredHead:
        """The head of a line with the seed of the chosen one; the first where a line has no such seed."""
        of_line = [one for one in self.scored if one.label == label]
        seed = self.chosen_head.seed
        return next((one for one in of_line if one.seed == seed), of_line[0])


def adapt_evaluation_paths(labels: Sequence[str]) -> list[str]:
    """Where the evaluation of each line lies, below the directory of its adaptation."""
    return [f"evaluations/{name}.json" for name in file_names(labels)]
