"""Which files belong to which model, and what the models are called."""

import os
from collections.abc import Sequence
from pathlib import Path

from beliefmatch._files import file_names, numbered
from beliefmatch.experiments.evaluation_settings import ModelFiles
from beliefmatch.experiments.run_dir import RunDirectory

__all__ = ["class_names_of", "config", "file_names", "shown"]

_MISTAKES = "misclassification"  # what tables call the set of wrong predictions


def config(files: Sequence[str], *, names: Sequence[str], ood: Sequence[str]) -> list[ModelFiles]:
    """Give every model its name and its own predictions for each OOD set."""
    if names and len(names) != len(files):
        raise ValueError(f"evaluate: `name` must be given {len(files)} times, once a file, got {len(names)}.")
    paths = [Path(file) for file in files]
    sets = _sets(ood, len(files))
    places = [_predictions(path) for path in paths]
    return [
        ModelFiles(name, path, own | {title: found[index] for title, found in sets.items()})
        for index, (name, (path, own)) in enumerate(zip(names_of(paths, names), places, strict=True))
    ]


def class_names_of(files: Sequence[str]) -> str | None:
    """The file of the classes' names, where the first of the models is the directory of a run."""
    file = RunDirectory(Path(files[0])).classes_file
    return f"{file}" if Path(files[0]).is_dir() and file.is_file() else None


def _predictions(path: Path) -> tuple[Path, dict[str, Path]]:
    """A file itself, or what a run has kept: its predictions of the test set and of OOD ones."""
    if not path.is_dir():
        return path, {}
    home = RunDirectory(path)
    return home.predictions("test"), home.ood_predictions(home.ood_names())


def _sets(ood: Sequence[str], models: int) -> dict[str, list[Path]]:
    sets: dict[str, list[Path]] = {}
    for text in ood:
        title, equals, files = text.partition("=")
        title = shown(title).strip()
        if not equals or not title or not files.strip():
            raise ValueError(f"evaluate: `ood` must be SET=FILE, such as svhn=svhn.npz, got {text!r}.")
        if title.casefold() == _MISTAKES:
            raise ValueError(
                f"evaluate: `ood` must not call a set {title!r}, which stands for wrong predictions."
            )
        if title in sets:
            raise ValueError(f"evaluate: `ood` must name each set once, got {title!r} twice.")
        found = _files(files, models)
        if len(found) != models:
            expected = f"one file for each of the {models} models, with commas between"
            expected = expected if models > 1 else "one file, as there is one model"
            raise ValueError(f"evaluate: `ood` must give {expected}, got {len(found)} for {title!r}.")
        sets[title] = found
    return sets


def _files(text: str, models: int) -> list[Path]:
    """Files with commas between; with one model a comma may be part of its file's name."""
    found = [Path(file.strip()) for file in text.split(",")]
    is_one = models == 1 and (os.path.exists(text) or not any(map(os.path.exists, found)))
    return [Path(text)] if is_one else found


def names_of(paths: Sequence[Path], given: Sequence[str]) -> list[str]:
    """Names as given or as the files', with the directory's where files are called alike, none twice."""
    names = list(given) or [path.name if path.is_dir() else path.stem for path in paths]
    if not given:
        alike = [names.count(name) > 1 for name in names]
        names = [
            f"{path.absolute().parent.name}/{name}" if twice else name
            for name, path, twice in zip(names, paths, alike, strict=True)
        ]
    return numbered([shown(name).strip() or "model" for name in names], " ({})")


def shown(text: object) -> str:
    """Text of files without what a terminal would take for commands."""
    return "".join(sign if sign.isprintable() else "\ufffd" for sign in f"{text}")
