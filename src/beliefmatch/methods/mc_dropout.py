"""The part of a network that comes after a place in it, found by watching one pass.

Many dropout masks in front of the last layer need the layers before it once, not once a mask. No network has
to be written for that: the last module to make the network's output, of those that were handed the place's
output or hold the place, is all that has to run again.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from beliefmatch._rows import work_dtype
from beliefmatch._utils import derive_seed
from beliefmatch._validate import fail, require_choice, require_finite_number, require_index
from beliefmatch.methods.base import Method, NetworkPredictor, Prediction
from beliefmatch.methods.cross_entropy import read

__all__ = ["DropoutPredictor", "Rest", "mc_dropout", "rest_after"]


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


Where = Literal["last", "all"]
NUMBERS_AT_ONCE = 2**22
"""Of the inputs in one pass: 27 images of ImageNet's size."""


def mc_dropout(*, rate: float = 0.1, where: Where = "last", samples: int = 100) -> Method:
    """Train with cross-entropy and dropout; the probabilities are the mean over dropout masks.

    Args:
        rate: of dropout.
        where: in front of the last layer, or of every layer.
        samples: masks to average over.
    """
    if not 0 < require_finite_number("mc_dropout", "rate", rate) < 1:
        raise fail("mc_dropout", f"`rate` must lie strictly in (0, 1), got {rate!r}.")
    require_choice("mc_dropout", "where", where, ("last", "all"))
    if require_index("mc_dropout", "samples", samples) < 1:
        raise fail("mc_dropout", f"`samples` must be at least 1, got {samples!r}.")
    return Method(
        objective=functional.cross_entropy,
        predictor=partial(DropoutPredictor, samples=samples),
        options={"rate": rate, "where": where, "samples": samples},
        model_options={"dropout": rate, "dropout_in_blocks": where == "all"},
        quick=partial(NetworkPredictor, read=read),
        reads="softmax",
    )


@dataclass(frozen=True)
class DropoutPredictor:
    """The mean softmax of a network over dropout masks.

    The masks depend on `seed` alone, and each serves all examples: a prediction does not depend on the batch
    that it is part of, and the caller's random state is left alone. Where dropout stands in one place only,
    what comes before is computed once and the masks run through the rest. Leaves the network in eval mode.
    """

    network: nn.Module
    samples: int = 100
    seed: int = 0
    at_once: int = 512
    """Examples times masks in one pass; fewer where the inputs are large."""

    @torch.no_grad()
    def predict(self, x: Tensor) -> Prediction:
        """Predict the classes of a batch."""
        network = self.network.eval()
        places = [m for m in network.modules() if isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0]
        rest = rest_after(network, places[0], x) if len(places) == 1 else Rest(network, x)
        many = max(1, min(self.at_once, NUMBERS_AT_ONCE // max(1, rest.inputs[:1].numel())) // max(1, len(x)))
        sums = [
            self._sum(rest, places, range(first, min(first + many, self.samples)))
            for first in range(0, self.samples, many)
        ]
        return Prediction(probs=torch.stack(sums).sum(0) / self.samples)

    def _sum(self, rest: Rest, places: list[Any], masks: range) -> Tensor:
        """The probabilities under some of the masks, in one pass of a batch as many times as large."""
        n = len(rest.inputs)
        inputs = torch.cat([rest.inputs] * len(masks))  # `repeat` would lose the layout
        if rest.is_dropped_first:
            inputs = _drop(places[0], None, inputs, masks=masks, seed=self.seed, place=0)
        with _masked(places, masks, self.seed):
            logits = rest.module(inputs)
        return logits.to(work_dtype(logits.device)).softmax(-1).unflatten(0, (len(masks), n)).sum(0)


@contextmanager
def _masked(places: list[Any], masks: range, seed: int) -> Iterator[None]:
    """Dropout in eval mode lets everything through; a hook then drops what its mask drops."""
    handles = [
        place.register_forward_hook(partial(_drop, masks=masks, seed=seed, place=index))
        for index, place in enumerate(places)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _drop(module: Any, _: Any, output: Tensor, *, masks: range, seed: int, place: int) -> Tensor:
    one = output.shape[1:]
    kept = torch.stack(
        [
            torch.rand(one, generator=torch.Generator().manual_seed(derive_seed(seed, place, mask)))
            >= module.p
            for mask in masks
        ]
    )
    scaled = kept.to(output) / (1 - module.p)
    n = len(output) // len(masks)
    return (output.unflatten(0, (len(masks), n)) * scaled[:, None]).flatten(0, 1)
