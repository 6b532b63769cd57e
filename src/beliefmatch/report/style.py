"""Colours, dashes and markers: a method looks the same in every figure of every page.

Colours are Okabe and Ito's, which colour-blind readers tell apart, with Tol's olive and a grey; dashes and
markers serve prints without colour. Methods that the package knows have a colour of their own; other names
take the remaining ones in their order, and after these the same colours with other dashes.
"""

from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

__all__ = ["INK", "REFERENCE", "Look", "looks"]

INK = "ink"
"""The colour of text, which depends on the theme of a page."""
REFERENCE = "#8a929b"
"""The colour of diagonals and of what belongs to no model."""

_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#999933", INK, "#D55E00")
_DASHES = ("", "7 3", "2.5 2", "8 3 2 3", "4 2", "11 3 3 3 3 3", "14 4")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_METHODS = {
    "belief matching": "#D55E00",
    "belief_matching": "#D55E00",
    "softmax": "#0072B2",
    "untouched": "#0072B2",
    "label smoothing": "#009E73",
    "label_smoothing": "#009E73",
    "mc dropout": "#E69F00",
    "ensemble": "#CC79A7",
    "deep ensemble": "#CC79A7",
    "evidential": "#56B4E9",
    "prior network": "#999933",
    "confidence penalty": INK,
    "laplace": "#56B4E9",
    "temperature": "#E69F00",
}


class Look(NamedTuple):
    """How one model is drawn everywhere."""

    colour: str
    dash: str = ""
    """Stroke lengths in points; empty for a solid line."""
    marker: str = "o"


def looks(names: Sequence[str]) -> list[Look]:
    """One look for each name; no two are alike, however many there are up to 56."""
    colours = [_known(name) for name in names]
    free = [colour for colour in _COLOURS if colour not in colours] or list(_COLOURS)
    others = count()
    uses: dict[str, int] = {}
    found = []
    for place, known in enumerate(colours):
        colour = known or free[next(others) % len(free)]
        used = uses.get(colour, 0)
        uses[colour] = used + 1
        found.append(Look(colour, _DASHES[used % len(_DASHES)], _MARKERS[place % len(_MARKERS)]))
    return found


def _known(name: str) -> str | None:
    """The colour of a method by the beginning of its name."""
    lower = name.lower()
    return next((colour for method, colour in _METHODS.items() if lower.startswith(method)), None)
