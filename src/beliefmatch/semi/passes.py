"""Forward passes without side effects on the buffers and modes of a network or the caller's random state."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from beliefmatch._validate import describe, fail, require_floating

__all__ = [
    "draw_seed",
    "keep_buffers",
    "logits_of",
    "observe_autocast",
    "parameter_dtype",
    "require_batch",
    "unwrap",
    "without_dropout",
]


def require_batch(function: str, model: Any, inputs: Any, *, floating: bool = True) -> None:
    """Require a network and a batch of inputs; floating-point ones if they will be differentiated by."""
    if not isinstance(model, nn.Module) or isinstance(model, torch.jit.ScriptModule):
        expected = "a torch.nn.Module that is not TorchScript"  # the buffers of which cannot be replaced
        raise fail(function, f"`model` must be {expected}, got {describe(model)}.", TypeError)
    if floating:
        require_floating(function, "inputs", inputs)
    elif not isinstance(inputs, Tensor):
        raise fail(function, f"`inputs` must be a tensor, got {describe(inputs)}.", TypeError)
    if inputs.dim() < 2:
        raise fail(function, f"`inputs` must have shape (N, ...), got {tuple(inputs.shape)}.")


def draw_seed(generator: torch.Generator | None) -> int:
    """A seed drawn from a generator, or from the global one."""
    device = "cpu" if generator is None else generator.device
    return int(torch.randint(2**62, (), generator=generator, device=device).item())


def logits_of(function: str, model: nn.Module, inputs: Tensor, seed: int) -> Tensor:
    """The logits of a batch by a pass without side effects, in which dropout draws from the seed.

    Passes with the same seed evaluate the same function, because they also start from the same buffers. The
    network gets a copy of the batch, which it may modify in place.
    """
    # compiled networks warn about inputs that require a gradient and are not leaves, such as copies
    is_compiled = any(hasattr(module, "_orig_mod") for module in model.modules())
    batch = inputs if is_compiled and inputs.requires_grad else inputs.clone()
    with keep_buffers(model), _seeded(inputs.device, seed):
        logits = model(batch)
    is_batch = isinstance(logits, Tensor) and logits.is_floating_point() and logits.dim() >= 2
    if not is_batch or len(logits) != len(inputs):
        expected = f"logits of shape ({len(inputs)}, K, ...)"
        raise fail(function, f"`model` must return {expected}, got {describe(logits)}.", TypeError)
    return logits


@contextmanager
def _seeded(device: torch.device, seed: int) -> Iterator[None]:
    """Seed the generators that layers on a device draw from, and restore them after the block."""
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


def unwrap(model: nn.Module) -> nn.Module:
    """The network inside the wrappers of Fabric and DDP, without their precision and communication."""
    while True:
        is_parallel = isinstance(model, DistributedDataParallel)
        inner = model.module if is_parallel else getattr(model, "_forward_module", None)
        if not isinstance(inner, nn.Module):
            return model
        model = inner


@contextmanager
def keep_buffers(model: nn.Module) -> Iterator[None]:
    """Give the layers copies of their buffers inside the block, so that a pass does not change them.

    Writing the old values back instead would fail: an earlier pass may have saved the buffers for its
    backward pass, which refuses tensors that were written to since. DDP does not broadcast the copies.
    """
    changes: list[_Change] = []
    for module in model.modules():
        if module._buffers:
            copies = {name: None if one is None else one.clone() for name, one in module._buffers.items()}
            changes.append((module, "_buffers", copies))
        if isinstance(module, DistributedDataParallel):
            changes.append((module, "broadcast_buffers", False))
    with _set_attributes(changes):
        yield


@contextmanager
def without_dropout(model: nn.Module, active: bool = True) -> Iterator[None]:
    """If `active`, put all layers in eval mode inside the block, except those that normalise by the batch."""
    modules = model.modules() if active else ()
    with _set_attributes(
        [(module, "training", False) for module in modules if not hasattr(module, "running_mean")]
    ):
        yield


_Change = tuple[nn.Module, str, Any]


@contextmanager
def _set_attributes(changes: list[_Change]) -> Iterator[None]:
    """Set attributes of modules inside the block, without the side effects of `nn.Module.__setattr__`."""
    before = [(module, name, getattr(module, name)) for module, name, _ in changes]
    try:
        for change in changes:
            object.__setattr__(*change)
        yield
    finally:
        for change in before:
            object.__setattr__(*change)


@contextmanager
def observe_autocast(model: nn.Module, device: torch.device) -> Iterator[list[bool]]:
    """A list that is not empty after the unwrapped network ran under autocast, wherever it was enabled."""
    seen: list[bool] = []

    def look(*_: Any) -> None:
        if torch.is_autocast_enabled(device.type):
            seen.append(True)

    handle = unwrap(model).register_forward_pre_hook(look)
    try:
        yield seen
    finally:
        handle.remove()


def parameter_dtype(model: nn.Module, default: torch.dtype) -> torch.dtype:
    """The floating-point dtype of a network's first such parameter."""
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), default)
