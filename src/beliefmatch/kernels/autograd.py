"""The negative ELBO as a differentiable operation whose derivatives are the closed forms."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from beliefmatch import special
from beliefmatch.dirichlet import expected_surprisal
from beliefmatch.kernels import reference
from beliefmatch.rows import row_dtype

__all__ = ["negative_elbo", "to_finite"]


def negative_elbo(
    logits: Tensor, counts: Tensor, prior: Tensor, kl_weight: Tensor, dim: int
) -> Tensor:
    """The loss of each row, differentiable in all four tensors; see `reference.negative_elbo`."""
    operation = _NegativeElbo if torch.compiler.is_compiling() else _NegativeElboForwardMode
    rows: Any = operation.apply(logits, counts, prior, kl_weight, dim)
    return rows


def to_finite(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x in the given type, saturating at its largest finite value; gradients pass unchanged."""
    operation = _ToFinite if torch.compiler.is_compiling() else _ToFiniteForwardMode
    finite: Any = operation.apply(x, dtype)
    return finite


def _slope_by_counts(
    logits: Tensor, counts: Tensor, prior: Tensor, kl_weight: Tensor, dim: int
) -> Tensor:
    """∂ℓ/∂c_k = ψ(α₀) − ψ(α_k)."""
    return expected_surprisal(logits, dim)


def _slope_by_prior(
    logits: Tensor, counts: Tensor, prior: Tensor, kl_weight: Tensor, dim: int
) -> Tensor:
    """∂ℓ/∂β_k = λ [ψ(α₀) − ψ(α_k) − (ψ(β₀) − ψ(β_k))]."""
    log_prior = prior.to(kl_weight.dtype).expand_as(logits).log()
    difference = expected_surprisal(logits, dim) - expected_surprisal(log_prior, dim)
    return kl_weight * difference


def _slope_by_kl_weight(
    logits: Tensor, counts: Tensor, prior: Tensor, kl_weight: Tensor, dim: int
) -> Tensor:
    """∂ℓ/∂λ = KL(Dir(α) ‖ Dir(β))."""
    return negative_elbo(
        logits, torch.zeros_like(counts), prior, torch.ones_like(kl_weight), dim
    )


_SLOPES = (reference.gradient, _slope_by_counts, _slope_by_prior, _slope_by_kl_weight)


class _NegativeElbo(Function):
    """Backward is made of plain operations, so it can be differentiated again."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        logits: Tensor, counts: Tensor, prior: Tensor, kl_weight: Tensor, dim: int
    ) -> Tensor:
        return reference.negative_elbo(logits, counts, prior, kl_weight, dim)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.dim = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grad_outputs
        pulled: list[Tensor | None] = []
        for x, slope, needed in zip(ctx.saved_tensors, _SLOPES, ctx.needs_input_grad[:-1], strict=True):
            if not needed:
                pulled.append(None)
                continue
            by_x = slope(*ctx.saved_tensors, ctx.dim)
            by_x = (by_x * grad.to(by_x.dtype)).sum_to_size(x.shape)
            pulled.append(special.saturate(by_x, x.dtype))
        return *pulled, None


class _NegativeElboForwardMode(_NegativeElbo):
    """Also knows its forward-mode derivative, which torch.compile does not accept in a Function."""

    @staticmethod
    def jvp(ctx: Any, *grad_inputs: Any) -> Tensor:
        pushed: Any = 0.0
        for tangent, slope in zip(grad_inputs[:-1], _SLOPES, strict=True):
            if tangent is not None:
                by_x = slope(*ctx.saved_tensors, ctx.dim)
                pushed = pushed + (tangent * by_x).sum(ctx.dim, keepdim=True)
        return special.saturate(pushed.to(row_dtype(pushed.device)))


class _ToFinite(Function):
    """A cast that saturates; its gradient is the cast's, not the zero of a clamp."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, dtype: torch.dtype) -> Tensor:
        return special.saturate(x, dtype)

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
