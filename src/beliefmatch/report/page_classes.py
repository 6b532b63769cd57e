"""The classes on the page: how often each is mistaken and how well calibrated, in plots, words, numbers."""

from collections.abc import Sequence
from statistics import median
from typing import Any

from beliefmatch.experiments.evaluation_record import EvaluationRecord
from beliefmatch.report.evaluation_classes import (
    MOST_CLASSES,
    ClassError,
    badly_calibrated,
    class_errors,
    class_heights,
    counted_label,
    error_ranks,
    often_mistaken,
)
from beliefmatch.report.evaluation_style import look
from beliefmatch.report.evaluation_text import class_label, class_labels, count_text, number_text
from beliefmatch.report.page_words import DataRow, DataTable, percent
from beliefmatch.report.plot_parts import Plot, as_text, axis, layout, line, rounded, stroke

__all__ = [
    "calibration_plot",
    "calibration_table",
    "calibration_words",
    "class_note",
    "error_plot",
    "error_table",
    "error_words",
    "rank_plot",
    "rank_table",
    "rank_words",
]

_INTERVAL = "95\u00a0% interval"


def error_plot(models: Sequence[EvaluationRecord], chosen: Sequence[int]) -> Plot:
    """The error of each chosen class with its interval, one mark a model."""
    hover = "<b>%{fullData.name}</b><br>%{text}<extra></extra>"
    traces, top = [], 0.01
    for index, model in enumerate(models):
        errors = class_errors(model)
        shown = [errors[at] for at in chosen if at in errors]
        top = max([top, *(found.high for found in shown)])
        text = [f"{as_text(class_label(model, found.id))}: {_error_text(found)}" for found in shown]
        places = class_heights(len(models), index, chosen, [found.id for found in shown])
        values, bars = [found.error for found in shown], _bars(shown, look(index).colour)
        traces.append(_marks(model, index, values, places, error_x=bars, text=text, hovertemplate=hover))
    x = axis("error", range=[-0.03 * top, 1.03 * top], tickformat=".0%")
    return Plot(traces, _rows(models, chosen, x))


def _bars(shown: Sequence[ClassError], colour: str) -> dict[str, Any]:
    return {
        "type": "data",
        "symmetric": False,
        "array": rounded([found.high - found.error for found in shown]),
        "arrayminus": rounded([found.error - found.low for found in shown]),
        "thickness": 1,
        "width": 0,
        "color": colour,
    }


def _error_text(found: ClassError) -> str:
    of = f"{found.wrong:,} of {count_text(found.examples, 'example')} wrong"
    return f"{of}, {percent(found.error)}".replace("%", "&#37;")


def calibration_plot(models: Sequence[EvaluationRecord], chosen: Sequence[int]) -> Plot:
    """The calibration error of each chosen class, one mark a model."""
    hover = "<b>%{fullData.name}</b><br>%{text}: %{x:.2%}<extra></extra>"
    traces = []
    for index, model in enumerate(models):
        shown = [scores for scores in model.classes if scores.index in chosen]
        text = [as_text(class_label(model, scores.index)) for scores in shown]
        places = class_heights(len(models), index, chosen, [scores.index for scores in shown])
        values = [scores.calibration_error for scores in shown]
        traces.append(_marks(model, index, values, places, text=text, hovertemplate=hover))
    x = axis("calibration error", rangemode="tozero", tickformat=".2~%")
    return Plot(traces, _rows(models, chosen, x))


def _marks(
    model: EvaluationRecord, index: int, x: Sequence[float], y: Sequence[float], **options: Any
) -> dict[str, Any]:
    marker = {"symbol": look(index).plotly_marker, "size": 8, "color": look(index).colour}
    about = {"name": as_text(model.name), "meta": {"model": index}}
    return line(x, y, mode="markers", marker=marker, **about, **options)


def _rows(models: Sequence[EvaluationRecord], chosen: Sequence[int], x: dict[str, Any]) -> dict[str, Any]:
    """A layout with a line of text for each class."""
    names = class_labels(models[0], 20)
    labels = [counted_label(models, at, as_text(names[at])) for at in chosen]
    ticks = {"tickvals": [len(chosen) - 1 - place for place in range(len(chosen))], "ticktext": labels}
    y = axis("", range=[-0.7, len(chosen) - 0.3], ticks="", showline=False, **ticks)
    height = 70 + len(chosen) * min(16 + 6 * len(models), 40)
    return layout(x, y, height=height, margin={"l": 20, "r": 12, "t": 4, "b": 48})


def rank_plot(models: Sequence[EvaluationRecord]) -> Plot:
    """The errors of all classes in falling order."""
    hover = "<b>%{fullData.name}</b><br>error ≥ %{y:.1%} in %{x:.1%} of the classes<extra></extra>"
    traces = [
        line(
            *error_ranks(model),
            name=as_text(model.name),
            meta={"model": index},
            line=stroke(index),
            hovertemplate=hover,
        )
        for index, model in enumerate(models)
    ]
    x = axis("share of the classes", range=[0, 1.01], tickformat=".0%")
    return Plot(traces, layout(x, axis("error", range=[-0.02, 1.02], tickformat=".0%")))


_MISTAKEN = "whose error is surely largest"
_UNCALIBRATED = "with the largest calibration error"


def _which(models: Sequence[EvaluationRecord], shown: int, worst: str) -> str:
    total = len(models[0].class_names)
    if shown == total:
        return f"{total} classes"
    return f"the {shown} of {total:,} classes {worst if shown == MOST_CLASSES else 'that came true'}"


def class_note(models: Sequence[EvaluationRecord]) -> str:
    """Which classes the plots show, and in what order."""
    mistaken = _which(models, len(often_mistaken(models)), _MISTAKEN)
    uncalibrated = _which(models, len(badly_calibrated(models)), _UNCALIBRATED)
    if len(models[0].class_names) <= MOST_CLASSES:
        return "The classes come in the order of their error, the mean of the models, the largest first."
    return (
        f"Errors of {mistaken}, by the lower end of the interval in the mean of the models; calibration "
        f"errors of {uncalibrated} of any model. The record of each model holds all classes."
    )


def error_words(models: Sequence[EvaluationRecord], shown: int) -> str:
    """The most mistaken class of each model, and the one in the middle."""
    parts = []
    for model in models:
        errors = class_errors(model).values()
        worst = max(errors, key=lambda found: (found.error, found.examples), default=None)
        if worst is not None:
            label, middle = class_label(model, worst.id), median(found.error for found in errors)
            of = count_text(worst.examples, "example")
            parts.append(
                f"{model.name}: worst {label} with {percent(worst.error)} of {of}, median {percent(middle)}"
            )
    return f"Error of {_which(models, shown, _MISTAKEN)}. {'; '.join(parts)}."


def error_table(models: Sequence[EvaluationRecord], chosen: Sequence[int]) -> DataTable:
    """Counts, errors and intervals of the chosen classes."""
    rows = []
    for index, model in enumerate(models):
        errors = class_errors(model)
        for found in (errors[at] for at in chosen if at in errors):
            ends = f"[{number_text(found.low, 1, scale=100)}, {number_text(found.high, 1, scale=100)}]"
            counts = f"{found.examples:,}", f"{found.wrong:,}"
            cells = [model.name, class_label(model, found.id), *counts, percent(found.error), ends]
            rows.append(DataRow(cells, index))
    return DataTable(["model", "class", "examples", "wrong", "error", _INTERVAL], rows)


def rank_words(models: Sequence[EvaluationRecord]) -> str:
    """How many classes are mistaken how often."""
    parts = [
        f"{model.name}: " + ", ".join(f"{share} above {percent(above, 0)}" for above, share in _shares(model))
        for model in models
    ]
    return f"Errors of all classes in falling order; share of the classes. {'; '.join(parts)}."


def rank_table(models: Sequence[EvaluationRecord]) -> DataTable:
    """The share of the classes whose error is larger than a few values."""
    rows = [
        DataRow([model.name, *(share for _, share in _shares(model))], index)
        for index, model in enumerate(models)
    ]
    return DataTable(["model", *(f"error above {percent(above, 0)}" for above in _ABOVE)], rows)


_ABOVE = (0.0, 0.1, 0.25, 0.5, 0.75)


def _shares(model: EvaluationRecord) -> list[tuple[float, str]]:
    errors = [found.error for found in class_errors(model).values()]
    return [
        (above, percent(sum(error > above for error in errors) / max(len(errors), 1))) for above in _ABOVE
    ]


def calibration_words(models: Sequence[EvaluationRecord], shown: int) -> str:
    """The worst calibrated class of each model."""
    parts = []
    for model in models:
        worst = max(model.classes, key=lambda scores: scores.calibration_error, default=None)
        if worst is not None:
            label = class_label(model, worst.index)
            parts.append(f"{model.name}: worst {label} with {percent(worst.calibration_error, 2)}")
    which = _which(models, shown, _UNCALIBRATED)
    return f"Calibration error of {which}. {'; '.join(parts)}."


def calibration_table(models: Sequence[EvaluationRecord], chosen: Sequence[int]) -> DataTable:
    """What is known of the probabilities of the chosen classes."""
    rows = []
    for index, model in enumerate(models):
        scores_of = {scores.index: scores for scores in model.classes}
        for scores in (scores_of[at] for at in chosen if at in scores_of):
            counts = f"{scores.examples:,}", f"{scores.predicted:,}"
            shares = percent(scores.mean_probability, 2), percent(scores.calibration_error, 2)
            rows.append(DataRow([model.name, class_label(model, scores.index), *counts, *shares], index))
    head = ["model", "class", "examples", "predicted", "mean probability", "calibration error"]
    return DataTable(head, rows)
