"""The plots of the page, as plotly's plain dictionaries. Names are data: plotly must read them as text."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from beliefmatch.experiments.evaluation_record import Bins, Curve, EvaluationRecord, Promise
from beliefmatch.report.evaluation_rows import detection_of, score_names
from beliefmatch.report.evaluation_style import look
from beliefmatch.report.evaluation_text import class_label, shorten, threshold_text

__all__ = [
    "Plot",
    "class_plot",
    "confusion_plot",
    "entropy_plot",
    "reliability_plot",
    "risk_coverage_plot",
    "roc_plot",
]

REFERENCE = "#808080"  # shows on white and on black
_TEXT = "#333333"  # the page's style sheet replaces these by the colours of the theme
_GRID = "#E4E4E4"


@dataclass(frozen=True)
class Plot:
    """Traces with the model they belong to in `meta`, and a layout."""

    data: list[dict[str, Any]]
    layout: dict[str, Any] = field(default_factory=dict)


def as_text(name: str, width: int = 40) -> str:
    """A name in which plotly finds neither tags nor entities nor templates."""
    return escape(shorten(name, width), quote=False).replace("%", "&#37;").replace("$", "&#36;")


def rounded(values: Sequence[float | None]) -> list[float | None]:
    """Five digits are more than a screen shows, and make a smaller page."""
    return [None if value is None else float(f"{value:.5g}") for value in values]


def _axis(title: str, **options: Any) -> dict[str, Any]:
    return {
        "title": {"text": title, "standoff": 8},
        "zeroline": False,
        "showline": True,
        "linecolor": REFERENCE,
        "gridcolor": _GRID,
        "ticks": "outside",
        "tickcolor": REFERENCE,
        "ticklen": 4,
        "automargin": True,
        **options,
    }


def _layout(x: dict[str, Any], y: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "autosize": True,
        "margin": {"l": 56, "r": 24, "t": 10, "b": 48},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 12.5, "color": _TEXT},
        "hovermode": "closest",
        "hoverlabel": {"align": "left", "font": {"family": "system-ui, sans-serif", "size": 13}},
        "showlegend": False,
        "xaxis": x,
        "yaxis": y,
        **more,
    }


def _line(curve_x: Sequence[float | None], curve_y: Sequence[float | None], **options: Any) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "x": rounded(curve_x),
        "y": rounded(curve_y),
        "hovertemplate": "<b>%{fullData.name}</b><br>%{x:.3f}, %{y:.3f}<extra></extra>",
        **options,
    }


def _stroke(index: int, width: float = 2.25) -> dict[str, Any]:
    looks = look(index)
    dash = ",".join(f"{length}px" for length in looks.dash.split())
    return {"color": looks.colour, "width": width, "dash": dash or "solid"}


def _diagonal() -> dict[str, Any]:
    stroke = {"color": REFERENCE, "width": 1, "dash": "4px,4px"}
    return _line([0, 1], [0, 1], line=stroke, hoverinfo="skip", hovertemplate=None, name="")


def reliability_plot(models: Sequence[EvaluationRecord]) -> Plot:
    """Accuracy over confidence, and below it the share of examples in each group."""
    traces = [_diagonal()]
    for index, model in enumerate(models):
        for choice, bins in (("width", model.reliability), ("mass", model.reliability_by_mass)):
            traces += _bin_traces(index, model.name, choice, bins)
    layout = _layout(
        _axis("confidence", range=[0, 1], dtick=0.2, tickformat=".0%", anchor="y2"),
        _axis("accuracy", range=[-0.02, 1.02], dtick=0.2, tickformat=".0%", domain=[0.32, 1]),
        yaxis2=_axis("share", rangemode="tozero", tickformat=".0%", domain=[0, 0.22], nticks=3),
    )
    return Plot(traces, layout)


def _bin_traces(index: int, name: str, choice: str, bins: Bins) -> list[dict[str, Any]]:
    total = max(sum(bins.count), 1)
    about = [
        f"{low:.3g} to {high:.3g}: {count} of {total} examples"
        for low, high, count in zip(bins.lower, bins.upper, bins.count, strict=True)
    ]
    common = {"name": as_text(name), "meta": {"model": index, "bins": choice}, "text": about}
    full = [place for place, count in enumerate(bins.count) if count]
    points = _line(
        [bins.confidence[place] for place in full],
        [bins.accuracy[place] for place in full],
        mode="lines+markers",
        line=_stroke(index),
        marker={"symbol": look(index).plotly_marker, "size": 8, "color": look(index).colour},
        hovertemplate="<b>%{fullData.name}</b><br>confidence %{x:.1%}, accuracy %{y:.1%}"
        "<br>%{text}<extra></extra>",
    )
    shares = [count / total for count in bins.count]
    steps = _line(
        [*bins.lower, *bins.upper[-1:]],
        [*shares, *shares[-1:]],
        yaxis="y2",
        line={**_stroke(index, 1.75), "shape": "hv"},
        hovertemplate="<b>%{fullData.name}</b><br>%{text}<extra></extra>",
    )
    return [
        {**points, **common, "text": [about[place] for place in full]},
        {**steps, **common, "text": [*about, *about[-1:]]},
    ]


def entropy_plot(
    models: Sequence[EvaluationRecord], index: int, foreign: str, strange: Curve | None, top: float
) -> Plot:
    """The entropy's density of one model on known and on foreign examples; `top` is shared by the panels."""
    model, looks = models[index], look(index)
    hover = "<b>%{fullData.name}</b><br>entropy %{x:.2f}, density %{y:.2f}<extra></extra>"
    meta = {"model": index}
    known = _line(
        model.entropy.x,
        model.entropy.y,
        name="test examples",
        meta=meta,
        fill="tozeroy",
        fillcolor="rgba(128,128,128,0.25)",
        line={"color": REFERENCE, "width": 1.75},
        hovertemplate=hover,
    )
    traces = [known]
    if strange is not None:
        line = {"color": looks.colour, "width": 2.25, "dash": "6px,2.5px"}
        options = {"fill": "tozeroy", "fillcolor": _tint(looks.colour), "line": line, "meta": meta}
        traces.append(_line(strange.x, strange.y, name=as_text(foreign, 24), hovertemplate=hover, **options))
    x = _axis("predictive entropy (nats)", range=[0, max([*model.entropy.x, 0.01])])
    y = _axis("density", range=[0, 1.06 * top], nticks=4)
    return Plot(traces, _layout(x, y, margin={"l": 48, "r": 16, "t": 8, "b": 44}))


def _tint(colour: str) -> str:
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.16)"


def roc_plot(models: Sequence[EvaluationRecord], name: str | None) -> Plot:
    """One curve for each model and score; the page shows one score at a time."""
    hover = "<b>%{fullData.name}</b><br>FPR %{x:.1%}, TPR %{y:.1%}<extra></extra>"
    traces = [_diagonal()]
    for score in score_names(models):
        for index, model in enumerate(models):
            found = detection_of(model, name, score)
            if found is not None and found.roc.x:
                meta = {"model": index, "score": score}
                options = {"name": as_text(model.name), "meta": meta, "line": _stroke(index)}
                traces.append(_line(found.roc.x, found.roc.y, hovertemplate=hover, **options))
    x = _axis("false positive rate", range=[-0.01, 1], dtick=0.2, tickformat=".0%")
    y = _axis("true positive rate", range=[0, 1.02], tickformat=".0%")
    return Plot(traces, _layout(x, y))


def risk_coverage_plot(models: Sequence[EvaluationRecord]) -> Plot:
    """The error among the most confident answers, and what can be promised of it."""
    hover = "<b>%{fullData.name}</b><br>answers %{x:.1%}, errs in %{y:.2%} of them<extra></extra>"
    traces = []
    for index, model in enumerate(models):
        curve, common = model.risk_coverage, {"name": as_text(model.name), "meta": {"model": index}}
        traces.append(_line(curve.x, curve.y, line=_stroke(index), hovertemplate=hover, **common))
        kept = [promise for promise in model.promises if promise.threshold is not None]
        traces.append(
            _line(
                [promise.coverage for promise in kept],
                [promise.risk for promise in kept],
                mode="markers",
                text=[_promise_text(promise) for promise in kept],
                marker={
                    "symbol": f"{look(index).plotly_marker}-open",
                    "size": 11,
                    "color": look(index).colour,
                    "line": {"width": 2},
                },
                hovertemplate="<b>%{fullData.name}</b><br>%{text}<extra></extra>",
                **common,
            )
        )
    x = _axis("coverage (share answered)", range=[0, 1.02], tickformat=".0%")
    y = _axis("risk (error among answers)", rangemode="tozero", tickformat=".1~%")
    return Plot(traces, _layout(x, y))


def _promise_text(promise: Promise) -> str:
    return (
        f"promise: error below {100 * promise.risk:g}\u2009&#37;<br>answers {100 * promise.coverage:.1f}"
        f"\u2009&#37;, at confidence of at least {threshold_text(promise.threshold)}"
    )


def class_plot(models: Sequence[EvaluationRecord], chosen: Sequence[int]) -> Plot:
    """The calibration error of each chosen class, one mark a model."""
    rows = {index: len(chosen) - 1 - place for place, index in enumerate(chosen)}
    traces = []
    for index, model in enumerate(models):
        shown = [scores for scores in model.classes if scores.index in rows]
        traces.append(
            _line(
                [scores.calibration_error for scores in shown],
                [rows[scores.index] for scores in shown],
                mode="markers",
                name=as_text(model.name),
                meta={"model": index},
                text=[as_text(class_label(model, scores.index)) for scores in shown],
                marker={"symbol": look(index).plotly_marker, "size": 9, "color": look(index).colour},
                hovertemplate="<b>%{fullData.name}</b><br>%{text}: %{x:.2%}<extra></extra>",
            )
        )
    labels = [as_text(class_label(models[0], index), 18) for index in chosen]
    ticks = {"tickvals": [rows[index] for index in chosen], "ticktext": labels}
    y = _axis("", range=[-0.7, len(chosen) - 0.3], ticks="", showline=False, **ticks)
    x = _axis("calibration error of the class", rangemode="tozero", tickformat=".1~%")
    return Plot(
        traces, _layout(x, y, height=70 + 22 * len(chosen), margin={"l": 20, "r": 12, "t": 4, "b": 48})
    )


def confusion_plot(model: EvaluationRecord, matrix: list[list[int]], index: int) -> Plot:
    """A heat map of many classes: shares of each true class, so that rare classes show as well."""
    labels = [as_text(class_label(model, place), 14) for place in range(len(matrix))]
    shares = [rounded([count / max(sum(row), 1) for count in row]) for row in matrix]
    about = [
        [f"true {labels[i]}<br>predicted {labels[j]}<br>{count} examples" for j, count in enumerate(row)]
        for i, row in enumerate(matrix)
    ]
    trace = {
        "type": "heatmap",
        "z": shares,
        "text": about,
        "meta": {"model": index},
        "zmin": 0,
        "zmax": 1,
        "colorscale": [[0, "rgba(0,114,178,0)"], [0.05, "rgba(0,114,178,0.35)"], [1, "rgba(0,114,178,1)"]],
        "showscale": False,
        "hovertemplate": "%{text}, %{z:.1%} of the class<extra></extra>",
    }
    x = _axis("predicted class", constrain="domain", showgrid=False)
    y = _axis("true class", autorange="reversed", scaleanchor="x", constrain="domain", showgrid=False)
    return Plot([trace], _layout(x, y))
