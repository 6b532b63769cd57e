"""Rows that lie in several files, or are some of others, and read as one array."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

__all__ = ["PickedRows", "Rows", "ShardedRows", "in_memory"]

_STRETCH = 4096  # rows that are read together on the way into memory


class ShardedRows:
    """Memory-mapped shards as one read-only array (N, F); only the rows requested are read.

    Args:
        shards: each (n, F), all of the same n but the last, which may have fewer.
        held: kept alive as long as these rows are: the sign that they are in use, or their directory.
    """

    ndim = 2

    def __init__(self, shards: Sequence[np.ndarray], held: Any = None) -> None:
        self._shards, self._held = list(shards), held
        self.shard_rows = len(self._shards[0])
        count = self.shard_rows * (len(self._shards) - 1) + len(self._shards[-1])
        self.shape: tuple[int, int] = (count, self._shards[0].shape[1])
        self.dtype: np.dtype = self._shards[0].dtype

    @property
    def nbytes(self) -> int:
        """Of all rows, on the disk."""
        return self.shape[0] * self.shape[1] * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: slice | np.ndarray | Sequence[int] | int) -> np.ndarray:
        """Rows by a slice, by their numbers in any order, or one by its number."""
        if isinstance(key, slice):
            return self._stretch(*key.indices(len(self)))
        numbers = np.arange(len(self))[np.asarray(key)]  # numpy's rules for negative ones, masks and errors
        return self._gathered(np.atleast_1d(numbers)).reshape(*numbers.shape, self.shape[1])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError(
                "ShardedRows: `copy` must not be False, rows of several files have to be copied."
            )
        return np.array(self[:], dtype=dtype)

    def _stretch(self, start: int, stop: int, step: int) -> np.ndarray:
        if step != 1:
            return self._gathered(np.arange(start, stop, step))
        pieces = list(self._pieces(start, stop))
        if not pieces:
            return np.empty((0, self.shape[1]), self.dtype)
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _pieces(self, start: int, stop: int) -> Iterator[np.ndarray]:
        while start < stop:
            shard, first = divmod(start, self.shard_rows)
            last = min(self.shard_rows, first + stop - start)
            yield self._shards[shard][first:last]
            start += last - first

    def _gathered(self, numbers: np.ndarray) -> np.ndarray:
        taken = np.empty((len(numbers), self.shape[1]), self.dtype)
        shards = numbers // self.shard_rows
        for shard in np.unique(shards):
            places = np.flatnonzero(shards == shard)
            taken[places] = self._shards[shard][numbers[places] % self.shard_rows]
        return taken


class PickedRows:
    """Rows of another array by their numbers, read-only; only the rows requested are read.

    Args:
        rows: features (N, F).
        numbers: of the rows to show, in the order to show them in.
    """

    ndim = 2

    def __init__(self, rows: "Rows", numbers: np.ndarray) -> None:
        self._rows, self._numbers = rows, numbers
        self.shape: tuple[int, int] = (len(numbers), rows.shape[1])
        self.dtype: np.dtype = rows.dtype

    @property
    def nbytes(self) -> int:
        """Of the rows that are shown."""
        return self.shape[0] * self.shape[1] * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: slice | np.ndarray | Sequence[int] | int) -> np.ndarray:
        """Rows by a slice, by their numbers in any order, or one by its number."""
        numbers = self._numbers[key if isinstance(key, slice) else np.asarray(key)]
        return np.asarray(self._rows[numbers])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("PickedRows: `copy` must not be False, picked rows have to be copied.")
        return np.array(self[:], dtype=dtype)


Rows = np.ndarray | ShardedRows | PickedRows
"""Features (N, F), wherever they are."""


def in_memory(rows: Rows, most: int) -> np.ndarray | None:
    """All rows as an array that may be written to; None where they are elsewhere and take more bytes.

    An array in memory is given back as it is, if it is contiguous and not read-only.
    """
    if isinstance(rows, np.ndarray) and not isinstance(rows, np.memmap):
        array = np.ascontiguousarray(rows)
        return array if array.flags.writeable else array.copy()
    if rows.nbytes > most:
        return None
    array = np.empty(rows.shape, rows.dtype)
    for start in range(0, len(array), _STRETCH):
        array[start : start + _STRETCH] = rows[start : start + _STRETCH]
    return array
