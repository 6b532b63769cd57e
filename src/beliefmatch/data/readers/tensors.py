"""Arrays in safetensors files."""

from collections.abc import Sequence
from pathlib import Path

from beliefmatch._environment import needs
from beliefmatch.data.readers.source import Column, reading

__all__ = ["SafetensorsSource"]


class SafetensorsSource:
    """A file whose tensors are read one at a time."""

    is_table = False

    def __init__(self, path: Path) -> None:
        with needs("safetensors", extra="files", caller="read_predictions"):
            from safetensors import safe_open
        self.path, self._open = path, safe_open
        with reading(path), safe_open(path, framework="pt") as file:
            self.names = self.own = tuple(file.keys())

    def load(self, names: Sequence[str]) -> Column:
        """One tensor; the format has no columns to set side by side."""
        (name,) = names
        with reading(self.path, f"`{name}`"), self._open(self.path, framework="pt") as file:
            return file.get_tensor(name)
