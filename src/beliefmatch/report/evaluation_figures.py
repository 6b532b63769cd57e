"""Figures of evaluations: reliability, entropy, ROC, risk and coverage, classes, confusion."""

from collections.abc import Sequence
from itertools import pairwise
from math import sqrt
from statistics import fmean
from typing import NamedTuple

from beliefmatch.experiments.evaluation_record import Bins, Curve, EvaluationRecord
from beliefmatch.report.columns import score_title
from beliefmatch.report.evaluation_scores import detection_of
from beliefmatch.report.figure import Axis, Figure, Matrix, Panel, Series, figure_name
from beliefmatch.report.style import REFERENCE, Look, looks
from beliefmatch.report.table import Cell, Column, Row, Table
from beliefmatch.report.text import class_label, class_labels, number_text, percent, shorten

__all__ = [
    "class_figures",
    "confusion_figures",
    "entropy_figure",
    "reliability_figure",
    "risk_coverage_figure",
    "roc_figure",
    "wilson",
]

FEW = 10
"""Bins of fewer examples are drawn pale, and no line runs to them."""
MOST_CLASSES = 30
"""In a figure of classes; where there are more, the worst are shown."""
_LARGEST_MATRIX, _LARGEST_WRITTEN = 100, 16  # classes of a confusion matrix that is drawn, with its counts
_PALE = 0.35
_CUT = 1.5  # times the peak of the OOD density, where a peak of more than twice that is cut
_Z = 1.959964  # a normal variable lies within it 95 times in 100
_OTHER = Look(REFERENCE)
_SHARE = {"unit": "%", "digits": 1, "scale": 100.0}


class _Drawn(NamedTuple):
    """A model with its number and its look on the page."""

    place: int
    model: EvaluationRecord
    look: Look


def _drawn(models: Sequence[EvaluationRecord], shown: Sequence[int] | None = None) -> list[_Drawn]:
    """All models or those of some places, each with the number and look that it has among all."""
    places = range(len(models)) if shown is None else sorted(shown)
    found = looks([model.name for model in models])
    return [_Drawn(place, models[place], found[place]) for place in places]


def _legend(drawn: Sequence[_Drawn]) -> list[tuple[str, Look]]:
    return [(one.model.name, one.look) for one in drawn] if len(drawn) > 1 else []


def _some(drawn: Sequence[_Drawn], models: Sequence[EvaluationRecord]) -> str:
    return f" The {len(drawn)} models of the lowest NLL." if len(drawn) < len(models) else ""


def reliability_figure(models: Sequence[EvaluationRecord], *, shown: Sequence[int] | None = None) -> Figure:
    """Accuracy over confidence with Wilson's intervals, and below it the share of examples in each bin.

    Bins of few examples are drawn where a model is alone: several would hide the others.
    """
    drawn = _drawn(models, shown)
    has_few = len(drawn) == 1 or not any(joined(model.reliability) for _, model, _ in drawn)
    panel = reliability_panel(
        [(index, model.name, model.reliability, look) for index, model, look in drawn], has_few=has_few
    )
    words = [
        f"{model.name}: mean confidence {percent(_score(model, 'mean_confidence'))}, "
        f"error {percent(_score(model, 'error'))}, expected calibration error {percent(_score(model, 'ece'))}"
        for _, model, _ in drawn
    ]
    left_out = "" if has_few else f" Bins of fewer than {FEW} examples are left out."
    return Figure(
        "reliability",
        [panel],
        f"Reliability diagram, accuracy against confidence. {'; '.join(words)}.",
        title="Reliability: is it right as often as it says?",
        note=f"Below the dashed line: overconfident. Bars: 95 % intervals.{left_out}{_some(drawn, models)}",
        numbers=_bin_table(models),
        legend=_legend(drawn),
    )


def reliability_panel(curves: Sequence[tuple[int, str, Bins, Look]], *, has_few: bool = True) -> Panel:
    """The axes of `reliability_figure`.

    Args:
        curves: The number, name, bins and look of each model.
        has_few: Whether bins of few examples are drawn too, pale and not joined.
    """
    series, shares = [], []
    for index, name, bins, look in curves:
        firm, filled = joined(bins), [one for one in drawn_bins(bins) if one is not None]
        few = [one for one in filled if one.examples < FEW] if has_few else []
        line = [one.confidence if one else float("nan") for one in firm]
        series.append(
            Series(
                name,
                line,
                [one.accuracy if one else None for one in firm],
                look,
                low=[one.low if one else float("nan") for one in firm],
                high=[one.high if one else float("nan") for one in firm],
                model=index,
                marker=True,
            )
        )
        if few:
            lows, highs = [one.low for one in few], [one.high for one in few]
            points = [one.confidence for one in few], [one.accuracy for one in few]
            series.append(Series(name, *points, look, "points", lows, highs, index, alpha=_PALE))
        total = max(sum(bins.count), 1)
        edges = [*bins.lower[:1], *bins.upper]
        counts = [count / total for count in bins.count]
        shares.append(Series(name, edges, counts, look, "steps", model=index))
    below = Panel(shares, Axis("confidence", 0, 1, percent=True), Axis("share", 0, percent=True))
    x, y = Axis("", 0, 1, percent=True), Axis("accuracy", 0, 1, percent=True)
    return Panel(series, x, y, diagonal=True, below=below)


def _score(model: EvaluationRecord, key: str) -> float | None:
    number = model.scores.get(key)
    return number.value if number else None


def _bin_table(models: Sequence[EvaluationRecord]) -> Table:
    columns = [
        Column("bin", "confidence bin"),
        Column("examples", "examples"),
        Column("confidence", "mean confidence", **_SHARE),
        Column("accuracy", "accuracy", **_SHARE),
    ]
    rows = [
        Row(
            model.name,
            [
                Cell(f"{one.lower:.3g} to {one.upper:.3g}"),
                Cell(f"{one.examples:,}"),
                Cell(one.confidence),
                Cell(one.accuracy, one.low, one.high),
            ],
            model=index,
        )
        for index, model in enumerate(models)
        for one in drawn_bins(model.reliability)
        if one is not None
    ]
    return Table("", columns, rows)


def entropy_figure(
    models: Sequence[EvaluationRecord], ood: str, *, shown: Sequence[int] | None = None
) -> Figure:
    """The density of the predictive entropy on test and on OOD examples, one panel a model.

    The peak of a confident model at 0 would press everything else to the floor: it is cut, and the note
    says so.
    """
    found = [next((one.entropy for one in model.ood if one.name == ood), None) for model in models]
    drawn = _drawn(models, shown)
    highest = max([y for _, model, _ in drawn for y in model.entropy.y], default=0.0)
    highest_ood = max([y for index, *_ in drawn if (curve := found[index]) for y in curve.y], default=0.0)
    is_cut = highest > 2 * _CUT * highest_ood > 0
    top = 1.06 * (_CUT * highest_ood if is_cut else max(highest, highest_ood)) or 1.0
    cut = f" Cut at {top:.2g}: peaks reach {highest:.2g}." if is_cut else ""
    panels, words = [], []
    sizes = {1: (3.6, 3.2), 2: (3.6, 1.75)}.get(len(drawn), (2.7, 1.75))
    for index, model, look in drawn:
        curve = found[index]
        series = [Series("test examples", model.entropy.x, model.entropy.y, _OTHER, "area", model=index)]
        if curve is not None:
            dashed = Look(look.colour, "6 2.5", look.marker)
            series.append(Series(ood, curve.x, curve.y, dashed, "area", model=index))
        far = max([*model.entropy.x, 0.01])
        axes = Axis("predictive entropy (nats)", 0, far), Axis("density", 0, top)
        title = model.name if len(drawn) > 1 else ""
        panels.append(Panel(series, *axes, title=title, width=sizes[0], height=sizes[1]))
        other = "not evaluated" if curve is None else f"{number_text(median(curve), 2)} nats"
        words.append(
            f"{model.name}: median {number_text(median(model.entropy), 2)} nats on test examples, {other}"
        )
    return Figure(
        figure_name(f"entropy_{ood}"),
        panels,
        f"Densities of the predictive entropy on test examples and on {ood}. {'; '.join(words)}.",
        title=f"Predictive entropy: does it notice {ood}?",
        note=f"Grey: test examples; dashed: {ood}. They should lie apart.{cut}{_some(drawn, models)}",
        numbers=_density_table(models, ood, found),
        across=1 if len(drawn) < 3 else 2,
        caption=f"Grey: test examples; dashed: {shorten(ood, 24)}.",
    )


def _density_table(models: Sequence[EvaluationRecord], ood: str, found: Sequence[Curve | None]) -> Table:
    columns = [
        Column("entropy", "entropy", digits=2),
        Column("test", "density, test examples", digits=3),
        Column("ood", f"density, {ood}", digits=3),
    ]
    rows = []
    for index, (model, curve) in enumerate(zip(models, found, strict=True)):
        for x in model.entropy.x[:: max(len(model.entropy.x) // 10, 1)]:
            cells = [Cell(x), Cell(at(model.entropy, x)), Cell(at(curve, x) if curve else None)]
            rows.append(Row(model.name, cells, model=index))
    return Table("", columns, rows)


def roc_figure(models: Sequence[EvaluationRecord], score: str, sets: Sequence[str]) -> Figure:
    """One panel for each OOD set and one for wrong predictions, by one score."""
    panels, words, rows, drawn = [], [], [], _drawn(models)
    rates = (0.01, 0.05, 0.1, 0.2, 0.5)
    for name in (*sets, None):
        flagged, passed = ("wrong", "right") if name is None else ("OOD", "test examples")
        series = []
        for index, model, look in drawn:
            one = detection_of(model, name, score)
            if one is None or not one.roc.x:
                continue
            series.append(Series(model.name, one.roc.x, one.roc.y, look, model=index))
            title = "wrong predictions" if name is None else name
            words.append(f"{title}, {model.name}: AUROC {percent(one.auroc.value)}")
            cells = [Cell(title), *(Cell(at(one.roc, rate)) for rate in rates)]
            rows.append(Row(model.name, cells, model=index))
        axes = (
            Axis(f"{passed} flagged", 0, 1, percent=True),
            Axis(f"{flagged} flagged", 0, 1.01, percent=True),
        )
        if series:
            title = "Wrong predictions" if name is None else name
            panels.append(Panel(series, *axes, title=title, diagonal=True, height=3.2))
    columns = [
        Column("set", "set"),
        *(Column(f"at_{r:g}", f"flagged where {100 * r:g} % of the others are", **_SHARE) for r in rates),
    ]
    return Figure(
        "roc",
        panels,
        f"ROC curves by {score_title(score)}. {'; '.join(words)}.",
        title=f"ROC curves by {score_title(score)}",
        numbers=Table("", columns, rows),
        legend=_legend(drawn),
    )


def risk_coverage_figure(models: Sequence[EvaluationRecord], *, shown: Sequence[int] | None = None) -> Figure:
    """The error among the most confident answers, and the risk thresholds."""
    series, words, rows, drawn = [], [], [], _drawn(models, shown)
    coverages = (0.5, 0.8, 0.9, 0.95, 1.0)
    for index, model, look in drawn:
        curve = model.risk_coverage
        series.append(Series(model.name, curve.x, curve.y, look, model=index))
        kept = [found for found in model.risk_thresholds if found.threshold is not None]
        points = [found.coverage for found in kept], [found.risk for found in kept]
        series.append(Series(model.name, *points, look, "points", model=index, filled=False))
        risks = [at(curve, coverage) for coverage in coverages]
        rows.append(Row(model.name, [Cell(risk) for risk in risks], model=index))
        words.append(
            f"{model.name}: {percent(risks[0], 2)} when answering half, {percent(risks[-1], 2)} when all"
        )
    axes = Axis("coverage", 0, 1.02, percent=True), Axis("risk (error among answers)", 0, percent=True)
    columns = [
        Column(f"risk_{c:g}", f"error answering {100 * c:g} %", "%", "low", 2, 100.0) for c in coverages
    ]
    return Figure(
        "risk_coverage",
        [Panel(series, *axes)],
        f"Risk-coverage curves, error among the most confident answers. {'; '.join(words)}.",
        title="Risk and coverage: how wrong are confident answers?",
        note=f"Open marks: thresholds that keep the error below a given risk.{_some(drawn, models)}",
        numbers=Table("", columns, rows),
        legend=_legend(drawn),
    )


# Classes


class ClassError(NamedTuple):
    """One class of one model; `low` and `high` are Wilson's interval of the error."""

    id: int
    examples: int
    error: float
    low: float
    high: float


def class_errors(model: EvaluationRecord) -> dict[int, ClassError]:
    """By class, those that came true at least once."""
    return {
        one.index: ClassError(one.index, one.examples, one.error, *wilson(one.error, one.examples))
        for one in model.classes
        if one.examples and one.error is not None
    }


def often_mistaken(models: Sequence[EvaluationRecord]) -> list[int]:
    """The classes with the largest mean error of the models first: all if they are few.

    Else those whose error is surely large, by the lower end of its interval, so that a class of a single
    example does not come before all others.
    """
    errors: dict[int, list[ClassError]] = {}
    for model in models:
        for index, one in class_errors(model).items():
            errors.setdefault(index, []).append(one)
    lows = {index: fmean(one.low for one in found) for index, found in errors.items()}
    means = {index: fmean(one.error for one in found) for index, found in errors.items()}
    chosen = sorted(lows, key=lambda index: (-lows[index], index))[:MOST_CLASSES]
    return sorted(chosen, key=lambda index: -means[index])


def class_figures(models: Sequence[EvaluationRecord]) -> list[Figure]:
    """Error and calibration error of each class; where there are many, of the worst."""
    chosen = often_mistaken(models)
    if not chosen:
        return []
    labels = class_labels(models[0], 24)
    counts = {one.index: one.examples for one in models[0].classes}
    names = [f"{labels[index]} ({counts.get(index, 0):,})" for index in chosen]
    rows = {index: place for place, index in enumerate(chosen)}
    errors, calibration, words, drawn = [], [], [], _drawn(models)
    for number, model, look in drawn:
        offset = 0.56 * (number - (len(models) - 1) / 2) / len(models)
        found = [one for one in class_errors(model).values() if one.id in rows]
        places = [rows[one.id] + offset for one in found]
        lows, highs = [one.low for one in found], [one.high for one in found]
        values = [one.error for one in found]
        errors.append(Series(model.name, values, places, look, "points", lows, highs, number))
        own = [one for one in model.classes if one.index in rows]
        values = [one.calibration_error for one in own]
        places = [rows[one.index] + offset for one in own]
        calibration.append(Series(model.name, values, places, look, "points", model=number))
        worst = max(found, key=lambda one: one.error, default=None)
        if worst is not None:
            words.append(f"{model.name} errs most on {class_label(model, worst.id)}, {percent(worst.error)}")
    height = 1.0 + len(chosen) * min(0.16 + 0.05 * len(models), 0.4)
    y = Axis(names=names)
    some = "" if len(chosen) == len(models[0].class_names) else f" The {len(chosen)} worst classes are shown."
    panels = [
        Panel(errors, Axis("", 0, percent=True), y, title="Error", height=height),
        Panel(calibration, Axis("", 0, percent=True), y, title="Calibration error", height=height),
    ]
    return [
        Figure(
            "classes",
            panels,
            f"Error of each class with 95 % intervals, and its calibration error. {'; '.join(words)}.",
            title="Error and calibration error of each class",
            note=f"In brackets: examples of the class. Bars: Wilson's 95 % intervals.{some}",
            numbers=_class_table(models),
            legend=_legend(drawn),
            across=2,
        )
    ]


def _class_table(models: Sequence[EvaluationRecord]) -> Table:
    columns = [
        Column("class", "class"),
        Column("examples", "examples"),
        Column("error", "error", "%", "low", 1, 100.0),
        Column("calibration_error", "calibration error", "%", "low", 2, 100.0),
    ]
    rows = []
    for number, model in enumerate(models):
        errors = class_errors(model)
        for one in model.classes[:500]:
            error = errors.get(one.index)
            cells = [
                Cell(class_label(model, one.index)),
                Cell(f"{one.examples:,}"),
                Cell(None) if error is None else Cell(error.error, error.low, error.high),
                Cell(one.calibration_error),
            ]
            rows.append(Row(model.name, cells, model=number))
    return Table("", columns, rows)


def confusion_figures(models: Sequence[EvaluationRecord]) -> list[Figure]:
    """The confusion matrix of each model, with the most frequent mistakes as its numbers."""
    figures = []
    for number, model in enumerate(models):
        matrix = model.confusion.matrix or []
        panels = []
        if 0 < len(matrix) <= _LARGEST_MATRIX:
            shares = [[count / max(sum(row), 1) for count in row] for row in matrix]
            is_written = len(matrix) <= _LARGEST_WRITTEN
            texts = [[f"{count:,}" if count else "" for count in row] for row in matrix] if is_written else ()
            labels = class_labels(model, 12) if len(matrix) <= MOST_CLASSES else [""] * len(matrix)
            axes = (
                Axis("predicted", names=labels if is_written else [""] * len(matrix)),
                Axis("true", names=labels),
            )
            height = max(3.6, 0.24 * len(matrix)) if len(matrix) <= MOST_CLASSES else 3.8
            panels.append(Panel((), *axes, matrix=Matrix(shares, texts), height=height))
        if model.confusion.pairs:
            target, predicted, count = model.confusion.pairs[0]
            pair = f"{class_label(model, target)} taken for {class_label(model, predicted)}, {count:,} times"
            words = f"most often {pair}"
        else:
            words = "no mistakes"
        title = f"Confusion: {model.name}" if len(models) > 1 else "Confusion"
        name = figure_name(f"confusion_{number}" if len(models) > 1 else "confusion")
        alt = f"Confusion of {model.name}: {words}."
        figures.append(Figure(name, panels, alt, title=title, note=f"{words[:1].upper()}{words[1:]}.",
                              numbers=_mistakes(model)))  # fmt: skip
    return figures


def _mistakes(model: EvaluationRecord) -> Table | None:
    columns = [Column("predicted", "taken for"), Column("count", "times")]
    rows = [
        Row(class_label(model, target), [Cell(class_label(model, predicted)), Cell(f"{count:,}")])
        for target, predicted, count in model.confusion.pairs
    ]
    return Table("", columns, rows, row_title="class") if rows else None


# Numbers of curves and bins


class DrawnBin(NamedTuple):
    """Examples of like confidence; `low` and `high` are the interval of the accuracy."""

    lower: float
    upper: float
    examples: int
    confidence: float
    accuracy: float
    low: float
    high: float


def wilson(share: float, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share seen in `count` draws.

    >>> low, high = wilson(0.5, 10)
    >>> round(low, 4), round(high, 4)
    (0.2366, 0.7634)
    """
    scale = 1 + _Z**2 / count
    middle = (share + _Z**2 / (2 * count)) / scale
    half = _Z * sqrt(share * (1 - share) / count + _Z**2 / (4 * count**2)) / scale
    return min(max(middle - half, 0.0), share), max(min(middle + half, 1.0), share)


def drawn_bins(bins: Bins) -> list[DrawnBin | None]:
    """Every bin in its place, None where it is empty."""
    columns = zip(bins.lower, bins.upper, bins.count, bins.confidence, bins.accuracy, strict=True)
    return [
        DrawnBin(lower, upper, count, confidence, accuracy, *wilson(accuracy, count))
        if count and confidence is not None and accuracy is not None
        else None
        for lower, upper, count, confidence, accuracy in columns
    ]


def joined(bins: Bins) -> list[DrawnBin | None]:
    """The bins that a line joins, with None between those that have none or a thin one in between."""
    kept: list[DrawnBin | None] = []
    for drawn in drawn_bins(bins):
        if drawn is not None and drawn.examples >= FEW:
            kept.append(drawn)
        elif kept and kept[-1] is not None:
            kept.append(None)
    return kept[:-1] if kept and kept[-1] is None else kept


def at(curve: Curve, x: float) -> float | None:
    """The curve's value at `x`, on straight lines between its points."""
    points = sorted(zip(curve.x, curve.y, strict=True))
    if not points or x < points[0][0] or x > points[-1][0]:
        return None
    for (x0, y0), (x1, y1) in pairwise(points):
        if x0 <= x <= x1:
            return y1 if x1 == x0 else y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    return points[0][1]


def median(density: Curve) -> float | None:
    """Where half of the mass below a density lies to the left."""
    steps = list(zip(density.x, density.x[1:], density.y, density.y[1:], strict=False))
    masses = [(right - left) * (a + b) / 2 for left, right, a, b in steps]
    half = sum(masses) / 2
    if half <= 0:
        return None
    for mass, (left, right, *_) in zip(masses, steps, strict=True):
        if half <= mass:
            return left + (right - left) * half / mass
        half -= mass
    return density.x[-1]
