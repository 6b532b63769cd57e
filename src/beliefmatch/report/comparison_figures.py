"""Figures of comparisons: means over seeds, learning curves, a rotated digit."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from statistics import fmean
from typing import NamedTuple

from beliefmatch.experiments.records import ComparisonRecord, RotatedDigit, Rotation
from beliefmatch.report.comparison_scores import (
    INFINITE,
    SCORES,
    Measure,
    cost,
    detection,
    detection_scores,
    presentable_comparison,
    runs_of,
    short_names,
)
from beliefmatch.report.figure import Axis, Figure, Matrix, Panel, Series
from beliefmatch.report.style import Look, looks
from beliefmatch.report.table import Cell, Column, Row, Table
from beliefmatch.report.text import number_text, ood_names, percent

__all__ = [
    "comparison_figures",
    "learning_figures",
    "overview_figure",
    "rotation_figure",
    "rotations_of",
]

TIMES = (
    Column("train_seconds", "Training", "(s)", "low", 2),
    Column("predict_ms_per_image", "Prediction", "(ms an image)", "low", 4),
)
_MOST_SETS = 4  # OOD sets that get a panel
_MOST_EPOCHS = 8  # in the table of numbers
_CURVES = {"loss": "Training loss", "validation_error": "Validation error"}
_PALE, _SMALL = 0.35, 3.0


def comparison_figures(record: ComparisonRecord) -> list[Figure]:
    """The overview, learning curves, and the rotated digit if there is one."""
    shown = presentable_comparison(record, caller="comparison_figures")
    rotations = rotations_of(shown)
    figures = [overview_figure(shown), *learning_figures(shown)]
    if shown.rotated_digit is not None and rotations:
        labels = [method.label for method in shown.methods]
        names = short_names(shown)
        figures.append(rotation_figure(labels, rotations, shown.rotated_digit, names=names))
    return figures


def _looks(record: ComparisonRecord) -> list[Look]:
    return looks([method.label for method in record.methods])


def _legend(record: ComparisonRecord) -> list[tuple[str, Look]]:
    labels = [method.label for method in record.methods]
    return list(zip(labels, _looks(record), strict=True)) if len(labels) > 1 else []


# Means over seeds


def overview_figure(record: ComparisonRecord, *, most: int | None = None) -> Figure:
    """A panel a metric, a line a method: the mean, one standard deviation to both sides, and each seed.

    Args:
        record: Comparison with presentable names.
        most: Number of panels, in one row of a page; all of them, in rows of three for a paper, if None.
    """
    measures = _overview_measures(record)[:most]
    several = max(len(method.runs) for method in record.methods) > 1
    left_out = len(ood_names(runs_of(record))) - _MOST_SETS
    some = f" {_MOST_SETS} of {left_out + _MOST_SETS} OOD sets are shown." if left_out > 0 else ""
    note = "Large: mean; bars: one standard deviation; small: each seed." if several else "One seed."
    sentences = []
    for measure in measures:
        values = [measure.column.text(measure.cell(method).value) for method in record.methods]
        pairs = [f"{name} {value}" for name, value in zip(short_names(record), values, strict=True)]
        sentences.append(f"{_panel_title(measure)}: {', '.join(pairs)}.")
    return Figure(
        "overview",
        [_overview_panel(record, measure) for measure in measures],
        f"Means over the seeds. {' '.join(sentences)}",
        title="Scores over seeds: which differences are more than scatter?"
        if several
        else "Scores of one seed",
        note=note,
        numbers=_seed_table(record, measures),
        across=3 if most is None else 4,
        caption=f"{note}{some}",
    )


def _overview_measures(record: ComparisonRecord) -> list[Measure]:
    found = [SCORES["error"], SCORES["nll"], SCORES["ece"]]
    for score in detection_scores(record)[:1]:
        found += [detection(name, score) for name in ood_names(runs_of(record))[:_MOST_SETS]]
    return [*found, *map(cost, TIMES)]


def _panel_title(measure: Measure) -> str:
    heading = measure.column.heading
    return f"{measure.column.group}: {heading}" if measure.column.group else heading


def _overview_panel(record: ComparisonRecord, measure: Measure) -> Panel:
    column, series, names = measure.column, [], []
    for index, (method, name, look) in enumerate(
        zip(record.methods, short_names(record), _looks(record), strict=True)
    ):
        cell = measure.cell(method)
        names.append(f"{name}: {INFINITE}" if cell.value == INFINITE else name)
        values = [value for run in method.runs if (value := measure.of(run)) is not None]
        if len(method.runs) > 1:
            seeds = {"model": index, "alpha": _PALE, "size": _SMALL}
            series.append(Series(method.label, values, [float(index)] * len(values), look, "points", **seeds))
        if isinstance(cell.value, float):
            sd = cell.sd or 0.0
            ends = {"low": [cell.value - sd], "high": [cell.value + sd]} if cell.sd is not None else {}
            mean = {"model": index, "size": 6.0, **ends}
            series.append(Series(method.label, [cell.value], [float(index)], look, "points", **mean))
    x = Axis(percent=column.unit == "%")
    if column in TIMES:
        x = _time_axis([measure.of(run) for method in record.methods for run in method.runs])
    height = 0.62 + 0.15 * len(names)
    return Panel(series, x, Axis(names=names), title=_panel_title(measure), width=2.6, height=height)


def _time_axis(times: Sequence[float | None]) -> Axis:
    """From zero on, or in powers of ten where the small times would lie on each other."""
    present = [time for time in times if time]
    if len(present) > 1 and max(present) > 20 * min(present):
        return Axis("", min(present) / 2, max(present) * 2, log=True)
    return Axis("", 0, 1.1 * max(present, default=1.0))


def _seed_table(record: ComparisonRecord, measures: Sequence[Measure]) -> Table:
    """The numbers of every seed."""
    columns = [Column("seed", "seed"), *(measure.column for measure in measures)]
    rows = []
    for index, method in enumerate(record.methods):
        for run in method.runs:
            cells = [Cell(INFINITE if m.is_infinite and m.of(run) is None else m.of(run)) for m in measures]
            rows.append(Row(method.label, [Cell(f"{run.seed}"), *cells], model=index))
    return Table("", columns, rows, row_title="method")


# Learning curves


class Learning(NamedTuple):
    """One number by epoch, of every network of a method and on the mean; None where it was not finite."""

    epochs: list[int]
    """Counted from 1; without those that no network was validated after."""
    networks: list[list[float | None]]
    mean: list[float | None]


def learning_curves(record: ComparisonRecord, key: str) -> dict[int, Learning]:
    """By the place of the method, for those that recorded the number."""
    found = {}
    for index, method in enumerate(record.methods):
        networks = [curves[key] for run in method.runs for curves in run.curves if curves.get(key)]
        if networks:
            found[index] = _learning(networks, gaps=not key.startswith("validation_"))
    return found


def _learning(networks: list[list[float | None]], *, gaps: bool) -> Learning:
    rows = list(zip_longest(*networks))
    kept = [place for place, row in enumerate(rows) if gaps or any(value is not None for value in row)]
    means = []
    for place in kept:
        present = [value for value in rows[place] if value is not None]
        means.append(fmean(present) if present else None)
    curves = [[rows[place][network] for place in kept] for network in range(len(networks))]
    return Learning([place + 1 for place in kept], curves, means)


def learning_figures(record: ComparisonRecord) -> list[Figure]:
    """Training loss and validation error by epoch: networks thin, the mean of each method thick."""
    panels, columns, sentences = [], [], []
    cells: list[list[Cell]] = [[] for _ in record.methods]
    for key, title in _CURVES.items():
        curves = learning_curves(record, key)
        if not curves:
            continue
        is_share = key.endswith("error")
        panels.append(_learning_panel(record, title, curves, is_share=is_share))
        form = Column("", "", "%", "", 2, 100.0, title) if is_share else Column("", "", digits=4, group=title)
        longest = max((found.epochs for found in curves.values()), key=len)
        shown = longest[:: max(-(-len(longest) // _MOST_EPOCHS), 1)]
        shown = shown if shown[-1] == longest[-1] else [*shown, longest[-1]]
        columns += [replace(form, key=f"{key}_{epoch}", title=f"epoch {epoch}") for epoch in shown]
        text = (lambda value: percent(value, 2)) if is_share else (lambda value: number_text(value, 4))
        for index, method in enumerate(record.methods):
            found = curves.get(index, Learning([], [], []))
            means = dict(zip(found.epochs, found.mean, strict=True))
            cells[index] += [Cell(means.get(epoch)) for epoch in shown]
            if found.mean:
                ends = f"from {text(found.mean[0])} to {text(found.mean[-1])}"
                sentences.append(f"{title} of {method.label}: {ends}.")
    if not panels:
        return []
    rows = [Row(method.label, cells[index], model=index) for index, method in enumerate(record.methods)]
    return [
        Figure(
            "learning_curves",
            panels,
            f"Means of the networks of each method by epoch. {' '.join(sentences)}",
            title="Learning curves",
            note="Thick: mean of the networks of a method; thin: each network. Training losses are each "
            "method's own: they compare within a method, not between methods.",
            numbers=Table("", columns, rows, row_title="method"),
            legend=_legend(record),
            across=2,
        )
    ]


def _learning_panel(
    record: ComparisonRecord, title: str, curves: dict[int, Learning], *, is_share: bool
) -> Panel:
    series, styles = [], _looks(record)
    for index, found in curves.items():
        label, solid = record.methods[index].label, Look(styles[index].colour)
        thin = {"model": index, "width": 0.6, "alpha": 0.3}
        for network in found.networks if len(found.networks) > 1 else []:
            series.append(Series(label, found.epochs, network, solid, **thin))
        series.append(Series(label, found.epochs, found.mean, styles[index], model=index))
    y = Axis("", 0 if is_share else None, percent=is_share)
    return Panel(series, Axis("epoch"), y, title=title)


# The rotated digit


def rotations_of(record: ComparisonRecord) -> list[Rotation]:
    """What each method's first network makes of the digit; none where a method lacks it."""
    found = [method.runs[0].rotation for method in record.methods]
    present = [seen for seen in found if seen is not None]
    return present if record.rotated_digit is not None and len(present) == len(found) else []


def rotation_figure(
    labels: Sequence[str],
    rotations: Sequence[Rotation],
    digit: RotatedDigit,
    *,
    names: Sequence[str] | None = None,
) -> Figure:
    """The digit above a table of classes shaded by their confidence, and means over all digits below.

    Args:
        labels: Methods.
        rotations: What each makes of the digit.
        digit: The digit at each angle.
        names: Methods beside the table, where there is little room; their labels if None.
    """
    matrix = Matrix(
        [seen.confidence for seen in rotations],
        [
            [f"{p}\n{100 * c:.0f} %" for p, c in zip(seen.predicted, seen.confidence, strict=True)]
            for seen in rotations
        ],
        [[predicted != digit.digit for predicted in seen.predicted] for seen in rotations],
        digit.images,
    )
    angles = [f"{angle}°" for angle in digit.angles]
    height = 0.55 + 0.36 * (len(labels) + 1.3)
    key = f"Class and confidence at each angle, first seed. Blue: a {digit.digit}, orange: wrong"
    axes = Axis("", names=angles), Axis("", names=names or labels)
    classes = Panel((), *axes, title=key, matrix=matrix, height=height, wide=True)
    several = f"all {digit.examples:,} test {digit.digit}s"
    views = {
        f"Mean confidence, {several}": [seen.mean_confidence for seen in rotations],
        f"Still taken for a {digit.digit}, {several}": [seen.recognised for seen in rotations],
    }
    styles = looks(labels)
    curves = [
        Panel(
            [
                Series(label, digit.angles, values, look, model=index)
                for index, (label, values, look) in enumerate(zip(labels, lists, styles, strict=True))
            ],
            Axis("degrees", ticks=digit.angles[:: max(len(digit.angles) // 6, 1)]),
            Axis("", 0, 1.02, percent=True),
            title=title,
        )
        for title, lists in views.items()
    ]
    means = [
        f"{label}: {percent(fmean(seen.confidence))}" for label, seen in zip(labels, rotations, strict=True)
    ]
    columns = [Column(f"angle_{angle}", f"{angle}°") for angle in digit.angles]
    rows = [
        Row(
            label,
            [Cell(f"{p}: {percent(c, 0)}") for p, c in zip(seen.predicted, seen.confidence, strict=True)],
            model=index,
        )
        for index, (label, seen) in enumerate(zip(labels, rotations, strict=True))
    ]
    return Figure(
        "rotated_digit",
        [classes, *curves],
        f"{key}. Mean confidence over the angles: {'; '.join(means)}.",
        title=f"Confidence when a {digit.digit} is rotated",
        numbers=Table("", columns, rows, row_title="method"),
        legend=list(zip(labels, styles, strict=True)),
        across=2,
    )
