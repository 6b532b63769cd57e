"""The configuration of data; read without torch."""

from typing import Annotated, Literal

from msgspec import Meta

from beliefmatch._config import Config, Count, Index, NonEmpty, NonNegative, Positive, Seed
from beliefmatch.data.preprocessing import Augment, require_channels

__all__ = ["DataConfig", "name_of_set"]


class DataConfig(Config, frozen=True, kw_only=True):
    """Which images, and how they are split, read and augmented.

    Args:
        name: "digits", which are embedded; a name of `DATASETS` such as "cifar10"; or a path to a folder of
            images, to Parquet files or to .npz files.
        directory: where a named dataset is stored on this machine; from the hub if not given.
        validation: images of the train part kept for validation: a share below 1, or a number.
        limit: largest number of training images; all if not given.
        labels: number of training images that keep their labels, equally many of each class; all if not
            given. An epoch has as many steps as it would have with all labels.
        split_seed: of the split. It stays fixed while the training's seed varies, so that no image is used
            for validation in one run and for training in another.
        augment: "crop_flip", "crop", "none", or "auto" for the dataset's default.
        shift: largest shift of small images by "crop", in pixels; an eighth of their side if not given.
        noise: standard deviation of Gaussian noise on the inputs in training, which are scaled to about
            unit variance before.
        size: side in pixels to which images are resized. If not given, all must have the same size.
        corrupt: what to do with images that cannot be read: "stop", or "skip", which counts them.
        workers: processes that read large images.
        mean: of each channel, for pixels between 0 and 1, as a pretrained network expects it; the dataset's
            default if not given. One number makes images grey, three make them coloured.
        std: of each channel, likewise.
        margin: the short side to which an image is resized, over `size`, which is then cut out of the centre;
            1 keeps all of the short side. If not given: 1 up to 64 pixels, else 256/224.
    """

    name: NonEmpty = "digits"
    directory: str | None = None
    validation: Positive = 0.2
    limit: Count | None = None
    labels: Count | None = None
    split_seed: Seed = 0
    augment: Literal["auto", Augment] = "auto"
    shift: Index | None = None
    noise: NonNegative = 0.0
    size: Count | None = None
    corrupt: Literal["stop", "skip"] = "stop"
    workers: Index = 2
    mean: tuple[float, ...] | None = None
    std: tuple[Positive, ...] | None = None
    margin: Annotated[float, Meta(ge=1)] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        mean, std = self.mean, self.std
        if mean is not None and std is not None:
            require_channels("DataConfig", mean, std)
        elif mean is not None or std is not None:
            raise ValueError(f"DataConfig: `mean` and `std` must be given together, got {mean} and {std}.")


def name_of_set(text: str) -> str:
    """Name of a dataset or OOD set that is written as a name, or as name=path.

    >>> name_of_set("svhn"), name_of_set("svhn=data/svhn.npz")
    ('svhn', 'svhn')
    """
    return text.partition("=")[0]
