"""Colours, dashes and markers of the models, the same in the page and in the figures."""

from typing import NamedTuple

__all__ = ["Look", "look"]

# Okabe and Ito's six that show on white and on black, their black, and Tol's olive: colour-blind readers tell
# them apart, and dashes and markers serve prints in grey.
_COLOURS = (
    "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999933",
)  # fmt: skip
# As plotly and SVG know them: lengths of stroke and gap in pixels.
_DASHES = ("", "8 3", "3 2.5", "9 3 2 3", "5 2", "12 3 3 3 3 3", "14 4", "4 4")
_PLOTLY_MARKERS = (
    "circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x", "star",
)  # fmt: skip
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


class Look(NamedTuple):
    """How one model is drawn everywhere."""

    colour: str
    dash: str
    """Stroke lengths in pixels; empty for a solid line."""
    plotly_marker: str
    marker: str


def look(index: int) -> Look:
    """The look of the model that stands at `index`; after eight models it repeats."""
    place = index % len(_COLOURS)
    return Look(_COLOURS[place], _DASHES[place], _PLOTLY_MARKERS[place], _MARKERS[place])
