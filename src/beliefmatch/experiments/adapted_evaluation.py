"""An adaptation in, its record and the evaluations of its heads out."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from beliefmatch._config import plain
from beliefmatch._environment import provenance
from beliefmatch.adaptation.fitted import FittedHead, Point
from beliefmatch.adaptation.result import Adaptation, BatchNormResult, FeatureSets
from beliefmatch.adaptation.types import Features
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
from beliefmatch.experiments.adapted_lines import TableLine, class_names_of, lines, scored_rows
from beliefmatch.experiments.adapted_scores import (
    HeadOutput,
    answers,
    detection_scores,
    doubts,
    is_votes,
    outputs_of,
    scorable,
)
from beliefmatch.experiments.evaluate import evaluate
from beliefmatch.experiments.evaluate_config import EvaluateConfig
from beliefmatch.experiments.evaluation_record import EvaluationRecord

__all__ = ["adapt_evaluations", "adapt_record"]

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
