"""Rows of a reproduction: results of its arms, measures read from their runs, and the paper's numbers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from typing import Any, Generic, NamedTuple, TypeVar

from beliefmatch import metrics
from beliefmatch.data.predictions import Predictions, read_predictions
from beliefmatch.experiments.adapt_record import AdaptRecord, ScoredHead
from beliefmatch.experiments.detections import score_columns
from beliefmatch.experiments.evaluation_record import EvaluationRecord
from beliefmatch.experiments.records import RunRecord
from beliefmatch.experiments.run_dir import RunDirectory
from beliefmatch.methods import build
from beliefmatch.reproduce.arms import Arm
from beliefmatch.reproduce.record import Reported, ReproducedRun, Row

__all__ = [
    "ECE", "ERROR", "NLL", "ArmResult", "Block", "Measure", "Outcome", "Run", "Transferred", "belief_spread",
    "has_belief", "mean_entropy", "median_precision", "mistake_auroc", "ood_auroc", "predictions_of", "row",
    "table", "top_error", "training_loss",
]  # fmt: skip

AnyRun = TypeVar("AnyRun")


class Run(NamedTuple):
    """A finished training run and its files."""

    record: RunRecord
    run_dir: RunDirectory


@dataclass(frozen=True)
class ArmResult(Generic[AnyRun]):
    """The runs of one arm: trainings (`Run`), or heads of a transfer (`ScoredHead`)."""

    arm: Arm
    config: Any
    """Configuration with the first seed and nothing left to choose."""
    seeds: Sequence[int]
    runs: Sequence[AnyRun | None]
    """By seed; None where training diverged."""
    train_seconds: float | None
    """Mean over the finished runs."""
    note: str
    recorded: Sequence[ReproducedRun]

    @property
    def finished(self) -> list[AnyRun]:
        """Runs that did not diverge."""
        return [run for run in self.runs if run is not None]

    @property
    def diverged(self) -> int:
        """Number of seeds whose training diverged."""
        return len(self.runs) - len(self.finished)

    def values(self, measure: Callable[[AnyRun], float | None]) -> list[float | None]:
        """A number of every run, by seed."""
        return [None if run is None else measure(run) for run in self.runs]


class Transferred(NamedTuple):
    """The adaptation of a network to one dataset."""

    record: AdaptRecord
    evaluations: Sequence[EvaluationRecord]
    """Of the first seed of each row of the record."""
    seeds: Sequence[int]

    def heads(self, label: str) -> list[ScoredHead | None]:
        """Heads of one method, by seed; None where training diverged."""
        found = {head.seed: head for head in self.record.scored if head.label == label}
        return [found.get(seed) for seed in self.seeds]


@dataclass(frozen=True)
class Outcome:
    """Everything that a reproduction has run."""

    scale: str
    arms: Mapping[str, ArmResult[Any]]
    transfers: Mapping[str, Transferred] = field(default_factory=dict)
    """By dataset, where the arms are heads of transfers."""


@dataclass(frozen=True)
class Measure:
    """A number of one run, in the unit of its row; None where the method has no such number."""

    name: str
    """`{ood}` stands for the name of the first OOD set."""
    of: Callable[[Any], float | None]
    unit: str = "%"
    digits: int = 2
    not_for: str = ""
    """Method whose arms have no such row."""


@dataclass(frozen=True)
class Block:
    """Rows of a table: every arm that is selected, with every measure."""

    measures: Sequence[Measure]
    group: str = "{group}"
    """Title, where `{group}` stands for the group of the arm."""
    selects: Callable[[Arm], bool] = lambda arm: True
    note: Callable[[ArmResult[Any]], str] = lambda result: result.note


def table(
    *blocks: Block, paper: Mapping[str, Mapping[str, Reported]] | None = None
) -> Callable[[Outcome], list[Row]]:
    """A function that reads the rows of blocks from an outcome.

    Args:
        blocks: Blocks of rows, in order.
        paper: Numbers of the paper, by the name of the measure and the key of the arm.
    """

    def rows(outcome: Outcome) -> list[Row]:
        return [
            row(
                result,
                measure,
                paper=(paper or {}).get(measure.name, {}).get(result.arm.key),
                group=block.group.format(group=result.arm.group),
                note=block.note(result),
            )
            for block in blocks
            for result in outcome.arms.values()
            if block.selects(result.arm)
            for measure in block.measures
            if not measure.not_for or result.config.method.name != measure.not_for
        ]

    return rows


def row(
    result: ArmResult[Any], measure: Measure, *, paper: Reported | None = None, group: str | None = None,
    note: str | None = None,
) -> Row:  # fmt: skip
    """A number of an arm with every seed; group and note are the arm's unless given."""
    return Row(
        group=result.arm.group if group is None else group,
        label=result.arm.label,
        measure=_with_ood_name(measure.name, result),
        unit=measure.unit,
        paper=paper,
        values=result.values(measure.of),
        seeds=list(result.seeds),
        train_seconds=result.train_seconds,
        note=result.note if note is None else note,
        digits=measure.digits,
        diverged=result.diverged,
    )


def _with_ood_name(name: str, result: ArmResult[Any]) -> str:
    if "{ood}" not in name:
        return name
    sets = [
        text.partition("=")[0] for text in result.config.ood
    ]  # all that is known where every seed diverged
    sets = [one.name for one in result.finished[0].record.ood] if result.finished else sets
    return name.format(ood=sets[0]) if sets else name.replace(" {ood}", "")


# Measures read from the record of a run


def _nll(run: Run) -> float | None:
    return run.record.test.nll


ERROR = Measure("error", lambda run: 100 * run.record.test.error)
NLL = Measure("NLL", _nll, "nats", 3)
ECE = Measure("ECE", lambda run: 100 * run.record.test.ece)


def training_loss(run: Run) -> float | None:
    """Loss of the last epoch, as training augments the images; the mean over networks."""
    last = [curves["loss"][-1] for curves in run.record.curves if curves["loss"]]
    finite = [loss for loss in last if loss is not None]
    return fmean(finite) if finite else None


def ood_auroc(score: str) -> Measure:
    """AUROC of a score for the first OOD set."""

    def auroc(run: Run) -> float | None:
        value = run.record.ood[0].auroc.get(score) if run.record.ood else None
        return None if value is None else 100 * value

    return Measure(f"AUROC {{ood}}, {score}", auroc)


# Measures read from the predictions that a run has kept


def predictions_of(run: Run, ood: int | None = None) -> Predictions:
    """Predictions for the test images, or for the OOD set with an index."""
    if ood is None:
        return read_predictions(run.run_dir.predictions("test"))
    names = [one.name for one in run.record.ood]
    return read_predictions(run.run_dir.ood_predictions(names)[names[ood]], labelled=False)


def has_belief(run: Run) -> bool:
    """Whether the logits that the run has kept are log-concentrations of a Dirichlet."""
    method = build(run.record.method, **run.record.options)
    return method.reads != "softmax" and predictions_of(run).kind == "logits"


def mean_entropy(run: Run, ood: int | None = None) -> float | None:
    """Mean predictive entropy in nats; None where there is no such OOD set."""
    if ood is not None and ood >= len(run.record.ood):
        return None
    return score_columns(predictions_of(run, ood))["entropy"].mean().item()


def belief_spread(run: Run) -> float | None:
    """Mean mutual information of label and belief over the test images, in nats."""
    if not has_belief(run):
        return None
    return score_columns(predictions_of(run))["mutual_information"].mean().item()


def median_precision(run: Run) -> float | None:
    """Median α₀ over the test images; a mean would be dominated by a few confident ones."""
    if not has_belief(run):
        return None
    return predictions_of(run).values.double().logsumexp(-1).exp().quantile(0.5).item()


def mistake_auroc(score: str) -> Measure:
    """AUROC of a score for the misclassified test images; None where all are right, or all wrong."""

    def auroc(run: Run) -> float | None:
        if score == "mutual_information" and not has_belief(run):
            return None
        predictions = predictions_of(run)
        assert predictions.targets is not None  # the test set has labels
        right = metrics.outcomes(predictions.targets, **{predictions.kind: predictions.values}).correct
        scores = score_columns(predictions)[score]
        is_mixed = 0 < right.sum() < len(right)
        return 100 * float(metrics.auroc(scores[right], scores[~right])) if is_mixed else None

    return Measure(f"AUROC, {score}", auroc)


def top_error(count: int) -> Measure:
    """Share of the test images whose class is not among the `count` most probable ones.

    None where there are no more classes than that.
    """
    return Measure(f"top-{count} error", partial(_top_error, count))


def _top_error(count: int, run: Run) -> float | None:
    predictions = predictions_of(run)
    assert predictions.targets is not None
    if predictions.values.shape[1] <= count:
        return None
    best = predictions.values.topk(count, dim=-1).indices
    return 100 * (1 - (best == predictions.targets[:, None]).any(-1).double().mean().item())
