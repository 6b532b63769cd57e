"""Measures of doubt by the compiled kernel: its values, with the derivatives of the reference."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from beliefmatch import dirichlet
from beliefmatch.kernels.compiled import extension
from beliefmatch.kernels.layout import KINDS, has_numbers, is_watched, room_for, sizes, strided, walkable
from beliefmatch.rows import result_dtype

__all__ = ["Measure", "measure"]

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
    return _value(function, logits, dim)


class _Measured(Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, function: Measure, dim: int) -> Tensor:
        ctx.save_for_backward(logits)
        ctx.function, ctx.dim = function, dim
        value = _value(function, logits, dim)
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


def _value(function: Measure, logits: Tensor, dim: int) -> Tensor | None:
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
