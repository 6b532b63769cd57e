"""Score the heads of an adaptation: its record, and the evaluation of each line of its table."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from beliefmatch._config import plain
from beliefmatch._environment import provenance
from beliefmatch._validate import fail
from beliefmatch.adaptation.feature_rows import Features
from beliefmatch.adaptation.fitted import FittedHead, Point
from beliefmatch.adaptation.result import Adaptation, BatchNormResult, FeatureSets
from beliefmatch.adaptation.scoring import answers, row_scores, scorable, stored_predictions
from beliefmatch.adaptation.vote_scale import log_alpha_of, vote_examples
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
    VoteScaleRecord,
)
from beliefmatch.experiments.evaluate import evaluate, ood_scores, scores_of
from beliefmatch.experiments.evaluate_config import EvaluateConfig
from beliefmatch.experiments.evaluation_record import EvaluationRecord
from beliefmatch.experiments.feature_detection import feature_detections
from beliefmatch.experiments.paired_aurocs import PairedAurocs
from beliefmatch.experiments.records import Scores
from beliefmatch.metrics import calibration_error
from beliefmatch.metrics.calibration import bins_of
from beliefmatch.votes import votes_log_likelihood

__all__ = ["MAX_NUMBERS", "WITHOUT_EXAMPLES", "ScoredAdaptation", "score_adaptation"]

MAX_NUMBERS = 50_000_000
"""Probabilities of a set that are held at once, 400 MB; of more, evenly spaced rows are scored."""
WITHOUT_EXAMPLES = EvaluateConfig(shown=0)
"""Settings of an evaluation whose numbers and intervals are all that is wanted."""
_VALUES_ONLY = EvaluateConfig(resamples=0, shown=0)
_NUMBERS = 4_000_000  # of logits computed at once
_MAX_POINTS = 50  # of the curve of a head
_DEFAULT = EvaluateConfig()


class ScoredAdaptation(NamedTuple):
    """The record of an adaptation, and the evaluation of the delivered head of each line of its table."""

    record: AdaptRecord
    evaluations: list[EvaluationRecord]


def score_adaptation(
    adaptation: Adaptation,
    *,
    model_name: str,
    class_names: Sequence[str] | None = None,
    data_facts: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    command: Sequence[str] = (),
    wall_seconds: float | None = None,
    settings: EvaluateConfig = _DEFAULT,
) -> ScoredAdaptation:
    """Evaluate every head of the comparison table once, on the test rows, or else on those of validation.

    The scores of the record are read from these evaluations; those of votes count each row's votes by their
    shares, while an evaluation takes the class of the most votes, the first of several.

    Args:
        adaptation: Result of `adapt` or `refit`.
        model_name: Name of what was adapted.
        class_names: One name for each class; "0", "1", ... by default.
        data_facts: Description of the data, any JSON values.
        config: The whole configuration, where there is more than the options of the adaptation.
        command: Command line that made the adaptation.
        wall_seconds: Duration of all of it; by default the sum of what the adaptation measured.
        settings: Settings of the evaluations. Heads of other seeds than the delivered one are
            evaluated without intervals.
    """
    classes = adaptation.classes
    if class_names is not None and len(class_names) != classes:
        raise fail("report", f"`class_names` must be {classes}, one a class, got {len(class_names)}.")
    names = [f"{index}" for index in range(classes)] if class_names is None else [*map(str, class_names)]
    features, scored_on = _scored_rows(adaptation.sets)
    scored, evaluations, areas = [], [], PairedAurocs(settings.level)
    for line in _lines(adaptation):
        seed = adaptation.chosen.candidate.seed
        delivered = next((one for one in line.heads if one.candidate.seed == seed), line.heads[0])
        for head in line.heads:
            how, kept = (settings, areas) if head is delivered else (_VALUES_ONLY, None)
            scores, evaluation = _scored_head(head, line, model_name, scored_on, names, how, kept)
            scored.append(scores)
            if head is delivered:
                evaluations.append(evaluation)
    spent = sum(adaptation.seconds.values()) if wall_seconds is None else wall_seconds
    label, nll, excess, error = adaptation.best
    record = AdaptRecord(
        model=model_name,
        head=_head(adaptation),
        labels=adaptation.labels,
        classes=classes,
        class_names=names,
        tried=[_tried(head) for head in adaptation.fitted],
        chosen=adaptation.chosen.candidate.name,
        label=adaptation.label,
        best=BestRecord(label, nll, excess, _finite(error)),
        verdict=VerdictRecord(**plain(adaptation.verdict._asdict())),
        scored_on=scored_on,
        targets="votes" if _is_votes(features) else "labels",
        scored=scored,
        risk_thresholds=_risk_thresholds(adaptation),
        batchnorm=_batchnorm(adaptation.batchnorm),
        notes=list(adaptation.notes),
        data=plain(dict(data_facts or {}), _described),
        config=plain(dict(config or {}), _described),
        features=_facts(adaptation.sets),
        feature_detection=feature_detections(adaptation.sets, features, settings),
        vote_scale=_vote_scale(adaptation),
        adapt_config=plain(adaptation.adapt_config),
        seconds={name: float(value) for name, value in adaptation.seconds.items()},
        command=list(command),
        **provenance(float(spent), "beliefmatch", "torch", "numpy", torch_threads=torch.get_num_threads()),
    )
    return ScoredAdaptation(record, areas.with_differences(evaluations))


# Which heads are scored, and on which rows.


class _Line(NamedTuple):
    """A line of the comparison table, and what its heads see of the data."""

    label: str
    heads: Sequence[FittedHead]
    features: Features
    ood: Mapping[str, Features]


def _lines(adaptation: Adaptation) -> list[_Line]:
    """The lines of the table; at the end the network with trained BatchNorm layers, if it has such."""
    sets, batchnorm = adaptation.sets, adaptation.batchnorm
    features = _scored_rows(sets)[0]
    made = [_Line(label, heads, features, sets.ood) for label, heads in adaptation.table.items()]
    if batchnorm is not None and batchnorm.is_taken:
        own = batchnorm.validation if batchnorm.test is None else batchnorm.test
        made.append(_Line(BATCHNORM_LABEL, [batchnorm.head], own, batchnorm.ood))
    return made


def _scored_rows(sets: FeatureSets) -> tuple[Features, str]:
    features, name = (sets.validation, "validation") if sets.test is None else (sets.test, "test")
    if not len(scorable(features)):
        raise fail("adapt", f"`{name}` must have rows with a class or votes, got none.")
    return features, name


def _is_votes(features: Features) -> bool:
    """Whether rows have counts of several classes rather than a class."""
    return features.targets.dim() == 2


# The scores of one head.


def _scored_head(
    head: FittedHead,
    line: _Line,
    model_name: str,
    scored_on: str,
    class_names: Sequence[str],
    settings: EvaluateConfig,
    areas: PairedAurocs | None,
) -> tuple[ScoredHead, EvaluationRecord]:
    features = line.features
    predictions, has_belief = _predictions(head, features, f"{model_name}, {scored_on}", scorable(features))
    by_votes = kl = None
    if _is_votes(features):
        counts = predictions.targets
        assert counts is not None
        by_votes, kl = _vote_scores(predictions, counts)
        majority = {"targets": "the class of the most votes"}
        predictions = dataclasses.replace(predictions, targets=counts.argmax(1), recognised=majority)
    ood = {
        name: _predictions(head, rows, f"{model_name}, {name}", torch.arange(len(rows)))[0]
        for name, rows in line.ood.items()
    }
    made = evaluate(
        predictions,
        name=line.label,
        class_names=class_names,
        ood=ood,
        settings=settings,
        has_belief=has_belief,
        areas=areas,
    )
    extra = ", BatchNorm trained" if line.label == BATCHNORM_LABEL else ""
    scored = ScoredHead(
        label=line.label,
        name=f"{head.candidate.name}{extra}",
        seed=head.candidate.seed,
        options=plain(dict(head.candidate.options)),
        converged=head.converged,
        has_belief=has_belief,
        scores=by_votes or scores_of(made),
        kl=kl,
        ood=[*map(ood_scores, made.ood)],
    )
    return scored, made


def _predictions(
    head: FittedHead, features: Features, source: str, indices: Tensor
) -> tuple[Predictions, bool]:
    """`stored_predictions` of these rows, or of evenly spaced ones of them."""
    every = -(-len(indices) * len(head.bias) // MAX_NUMBERS)
    thinned = f"one row in {every} of {source}" if every > 1 else source
    path = Path(f"features of {thinned}: {head.candidate.name}")
    return stored_predictions(head, features, indices[::every], path=path)


def _vote_scores(predictions: Predictions, counts: Tensor) -> tuple[Scores, float | None]:
    """The expectation of each score over one vote drawn from the row's, and KL(shares ‖ probabilities)."""
    columns = []
    step = max(1, _NUMBERS // counts.shape[1])
    for values, some in zip(predictions.values.split(step), counts.split(step), strict=True):
        logs = values.log_softmax(1) if predictions.kind == "logits" else values.log()
        shares, probs = some.double() / some.double().sum(1, keepdim=True), logs.exp()
        nll, confidence, hits = row_scores(logs, some)
        brier = probs.square().sum(1) - 2 * (probs * shares).sum(1) + 1
        columns.append((nll, confidence, hits, brier, nll - torch.special.entr(shares).sum(1)))
    nll, confidence, hits, brier, kl = (torch.cat(parts) for parts in zip(*columns, strict=True))
    scores = Scores(
        examples=len(hits),
        error=(1 - hits).mean().item(),
        nll=_finite(nll.mean().item()),
        brier=brier.mean().item(),
        ece=calibration_error(bins_of(confidence, hits, _DEFAULT.n_bins, "width")),
        mean_confidence=confidence.mean().item(),
    )
    return scores, _finite(kl.mean().item())


# The other parts of the record.


def _risk_thresholds(adaptation: Adaptation) -> list[RiskThresholdCheck]:
    """As computed on validation rows, with their coverage and error on test rows, both by `answers`."""
    batchnorm = adaptation.batchnorm
    head, test = adaptation.chosen, adaptation.sets.test
    if batchnorm is not None and batchnorm.is_taken:
        head, test = batchnorm.head, batchnorm.test
    on_test = answers(head, test) if test is not None and adaptation.risk_thresholds else None
    made = []
    for one in adaptation.risk_thresholds:
        threshold = None if one.threshold is None else max(one.threshold, 0.0)
        coverage = risk = None
        if on_test is not None and threshold is not None:
            confidence, correct = on_test
            answered = confidence >= threshold
            coverage = answered.double().mean().item()
            risk = 1 - correct[answered].double().mean().item() if coverage else None
        bound = _finite(one.bound)
        made.append(RiskThresholdCheck(one.risk, one.delta, threshold, one.coverage, bound, coverage, risk))
    return made


def _vote_scale(adaptation: Adaptation) -> VoteScaleRecord | None:
    """The scale, with the likelihood of the votes of the scored rows without and with it."""
    found = adaptation.vote_scale
    if found is None or found.scale is None:
        return None if found is None else VoteScaleRecord(**found._asdict())
    line = next(
        one for one in reversed(_lines(adaptation)) if one.label in (BATCHNORM_LABEL, adaptation.label)
    )
    head = adaptation.chosen if line.label == adaptation.label else line.heads[0]
    indices = vote_examples(line.features, least=1) if _is_votes(line.features) else None
    if indices is None or not len(indices):
        return VoteScaleRecord(**found._asdict())
    log_alpha, votes = log_alpha_of(head, line.features, indices)
    nats = [
        -votes_log_likelihood(log_alpha + shift, votes, reduction="sum").item() / votes.double().sum().item()
        for shift in (-math.log(found.scale), 0.0)
    ]
    return VoteScaleRecord(**found._asdict(), nll_before=nats[0], nll=nats[1])


def _head(adaptation: Adaptation) -> HeadFacts | None:
    head = adaptation.head
    return None if head is None else HeadFacts(head.name, head.in_features, head.out_features, str(head.kind))


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
    """At most `_MAX_POINTS` points, evenly, with both ends."""
    last, many = len(curve) - 1, min(len(curve), _MAX_POINTS)
    kept = sorted({round(index * last / max(many - 1, 1)) for index in range(many)})
    points = [curve[index] for index in kept]
    return ValidationCurve([point.epoch for point in points], [_finite(point.nll) for point in points])


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


def _facts(sets: FeatureSets) -> list[FeatureFacts]:
    named = {"train": sets.train, "validation": sets.validation, "test": sets.test, **sets.ood}
    return [
        FeatureFacts(name, len(one), one.width, int(one.rows.nbytes))
        for name, one in named.items()
        if one is not None
    ]


def _described(value: Any) -> Any:
    """Of a tensor its shape, of any other value its text."""
    return {"shape": [*value.shape]} if isinstance(value, Tensor) else f"{value}"


def _finite(value: float | None) -> float | None:
    """A number, or None in place of NaN and infinity, which JSON lacks."""
    return float(value) if value is not None and math.isfinite(value) else None
