"""All of a comparison as JSON read without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from beliefmatch.experiments.run_record import RunRecord
from beliefmatch.experiments.typed_json import from_json, to_json
from beliefmatch.files import file_names

__all__ = ["COMPARISON_SCHEMA", "Compared", "ComparisonRecord", "Turning", "evaluation_paths"]

COMPARISON_SCHEMA = "beliefmatch.comparison/1"


@dataclass(frozen=True)
class Turning:
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
    turning: Turning | None
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
