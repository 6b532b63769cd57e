"""The forms in which images lie on a disk: arrays in .npz, rows in .parquet, files in folders."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TypeVar

from beliefmatch._validate import fail
from beliefmatch.data import DATASETS
from beliefmatch.data.decode import SUFFIXES
from beliefmatch.data.forms.raw import Columns, Raw, joined
from beliefmatch.data.found import Found

__all__ = ["find_at", "find_unlabelled", "holds", "part_of", "read_file"]

_FILES = {".npz": "npz", ".parquet": "parquet"}
_WORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing"),
    "all": ("all",),
}
_USUAL = Columns()

Thing = TypeVar("Thing")


def find_at(
    path: Path,
    *,
    name: str = "",
    only: str | None = None,
    reports: str = "test",
    columns: Columns = _USUAL,
) -> Found:
    """The images at a path with their labels, by part where there are several.

    Args:
        path: a .npz or .parquet file, which is divided later; or a directory that holds such files, or
            folders of images.
        name: of the dataset: files whose names begin with it go before others, which are left alone.
        only: the part to read if not all.
        reports: the part that is there to report on.
        columns: what the columns of Parquet files are called, where not as usual.
    """
    if path.is_file():
        return joined(_form_of(path), {"all": read_file(path, columns)})
    if not path.is_dir():
        raise fail("data", f"`directory` must be a directory or a file, got nothing at {path}.")
    form, files = _files_in(path, name)
    if not files:
        from beliefmatch.data.forms.folder import class_folders

        place = _own_folder(path, name)
        return joined("folder", class_folders(place, lambda found: _chosen(found, only, reports)))
    by_part = _chosen(_by_part(files, path), only, reports)
    read: Callable[[Sequence[Path], Columns], Raw] = _reader(form)
    return joined(form, {part: read(some, columns) for part, some in by_part.items()})


def find_unlabelled(path: Path, *, name: str = "") -> Raw:
    """The images at a path, whatever their labels; of a directory with parts, those to report on.

    Files whose names begin with `name` go before others.
    """
    if path.is_file():
        return read_file(path)
    form, files = _files_in(path, name)
    if not files and name:
        form, files = _files_in(path, "")
    if files:
        by_part = _chosen(_by_part(files, path), "test", "test")
        return _reader(form)(next(iter(by_part.values())), _USUAL)
    from beliefmatch.data.forms.folder import all_images, part_folders

    parts = _chosen(part_folders(path), "test", "test")
    return all_images(next(iter(parts.values()), path))


def holds(directory: Path, name: str) -> bool:
    """Whether a dataset lies in a directory by its name, as a folder or in files that begin with it."""
    if directory.name == name or (directory / name).is_dir():
        return True
    places = [place for place in (directory, directory / "data") if place.is_dir()]
    return any(_begins_with(name, file) for place in places for file in place.iterdir() if file.is_file())


def read_file(path: Path, columns: Columns = _USUAL) -> Raw:
    """One file of images, or one image."""
    suffix = path.suffix.lower()
    if suffix in SUFFIXES:
        from beliefmatch.data.pictures import Files

        return Raw(Files(path.parent, [path.name]))
    if suffix == ".npy":
        from beliefmatch.data.forms.npz import read_npy

        return read_npy(path)
    return _reader(_form_of(path))([path], columns)


def part_of(stem: str) -> str | None:
    """The part that a name speaks of, if it is one: `cifar10_train` and `train-00000-of-00002` do.

    >>> part_of("svhn_test10k"), part_of("val"), part_of("pretrained")
    ('test', 'validation', None)
    """
    words = set(re.split(r"[^a-z]+", stem.lower()))
    named = [part for part, spellings in _WORDS.items() if words & set(spellings)]
    return named[0] if len(named) == 1 else None


def _form_of(path: Path) -> str:
    if path.suffix.lower() not in _FILES:
        expected = f"a directory, or a file that ends in {' or '.join(_FILES)}"
        raise fail("data", f"`name` must be {expected}, got {path}; pickles are not read.")
    return _FILES[path.suffix.lower()]


def _reader(form: str) -> Callable[[Sequence[Path], Columns], Raw]:
    return import_module(f"{__name__}.{form}").read


def _files_in(directory: Path, name: str) -> tuple[str, list[Path]]:
    """Files of one form, here or one level down in `data` or in a folder of the dataset's name."""
    for place in (directory, directory / name, directory / "data"):
        held = sorted(file for file in place.iterdir() if file.is_file()) if place.is_dir() else []
        by_form = {
            form: [file for file in held if file.suffix.lower() == end] for end, form in _FILES.items()
        }
        by_form = {form: mine for form, files in by_form.items() if (mine := _of_dataset(files, name))}
        if len(by_form) > 1:
            expected = "images in one form, or a dataset in a directory of its own"
            raise fail("data", f"`directory` must hold {expected}, got .npz and .parquet files in {place}.")
        for form, files in by_form.items():
            return form, files
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


def _own_folder(directory: Path, name: str) -> Path:
    """Of a dataset that has a name: the folder that is called so, or a directory without those of others."""
    if not name:
        return directory
    if (directory / name).is_dir():
        return directory / name
    others = sorted(folder.name for folder in directory.iterdir() if folder.name in DATASETS)
    if others:
        got = f"{', '.join(others)} in {directory}"
        raise fail("data", f"`directory` must hold {name} in files or a folder of that name, got {got}.")
    return directory


def _by_part(files: Sequence[Path], place: Path) -> dict[str, list[Path]]:
    if len(files) == 1 and part_of(files[0].stem) is None:
        return {"all": list(files)}
    by_part: dict[str, list[Path]] = {}
    for file in files:
        part = part_of(file.stem)
        if part is None:
            expected = "files whose names say train, validation or test, or one file"
            raise fail("data", f"`directory` must hold {expected}, got {file.name} among others in {place}.")
        by_part.setdefault(part, []).append(file)
    return {part: by_part[part] for part in _WORDS if part in by_part}


def _chosen(parts: Mapping[str, Thing], only: str | None, reports: str) -> dict[str, Thing]:
    """The parts that are wanted, the one to report on under the name "test"."""
    parts = dict(parts)
    if reports != "test" and reports in parts:
        parts["test"] = parts.pop(reports)
    if only is None:
        return parts
    choice = next((part for part in (only, "validation", "all", "train") if part in parts), None)
    return {} if choice is None else {only: parts[choice]}
