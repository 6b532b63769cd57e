"""MC dropout (Gal and Ghahramani 2016): dropout also when predicting, averaged over masks."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from beliefmatch.checks import fail, require_choice, require_finite_number, require_index
from beliefmatch.methods.base import Method, NetworkPredictor, Prediction
from beliefmatch.methods.rest import Rest, rest_after
from beliefmatch.methods.softmax import read
from beliefmatch.rows import work_dtype
from beliefmatch.seeds import mixed

__all__ = ["DropoutPredictor", "mc_dropout"]

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
            torch.rand(one, generator=torch.Generator().manual_seed(mixed(seed, place, mask))) >= module.p
            for mask in masks
        ]
    )
    scaled = kept.to(output) / (1 - module.p)
    n = len(output) // len(masks)
    return (output.unflatten(0, (len(masks), n)) * scaled[:, None]).flatten(0, 1)
