"""The part of a network that comes after a place in it, found by watching one pass.

Many dropout masks in front of the last layer need the layers before it once, not once a mask. No network has
to be written for that: the last module to make the network's output, of those that were handed the place's
output or hold the place, is all that has to run again.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Rest", "rest_after"]


@dataclass(frozen=True, eq=False)
class Rest:
    """A module and its inputs, from which the network's output follows."""

    module: nn.Module
    inputs: Tensor
    is_dropped_first: bool = False
    """Whether the place comes before the module rather than inside of it."""


@dataclass(eq=False)
class _Watched:
    """What passed through a place, and the calls that ended after it."""

    place: nn.Module
    passed: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    calls: list[tuple[nn.Module, Any, Any, Any]] = field(default_factory=list)

    def at_place(self, _: Any, __: Any, output: Tensor) -> Tensor:
        marked = output.clone()  # an object of its own, to be known again
        self.passed.append((output, marked))
        return marked

    def after(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if self.passed:
            self.calls.append((module, args, kwargs, output))


def rest_after(network: nn.Module, place: nn.Module, x: Tensor) -> Rest:
    """The smallest part of the network to run again when what `place` does changes.

    Args:
        network: in eval mode; run once on `x`.
        place: a module of it that hands on what it gets, such as dropout in eval mode.
        x: a batch.

    Returns:
        The network itself with `x` where no smaller part is sure to give the same: where the place is passed
        several times, or something is done to the last module's output outside of any module.
    """
    with _watching(network, place) as watched:
        output = network(x)
    found = next(_candidates(watched, output), None) if len(watched.passed) == 1 else None
    if found is None or found.module is network:
        return Rest(network, x)
    again = found.module(found.inputs)
    return found if torch.allclose(again, output, rtol=1e-4, atol=1e-5, equal_nan=True) else Rest(network, x)


def _candidates(watched: _Watched, output: Any) -> Iterator[Rest]:
    ((before, marked),) = watched.passed
    for module, args, kwargs, result in watched.calls:  # inner modules end before outer ones
        if result is not output or kwargs or len(args) != 1 or not isinstance(args[0], Tensor):
            continue
        if args[0] is marked:
            yield Rest(module, before, is_dropped_first=True)
        elif any(inner is watched.place for inner in module.modules()):
            yield Rest(module, args[0])


@contextmanager
def _watching(network: nn.Module, place: nn.Module) -> Iterator[_Watched]:
    watched = _Watched(place)
    handles = [place.register_forward_hook(watched.at_place)]
    others = (module for module in network.modules() if module is not place)
    handles += [module.register_forward_hook(watched.after, with_kwargs=True) for module in others]
    try:
        yield watched
    finally:
        for handle in handles:
            handle.remove()
