"""What a file holds of images, and how parts of a dataset come to have the same classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from beliefmatch._validate import fail
from beliefmatch.data.found import Found, Part, Pictures

__all__ = ["Columns", "Raw", "joined"]


class Columns(NamedTuple):
    """What the columns of a table are called; None for any of the usual spellings."""

    image: str | None = None
    label: str | None = None


class Raw(NamedTuple):
    """Images, a label for each (whole numbers or texts) if there are any, and class names if there are."""

    pictures: Pictures
    labels: np.ndarray | None = None
    class_names: tuple[str, ...] | None = None


def joined(form: str, parts: Mapping[str, Raw]) -> Found:
    """Parts whose labels are class ids of the same classes."""
    named = {raw.class_names for raw in parts.values() if raw.class_names is not None}
    if len(named) > 1:
        raise fail("data", f"all parts must have the same classes, got {_difference(*list(named)[:2])}.")
    names = named.pop() if named else None
    for part, raw in parts.items():
        if raw.labels is None:
            raise fail("data", f"images must have labels to train on, got none in the {part} part.")
        if names is None and raw.labels.dtype.kind == "U":  # the first part is the one to fit on
            names = tuple(f"{name}" for name in np.unique(raw.labels))
    ids = {part: _ids(raw.labels, names, part) for part, raw in parts.items() if raw.labels is not None}
    return Found(form, {part: Part(raw.pictures, ids[part]) for part, raw in parts.items()}, names)


def _ids(labels: np.ndarray, names: tuple[str, ...] | None, part: str) -> np.ndarray:
    if labels.dtype.kind in "iu" and labels.ndim == 1:
        return labels.astype(np.int64)
    if labels.dtype.kind != "U" or labels.ndim != 1 or names is None:
        got = f"{labels.dtype} of shape {labels.shape}"
        raise fail("data", f"labels must be one class id or class name for each image, got {got}.")
    by_name = {name: index for index, name in enumerate(names)}
    unknown = sorted(set(labels.tolist()) - set(by_name))
    if unknown:
        raise fail("data", f"labels must be among the classes, got {unknown[0]!r} in the {part} part.")
    return np.array([by_name[label] for label in labels.tolist()], np.int64)


def _difference(some: tuple[str, ...], others: tuple[str, ...]) -> str:
    odd = sorted(set(some) ^ set(others))
    return f"{odd[0]!r} in one only" if odd else "another order in one"
