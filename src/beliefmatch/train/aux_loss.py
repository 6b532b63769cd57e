"""A loss beside the objective: of the network itself, on examples of their own."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from beliefmatch._utils import derive_seed
from beliefmatch._validate import fail
from beliefmatch.data.source import Batch, Source
from beliefmatch.train.engine import Engine
from beliefmatch.train.sampler import Endless, share

__all__ = ["Extra", "ExtraLoss", "ExtraPart"]

ExtraLoss = Callable[[nn.Module, Sequence[Batch], int], Tensor]
"""``loss(network, views, seed)``, a mean over the batch; what is left to chance depends on the seed alone."""

_ORDER, _AUGMENT, _CHANCE = 15, 16, 17  # what a seed is for


class ExtraPart(NamedTuple):
    """What one process sees of a step's further examples: each view of them, and the weight of its share."""

    views: tuple[Batch, ...]
    weight: float


@dataclass(frozen=True, eq=False)
class Extra:
    """A further loss of a training, which need not be one of logits and targets.

    Args:
        name: in the history and logs, of its mean before it is weighted.
        source: the examples; each step takes the next of them, in an order of their own.
        loss: of the network and these examples.
        weight: of the loss, after a share of the training; where it is 0 the loss is not computed.
        views: how often each example comes in a step, each time augmented anew.
        batch_size: examples in a step, over all processes together; the recipe's if not given.
    """

    name: str
    source: Source
    loss: ExtraLoss
    weight: Callable[[float], float]
    views: int = 1
    batch_size: int | None = None

    def __post_init__(self) -> None:
        if len(self.source) == 0:
            raise fail("Extra", "`source` must hold at least one example, got none.")
        for name in ("views", "batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise fail("Extra", f"`{name}` must be at least 1, got {value}.")

    def parts(self, engine: Engine, *, first: int, steps: int, usual: int, seed: int) -> Iterator[ExtraPart]:
        """This process's share of the examples of some steps.

        Args:
            engine: whose processes share them.
            first: number of the first step since the beginning of the training.
            steps: as many.
            usual: examples in a step where none are asked for.
            seed: of the training.
        """
        size = self.batch_size or usual
        row = Endless(len(self.source), derive_seed(seed, _ORDER)).batches([size] * steps, first * size)
        shares = [share(batch, engine.rank, engine.world) for batch in row]
        indices = [mine.indices for mine in shares]
        streams = [self._view(engine, view, indices, first, seed) for view in range(self.views)]
        for mine in shares:
            yield ExtraPart(tuple(next(stream) for stream in streams), mine.weight)

    def _view(
        self, engine: Engine, view: int, indices: Sequence[Tensor], first: int, seed: int
    ) -> Iterator[Batch]:
        seeds = [derive_seed(seed, _AUGMENT, first + at, view, engine.rank) for at in range(len(indices))]
        return self.source.batches(indices, seeds=seeds, device=engine.device)

    def of(self, part: ExtraPart, step: int, seed: int, rank: int) -> Callable[[nn.Module], Tensor]:
        """The loss of one part as a function of the network."""
        chance = derive_seed(seed, _CHANCE, step, rank)

        def loss(network: nn.Module) -> Tensor:
            value = self.loss(network, part.views, chance)
            return value if value.dtype == torch.float64 else value.float()

        return loss
