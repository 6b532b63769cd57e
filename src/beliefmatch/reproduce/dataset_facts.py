"""What is known of the datasets of the paper without reading them."""

from typing import NamedTuple

__all__ = ["DATASET_FACTS", "DatasetFacts"]


class DatasetFacts(NamedTuple):
    """Title and size of a complete dataset."""

    title: str
    classes: int
    test_images: int
    train_images: int | None = None
    """Images of the training part, before validation images are taken; None where no run is trained on it."""


DATASET_FACTS = {
    "cifar10": DatasetFacts("CIFAR-10", 10, 10_000, 50_000),
    "cifar100": DatasetFacts("CIFAR-100", 100, 10_000, 50_000),
    "digits": DatasetFacts("digits", 10, 540, 1257),
    "food101": DatasetFacts("Food-101", 101, 25_250),
    "imagenet-1k": DatasetFacts("ImageNet", 1000, 50_000, 1_281_167),
    "stanford_cars": DatasetFacts("Cars", 196, 8041),
    "svhn": DatasetFacts("SVHN", 10, 26_032),
}
