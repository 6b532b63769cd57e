"""The last layer of a classifier: found by sending a batch through, and what it is given.

A layer is a head if with other weights W, b in it the network would return W φ + b, where φ are the features
that are read off in front of it. This is tried, with random weights, and not guessed from names or places:
it is what a head fitted to the features relies on.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.parameter import is_lazy

from beliefmatch._utils import nearest
from beliefmatch._validate import fail
from beliefmatch.adaptation.explaining import format_layers, obstacle, why_no_head
from beliefmatch.adaptation.modes import evaluating
from beliefmatch.adaptation.outputs import arguments, logits_of
from beliefmatch.adaptation.tracing import (
    Kind,
    Layer,
    TracedRun,
    capturing,
    layer_named,
    layer_of,
    run,
    unwrapped,
)
from beliefmatch.models.encoder import PooledEncoder

__all__ = ["APPENDED", "Head", "Pooling", "find_head", "head_inputs", "head_weights", "pooled"]

Pooling = Literal["none", "mean", "other"]
APPENDED = "head"
"""Name of the layer that `with_head` appends to an encoder."""


@dataclass(frozen=True, eq=False)
class Head:
    """The layer that makes the logits."""

    name: str
    """Of the module in the model, as in `named_modules` and in front of the names of `state_dict`."""
    module: nn.Linear | nn.Conv2d | None
    """None for a `PooledEncoder`, which has no head yet."""
    in_features: int
    out_features: int
    kind: Kind
    pooling: Pooling = "none"
    """What the network does behind the layer, which is done to the features instead: nothing but reshape;
    the mean over all places of a map; something else that is linear, such as choosing a token."""
    siblings: tuple[str, ...] = ()
    """Other linear layers that are given the same tensor, such as a second head."""


def find_head(model: nn.Module, batch: Any, *, name: str | None = None) -> Head:
    """Find the linear layer or 1x1 convolution whose output a classifier returns.

    The batch, which a few rows will do for, goes through the network about three times, in eval mode and
    without gradients; the network stays as it was. Layers are tried from the last that was used backwards.

    Args:
        model: any classifier that returns logits (N, K), also in a tuple, a mapping or an output object, and
            also inside DataParallel, DistributedDataParallel or torch.compile.
        batch: a tensor; a mapping for a network that takes its arguments by name, a tuple by place.
        name: of the layer, where it shall not be looked for; it has to pass the same test.

    Returns:
        The head; for a `PooledEncoder` the place of the one that `with_head` appends.
    """
    _require_open(model)
    network, prefix = unwrapped(model)
    if isinstance(network, PooledEncoder):
        return _appended(network, batch, name)
    with evaluating(network):
        seen = run(network, batch, caller="find_head")
        _require_finite(seen)
        last_first = [layer for layer in reversed(seen.layers) if layer.out_features == seen.logits.shape[1]]
        tried = last_first if name is None else [_named(network, seen, name, prefix)]
        for layer in tried:
            pooling = None if obstacle(network, layer) else _pooling(network, layer, batch, seen)
            if pooling is not None:
                return _head(layer, prefix, pooling, seen.siblings(layer))
        raise fail("find_head", why_no_head(network, seen, tried, name))


def head_inputs(model: nn.Module, head: Head, batch: Any) -> Tensor:
    """Features (N, F) of a batch: what the head multiplies by its weight, one row for each example.

    The logits are ``head.weight @ row + head.bias``. Where a 1x1 convolution runs on a map of which the mean
    is taken afterwards, the features are the mean of the map in front of it: the two may change places.
    In eval mode, without gradients; the tensor is the caller's own.
    """
    network, prefix = unwrapped(model)
    if isinstance(network, PooledEncoder):
        return _features(network, batch)
    name = head.name.removeprefix(prefix)
    layer = layer_named(network, name)
    if layer is None or layer.in_features != head.in_features:
        raise fail("head_inputs", f"`head` must be of this model, which has no such layer `{head.name}`.")
    with evaluating(network):
        if head.pooling == "other":
            return _passed_on(network, layer, batch)
        with capturing([layer.module], torch.clone) as seen:
            args, kwargs = arguments(batch)
            network(*args, **kwargs)
    rows = pooled(seen.get(layer.module, []), layer, head.pooling)
    if rows is None:
        shapes = [tuple(tensor.shape) for tensor in seen.get(layer.module, [])]
        raise fail("head_inputs", f"`{head.name}` must be given what `find_head` saw, got shapes {shapes}.")
    return rows


def head_weights(head: Head) -> tuple[Tensor, Tensor] | None:
    """Copies of weight (K, F) and bias (K,) on the CPU in float32; a layer without bias gives zeros.

    None for an encoder, which has no head yet.
    """
    if head.module is None:
        return None
    weight, bias = head.module.weight.detach().flatten(1), head.module.bias
    bias = torch.zeros(head.out_features) if bias is None else bias.detach()
    return weight.float().cpu().clone(), bias.float().cpu().clone()


def _appended(encoder: PooledEncoder, batch: Any, name: str | None) -> Head:
    """The place of the head that `with_head` appends to an encoder."""
    if name not in (None, APPENDED):
        raise fail("find_head", f"`name` must be {APPENDED!r} for an encoder without head, got {name!r}.")
    return Head(APPENDED, None, _features(encoder, batch).shape[1], 0, "linear")


def _features(encoder: PooledEncoder, batch: Any) -> Tensor:
    args, kwargs = arguments(batch)
    with evaluating(encoder):
        return encoder(*args, **kwargs)


def _head(layer: Layer, prefix: str, pooling: Pooling, siblings: tuple[str, ...]) -> Head:
    return Head(
        name=prefix + layer.name,
        module=layer.module,
        in_features=layer.in_features,
        out_features=layer.out_features,
        kind=layer.kind,
        pooling=pooling,
        siblings=tuple(prefix + other for other in siblings),
    )


def _named(network: nn.Module, seen: TracedRun, name: str, prefix: str) -> Layer:
    """The layer of that name; an error where there is none, it is no linear layer, or it was not used."""
    modules = dict(network.named_modules(remove_duplicate=False))
    inner = name if name in modules else name.removeprefix(prefix)
    if inner not in modules:
        close = nearest(inner, [each.name for each in seen.layers]) or nearest(inner, list(modules))
        hint = f"did you mean `{prefix}{close}`?" if close else f"layers: {format_layers(seen.layers)}."
        raise fail("find_head", f"`name` must be that of a module, got {name!r}; {hint}")
    layer = layer_of(inner, modules[inner])
    if layer is None:
        kind = type(modules[inner]).__name__
        got = f"got `{name}`, a {kind}; layers: {format_layers(seen.layers)}."
        raise fail("find_head", f"`name` must be that of a linear layer or a 1x1 convolution, {got}")
    if layer.module not in seen.inputs:
        got = f"but the batch does not go through {layer}; layers: {format_layers(seen.layers)}."
        raise fail("find_head", f"`name` must be that of a layer in use, {got}")
    return layer


def _require_open(model: Any) -> None:
    """A module in Python, whose layers are there."""
    if not isinstance(model, nn.Module) or isinstance(model, torch.jit.ScriptModule):
        expected = "an nn.Module that Python runs"
        raise fail("find_head", f"`model` must be {expected}, got a {type(model).__name__}.", TypeError)
    if lazy := [name for name, parameter in model.named_parameters() if is_lazy(parameter)]:
        raise fail("find_head", f"`model` must have run once, but {lazy[0]} has no shape yet.")


def _require_finite(seen: TracedRun) -> None:
    if len(seen.logits) == 0:
        raise fail("find_head", "`batch` must hold at least one example, got none.")
    if not seen.logits.isfinite().all():
        raise fail("find_head", "the model must return finite logits for `batch`, got NaN or infinity.")


def _pooling(network: nn.Module, layer: Layer, batch: Any, seen: TracedRun) -> Pooling | None:
    """How features are read off for a layer that is a head; None where it is none."""
    weight, bias = _other_weights(layer, seen)
    inner = f"{layer.name}." if layer.name else ""
    shaped = {f"{inner}weight": weight.reshape(layer.module.weight.shape), f"{inner}bias": bias}
    if layer.module.bias is None:
        del shaped[f"{inner}bias"]
    with capturing([layer.module], torch.clone) as inputs:
        args, kwargs = arguments(batch)
        logits = logits_of(functional_call(network, shaped, args, kwargs), caller="find_head")
    for pooling in ("none", "mean"):
        if _agrees(pooled(inputs[layer.module], layer, pooling), weight, bias, logits):
            return pooling
    try:
        rows = _passed_on(network, layer, batch)
    except Exception:  # the user's network, given something of another width, may raise anything
        return None
    return "other" if _agrees(rows, weight, bias, logits) else None


def _other_weights(layer: Layer, seen: TracedRun) -> tuple[Tensor, Tensor]:
    """Random weights that give logits of about 4: large enough to meet a bound, whatever was learnt."""
    own = layer.module.weight
    chance = torch.Generator().manual_seed(layer.in_features)
    size = torch.stack([tensor.float().square().mean() for tensor in seen.inputs[layer.module]]).mean()
    factor = 4 / (layer.in_features * size.clamp(min=1e-12)).sqrt().cpu()
    weight = torch.randn(layer.out_features, layer.in_features, generator=chance) * factor
    bias = torch.randn(layer.out_features, generator=chance)
    if layer.module.bias is None:
        bias.zero_()
    return weight.to(own), bias.to(own)


def _agrees(rows: Tensor | None, weight: Tensor, bias: Tensor, logits: Tensor) -> bool:
    """Whether the logits are those that the weights make of the features."""
    shape = (len(logits), weight.shape[1])
    if rows is None or tuple(rows.shape) != shape or tuple(logits.shape) != (len(rows), len(weight)):
        return False
    expected = rows.cpu().double() @ weight.cpu().double().T + bias.cpu().double()
    far = (logits.cpu().double() - expected).abs().max()
    return bool(far <= _tolerance(logits, weight) * expected.abs().max())


def _tolerance(logits: Tensor, weight: Tensor) -> float:
    coarsest = max((logits.dtype, weight.dtype), key=lambda dtype: torch.finfo(dtype).eps)
    if torch.is_autocast_enabled(logits.device.type) or coarsest == torch.bfloat16:
        return 5e-2
    if coarsest == torch.float32:  # of which a product may keep fewer bits, on other devices or by a setting
        product = "high" if logits.device.type != "cpu" else torch.get_float32_matmul_precision()
        return {"highest": 1e-4, "high": 2e-3}.get(product, 5e-2)
    return 1e-2 if coarsest == torch.float16 else 1e-9


def pooled(inputs: list[Tensor], layer: Layer, pooling: Pooling) -> Tensor | None:
    """One row for each example of what a layer was given; None where it was given something else."""
    if len(inputs) != 1 or inputs[0].dim() < 2:
        return None
    places = inputs[0].movedim(1, -1) if layer.kind == "conv1x1" else inputs[0]
    places = places.reshape(len(places), -1, places.shape[-1])
    if pooling == "mean":
        return places.mean(1)
    return places[:, 0] if places.shape[1] == 1 else None


def _passed_on(network: nn.Module, layer: Layer, batch: Any) -> Tensor:
    """What the network does to the layer's output, done to its input."""

    def pass_on(_module: nn.Module, given: tuple[Any, ...], _output: Any) -> Any:
        return given[0]

    hook = layer.module.register_forward_hook(pass_on)
    try:
        args, kwargs = arguments(batch)
        rows = logits_of(network(*args, **kwargs), caller="head_inputs")
    finally:
        hook.remove()
    return rows.clone()
