"""Single arrays, as `numpy.save` writes them: the file's name says what it holds.

The last word of `resnet_logits.npy` names the array, and `resnet_targets.npy` beside it is another array
of the same source. Words are set off by a dot, a dash or an underscore.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from beliefmatch.data.readers.source import Column, column, reading

__all__ = ["NpySource"]


class NpySource:
    """A file and its neighbours that differ in the last word only."""

    is_table = False

    def __init__(self, path: Path) -> None:
        self.path = path
        stem, word = _words(path)
        with reading(path):
            files = sorted(file for file in path.parent.iterdir() if file.suffix.lower() == ".npy")
        self._files = {_words(file)[1]: file for file in files if _words(file)[0] == stem and file.is_file()}
        self._files[word] = path
        self.own = (word,)
        self.names = (word, *(name for name in self._files if name != word))

    def load(self, names: Sequence[str]) -> Column:
        """One array; a file has no columns to set side by side."""
        (name,) = names
        path = self._files[name]
        with reading(path), path.open("rb") as file:
            # Not numpy.load, which takes what is no array for a pickle and says so.
            values = np.lib.format.read_array(file, allow_pickle=False)
        return column(values, name, path)


def _words(path: Path) -> tuple[str, str]:
    """All but the last word of a file's name, and the last."""
    found = re.fullmatch(r"(.*[._-])?([^._-]+)", path.stem)
    return (found[1] or "", found[2]) if found else ("", path.stem)
