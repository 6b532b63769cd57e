"""Data: images and labels as tensors, one file for each source.

A new dataset is an object with `habits` and `find` (see `beliefmatch.data.found.Known`) and a line in
`DATASETS`. The table holds addresses rather than objects so that listing the datasets imports none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from beliefmatch.data.config import DataConfig
    from beliefmatch.data.parts import Parts, ValidationFrom
    from beliefmatch.data.source import Dataset, Source

__all__ = ["DATASETS", "load", "load_ood", "load_parts"]

DATASETS = {
    "digits": "beliefmatch.data.embedded:DIGITS",
    "cifar10": "beliefmatch.data.named:CIFAR10",
    "cifar100": "beliefmatch.data.named:CIFAR100",
    "svhn": "beliefmatch.data.named:SVHN",
    "mnist": "beliefmatch.data.named:MNIST",
    "fashion_mnist": "beliefmatch.data.named:FASHION_MNIST",
    "food101": "beliefmatch.data.named:FOOD101",
    "stanford_cars": "beliefmatch.data.named:STANFORD_CARS",
    "imagenet-1k": "beliefmatch.data.named:IMAGENET",
}


def load(settings: DataConfig) -> Dataset:
    """Read images by name, or from a path, and divide them.

    Raises:
        ValueError: in one line, for data that are not there, cannot be read or cannot be divided.
    """
    from beliefmatch.data.loading import load

    return load(settings)


def load_parts(settings: DataConfig, *, validation_from: ValidationFrom = "train") -> Parts:
    """Read images by name, or from a path, as whole parts in the order of their files, with their division.

    Args:
        settings: which images; `load` of the same settings has the same images for the same purposes.
        validation_from: "train", as in `load`. "test" is for networks that were trained on the train part, to
            which nothing in it is new: half of the images to report on, in class proportion and by the split
            seed, then serve for choosing and the other half for reporting, and all of the train part for
            fitting. Neither `validation` nor a validation part that is there is used then.

    Raises:
        ValueError: in one line, for data that are not there, cannot be read or cannot be divided.
    """
    from beliefmatch.data.loading import load_parts

    return load_parts(settings, validation_from=validation_from)


def load_ood(
    text: str, like: Dataset, *, directory: str | None = None, corrupt: str = "stop", workers: int = 2
) -> tuple[str, Source]:
    """Images that are none of the home set's classes, made to look like its inputs; their targets are -1.

    Args:
        text: "noise"; for digits also "rotations" and "patches"; a name of `DATASETS`, of which the test
            images are taken; a path to images; or `name=path`.
        like: the home set, whose size, channels and preprocessing they take.
        directory: where a named dataset lies on this machine; from the hub if not given.
        corrupt: what becomes of images that cannot be read, "stop" or "skip".
        workers: processes that read large images.

    Returns:
        What to call them, and the images.
    """
    from beliefmatch.data.ood import load_ood

    return load_ood(text, like, directory=directory, corrupt=corrupt, workers=workers)
