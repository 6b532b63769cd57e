"""Columns of comma-separated text; the first line names them. Decimal points, whatever the locale."""

import csv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from beliefmatch._validate import fail
from beliefmatch.data.readers.source import Column, column, reading

__all__ = ["CsvSource"]

_ROWS = 4096  # at a time: text takes ten times the memory of the numbers in it
_DELIMITERS = ",;\t"

Cells = list[tuple[str, ...]]
"""Some rows of the chosen columns, column by column."""


class CsvSource:
    """A table; each call of `load` is one pass over the file."""

    is_table = True

    def __init__(self, path: Path) -> None:
        self.path, self._delimiter = path, ","
        with self._opened() as (file, _):
            heading = file.readline()
        self._delimiter = max(_DELIMITERS, key=heading.count)
        with self._opened() as (_, reader):
            self.names = self.own = tuple(name.strip() for name in next(reader, []))
        twice = [name for name in self.names if self.names.count(name) > 1]
        if twice:
            fact = f"`path` must name each column once, got {path} with two of {twice[0]!r}."
            raise fail("read_predictions", fact)

    def load(self, names: Sequence[str]) -> Column:
        """One column, or several side by side; a single one that is not all numbers is text."""
        chosen = [self.names.index(name) for name in names]
        with self._opened() as (_, reader):
            next(reader)
            parts = self._parts(reader, chosen)
            if len(names) > 1:
                tables = [_numbers(part, names, before) for before, part in parts]
                values = np.concatenate(tables) if tables else np.empty((0, len(names)))
            else:
                values = _numbers_or_text(list(chain.from_iterable(cells for _, (cells,) in parts)))
        return column(values, names[0], self.path)

    @contextmanager
    def _opened(self) -> Iterator[tuple[Any, Any]]:
        with reading(self.path), self.path.open(encoding="utf-8-sig", newline="") as file:
            yield file, csv.reader(file, delimiter=self._delimiter)

    def _parts(self, reader: Any, chosen: list[int]) -> Iterator[tuple[int, Cells]]:
        """Groups of rows, with the number of rows before each; blank lines are passed over."""
        width, before = len(self.names), 0
        rows = (row for row in reader if row)
        while part := list(islice(rows, _ROWS)):
            for number, row in enumerate(part, before + 1):
                if len(row) != width:
                    raise ValueError(f"row {number} has {len(row)} cells, the heading {width}")
            columns = list(zip(*part, strict=True))
            yield before, [columns[index] for index in chosen]
            before += len(part)


def _numbers(cells: Cells, names: Sequence[str], before: int) -> np.ndarray:
    try:
        return np.array([list(map(float, texts)) for texts in cells]).T
    except ValueError:
        name, row, text = next(
            (name, row, text)
            for name, texts in zip(names, cells, strict=True)
            for row, text in enumerate(texts, before + 1)
            if not _is_number(text)
        )
        raise ValueError(f"row {row}: {name} must be a number, got {text!r}") from None


def _numbers_or_text(cells: list[str]) -> np.ndarray:
    try:
        return np.array(list(map(float, cells)), dtype=np.float64)
    except ValueError:
        return np.array([cell.strip() for cell in cells], dtype=np.str_)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
