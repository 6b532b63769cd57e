"""Checks that the arguments of all metrics share."""

from typing import Any

import torch
from torch import Tensor

from beliefmatch._validate import (
    SUM_TOLERANCE,
    describe,
    fail,
    require_floating,
    require_index,
    require_values,
)

__all__ = [
    "answers",
    "check_layout",
    "check_logits",
    "check_probs",
    "check_rows",
    "columns",
    "only_given",
    "require_at_least_one",
    "require_share",
]


def only_given(function: str, probs: Tensor | None, logits: Tensor | None) -> tuple[str, Tensor]:
    """Name and value of whichever of the two was passed."""
    if (probs is None) == (logits is None):
        received = "neither" if probs is None else "both"
        raise fail(function, f"expected either `probs` or `logits`, got {received}.", TypeError)
    return ("probs", probs) if probs is not None else ("logits", logits)  # type: ignore[return-value]


def check_layout(function: str, name: str, values: Tensor, targets: Tensor) -> None:
    """`values` must be (N, K) in floating point and `targets` N class ids."""
    check_rows(function, name, values)
    if not isinstance(targets, Tensor) or not _holds_ids(targets):
        expected = "a tensor of integer class ids"
        raise fail(function, f"`targets` must be {expected}, got {describe(targets)}.", TypeError)
    if targets.shape != values.shape[:1]:
        raise fail(
            function,
            f"`targets` must have shape ({len(values)},) to match `{name}` {tuple(values.shape)}, "
            f"got {tuple(targets.shape)}.",
        )
    _check_ids(function, targets.cpu(), values.shape[1])


def _check_ids(function: str, targets: Tensor, classes: int) -> None:
    ids = targets.to(torch.int64)  # torch compares no unsigned ones; those too large for it turn negative
    invalid = ((ids < 0) | (ids >= classes)).nonzero()
    if len(invalid):
        received = targets[int(invalid[0])].item()
        raise fail(function, f"`targets` must be class ids from 0 to {classes - 1}, got {received}.")


def check_rows(function: str, name: str, values: Tensor) -> None:
    """`values` must be (N, K) in floating point."""
    require_floating(function, name, values)
    if values.ndim != 2 or 0 in values.shape:
        shape = tuple(values.shape)
        raise fail(function, f"`{name}` must have shape (N, K) with N, K >= 1, got {shape}.")


def check_probs(function: str, probs: Tensor, sums: Tensor) -> None:
    """`probs` must lie in [0, 1], and `sums`, those of its rows, be one."""
    probs, sums = probs.cpu(), sums.double().cpu()
    within = (probs >= 0) & (probs <= 1)  # false for NaN
    require_values(function, "probs", probs, within, "in [0, 1] (probabilities, not logits)")
    even = (sums - 1).abs() <= SUM_TOLERANCE
    require_values(function, "probs", sums, even, "rows that sum to 1")


def check_logits(function: str, logits: Tensor) -> None:
    """`logits` may be −∞, where a class is impossible, but leave one possible."""
    logits = logits.cpu()
    require_values(function, "logits", logits, logits < torch.inf, "finite or -inf")
    top = logits.amax(1)
    require_values(function, "logits", top, top > -torch.inf, "finite for one class of each row")


def columns(function: str, **values: Any) -> list[Tensor]:
    """Each of `values`, by name, as a column of doubles on the CPU; of like lengths, and free of NaN."""
    checked = []
    for name, value in values.items():
        if not isinstance(value, Tensor) or value.is_complex():
            raise fail(function, f"`{name}` must be a tensor of numbers, got {describe(value)}.", TypeError)
        if value.ndim != 1 or not len(value):
            shape = tuple(value.shape)
            raise fail(function, f"`{name}` must have shape (N,) with N >= 1, got {shape}.")
        column = value.detach().to("cpu", torch.float64).contiguous()
        require_values(function, name, column, ~column.isnan(), "free of NaN")
        checked.append(column)
    return checked


def answers(function: str, confidence: Any, correct: Any) -> tuple[Tensor, Tensor]:
    """Columns of scores and of hits, 0 or 1, for the same examples."""
    confidence, hits = columns(function, confidence=confidence, correct=correct)
    if len(confidence) != len(hits):
        expected = f"shape ({len(confidence)},) to match `confidence`"
        raise fail(function, f"`correct` must have {expected}, got ({len(hits)},).")
    if correct.dtype != torch.bool:
        require_values(function, "correct", hits, (hits == 0) | (hits == 1), "0 or 1")
    return confidence, hits


def require_at_least_one(function: str, name: str, value: Any) -> int:
    """`value` must be a positive whole number."""
    number = require_index(function, name, value)
    if number < 1:
        raise fail(function, f"`{name}` must be at least 1, got {number}.")
    return number


def require_share(function: str, name: str, value: float) -> float:
    """`value` must lie strictly between 0 and 1."""
    if not 0 < value < 1:
        raise fail(function, f"`{name}` must be between 0 and 1, got {value!r}.")
    return float(value)


def _holds_ids(targets: Tensor) -> bool:
    return not (targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool)
