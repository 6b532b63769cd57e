"""The reliability diagram of the page, as plotly's plain dictionaries."""

from collections.abc import Sequence
from typing import Any

from beliefmatch.experiments.evaluation_record import Bins, EvaluationRecord
from beliefmatch.report.evaluation_bins import DrawnBin, joined, thin
from beliefmatch.report.evaluation_style import look
from beliefmatch.report.evaluation_text import count_text
from beliefmatch.report.plot_parts import Plot, as_text, axis, diagonal, layout, line, rounded, stroke

__all__ = ["reliability_plot"]

_PALE = 0.35
_HOVER = "<b>%{fullData.name}</b><br>confidence %{x:.1%}, accuracy %{y:.1%}<br>%{text}<extra></extra>"


def reliability_plot(models: Sequence[EvaluationRecord]) -> Plot:
    """Accuracy over confidence, and below it the share of examples in each bin."""
    traces = [diagonal()]
    for index, model in enumerate(models):
        for choice, bins in (("width", model.reliability), ("mass", model.reliability_by_mass)):
            common = {"name": as_text(model.name), "meta": {"model": index, "bins": choice}}
            traces += [{**trace, **common} for trace in _bin_traces(index, bins)]
    places = layout(
        axis("confidence", range=[0, 1], dtick=0.2, tickformat=".0%", anchor="y2"),
        axis("accuracy", range=[-0.02, 1.02], dtick=0.2, tickformat=".0%", domain=[0.34, 1]),
        yaxis2=axis(
            "share of the<br>examples", rangemode="tozero", tickformat=".0%", domain=[0, 0.24], nticks=3
        ),
    )
    return Plot(traces, places)


def _bin_traces(index: int, bins: Bins) -> list[dict[str, Any]]:
    """Joined bins, pale ones if there are any, and the shares."""
    total = max(sum(bins.count), 1)
    firm, few = joined(bins), thin(bins)
    traces = [_points(index, firm, total, mode="lines+markers", line=stroke(index))] if firm else []
    if few:
        traces.append(_points(index, few, total, mode="markers", opacity=_PALE))
    return [*traces, _steps(index, bins, total)]


def _points(index: int, found: Sequence[DrawnBin | None], total: int, **options: Any) -> dict[str, Any]:
    colour = look(index).colour
    bars = {
        "type": "data",
        "symmetric": False,
        "array": rounded([drawn and drawn.high - drawn.accuracy for drawn in found]),
        "arrayminus": rounded([drawn and drawn.accuracy - drawn.low for drawn in found]),
        "color": colour,
        "thickness": 1.25,
        "width": 3,
    }
    return line(
        [drawn and drawn.confidence for drawn in found],
        [drawn and drawn.accuracy for drawn in found],
        text=[_about(drawn, total) if drawn else "" for drawn in found],
        connectgaps=False,
        error_y=bars,
        marker={"symbol": look(index).plotly_marker, "size": 8, "color": colour},
        hovertemplate=_HOVER,
        **options,
    )


def _about(drawn: DrawnBin, total: int) -> str:
    interval = f"95\u00a0&#37; interval {100 * drawn.low:.1f} to {100 * drawn.high:.1f}\u00a0&#37;"
    return f"{interval}<br>{_range(drawn.lower, drawn.upper, drawn.examples, total)}"


def _range(low: float, high: float, count: int, total: int) -> str:
    return f"{low:.3g} to {high:.3g}: {count:,} of {count_text(total, 'example')}"


def _steps(index: int, bins: Bins, total: int) -> dict[str, Any]:
    shares = [count / total for count in bins.count]
    columns = zip(bins.lower, bins.upper, bins.count, strict=True)
    about = [_range(low, high, count, total) for low, high, count in columns]
    return line(
        [*bins.lower, *bins.upper[-1:]],
        [*shares, *shares[-1:]],
        yaxis="y2",
        text=[*about, *about[-1:]],
        line={**stroke(index, 1.75), "shape": "hv"},
        hovertemplate="<b>%{fullData.name}</b><br>%{text}<extra></extra>",
    )
