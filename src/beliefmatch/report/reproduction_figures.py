"""Figures of a reproduction, each with the scale it was run at."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from beliefmatch.report.evaluation_style import look
from beliefmatch.report.figure_parts import drawn_text, model_line, rendered
from beliefmatch.report.reproduction_rows import caption, shown_reproduction
from beliefmatch.report.rotation_figure import turned_figure
from beliefmatch.reproduce.record import Drawing, Panel, ReproductionRecord, Series

__all__ = ["reproduction_figures"]

_KINDS = ("svg", "png")


def reproduction_figures(record: ReproductionRecord) -> Iterator[tuple[str, bytes]]:
    """Name and content of each file."""
    shown = shown_reproduction(record)
    for drawing in shown.drawings:
        if drawing.is_drawn:
            yield from rendered(drawing.name, partial(_drawn, drawing, caption(shown)), _KINDS)


def _drawn(drawing: Drawing, said: str) -> Figure:
    if drawing.turned is not None:
        figure = turned_figure(drawing.turned.labels, drawing.turned.seen, drawing.turned.digit)
    else:
        figure = _panels(drawing)
    figure.supxlabel(said, fontsize=8, color="#555555")
    return figure


def _panels(drawing: Drawing) -> Figure:
    columns = min(drawing.columns, len(drawing.panels))
    lines = -(-len(drawing.panels) // columns)
    width = 3.0 if columns > 2 else 4.2
    figure = Figure(figsize=(width * columns, 0.5 + 2.9 * lines), layout="constrained")
    figure.suptitle(drawn_text(drawing.title, 90), fontsize=12)
    grid = list(figure.subplots(lines, columns, squeeze=False).flat)
    told: list[str] = []
    for axes, panel in zip(grid, drawing.panels, strict=False):
        _draw_panel(axes, panel)
        labels = [series.label for series in panel.series]
        if len(labels) > 1 and labels != told:  # once for panels that have the same
            axes.legend(fontsize=7, loc="best")
            told = labels
    for axes in grid[len(drawing.panels) :]:
        axes.set_visible(False)
    if drawing.same_scale_in_columns:
        for column in range(columns):
            _same_scale(grid[column : len(drawing.panels) : columns])
    return figure


def _same_scale(column: Sequence[Axes]) -> None:
    """Every panel as wide and high as the widest and highest."""
    for limits, set_limits in (("get_xlim", "set_xlim"), ("get_ylim", "set_ylim")):
        found = [getattr(axes, limits)() for axes in column]
        for axes in column:
            getattr(axes, set_limits)(min(low for low, _ in found), max(high for _, high in found))


def _draw_panel(axes: Axes, panel: Panel) -> None:
    for index, series in enumerate(panel.series):
        _STYLES[series.style](axes, series, index)
    pad = 26 if any(one.style == "crosses" and one.x for one in panel.series) else None  # room for them
    axes.set_title("\n".join(drawn_text(line, 40) for line in (panel.title, panel.subtitle) if line), pad=pad)
    axes.set(xlabel=drawn_text(panel.x_label, 40), ylabel=drawn_text(panel.y_label, 40))
    if panel.x_is_log and panel.series:
        places = panel.series[0].x
        axes.set_xscale("log")
        axes.set_xticks(places, [f"{place:,.0f}" for place in places], minor=False)
        axes.set_xticks([], minor=True)
    if panel.text:
        place = {"transform": axes.transAxes, "ha": "right", "va": "bottom"}
        axes.text(1, 1.02, drawn_text(panel.text, 40), fontsize=8, **place)


def _line(axes: Axes, series: Series, index: int) -> None:
    name, style = drawn_text(series.label, 40), model_line(index)
    if series.deviation is None:
        axes.plot(series.x, series.y, label=name, **style)
    else:
        marks = {"marker": look(index).marker, "markersize": 4, "capsize": 2.5}
        axes.errorbar(series.x, series.y, yerr=series.deviation, label=name, **marks, **style)


def _dots(axes: Axes, series: Series, index: int) -> None:
    looks = look(index)
    mark = {"color": looks.colour, "marker": looks.marker, "linestyle": "none", "markersize": 3, "alpha": 0.6}
    axes.plot(series.x, series.y, label=drawn_text(series.label, 40), **mark)


def _bars(axes: Axes, series: Series, index: int) -> None:
    style = {"color": look(index).colour, "alpha": 0.45, "edgecolor": "white"}
    axes.bar(series.x, series.y, width=series.width, label=drawn_text(series.label, 40), **style)


def _crosses(axes: Axes, series: Series, index: int) -> None:
    """How many failed, above the axes, where no value can be meant; a line for each series."""
    if not series.x:
        return
    height = 1.03 + 0.06 * (index % 2)
    mark = {"color": look(index % 2).colour, "marker": "x", "linestyle": "none", "markeredgewidth": 2}
    place = {"transform": axes.get_xaxis_transform(), "clip_on": False}
    axes.plot(series.x, [height] * len(series.x), label=drawn_text(series.label, 40), **mark, **place)
    for x, count in zip(series.x, series.y, strict=True):
        axes.annotate(
            f"{count:.0f}", (x, height), xycoords=axes.get_xaxis_transform(), xytext=(5, -3),
            textcoords="offset points", fontsize=7, annotation_clip=False,
        )  # fmt: skip


_STYLES: dict[str, Callable[[Axes, Series, int], None]] = {
    "line": _line,
    "dots": _dots,
    "bars": _bars,
    "crosses": _crosses,
}
