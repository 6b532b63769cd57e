"""What the parts of an adaptation hand each other."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

__all__ = ["Features"]


@dataclass(frozen=True, eq=False)
class Features:
    """Rows of what a head sees, (N, F), perhaps memory-mapped; class ids (N,) or counts (N, K)."""

    rows: np.ndarray | np.memmap
    """float32 or float16 on disk; read in blocks."""
    targets: Tensor
    """int64 (N,), or float (N, K) counts; −1 where foreign."""
    digest: str
    """Of model, weights, preprocessing and data."""

    def __len__(self) -> int:
        return len(self.rows)

    def blocks(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Rows in float32 with their targets, `size` at a time, in order."""
        for start in range(0, len(self), size):
            rows = np.array(self.rows[start : start + size], dtype=np.float32)
            yield torch.from_numpy(rows), self.targets[start : start + size]
