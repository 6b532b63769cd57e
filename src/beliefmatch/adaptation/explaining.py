"""Why a network has no head that could be fitted, in words that say what to change."""

from collections.abc import Callable, Sequence
from itertools import combinations

import torch
from torch import Tensor, nn
from torch.nn import functional

from beliefmatch.adaptation.tracing import Layer, TracedRun

__all__ = ["format_layers", "obstacle", "why_no_head"]

_SHOWN = 6
_ADAPTER = "lora_"
_PLAIN = {"weight", "bias"}


def format_layers(layers: Sequence[Layer]) -> str:
    """The layers used last, the last first, and how many more there are."""
    shown = ", ".join(str(layer) for layer in reversed(layers[-_SHOWN:]))
    more = f" and {len(layers) - _SHOWN} more before" if len(layers) > _SHOWN else ""
    return shown + more or "none was used"


def obstacle(network: nn.Module, layer: Layer) -> str | None:
    """Why the weight of a layer cannot be replaced, if so."""
    first = "remove it first (remove_parametrizations, remove_weight_norm)"
    if not isinstance(layer.module._parameters.get("weight"), nn.Parameter):
        return f"the weight of {layer} is computed by a parametrization such as weight_norm; {first}"
    if not layer.module.weight.is_floating_point():
        kind = str(layer.module.weight.dtype).removeprefix("torch.")
        return f"the weight of {layer} is quantized ({kind}); give the model in floating point"
    first = "merge them into its weight first"
    if lora := [name for name in _neighbours(network, layer) if name.startswith(_ADAPTER)]:
        return f"{layer} is changed by adapters ({', '.join(lora)}); {first}"
    if further := sorted({name for name, _ in layer.module.named_parameters()} - _PLAIN):
        return f"{layer} is no plain layer: it also has {', '.join(further)}; {first}"
    return None


def why_no_head(network: nn.Module, seen: TracedRun, tried: Sequence[Layer], name: str | None) -> str:
    """The fact for the error, from the layers that could have been the head."""
    want = "`model` must return the output of a linear layer or 1x1 convolution"
    if name is not None:
        want = f"`name` must be that of the layer whose output is returned, got {name!r}"
    facts = [obstacle(network, layer) for layer in tried if f".{_ADAPTER}" not in layer.name]
    facts += [_mixed(tried, seen), *(_changed(layer, seen) for layer in tried)]
    if fact := next(filter(None, facts), None):
        return f"{want}, but {fact}."
    others = f"layers, last first: {format_layers(seen.layers)}"
    return f"{want} for its logits {tuple(seen.logits.shape)}, and no layer makes them; {others}."


def _neighbours(network: nn.Module, layer: Layer) -> list[str]:
    parent = network.get_submodule(layer.name.rpartition(".")[0])
    siblings = [name for name, child in parent.named_children() if child is not layer.module]
    return [*siblings, *dict(layer.module.named_parameters())]


def _changed(layer: Layer, seen: TracedRun) -> str | None:
    """What was done to a layer's output on the way to the logits, if it is one of the common operations."""
    logits, outputs = seen.logits.cpu().double(), _outputs(layer, seen)
    if outputs is None:
        return None
    mean = outputs.mean(1)
    if _close(mean, logits):
        fact = f"what {layer} returns is no plain product with its weight plus its bias"
        return f"{fact}, or is bounded before it becomes the logits"
    for what, change in _CHANGES.items():
        if _close(change(mean), logits) or _close(change(outputs).mean(1), logits):
            return f"the logits are {what} the output of {layer}; return the output itself"
    if factor := _factor(mean, logits):
        fact = f"the logits are the output of {layer} multiplied by {factor:.4g}"
        return f"{fact}; put the factor into its weight and bias"
    if _close(outputs.amax(1), logits):
        return f"the logits are the largest values that {layer} gives on a map; take the mean instead"
    return None


def _mixed(tried: Sequence[Layer], seen: TracedRun) -> str | None:
    """Two layers whose outputs are averaged or added."""
    outputs = {layer: made.mean(1) for layer in tried if (made := _outputs(layer, seen)) is not None}
    for one, other in combinations(reversed(outputs), 2):
        total = outputs[one] + outputs[other]
        for word, both in (("mean", total / 2), ("sum", total)):
            if _close(both, seen.logits.cpu().double()):
                return f"the logits are the {word} of {one} and {other}; return those of one layer"
    return None


def _outputs(layer: Layer, seen: TracedRun) -> Tensor | None:
    """What the layer made of its last input at each place, (N, places, K)."""
    weight = layer.module._parameters.get("weight")
    inputs = seen.inputs.get(layer.module, [])
    if weight is None or not weight.is_floating_point() or not inputs or inputs[-1].dim() < 2:
        return None
    bias = None if layer.module.bias is None else layer.module.bias.cpu().double()
    places = inputs[-1].movedim(1, -1) if layer.kind == "conv1x1" else inputs[-1]
    places = places.reshape(len(places), -1, places.shape[-1]).cpu().double()
    return functional.linear(places, weight.flatten(1).cpu().double(), bias)


def _close(values: Tensor, logits: Tensor) -> bool:
    if values.shape != logits.shape:
        return False
    return bool((values - logits).abs().max() <= 1e-3 * logits.abs().max().clamp(min=1e-9))


def _factor(outputs: Tensor, logits: Tensor) -> float | None:
    """The one number that the outputs were multiplied by."""
    if outputs.shape != logits.shape or not outputs.any():
        return None
    factor = (outputs * logits).sum() / outputs.square().sum()
    return float(factor) if factor != 0 and _close(outputs * factor, logits) else None


_CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "log_softmax of": lambda outputs: outputs.log_softmax(-1),
    "softmax of": lambda outputs: outputs.softmax(-1),
    "sigmoid of": torch.sigmoid,
    "relu of": torch.relu,
    "tanh of": torch.tanh,
    "vectors of length one, made from": lambda outputs: functional.normalize(outputs, dim=-1),
}
