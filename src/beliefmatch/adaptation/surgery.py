"""A classifier's copy with a new last layer, everything else as it was."""

import copy
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from beliefmatch._validate import describe, fail, level_of_caller
from beliefmatch.adaptation.belief_mixin import BeliefMixin, Mixin, add_belief
from beliefmatch.adaptation.explaining import obstacle
from beliefmatch.adaptation.heads import Head
from beliefmatch.adaptation.tracing import Layer, layer_named, unwrapped
from beliefmatch.models.encoder import EncoderClassifier, PooledEncoder

__all__ = ["with_head"]

# What networks call the number of their classes; changed only where it was that of the old head.
_COUNTS = ("num_classes", "num_labels", "n_classes", "nb_classes", "out_features", "out_channels")


def with_head(
    model: nn.Module,
    head: Head,
    weight: Tensor,
    bias: Tensor | None,
    *,
    mixin: type[Mixin] = BeliefMixin,
) -> Mixin:
    """A deep copy of a classifier with new weights in its head, and with `belief`.

    The layer stays of its type, on its device, in its dtype, trainable or frozen as it was; the names of
    `state_dict` are the same, except that a layer without bias gets one if one is given. Where the number of
    classes is another, what the modules around the layer call `num_classes` or the like follows. The class of
    the copy is a subclass of the model's. DistributedDataParallel and torch.compile are left off: the copy is
    of the network inside, with its names. A `PooledEncoder` becomes an `EncoderClassifier`.

    Args:
        model: the classifier; stays untouched.
        head: of `find_head`.
        weight: (K, F), for the same features and any number of classes.
        bias: (K,); None for zero, or for none where the layer has none.
        mixin: what the copy can do besides; `BeliefMixin` or a subclass.
    """
    network, prefix = unwrapped(model)
    if isinstance(network, PooledEncoder):
        _require_weights(head, weight, bias)
        return add_belief(_completed(_copy(network), weight, bias), mixin)
    name = head.name.removeprefix(prefix)
    layer = _layer(network, name, head)
    _require_weights(head, weight, bias)
    _warn_of_ties(network, layer)
    copied = _copy(model if isinstance(model, nn.DataParallel) else network)
    in_distribution = unwrapped(copied)[0]
    fresh = layer_named(in_distribution, name)
    assert fresh is not None
    _refill(fresh, weight, bias)
    _recount(in_distribution, name, head.out_features, len(weight))
    return add_belief(copied, mixin)


def _completed(encoder: nn.Module, weight: Tensor, bias: Tensor | None) -> EncoderClassifier:
    assert isinstance(encoder, PooledEncoder)
    like = next(encoder.parameters(), weight)
    layer = nn.Linear(weight.shape[1], len(weight), device="meta")  # draws no random numbers
    layer.weight = nn.Parameter(_parameter(weight, like))
    layer.bias = nn.Parameter(_parameter(weight.new_zeros(len(weight)) if bias is None else bias, like))
    return EncoderClassifier(encoder, layer).train(encoder.training)


def _layer(network: nn.Module, name: str, head: Head) -> Layer:
    layer = layer_named(network, name)
    if layer is None or (layer.kind, layer.in_features) != (head.kind, head.in_features):
        raise fail("with_head", f"`head` must be of `model`, which has no such layer `{head.name}`.")
    if fact := obstacle(network, layer):
        raise fail("with_head", f"`head` must be a layer with a weight of its own, but {fact}.")
    return layer


def _require_weights(head: Head, weight: Tensor, bias: Tensor | None) -> None:
    for name, value in (("weight", weight), ("bias", bias)):
        if value is None and name == "bias":
            continue
        if not isinstance(value, Tensor) or not value.is_floating_point():
            raise fail(
                "with_head", f"`{name}` must be a floating-point tensor, got {describe(value)}.", TypeError
            )
        if not value.isfinite().all():
            raise fail("with_head", f"`{name}` must be finite, got NaN or infinity.")
    if weight.dim() != 2 or len(weight) == 0 or weight.shape[1] != head.in_features:
        expected = f"shape (K, {head.in_features})"
        raise fail("with_head", f"`weight` must have {expected}, got {tuple(weight.shape)}.")
    if bias is not None and tuple(bias.shape) != (len(weight),):
        raise fail("with_head", f"`bias` must have shape ({len(weight)},), got {tuple(bias.shape)}.")


def _warn_of_ties(network: nn.Module, layer: Layer) -> None:
    """Weights that another module uses as well stay with that one."""
    own = {parameter.data_ptr() for parameter in layer.module.parameters()}
    tied = [
        f"{name}.{key}"
        for name, module in network.named_modules()
        if module is not layer.module
        for key, parameter in module.named_parameters(recurse=False)
        if parameter.numel() and parameter.data_ptr() in own
    ]
    if tied:
        fact = f"`{layer.name}` shares its weights with {', '.join(tied)}, which keeps the old ones"
        warnings.warn(f"with_head: {fact}; in the copy the two are apart.", stacklevel=level_of_caller())


def _copy(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except (RuntimeError, TypeError) as error:
        fact = f"`model` must be such as copy.deepcopy can copy, but it raised: {str(error).splitlines()[0]}"
        raise fail("with_head", fact, TypeError) from error


def _refill(layer: Layer, weight: Tensor, bias: Tensor | None) -> None:
    """New weights in the layer itself, so that its class, its hooks and its mode stay."""
    module, old = layer.module, layer.module.weight
    shape = (len(weight), *old.shape[1:])
    module.weight = _parameter(weight.reshape(shape), old)
    if bias is None and module.bias is not None:
        bias = weight.new_zeros(len(weight))
    if bias is not None:
        module.bias = _parameter(bias, old if module.bias is None else module.bias)
    if isinstance(module, nn.Linear):
        module.out_features = len(weight)
    else:
        module.out_channels = len(weight)


def _parameter(value: Tensor, like: Tensor) -> nn.Parameter:
    fresh = torch.empty(value.shape, dtype=like.dtype, device=like.device)
    with torch.no_grad():
        fresh.copy_(value)
    return nn.Parameter(fresh, requires_grad=like.requires_grad)


def _recount(network: nn.Module, name: str, old: int, new: int) -> None:
    """The number of classes where the modules around the head and their `config` speak of it."""
    if old == new:
        return
    path = name.split(".")
    around = [network.get_submodule(".".join(path[:depth])) for depth in range(len(path))] if name else []
    for owner in {id(each): each for module in around for each in _speakers(module)}.values():
        for count in _COUNTS:
            value = getattr(owner, count, None)
            if type(value) is int and value == old:
                setattr(owner, count, new)


def _speakers(module: nn.Module) -> list[Any]:
    config = getattr(module, "config", None)
    return [module] if config is None or isinstance(config, dict | type) else [module, config]
