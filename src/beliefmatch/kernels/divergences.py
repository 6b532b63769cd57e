"""The divergence between two Dirichlets by the compiled kernel: values in one call, slopes in another."""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from beliefmatch import autograd, dirichlet
from beliefmatch.kernels.compiled import DeclinedError, extension
from beliefmatch.kernels.layout import (
    KINDS,
    NOTHING,
    has_numbers,
    is_watched,
    room_for,
    sizes,
    strided,
    walkable,
)
from beliefmatch.rows import result_dtype

__all__ = ["divergence"]


def divergence(p: Tensor, q: Tensor, dim: int) -> Tensor | None:
    """`dirichlet.divergence`, differentiable any number of times; None if it is not for the kernel."""
    if is_watched() or p.shape[dim] == 1 or not (has_numbers(p) and has_numbers(q)):
        return None
    try:
        if torch.is_grad_enabled() and (p.requires_grad or q.requires_grad):
            value: Any = _Divergence.apply(p, q, dim)
            return value
        return _value(p, q, dim)
    except DeclinedError:
        return None


class _Divergence(Function):
    """Its slopes are computed when they are asked for; differentiable again through the reference."""

    @staticmethod
    def forward(ctx: Any, p: Tensor, q: Tensor, dim: int) -> Tensor:
        value = _value(p, q, dim)
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


def _value(p: Tensor, q: Tensor, dim: int) -> Tensor:
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
