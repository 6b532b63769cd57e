"""Colours, dashes and markers: a method looks the same in every figure of every page.

Colours are Okabe and Ito's, which colour-blind readers tell apart, with Tol's olive and a grey; dashes and
markers serve prints without colour. Methods that the package knows have a colour of their own; other names
take the colours that are used least, with other dashes where all are in use.
"""

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["INK", "REFERENCE", "Look", "looks"]

INK = "ink"
"""The colour of text, which depends on the theme of a page."""
REFERENCE = "#8a929b"
"""The colour of diagonals and of what belongs to no model."""

_COLOURS: tuple[str, ...] = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#999933", INK, "#D55E00")
_DASHES = ("", "7 3", "2.5 2", "8 3 2 3", "4 2", "11 3 3 3 3 3", "14 4")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_METHODS: dict[str, str] = {
    "belief matching": "#D55E00",
    "belief_matching": "#D55E00",
    "softmax": "#0072B2",
    "untouched": INK,
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
    known = [_known(name) for name in names]
    uses = dict.fromkeys(_COLOURS, 0)
    for colour in filter(None, known):
        uses[colour] += 1
    colours = []
    for colour in known:
        if colour is None:
            colour = min(_COLOURS, key=lambda one: uses[one])
            uses[colour] += 1
        colours.append(colour)
    found = []
    for place, colour in enumerate(colours):
        dash = _DASHES[colours[:place].count(colour) % len(_DASHES)]
        found.append(Look(colour, dash, _MARKERS[place % len(_MARKERS)]))
    return found


def _known(name: str) -> str | None:
    """The colour of a method by the beginning of its name."""
    lower = name.lower()
    return next((colour for method, colour in _METHODS.items() if lower.startswith(method)), None)
