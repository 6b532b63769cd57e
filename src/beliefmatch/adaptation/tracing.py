"""The linear layers of a network that a batch goes through, and what they see on the way."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from beliefmatch.adaptation.outputs import arguments, logits_of

__all__ = ["Kind", "Layer", "TracedRun", "capturing", "layer_named", "layer_of", "run", "unwrapped"]

Kind = Literal["linear", "conv1x1"]


@dataclass(frozen=True, eq=False)
class Layer:
    """A layer that multiplies by a matrix, by its name in the network."""

    name: str
    module: nn.Linear | nn.Conv2d
    kind: Kind
    in_features: int
    out_features: int

    def __str__(self) -> str:
        return f"`{self.name}` ({self.kind}, {self.in_features} -> {self.out_features})"


@dataclass(frozen=True, eq=False)
class TracedRun:
    """One batch through a network: the logits (N, K), and the inputs of each linear layer in order of use."""

    logits: Tensor
    layers: tuple[Layer, ...]
    inputs: dict[nn.Module, list[Tensor]]

    def siblings(self, layer: Layer) -> tuple[str, ...]:
        """Other layers that were given the very tensor that this one was given."""
        own = {_place(tensor) for tensor in self.inputs[layer.module]}
        return tuple(
            other.name
            for other in self.layers
            if other.module is not layer.module
            if own & {_place(tensor) for tensor in self.inputs[other.module]}
        )


def unwrapped(model: nn.Module) -> tuple[nn.Module, str]:
    """The network inside DataParallel and torch.compile wrappers, and the prefix of its names in `model`."""
    prefix = ""
    while True:
        if "_orig_mod" in model._modules:  # torch.compile's
            inner, step = model._modules["_orig_mod"], "_orig_mod."
        elif isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inner, step = model.module, "module."
        else:
            return model, prefix
        assert isinstance(inner, nn.Module)
        model, prefix = inner, prefix + step


def layer_of(name: str, module: nn.Module) -> Layer | None:
    """A module as a linear layer or as a convolution that is one, at every place of a map on its own."""
    if isinstance(module, nn.Linear):
        return Layer(name, module, "linear", module.in_features, module.out_features)
    if isinstance(module, nn.Conv2d) and _is_pointwise(module):
        return Layer(name, module, "conv1x1", module.in_channels, module.out_channels)
    return None


def layer_named(network: nn.Module, name: str) -> Layer | None:
    """The linear layer of that name, if there is one; a layer with several names has each of them."""
    modules = dict(network.named_modules(remove_duplicate=False))
    return layer_of(name, modules[name]) if name in modules else None


def run(network: nn.Module, batch: Any, *, caller: str) -> TracedRun:
    """Send a batch through, with an eye on every linear layer."""
    names = {module: name for name, module in network.named_modules() if layer_of(name, module)}
    with capturing(names) as inputs:
        args, kwargs = arguments(batch)
        logits = logits_of(network(*args, **kwargs), caller=caller)
    used = (layer_of(names[module], module) for module in inputs)
    return TracedRun(logits, tuple(layer for layer in used if layer), inputs)


@contextmanager
def capturing(
    modules: Iterable[nn.Module], take: Callable[[Tensor], Tensor] = lambda tensor: tensor
) -> Iterator[dict[nn.Module, list[Tensor]]]:
    """What some modules are given inside the block, `take` of it at each call; the last called stand last."""
    inputs: dict[nn.Module, list[Tensor]] = {}

    def keep(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen = inputs.pop(module, [])
        inputs[module] = [*seen, take(args[0] if args else kwargs["input"])]

    hooks = [module.register_forward_pre_hook(keep, with_kwargs=True) for module in modules]
    try:
        yield inputs
    finally:
        for hook in hooks:
            hook.remove()


def _is_pointwise(module: nn.Conv2d) -> bool:
    # padding may be a word; "valid" is none, and "same" around one point is none either
    is_padded = not isinstance(module.padding, str) and any(module.padding)
    is_one_point = tuple(module.kernel_size) == (1, 1) and tuple(module.stride) == (1, 1)
    return is_one_point and module.groups == 1 and not is_padded


def _place(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride()
