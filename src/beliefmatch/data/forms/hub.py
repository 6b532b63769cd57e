"""Rows of Hugging Face's `datasets`: memory-mapped, so that any can be read at once, decoded here."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from beliefmatch._environment import needs
from beliefmatch._validate import fail
from beliefmatch.data.decode import Unreadable, decoded
from beliefmatch.data.forms.raw import Columns, Raw

__all__ = ["Rows", "read_hub", "read_parquet"]


def read_hub(path: str, config: str | None, split: str, columns: Columns, *, name: str) -> Raw:
    """One split of a dataset on the hub, or in the cache of an earlier visit. No code of it is run."""
    with needs("datasets", extra="data", caller=f"data {name}"):
        import datasets

    try:
        with _without_retries():
            table = datasets.load_dataset(path, config, split=split)
    except Exception as error:  # of the network, the hub, the cache or the disk: each has kinds of its own
        reason = " ".join(f"{error}".split())[:160].rstrip(".") or type(error).__name__
        remedy = "go online, sign in if it is gated, or give its directory on this machine (--data-dir)"
        raise fail(
            "data", f"`name` must be within reach, cannot load {name} ({reason}); {remedy}."
        ) from error
    return raw(table, columns, f"{name}/{split}")


@contextmanager
def _without_retries() -> Iterator[None]:
    """The hub's own warnings of every attempt are kept back; what it comes to is told once."""
    log = logging.getLogger("huggingface_hub")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def read_parquet(paths: Sequence[Path], columns: Columns) -> Raw:
    """Parquet files too large for the memory, laid out for random access in the cache of `datasets`."""
    with needs("datasets", extra="data", caller="data"):
        import datasets

    files = [f"{path}" for path in paths]
    table = datasets.load_dataset("parquet", data_files=files, split="train")
    return raw(table, columns, paths[0].parent.name)


def raw(table: Any, columns: Columns, origin: str) -> Raw:
    """A table of `datasets` with its labels and class names."""
    import datasets

    for column in columns:
        if column is not None and column not in table.column_names:
            got = ", ".join(table.column_names)
            raise fail("data", f"{origin} must have a column {column}, got {got}.")
    image = columns.image or "image"
    if not isinstance(table.features[image], datasets.Image):
        table = table.cast_column(image, datasets.Image())
    rows = Rows(table.cast_column(image, datasets.Image(decode=False)), image, origin)
    if columns.label is None:
        return Raw(rows)
    names = getattr(table.features[columns.label], "names", None)
    return Raw(rows, np.array(table[columns.label][:]), tuple(names) if names else None)


class Rows:
    """Encoded images in a table of `datasets`, as `Pictures`."""

    def __init__(self, table: Any, column: str, origin: str) -> None:
        self._table = table.select_columns([column])
        self._column, self._origin = column, origin

    def __len__(self) -> int:
        return len(self._table)

    def name(self, index: int) -> str:
        """The origin and the number."""
        return f"{self._origin}[{index}]"

    def picture(self, index: int) -> Any:
        """Read and decode one."""
        cell = self._table[index][self._column] or {}
        content = cell.get("bytes")
        if content is None and cell.get("path"):
            try:
                content = Path(cell["path"]).read_bytes()
            except OSError as error:
                raise Unreadable(error.strerror or f"{error}") from None
        return decoded(content or b"")

    def identity(self) -> Iterator[str]:
        """The number of rows; the labels, which are added to it, tell more."""
        yield f"{len(self)} rows"
