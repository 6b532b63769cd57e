"""How methods are named and coloured, the same in every table and figure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # reading records of comparisons imports torch, which the report of an evaluation does not
    from beliefmatch.experiments.records import RunRecord

__all__ = ["COLOURS", "MARKERS", "method_label", "method_name"]

# Okabe and Ito's palette, which colour-blind readers tell apart; markers serve prints in grey.
COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P")

_SYMBOLS = {"kl_weight": "λ"}


def method_name(method: str) -> str:
    """The name in words, such as "belief matching"."""
    return method.replace("_", " ")


def method_label(run: RunRecord) -> str:
    """The method's name with the options that made it, such as "belief matching (λ = 0.001)"."""
    name = method_name(run.method)
    options = ", ".join(f"{_SYMBOLS.get(key, key)} = {value:g}" for key, value in run.options.items())
    return f"{name} ({options})" if options else name
