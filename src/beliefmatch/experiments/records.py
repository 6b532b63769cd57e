"""JSON as the annotations of a dataclass say, or one line about where it is not."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

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
    "RotatedDigit",
    "Rotation",
    "RunRecord",
    "Scores",
    "Trial",
    "evaluation_paths",
    "from_json",
    "to_json",
]

Record = TypeVar("Record")


def to_json(record: Any) -> str:
    """A dataclass as JSON text without NaN, which is no JSON."""
    return json.dumps(asdict(record), indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def from_json(
    kind: type[Record],
    text: str,
    *,
    schema: str,
    upgrade: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
) -> Record:
    """Read what `to_json` wrote; a ValueError says in one line what is wrong with any other text.

    Args:
        kind: the dataclass; all of its fields must be there, and no others.
        text: JSON.
        schema: what its field of that name must say.
        upgrade: makes what an earlier version wrote what this one would have written.
    """
    title = kind.__name__
    try:
        content = json.loads(text, parse_constant=_refuse)
    except ValueError as error:
        raise ValueError(f"{title}: the text is not JSON ({error}).") from error
    if upgrade is not None and isinstance(content, dict):
        content = upgrade(content)
    found = content.get("schema") if isinstance(content, dict) else type(content).__name__
    if found != schema:
        raise ValueError(f"{title}: `schema` must be {schema!r}, got {found!r}.")
    return _Reader(title, schema).read(kind, content, "record")


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number of JSON")


class _Reader:
    def __init__(self, title: str, schema: str) -> None:
        self.title, self.schema = title, schema

    def read(self, kind: Any, value: Any, place: str) -> Any:
        if is_dataclass(kind):
            return self._read_fields(kind, value, place)
        origin, inner = get_origin(kind), get_args(kind)
        if origin is list and isinstance(value, list):
            return [self.read(inner[0], item, f"{place}[{i}]") for i, item in enumerate(value)]
        if origin is dict and isinstance(value, dict):
            return {key: self.read(inner[1], item, f"{place}.{key}") for key, item in value.items()}
        if origin is UnionType:
            if value is None and NoneType in inner:
                return None
            return self.read(inner[0], value, place)
        if kind is Any or type(value) is kind:
            return value
        if kind is float and type(value) is int:  # JSON writes 1.0 as it likes
            return float(value)
        expected = getattr(kind, "__name__", kind)
        raise ValueError(f"{self.title}: `{place}` must be {expected}, got {type(value).__name__}.")

    def _read_fields(self, kind: Any, value: Any, place: str) -> Any:
        if not isinstance(value, dict):
            raise ValueError(f"{self.title}: `{place}` must be an object, got {type(value).__name__}.")
        hints, known = get_type_hints(kind), [field.name for field in fields(kind)]
        wrong = sorted(set(known) ^ set(value))
        if wrong:
            names = ", ".join(wrong)
            raise ValueError(
                f"{self.title}: `{place}` must have the fields of {self.schema!r}, got others: {names}."
            )
        return kind(**{name: self.read(hints[name], value[name], f"{place}.{name}") for name in known})


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
class OODScores:
    """How well scores tell the test examples from a set of OOD ones, by the name of the score."""

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


@dataclass(frozen=True)
class RunRecord:
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
    """Of the configuration."""
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


COMPARISON_SCHEMA = "beliefmatch.comparison/1"


@dataclass(frozen=True)
class RotatedDigit:
    """The digit that was turned upside down."""

    digit: int
    examples: int
    """Test images of it."""
    angles: list[int]
    """In degrees."""
    images: list[list[list[float]]]
    """The pictured one at each angle."""


@dataclass(frozen=True)
class Compared:
    """One method with its options, trained with every seed."""

    key: str
    """As it was asked for, such as "belief_matching:kl_weight=0.01"; unique."""
    label: str
    """In words, such as "belief matching (λ = 0.01)"."""
    runs: list[RunRecord]
    """In the order of their seeds."""


@dataclass(frozen=True)
class ComparisonRecord:
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
    schema: str = field(default=COMPARISON_SCHEMA)

    def to_json(self) -> str:
        """Write as JSON text; `from_json` reads it back unchanged."""
        return to_json(self)

    @classmethod
    def from_json(cls, text: str) -> ComparisonRecord:
        """Read what `to_json` wrote."""
        return from_json(cls, text, schema=COMPARISON_SCHEMA)


def evaluation_paths(keys: Sequence[str]) -> list[str]:
    """Where the evaluation of each method lies, below the directory of its comparison."""
    return [f"evaluations/{name}.json" for name in file_names(keys)]
