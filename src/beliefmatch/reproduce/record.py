"""Record of a reproduction, with the numbers of the paper; JSON that is read without torch."""

from __future__ import annotations

from typing import Any

from msgspec import field

from beliefmatch._config import Record, RecordPart
from beliefmatch.experiments.records import RotatedDigit, Rotation, Trial

__all__ = [
    "REPRODUCTION_SCHEMA", "Drawing", "Panel", "Reported", "ReproducedRun", "ReproductionRecord",
    "RotationPredictions", "Row", "Series",
]  # fmt: skip

REPRODUCTION_SCHEMA = "beliefmatch.reproduction/1"


class Reported(RecordPart, frozen=True):
    """A number of the paper, with its standard deviation where it gives one."""

    value: float
    deviation: float | None = None


class Row(RecordPart, frozen=True):
    """One measure of one method with every seed."""

    group: str
    label: str
    measure: str
    unit: str
    paper: Reported | None
    values: list[float | None]
    """By seed; None where training diverged, or the method has no such number."""
    seeds: list[int]
    train_seconds: float | None
    """Mean over the finished runs; None where there is none."""
    note: str
    """What validation chose, and how many seeds diverged."""
    digits: int = 2
    diverged: int = 0
    """Number of seeds whose training diverged."""


class Series(RecordPart, frozen=True):
    """Points of a panel: a "line", "dots", "bars" of a width, or "crosses" where y counts failures."""

    label: str
    style: str
    x: list[float]
    y: list[float]
    deviation: list[float] | None = None
    """Standard deviation of each point."""
    width: float = 1.0
    """Width of bars."""


class Panel(RecordPart, frozen=True):
    """One pair of axes."""

    title: str
    x_label: str
    y_label: str
    series: list[Series]
    text: str = ""
    """Text above the panel, such as a score."""
    x_is_log: bool = False
    """Whether the x axis is logarithmic, with a tick for each point of the first series."""
    subtitle: str = ""


class RotationPredictions(RecordPart, frozen=True):
    """Predictions of the methods for a rotated digit."""

    digit: RotatedDigit
    labels: list[str]
    rotations: list[Rotation]
    """By method, of the first seed."""


class Drawing(RecordPart, frozen=True):
    """A figure: panels in rows of `columns`, or a rotated digit."""

    name: str
    """Name of its files."""
    title: str
    columns: int
    panels: list[Panel]
    rotation: RotationPredictions | None = None
    same_scale_in_columns: bool = False
    """Whether the panels of a column share their axes."""

    @property
    def is_drawn(self) -> bool:
        """Whether there is anything to draw; nothing is where every seed diverged."""
        return bool(self.panels) or self.rotation is not None


class ReproducedRun(RecordPart, frozen=True):
    """A run that rows were read from; its directory is named by its fingerprint."""

    arm: str
    seed: int
    fingerprint: str
    method: str
    options: dict[str, Any]
    train_seconds: float | None = None
    skipped_steps: int | None = None
    diverged: str | None = None
    """Error message, if training diverged."""
    search: list[Trial] = field(default_factory=list)
    """Trials by which an option was chosen."""


class ReproductionRecord(Record, frozen=True):
    """A table or figure of the paper, run at a scale."""

    id: str
    title: str
    place: str
    scale: str
    scale_words: str
    """Shown with every number."""
    rows: list[Row]
    differences: list[str]
    """Differences from the paper's protocol, each as a sentence."""
    drawings: list[Drawing]
    runs: list[ReproducedRun]
    seeds: list[int]
    configs: dict[str, dict[str, Any]]
    """Configuration of each arm, with the first seed."""
    command: list[str]
    versions: dict[str, str]
    hardware: dict[str, Any]
    created: str
    wall_seconds: float
    """Duration of this call, which does not repeat finished runs."""
    schema: str = REPRODUCTION_SCHEMA
