"""What came out of a reproduction, beside what the paper reports, as JSON read without torch."""

from __future__ import annotations

from typing import Any

from beliefmatch._config import Record, RecordPart
from beliefmatch.experiments.records import RotatedDigit, Rotation, Trial

__all__ = [
    "REPRODUCTION_SCHEMA",
    "Drawing",
    "Panel",
    "Reported",
    "ReproducedRun",
    "ReproductionRecord",
    "Row",
    "Series",
    "Turned",
]

REPRODUCTION_SCHEMA = "beliefmatch.reproduction/1"


class Reported(RecordPart, frozen=True):
    """A number of the paper, with its standard deviation where it gives one."""

    value: float
    deviation: float | None = None


class Row(RecordPart, frozen=True):
    """One number of one method with every seed, in the unit that is named."""

    group: str
    label: str
    measure: str
    unit: str
    paper: Reported | None
    values: list[float | None]
    """By seed; None where the training diverged, or the method has no such number."""
    seeds: list[int]
    train_seconds: float | None
    """Of one run on the mean; None where none was finished."""
    note: str
    """What was chosen on validation images, what diverged."""
    digits: int = 2
    diverged: int = 0
    """Seeds that did."""


class Series(RecordPart, frozen=True):
    """Points of a panel: a "line", "dots", "bars" of a width, or "crosses" where y says how many failed."""

    label: str
    style: str
    x: list[float]
    y: list[float]
    deviation: list[float] | None = None
    """To both sides of each point."""
    width: float = 1.0
    """Of bars."""


class Panel(RecordPart, frozen=True):
    """One pair of axes."""

    title: str
    x_label: str
    y_label: str
    series: list[Series]
    text: str = ""
    """A number that stands above it."""
    x_is_log: bool = False
    """Then each point of the first series has its number below it."""
    subtitle: str = ""


class Turned(RecordPart, frozen=True):
    """A rotated digit as the methods see it."""

    digit: RotatedDigit
    labels: list[str]
    seen: list[Rotation]
    """By each method's first seed."""


class Drawing(RecordPart, frozen=True):
    """A figure: its panels in rows of `columns`, or a rotated digit."""

    name: str
    """Of its files."""
    title: str
    columns: int
    panels: list[Panel]
    turned: Turned | None = None
    same_scale_in_columns: bool = False
    """Whether panels below each other have the same axes."""

    @property
    def is_drawn(self) -> bool:
        """Whether there is anything on it; where all diverged there is not."""
        return bool(self.panels) or self.turned is not None


class ReproducedRun(RecordPart, frozen=True):
    """A training that rows were read of; its directory is named by its fingerprint."""

    arm: str
    seed: int
    fingerprint: str
    method: str
    options: dict[str, Any]
    train_seconds: float | None
    skipped_steps: int | None
    diverged: str | None
    """How it ended, if its numbers left the finite ones."""
    search: list[Trial]
    """How an option was chosen."""


class ReproductionRecord(Record, frozen=True):
    """A table or figure of the paper, run at some scale."""

    id: str
    title: str
    place: str
    scale: str
    scale_words: str
    """To be said wherever its numbers are shown."""
    rows: list[Row]
    differences: list[str]
    """From the paper's protocol, each a sentence."""
    drawings: list[Drawing]
    runs: list[ReproducedRun]
    seeds: list[int]
    configs: dict[str, dict[str, Any]]
    """Of each arm, with the first seed."""
    command: list[str]
    versions: dict[str, str]
    hardware: dict[str, Any]
    created: str
    wall_seconds: float
    """Of this call; finished runs are not trained again."""
    schema: str = REPRODUCTION_SCHEMA
