"""Passes through a network that leave no trace: in its buffers, its mode, or the caller's chance."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from beliefmatch.checks import describe, fail, require_floating

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


def require_batch(function: str, model: Any, inputs: Any) -> None:
    """A network, and a batch of inputs that it can be differentiated by."""
    if not isinstance(model, nn.Module):
        raise fail(function, f"`model` must be a torch.nn.Module, got {describe(model)}.", TypeError)
    require_floating(function, "inputs", inputs)
    if inputs.dim() < 2:
        raise fail(function, f"`inputs` must have shape (N, ...), got {tuple(inputs.shape)}.")


def drawn_seed(generator: torch.Generator | None) -> int:
    """A seed drawn from a generator, the global one if there is none."""
    device = "cpu" if generator is None else generator.device
    return int(torch.randint(2**62, (), generator=generator, device=device).item())


def logits_of(function: str, model: nn.Module, inputs: Tensor, seed: int) -> Tensor:
    """The logits of a batch; dropout and its like draw from the seed, and what they drew is undrawn."""
    with _chance(inputs.device, seed):
        logits = model(inputs)
    is_batch = isinstance(logits, Tensor) and logits.is_floating_point() and logits.dim() >= 2
    if not is_batch or len(logits) != len(inputs):
        expected = f"logits of shape ({len(inputs)}, K, ...)"
        raise fail(function, f"`model` must return {expected}, got {describe(logits)}.", TypeError)
    return logits


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
    """Passes inside the block change no buffer, and normalise as they would outside.

    No buffer is written to, not even to be restored: a pass before the block may have kept it for its own
    backward, which refuses what was written to since. So BatchNorm is told not to track, other layers work
    on copies, and DDP does not send buffers around.
    """
    with ExitStack() as stack:
        for module in model.modules():
            if isinstance(module, DistributedDataParallel):
                stack.enter_context(_set(module, "broadcast_buffers", False))
            elif getattr(module, "track_running_stats", False):
                # in eval mode the averages are read, and nothing is written
                stack.enter_context(_set(module, "track_running_stats", not module.training))
            elif module.training and module._buffers:
                stack.enter_context(_set(module, "_buffers", _copied(module._buffers)))
        yield


def _copied(buffers: dict[str, Tensor | None]) -> dict[str, Tensor | None]:
    return {name: None if buffer is None else buffer.clone() for name, buffer in buffers.items()}


@contextmanager
def still(model: nn.Module, wanted: bool = True) -> Iterator[None]:
    """Without stochastic parts: all layers in eval mode but those that normalise by the batch."""
    with ExitStack() as stack:
        for module in model.modules() if wanted else ():
            if not hasattr(module, "running_mean"):
                stack.enter_context(_set(module, "training", False))
        yield


@contextmanager
def _set(module: nn.Module, name: str, value: Any) -> Iterator[None]:
    before = getattr(module, name)
    object.__setattr__(module, name, value)
    try:
        yield
    finally:
        object.__setattr__(module, name, before)


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
