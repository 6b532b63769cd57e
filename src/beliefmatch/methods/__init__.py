"""Methods: what a network is trained towards and how its logits are read, one file each.

A new method is a file with a function that returns a `Method`, and a line in `METHODS`.
The table holds addresses rather than functions so that listing the methods imports none of them.
"""

from __future__ import annotations

from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from beliefmatch.names import require_name, require_options

if TYPE_CHECKING:
    from beliefmatch.methods.base import Method

__all__ = ["METHODS", "build"]

METHODS = {
    "softmax": "beliefmatch.methods.softmax:softmax",
    "label_smoothing": "beliefmatch.methods.label_smoothing:label_smoothing",
    "confidence_penalty": "beliefmatch.methods.confidence_penalty:confidence_penalty",
    "temperature": "beliefmatch.methods.temperature:temperature",
    "mc_dropout": "beliefmatch.methods.mc_dropout:mc_dropout",
    "ensemble": "beliefmatch.methods.ensemble:ensemble",
    "evidential": "beliefmatch.methods.evidential:evidential",
    "prior_network": "beliefmatch.methods.prior_network:prior_network",
    "belief_matching": "beliefmatch.methods.belief_matching:belief_matching",
    "belief_matching_without_kl": "beliefmatch.methods.belief_matching:belief_matching_without_kl",
    "belief_ensemble": "beliefmatch.methods.ensemble:belief_ensemble",
}


def build(name: str, **options: Any) -> Method:
    """Build the method of that name with its own keyword options.

    >>> build("belief_matching", kl_weight=0.003).options
    {'kl_weight': 0.003}
    """
    require_name("build", "name", name, METHODS)
    factory = resolve_name(METHODS[name])
    require_options("build", name, factory, options)
    return factory(**options)
