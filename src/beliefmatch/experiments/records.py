"""What is known of runs and comparisons after they ended: records in JSON, read without torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from beliefmatch._config import Record, RecordPart
from beliefmatch._files import file_names

__all__ = [
    "COMPARISON_SCHEMA",
    "DIVERGED_SCHEMA",
    "RUN_SCHEMA",
    "Compared",
    "ComparisonRecord",
    "Costs",
    "Diverged",
    "OODScores",
    "PredictionRow",
    "RotatedDigit",
    "Rotation",
    "RunRecord",
    "Scores",
    "Trial",
    "evaluation_paths",
]

RUN_SCHEMA = "beliefmatch.run/1"
DIVERGED_SCHEMA = "beliefmatch.diverged/1"


class Scores(RecordPart, frozen=True):
    """How good predictions of labelled examples are; less is better, but of the confidence."""

    examples: int
    error: float
    nll: float | None
    """In nats; None where it is infinite, a class of probability 0 having come true."""
    brier: float
    ece: float
    """Expected calibration error of 15 groups."""
    mean_confidence: float


class OODScores(RecordPart, frozen=True):
    """How well each score, by its name, separates a set of OOD examples from the test examples."""

    name: str
    examples: int
    auroc: dict[str, float]
    fpr95: dict[str, float]
    mean_confidence: float


class Costs(RecordPart, frozen=True):
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


class Trial(RecordPart, frozen=True):
    """One value of an option that was chosen on the validation set."""

    option: str
    value: float
    validation: Scores
    chosen: bool


class Rotation(RecordPart, frozen=True):
    """How a run's predictor sees a rotated digit; each list has one entry an angle.

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
    mutual_information: list[float] | None
    mean_confidence: list[float]
    recognised: list[float]
    wrong_confidence: float | None
    mean_wrong_confidence: float | None


class RunRecord(Record, frozen=True):
    """One training, of one network or of the members of an ensemble."""

    method: str
    options: dict[str, Any]
    """Of the method, as it was built."""
    seed: int
    config: dict[str, Any]
    fingerprint: str
    """Of the configuration; equal ones give equal results."""
    data: dict[str, Any]
    """Counts, split and digest; "ood_digests" by the names of the sets, which older records lack."""
    class_names: list[str]
    curves: list[dict[str, list[float | None]]]
    """For each network its numbers by epoch, such as "loss" and "rate"."""
    skipped_steps: int
    """Steps not taken because loss or gradient was not finite."""
    validation: Scores
    test: Scores
    ood: list[OODScores]
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
    schema: str = RUN_SCHEMA

    @property
    def data_digest(self) -> str | None:
        """Of the images that it was trained and judged on."""
        return self.data.get("digest")


class Diverged(Record, frozen=True):
    """A training that came to no end because its numbers left the finite ones."""

    fingerprint: str
    """Of the configuration."""
    message: str
    """When and how."""
    data_digest: str | None = None
    """Of the images that it was trained on."""
    schema: str = DIVERGED_SCHEMA


COMPARISON_SCHEMA = "beliefmatch.comparison/1"


class RotatedDigit(RecordPart, frozen=True):
    """The digit that was turned upside down."""

    digit: int
    examples: int
    """Test images of it."""
    angles: list[int]
    """In degrees."""
    images: list[list[list[float]]]
    """The pictured one at each angle."""


class Compared(RecordPart, frozen=True):
    """One method with its options, trained with every seed."""

    key: str
    """As it was asked for, such as "belief_matching:kl_weight=0.01"; unique."""
    label: str
    """In words, such as "belief matching (λ = 0.01)"."""
    runs: list[RunRecord]
    """In the order of their seeds."""


class ComparisonRecord(Record, frozen=True):
    """Methods trained alike."""

    methods: list[Compared]
    seeds: list[int]
    rotated_digit: RotatedDigit | None
    settings: dict[str, Any]
    """What is the same for all: model, data, training, engine."""
    versions: dict[str, str]
    hardware: dict[str, Any]
    created: str
    wall_seconds: float
    """Of this call; finished runs are not trained again."""
    schema: str = COMPARISON_SCHEMA


class PredictionRow(RecordPart, frozen=True):
    """The prediction for one image."""

    name: str
    predicted: int
    class_name: str
    confidence: float
    entropy: float
    """Entropy of the probabilities, in nats."""
    mutual_information: float | None
    """Mutual information under the belief, in nats, for methods that have one."""
    abstained: bool
    probs: tuple[float, ...]


def evaluation_paths(keys: Sequence[str]) -> list[str]:
    """Where the evaluation of each method lies, below the directory of its comparison."""
    return [f"evaluations/{name}.json" for name in file_names(keys)]
