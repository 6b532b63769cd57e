"""The extension module, if it was built."""

import math
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib import import_module
from itertools import chain, pairwise
from typing import Any

import torch
from torch import Tensor
from torch._C import (  # pyright: ignore[reportAttributeAccessIssue]
    _are_functorch_transforms_active,
    _is_tracing,
    _len_torch_dispatch_stack,
)
from torch.autograd import Function, forward_ad
from torch.nn import Buffer, Parameter

from beliefmatch import _autograd as autograd
from beliefmatch import dirichlet
from beliefmatch._rows import result_dtype
from beliefmatch.kernels import reference
from beliefmatch.kernels.reference import REDUCTIONS, Options, Problem

__all__ = [
    "KINDS",
    "MISSING",
    "NOTHING",
    "DeclinedError",
    "Measure",
    "divergence",
    "extension",
    "has_numbers",
    "is_walkable",
    "is_watched",
    "loss",
    "measure",
    "room_for",
    "sizes",
    "steps",
    "strided",
    "walkable",
]

MISSING: str | None = None
"""Why there is no extension, None if there is."""
extension: Any = None
try:
    extension = import_module("beliefmatch.kernels._native")
except ModuleNotFoundError:
    MISSING = "it was not built"
except ImportError as error:
    MISSING = str(error)


class DeclinedError(Exception):
    """The extension looked at the values and leaves them to the reference."""


KINDS = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}
NOTHING = (0, 0, 0, 0, 0)
Steps = tuple[int, int, int, int]
PLAIN_TYPES = (Tensor, Parameter, Buffer)


def is_watched() -> bool:
    """Whether torch has to see every operation: for a trace, a transform, forward derivatives, or a mode."""
    return (
        _is_tracing()
        or _are_functorch_transforms_active()
        or _len_torch_dispatch_stack() > 0
        or forward_ad._current_level >= 0
    )


def has_numbers(x: Tensor) -> bool:
    """Whether x is its own numbers in this process's memory: no subclass, no function transform's."""
    if type(x) not in PLAIN_TYPES or not x.is_cpu or x.is_neg():
        return False
    try:
        address = x.data_ptr()
        return address != 0 and address % x.element_size() == 0
    except RuntimeError:  # the tensors of function transforms have no memory of their own
        return False


def sizes(shape: torch.Size, dim: int) -> tuple[int, int, int]:
    """Positions before the classes, classes, and positions after them."""
    if dim == 1 and len(shape) == 2:
        return shape[0], shape[1], 1
    return math.prod(shape[:dim]), shape[dim], math.prod(shape[dim + 1 :])


def strided(x: Tensor, dim: int) -> tuple[int, int, int, int, int]:
    """Address, type, and the strides of the positions before the classes, the classes, and those after."""
    return x.data_ptr(), *steps(x.dtype, x.shape, x.stride(), dim)


def steps(dtype: torch.dtype, shape: Sequence[int], stride: Sequence[int], dim: int) -> Steps:
    """What `strided` says of a tensor beside its address."""
    if dim == 1 and len(stride) == 2:
        return KINDS[dtype], stride[0], stride[1], 0
    before, after = (group[-1][1] if group else 0 for group in _around(shape, stride, dim))
    return KINDS[dtype], before, stride[dim], after


def walkable(x: Tensor, dim: int) -> Tensor:
    """x, copied if it cannot be walked."""
    return x if x.dim() <= 2 or is_walkable(x, dim) else x.contiguous()


def is_walkable(x: Tensor, dim: int) -> bool:
    """Whether the dimensions before the classes are one walk of equal steps, and those after them."""
    neighbours = (pair for group in _around(x.shape, x.stride(), dim) for pair in pairwise(group))
    return all(stride == size_after * stride_after for (_, stride), (size_after, stride_after) in neighbours)


def room_for(x: Tensor, dim: int) -> Tensor:
    """Memory for a gradient by x, in the layout of x if that can be walked."""
    room = torch.empty_like(x)
    if room.dim() <= 2 or is_walkable(room, dim):
        return room
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _around(
    shape: Sequence[int], stride: Sequence[int], dim: int
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Size and stride of the dimensions before and after; those of size 1 have no stride to speak of."""
    pairs = list(zip(shape, stride, strict=True))
    before, after = ([pair for pair in group if pair[0] != 1] for group in (pairs[:dim], pairs[dim + 1 :]))
    return before, after


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


Measure = Callable[[Tensor, int], Tensor]
"""A function of `dirichlet`: one number a row of log-concentrations, or one a class."""
CODES: dict[Measure, int] = {
    dirichlet.entropy: 0,
    dirichlet.expected_entropy: 1,
    dirichlet.mutual_information: 2,
    dirichlet.differential_entropy: 3,
}


def measure(function: Measure, logits: Tensor, dim: int) -> Tensor | None:
    """The value of a function of `dirichlet`, differentiable; None if it is not for the kernel."""
    if is_watched() or not has_numbers(logits):
        return None
    if torch.is_grad_enabled() and logits.requires_grad:
        value: Any = _Measured.apply(logits, function, dim)
        return value
    return _measure_value(function, logits, dim)


class _Measured(Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, function: Measure, dim: int) -> Tensor:
        ctx.save_for_backward(logits)
        ctx.function, ctx.dim = function, dim
        value = _measure_value(function, logits, dim)
        return function(logits, dim) if value is None else value

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        (logits,), again = ctx.saved_tensors, torch.is_grad_enabled()
        with torch.enable_grad():
            # a view is without the hooks of the caller's, which run later
            at = logits.view_as(logits) if again else logits.detach().requires_grad_()
            value = ctx.function(at, ctx.dim)
        (slope,) = torch.autograd.grad(value, at, grad_outputs[0], create_graph=again)
        return slope, None, None


def _measure_value(function: Measure, logits: Tensor, dim: int) -> Tensor | None:
    if function is dirichlet.variance:
        return _variance(logits, dim)
    x, shape = walkable(logits, dim), logits.shape
    value = torch.empty(shape[:dim] + shape[dim + 1 :], dtype=result_dtype(x.dtype), device=x.device)
    place = *sizes(shape, dim), *strided(x, dim)
    result = value.data_ptr(), KINDS[value.dtype], torch.get_num_threads()
    done = extension.measure(CODES[function], *place, *result)
    return value if done else None


def _variance(logits: Tensor, dim: int) -> Tensor | None:
    x = walkable(logits, dim)
    value = room_for(logits.to(result_dtype(logits.dtype)), dim)
    place = *sizes(logits.shape, dim), *strided(x, dim), *strided(value, dim)
    return value if extension.variance(*place, torch.get_num_threads()) else None


def divergence(p: Tensor, q: Tensor, dim: int) -> Tensor | None:
    """`dirichlet.divergence`, differentiable any number of times; None if it is not for the kernel."""
    if is_watched() or p.shape[dim] == 1 or not (has_numbers(p) and has_numbers(q)):
        return None
    try:
        if torch.is_grad_enabled() and (p.requires_grad or q.requires_grad):
            value: Any = _Divergence.apply(p, q, dim)
            return value
        return _kl_value(p, q, dim)
    except DeclinedError:
        return None


class _Divergence(Function):
    """Its slopes are computed when they are asked for; differentiable again through the reference."""

    @staticmethod
    def forward(ctx: Any, p: Tensor, q: Tensor, dim: int) -> Tensor:
        value = _kl_value(p, q, dim)
        ctx.save_for_backward(p, q)
        ctx.dim = dim
        return value

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (p, q), (upstream,), wanted = ctx.saved_tensors, grad_outputs, ctx.needs_input_grad[:2]
        if torch.is_grad_enabled() or not has_numbers(upstream):
            arriving = upstream.unsqueeze(ctx.dim)
            return *autograd.pull(dirichlet.DIVERGENCE, ctx.dim, (p, q), arriving, wanted), None
        return *_slopes(p, q, ctx.dim, upstream, wanted), None


def _kl_value(p: Tensor, q: Tensor, dim: int) -> Tensor:
    kind = result_dtype(torch.promote_types(p.dtype, q.dtype))
    value = torch.empty(p.shape[:dim] + p.shape[dim + 1 :], dtype=kind, device=p.device)
    _run(p, q, dim, (value.data_ptr(), KINDS[kind], *NOTHING, *NOTHING, 0, 0))
    return value


def _slopes(
    p: Tensor, q: Tensor, dim: int, upstream: Tensor, wanted: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None]:
    """The slopes that are wanted, each row's times the gradient that arrives."""
    by_p, by_q = (room_for(x, dim) if needed else None for x, needed in zip((p, q), wanted, strict=True))
    places = (strided(room, dim) if room is not None else NOTHING for room in (by_p, by_q))
    upstream = upstream.contiguous()
    _run(p, q, dim, (0, 0, *chain(*places), upstream.data_ptr(), KINDS[upstream.dtype]))
    return by_p, by_q


def _run(p: Tensor, q: Tensor, dim: int, wanted: tuple[int, ...]) -> None:
    shape = p.shape
    p, q = walkable(p, dim), walkable(q, dim)
    place = *sizes(shape, dim), *strided(p, dim), *strided(q, dim)
    if not extension.divergence(*place, *wanted, torch.get_num_threads()):
        raise DeclinedError
