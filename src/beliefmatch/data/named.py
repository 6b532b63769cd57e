"""Datasets that have a name: where the hub keeps them, and what is usual for them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from beliefmatch.data.forms import find_at
from beliefmatch.data.forms.raw import Columns, joined
from beliefmatch.data.found import Found, Habits

if TYPE_CHECKING:
    from beliefmatch.data.config import DataConfig

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "FASHION_MNIST",
    "FOOD101",
    "IMAGENET",
    "MNIST",
    "STANFORD_CARS",
    "SVHN",
    "Named",
]

_PHOTOGRAPHS = Habits((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), "crop_flip", size=224)
_COLUMNS = Columns("image", "label")
_DIGITS = tuple("0123456789")
_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@dataclass(frozen=True)
class Named:
    """A dataset on the hub of Hugging Face, or in a directory of the user's.

    Args:
        name: in `DATASETS`, and at the beginning of files that hold it.
        hub: its address there.
        habits: what is usual for it.
        config: its variant there.
        reports: the split to report on; the other is "train".
        columns: of images and labels.
    """

    name: str
    hub: str
    habits: Habits
    config: str | None = None
    reports: str = "test"
    columns: Columns = _COLUMNS

    def find(self, settings: DataConfig, *, only: str | None = None) -> Found:
        """From the directory if there is one, else from the hub."""
        if settings.directory is not None:
            place = Path(settings.directory).expanduser()
            return find_at(place, name=self.name, only=only, reports=self.reports, columns=self.columns)
        from beliefmatch.data.forms.hub import read_hub

        splits = {"train": "train", "test": self.reports}
        parts = {
            part: read_hub(self.hub, self.config, split, self.columns, name=self.name)
            for part, split in splits.items()
            if only in (None, part)
        }
        return joined("hub", parts)


CIFAR10 = Named(
    "cifar10",
    "uoft-cs/cifar10",
    Habits(
        (0.4914, 0.4822, 0.4465),
        (0.2470, 0.2435, 0.2616),
        "crop_flip",
        class_names=_CIFAR10,
    ),
    columns=Columns("img", "label"),
)
CIFAR100 = Named(
    "cifar100",
    "uoft-cs/cifar100",
    Habits((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762), "crop_flip"),
    columns=Columns("img", "fine_label"),
)
SVHN = Named(
    "svhn",
    "ufldl-stanford/svhn",
    Habits((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970), "crop", class_names=_DIGITS),
    config="cropped_digits",
)
MNIST = Named("mnist", "ylecun/mnist", Habits((0.1307,), (0.3081,), "crop", class_names=_DIGITS))
FASHION_MNIST = Named(
    "fashion_mnist", "zalando-datasets/fashion_mnist", Habits((0.2860,), (0.3530,), "crop_flip")
)
FOOD101 = Named("food101", "ethz/food101", _PHOTOGRAPHS, reports="validation")
STANFORD_CARS = Named("stanford_cars", "tanganke/stanford_cars", _PHOTOGRAPHS)
IMAGENET = Named("imagenet-1k", "ILSVRC/imagenet-1k", _PHOTOGRAPHS, reports="validation")
