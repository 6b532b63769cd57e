"""Which files belong to which model, and what the models are called."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from beliefmatch.experiments.evaluation_settings import ModelFiles

__all__ = ["file_names", "plan", "shown"]

_MISTAKES = "misclassification"  # what tables call the set of wrong predictions
_LONGEST = 80  # characters of a file's name, without its ending


def plan(files: Sequence[str], *, names: Sequence[str], ood: Sequence[str]) -> list[ModelFiles]:
    """Give every model its name and its own predictions for each foreign set."""
    if names and len(names) != len(files):
        raise ValueError(f"evaluate: `name` must be given {len(files)} times, once a file, got {len(names)}.")
    paths = [Path(file) for file in files]
    sets = _sets(ood, len(files))
    return [
        ModelFiles(name, path, {title: found[index] for title, found in sets.items()})
        for index, (name, path) in enumerate(zip(names_of(paths, names), paths, strict=True))
    ]


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
    names = list(given) or [path.stem for path in paths]
    if not given:
        alike = [names.count(name) > 1 for name in names]
        names = [
            f"{path.absolute().parent.name}/{name}" if twice else name
            for name, path, twice in zip(names, paths, alike, strict=True)
        ]
    return _numbered([shown(name).strip() or "model" for name in names], " ({})")


def file_names(names: Sequence[str]) -> list[str]:
    """For each name one that any file system takes; two that differ in case only count as the same."""
    safe = [re.sub(r"[^\w.-]+", "_", name).strip("._")[:_LONGEST] or "model" for name in names]
    return _numbered(safe, "_{}")


def _numbered(names: Sequence[str], pattern: str) -> list[str]:
    """Each name once; a later one that is taken already gets a number."""
    made: list[str] = []
    taken: set[str] = set()
    for name in names:
        unique, number = name, 1
        while unique.casefold() in taken:
            number += 1
            unique = name + pattern.format(number)
        taken.add(unique.casefold())
        made.append(unique)
    return made


def shown(text: object) -> str:
    """Text of files without what a terminal would take for commands."""
    return "".join(sign if sign.isprintable() else "\ufffd" for sign in f"{text}")
