"""Named datasets: where they are, and their default preprocessing; read without torch and numpy.

A new dataset is one entry of `DATASETS`: a `HubDataset`, or a `FunctionDataset` with a function in a file of
its own. Both are called with `read(config, only=part)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, NamedTuple

from beliefmatch.data.preprocessing import Augment

if TYPE_CHECKING:
    from beliefmatch.data.config import DataConfig
    from beliefmatch.data.raw import LabelledImages

__all__ = [
    "DATASETS",
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "Columns",
    "DatasetDefaults",
    "FunctionDataset",
    "HubDataset",
]

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class DatasetDefaults:
    """What applies to a dataset unless the configuration overrides it; None where nothing is known."""

    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    augment: Augment | None = None
    size: int | None = None
    class_names: tuple[str, ...] | None = None


class Columns(NamedTuple):
    """The names of a table's columns; None for any of the default spellings."""

    image: str | None = None
    label: str | None = None


_DEFAULT_COLUMNS = Columns("image", "label")


@dataclass(frozen=True)
class HubDataset:
    """A dataset on the hub of Hugging Face, or in a directory on this machine.

    Args:
        hub: its address on the hub.
        defaults: its default preprocessing and class names.
        config: its variant on the hub.
        test_part: the split to report on; the other is "train".
        columns: of images and labels.
    """

    hub: str
    defaults: DatasetDefaults
    config: str | None = None
    test_part: str = "test"
    columns: Columns = _DEFAULT_COLUMNS

    def read(self, config: DataConfig, *, only: str | None = None) -> dict[str, LabelledImages]:
        """All parts, or one of them alone: from the directory if one is configured, else from the hub."""
        from beliefmatch.data.raw import join_classes, read_hub, read_parts_at

        name = config.name
        if config.directory is not None:
            place = Path(config.directory).expanduser()
            return read_parts_at(place, name=name, only=only, test_part=self.test_part, columns=self.columns)
        splits = {"train": "train", "test": self.test_part}
        parts = {
            part: read_hub(self.hub, self.config, split, self.columns, name=name)
            for part, split in splits.items()
            if only in (None, part)
        }
        return join_classes(parts)


@dataclass(frozen=True)
class FunctionDataset:
    """A dataset that a function returns.

    Args:
        function: address of the function, which takes a `DataConfig` and returns `LabelledImages` by part.
        defaults: its default preprocessing and class names.
    """

    function: str
    defaults: DatasetDefaults

    def read(self, config: DataConfig, *, only: str | None = None) -> dict[str, LabelledImages]:
        """All parts, or one of them alone; the function is imported only now."""
        parts = resolve_name(self.function)(config)
        return {part: found for part, found in parts.items() if only in (None, part)}


_DIGITS = tuple("0123456789")
_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_PHOTOGRAPHS = DatasetDefaults(IMAGENET_MEAN, IMAGENET_STD, "crop_flip", size=224)

DATASETS: dict[str, FunctionDataset | HubDataset] = {
    "digits": FunctionDataset(
        "beliefmatch.data.digits:digits_parts",
        DatasetDefaults((0.0,), (240 / 255,), "none", class_names=_DIGITS),
    ),
    "cifar10": HubDataset(
        "uoft-cs/cifar10",
        DatasetDefaults(
            (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), "crop_flip", class_names=_CIFAR10
        ),
        columns=Columns("img", "label"),
    ),
    "cifar100": HubDataset(
        "uoft-cs/cifar100",
        DatasetDefaults((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762), "crop_flip"),
        columns=Columns("img", "fine_label"),
    ),
    "svhn": HubDataset(
        "ufldl-stanford/svhn",
        DatasetDefaults((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970), "crop", class_names=_DIGITS),
        config="cropped_digits",
    ),
    "mnist": HubDataset("ylecun/mnist", DatasetDefaults((0.1307,), (0.3081,), "crop", class_names=_DIGITS)),
    "fashion_mnist": HubDataset(
        "zalando-datasets/fashion_mnist", DatasetDefaults((0.2860,), (0.3530,), "crop_flip")
    ),
    "food101": HubDataset("ethz/food101", _PHOTOGRAPHS, test_part="validation"),
    "stanford_cars": HubDataset("tanganke/stanford_cars", _PHOTOGRAPHS),
    "imagenet-1k": HubDataset("ILSVRC/imagenet-1k", _PHOTOGRAPHS, test_part="validation"),
}
