"""Images in files: a folder for each class, perhaps below one for each part."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from beliefmatch._validate import fail
from beliefmatch.data.decode import SUFFIXES
from beliefmatch.data.forms.raw import Raw
from beliefmatch.data.pictures import Files

__all__ = ["all_images", "class_folders", "part_folders"]

_PARTS = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "test": "test",
    "testing": "test",
}


def class_folders(directory: Path, choose: Callable[[Mapping[str, Path]], dict[str, Path]]) -> dict[str, Raw]:
    """Each part's images, labelled by the folder they are in; classes are in the order of their names.

    Without folders of parts the classes' own folders are one set, still to be divided.
    """
    parts = part_folders(directory)
    fitted = next(iter(parts.values()), directory)  # to train on, where there is one
    names = tuple(folder.name for folder in _folders(fitted))
    if not names:
        expected = "a folder for each class, or .npz or .parquet files (of that name, if it holds others)"
        raise fail("data", f"`directory` must hold {expected}, got {_seen(fitted)} in {fitted}.")
    chosen = choose(parts) if parts else {"all": directory}
    return {part: _labelled(folder, names) for part, folder in chosen.items()}


def part_folders(directory: Path) -> dict[str, Path]:
    """Folders called train, validation (or val) and test, or a single one called all."""
    folders = _folders(directory)
    if [folder.name for folder in folders] == ["all"]:
        return {"all": folders[0]}
    found: dict[str, Path] = {}
    for folder in folders:
        part = _PARTS.get(folder.name.lower())
        if part in found:
            got = f"{found[part].name} and {folder.name}"
            raise fail("data", f"`directory` must hold one folder for each part, got {got} in {directory}.")
        if part is not None:
            found[part] = folder
    return {part: found[part] for part in ("train", "validation", "test") if part in found}


def all_images(directory: Path) -> Raw:
    """Every image below a directory, in the order of the paths."""
    names = _images_below(directory)
    if not names:
        raise fail("data", f"`directory` must hold images, got {_seen(directory)} in {directory}.")
    return Raw(Files(directory, names))


def _labelled(directory: Path, classes: tuple[str, ...]) -> Raw:
    own = [folder.name for folder in _folders(directory)]
    unknown = sorted(set(own) - set(classes))
    if unknown:
        raise fail("data", f"every class must be one to train on, got {unknown[0]!r} in {directory} only.")
    names, labels = [], []
    for label, name in enumerate(classes):
        images = _images_below(directory / name) if name in own else []
        names += [f"{name}/{image}" for image in images]
        labels += [label] * len(images)
    if not names:
        raise fail("data", f"`directory` must hold images, got none in the folders of {directory}.")
    return Raw(Files(directory, names), np.array(labels, np.int64), classes)


def _folders(directory: Path) -> list[Path]:
    """In the order of their names, without hidden ones and those that archives leave behind."""
    inside = sorted(directory.iterdir(), key=lambda path: path.name)
    return [path for path in inside if not path.name.startswith((".", "__")) and path.is_dir()]


def _images_below(directory: Path) -> list[str]:
    found = []
    for place, folders, files in os.walk(directory):
        folders[:] = [folder for folder in folders if not folder.startswith((".", "__"))]
        here = os.path.relpath(place, directory)
        images = [file for file in files if not file.startswith(".") and file.lower().endswith(SUFFIXES)]
        found += images if here == "." else [f"{here}/{image}" for image in images]
    return sorted(found)


def _seen(directory: Path) -> str:
    held = sorted(path.name for path in directory.iterdir())
    more = f" and {len(held) - 1} more" if len(held) > 1 else ""
    return f"{held[0]}{more}" if held else "nothing"
