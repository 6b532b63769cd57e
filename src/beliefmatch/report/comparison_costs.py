"""What methods cost, and what was chosen for them on the validation set."""

from collections.abc import Callable, Sequence
from math import floor, log10
from statistics import fmean
from typing import NamedTuple

from beliefmatch.experiments.records import Compared, ComparisonRecord, RunRecord, Trial
from beliefmatch.report.comparison_rows import mean_of
from beliefmatch.report.evaluation_text import MISSING, number_text

__all__ = ["COSTS", "Choice", "Cost", "CostCell", "choices", "cost_cells", "significant"]


class Cost(NamedTuple):
    """A number of `Costs` and how it is shown."""

    key: str
    title: str
    short: str
    has_ratio: bool = False
    """Whether it is also shown as a multiple of the first method's."""


COSTS = (
    Cost("networks", "Networks", "nets"),
    Cost("parameters", "Parameters of a network", "parameters"),
    Cost("train_seconds", "Training, seconds", "train s", has_ratio=True),
    Cost("train_images_per_second", "Training, images a second", "images/s"),
    Cost("predict_ms_per_image", "Prediction, ms an image", "ms/image", has_ratio=True),
)


class CostCell(NamedTuple):
    """A mean over the seeds, as text, and how many times that of the first method it is."""

    value: str
    ratio: str
    seeds: str


def cost_cells(record: ComparisonRecord, cost: Cost) -> list[CostCell]:
    """One cost of every method."""

    def of(run: RunRecord) -> float | None:
        return getattr(run.costs, cost.key)

    means = [mean_of(method, of) for method in record.methods]
    pairs = zip(record.methods, means, strict=True)
    return [CostCell(significant(mean), _ratio(cost, mean, means[0]), _each(m, of)) for m, mean in pairs]


def _ratio(cost: Cost, mean: float | None, first: float | None) -> str:
    if not cost.has_ratio or mean is None or not first:
        return ""
    ratio = mean / first
    return f"{ratio:.1f}×" if ratio < 9.95 else f"{round(ratio):,}×"


def _each(method: Compared, of: Callable[[RunRecord], float | None]) -> str:
    return ", ".join(f"seed {run.seed}: {significant(of(run))}" for run in method.runs)


def significant(value: float | None, digits: int = 3) -> str:
    """A number with so many digits, whole ones with all of theirs."""
    if value is None:
        return MISSING
    if value == int(value) or abs(value) >= 10**digits:
        return f"{round(value):,}".replace("-", "−")
    return number_text(value, max(digits - 1 - floor(log10(abs(value))), 0))


class Choice(NamedTuple):
    """A value that was tried on the validation set; means over the seeds that tried it."""

    method: int
    option: str
    value: str
    error: float
    nll: float | None
    tried: int
    chosen: int
    """By how many of those seeds."""

    @property
    def verdict(self) -> str:
        """Whether it was chosen, and by how many seeds where they differ."""
        if not self.chosen:
            return ""
        return "chosen" if self.chosen == self.tried else f"chosen by {self.chosen} of {self.tried}"


def choices(record: ComparisonRecord) -> list[Choice]:
    """Every value of every option, in the order of trying."""
    found = []
    for index, method in enumerate(record.methods):
        trials: dict[tuple[str, float], list[Trial]] = {}
        for trial in (trial for run in method.runs for trial in run.search):
            trials.setdefault((trial.option, trial.value), []).append(trial)
        found += [_choice(index, option, value, tried) for (option, value), tried in trials.items()]
    return found


def _choice(method: int, option: str, value: float, tried: Sequence[Trial]) -> Choice:
    nlls = [trial.validation.nll for trial in tried]
    present = [nll for nll in nlls if nll is not None]
    return Choice(
        method,
        option,
        f"{value:g}",
        fmean(trial.validation.error for trial in tried),
        fmean(present) if len(present) == len(nlls) else None,
        len(tried),
        sum(trial.chosen for trial in tried),
    )
