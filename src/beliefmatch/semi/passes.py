"""Passes through a network that leave no trace: in its buffers, its mode, or the caller's chance."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from beliefmatch._validate import describe, fail, require_floating

__all__ = [
    "bare",
    "drawn_seed",
    "logits_of",
    "parameter_dtype",
    "require_batch",
    "sees_autocast",
    "still",
    "unrecorded",
]


def require_batch(function: str, model: Any, inputs: Any, *, floating: bool = True) -> None:
    """A network, and a batch of inputs that it can be differentiated by if they are `floating`."""
    if not isinstance(model, nn.Module) or isinstance(model, torch.jit.ScriptModule):
        expected = "a torch.nn.Module that is not TorchScript"  # whose buffers cannot be kept from changing
        raise fail(function, f"`model` must be {expected}, got {describe(model)}.", TypeError)
    if floating:
        require_floating(function, "inputs", inputs)
    elif not isinstance(inputs, Tensor):
        raise fail(function, f"`inputs` must be a tensor, got {describe(inputs)}.", TypeError)
    if inputs.dim() < 2:
        raise fail(function, f"`inputs` must have shape (N, ...), got {tuple(inputs.shape)}.")


def drawn_seed(generator: torch.Generator | None) -> int:
    """A seed drawn from a generator, the global one if there is none."""
    device = "cpu" if generator is None else generator.device
    return int(torch.randint(2**62, (), generator=generator, device=device).item())


def logits_of(function: str, model: nn.Module, inputs: Tensor, seed: int) -> Tensor:
    """The logits of a batch, by a pass that leaves no trace; dropout and its like draw from the seed.

    Passes with the same seed are passes through the same function: they start from the same buffers, too. The
    network gets a copy of the batch, which it may work on in place.
    """
    with unrecorded(model), _chance(inputs.device, seed):
        logits = model(_copy(inputs, model))
    is_batch = isinstance(logits, Tensor) and logits.is_floating_point() and logits.dim() >= 2
    if not is_batch or len(logits) != len(inputs):
        expected = f"logits of shape ({len(inputs)}, K, ...)"
        raise fail(function, f"`model` must return {expected}, got {describe(logits)}.", TypeError)
    return logits


def _copy(inputs: Tensor, model: nn.Module) -> Tensor:
    """Of what is differentiated by, compiled networks take leaves alone without a warning."""
    is_compiled = any(hasattr(module, "_orig_mod") for module in model.modules())
    return inputs if is_compiled and inputs.requires_grad else inputs.clone()


@contextmanager
def _chance(device: torch.device, seed: int) -> Iterator[None]:
    """Seed the generators that layers on a device draw from; put them back in the end."""
    on_mps = torch.mps.get_rng_state() if device.type == "mps" else None
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            torch.cuda.default_generators[device.index or 0].manual_seed(seed)
        elif on_mps is not None:
            torch.mps.manual_seed(seed)
        try:
            yield
        finally:
            if on_mps is not None:
                torch.mps.set_rng_state(on_mps)


def bare(model: nn.Module) -> nn.Module:
    """The network inside of Fabric's wrapper and DDP's, without their precision and their communication."""
    while True:
        is_parallel = isinstance(model, DistributedDataParallel)
        inner = model.module if is_parallel else getattr(model, "_forward_module", None)
        if not isinstance(inner, nn.Module):
            return model
        model = inner


@contextmanager
def unrecorded(model: nn.Module) -> Iterator[None]:
    """A pass inside the block changes no buffer of the network, and computes as it would outside.

    The layers work on copies. Restoring the buffers by writing to them would not do: a pass before the block
    may have kept them for its backward, which refuses what was written to since. DDP need not send copies
    around.
    """
    changes: list[_Change] = [
        (module, "_buffers", _copied(module._buffers)) for module in model.modules() if module._buffers
    ]
    parallel = (module for module in model.modules() if isinstance(module, DistributedDataParallel))
    with _changed([*changes, *((module, "broadcast_buffers", False) for module in parallel)]):
        yield


def _copied(buffers: dict[str, Tensor | None]) -> dict[str, Tensor | None]:
    return {name: None if buffer is None else buffer.clone() for name, buffer in buffers.items()}


@contextmanager
def still(model: nn.Module, wanted: bool = True) -> Iterator[None]:
    """Without stochastic parts: all layers in eval mode but those that normalise by the batch."""
    modules = model.modules() if wanted else ()
    with _changed([(module, "training", False) for module in modules if not hasattr(module, "running_mean")]):
        yield


_Change = tuple[nn.Module, str, Any]


@contextmanager
def _changed(changes: list[_Change]) -> Iterator[None]:
    """Attributes of modules, set for the time of the block, past all that watches them being set."""
    before = [(module, name, getattr(module, name)) for module, name, _ in changes]
    try:
        for change in changes:
            object.__setattr__(*change)
        yield
    finally:
        for change in before:
            object.__setattr__(*change)


@contextmanager
def sees_autocast(model: nn.Module, device: torch.device) -> Iterator[list[bool]]:
    """A list that is not empty once the bare network was called under autocast, whoever switched it on."""
    seen: list[bool] = []

    def look(*_: Any) -> None:
        if torch.is_autocast_enabled(device.type):
            seen.append(True)

    handle = bare(model).register_forward_pre_hook(look)
    try:
        yield seen
    finally:
        handle.remove()


def parameter_dtype(model: nn.Module, default: torch.dtype) -> torch.dtype:
    """The floating-point type of a network's parameters; of the first, if they differ."""
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), default)
