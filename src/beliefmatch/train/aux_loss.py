"""An auxiliary loss of a training: of the network itself, on examples of its own."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor, nn

from beliefmatch._utils import derive_seed
from beliefmatch._validate import fail
from beliefmatch.data.sources import Batch, Source
from beliefmatch.train.engine import Engine
from beliefmatch.train.sampler import CyclicSampler, shard

__all__ = ["AuxBatch", "AuxLoss", "AuxLossFunction"]

AuxLossFunction = Callable[[nn.Module, Sequence[Batch], int], Tensor]
"""``loss(network, views, seed)``, a mean over the batch whose randomness depends on the seed alone."""

_ORDER, _AUGMENT, _RANDOM = 15, 16, 17  # purposes of derived seeds


class AuxBatch(NamedTuple):
    """The auxiliary examples of one step in one process: each view of them, the shard's weight, a seed."""

    views: tuple[Batch, ...]
    weight: float
    seed: int


@dataclass(frozen=True, eq=False)
class AuxLoss:
    """An auxiliary loss, added to the objective with a weight.

    Args:
        name: name of the unweighted mean in the history and logs.
        source: examples; each step takes the next ones in an order of their own.
        loss: function of the network, the views of a batch and a seed.
        weight: weight of the loss as a function of the fraction of the training that is done. Where it is 0,
            the loss is not computed.
        views: number of times each example occurs in a step, augmented anew each time.
        batch_size: examples in a step over all processes; that of the objective if not given.
    """

    name: str
    source: Source
    loss: AuxLossFunction
    weight: Callable[[float], float]
    views: int = 1
    batch_size: int | None = None

    def __post_init__(self) -> None:
        if len(self.source) == 0:
            raise fail("AuxLoss", "`source` must contain at least one example, got none.")
        for name in ("views", "batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise fail("AuxLoss", f"`{name}` must be at least 1, got {value}.")

    def batches(
        self, engine: Engine, *, first_step: int, n_steps: int, batch_size: int, seed: int
    ) -> Iterator[AuxBatch]:
        """This process's shards of the examples of `n_steps` steps.

        Args:
            engine: its processes share each batch.
            first_step: number of the first step, counted from the beginning of the training.
            n_steps: number of steps.
            batch_size: examples in a step where `self.batch_size` is not given.
            seed: seed of the training.
        """
        size, steps = self.batch_size or batch_size, range(first_step, first_step + n_steps)
        sampler = CyclicSampler(len(self.source), derive_seed(seed, _ORDER))
        batches = sampler.batches([size] * n_steps, first_step * size)
        shards = [shard(batch, engine.rank, engine.world_size) for batch in batches]
        streams = []
        for view in range(self.views):
            seeds = [derive_seed(seed, _AUGMENT, step, view, engine.rank) for step in steps]
            indices = [own.indices for own in shards]
            streams.append(self.source.batches(indices, seeds=seeds, device=engine.device))
        for step, own in zip(steps, shards, strict=True):
            views = tuple(next(stream) for stream in streams)
            yield AuxBatch(views, own.weight, derive_seed(seed, _RANDOM, step, engine.rank))
