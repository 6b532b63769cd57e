"""The numbers of a comparison over its seeds: which are shown, and which method does best."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import NamedTuple

from msgspec import structs

from beliefmatch._files import numbered
from beliefmatch.experiments.evaluation_record import Number
from beliefmatch.experiments.records import Compared, ComparisonRecord, OODScores, RunRecord
from beliefmatch.report.evaluation_metrics import CALIBRATION, PREDICTIONS, Better, Metric, unit
from beliefmatch.report.evaluation_rows import Mark, best
from beliefmatch.report.evaluation_text import MISSING, number_text, tidy

__all__ = [
    "AUROC",
    "FPR95",
    "INFINITE",
    "KNOWN",
    "SeedCell",
    "SeedRow",
    "belief_scores",
    "detection_row",
    "detection_scores",
    "mean_of",
    "ood_of",
    "ood_sets",
    "over_seeds",
    "presentable_comparison",
    "score_rows",
]

HEADLINE = "entropy"
"""The paper's score of OOD examples."""
_BELIEF = "mutual_information"
KNOWN = {metric.key: metric for metric in (*PREDICTIONS, *CALIBRATION)}
INFINITE = "∞"
AUROC = Metric("auroc", "AUROC", "high")
FPR95 = Metric("fpr95", "FPR95: OOD that pass where 95 % of in-distribution pass", "low", short="FPR95")

Values = list[list[float | None]]


class SeedCell(NamedTuple):
    """One number of a method over its seeds, as text."""

    value: str
    """The mean."""
    deviation: str
    """Such as "± 0.12"; empty where there is none."""
    seeds: str
    """Each seed with its value."""
    mark: Mark
    why: str = ""
    """What the mean leaves out."""


@dataclass(frozen=True)
class SeedRow:
    """One metric of every method and every seed; None where a run has no value."""

    metric: Metric
    values: Values
    seeds: list[list[int]]
    score: str = ""
    gap: str = MISSING
    """Stands where there is no value; an infinite one makes the mean infinite."""
    left_out: str = "without a value"
    """What a run without a value is, for those whose mean leaves it out."""

    @property
    def key(self) -> str:
        """The metric's name in a record."""
        return self.metric.key

    @property
    def title(self) -> str:
        """The metric's name in words."""
        return self.metric.title

    @property
    def short(self) -> str:
        """The metric's name in a narrow column."""
        return self.metric.short or self.metric.title

    @property
    def better(self) -> Better:
        """Which way is better."""
        return self.metric.better

    @property
    def unit(self) -> str:
        """Percent sign, nats, or nothing."""
        return unit(self.metric)

    def means(self) -> list[Number]:
        """Mean of each method; `low` and `high` are one standard deviation away."""
        return [self._mean(values) for values in self.values]

    def _mean(self, values: Sequence[float | None]) -> Number:
        present = [value for value in values if value is not None]
        if not present or (self.gap == INFINITE and len(present) < len(values)):
            return Number(None)
        mean = fmean(present)
        if len(present) < 2:
            return Number(mean)
        return Number(mean, mean - stdev(present), mean + stdev(present))

    def cells(self) -> list[SeedCell]:
        """The numbers as text, with the best means marked."""
        means = self.means()
        marks = best(means, self.better)
        return [self._cell(*parts) for parts in zip(means, self.values, self.seeds, marks, strict=True)]

    def _cell(
        self, mean: Number, values: Sequence[float | None], seeds: Sequence[int], mark: Mark
    ) -> SeedCell:
        each = ", ".join(
            f"seed {seed}: {self.text(value)}" for seed, value in zip(seeds, values, strict=True)
        )
        absent = sum(value is None for value in values)
        why = f"{absent} of {len(values)} seeds {self.left_out}" if absent and self.gap != INFINITE else ""
        if mean.value is None:
            return SeedCell(self.gap, "", each, "", why if self.left_out == "never wrong" else "")
        deviation = "" if mean.high is None else f"± {self.text(mean.high - mean.value)}"
        return SeedCell(self.text(mean.value), deviation, each, mark, why)

    def text(self, value: float | None) -> str:
        """One value as it is shown."""
        if value is None:
            return self.gap
        share = self.metric.is_share
        return number_text(value, 2 if share else 4, scale=100 if share else 1)


def presentable_comparison(record: ComparisonRecord, *, caller: str) -> ComparisonRecord:
    """The record with visible characters and finite numbers only, and a label of its own for each method."""
    if not record.methods:
        raise ValueError(f"{caller}: `record` must hold at least one method, got none.")
    empty = next((method.key for method in record.methods if not method.runs), None)
    if empty is not None:
        raise ValueError(f"{caller}: `record` must hold a run of every method, got none of {empty!r}.")
    tidied = tidy(record)
    labels = numbered([method.label.strip() or "(no name)" for method in tidied.methods], " ({})")
    named = [structs.replace(m, label=label) for m, label in zip(tidied.methods, labels, strict=True)]
    return structs.replace(tidied, methods=named)


def over_seeds(record: ComparisonRecord) -> str:
    """Of how many runs the numbers are."""
    counts = {len(method.runs) for method in record.methods}
    if counts == {1}:
        return "one seed"
    most = max(counts)
    return f"mean ± sd of {most} seeds" if len(counts) == 1 else f"mean ± sd of up to {most} seeds"


def seed_row(
    record: ComparisonRecord, metric: Metric, of: Callable[[RunRecord], float | None], **more: str
) -> SeedRow:
    """A number of every run."""
    values = [[of(run) for run in method.runs] for method in record.methods]
    seeds = [[run.seed for run in method.runs] for method in record.methods]
    return SeedRow(metric, values, seeds, **more)


def mean_of(method: Compared, of: Callable[[RunRecord], float | None]) -> float | None:
    """The mean over a method's runs that have the number."""
    present = [value for run in method.runs if (value := of(run)) is not None]
    return fmean(present) if present else None


def score_rows(record: ComparisonRecord, *, of: str = "test") -> list[SeedRow]:
    """Error, NLL, Brier score, ECE and mean confidence on the test examples, or on those of validation."""
    rows = []
    for key in ("error", "nll", "brier", "ece", "mean_confidence"):
        gap = INFINITE if key == "nll" else MISSING

        def value(run: RunRecord, key: str = key) -> float | None:
            return getattr(getattr(run, of), key)

        rows.append(seed_row(record, KNOWN[key], value, gap=gap))
    return rows


def ood_sets(record: ComparisonRecord) -> list[str]:
    """Every OOD set of any run, in the order of their first appearance."""
    runs = (run for method in record.methods for run in method.runs)
    return list(dict.fromkeys(ood.name for run in runs for ood in run.ood))


def detection_scores(record: ComparisonRecord) -> list[str]:
    """Every score of any run; the paper's first."""
    runs = [run for method in record.methods for run in method.runs]
    found = dict.fromkeys(score for run in runs for ood in run.ood for score in ood.auroc)
    return sorted(found, key=lambda score: score != HEADLINE)


def belief_scores(record: ComparisonRecord) -> list[str]:
    """The scores that a terminal has room for: the first, and the mutual information of a belief."""
    found = detection_scores(record)
    return found[:1] + [score for score in found[1:] if score == _BELIEF]


def ood_of(run: RunRecord, name: str) -> OODScores | None:
    """What a run made of an OOD set."""
    return next((ood for ood in run.ood if ood.name == name), None)


def detection_row(record: ComparisonRecord, name: str, score: str, key: str = "auroc") -> SeedRow:
    """AUROC or FPR95 of every run, for one OOD set and one score."""

    def of(run: RunRecord) -> float | None:
        ood = ood_of(run, name)
        return None if ood is None else getattr(ood, key).get(score)

    return seed_row(record, AUROC if key == "auroc" else FPR95, of, score=score)
