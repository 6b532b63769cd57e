"""Operations whose derivatives are closed forms: exact where differentiating the value would not be.

An `Operation` is a value and one gradient for each tensor it depends on, all functions of the same tensors
and a class dimension. The gradients consist of plain tensor operations, so they differentiate further;
reverse and forward mode, `torch.func` transforms and `torch.compile` all work on it.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from beliefmatch._rows import work_dtype
from beliefmatch._special import saturate

__all__ = ["Operation", "apply", "pull", "to_finite"]


class Operation(NamedTuple):
    """`value(*tensors, dim)` has `dim` at size 1; each gradient is K-wide, or of size 1 along `dim`."""

    value: Callable[..., Tensor]
    grads: tuple[Callable[..., Tensor], ...]


def apply(operation: Operation, dim: int, *tensors: Tensor) -> Tensor:
    """The operation's value, differentiable in every tensor.

    Gradients saturate at the largest finite value of the tensor they belong to.
    """
    compiling = torch.compiler.is_compiling()
    if compiling and not any(x.requires_grad for x in tensors):
        return operation.value(*tensors, dim)  # torch.compile cannot trace a Function without gradients
    function = _ClosedForm if compiling else _ClosedFormForwardMode
    value: Any = function.apply(operation, dim, *tensors)
    return value


def pull(
    operation: Operation, dim: int, tensors: Sequence[Tensor], upstream: Tensor, needed: Sequence[bool]
) -> list[Tensor | None]:
    """The vector-Jacobian product by each tensor that needs it; `upstream` has `dim` at size 1."""
    pulled: list[Tensor | None] = [None] * len(tensors)
    for i, x in enumerate(tensors):
        if needed[i]:
            limit = torch.finfo(x.dtype).max
            grad = operation.grads[i](*tensors, dim).clamp(-limit, limit)
            # Not saturated again: a gradient scaler must see that its scale is too large.
            pulled[i] = (grad * upstream.to(grad.dtype)).sum_to_size(x.shape).to(x.dtype)
    return pulled


def to_finite(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x in the given type, saturating at its largest finite value; gradients pass unchanged."""
    compiling = torch.compiler.is_compiling()
    if compiling and not x.requires_grad:
        return saturate(x, dtype)
    function = _ToFinite if compiling else _ToFiniteForwardMode
    finite: Any = function.apply(x, dtype)
    return finite


class _ClosedForm(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(operation: Operation, dim: int, *tensors: Tensor) -> Tensor:
        return operation.value(*tensors, dim)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.operation, ctx.dim, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad[2:]
        return None, None, *pull(ctx.operation, ctx.dim, ctx.saved_tensors, grad_outputs[0], needed)


class _ClosedFormForwardMode(_ClosedForm):
    """With the forward-mode derivative, which torch.compile does not accept in a Function."""

    @staticmethod
    def jvp(ctx: Any, *grad_inputs: Any) -> Tensor:
        tensors = ctx.saved_tensors
        pushed: Any = 0.0
        for tangent, grad in zip(grad_inputs[2:], ctx.operation.grads, strict=True):
            if tangent is not None:
                pushed = pushed + (tangent * grad(*tensors, ctx.dim)).sum(ctx.dim, keepdim=True)
        return saturate(pushed.to(work_dtype(pushed.device)))


class _ToFinite(Function):
    """Its gradient is the cast's, not the zero of a clamp."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, dtype: torch.dtype) -> Tensor:
        return saturate(x, dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.dtypes = inputs[0].dtype, inputs[1]

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        return grad_outputs[0].to(ctx.dtypes[0]), None


class _ToFiniteForwardMode(_ToFinite):
    @staticmethod
    def jvp(ctx: Any, *grad_inputs: Any) -> Tensor:
        return grad_inputs[0].to(ctx.dtypes[1])
