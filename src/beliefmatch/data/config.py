"""What a set of data can be told; read without torch."""

from typing import Annotated, Literal

from msgspec import Meta

from beliefmatch._config import Config, Count, Index, NonEmpty, NonNegative, Positive, Seed

__all__ = ["DataConfig"]


class DataConfig(Config, frozen=True, kw_only=True):
    """Which images, and how they are divided, read and augmented.

    Args:
        name: "digits", which are embedded; a name of `DATASETS` such as "cifar10"; or a path to a folder of
            images, to Parquet files or to .npz files.
        directory: where a named dataset lies on this machine; from the hub if not given.
        validation: images of the training set kept for choosing: a share below 1, or a number.
        limit: of the training images that are left; all if not given.
        labels: of these, as many keep their labels, divided evenly among the classes; the others have none.
            All keep them if not given. An epoch has then as many steps as it would have with all labels.
        split_seed: of the division. It stays the same while the training's seed varies, so that no image
            serves for choosing in one run and for fitting in another.
        augment: "crop_flip", "crop", "none", or "auto", as usual for the dataset.
        shift: pixels that "crop" moves small images by at most; an eighth of their side if not given.
        noise: standard deviation of Gaussian noise on the inputs in training, which are scaled to about
            unit variance before.
        size: pixels on a side that images are brought to; as they are if not given, and alike.
        corrupt: what becomes of images that cannot be read: "stop", or "skip", which counts them.
        workers: processes that read large images.
        mean: of each channel, for pixels between 0 and 1, and with `std` in place of what is usual for the
            dataset: a network that was trained elsewhere expects its own. One number makes images grey, three
            make them coloured.
        std: of each channel, likewise.
        margin: the short side that an image is brought to, over `size`, which is then cut out of the middle;
            1 keeps all of the short side. As usual if not given: 1 up to 64 pixels, else 256/224.
    """

    name: NonEmpty = "digits"
    directory: str | None = None
    validation: Positive = 0.2
    limit: Count | None = None
    labels: Count | None = None
    split_seed: Seed = 0
    augment: Literal["auto", "crop_flip", "crop", "none"] = "auto"
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
        if (mean is None) != (std is None) or len(mean or ()) != len(std or ()):
            raise ValueError(
                f"DataConfig: `mean` and `std` must be given together, as many of each, got {mean} and {std}."
            )
        if mean is not None and len(mean) not in (1, 3):
            raise ValueError(f"DataConfig: `mean` must be 1 or 3 numbers, got {mean}.")
