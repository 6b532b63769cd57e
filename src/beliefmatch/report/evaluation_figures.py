"""Figures of evaluations for a paper, drawn without touching matplotlib's global state."""

import re
from collections.abc import Callable, Container, Iterator, Sequence
from functools import partial
from math import nan

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from beliefmatch.experiments.evaluation_record import Bins, EvaluationRecord
from beliefmatch.report.evaluation_bins import DrawnBin, joined, thin
from beliefmatch.report.evaluation_classes import (
    MOST_CLASSES,
    class_errors,
    class_heights,
    counted_label,
    error_ranks,
    often_mistaken,
)
from beliefmatch.report.evaluation_metrics import score_title, sides
from beliefmatch.report.evaluation_scores import detection_of, headline_score
from beliefmatch.report.evaluation_style import look
from beliefmatch.report.evaluation_text import class_labels, ood_names, presentable
from beliefmatch.report.figure_parts import drawn_text, legend_below, model_line, rendered

__all__ = ["entropy_figure", "evaluation_files", "figure_name", "reliability_figure"]

_KINDS = ("svg", "pdf", "png")
_REFERENCE = {"color": "#808080", "linewidth": 0.9, "linestyle": (0, (4, 3)), "zorder": 1}
_INSIDE = "#7F7F7F"
_PALE = 0.35  # of bins with few examples


def evaluation_files(records: Sequence[EvaluationRecord]) -> Iterator[tuple[str, bytes]]:
    """Name and content of each file: reliability, ROC, risk-coverage, classes, entropy on OOD sets."""
    models = presentable(records, caller="evaluation_files")
    drawings: dict[str, Callable[[Sequence[EvaluationRecord]], Figure]] = {
        "reliability": reliability_figure,
        "roc": _roc,
        "risk_coverage": _risk_coverage,
    }
    if often_mistaken(models):
        drawings["class_error"] = _class_error
    for ood in ood_names(models):
        drawings[figure_name(f"entropy_{ood}", drawings)] = partial(entropy_figure, ood=ood)
    for name, draw in drawings.items():
        yield from rendered(name, lambda draw=draw: draw(models), _KINDS)


def figure_name(text: str, taken: Container[str]) -> str:
    """A name that every file system takes, and that is not taken yet."""
    base = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")[:48]
    name, count = base, 1
    while name in taken:
        count += 1
        name = f"{base}_{count}"
    return name


def reliability_figure(models: Sequence[EvaluationRecord]) -> Figure:
    """Accuracy over confidence with Wilson's intervals, and below it the share of examples in each bin."""
    figure = Figure(figsize=(4.2, 5.4), layout="constrained")
    upper, lower = figure.subplots(2, 1, height_ratios=[3, 1], sharex=True)
    upper.plot([0, 1], [0, 1], **_REFERENCE)
    for index, model in enumerate(models):
        _draw_bins(upper, lower, model.reliability, index, drawn_text(model.name))
    upper.set(ylabel="accuracy", xlim=(0, 1), ylim=(0, 1))
    lower.set(ylabel="share of the\nexamples", xlabel="confidence")
    lower.set_ylim(bottom=0)
    legend_below(figure, upper)
    return figure


def _draw_bins(upper: Axes, lower: Axes, bins: Bins, index: int, label: str) -> None:
    points = {"marker": look(index).marker, "markersize": 4.5, "clip_on": False}
    firm, few = joined(bins), thin(bins)
    xs = [drawn.confidence if drawn else nan for drawn in firm]
    ys = [drawn.accuracy if drawn else nan for drawn in firm]
    upper.plot(xs, ys, label=label, **points, **model_line(index))
    _draw_intervals(upper, [drawn for drawn in firm if drawn], index, alpha=0.8)
    if few:
        xs, ys = [drawn.confidence for drawn in few], [drawn.accuracy for drawn in few]
        upper.plot(xs, ys, linestyle="", alpha=_PALE, color=look(index).colour, **points)
        _draw_intervals(upper, few, index, alpha=_PALE)
    total = max(sum(bins.count), 1)
    shares = [count / total for count in bins.count]
    if shares:
        lower.stairs(shares, [bins.lower[0], *bins.upper], linewidth=1.4, **model_line(index))


def _draw_intervals(axes: Axes, found: Sequence[DrawnBin], index: int, alpha: float) -> None:
    places = [drawn.confidence for drawn in found]
    ends = [drawn.low for drawn in found], [drawn.high for drawn in found]
    axes.vlines(places, *ends, color=look(index).colour, alpha=alpha, linewidth=0.9)


def entropy_figure(models: Sequence[EvaluationRecord], ood: str) -> Figure:
    """The density of the predictive entropy on known and on OOD examples, one panel a model."""
    figure, panels = _panels(len(models), width=2.6, height=2.1, sharey=True)
    for index, (axes, model) in enumerate(zip(panels, models, strict=True)):
        axes.fill_between(model.entropy.x, model.entropy.y, color=_INSIDE, alpha=0.3, linewidth=0)
        axes.plot(model.entropy.x, model.entropy.y, color=_INSIDE, label="test examples")
        for found in (found for found in model.ood if found.name == ood):
            line = {"color": look(index).colour, "linestyle": (0, (5, 2))}
            axes.fill_between(found.entropy.x, found.entropy.y, color=line["color"], alpha=0.15, linewidth=0)
            axes.plot(found.entropy.x, found.entropy.y, label=drawn_text(ood, 20), **line)
        axes.set_title(drawn_text(model.name, 30))
        axes.set(xlabel="predictive entropy (nats)")
        axes.set_ylim(bottom=0)
        axes.set_xlim(left=0)
        axes.legend(loc="upper center", fontsize=7.5)
    panels[0].set_ylabel("density")
    return figure


def _roc(models: Sequence[EvaluationRecord]) -> Figure:
    """One panel for wrong predictions and one for each OOD set, by the headline score."""
    names = [None, *ood_names(models)]
    score = headline_score(models)
    figure, panels = _panels(len(names), width=2.7, height=2.7)
    figure.suptitle(f"Detection by {drawn_text(score_title(score), 60)}", fontsize=10, color="#555555")
    for axes, name in zip(panels, names, strict=True):
        axes.plot([0, 1], [0, 1], **_REFERENCE)
        for index, model in enumerate(models):
            found = detection_of(model, name, score)
            points = (found.roc.x, found.roc.y) if found else ([], [])
            axes.plot(*points, label=drawn_text(model.name), **model_line(index))
        ood, in_distribution = sides(name)
        axes.set_title("Wrong predictions" if name is None else drawn_text(name, 24))
        axes.set(xlabel=f"{in_distribution} flagged", ylabel=f"{ood} flagged")
        axes.set(xlim=(0, 1), ylim=(0, 1.01), aspect="equal")
    legend_below(figure, panels[0])
    return figure


def _risk_coverage(models: Sequence[EvaluationRecord]) -> Figure:
    """The error among the most confident answers, and the risk thresholds."""
    figure = Figure(figsize=(4.8, 3.6), layout="constrained")
    axes = figure.subplots()
    for index, model in enumerate(models):
        curve, looks = model.risk_coverage, look(index)
        axes.plot(curve.x, curve.y, label=drawn_text(model.name), **model_line(index))
        kept = [found for found in model.risk_thresholds if found.threshold is not None]
        axes.plot(
            [found.coverage for found in kept],
            [found.risk for found in kept],
            linestyle="",
            marker=looks.marker,
            markersize=6,
            markerfacecolor="white",
            color=looks.colour,
        )
    axes.set(xlabel="coverage (share answered)", ylabel="risk (error among answers)", xlim=(0, 1.02))
    axes.set_ylim(bottom=0)
    legend_below(figure, axes)
    return figure


def _class_error(models: Sequence[EvaluationRecord]) -> Figure:
    """The error of each class with Wilson's interval; for many classes also all of them in falling order."""
    chosen = often_mistaken(models)
    many = max(len(class_errors(model)) for model in models) > MOST_CLASSES
    size = 4.6 + 3.2 * many, 1.1 + len(chosen) * min(0.14 + 0.06 * len(models), 0.4)
    figure = Figure(figsize=size, layout="constrained")
    first, *others = figure.subplots(1, 1 + many, squeeze=False)[0]
    for index, model in enumerate(models):
        _draw_errors(first, model, chosen, index, len(models))
        for axes in others:
            axes.plot(*error_ranks(model), **model_line(index))
    names = class_labels(models[0], 24)
    labels = [counted_label(models, at, drawn_text(names[at])) for at in chosen]
    first.set_yticks(range(len(chosen) - 1, -1, -1), labels)
    first.set(xlabel="error of the class", ylim=(-0.7, len(chosen) - 0.3))
    first.set_xlim(left=0)
    first.grid(axis="y", visible=False)
    for axes in others:
        axes.set(xlabel="share of the classes", ylabel="error of the class", xlim=(0, 1), ylim=(0, 1.01))
    legend_below(figure, first)
    return figure


def _draw_errors(axes: Axes, model: EvaluationRecord, chosen: Sequence[int], index: int, models: int) -> None:
    errors, looks = class_errors(model), look(index)
    shown = [errors[at] for at in chosen if at in errors]
    rows = class_heights(models, index, chosen, [found.id for found in shown])
    marks = {"linestyle": "", "marker": looks.marker, "markersize": 4, "color": looks.colour}
    axes.plot([found.error for found in shown], rows, label=drawn_text(model.name), **marks, clip_on=False)
    ends = [found.low for found in shown], [found.high for found in shown]
    axes.hlines(rows, *ends, color=looks.colour, linewidth=0.9, alpha=0.8)


def _panels(count: int, *, width: float, height: float, sharey: bool = False) -> tuple[Figure, list[Axes]]:
    """A figure with panels in rows of at most three."""
    columns = min(count, 3)
    rows = -(-count // columns)
    figure = Figure(figsize=(width * columns, height * rows + 0.5), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=sharey)
    every = list(grid.flat)
    for axes in every[count:]:
        axes.set_visible(False)
    for axes in every[:count]:
        axes.tick_params(labelbottom=True)  # also above an empty place
    return figure, every[:count]
