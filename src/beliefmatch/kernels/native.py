"""The compiled kernel: loss and gradient in one visit of the logits.

It takes plain CPU tensors of every type and layout, class ids and counts, and every kind of prior and
weight. `loss` returns None for what it does not take: other devices, function transforms and modes that watch
operations, gradients by counts or prior, logits beyond ±300 or NaN, and values that are not allowed, which
the reference then names.
"""

import math
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active, _len_torch_dispatch_stack
from torch.autograd import Function
from torch.autograd.forward_ad import unpack_dual
from torch.jit import is_tracing  # pyright: ignore[reportPrivateImportUsage]
from torch.nn import Buffer, Parameter

from beliefmatch.kernels import reference
from beliefmatch.kernels.problem import Problem
from beliefmatch.rows import result_dtype

_native: Any = None
MISSING: str | None = None
try:
    import beliefmatch.kernels._native as _native
except ModuleNotFoundError:
    MISSING = "it was not built"
except ImportError as error:
    MISSING = str(error)

__all__ = ["MISSING", "instruction_set", "loss"]

KINDS = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}
REDUCTIONS = {"mean": 0, "sum": 1, "none": 2}
NOTHING = (0, 0, 0, 0, 0)
PLAIN_TYPES = (Tensor, Parameter, Buffer)


def instruction_set() -> str:
    """Name of the instruction set in use, for instance "avx512"."""
    return _native.in_use()


def loss(problem: Problem) -> Tensor | None:
    """The loss, differentiable in the logits any number of times; None if it is not for this kernel."""
    differentiating = torch.is_grad_enabled()
    if _is_watched() or not _has_numbers(problem.logits):
        return None
    for x in problem[1:5]:
        if not isinstance(x, Tensor):
            continue
        if not _has_numbers(x) or (differentiating and (x.requires_grad or x.is_inference())):
            return None
    try:
        if differentiating and problem.logits.requires_grad:
            value: Any = _Loss.apply(problem.logits, problem)
            return value
        return _evaluate(problem)
    except (_DeclinedError, OverflowError):  # a number that 64 bits cannot hold is not for this kernel either
        return None


def _is_watched() -> bool:
    """Whether torch has to see every operation: for a trace, a function transform, or a mode."""
    return is_tracing() or _are_functorch_transforms_active() or _len_torch_dispatch_stack() > 0


def _has_numbers(x: Tensor) -> bool:
    """Whether x is its own numbers in this process's memory: no subclass, function transform or tangent."""
    if type(x) not in PLAIN_TYPES or not x.is_cpu or x.is_neg() or unpack_dual(x).tangent is not None:
        return False
    try:
        address = x.data_ptr()
        return address != 0 and address % x.element_size() == 0
    except RuntimeError:  # the tensors of function transforms have no memory of their own
        return False


class _DeclinedError(Exception):
    """The kernel looked at the values and leaves them to the reference."""


class _Loss(Function):
    """The gradient is computed with the loss and kept for the first backward pass; later ones compute it
    again. Differentiable again through the reference. Tensors of function transforms never come here."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, problem: Problem) -> Tensor:
        # Half precision has no room for gradients of a mean before a gradient scaler has scaled them.
        early = logits.dtype != torch.float16
        ctx.slope = _room_for(logits, problem.dim) if early else None
        value = _evaluate(problem, ctx.slope)
        ctx.save_for_backward(*[x if isinstance(x, Tensor) else None for x in problem[:5]])
        ctx.numbers = [None if isinstance(x, Tensor) else x for x in problem[:5]]
        ctx.options = problem[5:]
        return value

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, None]:
        (upstream,) = grad_outputs
        differentiable = torch.is_grad_enabled() or not _has_numbers(upstream)
        if not differentiable and ctx.slope is not None and _is_finite(upstream):
            slope, ctx.slope = ctx.slope, None
            return _scale(slope, upstream), None
        saved = zip(ctx.saved_tensors, ctx.numbers, strict=True)
        problem = Problem(*(number if x is None else x for x, number in saved), *ctx.options)
        if differentiable:
            return _slope_by_reference(problem, upstream), None
        slope = _room_for(problem.logits, problem.dim)
        _evaluate(problem, slope, upstream)
        return slope, None


def _slope_by_reference(problem: Problem, upstream: Tensor) -> Tensor:
    """The gradient in operations that torch sees, to be differentiated or vectorized."""
    differentiable = torch.is_grad_enabled()
    with torch.enable_grad():
        logits = problem.logits.view_as(problem.logits)  # without the hooks of the caller's, which run later
        value = reference.loss(problem._replace(logits=logits))
    (slope,) = torch.autograd.grad(value, logits, upstream, create_graph=differentiable)
    return slope


def _is_finite(upstream: Tensor) -> bool:
    return bool(upstream.isfinite().all()) if upstream.dim() else math.isfinite(upstream.item())


def _scale(slope: Tensor, upstream: Tensor) -> Tensor:
    """The slope of every row's loss times the gradient that arrives, in the slope's own memory."""
    if upstream.dim():
        return slope.mul_(upstream.unsqueeze(min(slope.dim() - 1, 1)))
    factor = upstream.item()
    return slope if factor == 1 else slope.mul_(factor)


def _evaluate(problem: Problem, slope: Tensor | None = None, upstream: Tensor | None = None) -> Tensor:
    """The loss; the gradient by the logits, times `upstream`, is written to `slope`."""
    logits, dim = problem.logits, problem.dim
    kind = result_dtype(logits.dtype)
    shape = logits.shape[:dim] + logits.shape[dim + 1 :] if problem.reduction == "none" else ()
    value = torch.empty(shape, dtype=kind, device=logits.device)
    owners, arguments = _arguments(problem)
    if upstream is not None:
        upstream = upstream.to(kind).contiguous()
    done = _native.evaluate(
        *arguments,
        value.data_ptr(),
        KINDS[kind],
        torch.get_num_threads(),
        *(NOTHING if slope is None else _strided(slope, dim)),
        0 if slope is None else slope.nbytes,
        0 if upstream is None else upstream.data_ptr(),
        KINDS[kind],
    )
    if not done:
        raise _DeclinedError
    del owners  # kept until here: the kernel reads by address
    return value


def _arguments(problem: Problem) -> tuple[list[Tensor | None], list[int | float]]:
    """Where the kernel finds its input, and the tensors that own that memory."""
    logits, targets, prior, kl_weight, weight, dim, has_ids, ignore_index, reduction = problem
    logits, shape = _walkable(logits, dim), logits.shape
    prior_tensor = kl_weights = None
    if not has_ids:
        targets = _walkable(targets, dim)
    elif targets.dtype is not torch.int64 or not targets.is_contiguous():
        targets = targets.to(torch.int64).contiguous()
    if weight is not None:
        weight = weight.to(torch.float64).contiguous()
    if isinstance(prior, Tensor):
        prior_tensor, prior = _walkable(prior.expand(shape), dim), 1.0
    if isinstance(kl_weight, Tensor):
        one_a_row = torch.Size((*shape[:dim], 1, *shape[dim + 1 :]))
        kl_weights, kl_weight = kl_weight.to(torch.float64).expand(one_a_row).contiguous(), 0.0
    arguments = [
        *((shape[0], shape[1], math.prod(shape[2:])) if dim else (1, shape[0], 1)),
        *_strided(logits, dim),
        targets.data_ptr() if has_ids else 0,
        ignore_index,
        *(NOTHING if has_ids else _strided(targets, dim)),
        0 if weight is None else weight.data_ptr(),
        *(NOTHING if prior_tensor is None else _strided(prior_tensor, dim)),
        0 if kl_weights is None else kl_weights.data_ptr(),
        prior,
        kl_weight,
        _log_normaliser(prior, shape[dim]) if prior_tensor is None else 0.0,
        REDUCTIONS[reduction],
    ]
    return [logits, targets, weight, prior_tensor, kl_weights], arguments


@lru_cache
def _log_normaliser(prior: float, classes: int) -> float:
    """Σ lnΓ(β_k) − lnΓ(β₀) of a prior that is one number."""
    return classes * math.lgamma(prior) - math.lgamma(classes * prior)


def _strided(x: Tensor, dim: int) -> tuple[int, int, int, int, int]:
    """Address, type, and the strides of rows, of classes, and of positions after the classes."""
    stride = x.stride()
    if dim == 0:
        return x.data_ptr(), KINDS[x.dtype], 0, stride[0], 0
    inner = _inner(x, dim)
    return x.data_ptr(), KINDS[x.dtype], stride[0], stride[1], inner[-1][1] if inner else 0


def _room_for(logits: Tensor, dim: int) -> Tensor:
    """Memory for a gradient, in the layout of the logits if the kernel can walk it."""
    slope = torch.empty_like(logits)
    return (
        slope if _is_walkable(slope, dim) else torch.empty_like(logits, memory_format=torch.contiguous_format)
    )


def _walkable(x: Tensor, dim: int) -> Tensor:
    """x, copied if the kernel cannot walk it."""
    return x if _is_walkable(x, dim) else x.contiguous()


def _is_walkable(x: Tensor, dim: int) -> bool:
    """Whether the positions after the classes are one walk of equal steps."""
    inner = _inner(x, dim)
    return all(
        stride == size_after * stride_after for (_, stride), (size_after, stride_after) in pairwise(inner)
    )


def _inner(x: Tensor, dim: int) -> list[tuple[int, int]]:
    """Size and stride of the dimensions after the classes; those of size 1 have no stride to speak of."""
    if x.dim() <= dim + 1:
        return []
    pairs = zip(x.shape[dim + 1 :], x.stride()[dim + 1 :], strict=True)
    return [(size, stride) for size, stride in pairs if size != 1]
