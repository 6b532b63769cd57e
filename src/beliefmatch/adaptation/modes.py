"""Evaluation mode for the time of a block, and the BatchNorm layers of a network."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from beliefmatch.adaptation.outputs import arguments

__all__ = ["batchnorm_layers", "evaluating"]


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode without gradients inside the block; afterwards every module is in the mode it was in."""
    modes = [(module, module.training) for module in model.modules()]
    if any(training for _, training in modes):
        model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        if any(module.training != training for module, training in modes):
            model.train(model_mode := modes[0][1])  # for networks that do more there than set the flag
            for module, training in modes:
                if training != model_mode or module.training != training:
                    module.training = training


def batchnorm_layers(model: nn.Module, batch: Any = None) -> dict[str, nn.Module]:
    """The BatchNorm layers that "head plus BatchNorm" trains, by name; with a batch, those it runs through.

    All kinds that estimate statistics of a batch, also the fused and synchronised ones; not those that are
    frozen for good (no scale to learn and no statistics to follow). A batch leaves out the layers of
    auxiliary heads, which inference does not use.
    """
    found = {name: module for name, module in model.named_modules() if _is_trained(module)}
    if batch is None:
        return found
    used: set[nn.Module] = set()

    def note(module: nn.Module, _: Any) -> None:
        used.add(module)

    hooks = [module.register_forward_pre_hook(note) for module in found.values()]
    try:
        with evaluating(model):
            args, kwargs = arguments(batch)
            model(*args, **kwargs)
    finally:
        for hook in hooks:
            hook.remove()
    return {name: module for name, module in found.items() if module in used}


def _is_trained(module: nn.Module) -> bool:
    return isinstance(module, _BatchNorm) and (module.affine or module.track_running_stats)
