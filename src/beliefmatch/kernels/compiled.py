"""The loss as one operation of compiled code, by the kernels of eager code.

`torch.compile` cannot see into the native kernel, and looking into the one in Triton it cannot tell which
arguments are written. Calls that it has to see inside are left to `lean` and the reference: those that are
exported, transformed, or differentiated by more than the logits.
"""

from typing import Any, cast

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active  # pyright: ignore[reportAttributeAccessIssue]
from torch.library import custom_op

from beliefmatch import kernels
from beliefmatch._rows import result_dtype
from beliefmatch.kernels import reference
from beliefmatch.kernels.native import PLAIN_TYPES, empty_grad, row_shape
from beliefmatch.kernels.reference import LossInputs, Options, Reduction

__all__ = ["loss", "operation"]

_is_exporting: Any = getattr(torch.compiler, "is_exporting", lambda: False)  # since torch 2.7


def loss(inputs: LossInputs) -> Tensor | None:
    """The loss, differentiable in the logits once, as compiled code is."""
    logits, options = inputs.logits, inputs.options
    are_plain = all(x is None or type(x) in PLAIN_TYPES for x in inputs[:5])
    if _is_exporting() or _are_functorch_transforms_active() or not are_plain:
        return None
    differentiating = torch.is_grad_enabled()
    if differentiating and any(x is not None and x.requires_grad for x in inputs[1:5]):
        return None
    numbers = None
    if logits.device.type == "cpu":
        # In a tensor, so that another number does not compile again. Elsewhere it would rule out CUDA graphs.
        zero = torch.zeros(1, dtype=torch.float64)
        numbers = torch.cat([zero + options.prior, zero + options.kl_weight])
        options = options._replace(prior=1.0, kl_weight=1.0)
    elif logits.dtype == torch.float64:
        return None  # fused by the compiler it takes less memory than by the reference
    wants_grad = differentiating and logits.requires_grad
    value, _ = operation(*inputs[:5], numbers, None, *options, wants_grad)
    return value


def _loss_and_grad(
    logits: Tensor,
    targets: Tensor,
    weight: Tensor | None,
    priors: Tensor | None,
    kl_weights: Tensor | None,
    numbers: Tensor | None,
    upstream: Tensor | None,
    prior: float,
    kl_weight: float,
    dim: int,
    has_ids: bool,
    ignore_index: int,
    reduction: str,
    wants_grad: bool,
) -> tuple[Tensor, Tensor]:
    """The loss and its gradient by the logits, empty if not asked for. `numbers` are β and λ, if given."""
    if numbers is not None:
        prior, kl_weight = numbers.tolist()
    options = Options(prior, kl_weight, dim, has_ids, ignore_index, cast(Reduction, reduction))
    inputs = LossInputs(logits, targets, weight, priors, kl_weights, options)
    if not _is_made_at_once(logits, upstream, reduction, wants_grad):
        with torch.no_grad():
            return kernels.loss(inputs), logits.new_empty(0)
    value, grad = kernels.loss_and_grad(inputs, upstream)
    if grad.stride() == logits.stride():
        return value, grad
    laid_out = empty_grad(logits, dim)  # the layout that `_empty_loss_and_grad` declares
    return value, grad if grad.stride() == laid_out.stride() else laid_out.copy_(grad)


def _empty_loss_and_grad(logits: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    """What `_loss_and_grad` returns, but for its values."""
    upstream, _, _, dim, _, _, reduction, wants_grad = others[5:]
    shape = row_shape(logits.shape, dim) if reduction == "none" else ()
    value = logits.new_empty(shape, dtype=result_dtype(logits.dtype))
    is_made = _is_made_at_once(logits, upstream, reduction, wants_grad)
    return value, empty_grad(logits, dim) if is_made else logits.new_empty(0)


def _is_made_at_once(logits: Tensor, upstream: Tensor | None, reduction: str, wants_grad: bool) -> bool:
    """Whether the gradient is made with the loss.

    Not where the upstream gradient comes later and has to reach it before it is rounded, or for every row.
    """
    is_early = reduction != "none" and logits.dtype is not torch.float16
    return wants_grad and (upstream is not None or is_early)


operation = custom_op("beliefmatch::loss", _loss_and_grad, mutates_args={})
operation.register_fake(_empty_loss_and_grad)


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, _, prior, kl_weight, dim, has_ids, ignore_index, reduction, wants_grad = inputs
    ctx.save_for_backward(*tensors, output[1])
    ctx.options = Options(prior, kl_weight, dim, has_ids, ignore_index, reduction)
    ctx.is_made = _is_made_at_once(inputs[0], None, reduction, wants_grad)


@torch.compiler.disable  # compiled Functions, such as the reference consists of, have no second derivatives
def _backward(ctx: Any, upstream: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    *tensors, numbers, grad = ctx.saved_tensors
    if torch.is_grad_enabled():  # second derivatives follow
        logits, targets, weight, priors, kl_weights = tensors
        inputs = LossInputs(logits, targets, weight, priors, kl_weights, ctx.options)
        grad = reference.loss_grad(_with_numbers(inputs, numbers), upstream)
    elif ctx.is_made:  # zeros of ignored rows stay zeros, however large a gradient scaler is
        grad = torch.where(grad == 0, 0.0, grad * upstream).to(grad.dtype)
    else:
        _, grad = operation(*tensors, numbers, upstream, *ctx.options, True)
    return grad, *[None] * 13


def _with_numbers(inputs: LossInputs, numbers: Tensor | None) -> LossInputs:
    """The inputs with β and λ as tensors, where `numbers` holds them and there are no others."""
    if numbers is None:
        return inputs
    prior, kl_weight = numbers.view(2, *[1] * inputs.logits.dim()).unbind()
    priors = prior if inputs.priors is None else inputs.priors
    return inputs._replace(
        priors=priors, kl_weights=kl_weight if inputs.kl_weights is None else inputs.kl_weights
    )


operation.register_autograd(_backward, setup_context=_keep_for_backward)  # pyright: ignore
