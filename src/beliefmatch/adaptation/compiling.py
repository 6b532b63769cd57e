"""Features by a compiled network, where that is possible and changes nothing.

Freezing lets the compiler fold BatchNorm into convolutions and lay out weights for the processor. On two
cores a ResNet-50 computed 33 images a second that way, against 15 to 18.
"""

import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from beliefmatch._validate import level_of_caller
from beliefmatch.adaptation.computing import Computing, largest_difference
from beliefmatch.adaptation.streams import Piece

__all__ = ["TOLERANCE", "verified_compilation"]

TOLERANCE = 1e-4
"""By which compiled features may differ: the norm of the difference over the norm, in every row of the first
batch. Measured on a ResNet-50 they differ by 2e-6."""

_made: WeakKeyDictionary[Any, Callable[[Tensor], Tensor]] = WeakKeyDictionary()


def verified_compilation(computing: Computing, first: Callable[[], Piece]) -> Computing:
    """The same by a compiled network for batches shaped like the first, if that can be made and is close.

    Other batches, such as the last, are computed as before: each shape would have to be compiled anew. Where
    it fails, for want of a C++ compiler or because the network cannot be traced, a warning says so and all
    batches are computed as before.
    """
    piece = first()
    shape = tuple(piece.inputs.shape)
    faster = replace(computing, compiled=_compiled(computing.features_of), compiled_shape=shape)
    try:
        difference = largest_difference(computing, faster, piece)
    except Exception as error:  # whatever a compiler may raise
        lines = f"{error}".strip().splitlines() or [""]
        why = f"{type(error).__name__}: {lines[0][:200]}"
        _warn(f"the network could not be compiled ({why})")
        return computing
    if difference < TOLERANCE:
        return faster
    _warn(f"compiling changes a row of features by {difference:.2g} of its norm, more than {TOLERANCE}")
    return computing


def _compiled(features_of: Any) -> Callable[[Tensor], Tensor]:
    """Compiled once for all sets that are computed with it."""
    try:
        return _made[features_of]
    except (KeyError, TypeError):
        made = _frozen(torch.compile(getattr(features_of, "traceable", features_of), dynamic=False))
    with suppress(TypeError):  # some objects cannot be referred to weakly
        _made[features_of] = made
    return made


def _frozen(compiled: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def call(inputs: Tensor) -> Tensor:
        from torch._inductor import config

        with config.patch(freezing=True):  # read whenever a new shape is compiled; nobody else's setting
            return compiled(inputs)

    return call


def _warn(fact: str) -> None:
    warnings.warn(f"extract: {fact}; computing without.", stacklevel=level_of_caller())
