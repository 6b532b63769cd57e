"""Decoded images in archives as `numpy.savez` writes them, or alone in a .npy file."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from beliefmatch._validate import fail
from beliefmatch.data.fields import SPELLINGS
from beliefmatch.data.forms.raw import Columns, Raw
from beliefmatch.data.pictures import Arrays
from beliefmatch.data.readers import reading

__all__ = ["read", "read_npy"]

MAX_BYTES = 16 << 30
"""Of one array, unpacked; an archive of a few kilobytes may claim any number."""


def read(paths: Sequence[Path], columns: Columns) -> Raw:
    """`images` (N, H, W, C) or (N, H, W) of bytes, `labels` or `targets`, and perhaps `classes`."""
    if len(paths) > 1:
        expected = "one .npz file for each part; a dataset's name chooses among several datasets"
        raise fail("data", f"`directory` must hold {expected}, got {paths[0].name} and {paths[1].name}.")
    (path,) = paths
    with reading(path, caller="data"), zipfile.ZipFile(path) as archive:
        sizes = {entry.filename.removesuffix(".npy"): entry.file_size for entry in archive.infolist()}
    image = _called(path, sizes, "images", columns.image)
    label = _called(path, sizes, "targets", columns.label)
    if image is None:
        raise fail("data", f"{path} must hold images under that name, got {', '.join(sizes) or 'nothing'}.")
    if max(sizes[image], sizes.get(label or "", 0)) > MAX_BYTES:
        remedy = "save them as image files or Parquet, which are read as needed"
        raise fail("data", f"{path} must hold at most {MAX_BYTES >> 30} GB, got more; {remedy}.")
    pixels = _images(_load(path, image), path)
    labels = None if label is None else _load(path, label)
    if labels is not None and (labels.ndim != 1 or len(labels) != len(pixels)):
        got = f"{label} of shape {labels.shape}"
        raise fail("data", f"{path} must hold one label for each of {len(pixels)} images, got {got}.")
    classes = next((_load(path, key) for key in sizes if key in ("classes", "class_names")), None)
    names = None if classes is None else tuple(f"{name}" for name in classes.ravel().tolist())
    return Raw(Arrays(pixels, path.name), labels, names)


def read_npy(path: Path) -> Raw:
    """One array of images, without labels."""
    with reading(path, caller="data"), path.open("rb") as file:
        # Not numpy.load, which takes what is no array for a pickle and says so.
        pixels = np.lib.format.read_array(file, allow_pickle=False)
    return Raw(Arrays(_images(pixels, path), path.name))


def _called(path: Path, names: dict[str, int], role: str, given: str | None) -> str | None:
    spellings = (given, *SPELLINGS["images" if role == "images" else "targets"])
    held = [name for name in names if name.lower() in spellings or name == given]
    if len(held) > 1 and given not in held:
        raise fail("data", f"{path} must hold one array of {role}, got {' and '.join(held)}.")
    return given if given in held else held[0] if held else None


def _load(path: Path, name: str) -> np.ndarray:
    with reading(path, f"`{name}`", caller="data"), np.load(path, allow_pickle=False) as archive:
        values = archive[name]
        if not isinstance(values, np.ndarray):
            raise ValueError("it is no array")
    return values


def _images(pixels: np.ndarray, path: Path) -> np.ndarray:
    """(N, H, W, C); channels that come second go last where that is plainly so."""
    if pixels.ndim == 3:
        pixels = pixels[..., None]
    if pixels.ndim == 4 and pixels.shape[3] not in (1, 3) and pixels.shape[1] in (1, 3):
        pixels = pixels.transpose(0, 2, 3, 1)
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[3] not in (1, 3) or 0 in pixels.shape[1:]:
        expected = "images as uint8 of shape (N, H, W), (N, H, W, 1) or (N, H, W, 3)"
        raise fail("data", f"{path} must hold {expected}, got {pixels.dtype} of shape {pixels.shape}.")
    return np.ascontiguousarray(pixels)
