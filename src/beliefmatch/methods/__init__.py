"""Methods: what a network is trained towards and how its logits are read, one file each.

A new method is a file with a function that returns a `Method`, and a line in `METHODS`.
The table holds addresses rather than functions so that listing the methods imports none of them.
"""

from __future__ import annotations

from pkgutil import resolve_name
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from beliefmatch.methods.base import Method

__all__ = ["METHODS", "build"]

METHODS = {
    "softmax": "beliefmatch.methods.softmax:softmax",
    "belief_matching": "beliefmatch.methods.belief_matching:belief_matching",
}


def build(name: str, **options: float) -> Method:
    """Build the method of that name with its own keyword options.

    >>> build("belief_matching", kl_weight=0.003).options
    {'kl_weight': 0.003}
    """
    if name not in METHODS:
        raise ValueError(f"build: `name` must be one of {', '.join(METHODS)}, got {name!r}.")
    return resolve_name(METHODS[name])(**options)
