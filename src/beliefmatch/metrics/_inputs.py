"""What every metric demands of its arguments."""

import torch
from torch import Tensor

from beliefmatch.checks import describe, fail, require_floating, require_values

__all__ = ["checked"]

_SUM_TOLERANCE = 1e-2  # half-precision rows add up to one only this well


def checked(function: str, probs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return `probs` as float64 and `targets` as int64 on the CPU, or raise a one-line error."""
    _check_layout(function, probs, targets)
    # float64 does not exist on every accelerator, and the result is one Python number.
    probs, targets = probs.detach().to("cpu", torch.float64), targets.to("cpu", torch.int64)
    ids = f"class ids from 0 to {probs.shape[1] - 1}"
    require_values(function, "targets", targets, (targets >= 0) & (targets < probs.shape[1]), ids)
    within = (probs >= 0) & (probs <= 1)  # false for NaN
    require_values(function, "probs", probs, within, "in [0, 1] (probabilities, not logits)")
    sums = probs.sum(1)
    even = (sums - 1).abs() <= _SUM_TOLERANCE
    require_values(function, "probs", sums, even, "rows that sum to 1")
    return probs, targets


def _check_layout(function: str, probs: Tensor, targets: Tensor) -> None:
    require_floating(function, "probs", probs)
    if probs.ndim != 2 or 0 in probs.shape:
        shape = tuple(probs.shape)
        raise fail(function, f"`probs` must have shape (N, K) with N, K >= 1, got {shape}.")
    if not isinstance(targets, Tensor) or not _holds_ids(targets):
        expected = "a tensor of integer class ids"
        raise fail(function, f"`targets` must be {expected}, got {describe(targets)}.", TypeError)
    if targets.shape != probs.shape[:1]:
        raise fail(
            function,
            f"`targets` must have shape ({len(probs)},) to match `probs` {tuple(probs.shape)}, "
            f"got {tuple(targets.shape)}.",
        )


def _holds_ids(targets: Tensor) -> bool:
    return not (targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool)
