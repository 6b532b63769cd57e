"""The Triton kernel: which tensors it supports, how it is launched, and how it takes part in autograd.

For CUDA, ROCm and XPU tensors; with TRITON_INTERPRET=1, which Triton reads when it is imported, for CPU
tensors too. Each function returns None for what it does not support, and the caller goes on to another
kernel. To be imported at the first call that needs it: the import of Triton takes a second.
"""

import math
import os
import struct
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from beliefmatch import _autograd as autograd
from beliefmatch import dirichlet
from beliefmatch._rows import result_dtype, work_dtype
from beliefmatch._validate import is_inspectable
from beliefmatch.kernels import reference
from beliefmatch.kernels.native import (
    MEASURES,
    PLAIN_TYPES,
    Measure,
    MeasureFunction,
    flat_sizes,
    is_traced,
    row_shape,
)
from beliefmatch.kernels.reference import LossInputs, Options

__all__ = ["DEVICES", "divergence", "is_interpreting", "loss", "loss_and_grad", "measure", "probe"]

DEVICES = ("cuda", "xpu")
"""Types of devices that it is compiled for; torch calls ROCm "cuda"."""
_FLOATING = (torch.float32, torch.bfloat16, torch.float16)


def loss(inputs: LossInputs) -> Tensor | None:
    """The loss, differentiable in the logits any number of times."""
    logits, options = inputs.logits, inputs.options
    if not (_is_supported(logits) and _are_in_range(options) and all(map(_is_plain, inputs[1:5]))):
        return None
    differentiating = torch.is_grad_enabled()
    if differentiating and any(x is not None and x.requires_grad for x in inputs[1:5]):
        return None
    if is_traced() or not _are_values_valid(inputs):
        return None
    if differentiating and logits.requires_grad:
        value: Any = _Loss.apply(logits, inputs)
        return value
    return _evaluate(inputs)


def loss_and_grad(inputs: LossInputs, upstream: Tensor | None) -> tuple[Tensor, Tensor] | None:
    """The loss and its gradient by the logits times `upstream`, in one launch and outside of any graph."""
    logits, options = inputs.logits, inputs.options
    if is_traced() or not (_is_supported(logits) and _are_in_range(options)):
        return None
    if not (all(map(_is_plain, inputs[1:5])) and _are_values_valid(inputs)):
        return None
    grad = _empty_grad(logits, options.dim)
    return _evaluate(inputs, grad, upstream), grad


def probe(device: str) -> None:
    """Compile and launch the kernel for two logits; raises where Triton does not work on the device."""
    logits, ids = torch.zeros(1, 2, device=device), torch.zeros(1, dtype=torch.int64, device=device)
    _evaluate(LossInputs(logits, ids, None, None, None, Options(1.0, 0.01, 1, True, -100, "sum")))


def _is_supported(x: Tensor) -> bool:
    if x.dtype not in _FLOATING or x.numel() == 0 or not _is_plain(x):
        return False
    return x.device.type in DEVICES or (x.device.type == "cpu" and is_interpreting())


def _is_plain(x: Tensor | None) -> bool:
    """Whether the memory of x holds its numbers: no subclass with its own operations, no lazy sign."""
    return x is None or (type(x) in PLAIN_TYPES and not x.is_neg())


def is_interpreting() -> bool:
    """Whether CPU tensors go through Triton's interpreter."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def _on_device_of(x: Tensor) -> AbstractContextManager[Any]:
    """Where x is: Triton launches on the current device, which may be another one."""
    device = x.device
    return getattr(torch, device.type).device(device) if device.type in DEVICES else nullcontext()


def _are_in_range(options: Options) -> bool:
    """Whether β and λ are numbers that float32 holds, with some room for their products."""
    return 1e-18 <= options.prior <= 1e18 and (options.kl_weight == 0 or 1e-18 <= options.kl_weight <= 1e18)


def _are_values_valid(inputs: LossInputs) -> bool:
    """False where values that can be looked at without cost are wrong: the reference names them."""
    logits, targets, weight, priors, _, options = inputs
    if not is_inspectable(logits):
        return True
    classes = logits.shape[options.dim]
    if options.has_ids:
        ids = targets.long()
        valid = (((ids >= 0) & (ids < classes)) | (ids == options.ignore_index)).all()
    else:
        valid = (targets.isfinite() & (targets >= 0)).all()
    if weight is not None:
        valid = valid & (weight.isfinite() & (weight >= 0)).all()
    if priors is not None:
        valid = valid & (priors.isfinite() & (priors > 0)).all()
    return bool(valid)


class _Loss(Function):
    """Computes the gradient of a sum or mean with the loss and keeps it for the first backward pass.

    Later passes compute it again, as does the first of rows and of half precision, whose gradients a factor
    would have to reach before they are rounded. Second derivatives go through the reference.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, inputs: LossInputs) -> Tensor:
        grad = (
            _empty_grad(logits, inputs.options.dim) if _is_early(logits, inputs.options.reduction) else None
        )
        ctx.kept = [] if grad is None else [grad]
        ctx.save_for_backward(*inputs[:5])
        ctx.options = inputs.options
        return _evaluate(inputs, grad)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, None]:
        (upstream,) = grad_outputs
        logits, targets, weight, priors, kl_weights = ctx.saved_tensors
        inputs = LossInputs(logits, targets, weight, priors, kl_weights, ctx.options)
        if torch.is_grad_enabled() or is_traced():
            return reference.loss_grad(inputs, upstream), None
        try:
            grad = ctx.kept.pop()  # several threads may run backward through one graph
        except IndexError:
            grad = _empty_grad(logits, ctx.options.dim)
            _evaluate(inputs, grad, upstream)
            return grad, None
        _scale(grad, upstream)
        return grad, None


def _is_early(logits: Tensor, reduction: str) -> bool:
    """Whether the gradient is computed with the loss: a factor that comes later may still reach it."""
    return reduction != "none" and logits.dtype is not torch.float16


def measure(function: MeasureFunction, logits: Tensor, dim: int) -> Tensor | None:
    """The value of a function of `dirichlet` of one number a row, differentiable."""
    if torch.compiler.is_compiling() or is_traced() or function not in MEASURES or not _is_supported(logits):
        return None
    if torch.is_grad_enabled() and logits.requires_grad:
        value: Any = Measure.apply(logits, function, dim, _measure)
        return value
    return _measure(function, logits, dim)


def divergence(p: Tensor, q: Tensor, dim: int) -> Tensor | None:
    """`dirichlet.divergence`, differentiable any number of times."""
    if torch.compiler.is_compiling() or is_traced():
        return None
    if p.shape[dim] == 1 or not (_is_supported(p) and _is_supported(q)):
        return None
    if torch.is_grad_enabled() and (p.requires_grad or q.requires_grad):
        value: Any = _Divergence.apply(p, q, dim)
        return value
    return _divergence(p, q, dim)


class _Divergence(Function):
    """Gradients are computed in the backward pass; second derivatives go through the reference."""

    @staticmethod
    def forward(ctx: Any, p: Tensor, q: Tensor, dim: int) -> Tensor:
        ctx.save_for_backward(p, q)
        ctx.dim = dim
        return _divergence(p, q, dim)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (p, q), (upstream,), needed = ctx.saved_tensors, grad_outputs, ctx.needs_input_grad[:2]
        if torch.is_grad_enabled() or is_traced():
            arriving = upstream.unsqueeze(ctx.dim)
            return *autograd.pull(dirichlet.DIVERGENCE, ctx.dim, (p, q), arriving, needed), None
        by_p, by_q = (
            _empty_grad(x, ctx.dim) if is_needed else None
            for x, is_needed in zip((p, q), needed, strict=True)
        )
        _run_divergence(p, q, ctx.dim, None, upstream.contiguous(), by_p, by_q)
        return by_p, by_q, None


# Launches


class _Tile(NamedTuple):
    """What a program computes at once, and with how many warps."""

    rows: int
    block: int
    fits: bool
    exact_block: int
    warps: int


_WARP = 64 if torch.version.hip else 32
"""Threads of a warp."""
_LONGEST = 8192
"""Classes up to which a row is held in registers, to be read once; longer rows go by blocks of half of it."""
_TILE = 1024
"""Classes of all rows of a program, unless one row has more."""


@lru_cache(maxsize=1000)
def _tile(outer: int, classes: int, inner: int, has_ids: bool, has_weight: bool) -> _Tile:
    """For logits of this shape."""
    neighbours = inner if inner > 1 else outer
    each = 4 if inner > 1 or (has_weight and not has_ids) else 8  # classes for each thread
    fits = classes <= (_LONGEST if has_ids else _LONGEST // 2)  # votes take registers too
    block = _power_of_two(classes) if fits else _LONGEST // 2
    rows = max(1, min(_TILE // block, _power_of_two(neighbours), 128))
    warps = max(1, min(16, rows * block // (32 * each)))
    exact_block = _WARP * warps  # one for each thread: doubles take many registers
    return _Tile(rows, block, fits, exact_block, warps)


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


def _evaluate(
    inputs: LossInputs,
    grad: Tensor | None = None,
    upstream: Tensor | None = None,
) -> Tensor:
    """The loss; the gradient by the logits, times `upstream`, is written to `grad`."""
    logits, targets, weight, priors, kl_weights, options = inputs
    dim = options.dim
    outer, classes, inner = sizes = flat_sizes(logits.shape, dim)
    work = work_dtype(logits.device)
    losses = torch.empty(outer * inner, dtype=work, device=logits.device)
    tile = _tile(outer, classes, inner, options.has_ids, weight is not None)
    z = logits.reshape(sizes)
    counts = None if options.has_ids else targets.reshape(sizes)
    betas = None if priors is None else priors.expand(logits.shape).reshape(sizes)
    strengths = None
    if kl_weights is not None:
        one_a_row = torch.Size((*logits.shape[:dim], 1, *logits.shape[dim + 1 :]))
        strengths = kl_weights.expand(one_a_row).contiguous()
    grads = None if grad is None else grad.view(sizes)
    strides = _strides(z), _strides(counts), _strides(betas), _strides(grads)
    align = math.gcd(16, classes, *(stride[0] for stride in strides))
    has_scale = options.has_ids and options.reduction == "mean"
    with _on_device_of(logits):
        _loss_code().loss_kernel[(_programs(outer, inner, tile.rows),)](
            z,
            targets.contiguous() if options.has_ids else None,
            counts,
            None if weight is None else weight.contiguous(),
            betas,
            strengths,
            _mean_scale(inputs) if has_scale else None,
            None if upstream is None else upstream.contiguous(),
            losses,
            grads,
            outer,
            classes // align,
            inner,
            *(part for first, *others in strides for part in (first // align, *others)),
            0 if upstream is None or (upstream.dim() == 0 and options.reduction != "none") else 1,
            options.ignore_index,
            *_numbers(
                options,
                classes,
                1 / (outer * inner) if options.reduction == "mean" and not has_scale else 1.0,
            ),
            torch.finfo(logits.dtype).max,
            HAS_INNER=inner > 1,
            ROWS=tile.rows,
            ALIGN=align,
            WIDE=_loss_code().WIDE[work],
            BLOCK=tile.block,
            FITS=tile.fits,
            UNIT_PRIOR=options.prior == 1,
            EXACT_BLOCK=tile.exact_block,
            num_warps=tile.warps,
        )
    kind = result_dtype(logits.dtype)
    limit = torch.finfo(kind).max
    if options.reduction == "none":
        return losses.clamp_(-limit, limit).to(kind).view(row_shape(logits.shape, dim))
    return losses.sum().clamp_(-limit, limit).to(kind)


def _mean_scale(inputs: LossInputs) -> Tensor:
    """One over the weights of the rows that are not ignored."""
    ids, weight, options = inputs.targets, inputs.weight, inputs.options
    counted = ids.long() != options.ignore_index
    if weight is not None:
        last = inputs.logits.shape[options.dim] - 1
        counted = counted * weight[ids.long().clamp(0, last)].to(work_dtype(ids.device))
    return counted.sum(dtype=work_dtype(ids.device)).reciprocal_()


@lru_cache(maxsize=1000)
def _numbers(options: Options, classes: int, scale: float) -> tuple[float, ...]:
    """λ, β, ln β, ln(β + 1/λ), the normaliser Σ lnΓ(β) − lnΓ(β₀) and the scale, in two parts each."""
    prior, kl_weight = options.prior, options.kl_weight
    log_optimum = math.log(prior + 1 / kl_weight) if kl_weight > 0 else 0.0
    normaliser = classes * math.lgamma(prior) - math.lgamma(classes * prior)
    whole = kl_weight, prior, math.log(prior), log_optimum, normaliser, scale
    return tuple(part for number in whole for part in _parts(number))


def _parts(number: float) -> tuple[float, float]:
    """The number as a float32, and what is left of it."""
    (high,) = struct.unpack("f", struct.pack("f", number))
    return high, number - high


def _scale(grad: Tensor, upstream: Tensor) -> None:
    count, block = grad.numel(), 4096
    with _on_device_of(grad):
        _loss_code().scale_kernel[(_divided(count, block),)](grad, upstream, count, BLOCK=block, num_warps=8)


def _empty_grad(x: Tensor, dim: int) -> Tensor:
    """Memory for a gradient by x, without gaps, in the layout of x where three strides describe that."""
    grad = torch.empty_like(x)
    try:
        grad.view(flat_sizes(x.shape, dim))
    except RuntimeError:
        return torch.empty_like(x, memory_format=torch.contiguous_format)
    return grad


def _strides(x: Tensor | None) -> tuple[int, ...]:
    return (0, 0, 0) if x is None else x.stride()


def _divided(count: int, size: int) -> int:
    return -(-count // size)


@lru_cache(maxsize=1)
def _loss_code() -> Any:
    return import_module("beliefmatch.kernels.triton_loss")


def _measure(function: MeasureFunction, logits: Tensor, dim: int) -> Tensor:
    z, code = logits.reshape(flat_sizes(logits.shape, dim)), _dirichlet_code()
    values = torch.empty(row_shape(logits.shape, dim), dtype=result_dtype(logits.dtype), device=logits.device)
    grid, options = _exact_launch(z)
    with _on_device_of(z):
        code.measure_kernel[grid](z, values, *z.shape, *z.stride(), MEASURE=MEASURES[function], **options)
    return values


def _divergence(p: Tensor, q: Tensor, dim: int) -> Tensor:
    values = torch.empty(row_shape(p.shape, dim), dtype=torch.float32, device=p.device)
    _run_divergence(p, q, dim, values)
    return values


def _run_divergence(
    p: Tensor,
    q: Tensor,
    dim: int,
    values: Tensor | None,
    upstream: Tensor | None = None,
    by_p: Tensor | None = None,
    by_q: Tensor | None = None,
) -> None:
    sizes, limits = flat_sizes(p.shape, dim), (torch.finfo(x.dtype).max for x in (p, q))
    p, q = p.reshape(sizes), q.reshape(sizes)
    by_p, by_q = (None if grad is None else grad.view(sizes) for grad in (by_p, by_q))
    strides = (stride for x in (p, q, by_p, by_q) for stride in _strides(x))
    grid, options = _exact_launch(p)
    with _on_device_of(p):
        _dirichlet_code().divergence_kernel[grid](
            p, q, values, upstream, by_p, by_q, *sizes, *strides, *limits, **options
        )


def _exact_launch(z: Tensor) -> tuple[tuple[int], dict[str, Any]]:
    """Grid and tile for rows in the working type: few classes at once, for their many registers."""
    outer, classes, inner = z.shape
    neighbours = inner if inner > 1 else outer
    block = min(_power_of_two(classes), 256)
    rows = max(1, min(256 // block, _power_of_two(neighbours), 32))
    wide = _loss_code().WIDE[work_dtype(z.device)]
    options = {"HAS_INNER": inner > 1, "ROWS": rows, "BLOCK": block, "WIDE": wide, "num_warps": 4}
    return (_programs(outer, inner, rows),), options


def _programs(outer: int, inner: int, rows: int) -> int:
    return _divided(inner, rows) * outer if inner > 1 else _divided(outer, rows)


@lru_cache(maxsize=1)
def _dirichlet_code() -> Any:
    return import_module("beliefmatch.kernels.triton_dirichlet")
