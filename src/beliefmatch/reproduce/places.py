"""Where the data of a reproduction lie, and what to get where they do not."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from beliefmatch._files import one_line
from beliefmatch.data import DATASETS
from beliefmatch.data.config import DataConfig
from beliefmatch.experiments.config import RunConfig
from beliefmatch.reproduce.transfer_config import TransferConfig

Planned = TypeVar("Planned", RunConfig, TransferConfig)

__all__ = [
    "CLASSES",
    "MissingDataError",
    "anywhere",
    "missing_data",
    "needed",
    "other_images",
    "require_classes",
    "require_named",
    "with_data_dir",
]

CLASSES = {"cifar10": 10, "cifar100": 100, "food101": 101, "stanford_cars": 196}
_MISSING = re.compile(r"(data|load_ood): `(name|directory|text)`")
"""Begins an error about where the data lie, and not about what they are or another setting of them."""


class MissingDataError(ValueError):
    """Sets that a reproduction needs are not there."""


def with_data_dir(config: Planned, directory: str) -> Planned:
    """The configuration with its data in a directory, where known and OOD sets are looked for by name."""
    return replace(config, data=replace(config.data, directory=directory))


def anywhere(config: Planned) -> Planned:
    """The configuration without where data lie on this machine."""
    ood = tuple(name.partition("=")[0] for name in config.ood)
    return replace(config, data=replace(config.data, directory=None), ood=ood)


def needed(configs: Sequence[RunConfig | TransferConfig]) -> list[str]:
    """Names of the sets that configurations read and that are not embedded."""
    names = [name for config in configs for name in (config.data.name, *config.ood)]
    named = [name.partition("=")[0] for name in names]
    return [name for name in dict.fromkeys(named) if name in DATASETS and name != "digits"]


def require_named(what: str, configs: Sequence[RunConfig | TransferConfig], directory: str) -> None:
    """Several sets must lie in a directory by their names, so that none stands for another."""
    root, names = Path(directory).expanduser(), needed(configs)
    if len(names) < 2 or not root.exists():
        return
    if not root.is_dir():
        raise MissingDataError(
            f"reproduce: `data_dir` must be a directory with {_listed(names)}, got a file."
        )
    there = [entry.name for entry in root.iterdir()]
    gone = [name for name in names if not any(_is_of(name, entry) for entry in there)]
    if gone:
        raise MissingDataError(
            f"reproduce: `data_dir` must hold {_listed(names)} by their names for {what} (NAME_test and, "
            f"to train on, NAME_train as .npz or Parquet, or a folder NAME, see docs/data.md); there is no "
            f"{' and no '.join(gone)} in {root}."
        )


def _is_of(name: str, entry: str) -> bool:
    return entry == name or entry.startswith((f"{name}_", f"{name}-", f"{name}."))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + f" and {names[-1]}"


def require_classes(name: str, count: int, *, scale: str) -> None:
    """A set that tables are named by must have its classes; in small, any folder may stand for ImageNet."""
    classes = CLASSES | ({"imagenet-1k": 1000} if scale == "paper" else {})
    if count != classes.get(name, count):
        raise ValueError(
            f"reproduce: `data_dir` must hold {name} with its {classes[name]} classes, got {count} classes."
        )


def other_images(home: Path, name: str, data: DataConfig) -> str:
    """What to say of a finished run whose images are not those that are there now.

    Args:
        home: of the run.
        name: of the set, a known or an OOD one.
        data: where it lies.
    """
    return (
        f"reproduce: `out` must be new for other images: {home} was made of other ones than {name} in "
        f"{data.directory or 'the hub'} has now. Choose another directory, or remove that one."
    )


@contextmanager
def missing_data(
    what: str, configs: Sequence[RunConfig | TransferConfig], directory: str | None
) -> Iterator[None]:
    """An error about data inside the block also says which sets there have to be, and where."""
    try:
        yield
    except (ValueError, OSError) as error:
        names = needed(configs)
        if not names or (isinstance(error, ValueError) and not _MISSING.match(f"{error}")):
            raise
        place = (
            "be given, or the hub be in reach" if directory is None else f"be where they lie, got {directory}"
        )
        raise MissingDataError(
            f"reproduce: `data_dir` must {place}; {what} needs {', '.join(names)} "
            f"(NAME_train and NAME_test as .npz or Parquet, or folders, see docs/data.md): "
            f"{one_line(error)}."
        ) from error
