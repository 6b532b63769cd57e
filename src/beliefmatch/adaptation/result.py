"""What an adaptation was made of, and what came of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from beliefmatch.adaptation.adapt_config import AdaptConfig
from beliefmatch.adaptation.feature_rows import Features
from beliefmatch.adaptation.fitted import FittedHead, HeadScores, Point
from beliefmatch.adaptation.heads import Head

__all__ = [
    "Adaptation",
    "BatchNormResult",
    "BestHead",
    "FeatureSets",
    "RiskThreshold",
    "Verdict",
    "VoteScale",
]


@dataclass(frozen=True, eq=False)
class FeatureSets:
    """The inputs of the head for each set of examples."""

    train: Features
    validation: Features
    test: Features | None = None
    """For the scores of the report; they choose nothing."""
    ood: Mapping[str, Features] = field(default_factory=dict)
    """Examples that belong to no class, by the name of their set; for the report alone."""
    background: Features | None = None
    """Examples that belong to no class, to fit on."""
    val_fraction: float | None = None
    """Share of the training examples that are the validation set because no other was given."""


class Verdict(NamedTuple):
    """Whether the network was trained on the validation rows, None where that is unknown.

    Args:
        seen: Whether they were seen.
        why: Reason, with the tests and their p-values.
        evidence: Accuracies, temperature and p-values by name.
    """

    seen: bool | None
    why: str
    evidence: Mapping[str, float] = {}


@dataclass(frozen=True)
class RiskThreshold:
    """Confidence from which on a head may answer so that the error among the answers stays below `risk`.

    Computed on validation rows; it fails with probability `delta` at most. `threshold` is None where no
    threshold meets the risk.
    """

    risk: float
    delta: float
    threshold: float | None
    coverage: float
    bound: float | None


class VoteScale(NamedTuple):
    """The scale of a belief that was fitted to validation votes, or why there is none."""

    scale: float | None
    """Factor on α, which is in the bias of the head."""
    reason: str = ""
    """Why no scale was fitted."""
    examples: int = 0
    """With two votes or more."""


@dataclass(frozen=True, eq=False)
class BatchNormResult:
    """What came of training BatchNorm layers together with the chosen head."""

    layers: tuple[str, ...]
    """That were trained, by their names in the network."""
    before: HeadScores
    """Of the chosen head alone, on the validation images."""
    after: HeadScores
    """Of the best epoch."""
    epoch: int
    """The best one; 0 where none was better than the chosen head alone."""
    curve: tuple[Point, ...]
    head: FittedHead
    """With the weights of the best epoch; the chosen one where that is 0."""
    validation: Features
    """The head's inputs through the layers as they are now."""
    test: Features | None = None
    ood: Mapping[str, Features] = field(default_factory=dict)

    @property
    def is_taken(self) -> bool:
        """Whether the network has the trained layers: only if they are better on the validation images."""
        return self.epoch > 0


class BestHead(NamedTuple):
    """The head of the lowest validation NLL, and how much higher the delivered one's is."""

    label: str
    nll: float
    excess: float
    """NLL of the delivered head less that of this one, on the validation rows."""
    standard_error: float
    """Of the excess, from the differences of the rows."""


@dataclass(frozen=True, eq=False)
class Adaptation:
    """How a classifier was adapted."""

    chosen: FittedHead
    """The head that is delivered."""
    label: str
    """Its line in the table."""
    table: Mapping[str, Sequence[FittedHead]]
    """The heads to compare, one for each seed, by the label of their line."""
    best: BestHead
    fitted: Sequence[FittedHead]
    """All heads that were tried."""
    verdict: Verdict
    """Whether the validation data were seen before."""
    labels: Literal["same", "new"]
    classes: int
    sets: FeatureSets
    adapt_config: AdaptConfig
    risk_thresholds: tuple[RiskThreshold, ...] = ()
    """Of the head that the returned network has."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Spent on "features", "heads" and "batchnorm"."""
    head: Head | None = None
    """Its place in the network, if there is one."""
    batchnorm: BatchNormResult | None = None
    """Result of training BatchNorm layers too; its `head` is then the network's, and the risk thresholds are
    of that head."""
    vote_scale: VoteScale | None = None
    """Of the head that the returned network has; None for class ids, and where none was asked for."""
    notes: tuple[str, ...] = ()
    """What could not be done and why, what was decided, and what is odd about the data or the choice."""
