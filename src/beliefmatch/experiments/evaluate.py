"""Predictions of one model in, its record out."""

import hashlib
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from beliefmatch._config import plain
from beliefmatch._environment import hardware, versions
from beliefmatch._validate import fail
from beliefmatch.data.predictions import Predictions
from beliefmatch.experiments.conventions import conventions
from beliefmatch.experiments.detections import misclassification, ood_set, score_columns
from beliefmatch.experiments.evaluate_config import EvaluateConfig
from beliefmatch.experiments.evaluation_record import (
    BrierShares,
    Draws,
    EvaluationRecord,
    Number,
    RiskThresholdRecord,
)
from beliefmatch.experiments.evaluation_views import (
    class_scores,
    confusion,
    entropy_density,
    examples,
    numbers,
    reliability,
    thinned,
)
from beliefmatch.metrics import (
    ClassBins,
    Outcomes,
    binomial_interval,
    brier_parts_of,
    class_bins,
    coverage_at_risk,
    outcomes,
    reliability_bins,
    risk_coverage,
)
from beliefmatch.metrics.bootstrap import Resampled, enough_resamples, intervals_of, resample_outcomes

__all__ = ["STEPS", "evaluate"]

STEPS = 2
"""Calls of `on_step` for one model; one more for each OOD set."""

_DEFAULT = EvaluateConfig()


def evaluate(
    predictions: Predictions,
    *,
    name: str | None = None,
    class_names: Sequence[str] | None = None,
    ood: Mapping[str, Predictions] | None = None,
    settings: EvaluateConfig = _DEFAULT,
    on_step: Callable[[str], None] | None = None,
) -> EvaluationRecord:
    """Judge one model by its predictions: how wrong, how overconfident, how blind to OOD input.

    Args:
        predictions: of labelled examples.
        name: of the model; that of the file if not given.
        class_names: one for each class; "0", "1", ... if not given.
        OOD: predictions of the same model for examples that belong to no class, by the name of the set.
        settings: bins, resamples, seed and the like.
        on_step: called after each step with what was done.

    Returns:
        The record, the same for the same predictions, settings and versions but for its times.
    """
    start, ood, announce = time.perf_counter(), ood or {}, on_step or (lambda done: None)
    name = _text(predictions.path.with_suffix("").name) if name is None else name
    classes = predictions.values.shape[1]
    names = [f"{index}" for index in range(classes)] if class_names is None else list(class_names)
    _check(predictions, names, ood)
    scored = _scored(predictions, settings)
    announce(f"{name}: scores")
    in_distribution = score_columns(predictions)
    mistaken = misclassification(in_distribution, scored.pop("correct"), settings)
    announce(f"{name}: mistakes")
    sets = []
    for title, others in ood.items():
        sets.append(ood_set(title, _text(others.path), others, in_distribution, settings))
        announce(f"{name}: {title}")

    return EvaluationRecord(
        name=name,
        source=_text(predictions.path),
        kind=predictions.kind,
        examples=len(predictions.values),
        class_names=names,
        misclassification=mistaken,
        ood=sets,
        **scored,
        **_circumstances(predictions, ood, settings, start),
    )


def _text(path: str | Path) -> str:
    """A file's name as text that JSON can hold, whatever bytes it is made of."""
    return os.fsencode(path).decode("utf-8", "replace")


def _digest(predictions: Predictions) -> str:
    """Of the targets: models of equal ones were scored on the same examples."""
    assert predictions.targets is not None
    return hashlib.sha256(predictions.targets.contiguous().numpy().astype("<i8").tobytes()).hexdigest()


def _check(predictions: Predictions, names: list[str], ood: Mapping[str, Predictions]) -> None:
    classes = predictions.values.shape[1]
    if predictions.targets is None:
        raise fail("evaluate", f"`predictions` must have targets, got {predictions.path} without.")
    if len(names) != classes:
        expected = f"one for each of the {classes} classes of {predictions.path}"
        raise fail("evaluate", f"`class_names` must be {expected}, got {len(names)}.")
    for title, others in ood.items():
        if others.values.shape[1] != classes:
            expected = f"the {classes} classes of {predictions.path}"
            received = f"{others.values.shape[1]} in {others.path}"
            raise fail("evaluate", f"`ood` set {title!r} must have {expected}, got {received}.")


def _scored(predictions: Predictions, settings: EvaluateConfig) -> dict[str, Any]:
    """Those parts of a record that labelled examples tell, and which of them are right."""
    assert predictions.targets is not None  # as checked
    given: dict[str, Any] = {predictions.kind: predictions.values}
    seen = outcomes(predictions.targets, **given)
    bins = class_bins(predictions.targets, n_bins=settings.n_bins, **given)
    classes = predictions.values.shape[1]
    drawn = _resampled(seen, settings)
    wrong, every = (~seen.correct).nonzero()[:, 0], torch.arange(len(seen))
    n_bins, images, shown = settings.n_bins, predictions.images, settings.shown
    by_width = reliability_bins(seen.confidence, seen.correct, n_bins=n_bins)
    by_mass = reliability_bins(seen.confidence, seen.correct, n_bins=n_bins, scheme="mass")
    return {
        "correct": seen.correct,
        "scores": _scores(drawn, bins, settings),
        "draws": _draws(drawn, len(seen), settings),
        "brier_shares": BrierShares(*brier_parts_of(bins, seen.brier.mean().item())),
        "reliability": reliability(by_width),
        "reliability_by_mass": reliability(by_mass),
        "entropy": entropy_density(seen.entropy, classes),
        "risk_coverage": thinned(*risk_coverage(seen.confidence, seen.correct)),
        "risk_thresholds": [_risk_threshold(seen, risk, settings.delta) for risk in settings.risks],
        "confusion": confusion(seen, classes),
        "classes": class_scores(seen, bins),
        "mistakes": examples(seen, images, seen.confidence, wrong, shown),
        "doubtful": examples(seen, images, seen.entropy, every, shown),
    }


def _resampled(seen: Outcomes, settings: EvaluateConfig) -> Resampled:
    return resample_outcomes(
        seen,
        top_k=settings.top_k,
        n_bins=settings.n_bins,
        resamples=max(1, settings.resamples),
        seed=settings.seed,
    )


def _draws(drawn: Resampled, examples: int, settings: EvaluateConfig) -> Draws | None:
    """Those metrics in which models will be compared draw by draw."""
    if not settings.resamples or examples == 1:
        return None
    kept = (key for key in _MAIN if math.isfinite(drawn.values[key]))
    return Draws(drawn.rows_sha256, {key: drawn.draws[key].tolist() for key in kept})


def _scores(drawn: Resampled, bins: ClassBins, settings: EvaluateConfig) -> dict[str, Number]:
    intervals, examples = intervals_of(drawn, settings.level), bins.examples
    found = numbers(intervals, settings)
    if settings.resamples:
        found |= _sure_of_little(found, examples, settings.level)
    if settings.top_k >= len(bins.count):
        found["top_k_error"] = Number(None, why=f"there are no more than {settings.top_k} classes")
    if math.isinf(intervals["nll"].value):
        found["nll"] = Number(None, why="infinite: a class came true that was given probability 0")
    found["classwise_ece"] = Number(bins.errors.mean().item())
    return {key: found[key] for key in _ORDER}


def _sure_of_little(found: Mapping[str, Number], trials: int, level: float) -> dict[str, Number]:
    """Exact intervals of rates; none of other metrics where there is but one example to redraw."""
    made = {
        key: Number(number.value) if trials == 1 else number
        for key, number in found.items()
        if number.value is not None
    }
    for key in ("error", "top_k_error"):
        if (number := made.get(key)) is not None and number.value is not None:
            low, high = binomial_interval(round(number.value * trials), trials, level=level)
            made[key] = Number(number.value, low, high)
    return made


_ORDER = (
    "error", "top_k_error", "nll", "brier",
    "ece", "mce", "adaptive_ece", "classwise_ece", "debiased_ece", "overconfidence",
    "aurc", "excess_aurc", "mean_confidence", "mean_entropy",
)  # fmt: skip


_MAIN = ("error", "nll", "brier", "ece")


def _risk_threshold(seen: Outcomes, risk: float, delta: float) -> RiskThresholdRecord:
    found = coverage_at_risk(seen.confidence, seen.correct, risk=risk, delta=delta)
    if not found.coverage:
        return RiskThresholdRecord(risk, delta, threshold=None, coverage=0.0, observed_risk=None, bound=None)
    return RiskThresholdRecord(risk, delta, found.threshold, found.coverage, found.risk, found.bound)


def _circumstances(
    predictions: Predictions,
    ood: Mapping[str, Predictions],
    settings: EvaluateConfig,
    start: float,
) -> dict[str, Any]:
    """How, where and when."""
    drawn = enough_resamples(len(predictions.values), settings.resamples) if settings.resamples else 0
    return {
        "conventions": conventions(settings),
        "settings": {
            **plain(settings),
            "resamples_drawn": drawn,
            "targets_sha256": _digest(predictions),
            "fields": predictions.recognised,
            "ood_fields": {title: others.recognised for title, others in ood.items()},
        },
        "versions": versions("beliefmatch", "torch", "numpy"),
        "hardware": {**hardware(), "torch_threads": torch.get_num_threads()},
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "wall_seconds": time.perf_counter() - start,
    }
