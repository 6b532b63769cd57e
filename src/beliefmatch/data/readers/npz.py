"""Archives of arrays, as `numpy.savez` writes them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from beliefmatch.data.readers.source import Column, column, reading

__all__ = ["NpzSource"]

_ZIP = b"PK"


class NpzSource:
    """An archive, opened without leave to unpickle."""

    is_table = False

    def __init__(self, path: Path) -> None:
        self.path = path
        with reading(path), path.open("rb") as file:
            if file.read(len(_ZIP)) != _ZIP:  # numpy would take it for a pickle, and say so
                raise ValueError("it is no zip archive")
            file.seek(0)
            with np.load(file, allow_pickle=False) as archive:
                self.names = self.own = tuple(archive.files)

    def load(self, names: Sequence[str]) -> Column:
        """One array; an archive has no columns to set side by side."""
        (name,) = names
        with reading(self.path, f"`{name}`"), self.path.open("rb") as file:
            with np.load(file, allow_pickle=False) as archive:
                values = archive[name]
            if not isinstance(values, np.ndarray):
                raise ValueError("it is no array")
        return column(values, name, self.path)
