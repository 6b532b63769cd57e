"""The compiled kernel: loss and gradient in one visit of the logits.

It takes plain CPU tensors of every type and layout, class ids and counts, and every kind of prior and
weight. `loss` returns None for what it does not take: other devices, function transforms, gradients by counts
or prior, logits beyond ±300 or NaN, and values that are not allowed, which the reference then names.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from beliefmatch.kernels import reference
from beliefmatch.kernels.layout import (
    KINDS,
    NOTHING,
    has_numbers,
    is_walkable,
    is_watched,
    sizes,
    strided,
    walkable,
)
from beliefmatch.kernels.problem import Options, Problem
from beliefmatch.rows import result_dtype

MISSING: str | None = None
_native: Any = None
try:
    from beliefmatch.kernels import _native
except ModuleNotFoundError:
    MISSING = "it was not built"
except ImportError as error:
    MISSING = str(error)

__all__ = ["MISSING", "instruction_set", "loss"]

REDUCTIONS = {"mean": 0, "sum": 1, "none": 2}


def instruction_set() -> str:
    """Name of the instruction set in use, for instance "avx512"."""
    return _native.in_use()


def loss(problem: Problem) -> Tensor | None:
    """The loss, differentiable in the logits any number of times; None if it is not for this kernel."""
    differentiating = torch.is_grad_enabled()
    if is_watched() or not has_numbers(problem.logits):
        return None
    for x in problem[1:5]:
        if x is None:
            continue
        if not has_numbers(x) or (differentiating and (x.requires_grad or x.is_inference())):
            return None
    try:
        if differentiating and problem.logits.requires_grad:
            return _apply(problem.logits, problem)
        return _evaluate(problem)
    except (_DeclinedError, OverflowError):  # a number that 64 bits cannot hold is not for this kernel either
        return None


class _DeclinedError(Exception):
    """The kernel looked at the values and leaves them to the reference."""


class _Loss(Function):
    """The gradient is computed with the loss and kept for the first backward pass; later ones compute it
    again. Differentiable again through the reference. Tensors of function transforms never come here."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, problem: Problem) -> Tensor:
        # Half precision has no room for gradients of a mean before a gradient scaler has scaled them.
        early = logits.dtype is not torch.float16
        ctx.slope = slope = _room_for(logits, problem.options.dim) if early else None
        value = _evaluate(problem, slope)
        ctx.save_for_backward(*problem[:5])
        ctx.options = problem.options
        return value

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, None]:
        (upstream,) = grad_outputs
        differentiable = torch.is_grad_enabled() or not has_numbers(upstream)
        if not differentiable and ctx.slope is not None:
            factor = upstream.unsqueeze(ctx.options.dim) if upstream.dim() else upstream.item()
            if _is_finite(factor):  # else rows that do not count would not stay zero
                slope, ctx.slope = ctx.slope, None
                is_one = isinstance(factor, float) and factor == 1
                return slope if is_one else slope.mul_(factor), None
        logits, targets, weight, priors, kl_weights = ctx.saved_tensors
        problem = Problem(logits, targets, weight, priors, kl_weights, ctx.options)
        if differentiable:
            return _slope_by_reference(problem, upstream), None
        slope = _room_for(problem.logits, problem.options.dim)
        _evaluate(problem, slope, upstream)
        return slope, None


# Function.apply without its search for function transforms: `is_watched` has found none
_apply: Any = super(Function, _Loss).apply  # pyright: ignore[reportAttributeAccessIssue]


def _slope_by_reference(problem: Problem, upstream: Tensor) -> Tensor:
    """The gradient in operations that torch sees, to be differentiated or vectorized."""
    differentiable = torch.is_grad_enabled()
    with torch.enable_grad():
        logits = problem.logits.view_as(problem.logits)  # without the hooks of the caller's, which run later
        value = reference.loss(problem._replace(logits=logits))
    (slope,) = torch.autograd.grad(value, logits, upstream, create_graph=differentiable)
    return slope


def _is_finite(factor: float | Tensor) -> bool:
    return bool(factor.isfinite().all()) if isinstance(factor, Tensor) else math.isfinite(factor)


def _evaluate(problem: Problem, slope: Tensor | None = None, upstream: Tensor | None = None) -> Tensor:
    """The loss; the gradient by the logits, times `upstream`, is written to `slope`."""
    logits, dim = problem.logits, problem.options.dim
    kind = result_dtype(logits.dtype)
    shape = logits.shape[:dim] + logits.shape[dim + 1 :] if problem.options.reduction == "none" else ()
    value = logits.new_empty(shape) if kind is logits.dtype else logits.new_empty(shape, dtype=kind)
    owners, arguments = _arguments(problem)
    if upstream is not None:
        upstream = upstream.to(kind).contiguous()
    done = _native.evaluate(
        *arguments,
        value.data_ptr(),
        KINDS[kind],
        torch.get_num_threads(),
        *(NOTHING if slope is None else strided(slope, dim)),
        0 if slope is None else slope.nbytes,
        0 if upstream is None else upstream.data_ptr(),
        KINDS[kind],
    )
    if not done:
        raise _DeclinedError
    del owners  # kept until here: the kernel reads by address
    return value


def _arguments(problem: Problem) -> tuple[Sequence[Tensor | None], Sequence[int | float]]:
    """Where the kernel finds its input, and the tensors that own that memory."""
    logits, targets, weight, priors, kl_weights, options = problem
    dim, has_ids = options.dim, options.has_ids
    logits, shape = walkable(logits, dim), logits.shape
    arguments: list[int | float] = [*sizes(shape, dim), *strided(logits, dim)]
    if has_ids and (targets.dtype is not torch.int64 or not targets.is_contiguous()):
        targets = targets.to(torch.int64).contiguous()
    if has_ids and weight is None and priors is None and kl_weights is None:
        return [logits, targets], [*arguments, targets.data_ptr(), *_numbers(options, shape[dim])]
    if not has_ids:
        targets = walkable(targets, dim)
    if weight is not None:
        weight = weight.to(torch.float64).contiguous()
    if priors is not None:
        priors = walkable(priors.expand(shape), dim)
    if kl_weights is not None:
        one_a_row = torch.Size((*shape[:dim], 1, *shape[dim + 1 :]))
        kl_weights = kl_weights.to(torch.float64).expand(one_a_row).contiguous()
    arguments += [
        targets.data_ptr() if has_ids else 0,
        options.ignore_index,
        *(NOTHING if has_ids else strided(targets, dim)),
        0 if weight is None else weight.data_ptr(),
        *(NOTHING if priors is None else strided(priors, dim)),
        0 if kl_weights is None else kl_weights.data_ptr(),
        *_numbers(options, shape[dim])[-4:],
    ]
    return [logits, targets, weight, priors, kl_weights], arguments


@lru_cache
def _numbers(options: Options, classes: int) -> tuple[int | float, ...]:
    """All arguments after the ids where no other tensor is given: the last four are the same for all."""
    beta = options.prior
    normaliser = classes * math.lgamma(beta) - math.lgamma(classes * beta)  # Σ lnΓ(β_k) − lnΓ(β₀)
    numbers = beta, options.kl_weight, normaliser, REDUCTIONS[options.reduction]
    return options.ignore_index, *NOTHING, 0, *NOTHING, 0, *numbers


def _room_for(logits: Tensor, dim: int) -> Tensor:
    """Memory for a gradient, in the layout of the logits if the kernel can walk it."""
    slope = torch.empty_like(logits)
    return (
        slope if is_walkable(slope, dim) else torch.empty_like(logits, memory_format=torch.contiguous_format)
    )
