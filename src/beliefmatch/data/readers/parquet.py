"""Columns of Parquet files: numbers, text, or lists of numbers of one length."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from beliefmatch._environment import needs
from beliefmatch.data.readers.source import Column, column, reading

__all__ = ["ParquetSource"]


class ParquetSource:
    """A file of which only the columns asked for are read."""

    is_table = True

    def __init__(self, path: Path) -> None:
        with needs("pyarrow", extra="files", caller="read_predictions"):
            from pyarrow.parquet import ParquetFile
        self.path, self._open = path, ParquetFile
        with reading(path), ParquetFile(path) as file:
            self.names = self.own = tuple(file.schema_arrow.names)

    def load(self, names: Sequence[str]) -> Column:
        """One column, or several side by side."""
        with reading(self.path), self._open(self.path) as file:
            table = file.read(columns=list(names))
            values = [_values(table.column(name), name) for name in names]
        return column(np.stack(values, 1) if len(names) > 1 else values[0], names[0], self.path)


def _values(chunks: Any, name: str) -> np.ndarray:
    import pyarrow as pa

    if chunks.null_count:
        raise ValueError(f"{name} has {chunks.null_count} empty cells")
    values = chunks.combine_chunks()
    if isinstance(values, pa.ChunkedArray):  # of none or several chunks where one cannot hold all
        values = pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type)
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
        return _rows(values, np.unique(values.value_lengths()), name)
    if pa.types.is_fixed_size_list(values.type):
        return _rows(values, np.array([values.type.list_size]), name)
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        return np.array(values.to_pylist(), dtype=np.str_)
    return values.to_numpy(zero_copy_only=False)


def _rows(lists: Any, lengths: np.ndarray, name: str) -> np.ndarray:
    """Lists of one length as a matrix."""
    if len(lengths) > 1:
        raise ValueError(f"{name} has lists of {lengths[0]} to {lengths[-1]} numbers")
    flat = lists.flatten()
    if flat.null_count:
        raise ValueError(f"{name} has {flat.null_count} empty cells in its lists")
    return flat.to_numpy(zero_copy_only=False).reshape(len(lists), *lengths.tolist() or [0])
