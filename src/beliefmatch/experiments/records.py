"""Records of runs and comparisons in JSON, read without torch."""

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
    """Scores of predictions for labelled examples; lower is better, except the confidence."""

    examples: int
    error: float
    nll: float | None
    """In nats; None where it is infinite, a class of probability 0 having come true."""
    brier: float
    ece: float
    """Expected calibration error of 15 bins."""
    mean_confidence: float


class OODScores(RecordPart, frozen=True):
    """How well each score, by its name, separates a set of OOD examples from the test examples."""

    name: str
    examples: int
    auroc: dict[str, float]
    fpr95: dict[str, float]
    mean_confidence: float


class Costs(RecordPart, frozen=True):
    """Cost of the networks of a run."""

    networks: int
    parameters: int
    """Parameters of one network."""
    train_seconds: float
    """Training time of all networks, one after the other."""
    train_images_per_second: float
    predict_seconds: float
    """Time of predicting the test examples."""
    predict_ms_per_image: float
    train_cpu_seconds: float | None = None
    """Processor time of the training, which other programs on the machine hardly change; None on a GPU."""
    predict_cpu_ms_per_image: float | None = None
    """Processor time of a prediction, likewise."""


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
        mutual_information: under the belief, or of dropout masks or members, in nats, for methods with one.
        mean_confidence: over all test images of that digit.
        recognised: share of those images still given their class.
        wrong_confidence: mean confidence in wrong classes of the pictured digit over all angles; None where
            no class was wrong.
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
    """Options of the method, as it was built."""
    seed: int
    config: dict[str, Any]
    fingerprint: str
    """Fingerprint of the configuration; equal ones give equal results."""
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
    """Fitted values of the predictor beyond its networks, such as a temperature."""
    rotation: Rotation | None
    engine: dict[str, Any]
    versions: dict[str, str]
    hardware: dict[str, Any]
    created: str
    wall_seconds: float
    schema: str = RUN_SCHEMA

    @property
    def data_digest(self) -> str | None:
        """Digest of the images that it was trained and scored on."""
        return self.data.get("digest")


class Diverged(Record, frozen=True):
    """A training that was stopped because its numbers were no longer finite."""

    fingerprint: str
    """Fingerprint of the configuration."""
    message: str
    """When and how."""
    data_digest: str | None = None
    """Digest of the images that it was trained on."""
    schema: str = DIVERGED_SCHEMA


COMPARISON_SCHEMA = "beliefmatch.comparison/1"


class RotatedDigit(RecordPart, frozen=True):
    """The digit that was rotated upside down."""

    digit: int
    examples: int
    """Number of its test images."""
    angles: list[int]
    """In degrees."""
    images: list[list[list[float]]]
    """The pictured one at each angle."""


class Compared(RecordPart, frozen=True):
    """One method with its options, trained with every seed."""

    key: str
    """As it was written, such as "belief_matching:kl_weight=0.01"; unique."""
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
    """Settings shared by all methods: model, data, training, engine."""
    versions: dict[str, str]
    hardware: dict[str, Any]
    created: str
    wall_seconds: float
    """Time of this call; finished runs are not trained again."""
    schema: str = COMPARISON_SCHEMA


class PredictionRow(RecordPart, frozen=True):
    """The prediction for one image, sentence or row of a table."""

    name: str
    predicted: int
    class_name: str
    confidence: float
    entropy: float
    """Entropy of the probabilities, in nats."""
    mutual_information: float | None
    """Mutual information under the belief, or of dropout masks or members, in nats, for methods with one."""
    abstained: bool
    none_of_these: bool
    """Whether the input seems to belong to no class."""
    probs: tuple[float, ...]
    prediction_set: tuple[str, ...] | None = None
    """Classes of its prediction set, the likeliest first; None where no coverage was asked for."""


def evaluation_paths(keys: Sequence[str]) -> list[str]:
    """Path of the evaluation of each method, relative to the directory of its comparison."""
    return [f"evaluations/{name}.json" for name in file_names(keys)]
