"""Numbers of a comparison: what each method reaches with every seed, their mean and their deviation."""

from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import replace as with_values
from math import floor, inf, log10
from statistics import fmean
from typing import NamedTuple

from msgspec.structs import replace

from beliefmatch._errors import fail
from beliefmatch._files import numbered
from beliefmatch.experiments.records import Compared, ComparisonRecord, RotatedDigit, RunRecord
from beliefmatch.report.columns import CALIBRATION, DETECTION, PREDICTIONS, distinct_scores
from beliefmatch.report.table import Cell, Column, marked, mean_cell, with_chance
from beliefmatch.report.text import MISSING, number_text, ood_names, tidy

__all__ = [
    "INFINITE",
    "SCORES",
    "Measure",
    "Ranking",
    "cost",
    "cost_ratios",
    "detection",
    "detection_scores",
    "hardest_set",
    "has_cpu_costs",
    "has_one_seed",
    "mean_of",
    "over_seeds",
    "presentable_comparison",
    "ranking",
    "runs_of",
    "short_names",
    "significant",
    "times_text",
    "wrong_confidences",
]

INFINITE = "∞"


@dataclass(frozen=True)
class Measure:
    """A column of a table, and where a run has its value."""

    column: Column
    of: Callable[[RunRecord], float | None]
    is_infinite: bool = False
    """Whether a missing value is an infinite one, which makes the mean infinite."""
    without: str = ""
    """Why a seed has no value, where that is worth a note."""

    def cell(self, method: Compared) -> Cell:
        """Mean and deviation over the seeds of a method."""
        values = [self.of(run) for run in method.runs]
        cell = mean_cell(values, is_infinite=self.is_infinite, without=self.without)
        return Cell(INFINITE) if cell.value == inf else cell

    def cells(self, record: ComparisonRecord) -> list[Cell]:
        """One for each method: the best mean is marked, and those whose deviation meets that of the best."""
        cells = marked([self.cell(method) for method in record.methods], self.column.better)
        return [*map(with_chance, cells)] if self.column.key == "auroc" else cells


def _score(column: Column) -> Measure:
    return Measure(column, lambda run: getattr(run.test, column.key), is_infinite=column.key == "nll")


SCORES = {
    column.key: _score(column) for column in (*PREDICTIONS, CALIBRATION[0]) if column.key != "top_k_error"
}
"""Error, NLL, Brier score and ECE on the test images."""


def detection(name: str, score: str, key: str = "auroc", *, group: str = "") -> Measure:
    """AUROC or FPR95 of one score for one OOD set."""

    def of(run: RunRecord) -> float | None:
        ood = next((ood for ood in run.ood if ood.name == name), None)
        return None if ood is None else getattr(ood, key).get(score)

    column = next(column for column in DETECTION if column.key == key)
    return Measure(with_values(column, group=group or name), of)


def cost(column: Column) -> Measure:
    """A number of the costs of a run."""
    return Measure(column, lambda run: getattr(run.costs, column.key))


def wrong_confidences(digit: RotatedDigit) -> list[Measure]:
    """The confidence in wrong classes over all angles: of the pictured digit, and of all of its kind."""
    titles = {
        "wrong_confidence": f"this {digit.digit}",
        "mean_wrong_confidence": f"all {digit.examples:,} test {digit.digit}s",
    }

    def measure(key: str, title: str) -> Measure:
        def of(run: RunRecord) -> float | None:
            return None if run.rotation is None else getattr(run.rotation, key)

        column = Column(key, title, "%", "low", 2, 100.0, group="confidence when wrong")
        return Measure(column, of, without="never wrong")

    return [measure(key, title) for key, title in titles.items()]


class Ranking(NamedTuple):
    """Who is best in a metric, and whether that is more than the scatter over the seeds."""

    best: int
    alike: list[int]
    """Others that the seeds cannot tell from the best, the nearest first."""
    order: list[int]
    """All that have a finite mean, the best first."""
    cells: list[Cell]

    def mean(self, place: int) -> float:
        """The mean of a method that has one."""
        value = self.cells[place].value
        assert isinstance(value, float | int)
        return value

    @property
    def is_clear(self) -> bool:
        """Whether the best is better than all others by more than their deviations."""
        return len(self.cells) > 1 and not self.alike


def ranking(record: ComparisonRecord, measure: Measure) -> Ranking | None:
    """The methods by their means; None where no method has one."""
    cells = measure.cells(record)
    means = {place: cell.value for place, cell in enumerate(cells) if isinstance(cell.value, float | int)}
    if not means:
        return None
    sign = -1 if measure.column.better == "high" else 1
    order = sorted(means, key=lambda place: sign * means[place])
    is_marked = any(cell.mark for cell in cells)
    alike = [place for place in order[1:] if not is_marked or cells[place].mark]
    return Ranking(order[0], alike, order, cells)


def mean_of(method: Compared, of: Callable[[RunRecord], float | None]) -> float | None:
    """The mean over a method's runs that have the number."""
    present = [value for run in method.runs if (value := of(run)) is not None]
    return fmean(present) if present else None


def runs_of(record: ComparisonRecord) -> list[RunRecord]:
    """The runs of all methods."""
    return [run for method in record.methods for run in method.runs]


def detection_scores(record: ComparisonRecord) -> list[str]:
    """Every score of any run, the paper's predictive entropy first."""
    return distinct_scores(ood.auroc for run in runs_of(record) for ood in run.ood)


def hardest_set(record: ComparisonRecord) -> tuple[str, str, Ranking] | None:
    """The OOD set that the best method detects worst, the score, and the ranking by AUROC."""
    scores = detection_scores(record)[:1]
    found = [
        (name, score, ranked)
        for score in scores
        for name in ood_names(runs_of(record))
        if (ranked := ranking(record, detection(name, score))) is not None
    ]
    return min(found, key=lambda one: one[2].mean(one[2].best), default=None)


def presentable_comparison(record: ComparisonRecord, *, caller: str) -> ComparisonRecord:
    """The record with visible characters and finite numbers only, and a label of its own for each method."""
    if not record.methods:
        raise fail(caller, "`record` must hold at least one method, got none.")
    empty = next((method.key for method in record.methods if not method.runs), None)
    if empty is not None:
        raise fail(caller, f"`record` must hold a run of every method, got none of {empty!r}.")
    tidied = tidy(record)
    labels = numbered([method.label.strip() or "(no name)" for method in tidied.methods], " ({})")
    named = [replace(method, label=label) for method, label in zip(tidied.methods, labels, strict=True)]
    return replace(tidied, methods=named)


def short_names(record: ComparisonRecord) -> list[str]:
    """Labels for sentences: without the options in brackets, where that leaves them apart."""
    labels = [method.label for method in record.methods]
    bare = [label.partition(" (")[0].strip() or label for label in labels]
    return [short if bare.count(short) == 1 else label for short, label in zip(bare, labels, strict=True)]


def over_seeds(record: ComparisonRecord) -> str:
    """Of how many runs the numbers are."""
    counts = {len(method.runs) for method in record.methods}
    if counts == {1}:
        return "one seed"
    most = max(counts)
    return f"mean ± sd of {most} seeds" if len(counts) == 1 else f"mean ± sd of up to {most} seeds"


_CPU_COST = {"train_seconds": "train_cpu_seconds", "predict_ms_per_image": "predict_cpu_ms_per_image"}


def cost_ratios(record: ComparisonRecord, key: str) -> list[float | None]:
    """How many times the first method's mean cost each method's is.

    Costs are processor times where every run has measured them: what else the machine does at the time of one
    run and not of another makes that run take longer, but hardly costs it more.
    """
    key = _CPU_COST[key] if has_cpu_costs(record, key) else key
    means = [mean_of(method, lambda run: getattr(run.costs, key)) for method in record.methods]
    first = means[0]
    return [mean / first if mean is not None and first else None for mean in means]


def has_cpu_costs(record: ComparisonRecord, key: str) -> bool:
    """Whether every run has measured the processor time of a cost."""
    return all(getattr(run.costs, _CPU_COST[key]) for method in record.methods for run in method.runs)


def times_text(ratio: float | None) -> str:
    """A ratio as it is written, such as "5.0×"."""
    if ratio is None:
        return MISSING
    return f"{ratio:.1f}×" if ratio < 9.95 else f"{round(ratio):,}×"


def significant(value: float | str | None, digits: int = 3) -> str:
    """A number with so many digits, whole ones with all of theirs.

    >>> significant(1234567.8), significant(0.012345), significant(60170)
    ('1,234,568', '0.0123', '60,170')
    """
    if not isinstance(value, float | int):
        return MISSING
    if value == int(value) or abs(value) >= 10**digits:
        return f"{round(value):,}".replace("-", "−")
    return number_text(value, max(digits - 1 - floor(log10(abs(value))), 0))


def has_one_seed(record: ComparisonRecord) -> bool:
    """Whether no scatter is known."""
    return all(len(method.runs) == 1 for method in record.methods)
