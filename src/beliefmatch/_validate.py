"""Checks of arguments; errors name the function, the argument, what was expected and what was received."""

import math
import sys
import warnings
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from beliefmatch._errors import ArgumentWarning, fail, naming_arguments
from beliefmatch._utils import short_repr

__all__ = [
    "FLOATING",
    "SUM_TOLERANCE",
    "describe",
    "fail",
    "is_inspectable",
    "level_of_caller",
    "naming_arguments",
    "peek",
    "require_choice",
    "require_device",
    "require_finite_number",
    "require_floating",
    "require_index",
    "require_values",
    "warn",
]

FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
SUM_TOLERANCE = 1e-2
"""Allowed difference of a row's sum of probabilities from one: half precision adds up only this well."""

_INNER = ("beliefmatch.", "torch.nn.modules.")


def level_of_caller() -> int:
    """The `stacklevel` for a warning of the calling function that points at the user's own line."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_INNER):
        frame, level = frame.f_back, level + 1
    return level


def warn(function: str, message: str) -> None:
    """Warn as the function that the user called, at the user's own line."""
    warnings.warn(ArgumentWarning(function, message), stacklevel=level_of_caller())


def describe(value: Any) -> str:
    """What was received, in a few words: a tensor by type and shape, anything else by repr."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} tensor of shape {tuple(value.shape)}"
    return short_repr(value)


def require_floating(function: str, name: str, value: Any) -> None:
    """`value` must be a dense tensor of 16, 32 or 64 bit floating point."""
    if not isinstance(value, Tensor) or value.dtype not in FLOATING or value.layout != torch.strided:
        expected = "a dense floating-point tensor of 16, 32 or 64 bits"
        raise fail(function, f"`{name}` must be {expected}, got {describe(value)}.", TypeError)


def require_device(
    function: str, name: str, value: Tensor, other: Tensor, others_name: str = "logits"
) -> None:
    """`value` must be where the other tensor is, the logits if no name is given."""
    if value.device != other.device:
        fact = f"must be on the device of `{others_name}`, {other.device}"
        raise fail(function, f"`{name}` {fact}, got {value.device}.")


def require_index(function: str, name: str, value: Any) -> int:
    """`value` must be an integer, numpy's included; returned as an int."""
    if type(value) is int:
        return value
    if isinstance(value, bool) or not isinstance(value, (int, Integral)):
        raise fail(function, f"`{name}` must be an integer, got {describe(value)}.", TypeError)
    return value if isinstance(value, int) else int(value)


def require_choice(function: str, name: str, value: Any, choices: tuple[str, ...]) -> None:
    """`value` must be one of `choices`."""
    if value not in choices:
        allowed = ", ".join(repr(choice) for choice in choices)
        raise fail(function, f"`{name}` must be one of {allowed}, got {value!r}.")


def require_finite_number(function: str, name: str, value: Any) -> float:
    """`value` must be a finite real number; returned as a float."""
    if type(value) is float and -math.inf < value < math.inf:  # at once: this runs in every training step
        return value
    if isinstance(value, bool) or not isinstance(value, Real):
        raise fail(function, f"`{name}` must be a number, got {describe(value)}.", TypeError)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not -math.inf < number < math.inf:  # math.isfinite could not be compiled
        raise fail(function, f"`{name}` must be finite, got {str(value)[:40]}.")
    return number


def is_inspectable(value: Tensor) -> bool:
    """Whether looking at the values costs no device synchronisation and breaks no trace."""
    return value.device.type == "cpu" and not torch.compiler.is_compiling()


def peek(value: Tensor) -> float | None:
    """The one value of a tensor if it can be looked at without cost, else None."""
    if not is_inspectable(value):
        return None
    try:
        return value.item()
    except RuntimeError:  # inside vmap and under fake tensors there is no value to look at
        return None


def require_values(function: str, name: str, value: Tensor, valid: Tensor, expected: str) -> None:
    """All entries of the mask `valid` must hold; the message shows the first entry that does not."""
    if peek(valid.all()) is False:
        first = value[~valid].flatten()[0].item()
        raise fail(function, f"`{name}` must be {expected}, got {first!r}.")
