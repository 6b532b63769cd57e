"""Plots of an adaptation's page: what every λ reached, and how the heads of the table learned."""

from collections.abc import Callable

from beliefmatch.experiments.adapt_record import AdaptRecord, TriedHead
from beliefmatch.report.adaptation_rows import (
    ChoiceSeries,
    choice_series,
    kl_weights,
    line_titles,
    reference_lines,
)
from beliefmatch.report.evaluation_style import look
from beliefmatch.report.evaluation_text import number_text
from beliefmatch.report.page_sections import Card
from beliefmatch.report.page_words import DataRow, DataTable, percent
from beliefmatch.report.plot_parts import Plot, as_text, axis, layout, line, stroke

__all__ = ["adaptation_cards"]

_CHOICE = (("nll", "Validation NLL (nats)"), ("ece", "Validation ECE"), ("error", "Validation error"))


def adaptation_cards(record: AdaptRecord) -> dict[str, list[Card]]:
    """Every plot of the adaptation, by its section."""
    choice = [_choice_card(record, key, title) for key, title in _CHOICE] if choice_series(record) else []
    fitted = _fitted(record)
    return {"choice": choice, "fitting": [_fitting_card(record, fitted)] if fitted else []}


def _texts(key: str) -> tuple[Callable[[float | None], str], str]:
    """How a value is written, and its form for plotly."""
    if key == "nll":
        return (lambda value: number_text(value, 4)), ".4f"
    return (lambda value: percent(value, 2)), ".2%"


def _choice_card(record: AdaptRecord, key: str, title: str) -> Card:
    text, form = _texts(key)
    found, titles = choice_series(record), line_titles(record)
    weights = kl_weights(record)
    traces = [trace for series in found for trace in _series_traces(record, series, key, form)]
    for place, value in reference_lines(record, key).items():
        hover = f"<b>%{{fullData.name}}</b><br>%{{y:{form}}}<extra></extra>"
        common = {"name": as_text(titles[place]), "meta": {"model": place}, "hovertemplate": hover}
        ends = [weights[0], weights[-1]]
        traces.append(line(ends, [value, value], line=stroke(place, 1.4), opacity=0.85, **common))
    ticks = {"type": "log", "tickvals": weights, "ticktext": [f"{one:g}" for one in weights]}
    y = axis("", tickformat="" if key == "nll" else "~p" if key == "ece" else ".2%")
    plot = Plot(traces, layout(axis("λ", **ticks), y))
    rows = [
        DataRow(
            [series.title, f"{point.kl_weight:g}", text(point.mean(key)), "chosen" if point.chosen else ""],
            record.row_labels.index(series.label),
        )
        for series in found
        for point in series.points
    ]
    table = DataTable(["head", "λ", title, ""], rows)
    return Card(f"choice-{key}", title, _choice_words(found, key, title, text), plot, table)


def _series_traces(record: AdaptRecord, series: ChoiceSeries, key: str, form: str) -> list[dict]:
    place = record.row_labels.index(series.label)
    common = {"name": as_text(series.title), "meta": {"model": place}}
    weights = [point.kl_weight for point in series.points]
    means = [point.mean(key) for point in series.points]
    hover = f"<b>%{{fullData.name}}</b><br>λ = %{{x}}: %{{y:{form}}}<extra></extra>"
    mark = {"symbol": look(place).plotly_marker, "size": 8, "color": look(place).colour}
    traces = [
        line(
            weights,
            means,
            mode="lines+markers",
            line=stroke(place),
            marker=mark,
            hovertemplate=hover,
            **common,
        )
    ]
    chosen = [point for point in series.points if point.chosen]
    if chosen:
        ring = {"symbol": "circle-open", "size": 18, "color": look(place).colour, "line": {"width": 2.5}}
        quiet = {"mode": "markers", "marker": ring, "hoverinfo": "skip", "hovertemplate": None}
        traces.append(line([p.kl_weight for p in chosen], [p.mean(key) for p in chosen], **quiet, **common))
    return traces


def _choice_words(
    found: list[ChoiceSeries], key: str, title: str, text: Callable[[float | None], str]
) -> str:
    parts = []
    for series in found:
        points = [point for point in series.points if point.mean(key) is not None]
        if points:
            least = min(points, key=lambda point: point.mean(key) or 0.0)
            parts.append(f"{series.title}: least {text(least.mean(key))} at λ = {least.kl_weight:g}")
    chosen = [f" Chosen: λ = {one.kl_weight:g}." for series in found for one in series.points if one.chosen]
    return f"{title} against λ. {'; '.join(parts)}.{''.join(chosen)}"


def _fitted(record: AdaptRecord) -> dict[int, TriedHead]:
    """The delivered head of each line that has a curve, by the place of the line."""
    tried = {one.name: one for one in record.tried}
    names = [record.delivered(label).name for label in record.row_labels]
    return {
        place: tried[name]
        for place, name in enumerate(names)
        if name in tried and len(tried[name].curve.epoch) > 1
    }


def _fitting_card(record: AdaptRecord, fitted: dict[int, TriedHead]) -> Card:
    titles = line_titles(record)
    hover = "<b>%{fullData.name}</b><br>epoch %{x}: %{y:.4f}<extra></extra>"
    traces, rows, parts = [], [], []
    for place, head in fitted.items():
        epochs, nll = head.curve.epoch, head.curve.nll
        common = {"name": as_text(titles[place]), "meta": {"model": place}, "hovertemplate": hover}
        traces.append(line([float(epoch) for epoch in epochs], nll, line=stroke(place), **common))
        rows += [
            DataRow([titles[place], str(epoch), number_text(value, 4)], place)
            for epoch, value in zip(epochs, nll, strict=True)
        ]
        parts.append(f"{titles[place]}: {number_text(nll[0], 4)} to {number_text(nll[-1], 4)}")
    plot = Plot(traces, layout(axis("epoch"), axis("validation NLL (nats)")))
    words = f"Validation NLL by epoch. {'; '.join(parts)}."
    return Card("fitting", "Validation NLL by epoch", words, plot, DataTable(["head", "epoch", "NLL"], rows))
