"""Methods: an objective to train a network with, and a way to read its logits.

A new method is a function that returns a `Method`, and a line in `METHODS`. The table has addresses rather
than functions, so that listing the methods imports none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from beliefmatch._errors import fail
from beliefmatch._utils import require_name, require_options

if TYPE_CHECKING:
    from beliefmatch.methods.base import Method

__all__ = ["AUTO", "METHODS", "SEARCH", "build", "trials"]

METHODS = {
    "softmax": "beliefmatch.methods.cross_entropy:softmax",
    "label_smoothing": "beliefmatch.methods.cross_entropy:label_smoothing",
    "confidence_penalty": "beliefmatch.methods.cross_entropy:confidence_penalty",
    "temperature": "beliefmatch.methods.temperature:temperature",
    "mc_dropout": "beliefmatch.methods.mc_dropout:mc_dropout",
    "ensemble": "beliefmatch.methods.ensemble:ensemble",
    "evidential": "beliefmatch.methods.evidential:evidential",
    "prior_network": "beliefmatch.methods.prior_network:prior_network",
    "belief_matching": "beliefmatch.methods.belief_matching:belief_matching",
    "belief_matching_without_kl": "beliefmatch.methods.belief_matching:belief_matching_without_kl",
    "belief_ensemble": "beliefmatch.methods.ensemble:belief_ensemble",
}

AUTO = "auto"
"""Value of an option that is to be chosen from its grid by validation error."""

SEARCH: dict[str, tuple[str, tuple[float, ...]]] = {
    "belief_matching": ("kl_weight", (0.01, 0.003, 0.001)),  # the paper's table 1
    "belief_ensemble": ("kl_weight", (0.01, 0.003, 0.001)),  # the same
    "mc_dropout": ("rate", (0.1, 0.2, 0.5)),  # the paper's table 1
    "label_smoothing": ("matched_kl_weight", (0.01, 0.003, 0.001)),  # belief matching's, to be its control
}
"""The option of a method that can be `AUTO`, and the values to try."""


def trials(name: str, options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The options of each training that a search needs; only the given ones if none of them is `AUTO`.

    >>> trials("mc_dropout", {"rate": "auto", "samples": 50})[2]
    {'rate': 0.5, 'samples': 50}
    """
    require_name("trials", "name", name, METHODS)
    searched = [option for option, value in options.items() if value == AUTO]
    if not searched:
        return [dict(options)]
    option, values = SEARCH.get(name, ("", ()))
    if searched != [option]:
        wrong = next(one for one in searched if one != option)
        grids = ", ".join(f"{method}'s `{option}`" for method, (option, _) in SEARCH.items())
        raise fail("trials", f"{AUTO} must be for one of {grids}, got {name}'s `{wrong}`.")
    return [{**options, option: value} for value in values]


def build(name: str, **options: Any) -> Method:
    """Build the method of that name with its own keyword options.

    >>> build("belief_matching", kl_weight=0.003).options
    {'kl_weight': 0.003}
    """
    require_name("build", "name", name, METHODS)
    if AUTO in options.values():
        raise fail(
            "build", f"options of {name} must be values, got {AUTO}; `trials` has those to choose from."
        )
    factory = resolve_name(METHODS[name])
    require_options("build", name, factory, options)
    return factory(**options)
