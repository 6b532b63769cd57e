"""What a set of data can be told; read without torch."""

import math
from dataclasses import dataclass
from typing import Literal

__all__ = ["DataConfig"]

_SMALLEST = {"limit": 1, "labels": 1, "shift": 0, "size": 1, "workers": 0, "split_seed": 0}


@dataclass(frozen=True)
class DataConfig:
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

    name: str = "digits"
    directory: str | None = None
    validation: float = 0.2
    limit: int | None = None
    labels: int | None = None
    split_seed: int = 0
    augment: Literal["auto", "crop_flip", "crop", "none"] = "auto"
    shift: int | None = None
    noise: float = 0.0
    size: int | None = None
    corrupt: Literal["stop", "skip"] = "stop"
    workers: int = 2
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    margin: float | None = None

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise ValueError("data: `name` must not be empty.")
        if not self.validation > 0:
            raise ValueError(
                f"data: `validation` must be a share or a number above 0, got {self.validation}."
            )
        for name, smallest in _SMALLEST.items():
            value = getattr(self, name)
            if value is not None and value < smallest:
                raise ValueError(f"data: `{name}` must be at least {smallest}, got {value}.")
        if not 0 <= self.noise < math.inf:
            raise ValueError(f"data: `noise` must be finite and not negative, got {self.noise}.")
        choices = {"augment": ("auto", "crop_flip", "crop", "none"), "corrupt": ("stop", "skip")}
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"data: `{name}` must be one of {', '.join(allowed)}, got {getattr(self, name)!r}."
                )
        self._check_preprocessing()

    def _check_preprocessing(self) -> None:
        for name in ("mean", "std"):
            numbers = getattr(self, name)
            if numbers is None:
                continue
            object.__setattr__(self, name, tuple(float(number) for number in numbers))
            if len(numbers) not in (1, 3) or not all(map(math.isfinite, numbers)):
                raise ValueError(f"data: `{name}` must be 1 or 3 finite numbers, got {list(numbers)}.")
        if (self.mean is None) != (self.std is None) or len(self.mean or ()) != len(self.std or ()):
            got = f"{_listed(self.mean)} and {_listed(self.std)}"
            raise ValueError(f"data: `mean` and `std` must be given together, as many of each, got {got}.")
        if self.std is not None and min(self.std) <= 0:
            raise ValueError(f"data: `std` must be above 0, got {_listed(self.std)}.")
        if self.margin is not None and not 1 <= self.margin < math.inf:
            raise ValueError(f"data: `margin` must be at least 1, got {self.margin}.")


def _listed(numbers: tuple[float, ...] | None) -> str:
    return "none" if numbers is None else f"{list(numbers)}"
