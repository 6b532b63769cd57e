"""The classes one by one: how often each is mistaken, and which are shown where they are many."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from beliefmatch.experiments.evaluation_record import EvaluationRecord
from beliefmatch.report.evaluation_bins import wilson

__all__ = [
    "MOST_CLASSES",
    "ClassError",
    "badly_calibrated",
    "class_errors",
    "class_heights",
    "counted_label",
    "error_ranks",
    "often_mistaken",
]

MOST_CLASSES = 30
"""In a plot of classes; where there are more, the worst are shown."""
_MOST_RANKS = 500
_OFFSETS = 0.56  # of a row is shared by the marks of the models


class ClassError(NamedTuple):
    """One class of one model; `low` and `high` are Wilson's interval of the error."""

    id: int
    examples: int
    wrong: int
    error: float
    low: float
    high: float


def class_errors(model: EvaluationRecord) -> dict[int, ClassError]:
    """By class, those that came true at least once."""
    return {
        scores.index: ClassError(
            scores.index,
            scores.examples,
            round(scores.error * scores.examples),
            scores.error,
            *wilson(scores.error, scores.examples),
        )
        for scores in model.classes
        if scores.examples and scores.error is not None
    }


def often_mistaken(models: Sequence[EvaluationRecord]) -> list[int]:
    """The classes with the largest mean error of the models first: all if they are few.

    Else those whose error is surely large, by the lower end of its interval, so that a class of a single
    example does not come before all others.
    """
    found = [class_errors(model) for model in models]
    errors, lows = _mean(found, "error"), _mean(found, "low")
    chosen = _largest(lows)[:MOST_CLASSES]
    return sorted(chosen, key=lambda index: -errors[index])  # of like errors the surer one first


def badly_calibrated(models: Sequence[EvaluationRecord]) -> list[int]:
    """The classes as `often_mistaken` orders them if they are few, else those calibrated worst by a model."""
    errors: dict[int, float] = {}
    for scores in (scores for model in models for scores in model.classes):
        errors[scores.index] = max(errors.get(scores.index, 0.0), scores.calibration_error)
    if len(errors) > MOST_CLASSES:
        return _largest(errors)[:MOST_CLASSES]
    return list(dict.fromkeys([*often_mistaken(models), *sorted(errors)]))


def error_ranks(model: EvaluationRecord) -> tuple[list[float], list[float]]:
    """Share of the classes and error of the last of them, the most mistaken first; at most 500 points."""
    errors = sorted((found.error for found in class_errors(model).values()), reverse=True)
    last = len(errors) - 1
    count = min(len(errors), _MOST_RANKS)
    places = [round(place * last / max(count - 1, 1)) for place in range(count)]
    return [(place + 1) / len(errors) for place in places], [errors[place] for place in places]


def counted_label(models: Sequence[EvaluationRecord], index: int, shortened: str) -> str:
    """A class's name with the number of its examples, if all models were scored on as many."""
    counts = {scores.examples for model in models for scores in model.classes if scores.index == index}
    return f"{shortened} ({counts.pop():,})" if len(counts) == 1 else shortened


def class_heights(models: int, index: int, chosen: Sequence[int], shown: Sequence[int]) -> list[float]:
    """Where a model's marks are drawn: the first class on top, the models of a class below each other."""
    rows = {at: len(chosen) - 1 - place for place, at in enumerate(chosen)}
    offset = _OFFSETS * ((models - 1) / 2 - index) / models
    return [rows[at] + offset for at in shown]


def _mean(found: Iterable[Mapping[int, ClassError]], part: str) -> dict[int, float]:
    values: dict[int, list[float]] = {}
    for errors in found:
        for index, error in errors.items():
            values.setdefault(index, []).append(getattr(error, part))
    return {index: fmean(parts) for index, parts in values.items()}


def _largest(values: Mapping[int, float]) -> list[int]:
    return sorted(values, key=lambda index: (-values[index], index))
