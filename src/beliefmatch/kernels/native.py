"""The compiled kernel: loss and gradient in one visit of the logits.

It takes plain CPU tensors of every type and layout, class ids and counts, and every kind of prior and
weight. `loss` returns None for what it does not take: other devices, function transforms, gradients by counts
or prior, logits beyond ±300 or NaN, and values that are not allowed, which the reference then names.
"""

import math
import struct
from functools import lru_cache
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from beliefmatch.kernels import reference
from beliefmatch.kernels.compiled import DeclinedError, extension
from beliefmatch.kernels.layout import has_numbers, is_watched, room_for, sizes, steps, walkable
from beliefmatch.kernels.problem import REDUCTIONS, Options, Problem
from beliefmatch.rows import result_dtype

__all__ = ["loss"]

Strides = tuple[torch.dtype, tuple[int, ...]]
_Walked = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None, Tensor | None]
_results: dict[torch.dtype, Tensor] = {}
"""A result for each type of logits. Asking for one more like it costs half of saying what is wanted."""


def loss(problem: Problem) -> Tensor | None:
    """The loss, differentiable in the logits any number of times; None if it is not for this kernel."""
    logits = problem.logits
    if is_watched() or not has_numbers(logits):
        return None
    differentiating = torch.is_grad_enabled()
    for x in problem[1:5]:
        if x is None:
            continue
        if not has_numbers(x) or (differentiating and (x.requires_grad or x.is_inference())):
            return None
    try:
        return _apply(logits, problem) if differentiating and logits.requires_grad else _evaluate(problem)
    except (
        DeclinedError,
        OverflowError,
        struct.error,
    ):  # numbers too large for 64 bits are not for it either
        return None


class _Loss(Function):
    """The gradient is computed with the loss and kept for the first backward pass; later ones compute it
    again. Differentiable again through the reference. Tensors of function transforms never come here."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, problem: Problem) -> Tensor:
        # Half precision has no room for gradients of a mean before a gradient scaler has scaled them.
        early = logits.dtype is not torch.float16
        slope = room_for(logits, problem.options.dim) if early else None
        ctx.kept = [] if slope is None else [slope]
        ctx.save_for_backward(*problem[:5])
        ctx.options = problem.options
        return _evaluate(problem, slope)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, None]:
        (upstream,) = grad_outputs
        differentiable = torch.is_grad_enabled() or not has_numbers(upstream)
        factor = None if differentiable else _factor(upstream, ctx.options.dim)
        if factor is not None and _is_finite(factor):  # else rows that do not count would not stay zero
            slope = _taken(ctx.kept)
            if slope is not None:
                is_one = isinstance(factor, float) and factor == 1
                return slope if is_one else slope.mul_(factor), None
        logits, targets, weight, priors, kl_weights = ctx.saved_tensors
        problem = Problem(logits, targets, weight, priors, kl_weights, ctx.options)
        if differentiable:
            return _slope_by_reference(problem, upstream), None
        slope = room_for(problem.logits, problem.options.dim)
        try:
            _evaluate(problem, slope, upstream.contiguous())
        except DeclinedError:  # not what they were when the loss was computed
            return _slope_by_reference(problem, upstream), None
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


def _taken(kept: list[Tensor]) -> Tensor | None:
    """What is kept, for the first who asks: threads may run backward through one graph."""
    try:
        return kept.pop()
    except IndexError:
        return None


def _factor(upstream: Tensor, dim: int) -> float | Tensor:
    """One number where it is the same for every row, as after a sum or a mean."""
    if any(upstream.stride()):
        return upstream.unsqueeze(dim)
    return upstream[(0,) * upstream.dim()].item()


def _is_finite(factor: float | Tensor) -> bool:
    return bool(factor.isfinite().all()) if isinstance(factor, Tensor) else math.isfinite(factor)


def _evaluate(problem: Problem, slope: Tensor | None = None, upstream: Tensor | None = None) -> Tensor:
    """The loss; the gradient by the logits, times `upstream`, is written to `slope`."""
    logits, targets, weight, priors, kl_weights, options = problem
    value = _room_for_loss(logits, options)
    ids, counts = targets, None
    if not _is_usual(problem):
        logits, ids, counts, weight, priors, kl_weights = _as_walked(problem)
    done = extension.evaluate(
        _plan(
            options,
            logits.shape,
            (logits.dtype, logits.stride()),
            None if counts is None else (counts.dtype, counts.stride()),
            None if priors is None else (priors.dtype, priors.stride()),
            None if slope is None else (slope.dtype, slope.stride()),
        ),
        torch.get_num_threads(),
        value.data_ptr(),
        logits.data_ptr(),
        0 if ids is None else ids.data_ptr(),
        0 if counts is None else counts.data_ptr(),
        0 if weight is None else weight.data_ptr(),
        0 if priors is None else priors.data_ptr(),
        0 if kl_weights is None else kl_weights.data_ptr(),
        0 if slope is None else slope.data_ptr(),
        0 if upstream is None else upstream.data_ptr(),
    )
    if not done:
        raise DeclinedError
    return value


def _room_for_loss(logits: Tensor, options: Options) -> Tensor:
    like = _results.get(logits.dtype)
    if like is None:  # not made at import: that may be under another device, or a mode that fakes tensors
        like = torch.empty((), dtype=result_dtype(logits.dtype), device="cpu")
        _results[logits.dtype] = like
    if options.reduction == "none":
        return like.new_empty(logits.shape[: options.dim] + logits.shape[options.dim + 1 :])
    return torch.empty_like(like)


def _is_usual(problem: Problem) -> bool:
    """Whether the kernel reads the tensors as they are, and there are no more than logits and ids."""
    logits, targets, weight, priors, kl_weights, options = problem
    return (
        weight is priors is kl_weights is None
        and options.has_ids
        and logits.dim() <= 2
        and targets.dtype is torch.int64
        and targets.is_contiguous()
    )


def _as_walked(problem: Problem) -> _Walked:
    """Logits, ids or counts, weight, priors and KL weights in types and layouts that the kernel reads."""
    logits, targets, weight, priors, kl_weights, options = problem
    shape, dim = logits.shape, options.dim
    logits = walkable(logits, dim)
    ids = counts = None
    if not options.has_ids:
        counts = walkable(targets, dim)
    elif targets.dtype is torch.int64 and targets.is_contiguous():
        ids = targets
    else:
        ids = targets.to(torch.int64).contiguous()
    if weight is not None:
        weight = weight.to(torch.float64).contiguous()
    if priors is not None:
        priors = walkable(priors.expand(shape), dim)
    if kl_weights is not None:
        one_a_row = torch.Size((*shape[:dim], 1, *shape[dim + 1 :]))
        kl_weights = kl_weights.to(torch.float64).expand(one_a_row).contiguous()
    return logits, ids, counts, weight, priors, kl_weights


@lru_cache(maxsize=1000)
def _plan(
    options: Options,
    shape: torch.Size,
    logits: Strides,
    counts: Strides | None,
    priors: Strides | None,
    slope: Strides | None,
) -> bytes:
    """All that a call says beside addresses. Training says the same again and again."""
    dim, beta = options.dim, options.prior
    classes = shape[dim]
    walks = (
        (0, 0, 0, 0) if tensor is None else steps(tensor[0], shape, tensor[1], dim)
        for tensor in (logits, counts, priors, slope)
    )
    whole = *sizes(shape, dim), *chain(*walks), options.ignore_index, REDUCTIONS.index(options.reduction)
    normaliser = classes * math.lgamma(beta) - math.lgamma(classes * beta)  # Σ lnΓ(β_k) − lnΓ(β₀)
    return struct.pack("=21q3d", *whole, beta, options.kl_weight, normaliser)
