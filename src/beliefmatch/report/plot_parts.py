"""What the plots of the page are made of: plotly's plain dictionaries for lines, axes and layouts."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from beliefmatch.report.evaluation_style import look
from beliefmatch.report.evaluation_text import shorten

__all__ = ["REFERENCE", "Plot", "as_text", "axis", "diagonal", "layout", "line", "rounded", "stroke"]

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


def axis(title: str, **options: Any) -> dict[str, Any]:
    """An axis; `options` go before what is common."""
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


def layout(x: dict[str, Any], y: dict[str, Any], **more: Any) -> dict[str, Any]:
    """What all plots have in common, around two axes."""
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


def line(curve_x: Sequence[float | None], curve_y: Sequence[float | None], **options: Any) -> dict[str, Any]:
    """A trace through points; a None makes a gap."""
    return {
        "type": "scatter",
        "mode": "lines",
        "x": rounded(curve_x),
        "y": rounded(curve_y),
        "hovertemplate": "<b>%{fullData.name}</b><br>%{x:.3f}, %{y:.3f}<extra></extra>",
        **options,
    }


def stroke(index: int, width: float = 2.25) -> dict[str, Any]:
    """Colour and dash of a model."""
    looks = look(index)
    dash = ",".join(f"{length}px" for length in looks.dash.split())
    return {"color": looks.colour, "width": width, "dash": dash or "solid"}


def diagonal() -> dict[str, Any]:
    """The dashed line on which both axes agree."""
    stroke = {"color": REFERENCE, "width": 1, "dash": "4px,4px"}
    return line([0, 1], [0, 1], line=stroke, hoverinfo="skip", hovertemplate=None, name="")
