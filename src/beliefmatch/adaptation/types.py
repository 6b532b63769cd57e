"""Rows of features with their targets: the data that heads are fitted on."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from beliefmatch._validate import fail
from beliefmatch.adaptation.rows import Rows

__all__ = ["Features"]

_STRETCH = 4096  # rows that are converted to float32 together


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
        if size < 1:
            raise fail("blocks", f"`size` must be at least 1, got {size}.")
        for start in range(0, len(self), size):
            rows = torch.empty(min(size, len(self) - start), self.width)
            for first in range(0, len(rows), _STRETCH):  # no copy in another type of more than a stretch
                last = min(first + _STRETCH, len(rows))
                rows.numpy()[first:last] = self.rows[start + first : start + last]
            yield rows, self.targets[start : start + size]
