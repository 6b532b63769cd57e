"""The parts of the page: plots with their words and numbers, risk thresholds, confusions, provenance."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from beliefmatch.experiments.evaluation_record import Curve, EvaluationRecord, RiskThresholdRecord
from beliefmatch.report import page_classes as classes
from beliefmatch.report import page_words as words
from beliefmatch.report.evaluation_classes import (
    MOST_CLASSES,
    badly_calibrated,
    class_errors,
    often_mistaken,
)
from beliefmatch.report.evaluation_scores import detection_of, headline_score, score_names
from beliefmatch.report.evaluation_text import class_labels, ood_names
from beliefmatch.report.page_plots import (
    confusion_plot,
    entropy_plot,
    risk_coverage_plot,
    roc_plot,
)
from beliefmatch.report.page_reliability import reliability_plot
from beliefmatch.report.plot_parts import Plot

__all__ = ["Card", "RiskThresholdRow", "cards", "confusions", "risk_thresholds"]

_LARGEST_TABLE = 16  # classes of a confusion matrix that is written out
_LARGEST_MAP = 100  # and of one that is drawn
_MOST_PAIRS = 10


@dataclass(frozen=True)
class Card:
    """A plot with its title, what it shows in words, and its numbers."""

    id: str
    title: str
    alt: str
    plot: Plot
    table: words.DataTable | None
    model: int | None = None
    """The one model that the whole card is about."""
    alts: dict[str, str] = field(default_factory=dict)
    """Words for each choice, where the reader can choose what the plot shows."""


def cards(models: Sequence[EvaluationRecord]) -> dict[str, list[Card]]:
    """Every plot of the page, by its section."""
    reliability = Card(
        "reliability",
        "",
        words.reliability_words(models),
        reliability_plot(models),
        words.reliability_table(models),
    )
    risk = Card("risk", "", words.risk_words(models), risk_coverage_plot(models), words.risk_table(models))
    return {
        "reliability": [reliability],
        "entropy": list(_entropy_cards(models)),
        "roc": list(_roc_cards(models)),
        "risk": [risk],
        "classes": list(_class_cards(models)),
        "confusion": list(_confusion_cards(models)),
    }


def _entropy_cards(models: Sequence[EvaluationRecord]) -> Iterator[Card]:
    """One card a model and OOD set; `title` is the set's name."""
    for place, name in enumerate(ood_names(models)):
        strange = [_density(model, name) for model in models]
        top = max([y for c in (*strange, *(m.entropy for m in models)) if c for y in c.y], default=1.0)
        for index, model in enumerate(models):
            yield Card(
                f"entropy-{place}-{index}",
                name,
                words.entropy_words(model, name, strange[index]),
                entropy_plot(models, index, name, strange[index], top),
                words.entropy_table(model, index, name, strange[index]),
                model=index,
            )


def _density(model: EvaluationRecord, name: str) -> Curve | None:
    return next((ood.entropy for ood in model.ood if ood.name == name), None)


def _roc_cards(models: Sequence[EvaluationRecord]) -> Iterator[Card]:
    scores, headline = score_names(models), headline_score(models)
    for place, name in enumerate([None, *ood_names(models)]):
        found = [detection_of(model, name, score) for model in models for score in scores]
        if any(detection and detection.roc.x for detection in found):
            alts = {score: words.roc_words(models, name, score) for score in scores}
            title = "Wrong predictions" if name is None else name
            table = words.roc_table(models, name, scores)
            yield Card(f"roc-{place}", title, alts[headline], roc_plot(models, name), table, alts=alts)


def _class_cards(models: Sequence[EvaluationRecord]) -> Iterator[Card]:
    """Errors and calibration errors; of all classes in order of their error as well, where they are many."""
    mistaken, uncalibrated = often_mistaken(models), badly_calibrated(models)
    if mistaken:
        about = classes.error_words(models, len(mistaken)), classes.error_plot(models, mistaken)
        yield Card("class-errors", "Error", *about, classes.error_table(models, mistaken))
    if uncalibrated:
        about = (
            classes.calibration_words(models, len(uncalibrated)),
            classes.calibration_plot(models, uncalibrated),
        )
        table = classes.calibration_table(models, uncalibrated)
        yield Card("classes", "Calibration error", *about, table)
    if max((len(class_errors(model)) for model in models), default=0) > MOST_CLASSES:
        about = classes.rank_words(models), classes.rank_plot(models), classes.rank_table(models)
        yield Card("class-ranks", "Error of all classes", *about)


def _confusion_cards(models: Sequence[EvaluationRecord]) -> Iterator[Card]:
    for index, model in enumerate(models):
        matrix = model.confusion.matrix
        if matrix and _LARGEST_TABLE < len(matrix) <= _LARGEST_MAP:
            plot = confusion_plot(model, matrix, index)
            yield Card(f"confusion-{index}", "", words.confusion_words(model), plot, None, model=index)


class RiskThresholdRow(NamedTuple):
    """A risk that must not be exceeded, and the threshold of each model; None where it was not requested."""

    risk: float
    delta: float
    by_model: list[RiskThresholdRecord | None]


def risk_thresholds(models: Sequence[EvaluationRecord]) -> list[RiskThresholdRow]:
    """By risk, the smallest first."""
    requested = sorted({(found.risk, found.delta) for model in models for found in model.risk_thresholds})
    return [
        RiskThresholdRow(
            risk,
            delta,
            [
                next((p for p in model.risk_thresholds if (p.risk, p.delta) == (risk, delta)), None)
                for model in models
            ],
        )
        for risk, delta in requested
    ]


class ConfusionTable(NamedTuple):
    """Rows of (count, share of the row), if the classes are few; and the most frequent mistakes."""

    rows: list[list[tuple[int, float]]] | None
    card: bool
    pairs: list[list[int]]
    labels: list[str]


def confusions(models: Sequence[EvaluationRecord]) -> list[ConfusionTable]:
    """For each model, what the page shows of its confusion besides a plot."""
    found = []
    for model in models:
        matrix = model.confusion.matrix
        rows = None
        if matrix and len(matrix) <= _LARGEST_TABLE:
            rows = [[(count, count / max(sum(row), 1)) for count in row] for row in matrix]
        drawn = bool(matrix) and _LARGEST_TABLE < len(matrix or []) <= _LARGEST_MAP
        found.append(
            ConfusionTable(rows, drawn, model.confusion.pairs[:_MOST_PAIRS], class_labels(model, 36))
        )
    return found
