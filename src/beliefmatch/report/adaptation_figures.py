"""Figures of an adaptation: what every λ reached on validation examples, entropies, reliability."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, PercentFormatter

from beliefmatch.experiments.adapt_record import AdaptRecord
from beliefmatch.experiments.evaluation_record import EvaluationRecord
from beliefmatch.report.adaptation_page import named_evaluations
from beliefmatch.report.adaptation_rows import (
    ChoiceSeries,
    before_label,
    choice_series,
    kl_weights,
    line_titles,
    presentable_adaptation,
    reference_lines,
)
from beliefmatch.report.evaluation_figures import entropy_figure, figure_name, reliability_figure
from beliefmatch.report.evaluation_style import look
from beliefmatch.report.evaluation_text import ood_names
from beliefmatch.report.figure_parts import drawn_text, model_line, rendered

__all__ = ["adaptation_figures"]

_KINDS = ("svg", "pdf", "png")
_PANELS = (("nll", "validation NLL (nats)"), ("ece", "validation ECE"), ("error", "validation error"))


def adaptation_figures(
    record: AdaptRecord, evaluations: Sequence[EvaluationRecord]
) -> Iterator[tuple[str, bytes]]:
    """Name and content of each file: the choice of λ, then before and after.

    Args:
        record: the adaptation.
        evaluations: one for each line of its table, in their order.
    """
    shown = presentable_adaptation(record, caller="adaptation_figures")
    models = named_evaluations(shown, evaluations, caller="adaptation_figures")
    pair = _before_and_after(shown, models)
    drawings: dict[str, Callable[[], Figure]] = {"reliability": partial(reliability_figure, pair)}
    if choice_series(shown):
        drawings = {"choice_of_lambda": partial(_choice, shown), **drawings}
    for ood in ood_names(pair):
        drawings[figure_name(f"entropy_{ood}", drawings)] = partial(entropy_figure, pair, ood)
    for name, draw in drawings.items():
        yield from rendered(name, draw, _KINDS)


def _before_and_after(record: AdaptRecord, models: Sequence[EvaluationRecord]) -> list[EvaluationRecord]:
    by_label = dict(zip(record.row_labels, models, strict=True))
    return [by_label[label] for label in (before_label(record), record.new_label) if label is not None]


def _choice(record: AdaptRecord) -> Figure:
    """A panel a metric: means over the seeds by λ, each seed small, the chosen one ringed."""
    figure = Figure(figsize=(3.2 * len(_PANELS), 3.5), layout="constrained")
    panels = list(figure.subplots(1, len(_PANELS)))
    for axes, (key, title) in zip(panels, _PANELS, strict=True):
        for series in choice_series(record):
            _draw_series(axes, series, key, record.row_labels.index(series.label))
        _draw_references(axes, record, key)
        axes.set(xscale="log", xlabel="λ", title=title)
        axes.set_xticks(weights := kl_weights(record), [f"{weight:g}" for weight in weights])
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.tick_params(axis="x", labelsize=8, rotation=30)
        if key != "nll":
            axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    _legend(figure, panels)
    return figure


def _legend(figure: Figure, panels: Sequence[Axes]) -> None:
    """Every name once, in whichever panel it stands."""
    found = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    figure.legend(found.values(), found.keys(), loc="outside lower center", ncols=4)


def _draw_series(axes: Axes, series: ChoiceSeries, key: str, index: int) -> None:
    points = [point for point in series.points if point.mean(key) is not None]
    looks = look(index)
    for point in points:
        values = getattr(point, key)
        if len(values) > 1:
            small = {"color": looks.colour, "alpha": 0.4, "markersize": 4}
            axes.plot([point.kl_weight] * len(values), values, ".", **small)
    xs, ys = [point.kl_weight for point in points], [point.mean(key) or 0.0 for point in points]
    style = {"marker": looks.marker, "markersize": 4.5, **model_line(index)}
    axes.plot(xs, ys, label=drawn_text(series.title, 36), **style)
    for point in points:
        if point.chosen:
            ring = {"marker": "o", "markersize": 11, "markerfacecolor": "none", "linestyle": ""}
            axes.plot([point.kl_weight], [point.mean(key) or 0.0], color="#222222", label="chosen λ", **ring)


def _draw_references(axes: Axes, record: AdaptRecord, key: str) -> None:
    """Heads without a λ, as level lines."""
    titles = line_titles(record)
    for index, value in reference_lines(record, key).items():
        style = {**model_line(index), "linewidth": 1.0, "alpha": 0.8}
        axes.axhline(value, label=drawn_text(titles[index], 36), **style)
