"""Evaluate models by their predictions: scores with intervals, calibration, detection of OOD input."""

import hashlib
import math
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from beliefmatch._config import plain
from beliefmatch._environment import provenance
from beliefmatch._utils import OnProgress
from beliefmatch._validate import fail, level_of_caller, naming_arguments
from beliefmatch.data.formats import open_arrays
from beliefmatch.data.predictions import FieldNames, Predictions, are_distributions, read_predictions
from beliefmatch.experiments.evaluate_config import EvaluateConfig, ModelFiles, conventions
from beliefmatch.experiments.evaluation_parts import (
    class_scores,
    confusion,
    entropy_density,
    examples,
    prediction_sets,
    reliability,
    thinned,
)
from beliefmatch.experiments.evaluation_record import (
    PAIRED,
    BrierShares,
    Curve,
    Detection,
    Draws,
    EvaluationRecord,
    Number,
    OODSet,
    RiskThresholdRecord,
)
from beliefmatch.experiments.executors import Resources, Task, Workers, run_tasks
from beliefmatch.experiments.paired_aurocs import PairedAurocs
from beliefmatch.experiments.records import OODScores, Scores
from beliefmatch.metrics import (
    SCORES,
    ClassBins,
    Interval,
    Outcomes,
    ReliabilityBins,
    binomial_interval,
    brier_parts_of,
    calibration_error,
    class_bins,
    coverage_at_risk,
    detection_intervals,
    outcomes,
    reliability_bins,
    risk_coverage,
    roc,
)
from beliefmatch.metrics.intervals import enough_resamples, intervals_of, resample_outcomes

__all__ = [
    "BELIEF_SCORES",
    "STEPS",
    "ModelPredictions",
    "PredictionFiles",
    "evaluate",
    "evaluate_models",
    "headline_scores",
    "number_with_interval",
    "ood_scores",
    "score_columns",
    "scores_from",
    "scores_of",
]

STEPS = 2
"""Calls of `on_step` for one model; one more for each OOD set."""

BELIEF_SCORES = frozenset({"mutual_information", "differential_entropy"})
"""Scores of a Dirichlet belief, which mean nothing where the logits are no log-concentrations."""

_DEFAULT = EvaluateConfig()
_ORDER = (
    "error", "top_k_error", "nll", "brier",
    "ece", "mce", "adaptive_ece", "classwise_ece", "debiased_ece", "overconfidence",
    "aurc", "excess_aurc", "mean_confidence", "mean_entropy",
)  # fmt: skip


def evaluate(
    predictions: Predictions,
    *,
    name: str | None = None,
    class_names: Sequence[str] | None = None,
    ood: Mapping[str, Predictions] | None = None,
    settings: EvaluateConfig = _DEFAULT,
    has_belief: bool = True,
    areas: PairedAurocs | None = None,
    on_step: Callable[[str], None] | None = None,
) -> EvaluationRecord:
    """Evaluate one model: error, calibration, selective prediction, detection of mistakes and of OOD input.

    Args:
        predictions: predictions for labelled examples.
        name: name of the model; that of the file, or "model", if not given.
        class_names: one for each class; "0", "1", ... if not given.
        ood: predictions of the same model for examples that belong to no class, by the name of the set.
        settings: bins, resamples, seed and the like.
        has_belief: whether logits may be log-concentrations; without `BELIEF_SCORES` where they are not.
        areas: keeps what comparing the AUROC of several models needs; its `with_differences` is to be
            called with all records.
        on_step: called after each step with its description.

    Returns:
        The record, the same for the same predictions, settings and versions but for its times.
    """
    start, ood, announce = time.perf_counter(), ood or {}, on_step or (lambda step: None)
    if name is None:
        name = "model" if predictions.path is None else _text(predictions.path.with_suffix("").name)
    count, classes = predictions.values.shape
    names = [f"{index}" for index in range(classes)] if class_names is None else list(class_names)
    targets = _checked_targets(predictions, names, ood)
    given: dict[str, Any] = {predictions.kind: predictions.values}
    seen = outcomes(targets, **given)
    by_width, by_mass = (
        reliability_bins(seen.confidence, seen.correct, n_bins=settings.n_bins, scheme=scheme)
        for scheme in ("width", "mass")
    )
    by_class = class_bins(targets, n_bins=settings.n_bins, **given)
    scores, draws = _scores(seen, by_width, by_class, settings)
    mistakes, every = (~seen.correct).nonzero()[:, 0], torch.arange(count)
    announce(f"{name}: scores")

    columns = score_columns(predictions, has_belief=has_belief)
    if areas is not None:
        areas.start_model()
    kept_areas = areas if settings.resamples else None  # without intervals there are no differences either
    misclassification = _misclassification(columns, seen.correct, settings, kept_areas)
    announce(f"{name}: mistakes")
    sets = []
    for title, others in ood.items():
        sets.append(_ood_set(title, others, columns, settings, kept_areas, has_belief=has_belief))
        announce(f"{name}: {title}")

    return EvaluationRecord(
        name=name,
        source=_source(predictions, name),
        kind=predictions.kind,
        examples=count,
        class_names=names,
        scores=scores,
        draws=draws,
        brier_shares=BrierShares(*brier_parts_of(by_class, seen.brier.mean().item())),
        reliability=reliability(by_width),
        reliability_by_mass=reliability(by_mass),
        entropy=entropy_density(seen.entropy, classes),
        misclassification=misclassification,
        ood=sets,
        risk_coverage=thinned(*risk_coverage(seen.confidence, seen.correct)),
        prediction_sets=list(
            prediction_sets(targets, **given, coverages=settings.coverages, seed=settings.seed)
        ),
        risk_thresholds=[_risk_threshold(seen, risk, settings.delta) for risk in settings.risks],
        confusion=confusion(seen, classes),
        classes=class_scores(seen, by_class),
        mistakes=examples(seen, predictions.images, seen.confidence, mistakes, settings.shown),
        doubtful=examples(seen, predictions.images, seen.entropy, every, settings.shown),
        conventions=conventions(settings),
        settings={
            **plain(settings),
            "resamples_drawn": enough_resamples(count, settings.resamples) if settings.resamples else 0,
            "targets_sha256": hashlib.sha256(
                targets.contiguous().numpy().astype("<i8").tobytes()
            ).hexdigest(),
            "fields": predictions.recognised,
            **({"logits_are_distributions": True} if _holds_distributions_as_logits(predictions) else {}),
            "ood_fields": {title: others.recognised for title, others in ood.items()},
        },
        **provenance(
            time.perf_counter() - start,
            "beliefmatch",
            "torch",
            "numpy",
            torch_threads=torch.get_num_threads(),
        ),
    )


def headline_scores(seen: Outcomes, bins: ReliabilityBins) -> dict[str, float]:
    """The scores shown first in every record, given the bins of equal width; NLL may be infinite."""
    return {
        "error": (~seen.correct).double().mean().item(),
        "nll": seen.nll.mean().item(),
        "brier": seen.brier.mean().item(),
        "ece": calibration_error(bins),
        "mean_confidence": seen.confidence.mean().item(),
    }


def scores_of(evaluation: EvaluationRecord) -> Scores:
    """The headline scores of an evaluation."""
    return scores_from(evaluation.examples, {key: one.value for key, one in evaluation.scores.items()})


def scores_from(examples: int, values: Mapping[str, Any]) -> Scores:
    """The headline scores by their names; an infinite NLL becomes None."""
    nll = values["nll"]
    return Scores(
        examples=examples,
        error=values["error"],
        nll=nll if nll is not None and math.isfinite(nll) else None,
        brier=values["brier"],
        ece=values["ece"],
        mean_confidence=values["mean_confidence"],
    )


def ood_scores(evaluated: OODSet) -> OODScores:
    """AUROC and FPR95 of an evaluated OOD set by every score."""
    areas: dict[str, Any] = {one.score: one.auroc.value for one in evaluated.detections}
    rates: dict[str, Any] = {one.score: one.fpr95.value for one in evaluated.detections}
    return OODScores(evaluated.name, evaluated.examples, areas, rates, evaluated.mean_confidence)


def score_columns(predictions: Predictions, *, has_belief: bool = True) -> dict[str, Tensor]:
    """Every score of `metrics.SCORES` that the predictions allow, by its name; some need logits, or a belief.

    Without "precision", which is the energy under a second name. Probabilities may come with their mutual
    information, of dropout masks or members.
    """
    given: dict[str, Any] = {predictions.kind: predictions.values}
    left_out = {"precision"} if has_belief else {"precision", *BELIEF_SCORES}
    columns: dict[str, Tensor] = {}
    for name, score in SCORES.items():
        if name == "mutual_information" and predictions.mutual_information is not None:
            columns[name] = predictions.mutual_information
        elif name not in left_out and (predictions.kind == "logits" or not score.needs_logits):
            columns[name] = score(**given)
    return columns


def _text(path: str | Path) -> str:
    """A file's name as text that JSON can hold, whatever bytes it is made of."""
    return os.fsencode(path).decode("utf-8", "replace")


def _source(predictions: Predictions, name: str) -> str:
    """Where predictions are from; no two models have the same."""
    return f"{name} (in memory)" if predictions.path is None else _text(predictions.path)


def _checked_targets(predictions: Predictions, names: list[str], ood: Mapping[str, Predictions]) -> Tensor:
    """The targets, after checking that all predictions have the same classes."""
    classes, of = predictions.values.shape[1], "" if predictions.path is None else f" of {predictions.path}"
    if predictions.targets is None:
        raise fail("evaluate", f"`predictions` must have targets, got none{of}.")
    if len(names) != classes:
        expected = f"one for each of the {classes} classes{of}"
        raise fail("evaluate", f"`class_names` must be {expected}, got {len(names)}.")
    for title, others in ood.items():
        if others.values.shape[1] != classes:
            received = others.values.shape[1]
            raise fail(
                "evaluate", f"`ood` set {title!r} must have the {classes} classes{of}, got {received}."
            )
    return predictions.targets


def _scores(
    seen: Outcomes, by_width: ReliabilityBins, by_class: ClassBins, settings: EvaluateConfig
) -> tuple[dict[str, Number], Draws | None]:
    """Every metric in the order of records, and the draws of those by which models are compared."""
    count, classes = len(seen.correct), len(by_class.count)
    drawn = resample_outcomes(
        seen,
        top_k=settings.top_k,
        n_bins=settings.n_bins,
        resamples=max(1, settings.resamples),
        seed=settings.seed,
    )
    values = {**drawn.values, **headline_scores(seen, by_width)}
    intervals = intervals_of(drawn, settings.level)
    scores = {key: _score(key, value, intervals[key], count, settings) for key, value in values.items()}
    scores["classwise_ece"] = Number(by_class.errors.mean().item())
    if settings.top_k >= classes:
        scores["top_k_error"] = Number(None, why=f"there are no more than {settings.top_k} classes")
    draws = None
    if settings.resamples and count > 1:
        kept = [key for key in PAIRED if math.isfinite(values[key])]
        draws = Draws(drawn.rows_sha256, {key: drawn.draws[key].tolist() for key in kept})
    return {key: scores[key] for key in _ORDER}, draws


def _score(key: str, value: float, interval: Interval, count: int, settings: EvaluateConfig) -> Number:
    """A metric with its interval: an exact one of rates, else the bootstrap's, which one example lacks."""
    if key == "nll" and math.isinf(value):
        return Number(None, why="infinite: a class came true that was given probability 0", is_infinite=True)
    if key in ("error", "top_k_error") and settings.resamples:
        return Number(value, *binomial_interval(round(value * count), count, level=settings.level))
    return Number(value) if count == 1 else number_with_interval(interval, settings, value=value)


def number_with_interval(
    interval: Interval, settings: EvaluateConfig, *, value: float | None = None
) -> Number:
    """A value with the ends of its interval; without them where no intervals are wanted.

    A value that was computed otherwise than that of the interval may differ from it by rounding; then the
    interval is widened to hold it.
    """
    value = interval.value if value is None else value
    if not math.isfinite(value):
        return Number(None, why=f"not finite: {value}")
    if not settings.resamples or not all(map(math.isfinite, interval)):
        return Number(value)
    return Number(value, min(interval.low, value), max(interval.high, value))


def _risk_threshold(seen: Outcomes, risk: float, delta: float) -> RiskThresholdRecord:
    found = coverage_at_risk(seen.confidence, seen.correct, risk=risk, delta=delta)
    if not found.coverage:
        return RiskThresholdRecord(risk, delta, threshold=None, coverage=0.0, observed_risk=None, bound=None)
    return RiskThresholdRecord(risk, delta, found.threshold, found.coverage, found.risk, found.bound)


def _misclassification(
    columns: Mapping[str, Tensor], correct: Tensor, settings: EvaluateConfig, areas: PairedAurocs | None
) -> list[Detection]:
    """How well each score detects wrong predictions."""
    if areas is not None:
        for key, column in columns.items():
            areas.add(None, key, column, ~correct)
    right, wrong = (
        {key: column[chosen] for key, column in columns.items()} for chosen in (correct, ~correct)
    )
    return _detections(right, wrong, settings)


def _ood_set(
    name: str,
    predictions: Predictions,
    in_distribution: Mapping[str, Tensor],
    settings: EvaluateConfig,
    areas: PairedAurocs | None,
    *,
    has_belief: bool,
) -> OODSet:
    ood = score_columns(predictions, has_belief=has_belief)
    if areas is not None:
        for score in in_distribution.keys() & ood.keys():
            sides = in_distribution[score], ood[score]
            is_ood = torch.arange(sum(map(len, sides))) >= len(sides[0])
            areas.add(name, score, torch.cat(sides), is_ood)
    return OODSet(
        name=name,
        source=_source(predictions, name),
        examples=len(predictions.values),
        mean_confidence=1 - ood["confidence"].mean().item(),
        entropy=entropy_density(ood["entropy"], predictions.values.shape[1]),
        detections=_detections(in_distribution, ood, settings),
    )


def _detections(
    in_distribution: Mapping[str, Tensor], ood: Mapping[str, Tensor], settings: EvaluateConfig
) -> list[Detection]:
    """How well each score that both sides have detects OOD examples, or mistakes."""
    both = [name for name in in_distribution if name in ood]
    return [_detection(name, in_distribution[name], ood[name], settings) for name in both]


def _detection(name: str, in_distribution: Tensor, ood: Tensor, settings: EvaluateConfig) -> Detection:
    if not len(in_distribution) or not len(ood):
        why = "every prediction is right" if len(in_distribution) else "every prediction is wrong"
        nothing = Number(None, why=why)
        return Detection(name, nothing, nothing, nothing, nothing, Curve([], []))
    found = detection_intervals(in_distribution, ood, level=settings.level, seed=settings.seed)
    flagged_id, flagged_ood = roc(in_distribution, ood)
    areas: dict[str, Any] = {key: number_with_interval(one, settings) for key, one in found.items()}
    return Detection(score=name, roc=Curve(flagged_id.tolist(), flagged_ood.tolist()), **areas)


class ModelPredictions(NamedTuple):
    """Predictions of one model for labelled and for OOD examples, in memory."""

    name: str
    predictions: Predictions
    ood: Mapping[str, Predictions]
    """By the name of the OOD set."""

    @property
    def steps(self) -> int:
        """Calls of `on_step` until the model is evaluated."""
        return STEPS + len(self.ood)

    def read(self, on_step: Callable[[str], None]) -> "ModelPredictions":
        """The predictions, which are here already."""
        return self


class PredictionFiles:
    """Predictions of one model in files, which `read` reads; files of an unknown form are refused at once.

    Args:
        model: The files.
        names: What their arrays are called.
        class_names: One for each class.
        targets_file: The file of the targets, if it is another one.
    """

    def __init__(
        self,
        model: ModelFiles,
        *,
        names: FieldNames,
        class_names: Sequence[str] | None = None,
        targets_file: str | Path | None = None,
    ) -> None:
        self.name, self._files, self._names = model.name, model, names
        self._class_names, self._targets_file = class_names, targets_file
        with naming_arguments("evaluate", path="models"):
            open_arrays(model.path, caller="evaluate")
        with naming_arguments("evaluate", path="ood"):
            for path in model.ood.values():
                open_arrays(path, caller="evaluate")
        if targets_file is not None:
            with naming_arguments("evaluate", path="targets_file"):
                open_arrays(targets_file, caller="evaluate")

    @property
    def steps(self) -> int:
        """Calls of `on_step` until the model is evaluated."""
        return STEPS + 1 + 2 * len(self._files.ood)

    def read(self, on_step: Callable[[str], None]) -> ModelPredictions:
        """Read all files; a ValueError names in one line what is wrong with them."""
        with naming_arguments("evaluate", path="models"):
            found = read_predictions(
                self._files.path,
                names=self._names,
                class_names=self._class_names,
                targets_file=self._targets_file,
            )
        on_step(f"{self.name}: read")
        ood = {}
        for title, path in self._files.ood.items():
            classes = self._class_names or found.class_names
            with naming_arguments("evaluate", path="ood"):
                ood[title] = read_predictions(path, names=self._names, class_names=classes, labelled=False)
            on_step(f"{self.name}: read {title}")
        return ModelPredictions(self.name, found, ood)


def evaluate_models(
    models: Sequence[ModelPredictions | PredictionFiles],
    *,
    settings: EvaluateConfig = _DEFAULT,
    class_names: Sequence[str] | None = None,
    on_step: Callable[[str], None] = lambda step: None,
    reading: Callable[[], AbstractContextManager[None]] = nullcontext,
    workers: Workers | None = None,
) -> list[EvaluationRecord]:
    """Evaluate models side by side, one at a time so that only one's files are in memory.

    Args:
        models: Their predictions; `read` is called when it is their turn.
        settings: Bins, resamples, seed and the like.
        class_names: One for each class; by default those of the predictions.
        on_step: Called after each step with its description, as often as the `steps` of all models.
        reading: Makes a context in which predictions are read and checked, to handle errors of users.
        workers: Where several models are read and evaluated at a time, if they are on other machines.

    Returns:
        One record for each model, with the differences of their AUROC.
    """
    if workers is not None and workers.is_remote and len(models) > 1:
        return _evaluate_on(workers, models, settings, class_names, on_step, reading)
    areas, records, first = PairedAurocs(settings.level), [], None
    for model in models:
        with reading():
            given = model.read(on_step)
            first = first or _without_values(given.predictions)
            _require_same_classes(given.predictions, f"model {given.name!r}", first)
            for title, others in given.ood.items():
                _require_same_classes(others, f"OOD set {title!r}", first)
        record = evaluate(
            given.predictions,
            name=given.name,
            class_names=class_names or given.predictions.class_names,
            ood=given.ood,
            settings=settings,
            areas=areas,
            on_step=on_step,
        )
        records.append(record)
    return areas.with_differences(records)


def _evaluate_on(
    workers: Workers,
    models: Sequence[ModelPredictions | PredictionFiles],
    settings: EvaluateConfig,
    class_names: Sequence[str] | None,
    on_step: Callable[[str], None],
    reading: Callable[[], AbstractContextManager[None]],
) -> list[EvaluationRecord]:
    """`evaluate_models` with a task for each model."""
    threads = torch.get_num_threads()  # as many everywhere: sums come out the same
    resources = Resources(cores=threads, are_cores_optional=True)
    tasks = [
        Task(f"evaluate {one.name}", evaluate_alone, (one, settings, class_names, threads), resources)
        for one in models
    ]
    done = [0] * len(models)

    def on_task(index: int, fraction: float, description: str) -> None:
        steps = round(fraction * models[index].steps)
        for _ in range(steps - done[index]):
            on_step(description)
        done[index] = max(steps, done[index])

    areas, records, first = PairedAurocs(settings.level), [], None
    for found in run_tasks(tasks, workers, on_task):
        with reading():
            if isinstance(found, Exception):
                raise found
            record, own_areas, own = found
            first = first or own
            _require_same_classes(own, f"model {record.name!r}", first)
        areas.extend(own_areas)
        records.append(record)
    return areas.with_differences(records)


def evaluate_alone(
    model: ModelPredictions | PredictionFiles,
    settings: EvaluateConfig,
    class_names: Sequence[str] | None,
    threads: int,
    *,
    on_progress: OnProgress,
) -> tuple[EvaluationRecord, PairedAurocs, Predictions] | Exception:
    """One of several models: its record, its areas and what the others are compared with.

    An error about its files is returned: it is the user's, while one that is raised is a bug.
    """
    torch.set_num_threads(threads)
    areas, steps = PairedAurocs(settings.level), 0

    def on_step(description: str) -> None:
        nonlocal steps
        steps += 1
        on_progress(steps / model.steps, description)

    try:
        given = model.read(on_step)
        own = _without_values(given.predictions)
        for title, others in given.ood.items():
            _require_same_classes(others, f"OOD set {title!r}", own)
    except (ValueError, TypeError, ModuleNotFoundError) as error:
        return error
    record = evaluate(
        given.predictions,
        name=given.name,
        class_names=class_names or given.predictions.class_names,
        ood=given.ood,
        settings=settings,
        areas=areas,
        on_step=on_step,
    )
    return record, areas, own


def _without_values(predictions: Predictions) -> Predictions:
    """What the next models are compared with; the values may be large."""
    return replace(predictions, values=predictions.values[:0].clone(), images=None)


def _holds_distributions_as_logits(predictions: Predictions) -> bool:
    return predictions.kind == "logits" and are_distributions(predictions.values)


def _require_same_classes(found: Predictions, what: str, first: Predictions) -> None:
    """All predictions must be of the same classes, and should be of the same examples."""
    classes, expected = found.values.shape[1], first.values.shape[1]
    of, own = ("" if one.path is None else f" in {one.path}" for one in (first, found))
    if classes != expected:
        those = f"the {expected} classes of the first model{of}"
        raise fail("evaluate", f"{what}{own} must have {those}, got {classes}.")
    if found.class_names and first.class_names and found.class_names != first.class_names:
        those = f"the columns of the classes in the order of {first.path or 'the first model'}"
        raise fail("evaluate", f"{what}{own} must have {those}, got {found.class_names}.")
    if first.targets is None or found.targets is None or torch.equal(first.targets, found.targets):
        return
    warnings.warn(
        f"the targets of {found.path} are not those of {first.path}; "
        "the models were scored on different examples.",
        stacklevel=level_of_caller(),
    )
