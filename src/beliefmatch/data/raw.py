"""Images and labels as found on a disk or on the hub: arrays in .npz, rows in .parquet, files in folders."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

from beliefmatch._environment import needs
from beliefmatch._utils import reason_of
from beliefmatch._validate import fail
from beliefmatch.data.datasets import DATASETS, Columns
from beliefmatch.data.formats import ArrayFile, NpyFile, NpzFile, ParquetFile
from beliefmatch.data.images import SUFFIXES, ArrayImages, EncodedImages, FileImages, HubImages, Images
from beliefmatch.data.predictions import SPELLINGS, ids_of_names

__all__ = [
    "ARRAY_SUFFIXES",
    "LabelledImages",
    "class_names_in",
    "files_by_part",
    "holds",
    "hub_table",
    "images_below",
    "join_classes",
    "part_files",
    "part_of",
    "read_file",
    "read_hub",
    "read_images_at",
    "read_parts_at",
    "without_labels",
]

MAX_NPZ_BYTES = 16 << 30
"""Maximum uncompressed size of one array; an archive of a few kilobytes may claim any number."""
IN_MEMORY_PARQUET_BYTES = 4 << 30
"""Larger Parquet files are laid out for random access by Hugging Face's `datasets`, in its cache."""

_TABLE_SPELLINGS = {
    "images": ("image", "img", "images"),
    "targets": ("label", "labels", "target", "targets", "fine_label", "y"),
}
_PART_WORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing"),
    "all": ("all",),
}
_ANY_COLUMNS = Columns()

T = TypeVar("T")


class LabelledImages(NamedTuple):
    """A part of a dataset as found: its images are not yet brought to one size."""

    images: Images
    labels: np.ndarray
    """Of each image: class ids or class names as a file has them, int64 after `join_classes`; -1 for none."""
    class_names: tuple[str, ...] | None = None
    """By id, where they are known."""
    format: str = ""
    """Where the images come from: "folder", "npz", "parquet", "hub" or "embedded"."""


def without_labels(images: Images, *, format: str = "") -> LabelledImages:
    """Images with the label -1."""
    return LabelledImages(images, np.full(len(images), -1), format=format)


def read_parts_at(
    path: Path,
    *,
    name: str = "",
    only: str | None = None,
    test_part: str = "test",
    columns: Columns = _ANY_COLUMNS,
) -> dict[str, LabelledImages]:
    """The labelled images at a path: "train", "validation" and "test" as far as present, or "all", undivided.

    Args:
        path: a .npz or .parquet file; or a directory that holds such files, or folders of images.
        name: of the dataset; files whose names begin with it are preferred to others.
        only: the part to read if not all.
        test_part: the part to report on.
        columns: what the columns of Parquet files are called, where no default spelling applies.
    """
    if path.is_file():
        return join_classes({"all": _READERS[_format_of(path)]([path], columns)})
    if not path.is_dir():
        raise fail("data", f"`directory` must be a directory or a file, got nothing at {path}.")
    format, files = _files_in(path, name)
    if files:
        by_part = _choose_parts(files_by_part(files, path), only, test_part)
        return join_classes({part: _READERS[format](some, columns) for part, some in by_part.items()})
    directory = _own_folder(path, name)
    folders = _part_folders(directory)
    first = next(iter(folders.values()), directory)  # the train part, where there is one
    classes = tuple(folder.name for folder in _folders(first))
    if not classes:
        expected = "a folder for each class, or .npz or .parquet files (of that name, if it holds others)"
        raise fail("data", f"`directory` must hold {expected}, got {_contents(first)} in {first}.")
    chosen = _choose_parts(folders, only, test_part) if folders else {"all": directory}
    return {part: _labelled_folder(folder, classes) for part, folder in chosen.items()}


def read_images_at(path: Path, *, name: str = "") -> Images:
    """The images at a path, whatever their labels; of a directory with parts, the test part.

    Files whose names begin with `name` are preferred to others.
    """
    if path.is_file():
        return read_file(path).images
    format, files = _files_in(path, name)
    if not files and name:
        format, files = _files_in(path, "")
    if files:
        by_part = _choose_parts(files_by_part(files, path), "test", "test")
        return _READERS[format](next(iter(by_part.values())), _ANY_COLUMNS).images
    parts = _choose_parts(_part_folders(path), "test", "test")
    return images_below(next(iter(parts.values()), path))


def holds(directory: Path, name: str) -> bool:
    """Whether a directory holds a dataset by its name, as a folder or in files that begin with it."""
    if directory.name == name or (directory / name).is_dir():
        return True
    places = [place for place in (directory, directory / "data") if place.is_dir()]
    return any(_begins_with(name, file) for place in places for file in place.iterdir() if file.is_file())


def read_file(path: Path) -> LabelledImages:
    """One file of images, or one image."""
    suffix = path.suffix.lower()
    if suffix in SUFFIXES:
        return without_labels(FileImages(path.parent, [path.name]))
    if suffix == ".npy":
        file = NpyFile(path, caller="data")
        return without_labels(ArrayImages(_load_pixels(file, file.own[0]), path.name))
    return _READERS[_format_of(path)]([path], _ANY_COLUMNS)


def join_classes(parts: Mapping[str, LabelledImages]) -> dict[str, LabelledImages]:
    """Turn the labels of all parts into class ids of the same classes."""
    named = {part.class_names for part in parts.values() if part.class_names is not None}
    if len(named) > 1:
        some, others = list(named)[:2]
        odd = sorted(set(some) ^ set(others))
        got = f"{odd[0]!r} in one only" if odd else "another order in one"
        raise fail("data", f"all parts must have the same classes, got {got}.")
    names = named.pop() if named else None
    joined = {}
    for part, found in parts.items():
        labels = found.labels
        if names is None and labels.dtype.kind == "U":  # the first part is the one to train on
            names = tuple(f"{name}" for name in np.unique(labels))
        joined[part] = found._replace(labels=_class_ids(labels, names, part), class_names=names)
    return joined


def _class_ids(labels: np.ndarray, names: tuple[str, ...] | None, part: str) -> np.ndarray:
    if labels.dtype.kind in "iu" and labels.ndim == 1:
        return labels.astype(np.int64)
    if labels.dtype.kind != "U" or labels.ndim != 1 or names is None:
        got = f"{labels.dtype} of shape {labels.shape}"
        raise fail("data", f"labels must be one class id or class name for each image, got {got}.")
    ids = ids_of_names(labels.tolist(), names)
    if (ids < 0).any():
        unknown = f"{labels[ids < 0][0]}"
        raise fail("data", f"labels must be among the classes, got {unknown!r} in the {part} part.")
    return ids


# Files, and which part of which dataset they hold.


def _format_of(path: Path) -> str:
    if path.suffix.lower().lstrip(".") not in _READERS:
        expected = f"a directory, or a file that ends in {' or '.join(f'.{format}' for format in _READERS)}"
        raise fail("data", f"`name` must be {expected}, got {path}; pickles are not read.")
    return path.suffix.lower().lstrip(".")


def _files_in(directory: Path, name: str) -> tuple[str, list[Path]]:
    """Files of one format, here or one level down in `data` or in a folder of the dataset's name."""
    for place in (directory, directory / name, directory / "data"):
        files = sorted(file for file in place.iterdir() if file.is_file()) if place.is_dir() else []
        by_format = {
            format: [file for file in files if file.suffix.lower() == f".{format}"] for format in _READERS
        }
        by_format = {format: own for format, held in by_format.items() if (own := _of_dataset(held, name))}
        if len(by_format) > 1:
            expected = "images in one format, or a dataset in a directory of its own"
            raise fail("data", f"`directory` must hold {expected}, got .npz and .parquet files in {place}.")
        for format, own in by_format.items():
            return format, own
    return "", []


def _of_dataset(files: list[Path], name: str) -> list[Path]:
    """Files that begin with the name, else those that begin with a part's; all where there is no name."""
    if not name:
        return files
    own = [file for file in files if _begins_with(name, file)]
    return own or [file for file in files if part_of(re.split(r"[^A-Za-z]+", file.stem)[0])]


def _begins_with(name: str, file: Path) -> bool:
    start = rf"{re.escape(name).replace('_', '[-_]')}(?![a-z0-9])"
    return re.match(start, file.stem, re.IGNORECASE) is not None


def part_of(stem: str) -> str | None:
    """The part that a file's name mentions as a whole word, if it is exactly one.

    >>> part_of("svhn_test10k"), part_of("val"), part_of("pretrained")
    ('test', 'validation', None)
    """
    words = set(re.split(r"[^a-z]+", stem.lower()))
    named = [part for part, spellings in _PART_WORDS.items() if words & set(spellings)]
    return named[0] if len(named) == 1 else None


def part_files(path: Path, suffixes: Sequence[str]) -> dict[str, list[Path]]:
    """The files of each part at a path: a file is "all", a directory has files with one of the endings."""
    if path.is_file():
        return {"all": [path]}
    if not path.is_dir():
        raise fail("data", f"`name` must be a file or a directory, got nothing at {path}.")
    files = sorted(file for file in path.iterdir() if file.suffix.lower() in suffixes)
    if not files:
        expected = f"{', '.join(suffixes[:-1])} or {suffixes[-1]} files"
        raise fail("data", f"`name` must hold {expected}, got none in {path}.")
    return files_by_part(files, path)


def files_by_part(files: Sequence[Path], place: Path) -> dict[str, list[Path]]:
    """Files by the part that their names mention; "all" for a single file that mentions none."""
    if len(files) == 1 and part_of(files[0].stem) is None:
        return {"all": list(files)}
    by_part: dict[str, list[Path]] = {}
    for file in files:
        part = part_of(file.stem)
        if part is None:
            expected = "files whose names say train, validation or test, or one file"
            raise fail("data", f"`directory` must hold {expected}, got {file.name} among others in {place}.")
        by_part.setdefault(part, []).append(file)
    return {part: by_part[part] for part in _PART_WORDS if part in by_part}


def _choose_parts(parts: Mapping[str, T], only: str | None, test_part: str) -> dict[str, T]:
    """The requested parts; the one to report on is called "test"."""
    parts = dict(parts)
    if test_part != "test" and test_part in parts:
        parts["test"] = parts.pop(test_part)
    if only is None:
        return parts
    choice = next((part for part in (only, "validation", "all", "train") if part in parts), None)
    return {} if choice is None else {only: parts[choice]}


# Arrays and tables.


def _read_npz(paths: Sequence[Path], columns: Columns) -> LabelledImages:
    """`images` (N, H, W, C) or (N, H, W) of bytes, `labels` or `targets`, and perhaps `classes`."""
    if len(paths) > 1:
        expected = "one .npz file for each part; a dataset's name chooses among several datasets"
        raise fail("data", f"`directory` must hold {expected}, got {paths[0].name} and {paths[1].name}.")
    file = NpzFile(paths[0], caller="data")
    image, label = _column(file, "images", columns.image), _column(file, "targets", columns.label)
    if image is None:
        got = ", ".join(file.names) or "nothing"
        raise fail("data", f"{file.path} must hold images under that name, got {got}.")
    if max(file.nbytes[image], file.nbytes.get(label or "", 0)) > MAX_NPZ_BYTES:
        remedy = "save them as image files or Parquet, which are read as needed"
        raise fail("data", f"{file.path} must hold at most {MAX_NPZ_BYTES >> 30} GB, got more; {remedy}.")
    images = ArrayImages(_load_pixels(file, image), file.path.name)
    found = without_labels(images, format="npz")
    if label is not None:
        found = found._replace(labels=_load_array(file, label))
    if found.labels.shape != (len(images),):
        got = f"{label} of shape {found.labels.shape}"
        raise fail("data", f"{file.path} must hold one label for each of {len(images)} images, got {got}.")
    classes = next((name for name in file.names if name in ("classes", "class_names")), None)
    if classes is None:
        return found
    return found._replace(class_names=tuple(map(str, _load_array(file, classes).ravel().tolist())))


def _read_parquet(paths: Sequence[Path], columns: Columns) -> LabelledImages:
    """All rows of the files, one after another: an image as bytes or {bytes, path}, and a label."""
    files = [ParquetFile(path, caller="data") for path in paths]
    first = files[0]
    image, label = _column(first, "images", columns.image), _column(first, "targets", columns.label)
    if image is None:
        expected, got = " or ".join(_TABLE_SPELLINGS["images"]), ", ".join(first.names) or "no columns"
        raise fail("data", f"{first.path} must have a column of images, {expected}, got {got}.")
    if sum(path.stat().st_size for path in paths) > IN_MEMORY_PARQUET_BYTES:
        with needs("datasets", extra="data", caller="data"):
            import datasets

        table = datasets.load_dataset("parquet", data_files=[f"{path}" for path in paths], split="train")
        return _from_table(table, Columns(image, label), paths[0].parent.name, format="parquet")
    contents: list[bytes] = []
    names: list[str] = []
    labels: list[np.ndarray] = []
    for file in files:
        held = file.encoded_images(image)
        contents += held
        names += [f"{file.path.name}[{row}]" for row in range(len(held))]
        if label is not None:
            labels.append(_load_array(file, label) if held else np.zeros(0, np.int64))
    found = without_labels(EncodedImages(contents, names), format="parquet")
    if label is None:
        return found
    return found._replace(labels=np.concatenate(labels), class_names=class_names_in(first.metadata, label))


_READERS: dict[str, Callable[[Sequence[Path], Columns], LabelledImages]] = {
    "npz": _read_npz,
    "parquet": _read_parquet,
}
ARRAY_SUFFIXES = (*(f".{format}" for format in _READERS), ".npy")
"""Files of many images; a .npy file, which has no labels, is read by `read_file` alone."""


def _column(file: ArrayFile, role: Literal["images", "targets"], given: str | None) -> str | None:
    """The array or column of a role; in a table the first spelling counts, in an archive the only one."""
    spellings = _TABLE_SPELLINGS[role] if file.is_table else SPELLINGS[role]
    name = given if given in file.names else None
    field = file.find(role, spellings, name=name, first=file.is_table)
    return None if field is None else field.name


def _load_array(file: ArrayFile, name: str) -> np.ndarray:
    values = file.load((name,))
    return np.array(values, np.str_) if isinstance(values, list) else values.numpy()


def _load_pixels(file: ArrayFile, name: str) -> np.ndarray:
    """(N, H, W, C); channels that come second go last where that is unambiguous."""
    pixels = _load_array(file, name)
    if pixels.ndim == 3:
        pixels = pixels[..., None]
    if pixels.ndim == 4 and pixels.shape[3] not in (1, 3) and pixels.shape[1] in (1, 3):
        pixels = pixels.transpose(0, 2, 3, 1)
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[3] not in (1, 3) or 0 in pixels.shape[1:]:
        expected = "images as uint8 of shape (N, H, W), (N, H, W, 1) or (N, H, W, 3)"
        raise fail("data", f"{file.path} must hold {expected}, got {pixels.dtype} of shape {pixels.shape}.")
    return np.ascontiguousarray(pixels)


def class_names_in(metadata: Mapping[bytes, bytes], label: str) -> tuple[str, ...] | None:
    """From the description that Hugging Face writes into its Parquet files, where it is well-formed."""
    try:
        names = json.loads(metadata[b"huggingface"])["info"]["features"][label]["names"]
    except (KeyError, ValueError, TypeError):
        return None
    if isinstance(names, list) and names and all(isinstance(name, str) for name in names):
        return tuple(names)
    return None


# The hub.


def read_hub(path: str, config: str | None, split: str, columns: Columns, *, name: str) -> LabelledImages:
    """One split of a dataset on the hub, or in the local cache. No code of the dataset is run."""
    table = hub_table(path, config, split, name=name)
    return _from_table(table, columns, f"{name}/{split}", format="hub")


def hub_table(path: str, config: str | None, split: str | None, *, name: str) -> Any:
    """A split of a dataset on the hub as `datasets` gives it; all splits by their names if none is given."""
    with needs("datasets", extra="data", caller=f"data {name}"):
        import datasets

    log = logging.getLogger("huggingface_hub")
    level = log.level
    log.setLevel(logging.ERROR)  # it warns of every attempt; the outcome is reported once
    try:
        return datasets.load_dataset(path, config, split=split)
    except Exception as error:  # of the network, the hub, the cache or the disk
        remedy = "go online, sign in if it is gated, or give its directory on this machine (--data-dir)"
        got = f"cannot load {name} ({reason_of(error, limit=160)})"
        raise fail("data", f"`name` must be downloadable or cached, {got}; {remedy}.") from error
    finally:
        log.setLevel(level)


def _from_table(table: Any, columns: Columns, origin: str, *, format: str) -> LabelledImages:
    """A table of `datasets` with its labels and class names."""
    import datasets

    for column in columns:
        if column is not None and column not in table.column_names:
            got = ", ".join(table.column_names)
            raise fail("data", f"{origin} must have a column {column}, got {got}.")
    image = columns.image or "image"
    if not isinstance(table.features[image], datasets.Image):
        table = table.cast_column(image, datasets.Image())
    images = HubImages(table.cast_column(image, datasets.Image(decode=False)), image, origin)
    if columns.label is None:
        return without_labels(images, format=format)
    names = getattr(table.features[columns.label], "names", None)
    labels = np.array(table[columns.label][:])
    return LabelledImages(images, labels, tuple(names) if names else None, format)


# Folders.


def _own_folder(directory: Path, name: str) -> Path:
    """The folder of a named dataset: the one of its name, or a directory without those of other datasets."""
    if not name:
        return directory
    if (directory / name).is_dir():
        return directory / name
    others = sorted(folder.name for folder in directory.iterdir() if folder.name in DATASETS)
    if others:
        got = f"{', '.join(others)} in {directory}"
        raise fail("data", f"`directory` must hold {name} in files or a folder of that name, got {got}.")
    return directory


def _part_folders(directory: Path) -> dict[str, Path]:
    """Folders called train, validation (or val) and test, or a single one called all."""
    folders = _folders(directory)
    if [folder.name for folder in folders] == ["all"]:
        return {"all": folders[0]}
    parts = {word: part for part in ("train", "validation", "test") for word in _PART_WORDS[part]}
    del parts["dev"]  # may be a class name
    found: dict[str, Path] = {}
    for folder in folders:
        part = parts.get(folder.name.lower())
        if part in found:
            got = f"{found[part].name} and {folder.name}"
            raise fail("data", f"`directory` must hold one folder for each part, got {got} in {directory}.")
        if part is not None:
            found[part] = folder
    return {part: found[part] for part in ("train", "validation", "test") if part in found}


def _labelled_folder(directory: Path, classes: tuple[str, ...]) -> LabelledImages:
    own = [folder.name for folder in _folders(directory)]
    unknown = sorted(set(own) - set(classes))
    if unknown:
        raise fail("data", f"every class must be one to train on, got {unknown[0]!r} in {directory} only.")
    names, labels = [], []
    for label, name in enumerate(classes):
        images = _image_names(directory / name) if name in own else []
        names += [f"{name}/{image}" for image in images]
        labels += [label] * len(images)
    if not names:
        raise fail("data", f"`directory` must hold images, got none in the folders of {directory}.")
    return LabelledImages(FileImages(directory, names), np.array(labels, np.int64), classes, "folder")


def images_below(directory: Path) -> Images:
    """Every image below a directory, in the order of the paths."""
    names = _image_names(directory)
    if not names:
        raise fail("data", f"`directory` must hold images, got {_contents(directory)} in {directory}.")
    return FileImages(directory, names)


def _image_names(directory: Path) -> list[str]:
    found = []
    for place, folders, files in os.walk(directory):
        folders[:] = [folder for folder in folders if not folder.startswith((".", "__"))]
        here = os.path.relpath(place, directory)
        images = [file for file in files if not file.startswith(".") and file.lower().endswith(SUFFIXES)]
        found += images if here == "." else [f"{here}/{image}" for image in images]
    return sorted(found)


def _folders(directory: Path) -> list[Path]:
    """In the order of their names, without hidden ones and those that archives leave behind."""
    inside = sorted(directory.iterdir(), key=lambda path: path.name)
    return [path for path in inside if not path.name.startswith((".", "__")) and path.is_dir()]


def _contents(directory: Path) -> str:
    held = sorted(path.name for path in directory.iterdir())
    more = f" and {len(held) - 1} more" if len(held) > 1 else ""
    return f"{held[0]}{more}" if held else "nothing"
