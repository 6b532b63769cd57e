"""What a comparison was asked for and what came out of it, as plain data that JSON can hold."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from beliefmatch.methods import METHODS

__all__ = ["DIGITS_OPTIONS", "CompareConfig", "CompareRecord", "Rotation", "RunRecord", "Scores"]

DIGITS_OPTIONS: Mapping[str, Mapping[str, float]] = {
    "belief_matching": {"kl_weight": 0.001},
}
"""What each method is given on digits unless told otherwise, chosen on the validation images.

Of the paper's weights 0.01, 0.003 and 0.001, the last had the lowest validation error (the paper's
rule) and the lowest validation NLL over ten seeds.
"""


@dataclass(frozen=True)
class CompareConfig:
    """A comparison on embedded digits.

    Args:
        methods: names from `METHODS`, in the order to show them.
        options: keyword options of a method, by its name, over those of `DIGITS_OPTIONS`.
        epochs: passes over the training images.
        seed: of the first run's weights and shuffling.
        seeds: number of runs of each method, with seeds counted up from `seed`.
    """

    methods: tuple[str, ...] = ("softmax", "belief_matching")
    options: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    epochs: int = 30
    seed: int = 0
    seeds: int = 3

    def __post_init__(self) -> None:
        unknown = [name for name in self.methods if name not in METHODS]
        if unknown:
            raise ValueError(f"compare: `methods` must be among {', '.join(METHODS)}, got {unknown[0]!r}.")
        if not self.methods or len(set(self.methods)) < len(self.methods):
            raise ValueError(
                "compare: `methods` must name at least one method and none twice, "
                f"got {','.join(self.methods)!r}."
            )
        unused = [name for name in self.options if name not in self.methods]
        if unused:
            raise ValueError(
                "compare: `options` must be of methods to compare "
                f"({', '.join(self.methods)}), got some of {unused[0]!r}."
            )
        for name, smallest in (("epochs", 1), ("seeds", 1), ("seed", 0)):
            if getattr(self, name) < smallest:
                raise ValueError(f"compare: `{name}` must be at least {smallest}, got {getattr(self, name)}.")
        if self.seed + self.seeds > 2**63:  # what a torch generator takes
            raise ValueError(f"compare: `seed` must be below 2**63, got {self.seed}.")

    def options_of(self, method: str) -> dict[str, float]:
        """The keyword options a method is built with."""
        return {**DIGITS_OPTIONS.get(method, {}), **self.options.get(method, {})}


@dataclass(frozen=True)
class Scores:
    """Error, negative log-likelihood in nats and expected calibration error; less is better."""

    error: float
    nll: float
    ece: float


@dataclass(frozen=True)
class Rotation:
    """How one network sees a turning digit; each list has one entry an angle.

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
    """One network: how it was trained, how it scored, how it saw the turning digit."""

    method: str
    options: dict[str, float]
    seed: int
    losses: list[float]
    validation: Scores
    test: Scores
    rotation: Rotation
    wall_seconds: float


@dataclass(frozen=True)
class CompareRecord:
    """All of a comparison. `images` are the pictured digit at each of `angles`, in degrees."""

    config: CompareConfig
    training: dict[str, Any]
    examples: dict[str, int]
    digit: int
    digit_examples: int
    angles: list[int]
    images: list[list[list[float]]]
    runs: list[RunRecord]
    versions: dict[str, str]
    hardware: dict[str, str | int]
    wall_seconds: float

    def of(self, method: str) -> list[RunRecord]:
        """The runs of one method, in the order of their seeds."""
        return [run for run in self.runs if run.method == method]

    def to_json(self) -> str:
        """Write as JSON text; `from_json` reads it back unchanged."""
        return json.dumps(asdict(self), indent=2, allow_nan=False, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> CompareRecord:
        """Read what `to_json` wrote."""
        fields = json.loads(text)
        config = fields.pop("config")
        runs = [_run(run) for run in fields.pop("runs")]
        config["methods"] = tuple(config["methods"])
        return cls(config=CompareConfig(**config), runs=runs, **fields)


def _run(fields: dict[str, Any]) -> RunRecord:
    nested = {"validation": Scores, "test": Scores, "rotation": Rotation}
    made = {name: make(**fields.pop(name)) for name, make in nested.items()}
    return RunRecord(**fields, **made)
