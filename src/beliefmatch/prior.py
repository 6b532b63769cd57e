"""What the user may say about the prior: β, and its weight λ by itself or by the confidence it asks for."""

import math
from numbers import Real
from typing import Any, TypeVar

from torch import Tensor

from beliefmatch.checks import describe, fail, require_device, require_finite_number, require_floating

__all__ = [
    "require_kl_weight",
    "require_prior_number",
    "require_prior_tensor",
    "require_target_confidence",
    "strength",
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
        bounds = f"above chance, {1 / classes:.4g}, and below 1 for K = {classes} classes"
        raise fail(function, f"`target_confidence` must be {bounds}, got {value!r}.")
    return value


def strength(confidence: float, prior: _NumberOrTensor, classes: int) -> _NumberOrTensor:
    """λ for which the optimum gives the label of one vote this confidence."""
    return (1 - confidence) / (prior * (confidence * classes - 1))
