"""Belief matching of a linear layer, without all its logits in memory: like `F.linear_cross_entropy`."""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._C._functorch import (  # pyright: ignore[reportMissingImports]
    is_legacy_batchedtensor,
)
from torch.autograd import Function
from torch.nn.functional import linear

from beliefmatch import _autograd as autograd
from beliefmatch import kernels
from beliefmatch._rows import result_dtype, work_dtype
from beliefmatch._validate import (
    describe,
    fail,
    naming_arguments,
    peek,
    require_device,
    require_floating,
    require_index,
)
from beliefmatch.kernels.native import PLAIN_TYPES, is_transformed
from beliefmatch.kernels.reference import LossInputs, Reduction
from beliefmatch.loss import BeliefMatchingLoss, checked_inputs

__all__ = ["LinearBeliefMatchingLoss", "linear_belief_matching_loss"]

NAME = "linear_belief_matching_loss"
_OPTIONS = ("targets", "kl_weight", "target_confidence", "prior", "ignore_index", "reduction")
_ARGUMENTS = {"weight": "class_weight", **{name: name for name in _OPTIONS}}
"""What this function calls each argument of `belief_matching_loss`."""
_MIN_ROWS = 512  # of a chunk: with fewer, reading the weights adds to the time of multiplying by them
_MIN_LOGITS = 4_000_000  # of a chunk, where classes are few: 16 MB in float32


def linear_belief_matching_loss(
    features: Tensor,
    weight: Tensor,
    targets: Tensor,
    bias: Tensor | None = None,
    *,
    kl_weight: float | None = None,
    target_confidence: float | None = None,
    prior: float | Tensor = 1.0,
    class_weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    batch_chunk_size: int | None = None,
) -> Tensor:
    r"""The belief matching loss of a linear layer, without the logits of all rows in memory.

    .. math:: ℓ = \sum_k c_k\,(ψ(α_0) - ψ(α_k)) + λ\,\mathrm{KL}(\mathrm{Dir}(α)\,\|\,\mathrm{Dir}(β)),
              \qquad \ln α = W x + b

    Equals `belief_matching_loss(F.linear(features, weight, bias), targets, ...)`. Rows are taken in chunks:
    the logits of a chunk give its losses and its share of the gradients of features, weight and bias in
    the forward pass, and are dropped. For the vocabulary of a language model, or other heads of many
    thousand classes, the logits are most of the memory of a training step.

    Args:
        features: x, of shape (..., in_features).
        weight: W, of shape (K, in_features), as in `torch.nn.Linear`.
        targets: class ids (integers, the features' shape without in_features), or counts c ≥ 0 (floating
            point, of shape (..., K)).
        bias: b, of shape (K,).
        kl_weight: λ ≥ 0, the weight of the prior; 0.01 if neither it nor `target_confidence` is given.
        target_confidence: instead of λ, the probability that the optimum gives to the label of one vote;
            see `belief_matching_loss`.
        prior: β > 0: a number, a tensor (K,) with one value per class, or a tensor that broadcasts to
            (..., K) with as many dimensions as the features.
        class_weight: one value per class (K,); the `weight` of `belief_matching_loss`.
        ignore_index: class id whose rows are ignored. Not for counts.
        reduction: "mean", "sum" or "none".
        batch_chunk_size: rows in a chunk. By default 512, or as many as have four million logits if that is
            more.

    Returns:
        A scalar, or for "none" one value per row; float64 for float64 features, else float32.

    With `reduction="none"`, in float16, and when a backward pass is repeated (`retain_graph=True`), the
    backward pass computes the logits of each chunk again. Derivatives by `targets` or `prior`, second
    derivatives, function transforms and `torch.compile` use the logits of all rows.
    Under `torch.autocast` the products have its dtype; gradients of half precision are summed in float32.

    Example:
        >>> import torch
        >>> from beliefmatch import linear_belief_matching_loss
        >>> features, targets = torch.randn(64, 16), torch.randint(5000, (64,))
        >>> weight = torch.zeros(5000, 16, requires_grad=True)
        >>> loss = linear_belief_matching_loss(features, weight, targets, target_confidence=0.9)
        >>> loss.backward()
        >>> weight.grad.shape
        torch.Size([5000, 16])
    """
    dtype = _require_linear(features, weight, bias)
    (classes, width), lead = weight.shape, features.shape[:-1]
    size = _chunk_size(classes) if batch_chunk_size is None else _require_size(NAME, batch_chunk_size)
    logits = features.new_empty((), dtype=dtype).expand(*lead, classes)  # their shape alone
    options = kl_weight, target_confidence, prior, class_weight, ignore_index, reduction
    layer = _Layer(features.reshape(math.prod(lead), width), weight, bias)
    if torch.compiler.is_compiling():
        inputs = _in_rows(checked_inputs(NAME, logits, len(lead), targets, *options))
        value = _unchunked(layer, _Call(inputs, dtype, size))
    else:
        with naming_arguments(NAME, **_ARGUMENTS):
            inputs = _in_rows(checked_inputs(NAME, logits, len(lead), targets, *options))
            value = _loss(layer, _Call(inputs, dtype, size))
    return value.view(lead) if reduction == "none" else value


class LinearBeliefMatchingLoss(nn.Module):
    """A linear layer and its belief matching loss as one module, like `torch.nn.LinearCrossEntropyLoss`.

    `linear` is the layer, whose logits `Belief` reads in evaluation. Takes the options of
    `linear_belief_matching_loss`; a tensor `class_weight` or `prior` moves with the module.

    Args:
        in_features: size of the features.
        num_classes: K.
        bias: whether the layer has a bias; False by default, as in torch.
        device: of the layer.
        dtype: of the layer.

    Example:
        >>> import torch
        >>> from beliefmatch import Belief, LinearBeliefMatchingLoss
        >>> criterion = LinearBeliefMatchingLoss(16, 5000, target_confidence=0.9)
        >>> features, targets = torch.randn(64, 16), torch.randint(5000, (64,))
        >>> criterion(features, targets).backward()
        >>> Belief(criterion.linear(features)).probs.shape
        torch.Size([64, 5000])
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        kl_weight: float | None = None,
        target_confidence: float | None = None,
        prior: float | Tensor = 1.0,
        class_weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
        batch_chunk_size: int | None = None,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        for argument, size, least in (("in_features", in_features, 1), ("num_classes", num_classes, 2)):
            if require_index(name, argument, size) < least:
                raise fail(name, f"`{argument}` must be at least {least}, got {size}.")
        if not isinstance(bias, bool):
            raise fail(name, f"`bias` must be True or False, got {describe(bias)}.", TypeError)
        self.linear = nn.Linear(in_features, num_classes, bias=bias, device=device, dtype=dtype)
        with naming_arguments(name, **_ARGUMENTS):
            self.criterion = BeliefMatchingLoss(
                kl_weight=kl_weight,
                target_confidence=target_confidence,
                prior=prior,
                weight=class_weight,
                ignore_index=ignore_index,
                reduction=reduction,
            )
        self.batch_chunk_size = None if batch_chunk_size is None else _require_size(name, batch_chunk_size)

    def forward(self, features: Tensor, targets: Tensor) -> Tensor:
        """The loss of a batch; see `linear_belief_matching_loss`."""
        options = self.criterion
        return linear_belief_matching_loss(
            features,
            self.linear.weight,
            targets,
            self.linear.bias,
            kl_weight=options.kl_weight,
            target_confidence=options.target_confidence,
            prior=options.prior,
            class_weight=options.weight,
            ignore_index=options.ignore_index,
            reduction=options.reduction,
            batch_chunk_size=self.batch_chunk_size,
        )

    def extra_repr(self) -> str:
        """The rows of a chunk where they are given; layer and options are shown as modules."""
        return "" if self.batch_chunk_size is None else f"batch_chunk_size={self.batch_chunk_size}"


def _chunk_size(classes: int) -> int:
    """Rows of a chunk for so many classes: as few as multiply by the weights at full speed."""
    return max(_MIN_ROWS, _MIN_LOGITS // classes)


class _Layer(NamedTuple):
    """Rows of features (N, in_features), the weight and the bias."""

    features: Tensor
    weight: Tensor
    bias: Tensor | None

    def to(self, dtype: torch.dtype) -> "_Layer":
        features, weight, bias = self
        return _Layer(features.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype))


class _Grads(NamedTuple):
    """Gradients of a layer's tensors; None for those that are not needed."""

    features: Tensor | None = None
    weight: Tensor | None = None
    bias: Tensor | None = None


class _Call(NamedTuple):
    """What is computed of a layer."""

    inputs: LossInputs
    """For logits (N, K), which have a shape and no values."""
    dtype: torch.dtype
    """Of the logits and the products: that of autocast where it is on."""
    size: int
    """Rows in a chunk."""


def _require_linear(features: Tensor, weight: Tensor, bias: Tensor | None) -> torch.dtype:
    """Check the linear layer; returns the type of its logits."""
    require_floating(NAME, "features", features)
    require_floating(NAME, "weight", weight)
    if weight.dim() != 2 or weight.shape[0] == 0:
        raise fail(NAME, f"`weight` must have shape (K, in_features) with K ≥ 1, got {tuple(weight.shape)}.")
    if features.shape[-1:] != weight.shape[1:]:
        expected = f"(..., {weight.shape[1]}) to match `weight` {tuple(weight.shape)}"
        raise fail(NAME, f"`features` must have shape {expected}, got {tuple(features.shape)}.")
    if bias is not None:
        require_floating(NAME, "bias", bias)
        if tuple(bias.shape) != (weight.shape[0],):
            expected = f"({weight.shape[0]},) to match `weight` {tuple(weight.shape)}"
            raise fail(NAME, f"`bias` must have shape {expected}, got {tuple(bias.shape)}.")
    dtype = _dtype_of_products(features)
    for name, value in (("weight", weight), ("bias", bias)):
        if value is None:
            continue
        require_device(NAME, name, value, features, "features")
        if _dtype_of_products(value) != dtype:
            fact = f"must have the type of `features`, {features.dtype}"
            raise fail(
                NAME, f"`{name}` {fact}, got {value.dtype}; convert one, or use torch.autocast.", TypeError
            )
    return dtype


def _dtype_of_products(x: Tensor) -> torch.dtype:
    """The type in which `F.linear` multiplies x."""
    device = x.device.type
    if x.dtype == torch.float64 or not _has_autocast(device):
        return x.dtype
    return torch.get_autocast_dtype(device)


def _has_autocast(device: str) -> bool:
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def _require_size(function: str, size: Any) -> int:
    value = require_index(function, "batch_chunk_size", size)
    if value < 1:
        raise fail(function, f"`batch_chunk_size` must be at least 1, got {value}.")
    return value


def _in_rows(inputs: LossInputs) -> LossInputs:
    """The inputs for logits (..., K) as those for (N, K)."""
    *lead, classes = inputs.logits.shape
    count, options = math.prod(lead), inputs.options._replace(dim=1)

    def rows(x: Tensor | None) -> Tensor | None:
        if x is None:
            return None
        if math.prod(x.shape[:-1]) == 1:
            return x.view(1, x.shape[-1])  # the same for all rows
        return x.expand(*lead, x.shape[-1]).reshape(count, x.shape[-1])

    targets = inputs.targets.reshape((count,) if options.has_ids else (count, classes))
    logits = inputs.logits.reshape(count, classes)
    return LossInputs(logits, targets, inputs.weight, rows(inputs.priors), rows(inputs.kl_weights), options)


def _loss(layer: _Layer, call: _Call) -> Tensor:
    """The loss in chunks, where torch does not have to see every operation."""
    tensors = [x for x in layer if x is not None]
    constants = [x for x in call.inputs[1:5] if isinstance(x, Tensor)]
    differentiating = torch.is_grad_enabled()
    if (
        is_transformed()
        or not all(type(x) in PLAIN_TYPES for x in (*tensors, *constants))
        or (differentiating and any(x.requires_grad for x in constants))
    ):
        return _unchunked(layer, call)
    if differentiating and any(x.requires_grad for x in tensors):
        value: Any = _LinearLoss.apply(*layer, call)
        return value
    return _reduced(_sweep(layer, call, _Grads()), call.inputs.options.reduction, _total_weight(call.inputs))


def _unchunked(layer: _Layer, call: _Call) -> Tensor:
    """The loss from the logits of all rows."""
    with _without_autocast(layer.features):
        return kernels.loss(call.inputs._replace(logits=linear(*layer.to(call.dtype))))


class _LinearLoss(Function):
    """Computes the gradients with the loss and keeps them for the first backward pass.

    Where each row has an upstream gradient of its own, and where the type cannot hold a gradient before a
    gradient scaler has scaled it, the backward pass computes them, as it does when it is repeated.
    """

    @staticmethod
    def forward(ctx: Any, features: Tensor, weight: Tensor, bias: Tensor | None, call: _Call) -> Tensor:
        layer, reduction = _Layer(features, weight, bias), call.inputs.options.reduction
        early = reduction != "none" and call.dtype is not torch.float16
        grads = _zero_grads(layer, ctx.needs_input_grad) if early else _Grads()
        losses = _sweep(layer, call, grads)
        ctx.kept = [grads] if early else []
        ctx.total = _total_weight(call.inputs)
        ctx.save_for_backward(*layer, *call.inputs[1:5])
        ctx.logits, ctx.options = call.inputs.logits, call.inputs.options
        ctx.dtype, ctx.size = call.dtype, call.size
        ctx.types = [None if x is None else x.dtype for x in layer]
        return _reduced(losses, reduction, ctx.total)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (upstream,), needed = grad_outputs, ctx.needs_input_grad
        differentiable = torch.is_grad_enabled() or is_transformed() or is_legacy_batchedtensor(upstream)
        factor = upstream / ctx.total if ctx.options.reduction == "mean" else upstream
        if ctx.options.has_ids and ctx.options.reduction == "mean":  # 1/0 if all are ignored
            factor = factor.masked_fill(ctx.total == 0, 0.0)
        if not differentiable and peek(factor.isfinite().all()) is not False:  # or ignored rows become NaN
            grads = _take(ctx.kept)
            if grads is not None:
                return *_scaled(grads, factor, ctx.types), None
        features, weight, bias, targets, class_weight, priors, kl_weights = ctx.saved_tensors
        layer = _Layer(features, weight, bias)
        inputs = LossInputs(ctx.logits, targets, class_weight, priors, kl_weights, ctx.options)
        call = _Call(inputs, ctx.dtype, ctx.size)
        if differentiable:
            return *_grads_in_graph(layer, call, upstream, needed), None
        grads = _zero_grads(layer, needed)
        _sweep(layer, call, grads, factor.to(result_dtype(call.dtype)).expand(len(features)))
        return *_scaled(grads, None, ctx.types), None


def _take(kept: list[_Grads]) -> _Grads | None:
    """The kept gradients, once: several threads may run backward through one graph."""
    try:
        return kept.pop()
    except IndexError:
        return None


def _grads_in_graph(
    layer: _Layer, call: _Call, upstream: Tensor, needed: Sequence[bool]
) -> list[Tensor | None]:
    """The gradients in operations that torch sees, to be differentiated or vectorised."""
    differentiable = torch.is_grad_enabled()
    with torch.enable_grad():
        # views are without the caller's hooks, which run later
        views = _Layer(*(None if x is None else x.view_as(x) for x in layer))  # pyright: ignore[reportArgumentType]
        value = _unchunked(views, call)
    wanted = {i: x for i, x in enumerate(views) if x is not None and needed[i]}
    found = torch.autograd.grad(value, [*wanted.values()], upstream, create_graph=differentiable)
    by_index = dict(zip(wanted, found, strict=True))
    return [by_index.get(i) for i in range(len(layer))]


def _zero_grads(layer: _Layer, needed: Sequence[bool]) -> _Grads:
    """Memory for the gradients that are needed; sums are in float32 for half precision."""
    features, weight, bias = layer
    return _Grads(
        torch.empty_like(features) if needed[0] else None,
        torch.zeros_like(weight, dtype=result_dtype(weight.dtype)) if needed[1] else None,
        torch.zeros_like(bias, dtype=result_dtype(bias.dtype)) if bias is not None and needed[2] else None,
    )


def _scaled(grads: _Grads, factor: Tensor | None, types: Sequence[torch.dtype | None]) -> list[Tensor | None]:
    """The gradients times the factor, in place, in the types of the tensors they belong to."""
    if factor is not None and peek(factor) != 1:
        for grad in grads:
            if grad is not None:
                grad.mul_(factor)
    return [None if grad is None else grad.to(kind) for grad, kind in zip(grads, types, strict=True)]


def _sweep(layer: _Layer, call: _Call, grads: _Grads, upstream: Tensor | None = None) -> Tensor:
    """The loss of each row, chunk by chunk.

    The gradients of its layer, of each row times its upstream gradient (None for 1), are added to `grads`.
    """
    rows = layer.features
    losses = rows.new_empty(len(rows), dtype=result_dtype(call.dtype))
    with _without_autocast(rows):
        weight, bias = layer.weight.to(call.dtype), layer.bias
        bias = None if bias is None else bias.to(call.dtype)
        # One memory for the logits of every chunk: fresh pages cost time.
        memory = rows.new_empty(min(call.size, len(rows)), len(weight), dtype=call.dtype)
        for start in range(0, len(rows), call.size):
            chunk = slice(start, start + call.size)
            part = _Layer(rows[chunk].to(call.dtype), weight, bias)
            inputs = _part(call.inputs, chunk)._replace(logits=_logits(part, memory))
            losses[chunk] = _sweep_chunk(part, inputs, grads, upstream, chunk)
    return losses


def _logits(layer: _Layer, memory: Tensor) -> Tensor:
    """`F.linear` of the layer, written to the first rows of the memory."""
    features, weight, bias = layer
    out = memory[: len(features)]
    if bias is None:
        return torch.mm(features, weight.t(), out=out)
    return torch.addmm(bias, features, weight.t(), out=out)


def _part(inputs: LossInputs, chunk: slice) -> LossInputs:
    """The inputs of a chunk, with losses that are not reduced."""
    logits, targets, weight, *others, options = inputs
    priors, kl_weights = (x if x is None or len(x) == 1 else x[chunk] for x in others)
    options = options._replace(reduction="none")
    return LossInputs(logits[chunk], targets[chunk], weight, priors, kl_weights, options)


def _sweep_chunk(
    layer: _Layer, inputs: LossInputs, grads: _Grads, upstream: Tensor | None, chunk: slice
) -> Tensor:
    """The losses of one chunk; a function of its own, so that its gradient is freed before the next one's."""
    if all(grad is None for grad in grads):
        return kernels.loss(inputs)
    losses, grad = kernels.loss_and_grad(inputs, None if upstream is None else upstream[chunk])
    if grads.features is not None:
        grads.features[chunk] = grad @ layer.weight
    if grads.weight is not None:
        if grads.weight.dtype == grad.dtype:
            grads.weight.addmm_(grad.t(), layer.features)
        else:
            grads.weight.add_(grad.t() @ layer.features)
    if grads.bias is not None:
        grads.bias.add_(grad.sum(0, dtype=grads.bias.dtype))
    return losses


def _total_weight(inputs: LossInputs) -> Tensor:
    """What a mean divides by: the weights of the rows that are not ignored; for counts the number of rows."""
    targets, weight, options = inputs.targets, inputs.weight, inputs.options
    dtype = work_dtype(targets.device)
    if not options.has_ids:
        return torch.full((), len(targets), dtype=dtype, device=targets.device)
    ids = targets.long()
    counted = ids != options.ignore_index
    if weight is None:
        return counted.sum(dtype=dtype)
    return weight.to(dtype)[ids.where(counted, 0)].masked_fill(~counted, 0.0).sum()


def _reduced(losses: Tensor, reduction: Reduction, total: Tensor) -> Tensor:
    """The losses of all rows, reduced; a mean divides by `total`."""
    if reduction == "none":
        return losses
    rows = losses.to(work_dtype(losses.device))
    if reduction == "mean":
        rows = rows / total if len(rows) else 0 / total  # dividing first cannot overflow; 0 / 0 is NaN
    return autograd.to_finite(rows.sum(), losses.dtype)


def _without_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """Autocast is off inside, where the types have been chosen."""
    device = x.device.type
    return torch.autocast(device, enabled=False) if _has_autocast(device) else nullcontext()
