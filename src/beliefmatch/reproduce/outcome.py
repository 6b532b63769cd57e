"""The runs of a reproduction, and rows made of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

from beliefmatch.experiments.config import RunConfig
from beliefmatch.experiments.records import Diverged, RunRecord, Trial
from beliefmatch.experiments.run_dir import RunDirectory
from beliefmatch.reproduce.base import Arm
from beliefmatch.reproduce.record import Reported, Row

__all__ = [
    "Measure",
    "Outcome",
    "Run",
    "Trained",
    "auroc",
    "auroc_row",
    "ece",
    "error",
    "nll",
    "row",
    "training_loss",
]


_NEAR_CHANCE = 0.95  # of the error of guessing


class Run(NamedTuple):
    """A finished run and its files."""

    record: RunRecord
    home: RunDirectory


Measure = Callable[[Run], float | None]
"""One number of a run, in the unit of its row; None where the method has no such number."""


@dataclass(frozen=True)
class Trained:
    """What an arm came to."""

    arm: Arm
    config: RunConfig
    """With the first seed, and nothing left to choose."""
    seeds: Sequence[int]
    ended: Sequence[RunRecord | Diverged]
    homes: Sequence[RunDirectory]
    trials: Sequence[Trial]
    lost: Sequence[float] = ()
    """Values of the option to be chosen with which the training diverged."""

    @property
    def runs(self) -> list[Run | None]:
        """By seed; None where the training diverged."""
        pairs = zip(self.ended, self.homes, strict=True)
        return [Run(record, home) if isinstance(record, RunRecord) else None for record, home in pairs]

    @property
    def first(self) -> Run | None:
        """That of the first seed that came to an end."""
        return next((run for run in self.runs if run is not None), None)

    def values(self, measure: Measure) -> list[float | None]:
        """One number of every run."""
        return [None if run is None else measure(run) for run in self.runs]

    @property
    def note(self) -> str:
        """What was chosen, what diverged, and what is no better than guessing."""
        return "; ".join(filter(None, (self._choice(), self._divergence(), self._guessing())))

    @property
    def diverged(self) -> int:
        """Seeds whose training did."""
        return sum(isinstance(one, Diverged) for one in self.ended)

    def _choice(self) -> str:
        taken = next((trial for trial in self.trials if trial.chosen), None)
        if taken is None:
            return ""
        name = {"kl_weight": "λ", "rate": "rate", "matched_kl_weight": "matched λ"}.get(taken.option)
        lost = f" ({', '.join(f'{value:g}' for value in self.lost)} diverged)" if self.lost else ""
        return f"{name or taken.option} = {taken.value:g} by validation{lost}"

    def _divergence(self) -> str:
        return f"{self.diverged} of {len(self.ended)} diverged" if self.diverged else ""

    def _guessing(self) -> str:
        records = [run.record for run in self.runs if run is not None]
        lost = sum(one.test.error >= _NEAR_CHANCE * (1 - 1 / len(one.class_names)) for one in records)
        return f"{lost} of {len(self.ended)} at chance" if lost else ""


@dataclass(frozen=True)
class Outcome:
    """Every arm of a reproduction."""

    scale: str
    trained: Mapping[str, Trained]

    def __getitem__(self, key: str) -> Trained:
        return self.trained[key]


def row(
    trained: Trained,
    measure: str,
    of: Measure,
    *,
    unit: str = "%",
    paper: Reported | None = None,
    digits: int = 2,
    group: str | None = None,
    label: str | None = None,
) -> Row:
    """One number of an arm with every seed; group and label are the arm's unless told."""
    records = [run.record for run in trained.runs if run is not None]
    return Row(
        group=trained.arm.group if group is None else group,
        label=trained.arm.label if label is None else label,
        measure=measure,
        unit=unit,
        paper=paper,
        values=trained.values(of),
        seeds=list(trained.seeds),
        train_seconds=fmean(record.costs.train_seconds for record in records) if records else None,
        note=trained.note,
        digits=digits,
        diverged=trained.diverged,
    )


def error(run: Run) -> float:
    """Of the test set, in percent."""
    return 100 * run.record.test.error


def ece(run: Run) -> float:
    """Of the test set with 15 groups, in percent."""
    return 100 * run.record.test.ece


def nll(run: Run) -> float | None:
    """Of the test set, in nats; None where it is infinite."""
    return run.record.test.nll


def training_loss(run: Run) -> float | None:
    """Of the last epoch, mean over networks: how far they fit the images as training alters them."""
    last = [curves["loss"][-1] for curves in run.record.curves if curves["loss"]]
    told = [loss for loss in last if loss is not None]
    return fmean(told) if told else None


def auroc_row(trained: Trained, score: str, **options: Any) -> Row:
    """How well a score tells the first OOD set, which is named."""
    sets = [text.partition("=")[0] for text in trained.config.ood]  # where none came to an end
    sets = sets if trained.first is None else [one.name for one in trained.first.record.ood]
    return row(trained, f"AUROC {sets[0]}, {score}" if sets else f"AUROC, {score}", auroc(score), **options)


def auroc(score: str, place: int = 0) -> Measure:
    """How well a score tells the OOD set at a place of the configuration's list, in percent."""

    def measure(run: Run) -> float | None:
        ood = run.record.ood
        value = ood[place].auroc.get(score) if place < len(ood) else None
        return None if value is None else 100 * value

    return measure
