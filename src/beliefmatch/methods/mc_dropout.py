"""MC dropout (Gal and Ghahramani 2016): the mean softmax over random dropout masks.

With dropout in front of the last layer only, the layers before it need to run once, not once for each mask.
The suffix of the network that has to run again is found by observing one forward pass, for any network.
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

__all__ = ["DropoutPredictor", "Suffix", "mc_dropout", "suffix_after"]

Where = Literal["last", "all"]
NUMBERS_AT_ONCE = 2**22
"""Largest number of input values in one pass: 27 images of the size of ImageNet's."""


def mc_dropout(*, rate: float = 0.1, where: Where = "last", samples: int = 100) -> Method:
    """Train with cross-entropy and dropout; the probabilities are the mean over dropout masks.

    Args:
        rate: dropout rate.
        where: dropout in front of the last layer, or of every layer.
        samples: number of masks to average over.
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
        fast_predictor=partial(NetworkPredictor, read=read),
        reads="softmax",
    )


@dataclass(frozen=True)
class DropoutPredictor:
    """The mean softmax of a network over dropout masks.

    The masks depend on `seed` alone, and each is applied to all examples: a prediction does not depend on its
    batch, and the caller's random state is not changed. The network is left in eval mode.
    """

    network: nn.Module
    samples: int = 100
    seed: int = 0
    at_once: int = 512
    """Largest number of examples times masks in one pass; fewer where the inputs are large."""

    @torch.no_grad()
    def predict(self, x: Tensor) -> Prediction:
        """Predict the classes of a batch."""
        network = self.network.eval()
        dropouts = [m for m in network.modules() if isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0]
        suffix = suffix_after(network, dropouts[0], x) if len(dropouts) == 1 else Suffix(network, x)
        examples = min(self.at_once, NUMBERS_AT_ONCE // max(1, suffix.inputs[:1].numel()))
        n_masks = max(1, examples // max(1, len(x)))
        sums = [
            self._sum_of_probs(suffix, dropouts, range(first, min(first + n_masks, self.samples)))
            for first in range(0, self.samples, n_masks)
        ]
        return Prediction(probs=torch.stack(sums).sum(0) / self.samples)

    def _sum_of_probs(self, suffix: "Suffix", dropouts: list[Any], masks: range) -> Tensor:
        """The sum of the probabilities under some of the masks, computed in one pass."""
        inputs = torch.cat([suffix.inputs] * len(masks))  # `repeat` would lose the memory layout
        if suffix.starts_with_dropout:
            inputs = _drop(dropouts[0], None, inputs, masks=masks, seed=self.seed, place=0)
        with _masked(dropouts, masks, self.seed):
            logits = suffix.module(inputs)
        probs = logits.to(work_dtype(logits.device)).softmax(-1)
        return probs.unflatten(0, (len(masks), len(suffix.inputs))).sum(0)


@contextmanager
def _masked(dropouts: list[Any], masks: range, seed: int) -> Iterator[None]:
    """Apply the masks by hooks on the dropout modules, which do nothing themselves in eval mode."""
    handles = [
        dropout.register_forward_hook(partial(_drop, masks=masks, seed=seed, place=place))
        for place, dropout in enumerate(dropouts)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _drop(module: Any, _: Any, output: Tensor, *, masks: range, seed: int, place: int) -> Tensor:
    shape = output.shape[1:]
    generators = (torch.Generator().manual_seed(derive_seed(seed, place, mask)) for mask in masks)
    kept = torch.stack([torch.rand(shape, generator=generator) >= module.p for generator in generators])
    scaled = kept.to(output) / (1 - module.p)
    n = len(output) // len(masks)
    return (output.unflatten(0, (len(masks), n)) * scaled[:, None]).flatten(0, 1)


@dataclass(frozen=True, eq=False)
class Suffix:
    """The last part of a network: a module and its inputs, which give the network's output."""

    module: nn.Module
    inputs: Tensor
    starts_with_dropout: bool = False
    """Whether the dropout stands in front of the module rather than inside it."""


def suffix_after(network: nn.Module, dropout: nn.Module, x: Tensor) -> Suffix:
    """The smallest suffix of a network that must run again when the mask of `dropout` changes.

    It is the innermost module that returned the network's output and either received the output of `dropout`
    or contains it. The result is the whole network with `x` where no smaller suffix is certain to give the
    same output: if `dropout` runs several times, or code outside any module changes the output.

    Args:
        network: network in eval mode; it runs once on `x`.
        dropout: its dropout module, which returns its input in eval mode.
        x: batch of inputs.
    """
    with _observed(network, dropout) as observed:
        output = network(x)
    found = next(_candidates(observed, output), None) if len(observed.dropped) == 1 else None
    if found is None or found.module is network:
        return Suffix(network, x)
    again = found.module(found.inputs)
    is_same = torch.allclose(again, output, rtol=1e-4, atol=1e-5, equal_nan=True)
    return found if is_same else Suffix(network, x)


@dataclass(eq=False)
class _Observed:
    """Outputs of the dropout module, each with a copy that the network continues with, and later calls."""

    dropout: nn.Module
    dropped: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    calls: list[tuple[nn.Module, Any, Any, Any]] = field(default_factory=list)

    def after_dropout(self, _: Any, __: Any, output: Tensor) -> Tensor:
        copy = output.clone()  # a new object, so that the module that receives it can be recognised
        self.dropped.append((output, copy))
        return copy

    def after_module(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if self.dropped:
            self.calls.append((module, args, kwargs, output))


@contextmanager
def _observed(network: nn.Module, dropout: nn.Module) -> Iterator[_Observed]:
    observed = _Observed(dropout)
    handles = [dropout.register_forward_hook(observed.after_dropout)]
    others = (module for module in network.modules() if module is not dropout)
    handles += [module.register_forward_hook(observed.after_module, with_kwargs=True) for module in others]
    try:
        yield observed
    finally:
        for handle in handles:
            handle.remove()


def _candidates(observed: _Observed, output: Any) -> Iterator[Suffix]:
    ((before, copy),) = observed.dropped
    for module, args, kwargs, result in observed.calls:  # inner modules return before outer ones
        if result is not output or kwargs or len(args) != 1 or not isinstance(args[0], Tensor):
            continue
        if args[0] is copy:
            yield Suffix(module, before, starts_with_dropout=True)
        elif any(inner is observed.dropout for inner in module.modules()):
            yield Suffix(module, args[0])
