"""MC dropout (Gal and Ghahramani 2016): the mean softmax over random dropout masks.

With dropout in front of the last layer only, the layers before it need to run once, not once for each mask.
The suffix of the network that has to run again is found by observing one forward pass, for any network.
"""

import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional

from beliefmatch._utils import derive_seed
from beliefmatch._validate import fail, level_of_caller, require_choice, require_finite_number, require_index
from beliefmatch.methods.base import Method, NetworkPredictor, Prediction
from beliefmatch.methods.cross_entropy import read
from beliefmatch.methods.mixture import mean_softmax

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
    """The mean softmax of a network over dropout masks, and how far the masks disagree.

    Every call of a dropout module within a pass gets a mask of its own, as in training. The masks depend on
    `seed` alone, and each is applied to all examples: a prediction does not depend on its batch, and the
    caller's random state is not changed. The network is left in eval mode.

    All dropout modules of torch are supported, each as the kind that it is: elements (`nn.Dropout`), channels
    (`nn.Dropout1d`, `nn.Dropout2d`, `nn.Dropout3d`) and the alpha kinds for SELU networks. Functional dropout
    cannot be seen from outside the network; a network without any dropout module is refused. So is one whose
    dropout modules receive another dimension than the batch first, such as time; two small batches of the
    first call show that.
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
        dropouts, suffix = _dropouts(network), Suffix(network, x)
        with _uncompiled():
            _require_batch_first(network, dropouts, x)
            if len(dropouts) == 1:
                found = suffix_after(network, dropouts[0].module, x)
                suffix = found if len(found.inputs) == len(x) else suffix  # else its rows are no examples
            examples = min(self.at_once, NUMBERS_AT_ONCE // max(1, suffix.inputs[:1].numel()))
            n_masks = max(1, examples // max(1, len(x)))
            logits = [
                self._logits(suffix, dropouts, range(first, min(first + n_masks, self.samples)))
                for first in range(0, self.samples, n_masks)
            ]
        return mean_softmax(torch.cat(logits))

    def _logits(self, suffix: "Suffix", dropouts: list["_Dropout"], masks: range) -> Tensor:
        """Logits (masks, N, K) under some of the masks, computed in one pass."""
        inputs = torch.cat([suffix.inputs] * len(masks))  # `repeat` would lose the memory layout
        applied = _Masks(masks, self.seed, len(suffix.inputs))
        if suffix.starts_with_dropout:
            inputs = applied.drop(dropouts[0], inputs)
        with applied.hooked(dropouts):
            logits = suffix.module(inputs)
        if not applied.calls:
            names = ", ".join(f"`{dropout.name}`" for dropout in dropouts)
            raise fail("mc_dropout", f"`network` must call its dropout modules, got {names} never called.")
        return logits.unflatten(0, (len(masks), len(suffix.inputs)))


def _uncompiled() -> AbstractContextManager[Any]:
    """Run compiled networks as they were before: compiled code would not call the hooks of the masks."""
    if "torch._dynamo" not in sys.modules:  # nothing is compiled, and importing it takes seconds
        return nullcontext()
    return torch.compiler.set_stance("force_eager")


# Dropout modules, and the masks of each kind

_OF_CHANNELS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.FeatureAlphaDropout)
_ALPHA = (nn.AlphaDropout, nn.FeatureAlphaDropout)
_KINDS = (nn.Dropout, *_OF_CHANNELS, nn.AlphaDropout)
_DIMENSIONS = {nn.Dropout1d: 3, nn.Dropout3d: 5}
"""Of a batch; one dimension fewer means to these modules that there is no batch dimension."""
_SELU_LIMIT = 1.7580993408473766
"""−1 times the limit of SELU for large negative inputs, which the alpha kinds put for what they drop."""


class _Dropout(NamedTuple):
    name: str
    module: Any
    place: int
    """Number of the module among those of the network, which seeds its masks."""


def _dropouts(network: nn.Module) -> list[_Dropout]:
    """The active dropout modules, of known kinds; a warning names other modules that have dropout inside."""
    found = []
    for name, module in network.named_modules():
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0:
            if not any(isinstance(module, kind) and type(module).forward is kind.forward for kind in _KINDS):
                known, received = ", ".join(kind.__name__ for kind in _KINDS), type(module).__name__
                fact = f"`network` must have dropout of the kinds {known}, got {received} at `{name}`"
                raise fail("mc_dropout", f"{fact}.")
            found.append(_Dropout(name, module, len(found)))
        elif isinstance(module, (nn.MultiheadAttention, nn.RNNBase)) and module.dropout > 0:
            inside = f"{type(module).__name__} at `{name}`"
            warnings.warn(
                f"mc_dropout: the dropout inside {inside} stays off; only dropout modules are sampled.",
                stacklevel=level_of_caller(),
            )
    if not found:
        remedy = "functional dropout cannot be sampled, use nn.Dropout in its place"
        raise fail("mc_dropout", f"`network` must have a dropout module with p > 0, got none; {remedy}.")
    return found


@dataclass(frozen=True, eq=False)
class _Masks:
    """The masks of one pass through the network, in which every call of a module gets one of its own."""

    ids: range
    seed: int
    examples: int
    calls: Counter[int] = field(default_factory=Counter)
    """Number of calls so far, by the place of the module."""

    @contextmanager
    def hooked(self, dropouts: list[_Dropout]) -> Iterator[None]:
        """Apply the masks by hooks on the dropout modules, which do nothing themselves in eval mode."""
        handles = [
            dropout.module.register_forward_hook(partial(self._after_call, dropout)) for dropout in dropouts
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _after_call(self, dropout: _Dropout, _: Any, __: Any, output: Tensor) -> Tensor:
        return self.drop(dropout, output)

    def drop(self, dropout: _Dropout, values: Tensor) -> Tensor:
        """The values (masks · examples, ...) of the next call of a dropout module, under the masks."""
        module, batch = dropout.module, len(self.ids) * self.examples
        _require_batch(dropout, values, batch)
        call = self.calls[dropout.place]
        self.calls[dropout.place] += 1
        rows = len(values) // max(1, batch)  # more than one where tokens or patches are moved into the batch
        shape = (rows, *values.shape[1:])
        if isinstance(module, _OF_CHANNELS):
            shape = (*shape[:2], *(1 for _ in shape[2:]))
        generators = (self._generator(dropout, call, mask) for mask in self.ids)
        drawn = torch.stack([torch.rand(shape, generator=generator) for generator in generators])
        kept = (drawn >= module.p).to(values)[:, None]
        return _dropped(module, values.unflatten(0, (len(self.ids), self.examples, rows)), kept).flatten(0, 2)

    def _generator(self, dropout: _Dropout, call: int, mask: int) -> torch.Generator:
        # The first call is not numbered: results of networks with one call a module stay as they were.
        numbers = (self.seed, dropout.place, mask, call)[: 4 if call else 3]
        return torch.Generator().manual_seed(derive_seed(*numbers))


def _require_batch(dropout: _Dropout, values: Tensor, batch: int) -> None:
    """The first dimension must be the batch, or masks would be applied along another one."""
    known = (number for kind, number in _DIMENSIONS.items() if isinstance(dropout.module, kind))
    dimensions = next(known, max(2, values.dim()))
    if values.dim() == dimensions and len(values) % max(1, batch) == 0:
        return
    raise _not_batch_first(dropout, values, batch, dimensions)


def _not_batch_first(dropout: _Dropout, values: Tensor, batch: int, dimensions: int) -> Exception:
    which, shape = f"{type(dropout.module).__name__} at `{dropout.name}`", tuple(values.shape)
    expected = f"values of {dimensions} dimensions, the first of them the batch of {batch}"
    return fail("mc_dropout", f"{which} of `network` must receive {expected}, got shape {shape}.")


_batch_first: WeakKeyDictionary[nn.Module, set[Any]] = WeakKeyDictionary()
"""By network, the shapes of an example for which `_require_batch_first` has passed."""


def _require_batch_first(network: nn.Module, dropouts: list[_Dropout], x: Tensor) -> None:
    """What dropout modules receive must grow with the batch in its first dimension, example by example.

    A length that is a multiple of the batch may be one by coincidence. The network runs on two and on three
    examples, once for each shape of an example.
    """
    passed = _batch_first.setdefault(network, set())
    key = x.shape[1:], tuple(id(dropout.module) for dropout in dropouts)
    if len(x) == 0 or key in passed:
        return
    first, last = x[:1], x[-1:]
    of_two, of_three = (
        _received(network, dropouts, torch.cat([first, *[last] * others])) for others in (1, 2)
    )
    for (dropout, two), (_, three) in zip(of_two, of_three, strict=False):
        _require_batch(dropout, two, 2)
        rows = len(two) // 2
        if len(three) != 3 * rows or (rows > 1 and not _has_blocks_of(two, three, rows)):
            raise _not_batch_first(dropout, three, 3, three.dim())
    passed.add(key)


def _received(network: nn.Module, dropouts: list[_Dropout], x: Tensor) -> list[tuple[_Dropout, Tensor]]:
    """The inputs of all calls of dropout modules, in their order."""
    found: list[tuple[_Dropout, Tensor]] = []

    def keep(dropout: _Dropout, _: Any, __: Any, output: Tensor) -> None:
        found.append((dropout, output.clone()))  # in eval mode its output is its input

    with ExitStack() as hooks:
        for dropout in dropouts:
            hooks.callback(dropout.module.register_forward_hook(partial(keep, dropout)).remove)
        network(x)
    return found


def _has_blocks_of(two: Tensor, three: Tensor, rows: int) -> bool:
    """Whether each example is a block of rows; rows ordered by time would lie elsewhere among three."""
    expected = torch.cat([two, two[rows:]])
    tolerance = 8 * torch.finfo(two.dtype).eps ** 0.5
    return torch.allclose(three, expected, rtol=tolerance, atol=tolerance, equal_nan=True)


def _dropped(module: Any, values: Tensor, kept: Tensor) -> Tensor:
    """What a dropout module makes of its input in training, where `kept` is 0 or 1."""
    if module.p == 1:
        return values * 0
    if not isinstance(module, _ALPHA):
        return values * (kept / (1 - module.p))
    scale = ((1 + _SELU_LIMIT**2 * module.p) * (1 - module.p)) ** -0.5
    return values * (scale * kept) + scale * _SELU_LIMIT * (module.p - 1 + kept)


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
