"""In which order examples are seen: a function of the seed and the epoch, with no state to save.

Batches are numbered within their epoch and an epoch's order needs no epoch before it, so that a training can
be taken up at any step. A batch is the same for any number of processes; each computes its share of it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from beliefmatch._utils import derive_seed
from beliefmatch._validate import fail

__all__ = ["Endless", "Order", "Repeated", "Share", "share"]

_ORDER, _ENDLESS, _REPEATED = 1, 2, 3  # what a seed is for


@dataclass(frozen=True)
class Order:
    """Shuffled batches of examples, each example once an epoch.

    A last batch of one example joins the batch before: batch normalisation has nothing to normalise it by,
    and its gradient would count as much as that of a whole batch.
    """

    examples: int
    batch_size: int
    seed: int

    def __post_init__(self) -> None:
        for name in ("examples", "batch_size"):
            if getattr(self, name) < 1:
                raise fail("Order", f"`{name}` must be at least 1, got {getattr(self, name)}.")

    @property
    def batches(self) -> int:
        """Batches in an epoch."""
        whole, left = divmod(self.examples, self.batch_size)
        return max(1, whole + (left > 1))

    def epoch(self, epoch: int) -> list[Tensor]:
        """The batches of an epoch, as indices."""
        order = _shuffled(self.examples, derive_seed(self.seed, _ORDER, epoch))
        last = (self.batches - 1) * self.batch_size
        return [*order[:last].split(self.batch_size), order[last:]] if last else [order]


@dataclass(frozen=True)
class Endless:
    """Examples for as many steps as are asked for, all of them seen before one comes again."""

    examples: int
    seed: int

    def taken(self, first: int, many: int) -> Tensor:
        """The examples at places `first`, `first + 1`, ... of the endless row."""
        pieces, cycle, at = [], *divmod(first, self.examples)
        while many > 0:
            piece = self._cycle(cycle)[at : at + many]
            pieces.append(piece)
            many, cycle, at = many - len(piece), cycle + 1, 0
        return torch.cat(pieces)

    def _cycle(self, cycle: int) -> Tensor:
        return _shuffled(self.examples, derive_seed(self.seed, _ENDLESS, cycle))

    def batches(self, sizes: list[int], first: int) -> Iterator[Tensor]:
        """Batches of the given sizes that follow each other."""
        if sizes:
            yield from self.taken(first, sum(sizes)).split(sizes)


@dataclass(frozen=True)
class Repeated(Order):
    """Few examples in epochs as long as those of more: as many batches, and the few again and again.

    Args:
        few: examples that there are; `examples` is the number that an epoch is as long as.
    """

    few: int = 1

    def epoch(self, epoch: int) -> list[Tensor]:
        """The batches of an epoch, as indices of the few."""
        last = self.examples - (self.batches - 1) * self.batch_size
        sizes = [self.batch_size] * (self.batches - 1) + [last]
        row = Endless(self.few, derive_seed(self.seed, _REPEATED))
        return list(row.batches(sizes, epoch * self.examples))


class Share(NamedTuple):
    """The examples of a batch that one process computes, and the factor of their mean loss.

    With it, the mean of the processes' gradients is the gradient of the whole batch's mean loss.
    """

    indices: Tensor
    weight: float


def share(batch: Tensor, rank: int, world: int) -> Share:
    """One process's part of a batch.

    A process always gets two examples at least, because it has to take part in every step and may have to
    normalise by its own: a single one comes twice, which leaves its mean loss as it is, and where there is
    none the first of the batch comes with weight zero.
    """
    mine = batch.tensor_split(world)[rank]
    weight = world * len(mine) / len(batch)
    if len(mine) < 2:
        mine = (mine if len(mine) else batch[:1]).repeat(2)
    return Share(mine, weight)


def _shuffled(examples: int, seed: int) -> Tensor:
    return torch.randperm(examples, generator=torch.Generator().manual_seed(seed))
