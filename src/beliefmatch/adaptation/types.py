"""What heads are fitted on: rows of features with their targets, read in order or shuffled."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from beliefmatch._utils import derive_seed
from beliefmatch._validate import fail
from beliefmatch.adaptation.rows import Rows

__all__ = ["BUDGET_BYTES", "Features"]

BUDGET_BYTES = 4 << 30
"""Rows that take at most this much as float32 are held in memory when they are shuffled."""

_STRETCH = 4096  # neighbouring rows that are read together where not all can be held
_ROWS, _STRETCHES = 11, 12  # what a seed is for


@dataclass(frozen=True, eq=False)
class Features:
    """Rows of what a head sees, (N, F), and their class ids (N,) or counts (N, K); rows may be memory-mapped.

    Args:
        rows: floating point of 16, 32 or 64 bits; an array, a memory map, or what reads as one.
        targets: class ids, int64 (N,), -1 where OOD; or counts, floating point (N, K). On the CPU.
        digest: of model, weights, preprocessing and data, or of the features themselves.
    """

    rows: Rows
    targets: Tensor
    digest: str

    def __post_init__(self) -> None:
        if self.rows.ndim != 2 or 0 in self.rows.shape:
            raise fail("Features", f"`rows` must have shape (N, F), got {tuple(self.rows.shape)}.")
        ids = self.targets.dtype == torch.int64 and self.targets.dim() == 1
        counts = self.targets.is_floating_point() and self.targets.dim() == 2
        if not (ids or counts) or len(self.targets) != len(self.rows):
            expected = f"int64 ids ({len(self.rows)},) or floating-point counts ({len(self.rows)}, K)"
            got = f"{self.targets.dtype} of shape {tuple(self.targets.shape)}".removeprefix("torch.")
            raise fail("Features", f"`targets` must be {expected}, got {got}.")

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def width(self) -> int:
        """F, the number of features of a row."""
        return self.rows.shape[1]

    def blocks(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Rows as float32 and their targets, `size` at a time (the last block may be smaller), in order."""
        _require_positive("blocks", "size", size)
        for start in range(0, len(self), size):
            yield self._read(start, start + size), self.targets[start : start + size]

    def shuffled(
        self, seed: int, epoch: int, batch_size: int, *, budget_bytes: int = BUDGET_BYTES
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Rows as float32 and their targets in batches, every row once; the last batch may be smaller.

        The order depends on the arguments alone. Where all rows fit into the budget as float32 it is a
        uniform permutation, and they are held in memory from then on. Else rows are shuffled on two levels:
        stretches of neighbouring rows (4096, or fewer if the budget says so) are permuted, as many of them
        as fit are read, and their rows are permuted among themselves. Rows of one group of stretches then
        never meet those of another group in the same epoch, while the groups differ from epoch to epoch.
        """
        _require_positive("shuffled", "batch_size", batch_size)
        fitting = budget_bytes // (4 * self.width)  # rows
        if fitting >= len(self):
            order = _permuted(len(self), derive_seed(seed, _ROWS, epoch))
            for part in order.split(batch_size):
                yield self._held[part], self.targets[part]
        else:
            yield from self._shuffled_in_groups(seed, epoch, batch_size, max(1, fitting))

    @cached_property
    def _held(self) -> Tensor:
        """All rows in memory; those of an array of float32 stay where they are."""
        rows = self.rows
        if type(rows) is np.ndarray and rows.dtype == np.float32 and rows.flags.writeable:
            return torch.from_numpy(rows)
        return self._read(0, len(self))

    def _read(self, start: int, stop: int) -> Tensor:
        """Rows in memory of their own, float32; `stop` may be beyond the end."""
        rows = torch.empty(min(stop, len(self)) - start, self.width)
        self._read_into(rows, start)
        return rows

    def _read_into(self, rows: Tensor, start: int) -> None:
        place = rows.numpy()
        for first in range(0, len(place), _STRETCH):  # no copy in another type of more than a stretch
            last = min(first + _STRETCH, len(place))
            place[first:last] = self.rows[start + first : start + last]

    def _shuffled_in_groups(
        self, seed: int, epoch: int, batch_size: int, fitting: int
    ) -> Iterator[tuple[Tensor, Tensor]]:
        stretch = min(_STRETCH, fitting)
        order = _permuted(-(-len(self) // stretch), derive_seed(seed, _STRETCHES, epoch))
        left = nothing = torch.empty(0, self.width), self.targets[:0]
        for number, group in enumerate(order.split(fitting // stretch)):
            rows, targets = self._group(group.tolist(), stretch)
            within = _permuted(len(rows), derive_seed(seed, _ROWS, epoch, number))
            gap = batch_size - len(left[0])
            for part in (within[:gap], *within[gap:].split(batch_size)):
                batch = torch.cat([left[0], rows[part]]), torch.cat([left[1], targets[part]])
                left = nothing if len(batch[0]) == batch_size else batch
                if left is nothing:
                    yield batch
            del rows  # before the next group is read
        if len(left[0]):
            yield left

    def _group(self, stretches: list[int], length: int) -> tuple[Tensor, Tensor]:
        """The rows of some stretches, and their targets."""
        starts = [number * length for number in stretches]
        sizes = [min(length, len(self) - start) for start in starts]
        rows = torch.empty(sum(sizes), self.width)
        for part, start in zip(rows.split(sizes), starts, strict=True):
            self._read_into(part, start)
        found = [self.targets[start : start + size] for start, size in zip(starts, sizes, strict=True)]
        return rows, torch.cat(found)


def _permuted(count: int, seed: int) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


def _require_positive(function: str, name: str, value: int) -> None:
    if value < 1:
        raise fail(function, f"`{name}` must be at least 1, got {value}.")
