"""Encoded images in the rows of Parquet files, as Hugging Face lays them out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from beliefmatch._environment import needs
from beliefmatch._validate import fail
from beliefmatch.data.forms.raw import Columns, Raw
from beliefmatch.data.pictures import Encoded
from beliefmatch.data.readers import reading

__all__ = ["read"]

IN_MEMORY_BYTES = 4 << 30
"""Files that take more are laid out for random access by Hugging Face's `datasets`, in its cache."""

_IMAGE = ("image", "img", "images")
_LABEL = ("label", "labels", "target", "targets", "fine_label", "y")


def read(paths: Sequence[Path], columns: Columns) -> Raw:
    """All rows of the files, one after another: an image as bytes or {bytes, path}, and a label."""
    with needs("pyarrow", extra="data", caller="data"):
        import pyarrow.parquet as pq

    with reading(paths[0], caller="data"):
        schema = pq.read_schema(paths[0])
    image = _column(schema.names, columns.image, _IMAGE)
    label = _column(schema.names, columns.label, _LABEL)
    if image is None:
        got = ", ".join(schema.names) or "no columns"
        raise fail("data", f"{paths[0]} must have a column of images, {' or '.join(_IMAGE)}, got {got}.")
    if sum(path.stat().st_size for path in paths) > IN_MEMORY_BYTES:
        from beliefmatch.data.forms.hub import read_parquet

        return read_parquet(paths, Columns(image, label))
    contents: list[bytes] = []
    names: list[str] = []
    labels: list[np.ndarray] = []
    for path in paths:
        with reading(path, caller="data"), pq.ParquetFile(path) as file:
            table = file.read(columns=[image] if label is None else [image, label])
            contents += [_content(cell) for cell in table.column(image).to_pylist()]
            labels += [] if label is None else [_labels(table.column(label), label)]
        names += [f"{path.name}[{row}]" for row in range(table.num_rows)]
    ids = np.concatenate(labels) if labels else None
    return Raw(Encoded(contents, names), ids, _class_names(schema.metadata, label))


def _column(names: Sequence[str], given: str | None, spellings: Sequence[str]) -> str | None:
    return next((name for name in (given, *spellings) if name is not None and name in names), None)


def _content(cell: Any) -> bytes:
    """The image's bytes; empty, and so unreadable, where there are none."""
    content = cell.get("bytes") if isinstance(cell, dict) else cell
    if content is None:
        return b""
    if not isinstance(content, bytes):
        raise ValueError("its images are neither bytes nor {bytes, path}")
    return content


def _labels(column: Any, name: str) -> np.ndarray:
    if column.null_count:
        raise ValueError(f"{name} has {column.null_count} empty cells")
    values = np.array(column.to_pylist())
    if values.dtype.kind not in "iuU" and len(values):
        raise ValueError(f"{name} holds neither class ids nor class names")
    return values if len(values) else np.zeros(0, np.int64)


def _class_names(metadata: dict[bytes, bytes] | None, label: str | None) -> tuple[str, ...] | None:
    """From the description that Hugging Face writes into its files, where there is a sound one."""
    try:
        features = json.loads((metadata or {})[b"huggingface"])["info"]["features"]
        names = features[label]["names"]
    except (KeyError, ValueError, TypeError):
        return None
    if isinstance(names, list) and names and all(isinstance(name, str) for name in names):
        return tuple(names)
    return None
