"""Figures of a comparison: what the methods reach and cost, how they learn, how they see a rotated digit."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter, PercentFormatter

from beliefmatch.experiments.records import ComparisonRecord
from beliefmatch.report.comparison_curves import CURVES, learning_curves
from beliefmatch.report.comparison_rows import (
    SeedRow,
    detection_row,
    detection_scores,
    ood_sets,
    presentable_comparison,
    score_rows,
    seed_row,
)
from beliefmatch.report.evaluation_metrics import Metric
from beliefmatch.report.evaluation_style import look
from beliefmatch.report.figure_parts import drawn_text, model_line, rendered
from beliefmatch.report.rotation_figure import rotation_figure

__all__ = ["comparison_figures"]

_KINDS = ("svg", "pdf", "png")
_MOST_SETS = 4  # OOD sets that get a panel
_BESIDE = (4, 3)  # panels in a row, whichever leaves fewer places empty
_TIMES = (
    Metric("train_seconds", "training (s)", "", False),
    Metric("predict_ms_per_image", "prediction (ms an image)", "", False),
)


def comparison_figures(record: ComparisonRecord) -> Iterator[tuple[str, bytes]]:
    """Name and content of each file: the overview, learning curves, and the rotated digit if there is one."""
    shown = presentable_comparison(record, caller="comparison_figures")
    drawings: dict[str, Callable[[], Figure]] = {"overview": partial(_overview, shown)}
    if any(learning_curves(shown, key) for key, _ in CURVES):
        drawings["learning_curves"] = partial(_learning, shown)
    if shown.rotated_digit is not None and all(method.runs[0].rotation for method in shown.methods):
        drawings["rotated_digit"] = partial(rotation_figure, shown, shown.rotated_digit)
    for name, draw in drawings.items():
        yield from rendered(name, draw, _KINDS)


class _Panel(NamedTuple):
    title: str
    row: SeedRow
    is_time: bool = False


def _panels(record: ComparisonRecord) -> list[_Panel]:
    error, nll, _, ece, _ = score_rows(record)
    panels = [_Panel("error ↓", error), _Panel("NLL (nats) ↓", nll), _Panel("ECE ↓", ece)]
    for score in detection_scores(record)[:1]:
        for name in ood_sets(record)[:_MOST_SETS]:
            title = f"AUROC, {drawn_text(name, 20)} ↑"
            panels.append(_Panel(title, detection_row(record, name, score)))
    for metric in _TIMES:
        row = seed_row(record, metric, lambda run, key=metric.key: getattr(run.costs, key))
        panels.append(_Panel(metric.title, row, is_time=True))
    return panels


def _overview(record: ComparisonRecord) -> Figure:
    """A panel a number, a line a method: the mean, one standard deviation to both sides, and each seed."""
    panels = _panels(record)
    columns = min(_BESIDE, key=lambda count: -len(panels) % count)
    lines = -(-len(panels) // columns)
    labels = [drawn_text(method.label, 36) for method in record.methods]
    width = 1.2 + 0.055 * max(map(len, labels)) + 1.9 * columns
    figure = Figure(figsize=(width, (0.75 + 0.26 * len(labels)) * lines + 0.3), layout="constrained")
    grid = list(figure.subplots(lines, columns, squeeze=False, sharey=True).flat)
    for axes, panel in zip(grid, panels, strict=False):
        _draw_panel(axes, panel)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    grid[0].set_yticks(range(len(labels)), labels)
    grid[0].set_ylim(len(labels) - 0.5, -0.5)
    figure.supxlabel(_overview_note(record), fontsize=8, color="#555555")
    return figure


def _overview_note(record: ComparisonRecord) -> str:
    several = max(len(method.runs) for method in record.methods) > 1
    note = "dots: mean, bars: one standard deviation, small: each seed" if several else "one seed"
    sets = len(ood_sets(record))
    return f"{note}; {_MOST_SETS} of {sets} OOD sets" if sets > _MOST_SETS else note


def _draw_panel(axes: Axes, panel: _Panel) -> None:
    for index, (mean, values) in enumerate(zip(panel.row.means(), panel.row.values, strict=True)):
        looks = look(index)
        present = [value for value in values if value is not None]
        if len(present) > 1:
            axes.plot(present, [index] * len(present), ".", color=looks.colour, alpha=0.45, markersize=4)
        if mean.value is None:
            middle = {"transform": axes.get_yaxis_transform(), "ha": "center", "va": "center"}
            axes.text(0.5, index, panel.row.gap, **middle)
            continue
        bar = 0 if mean.high is None else mean.high - mean.value
        style = {"color": looks.colour, "marker": looks.marker, "markersize": 6, "elinewidth": 1.4}
        axes.errorbar(mean.value, index, xerr=bar or None, capsize=2.5, **style)
    axes.set_title(panel.title)
    axes.tick_params(axis="y", length=0)
    axes.locator_params(axis="x", nbins=4)
    if panel.row.metric.is_share:
        axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    if panel.is_time:
        _scale_times(axes, panel.row)


def _scale_times(axes: Axes, row: SeedRow) -> None:
    """From zero on, or in powers of ten where the small times would lie on each other."""
    present = [mean.value for mean in row.means() if mean.value]
    if len(present) > 1 and max(present) > 20 * min(present):
        axes.set_xscale("log")
        axes.set_xlim(min(present) / 2, max(present) * 2)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_xlim(0, 1.1 * max(present, default=1.0))


def _learning(record: ComparisonRecord) -> Figure:
    """Training loss and validation error by epoch: networks thin, the mean of each method thick."""
    kept = [(key, title) for key, title in CURVES if learning_curves(record, key)]
    figure = Figure(figsize=(4.4 * len(kept), 3.7), layout="constrained")
    grid = figure.subplots(1, len(kept), squeeze=False)[0]
    for axes, (key, title) in zip(grid, kept, strict=True):
        for index, found in learning_curves(record, key).items():
            thin = {"color": look(index).colour, "alpha": 0.25, "linewidth": 0.6}
            for values in found.networks if len(found.networks) > 1 else []:
                axes.plot(found.epochs, values, **thin)
            axes.plot(found.epochs, found.mean, **model_line(index))
        axes.set(xlabel="epoch", title=title)
        if key.endswith("error"):
            axes.yaxis.set_major_formatter(PercentFormatter(1.0))
            axes.set_ylim(bottom=0)
    _legend(figure, [method.label for method in record.methods])
    return figure


def _legend(figure: Figure, labels: Sequence[str]) -> None:
    handles = [Line2D([], [], **model_line(index)) for index in range(len(labels))]
    texts = [drawn_text(label, 36) for label in labels]
    columns = max(int(figure.get_figwidth() / (0.65 + 0.075 * max(map(len, texts)))), 1)
    figure.legend(handles, texts, loc="outside lower center", ncols=min(columns, len(texts), 4))
