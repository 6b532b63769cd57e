"""Labels as counts: class ids, votes and class weights; the prior β and its weight λ."""

import math
from numbers import Real
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from beliefmatch._rows import result_dtype, work_dtype
from beliefmatch._validate import (
    describe,
    fail,
    is_inspectable,
    peek,
    require_device,
    require_finite_number,
    require_floating,
    require_values,
)

__all__ = [
    "Labels",
    "from_counts",
    "from_ids",
    "ids_and_weights",
    "is_ids",
    "kl_weight_of",
    "require_class_weight",
    "require_kl_weight",
    "require_logits",
    "require_prior_number",
    "require_prior_tensor",
    "require_target_confidence",
    "target_confidence_of",
]

DEFAULT_KL_WEIGHT = 0.01
_NumberOrTensor = TypeVar("_NumberOrTensor", float, Tensor)


def require_prior_number(function: str, prior: Any) -> float:
    """A prior that is one number, checked."""
    if type(prior) is not float and (isinstance(prior, bool) or not isinstance(prior, Real)):
        raise fail(function, f"`prior` must be a number or a tensor, got {describe(prior)}.", TypeError)
    value = require_finite_number(function, "prior", prior)
    if value <= 0:
        raise fail(function, f"`prior` must be positive, got {value!r}.")
    return value


def require_prior_tensor(function: str, prior: Tensor, logits: Tensor, dim: int) -> Tensor:
    """β, checked but for its values, with the logits' number of dimensions, of class size K or 1."""
    require_floating(function, "prior", prior)
    require_device(function, "prior", prior, logits)
    shape = tuple(logits.shape)
    if prior.dim() == 0:
        return prior.view((1,) * logits.dim())
    if tuple(prior.shape) == (shape[dim],):
        return prior.view(*[1] * dim, -1, *[1] * (logits.dim() - dim - 1))
    fits = zip(prior.shape, shape, strict=False)
    if prior.dim() == logits.dim() and all(own in (1, full) for own, full in fits):
        return prior
    expected = f"be a number, have shape ({shape[dim]},), or broadcast to `logits` {shape}"
    raise fail(function, f"`prior` must {expected}, got {tuple(prior.shape)}.")


def require_kl_weight(function: str, kl_weight: float | None) -> float:
    """λ, checked; the default where it is None."""
    value = require_finite_number(
        function, "kl_weight", DEFAULT_KL_WEIGHT if kl_weight is None else kl_weight
    )
    if value < 0:
        raise fail(function, f"`kl_weight` must not be negative, got {value!r}.")
    return value


def require_target_confidence(
    function: str, kl_weight: float | None, target_confidence: Any, classes: float = math.inf
) -> float:
    """The target confidence, checked; its lower bound of chance only where the classes are known."""
    if kl_weight is not None:
        received = f"kl_weight={kl_weight!r} and target_confidence={target_confidence!r}"
        raise fail(function, f"give `kl_weight` or `target_confidence`, not both, got {received}.")
    value = require_finite_number(function, "target_confidence", target_confidence)
    if not 1 / classes < value < 1:
        chance = f"above chance, {1 / classes:.4g}," if math.isfinite(classes) else "above 0"
        bounds = f"{chance} and below 1" + (f" for K = {classes} classes" if math.isfinite(classes) else "")
        raise fail(function, f"`target_confidence` must be {bounds}, got {value!r}.")
    return value


def kl_weight_of(confidence: float, prior: _NumberOrTensor, classes: int) -> _NumberOrTensor:
    """λ for which the optimum gives the label of one vote this confidence."""
    return (1 - confidence) / (prior * (confidence * classes - 1))


def target_confidence_of(kl_weight: float, prior: float, classes: int) -> float:
    """Probability that the optimum β + 1/λ gives to the label of one vote: the inverse of `kl_weight_of`."""
    return (prior + 1 / kl_weight) / (classes * prior + 1 / kl_weight)


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
    safe, row_weight, valid = ids_and_weights(function, logits, ids, dim, weight, ignore_index)
    counts = torch.zeros_like(logits, dtype=result_dtype(logits.dtype)).scatter(dim, safe, 1.0)
    return Labels(counts, None, row_weight, None if valid is None else ~valid)


def ids_and_weights(
    function: str, logits: Tensor, ids: Tensor, dim: int, weight: Tensor | None, ignore_index: int
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Checked ids, 0 where a row is ignored; the weights of the rows; the rows that are not ignored.

    All are of size 1 along `dim`. Weights are None where all are 1, the rows where all are known to count.
    """
    classes = logits.shape[dim]
    ids = ids.long().unsqueeze(dim)  # first, or an ignore_index of −100 would be 156 in uint8
    valid = None
    if not _are_within(ids, 0, classes - 1) or 0 <= ignore_index < classes:
        valid = ids != ignore_index
        ids = ids * valid
        if is_inspectable(ids):
            expected = f"class ids from 0 to {classes - 1} or ignore_index={ignore_index}"
            require_values(function, "targets", ids, (ids >= 0) & (ids < classes), expected)
    by_class = _class_weight(function, weight, logits, dim)
    row_weight = None if by_class is None else by_class.flatten()[ids]
    if valid is not None:
        counted = valid.to(work_dtype(logits.device))
        row_weight = counted if row_weight is None else row_weight * counted
    return ids, row_weight, valid


def _are_within(ids: Tensor, first: int, last: int) -> bool:
    """Whether all ids are known to be in the range; False where they cannot be looked at."""
    if not is_inspectable(ids) or not ids.numel():
        return False
    smallest, largest = (peek(x) for x in ids.aminmax())
    return smallest is not None and largest is not None and first <= smallest and largest <= last


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
