"""What the user knows about the labels, turned into what the kernels need.

Class ids and counts are different things and are never guessed from each other's values: integers are
ids, one dimension short of the logits; floating-point numbers are counts, in the shape of the logits.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from beliefmatch.checks import (
    describe,
    fail,
    is_inspectable,
    require_device,
    require_floating,
    require_values,
)
from beliefmatch.rows import result_dtype, work_dtype

__all__ = ["Labels", "from_counts", "from_ids", "is_ids", "require_class_weight", "require_logits"]


class Labels(NamedTuple):
    """Labels in the form of the objective: Σ_rows w (ℓ(logits, counts; κλ)) over the valid rows."""

    counts: Tensor
    """c, shaped like the logits, class weights included."""
    kl_scale: Tensor | None
    """κ, the mean class weight of a row's votes, by which λ is multiplied; None where it is 1."""
    row_weight: Tensor | None
    """w, one a row; 0 where the row is ignored; None where all are 1."""
    ignored: Tensor | None
    """Rows that are not to be looked at; None where there can be none."""


def require_logits(function: str, logits: Tensor) -> int:
    """Check the logits and return their class dimension: 0 for (K,), else 1, as in torch."""
    require_floating(function, "logits", logits)
    dim = min(logits.dim() - 1, 1)
    if logits.dim() == 0 or logits.shape[dim] == 0:
        layouts = "(K,), (N, K) or (N, K, d1, ...) with K ≥ 1"
        raise fail(function, f"`logits` must have shape {layouts}, got {tuple(logits.shape)}.")
    return dim


def is_integer(values: Tensor) -> bool:
    """Whether the type is one of whole numbers."""
    return not (values.is_floating_point() or values.is_complex() or values.dtype == torch.bool)


def is_ids(function: str, logits: Tensor, targets: Tensor, dim: int) -> bool:
    """True for class ids, False for counts; shapes and types are checked, values are not."""
    shape = tuple(logits.shape)
    if not isinstance(targets, Tensor):
        raise fail(function, f"`targets` must be a tensor, got {describe(targets)}.", TypeError)
    require_device(function, "targets", targets, logits)
    if targets.layout != torch.strided:
        raise fail(function, f"`targets` must be dense, got {targets.layout}; use targets.to_dense().")
    if is_integer(targets):
        expected, kind, hint = shape[:dim] + shape[dim + 1 :], "class ids", ""
        if tuple(targets.shape) == shape:
            hint = " If these are counts, pass them as floating point: targets.float()."
    elif targets.is_floating_point():
        expected, kind, hint = shape, "counts", ""
        if tuple(targets.shape) == shape[:dim] + shape[dim + 1 :] != shape:
            hint = " If these are class ids, pass them as integers: targets.long()."
    else:
        expected = "integers (class ids) or floating point (counts)"
        raise fail(function, f"`targets` must be {expected}, got {describe(targets)}.", TypeError)
    if tuple(targets.shape) != expected:
        fact = f"must have shape {expected} as {kind} to match `logits` {shape}"
        raise fail(function, f"`targets` {fact}, got {tuple(targets.shape)}.{hint}")
    return kind == "class ids"


def require_class_weight(function: str, weight: Tensor, logits: Tensor, dim: int) -> None:
    """Check type, device and shape of the class weights; values are not checked."""
    require_floating(function, "weight", weight)
    require_device(function, "weight", weight, logits)
    classes = logits.shape[dim]
    if tuple(weight.shape) != (classes,):
        fact = f"must have shape ({classes},), one a class of `logits` {tuple(logits.shape)}"
        raise fail(function, f"`weight` {fact}, got {tuple(weight.shape)}.")


def _class_weight(function: str, weight: Tensor | None, logits: Tensor, dim: int) -> Tensor | None:
    """The class weights, their values checked, shaped to broadcast along `dim` in the working type."""
    if weight is None:
        return None
    if is_inspectable(weight):
        valid = weight.isfinite() & (weight >= 0)
        require_values(function, "weight", weight, valid, "finite and not negative")
    trailing = logits.dim() - dim - 1
    return weight.to(work_dtype(logits.device)).view(-1, *[1] * trailing)


def from_ids(
    function: str, logits: Tensor, ids: Tensor, dim: int, weight: Tensor | None, ignore_index: int
) -> Labels:
    """One vote for each id; a row's weight is that of its class, and 0 where it is ignored."""
    classes = logits.shape[dim]
    ids = ids.long().unsqueeze(dim)  # first, or an ignore_index of −100 would be 156 in uint8
    ignored = ids == ignore_index
    safe = ids.masked_fill(ignored, 0)
    if is_inspectable(ids):
        valid = (safe >= 0) & (safe < classes)
        expected = f"class ids from 0 to {classes - 1} or ignore_index={ignore_index}"
        require_values(function, "targets", safe, valid, expected)
    kind = result_dtype(logits.dtype)
    counts = torch.zeros_like(logits, dtype=kind).scatter(dim, safe, 1.0)
    by_class = _class_weight(function, weight, logits, dim)
    row_weight = torch.ones_like(safe, dtype=work_dtype(logits.device))
    if by_class is not None:
        row_weight = by_class.flatten()[safe]
    return Labels(counts, None, row_weight.masked_fill(ignored, 0.0), ignored)


def from_counts(function: str, logits: Tensor, counts: Tensor, dim: int, weight: Tensor | None) -> Labels:
    """Any number of votes a row. A class weight multiplies its votes, as in torch; λ is multiplied by
    the row's mean weight, so that a one-hot row equals the class id it stands for."""
    if is_inspectable(counts):
        valid = counts.isfinite() & (counts >= 0)
        require_values(function, "targets", counts, valid, "finite and not negative as counts")
    by_class = _class_weight(function, weight, logits, dim)
    if by_class is None:
        return Labels(counts, None, None, None)
    weighted = counts * by_class
    votes = counts.to(weighted.dtype).sum(dim, keepdim=True)
    some = votes > 0
    mean_weight = weighted.sum(dim, keepdim=True) / torch.where(some, votes, 1.0)
    return Labels(weighted, torch.where(some, mean_weight, 1.0), None, None)
