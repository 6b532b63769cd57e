"""The compiled kernel: which tensors it supports, how it is called, and how it takes part in autograd.

The extension knows nothing of torch. It receives addresses, types and strides, and answers False for values
that it does not support: logits beyond its range, NaN, labels that are not valid. Each function here returns
None in that case, and for tensors that are not plain numbers in this process's memory; the reference then
computes the value or names what is wrong with it.
"""

import math
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib import import_module
from itertools import chain, pairwise
from typing import Any, NamedTuple

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
from beliefmatch.kernels.reference import REDUCTIONS, LossInputs, Options

__all__ = [
    "MEASURES",
    "MISSING",
    "PLAIN_TYPES",
    "Measure",
    "MeasureFunction",
    "Plan",
    "Unsupported",
    "divergence",
    "extension",
    "flat_sizes",
    "is_plain_cpu",
    "is_traced",
    "is_transformed",
    "loss",
    "loss_and_grad",
    "measure",
    "plan",
    "planned_loss",
    "row_shape",
    "strided",
]

MISSING: str | None = None
"""Why the extension is missing; None if it is there."""
extension: Any = None
try:
    extension = import_module("beliefmatch.kernels._native")
except ModuleNotFoundError:
    MISSING = "it was not built"
except ImportError as error:
    MISSING = str(error)


class Unsupported(Exception):  # noqa: N818
    """The extension does not support these values; the reference computes them."""


def loss(inputs: LossInputs) -> Tensor | None:
    """The loss, differentiable in the logits any number of times."""
    logits = inputs.logits
    if is_traced() or not is_plain_cpu(logits):
        return None
    differentiating = torch.is_grad_enabled()
    for x in inputs[1:5]:
        if x is None:
            continue
        if not is_plain_cpu(x) or (differentiating and (x.requires_grad or x.is_inference())):
            return None
    try:
        if differentiating and logits.requires_grad:
            return _apply_loss(logits, inputs)
        return _evaluate(inputs)
    except (Unsupported, OverflowError, struct.error):  # the last two: numbers that 64 bits do not hold
        return None


def loss_and_grad(inputs: LossInputs, upstream: Tensor | None) -> tuple[Tensor, Tensor] | None:
    """The loss and its gradient by the logits times `upstream`, outside of any graph."""
    if is_traced() or not all(x is None or is_plain_cpu(x) for x in inputs[:5]):
        return None
    grad = empty_grad(inputs.logits, inputs.options.dim)
    try:
        return _evaluate(inputs, grad, None if upstream is None else upstream.contiguous()), grad
    except (Unsupported, OverflowError, struct.error):
        return None


class _KeepingGradient(Function):
    """Of a loss whose gradient was computed with it and is kept for the first backward pass.

    Later passes compute it again; second derivatives go through the reference. `loss` has excluded tensors of
    function transforms.
    """

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, None]:
        (upstream,) = grad_outputs
        differentiable = torch.is_grad_enabled()
        if type(upstream) is Tensor and not differentiable and upstream.dim() == 0:  # as training has it
            try:
                if upstream.item() == 1:
                    return ctx.kept.pop(), None
            except (RuntimeError, IndexError):  # a tensor of a function transform; a later backward pass
                pass
        differentiable = differentiable or not is_plain_cpu(upstream)
        factor = None if differentiable else _factor(upstream, ctx.options.dim)
        if factor is not None and _is_finite(factor):  # else ignored rows would not stay zero
            grad = _take(ctx.kept)
            if grad is not None:
                is_one = isinstance(factor, float) and factor == 1
                return grad if is_one else grad.mul_(factor), None
        logits, targets, *others = ctx.saved_tensors
        weight, priors, kl_weights = others or (None, None, None)
        inputs = LossInputs(logits, targets, weight, priors, kl_weights, ctx.options)
        if differentiable:
            return reference.loss_grad(inputs, upstream), None
        grad = empty_grad(inputs.logits, inputs.options.dim)
        try:
            _evaluate(inputs, grad, upstream.contiguous())
        except Unsupported:  # the values have changed since the loss was computed
            return reference.loss_grad(inputs, upstream), None
        return grad, None


class _Loss(_KeepingGradient):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, inputs: LossInputs) -> Tensor:
        # Half precision cannot hold gradients of a mean before a gradient scaler has scaled them.
        early = logits.dtype is not torch.float16
        grad = empty_grad(logits, inputs.options.dim) if early else None
        ctx.kept = [] if grad is None else [grad]
        ctx.save_for_backward(*inputs[:5])
        ctx.options = inputs.options
        return _evaluate(inputs, grad)


# Function.apply without its search for function transforms: `is_traced` has found none.
_apply_loss: Any = super(Function, _Loss).apply  # pyright: ignore[reportAttributeAccessIssue]


class Plan(NamedTuple):
    """All of a call but its addresses, for class ids and a prior that is one number; training repeats it."""

    options: Options
    dtype: torch.dtype
    header: bytes
    header_with_grad: bytes


def plan(inputs: LossInputs) -> Plan | None:
    """The plan of calls with contiguous tensors of the same shapes and types."""
    logits, targets, weight, priors, kl_weights, options = inputs
    has_numbers_only = weight is priors is kl_weights is None
    if not (has_numbers_only and options.has_ids and targets.dtype is torch.int64 and logits.dtype in _KINDS):
        return None
    layout = logits.dtype, _contiguous_stride(logits.shape)
    headers = (_header(options, logits.shape, layout, None, None, grad) for grad in (None, layout))
    try:
        return Plan(options, logits.dtype, *headers)
    except (OverflowError, struct.error):  # numbers that 64 bits do not hold
        return None


def planned_loss(plan: Plan, logits: Tensor, targets: Tensor) -> Tensor | None:
    """`loss` of plain tensors of the plan's shapes and types; None as well if they are not contiguous."""
    if is_traced() or not (logits.is_cpu and targets.is_cpu):
        return None
    try:
        if not (logits.is_contiguous() and targets.is_contiguous()) or logits.is_neg():
            return None
        addresses = logits.data_ptr(), targets.data_ptr()
    except RuntimeError:  # neither sparse tensors nor those of function transforms have such memory
        return None
    try:
        if torch.is_grad_enabled() and logits.requires_grad:
            return None if targets.is_inference() else _apply_planned_loss(logits, (plan, targets, addresses))
        return _evaluate_plan(plan, logits, addresses)
    except Unsupported:
        return None


class _PlannedLoss(_KeepingGradient):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, call: tuple[Plan, Tensor, tuple[int, int]]) -> Tensor:
        plan, targets, addresses = call
        ctx.save_for_backward(logits, targets)
        ctx.options = plan.options
        if plan.dtype is torch.float16:
            ctx.kept = []
            return _evaluate_plan(plan, logits, addresses)
        grad = torch.empty_like(logits)
        ctx.kept = [grad]
        return _evaluate_plan(plan, logits, addresses, grad)


_apply_planned_loss: Any = super(Function, _PlannedLoss).apply  # pyright: ignore[reportAttributeAccessIssue]


def _evaluate_plan(
    plan: Plan, logits: Tensor, addresses: tuple[int, int], grad: Tensor | None = None
) -> Tensor:
    value = _empty_loss(logits, plan.options)
    header, address = (plan.header, 0) if grad is None else (plan.header_with_grad, grad.data_ptr())
    threads = torch.get_num_threads()
    if not extension.evaluate(header, threads, value.data_ptr(), *addresses, 0, 0, 0, 0, address, 0):
        raise Unsupported
    return value


def _take(kept: list[Tensor]) -> Tensor | None:
    """The kept gradient, once: several threads may run backward through one graph."""
    try:
        return kept.pop()
    except IndexError:
        return None


def _factor(upstream: Tensor, dim: int) -> float | Tensor:
    """One number where the upstream gradient is the same for every row, as after a sum or a mean."""
    if upstream.dim() == 0:
        return upstream.item()
    if any(upstream.stride()):
        return upstream.unsqueeze(dim)
    return upstream[(0,) * upstream.dim()].item()


def _is_finite(factor: float | Tensor) -> bool:
    return bool(factor.isfinite().all()) if isinstance(factor, Tensor) else math.isfinite(factor)


def _evaluate(inputs: LossInputs, grad: Tensor | None = None, upstream: Tensor | None = None) -> Tensor:
    """The loss; the gradient by the logits, times `upstream`, is written to `grad`."""
    logits, targets, weight, priors, kl_weights, options = inputs
    value = _empty_loss(logits, options)
    ids, counts = targets, None
    if not _is_readable(inputs):
        logits, ids, counts, weight, priors, kl_weights = _to_readable(inputs)
    done = extension.evaluate(
        _header(
            options,
            logits.shape,
            (logits.dtype, logits.stride()),
            None if counts is None else (counts.dtype, counts.stride()),
            None if priors is None else (priors.dtype, priors.stride()),
            None if grad is None else (grad.dtype, grad.stride()),
        ),
        torch.get_num_threads(),
        value.data_ptr(),
        logits.data_ptr(),
        0 if ids is None else ids.data_ptr(),
        0 if counts is None else counts.data_ptr(),
        0 if weight is None else weight.data_ptr(),
        0 if priors is None else priors.data_ptr(),
        0 if kl_weights is None else kl_weights.data_ptr(),
        0 if grad is None else grad.data_ptr(),
        0 if upstream is None else upstream.data_ptr(),
    )
    if not done:
        raise Unsupported
    return value


_results: dict[torch.dtype, Tensor] = {}
"""A scalar for each type of logits: `empty_like` of it costs half of an `empty` with its arguments."""


def _empty_loss(logits: Tensor, options: Options) -> Tensor:
    like = _results.get(logits.dtype)
    if like is None:  # not at import, which may be under another default device or a fake tensor mode
        like = torch.empty((), dtype=result_dtype(logits.dtype), device="cpu")
        _results[logits.dtype] = like
    if options.reduction == "none":
        return like.new_empty(row_shape(logits.shape, options.dim))
    return torch.empty_like(like)


def _is_readable(inputs: LossInputs) -> bool:
    """Whether the usual call, of logits and ids alone, can be read by the extension as it is."""
    logits, targets, weight, priors, kl_weights, options = inputs
    return (
        weight is priors is kl_weights is None
        and options.has_ids
        and logits.dim() <= 2
        and targets.dtype is torch.int64
        and targets.is_contiguous()
    )


def _to_readable(
    inputs: LossInputs,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """Logits, ids or counts, weight, priors and KL weights in types and layouts that the extension reads."""
    logits, targets, weight, priors, kl_weights, options = inputs
    shape, dim = logits.shape, options.dim
    ids = targets.to(torch.int64).contiguous() if options.has_ids else None
    counts = None if options.has_ids else to_strided(targets, dim)
    if weight is not None:
        weight = weight.to(torch.float64).contiguous()
    if priors is not None:
        priors = to_strided(priors.expand(shape), dim)
    if kl_weights is not None:
        one_a_row = torch.Size((*shape[:dim], 1, *shape[dim + 1 :]))
        kl_weights = kl_weights.to(torch.float64).expand(one_a_row).contiguous()
    return to_strided(logits, dim), ids, counts, weight, priors, kl_weights


@lru_cache(maxsize=1000)
def _header(
    options: Options,
    shape: torch.Size,
    logits: tuple[torch.dtype, tuple[int, ...]],
    counts: tuple[torch.dtype, tuple[int, ...]] | None,
    priors: tuple[torch.dtype, tuple[int, ...]] | None,
    grad: tuple[torch.dtype, tuple[int, ...]] | None,
) -> bytes:
    """All of a call but its addresses, packed once: training repeats it in every step."""
    dim, beta = options.dim, options.prior
    classes = shape[dim]
    layouts = (
        (0, 0, 0, 0) if tensor is None else _layout(tensor[0], shape, tensor[1], dim)
        for tensor in (logits, counts, priors, grad)
    )
    sizes, reduction = flat_sizes(shape, dim), REDUCTIONS.index(options.reduction)
    whole = *sizes, *chain(*layouts), options.ignore_index, reduction
    normaliser = classes * math.lgamma(beta) - math.lgamma(classes * beta)  # Σ lnΓ(β_k) − lnΓ(β₀)
    return struct.pack("=21q3d", *whole, beta, options.kl_weight, normaliser)


MeasureFunction = Callable[[Tensor, int], Tensor]
"""A function of `dirichlet`: one number a row of log-concentrations, or one a class."""
MEASURES: dict[MeasureFunction, int] = {
    dirichlet.entropy: 0,
    dirichlet.expected_entropy: 1,
    dirichlet.mutual_information: 2,
    dirichlet.differential_entropy: 3,
}
"""The number by which every kernel knows a function."""


def measure(function: MeasureFunction, logits: Tensor, dim: int) -> Tensor | None:
    """The value of a function of `dirichlet`, differentiable."""
    if is_traced() or not is_plain_cpu(logits):
        return None
    if torch.is_grad_enabled() and logits.requires_grad:
        value: Any = Measure.apply(logits, function, dim, _measure)
        return value
    return _measure(function, logits, dim)


class Measure(Function):
    """Value by a kernel, derivatives by the definition in `dirichlet`."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        function: MeasureFunction,
        dim: int,
        evaluate: Callable[[MeasureFunction, Tensor, int], Tensor | None],
    ) -> Tensor:
        """What `evaluate` returns, or the definition where that is None."""
        ctx.save_for_backward(logits)
        ctx.function, ctx.dim = function, dim
        value = evaluate(function, logits, dim)
        return function(logits, dim) if value is None else value

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None, None]:
        """The gradient of the definition, which can be differentiated again."""
        (logits,), differentiable = ctx.saved_tensors, torch.is_grad_enabled()
        with torch.enable_grad():
            # a view is without the caller's hooks, which run later
            at = logits.view_as(logits) if differentiable else logits.detach().requires_grad_()
            value = ctx.function(at, ctx.dim)
        (grad,) = torch.autograd.grad(value, at, grad_outputs[0], create_graph=differentiable)
        return grad, None, None, None


def _measure(function: MeasureFunction, logits: Tensor, dim: int) -> Tensor | None:
    x, sizes, threads = to_strided(logits, dim), flat_sizes(logits.shape, dim), torch.get_num_threads()
    dtype = result_dtype(x.dtype)
    if function is dirichlet.variance:
        value = empty_grad(logits.to(dtype), dim)
        done = extension.variance(*sizes, *strided(x, dim), *strided(value, dim), threads)
    else:
        value = torch.empty(row_shape(logits.shape, dim), dtype=dtype, device=x.device)
        result = value.data_ptr(), _KINDS[dtype]
        done = extension.measure(MEASURES[function], *sizes, *strided(x, dim), *result, threads)
    return value if done else None


def divergence(p: Tensor, q: Tensor, dim: int) -> Tensor | None:
    """`dirichlet.divergence`, differentiable any number of times."""
    if is_traced() or p.shape[dim] == 1 or not (is_plain_cpu(p) and is_plain_cpu(q)):
        return None
    try:
        if torch.is_grad_enabled() and (p.requires_grad or q.requires_grad):
            value: Any = _Divergence.apply(p, q, dim)
            return value
        return _divergence(p, q, dim)
    except Unsupported:
        return None


class _Divergence(Function):
    """Gradients are computed in the backward pass; second derivatives go through the reference."""

    @staticmethod
    def forward(ctx: Any, p: Tensor, q: Tensor, dim: int) -> Tensor:
        value = _divergence(p, q, dim)
        ctx.save_for_backward(p, q)
        ctx.dim = dim
        return value

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (p, q), (upstream,), needed = ctx.saved_tensors, grad_outputs, ctx.needs_input_grad[:2]
        if torch.is_grad_enabled() or not is_plain_cpu(upstream):
            arriving = upstream.unsqueeze(ctx.dim)
            return *autograd.pull(dirichlet.DIVERGENCE, ctx.dim, (p, q), arriving, needed), None
        return *_divergence_grads(p, q, ctx.dim, upstream, needed), None


_NO_TENSOR = (0, 0, 0, 0, 0)


def _divergence(p: Tensor, q: Tensor, dim: int) -> Tensor:
    dtype = result_dtype(torch.promote_types(p.dtype, q.dtype))
    value = torch.empty(row_shape(p.shape, dim), dtype=dtype, device=p.device)
    _run_divergence(p, q, dim, (value.data_ptr(), _KINDS[dtype], *_NO_TENSOR, *_NO_TENSOR, 0, 0))
    return value


def _divergence_grads(
    p: Tensor, q: Tensor, dim: int, upstream: Tensor, needed: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients that are needed, each row's times its upstream gradient."""
    by_p, by_q = (
        empty_grad(x, dim) if is_needed else None for x, is_needed in zip((p, q), needed, strict=True)
    )
    outputs = (_NO_TENSOR if grad is None else strided(grad, dim) for grad in (by_p, by_q))
    upstream = upstream.contiguous()
    _run_divergence(p, q, dim, (0, 0, *chain(*outputs), upstream.data_ptr(), _KINDS[upstream.dtype]))
    return by_p, by_q


def _run_divergence(p: Tensor, q: Tensor, dim: int, outputs: tuple[int, ...]) -> None:
    sizes, p, q = flat_sizes(p.shape, dim), to_strided(p, dim), to_strided(q, dim)
    if not extension.divergence(
        *sizes, *strided(p, dim), *strided(q, dim), *outputs, torch.get_num_threads()
    ):
        raise Unsupported


# Tensors as the extension sees them: of shape (outer, classes, inner), with one stride for each of the three.

_KINDS = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}
PLAIN_TYPES = (Tensor, Parameter, Buffer)
"""Types without operations of their own."""


def is_traced() -> bool:
    """Whether torch must see every operation: for a trace, a transform, forward derivatives, or a mode."""
    return _len_torch_dispatch_stack() > 0 or is_transformed()


def is_transformed() -> bool:
    """Whether a trace, a function transform or forward derivatives are to be made of what is computed."""
    return _is_tracing() or _are_functorch_transforms_active() or forward_ad._current_level >= 0


def is_plain_cpu(x: Tensor) -> bool:
    """Whether x is its own numbers in this process's memory: no subclass, no function transform's tensor."""
    if type(x) not in PLAIN_TYPES or not x.is_cpu or x.is_neg():
        return False
    try:
        address = x.data_ptr()
        return address != 0 and address % x.element_size() == 0
    except RuntimeError:  # the tensors of function transforms have no memory of their own
        return False


def to_strided(x: Tensor, dim: int) -> Tensor:
    """x, copied if three strides do not describe it."""
    return x if _is_strided(x, dim) else x.contiguous()


def empty_grad(x: Tensor, dim: int) -> Tensor:
    """Memory for a gradient by x, in the layout of x if three strides describe that."""
    grad = torch.empty_like(x)
    return grad if _is_strided(grad, dim) else torch.empty_like(x, memory_format=torch.contiguous_format)


def strided(x: Tensor, dim: int) -> tuple[int, int, int, int, int]:
    """Address and type of x, and its strides along the outer dimensions, the classes and the inner ones."""
    return x.data_ptr(), *_layout(x.dtype, x.shape, x.stride(), dim)


def _layout(
    dtype: torch.dtype, shape: Sequence[int], stride: Sequence[int], dim: int
) -> tuple[int, int, int, int]:
    """What `strided` returns but for the address."""
    if dim == 1 and len(stride) == 2:
        return _KINDS[dtype], stride[0], stride[1], 0
    outer, inner = (group[-1][1] if group else 0 for group in _around(shape, stride, dim))
    return _KINDS[dtype], outer, stride[dim], inner


def _is_strided(x: Tensor, dim: int) -> bool:
    """Whether one stride describes the dimensions before the classes, and one those after them."""
    if x.dim() <= 2:
        return True
    neighbours = (pair for group in _around(x.shape, x.stride(), dim) for pair in pairwise(group))
    return all(stride == size_after * stride_after for (_, stride), (size_after, stride_after) in neighbours)


def _around(
    shape: Sequence[int], stride: Sequence[int], dim: int
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Size and stride of the dimensions before and after the classes; those of size 1 have no stride."""
    pairs = list(zip(shape, stride, strict=True))
    before, after = ([pair for pair in group if pair[0] != 1] for group in (pairs[:dim], pairs[dim + 1 :]))
    return before, after


def flat_sizes(shape: torch.Size, dim: int) -> tuple[int, int, int]:
    """Outer positions, classes and inner positions."""
    if dim == 1 and len(shape) == 2:
        return shape[0], shape[1], 1
    return math.prod(shape[:dim]), shape[dim], math.prod(shape[dim + 1 :])


def _contiguous_stride(shape: torch.Size) -> tuple[int, ...]:
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def row_shape(shape: torch.Size, dim: int) -> torch.Size:
    """The shape of one number a row."""
    return shape[:dim] + shape[dim + 1 :]
