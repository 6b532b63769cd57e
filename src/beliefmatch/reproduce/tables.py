"""Rows of a reproduction: results of its arms, measures read from their runs, and the paper's numbers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Generic, NamedTuple, TypeVar

from beliefmatch import metrics
from beliefmatch.data.config import name_of_set
from beliefmatch.data.predictions import Predictions, read_predictions
from beliefmatch.experiments.adapt_record import AdaptRecord, ScoredHead
from beliefmatch.experiments.config import RunConfig
from beliefmatch.experiments.evaluate import score_columns
from beliefmatch.experiments.evaluation_record import EvaluationRecord
from beliefmatch.experiments.records import RunRecord
from beliefmatch.experiments.run_dir import RunDirectory
from beliefmatch.methods import build
from beliefmatch.reproduce.activations import PARTS, activations_of_run
from beliefmatch.reproduce.arms import Arm
from beliefmatch.reproduce.record import Reported, ReproducedRun, Row

__all__ = [
    "ACTIVATIONS", "ECE", "ERROR", "MISCLASSIFICATION", "NLL", "ROTATION", "TRAINING_LOSS", "ArmResult",
    "Block", "Measure", "Outcome", "Run", "Transferred", "has_belief", "mean_entropy",
    "mean_mutual_information", "median_precision", "misclassification_auroc", "ood_auroc", "predictions_of",
    "table", "top_error", "transfer_aurocs",
]  # fmt: skip

AnyRun = TypeVar("AnyRun")


class Run(NamedTuple):
    """A finished training run, its files, and the configuration that asks for it, with the current paths."""

    record: RunRecord
    run_dir: RunDirectory
    config: RunConfig


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
        diverged = {one.name for one in self.record.tried if one.curve.nll and one.curve.nll[-1] is None}
        heads = [head for head in self.record.scored if head.label == label and head.name not in diverged]
        found = {head.seed: head for head in heads}
        return [found.get(seed) for seed in self.seeds]


@dataclass(frozen=True)
class Outcome:
    """Everything that a reproduction has run."""

    scale: str
    arms: Mapping[str, ArmResult[Any]]
    transfers: Mapping[str, Transferred] = field(default_factory=dict)
    """By dataset, where the arms are heads of transfers."""


class Measure(NamedTuple):
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

    measures: Sequence[Measure] | Callable[[Outcome], Sequence[Measure]]
    group: str = "{group}"
    """Title, where `{group}` stands for the group of the arm."""
    selects: Callable[[Arm], bool] = lambda arm: True
    with_skipped_steps: bool = False
    """Whether the note says how many steps were skipped."""


def table(
    *blocks: Block, paper: Mapping[str, Mapping[str, Reported]] | None = None
) -> Callable[[Outcome], list[Row]]:
    """A function that reads the rows of blocks from an outcome.

    Args:
        blocks: Blocks of rows, in order.
        paper: Numbers of the paper, by the name of the measure and the key of the arm.
    """

    def rows(outcome: Outcome) -> list[Row]:
        found = []
        for block in blocks:
            measures = block.measures(outcome) if callable(block.measures) else block.measures
            for result in outcome.arms.values():
                if block.selects(result.arm):
                    found += [
                        _row(result, one, block, (paper or {}).get(one.name, {}).get(result.arm.key))
                        for one in measures
                        if not one.not_for or result.config.method.name != one.not_for
                    ]
        return found

    return rows


def _row(result: ArmResult[Any], measure: Measure, block: Block, paper: Reported | None) -> Row:
    """A number of an arm with every seed."""
    note = result.note
    skipped = sum(run.record.skipped_steps for run in result.finished) if block.with_skipped_steps else 0
    if skipped:
        note = "; ".join(filter(None, [note, f"{skipped} steps skipped"]))
    return Row(
        group=block.group.format(group=result.arm.group),
        label=result.arm.label,
        measure=_with_ood_name(measure.name, result),
        unit=measure.unit,
        paper=paper,
        values=result.values(measure.of),
        seeds=list(result.seeds),
        train_seconds=result.train_seconds,
        note=note,
        digits=measure.digits,
        diverged=result.diverged,
    )


def _with_ood_name(name: str, result: ArmResult[Any]) -> str:
    if "{ood}" not in name:
        return name
    if result.finished:
        sets = [one.name for one in result.finished[0].record.ood]
    else:  # all that is known where every seed diverged
        sets = [name_of_set(text) for text in result.config.ood]
    return name.format(ood=sets[0]) if sets else name.replace(" {ood}", "")


# Measures read from the record of a run


def _training_loss(run: Run) -> float | None:
    """Loss of the last epoch, as training augments the images; the mean over networks."""
    last = [curves["loss"][-1] for curves in run.record.curves if curves["loss"]]
    finite = [loss for loss in last if loss is not None]
    return fmean(finite) if finite else None


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


ERROR = Measure("error", lambda run: 100 * run.record.test.error)
NLL = Measure("NLL", lambda run: run.record.test.nll, "nats", 3)
ECE = Measure("ECE", lambda run: 100 * run.record.test.ece)
TRAINING_LOSS = Measure("training loss", _training_loss, "nats", 3, not_for="belief_matching")
ROTATION = [
    Measure(
        "confidence when wrong, all angles",
        lambda run: _percent(run.record.rotation and run.record.rotation.mean_wrong_confidence),
    ),
    Measure(
        "confidence upside down",
        lambda run: _percent(run.record.rotation and run.record.rotation.mean_confidence[-1]),
    ),
]


def ood_auroc(score: str) -> Measure:
    """AUROC of a score for the first OOD set."""
    return Measure(
        f"AUROC {{ood}}, {score.replace('_', ' ')}",
        lambda run: _percent(run.record.ood[0].auroc.get(score) if run.record.ood else None),
    )


def transfer_aurocs(outcome: Outcome) -> list[Measure]:
    """AUROC of the entropy of heads for each OOD set, as many as the configuration has."""
    (transfer,) = outcome.transfers.values()
    return [
        Measure(f"AUROC, {ood.name}", lambda head, index=index: 100 * head.ood[index].auroc["entropy"])
        for index, ood in enumerate(transfer.record.scored[0].ood)
    ]


# Measures read from the predictions or the network that a run has kept


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


def mean_mutual_information(run: Run) -> float | None:
    """Mean mutual information of label and class probabilities over the test images, in nats."""
    found = score_columns(predictions_of(run), has_belief=has_belief(run)).get("mutual_information")
    return None if found is None else found.mean().item()


def median_precision(run: Run) -> float | None:
    """Median α₀ over the test images; a mean would be dominated by a few confident ones."""
    if not has_belief(run):
        return None
    return predictions_of(run).values.double().logsumexp(-1).exp().quantile(0.5).item()


def misclassification_auroc(score: str) -> Measure:
    """AUROC of a score for the misclassified test images; None where all are right, or all wrong."""

    def auroc(run: Run) -> float | None:
        predictions = predictions_of(run)
        scores = score_columns(predictions, has_belief=has_belief(run)).get(score)
        if scores is None:
            return None
        assert predictions.targets is not None  # the test set has labels
        right = metrics.outcomes(predictions.targets, **{predictions.kind: predictions.values}).correct
        is_mixed = 0 < right.sum() < len(right)
        return 100 * float(metrics.auroc(scores[right], scores[~right])) if is_mixed else None

    return Measure(f"AUROC, {score.replace('_', ' ')}", auroc)


MISCLASSIFICATION = [
    misclassification_auroc(score) for score in ("entropy", "confidence", "mutual_information")
]


def top_error(count: int) -> Measure:
    """Share of the test images whose class is not among the `count` most probable ones.

    None where there are no more classes than that.
    """

    def error(run: Run) -> float | None:
        predictions = predictions_of(run)
        assert predictions.targets is not None
        if predictions.values.shape[1] <= count:
            return None
        best = predictions.values.topk(count, dim=-1).indices
        return 100 * (1 - (best == predictions.targets[:, None]).any(-1).double().mean().item())

    return Measure(f"top-{count} error", error)


def _activation_measure(title: str, name: str, part: str) -> Measure:
    def number(run: Run) -> float | None:
        return getattr(activations_of_run(run.run_dir.path, run.config.data)[part], name)

    return Measure(f"{title}, {part}", number, "", 3)


ACTIVATIONS = [
    _activation_measure(title, name, part)
    for part in PARTS
    for title, name in (("range", "extent"), ("within / between", "tightness"))
]
