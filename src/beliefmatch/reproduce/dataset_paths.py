"""Where the datasets of a reproduction are, and errors that say which ones are missing."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from beliefmatch._errors import ArgumentError, fail
from beliefmatch._files import EnvironmentFailure
from beliefmatch._utils import reason_of
from beliefmatch.data import DATASETS
from beliefmatch.data.config import name_of_set
from beliefmatch.experiments.config import RunConfig
from beliefmatch.reproduce.config import TransferConfig
from beliefmatch.reproduce.dataset_facts import DATASET_FACTS

__all__ = [
    "MissingDataError", "changed_images", "explain_missing_data", "require_classes",
    "require_datasets", "required_datasets", "with_data_dir", "without_paths",
]  # fmt: skip

AnyConfig = TypeVar("AnyConfig", RunConfig, TransferConfig)

_PLACES = {
    "data": ("name", "directory", "text"),
    "load_ood": ("name", "directory", "text", "ood", "ood_training"),
    "adapt": ("data", "data_dir", "ood"),
}
"""Arguments that say where data are, as opposed to what they hold or to another setting, by function."""


class MissingDataError(ArgumentError):
    """Datasets that a reproduction needs are missing."""


def with_data_dir(config: AnyConfig, directory: str | None) -> AnyConfig:
    """The configuration with its datasets and OOD sets in a directory, where they are found by name."""
    return config if directory is None else replace(config, data=replace(config.data, directory=directory))


def without_paths(config: AnyConfig) -> AnyConfig:
    """The configuration without the paths of data on this machine."""
    ood = tuple(name_of_set(name) for name in config.ood)
    return replace(config, data=replace(config.data, directory=None), ood=ood)


def required_datasets(configs: Sequence[RunConfig | TransferConfig]) -> list[str]:
    """Names of the datasets that configurations read and that are not embedded."""
    names = [name_of_set(name) for config in configs for name in (config.data.name, *config.ood)]
    return [name for name in dict.fromkeys(names) if name in DATASETS and name != "digits"]


def require_datasets(name: str, configs: Sequence[RunConfig | TransferConfig], directory: str | None) -> None:
    """Several datasets must be in the directory by their names, so that none is read for another."""
    names = required_datasets(configs)
    root = None if directory is None else Path(directory).expanduser()
    if root is None or len(names) < 2 or not root.exists():
        return
    listed = f"{', '.join(names[:-1])} and {names[-1]}"
    if not root.is_dir():
        raise MissingDataError("reproduce", "data_dir", f"must be a directory with {listed}, got a file.")
    entries = [entry.name for entry in root.iterdir()]
    found = [one for one in names if any(re.match(rf"{re.escape(one)}([_.-]|$)", entry) for entry in entries)]
    missing = [one for one in names if one not in found]
    if missing:
        raise MissingDataError(
            "reproduce",
            "data_dir",
            f"must hold {listed} by their names for {name} (NAME_test and, "
            f"to train on, NAME_train as .npz or Parquet, or a folder NAME, see docs/data.md); there is no "
            f"{' and no '.join(missing)} in {root}.",
        )


def require_classes(name: str, count: int, *, scale: str) -> None:
    """A dataset must have its classes; at the smaller scales any folder may stand for ImageNet."""
    facts = DATASET_FACTS.get(name)
    may_be_partial = name == "imagenet-1k" and scale != "paper"
    if facts is not None and count != facts.classes and not may_be_partial:
        raise fail(
            "reproduce", f"`data_dir` must hold {name} with its {facts.classes} classes, got {count} classes."
        )


def changed_images(run_dir: Path, name: str, directory: str | None) -> EnvironmentFailure:
    """The error for a finished run of other images than the dataset has now."""
    return fail(
        "reproduce",
        f"`out` must be new for other images: {run_dir} was trained on other images "
        f"than {name} in {directory or 'the hub'} has now. Choose another directory, or remove that one.",
        EnvironmentFailure,
    )


@contextmanager
def explain_missing_data(
    name: str, configs: Sequence[RunConfig | TransferConfig], directory: str | None
) -> Iterator[None]:
    """An error about data inside the block also says which datasets are needed, and where."""
    try:
        yield
    except (ValueError, OSError) as error:
        names = required_datasets(configs)
        if not names or (isinstance(error, ValueError) and not _is_about_a_place(error)):
            raise
        expected = (
            "be given, or the hub must be reachable" if directory is None else f"hold them, got {directory}"
        )
        raise MissingDataError(
            "reproduce",
            "data_dir",
            f"must {expected}; {name} needs {', '.join(names)} "
            f"(NAME_train and NAME_test as .npz or Parquet, or folders, see docs/data.md): "
            f"{reason_of(error)}.",
        ) from error


def _is_about_a_place(error: ValueError) -> bool:
    return isinstance(error, ArgumentError) and error.argument in _PLACES.get(error.function, ())
