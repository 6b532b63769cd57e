"""The order of examples: a function of the seed and the epoch, without a state to save.

Batches are numbered within their epoch, and the order of an epoch does not depend on earlier epochs, so a
training can be resumed at any step. A batch is the same for any number of processes; each computes one shard.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from beliefmatch._utils import derive_seed
from beliefmatch._validate import fail

__all__ = ["CyclicSampler", "EpochSampler", "RepeatingSampler", "Shard", "shard"]

_EPOCH, _CYCLE, _REPEAT = 1, 2, 3  # purposes of derived seeds


@dataclass(frozen=True)
class EpochSampler:
    """Shuffled batches that contain each example once an epoch.

    A last batch of one example joins the batch before it: batch normalisation cannot normalise a single
    example, and its gradient would count as much as that of a whole batch.
    """

    n_examples: int
    batch_size: int
    seed: int

    def __post_init__(self) -> None:
        for name in ("n_examples", "batch_size"):
            if getattr(self, name) < 1:
                raise fail(type(self).__name__, f"`{name}` must be at least 1, got {getattr(self, name)}.")

    @property
    def n_batches(self) -> int:
        """Number of batches in an epoch."""
        whole, left = divmod(self.n_examples, self.batch_size)
        return max(1, whole + (left > 1))

    def batches(self, epoch: int) -> list[Tensor]:
        """Indices of the examples of each batch of an epoch."""
        return list(_permutation(self.n_examples, derive_seed(self.seed, _EPOCH, epoch)).split(self._sizes()))

    def _sizes(self) -> list[int]:
        full = self.n_batches - 1
        return [self.batch_size] * full + [self.n_examples - full * self.batch_size]


@dataclass(frozen=True)
class CyclicSampler:
    """An endless sequence of examples, shuffled in cycles that contain each example once."""

    n_examples: int
    seed: int

    def take(self, first: int, count: int) -> Tensor:
        """Indices at positions `first` to `first + count - 1` of the sequence."""
        pieces, cycle, at = [], *divmod(first, self.n_examples)
        while count > 0:
            order = _permutation(self.n_examples, derive_seed(self.seed, _CYCLE, cycle))
            pieces.append(order[at : at + count])
            count, cycle, at = count - len(pieces[-1]), cycle + 1, 0
        return torch.cat(pieces)

    def batches(self, sizes: list[int], first: int) -> Iterator[Tensor]:
        """Consecutive batches of the given sizes, from position `first` on."""
        if sizes:
            yield from self.take(first, sum(sizes)).split(sizes)


@dataclass(frozen=True)
class RepeatingSampler(EpochSampler):
    """Epochs of `n_examples` examples drawn from only `n_available`, which repeat.

    Used with few labelled and many unlabelled examples: an epoch is as long as one pass over all of them.
    """

    n_available: int = 1

    def batches(self, epoch: int) -> list[Tensor]:
        """Indices of the examples of each batch of an epoch."""
        cycle = CyclicSampler(self.n_available, derive_seed(self.seed, _REPEAT))
        return list(cycle.batches(self._sizes(), epoch * self.n_examples))


class Shard(NamedTuple):
    """The examples of a batch that one process computes, and the weight of their mean loss.

    The mean over processes of the weighted gradients is the gradient of the mean loss of the whole batch.
    """

    indices: Tensor
    weight: float


def shard(batch: Tensor, rank: int, world_size: int) -> Shard:
    """The shard of a batch that process `rank` computes.

    A shard has at least two examples, because every process takes part in every step and batch normalisation
    needs two. A single example is repeated, which leaves its mean loss unchanged. An empty shard becomes the
    first example of the batch with weight zero.
    """
    own = batch.tensor_split(world_size)[rank]
    weight = world_size * len(own) / len(batch)
    if len(own) < 2:
        own = (own if len(own) else batch[:1]).repeat(2)
    return Shard(own, weight)


def _permutation(count: int, seed: int) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))
