"""What is known of a training: its plan, its curves, its scores and costs, as JSON read without torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from beliefmatch.experiments.typed_json import from_json, to_json

__all__ = [
    "DIVERGED_SCHEMA",
    "RUN_SCHEMA",
    "Costs",
    "Diverged",
    "ForeignScores",
    "Rotation",
    "RunRecord",
    "Scores",
    "Trial",
]

RUN_SCHEMA = "beliefmatch.run/1"
DIVERGED_SCHEMA = "beliefmatch.diverged/1"


@dataclass(frozen=True)
class Scores:
    """How good predictions of labelled examples are; less is better, but of the confidence."""

    examples: int
    error: float
    nll: float | None
    """In nats; None where it is infinite, a class of probability 0 having come true."""
    brier: float
    ece: float
    """Expected calibration error of 15 groups."""
    mean_confidence: float


@dataclass(frozen=True)
class ForeignScores:
    """How well scores tell the test examples from a set of foreign ones, by the name of the score."""

    name: str
    examples: int
    auroc: dict[str, float]
    fpr95: dict[str, float]
    mean_confidence: float


@dataclass(frozen=True)
class Costs:
    """What the networks of a run cost."""

    networks: int
    parameters: int
    """Of one network."""
    train_seconds: float
    """Of all networks, one after the other."""
    train_images_per_second: float
    predict_seconds: float
    """Of predicting the test examples."""
    predict_ms_per_image: float


@dataclass(frozen=True)
class Trial:
    """One value of an option that was chosen on the validation set."""

    option: str
    value: float
    validation: Scores
    chosen: bool


@dataclass(frozen=True)
class Rotation:
    """How a run's predictor sees a turning digit; each list has one entry an angle.

    Args:
        predicted: class of the pictured digit.
        confidence: its probability.
        entropy: of the predicted probabilities, in nats.
        spread: mutual information under the belief in nats, for methods with a belief.
        mean_confidence: over all test images of that digit.
        recognised: share of those images still given their class.

    Two numbers sum up all angles, None where no class was wrong:

    Args:
        wrong_confidence: mean confidence in the wrong classes given to the pictured digit.
        mean_wrong_confidence: the same over all test images of that digit.
    """

    predicted: list[int]
    confidence: list[float]
    entropy: list[float]
    spread: list[float] | None
    mean_confidence: list[float]
    recognised: list[float]
    wrong_confidence: float | None
    mean_wrong_confidence: float | None


@dataclass(frozen=True)
class RunRecord:
    """One training, of one network or of the members of an ensemble."""

    method: str
    options: dict[str, Any]
    """Of the method, as it was built."""
    seed: int
    plan: dict[str, Any]
    fingerprint: str
    """Of the plan; equal ones give equal results."""
    data: dict[str, Any]
    """Counts, split and digest; "foreign_digests" by the names of the sets, which older records lack."""
    class_names: list[str]
    curves: list[dict[str, list[float | None]]]
    """For each network its numbers by epoch, such as "loss" and "rate"."""
    skipped_steps: int
    """Steps not taken because loss or gradient was not finite."""
    validation: Scores
    test: Scores
    foreign: list[ForeignScores]
    costs: Costs
    search: list[Trial]
    learned: dict[str, Any]
    """What a predictor has beyond its networks, such as a temperature."""
    rotation: Rotation | None
    engine: dict[str, Any]
    versions: dict[str, str]
    hardware: dict[str, Any]
    created: str
    wall_seconds: float
    schema: str = field(default=RUN_SCHEMA)

    @property
    def data_digest(self) -> str | None:
        """Of the images that it was trained and judged on."""
        return self.data.get("digest")

    def to_json(self) -> str:
        """Write as JSON text; `from_json` reads it back unchanged."""
        return to_json(self)

    @classmethod
    def from_json(cls, text: str) -> RunRecord:
        """Read what `to_json` wrote."""
        return from_json(cls, text, schema=RUN_SCHEMA)


@dataclass(frozen=True)
class Diverged:
    """A training that came to no end because its numbers left the finite ones."""

    fingerprint: str
    """Of the plan."""
    message: str
    """When and how."""
    data_digest: str | None = None
    """Of the images that it was trained on."""
    schema: str = field(default=DIVERGED_SCHEMA)

    def to_json(self) -> str:
        """Write as JSON text; `from_json` reads it back unchanged."""
        return to_json(self)

    @classmethod
    def from_json(cls, text: str) -> Diverged:
        """Read what `to_json` wrote."""
        return from_json(cls, text, schema=DIVERGED_SCHEMA)
