"""An adaptation in, its record and the evaluations of its heads out.

Heads are read in blocks of rows, so that memory stays bounded.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from beliefmatch._config import plain
from beliefmatch._environment import provenance
from beliefmatch._validate import fail
from beliefmatch.adaptation.fitted import FittedHead, Point
from beliefmatch.adaptation.result import Adaptation, BatchNormResult, FeatureSets
from beliefmatch.adaptation.types import Features, labelled, ordered
from beliefmatch.data.predictions import Predictions
from beliefmatch.experiments.adapt_record import (
    BATCHNORM_LABEL,
    AdaptRecord,
    BestRecord,
    FeatureFacts,
    HeadFacts,
    RiskThresholdCheck,
    ScoredHead,
    TriedHead,
    ValidationCurve,
    VerdictRecord,
)
from beliefmatch.experiments.evaluate import BELIEF_SCORES, evaluate, score_columns
from beliefmatch.experiments.evaluate_config import EvaluateConfig
from beliefmatch.experiments.evaluation_record import EvaluationRecord
from beliefmatch.experiments.records import OODScores, Scores
from beliefmatch.metrics import auroc, calibration_error, fpr_at_tpr, outcomes
from beliefmatch.metrics.calibration import bins_of

__all__ = [
    "Answers",
    "HeadOutput",
    "TableLine",
    "adapt_evaluations",
    "adapt_record",
    "answers",
    "class_names_of",
    "detection_scores",
    "doubts",
    "is_votes",
    "lines",
    "outputs_of",
    "scorable",
    "scored_rows",
]

N_BINS = 15
_NUMBERS = 4_000_000  # of logits held at once


@dataclass(frozen=True, eq=False)
class Answers:
    """Of each row (N,), double; the shares of a row's votes count as so much of an example."""

    confidence: Tensor
    hits: Tensor
    """1 where the predicted class is the label, or the share of the votes for it."""
    nll: Tensor
    brier: Tensor
    kl: Tensor | None
    """KL(shares of the votes ‖ probabilities); None for labels."""

    def scores(self) -> Scores:
        """Means over the rows."""
        nll = self.nll.mean().item()
        return Scores(
            examples=len(self.hits),
            error=(1 - self.hits).mean().item(),
            nll=nll if math.isfinite(nll) else None,
            brier=self.brier.mean().item(),
            ece=calibration_error(bins_of(self.confidence.clamp(0, 1), self.hits, N_BINS, "width")),
            mean_confidence=self.confidence.mean().item(),
        )

    def mean_kl(self) -> float | None:
        """None for labels, and where it is infinite."""
        value = math.inf if self.kl is None else self.kl.mean().item()
        return value if math.isfinite(value) else None


def is_votes(features: Features) -> bool:
    """Whether rows have counts of several classes rather than a class."""
    return features.targets.dim() == 2


def scorable(features: Features) -> Tensor:
    """Places of the rows that have a class, or at least one vote."""
    places = labelled(features)
    return places[features.targets[places].sum(1) > 0] if is_votes(features) else places


class HeadOutput(NamedTuple):
    """What a head says of a block of rows."""

    kind: Literal["logits", "probs"]
    values: Tensor
    """(n, K): log-concentrations of a belief, a head's own logits, or probabilities where it has neither."""
    has_belief: bool
    targets: Tensor

    @property
    def logs(self) -> Tensor:
        """ln p, double."""
        return self.values.log_softmax(1) if self.kind == "logits" else self.values.log()


@torch.no_grad()
def outputs_of(head: FittedHead, features: Features, places: Tensor | None = None) -> Iterator[HeadOutput]:
    """What a head says of the rows at these places, or of all, a bounded number at a time, in order."""
    wanted = torch.arange(len(features)) if places is None else places
    step = max(1, _NUMBERS // len(head.bias))
    for rows, targets in ordered(features, wanted):
        for some, of_some in zip(rows.split(step), targets.split(step), strict=True):
            output = head.predict(some)
            logits = output.logits if output.belief is None else output.belief.log_alpha
            kind, values = ("probs", output.probs) if logits is None else ("logits", logits)
            yield HeadOutput(kind, values, output.belief is not None, of_some)


def answers(head: FittedHead, features: Features) -> Answers:
    """How a head answers the rows that have a class or votes."""
    read = _by_votes if is_votes(features) else _by_labels
    parts = [read(output) for output in outputs_of(head, features, scorable(features))]
    columns = [torch.cat(column) for column in zip(*parts, strict=True)]
    return Answers(*columns, *([] if is_votes(features) else [None]))


def _by_labels(output: HeadOutput) -> tuple[Tensor, ...]:
    given: dict[str, Any] = {output.kind: output.values}
    seen = outcomes(output.targets, **given)
    return seen.confidence, seen.correct.double(), seen.nll, seen.brier


def _by_votes(output: HeadOutput) -> tuple[Tensor, ...]:
    """The expectation of each score over one vote drawn from the row's; of a label it is the score itself."""
    shares, logs = output.targets.double(), output.logs
    shares = shares / shares.sum(1, keepdim=True)
    probs, cast = logs.exp(), shares > 0
    confidence, predicted = probs.max(1)
    nll = -torch.where(cast, shares * logs, 0.0).sum(1)  # no vote for an impossible class: 0, not NaN
    hits = shares.gather(1, predicted[:, None])[:, 0]
    brier = probs.square().sum(1) - 2 * (probs * shares).sum(1) + 1
    return confidence, hits, nll, brier, nll - torch.special.entr(shares).sum(1)


def doubts(
    head: FittedHead, features: Features, places: Tensor | None = None
) -> tuple[dict[str, Tensor], bool]:
    """Every score of `metrics.SCORES` that a head allows, a column each, and whether it has a belief."""
    columns: dict[str, list[Tensor]] = {}
    has_belief = False
    for output in outputs_of(head, features, places):
        has_belief = output.has_belief
        read = Predictions(Path(), output.kind, output.values, None, None, {})
        for name, column in score_columns(read).items():
            columns.setdefault(name, []).append(column)
    return {name: torch.cat(parts) for name, parts in columns.items()}, has_belief


def detection_scores(
    name: str, in_distribution: Mapping[str, Tensor], ood: Mapping[str, Tensor], *, has_belief: bool
) -> OODScores:
    """How well each score separates OOD from in-distribution rows, given both `doubts`."""
    names = [score for score in in_distribution if has_belief or score not in BELIEF_SCORES]
    return OODScores(
        name=name,
        examples=len(ood["confidence"]),
        auroc={score: float(auroc(in_distribution[score], ood[score])) for score in names},
        fpr95={score: float(fpr_at_tpr(in_distribution[score], ood[score])) for score in names},
        mean_confidence=1 - ood["confidence"].mean().item(),
    )


class TableLine(NamedTuple):
    """A line of the honest table, and what its heads see of the data."""

    label: str
    heads: list[FittedHead]
    features: Features
    ood: Mapping[str, Features]


def lines(adaptation: Adaptation) -> list[TableLine]:
    """The lines of the table; at the end the network with trained BatchNorm layers, if it has such."""
    sets = adaptation.sets
    made = [
        TableLine(label, [*heads], scored_rows(sets)[0], sets.ood)
        for label, heads in adaptation.table.items()
    ]
    batchnorm = adaptation.batchnorm
    if batchnorm is not None and batchnorm.is_taken:
        features = batchnorm.validation if batchnorm.test is None else batchnorm.test
        made.append(TableLine(BATCHNORM_LABEL, [batchnorm.head], features, batchnorm.ood))
    return made


def scored_rows(sets: FeatureSets) -> tuple[Features, str]:
    """The rows to score on, and whether they are those of "test" or of "validation"."""
    features, name = (sets.validation, "validation") if sets.test is None else (sets.test, "test")
    if not len(scorable(features)):
        raise fail("adapt_record", f"`{name}` must have rows with a class or votes, got none.")
    return features, name


def class_names_of(classes: int, names: Sequence[str] | None) -> list[str]:
    """One name for each class, "0", "1", ... if none are given."""
    if names is not None and len(names) != classes:
        raise fail("adapt_record", f"`class_names` must be {classes}, one a class, got {len(names)}.")
    return [f"{place}" for place in range(classes)] if names is None else [*map(str, names)]


MOST_POINTS = 50
"""Of the curve of a head."""
MOST_NUMBERS = 100_000_000
"""Probabilities of a set that an evaluation holds, 400 MB; of more, evenly spaced rows."""

_DEFAULT = EvaluateConfig()


def adapt_record(
    adaptation: Adaptation,
    *,
    model_name: str,
    class_names: Sequence[str] | None = None,
    data_facts: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    command: Sequence[str] = (),
    wall_seconds: float | None = None,
) -> AdaptRecord:
    """Judge every head of the honest table on the test rows, or else on those of validation.

    Args:
        adaptation: of `adapt` or `refit`.
        model_name: what was adapted.
        class_names: one for each class; "0", "1", ... if not given.
        data_facts: what is known of the data, as JSON can hold it.
        config: The whole configuration, where there is more than the options of the adaptation.
        command: what to type to have the same again.
        wall_seconds: that all of it took; what the adaptation says of its parts if not given.
    """
    features, scored_on = scored_rows(adaptation.sets)
    spent = sum(adaptation.seconds.values()) if wall_seconds is None else wall_seconds
    return AdaptRecord(
        model=model_name,
        head=_head(adaptation),
        labels=adaptation.labels,
        classes=adaptation.classes,
        class_names=class_names_of(adaptation.classes, class_names),
        tried=[_tried(head) for head in adaptation.fitted],
        chosen=adaptation.chosen.candidate.name,
        label=adaptation.label,
        best=_best(adaptation),
        verdict=VerdictRecord(**plain(adaptation.verdict._asdict())),
        scored_on=scored_on,
        targets="votes" if is_votes(features) else "labels",
        scored=_scored(adaptation),
        risk_thresholds=_risk_thresholds(adaptation),
        batchnorm=_batchnorm(adaptation.batchnorm),
        notes=list(adaptation.notes),
        data=plain(dict(data_facts or {}), _described),
        config=plain(dict(config or {}), _described),
        features=_facts(adaptation.sets),
        adapt_config=plain(adaptation.adapt_config),
        seconds={name: float(value) for name, value in adaptation.seconds.items()},
        command=list(command),
        **provenance(float(spent), "beliefmatch", "torch", "numpy", torch_threads=torch.get_num_threads()),
    )


def _described(value: Any) -> Any:
    """Of a tensor its shape, of any other value its text."""
    return {"shape": [*value.shape]} if isinstance(value, Tensor) else f"{value}"


def _finite(value: float | None) -> float | None:
    """A number, or None in place of NaN and infinity, which JSON lacks."""
    return float(value) if value is not None and math.isfinite(value) else None


def _head(adaptation: Adaptation) -> HeadFacts | None:
    head = adaptation.head
    return None if head is None else HeadFacts(head.name, head.in_features, head.out_features, str(head.kind))


def _best(adaptation: Adaptation) -> BestRecord:
    label, nll, excess, error = adaptation.best
    return BestRecord(label, nll, excess, _finite(error))


def _tried(head: FittedHead) -> TriedHead:
    one = head.candidate
    return TriedHead(
        name=one.name,
        kind=one.kind,
        options=plain(dict(one.options)),
        seed=one.seed,
        weight_decay=one.weight_decay,
        calibration=one.calibration,
        iterations=head.iterations,
        gap=_finite(head.gap),
        converged=head.converged,
        nll=_finite(head.nll),
        error=_finite(head.error),
        ece=_finite(head.ece),
        notes=list(head.notes),
        curve=_thinned(head.curve),
        background=one.background,
        members=one.members,
    )


def _thinned(curve: Sequence[Point]) -> ValidationCurve:
    """At most `MOST_POINTS` points, evenly, with both ends."""
    last, many = len(curve) - 1, min(len(curve), MOST_POINTS)
    kept = sorted({round(place * last / max(many - 1, 1)) for place in range(many)})
    points = [curve[place] for place in kept]
    return ValidationCurve([point.epoch for point in points], [_finite(point.nll) for point in points])


def _scored(adaptation: Adaptation) -> list[ScoredHead]:
    return [_scored_head(line, head) for line in lines(adaptation) for head in line.heads]


def _scored_head(line: TableLine, head: FittedHead) -> ScoredHead:
    output = answers(head, line.features)
    columns, has_belief, ood_columns = _uncertainty(head, line.features, line.ood)
    ood = [
        detection_scores(name, columns, other, has_belief=has_belief) for name, other in ood_columns.items()
    ]
    extra = ", BatchNorm trained" if line.label == BATCHNORM_LABEL else ""
    return ScoredHead(
        label=line.label,
        name=f"{head.candidate.name}{extra}",
        seed=head.candidate.seed,
        options=plain(dict(head.candidate.options)),
        converged=head.converged,
        has_belief=has_belief,
        scores=output.scores(),
        kl=output.mean_kl(),
        ood=ood,
    )


def _batchnorm(batchnorm: BatchNormResult | None) -> dict[str, Any] | None:
    """What came of training BatchNorm layers, without the features."""
    if batchnorm is None:
        return None
    return {
        "layers": len(batchnorm.layers),
        "taken": batchnorm.is_taken,
        "epoch": batchnorm.epoch,
        "validation_before": plain(batchnorm.before._asdict()),
        "validation_after": plain(batchnorm.after._asdict()),
    }


def _uncertainty(
    head: FittedHead, features: Features, ood: Mapping[str, Features]
) -> tuple[dict[str, Tensor], bool, dict[str, dict[str, Tensor]]]:
    """Uncertainty scores of in-distribution rows, whether they are of a belief, and those of each OOD set."""
    places = scorable(features)
    in_distribution, has_belief = doubts(head, features, places if ood else places[:1])
    return in_distribution, has_belief, {name: doubts(head, rows)[0] for name, rows in ood.items()}


def _risk_thresholds(adaptation: Adaptation) -> list[RiskThresholdCheck]:
    """As made on validation rows, and what comes of them on test rows."""
    if not adaptation.risk_thresholds:
        return []
    batchnorm = adaptation.batchnorm
    head, test = adaptation.chosen, adaptation.sets.test
    if batchnorm is not None and batchnorm.is_taken:
        head, test = batchnorm.head, batchnorm.test
    output = None if test is None else answers(head, test)
    made = []
    for one in adaptation.risk_thresholds:
        threshold = None if one.threshold is None else max(one.threshold, 0.0)
        coverage = risk = None
        if output is not None and threshold is not None:
            answered = output.confidence >= threshold
            coverage = answered.double().mean().item()
            risk = (1 - output.hits[answered]).mean().item() if coverage else None
        bound = _finite(one.bound)
        made.append(RiskThresholdCheck(one.risk, one.delta, threshold, one.coverage, bound, coverage, risk))
    return made


def _facts(sets: FeatureSets) -> list[FeatureFacts]:
    named = {"train": sets.train, "validation": sets.validation, "test": sets.test, **sets.ood}
    return [
        FeatureFacts(name, len(one), one.width, int(one.rows.nbytes))
        for name, one in named.items()
        if one is not None
    ]


def adapt_evaluations(
    adaptation: Adaptation,
    *,
    model_name: str = "model",
    class_names: Sequence[str] | None = None,
    settings: EvaluateConfig = _DEFAULT,
    on_step: Callable[[str], None] | None = None,
) -> list[EvaluationRecord]:
    """One head of each line of the honest table scored in full: those of the chosen head's seed.

    Counts are scored by the class of the most votes, the first of several. Where there are more than
    `MOST_NUMBERS` probabilities, evenly spaced rows are scored. The evaluations mention both.

    Args:
        adaptation: of `adapt` or `refit`.
        model_name: what was adapted.
        class_names: one for each class; "0", "1", ... if not given.
        settings: bins, resamples, seed and the like.
        on_step: called after each step with what was done.
    """
    scored_on = scored_rows(adaptation.sets)[1]
    names, seed = class_names_of(adaptation.classes, class_names), adaptation.chosen.candidate.seed
    made = []
    for line in lines(adaptation):
        head = next((one for one in line.heads if one.candidate.seed == seed), line.heads[0])
        in_distribution = _predictions(
            head, line.features, f"{model_name}, {scored_on}", scorable(line.features)
        )
        ood = {
            name: _predictions(head, rows, f"{model_name}, {name}", torch.arange(len(rows)))
            for name, rows in line.ood.items()
        }
        made.append(
            evaluate(
                _labelled(in_distribution, line.features),
                name=line.label,
                class_names=names,
                ood=ood,
                settings=settings,
                on_step=on_step,
            )
        )
    return made


def _predictions(head: FittedHead, features: Features, name: str, places: Tensor) -> Predictions:
    """What a head says of these rows, or of evenly spaced ones of them, in memory."""
    step = -(-len(places) * len(head.bias) // MOST_NUMBERS)
    output = list(_single(outputs_of(head, features, places[::step])))
    source = f"one row in {step} of {name}" if step > 1 else name
    path = Path(f"features of {source}: {head.candidate.name}")
    return Predictions(path, output[0].kind, torch.cat([one.values for one in output]), None, None, {})


def _single(blocks: Iterator[HeadOutput]) -> Iterator[HeadOutput]:
    """In single precision, and no block is held in double any longer."""
    for output in blocks:
        yield output._replace(values=output.values.float())


def _labelled(output: Predictions, features: Features) -> Predictions:
    """With the class of each row, of votes that of the most."""
    places = scorable(features)
    targets = features.targets[places][:: -(-len(places) * output.values.shape[1] // MOST_NUMBERS)]
    by = {"targets": "the class of the most votes"} if is_votes(features) else {}
    ids = targets.argmax(1) if is_votes(features) else targets
    return dataclasses.replace(output, targets=ids, recognised=by)
