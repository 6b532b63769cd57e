"""What is done to pixels on their way into a network, as a run directory keeps it; read without torch."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

__all__ = ["Augment", "Preprocessing", "default_padding"]

Augment = Literal["crop_flip", "crop", "none"]


@dataclass(frozen=True)
class Preprocessing:
    """How bytes become inputs, and what chance may do to them in training.

    Args:
        mean: of each channel, for pixels between 0 and 1. One number is for grey images, three for colour.
        std: of each channel, likewise.
        augment: in training only. "crop" shifts small images by up to `padding` pixels and cuts a random part
            out of large ones; "crop_flip" also mirrors every other image.
        padding: the largest shift of small images.
        noise: standard deviation of Gaussian noise in training, on inputs that are scaled already.
        margin: the short side of an image that has to be brought to another size, over the size of the middle
            that is then cut out: 1 keeps all of the short side, 256/224 is usual for large photographs.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment: Augment = "none"
    padding: int = 4
    margin: float = 1.0
    noise: float = 0.0

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            values = tuple(float(value) for value in getattr(self, name))
            if len(values) not in (1, 3) or not all(math.isfinite(value) for value in values):
                raise ValueError(f"Preprocessing: `{name}` must be 1 or 3 finite numbers, got {values}.")
            object.__setattr__(self, name, values)
        if len(self.mean) != len(self.std) or min(self.std) <= 0:
            expected = "as many as `mean` and above 0"
            raise ValueError(f"Preprocessing: `std` must be {expected}, got {self.std} for {self.mean}.")
        if self.augment not in ("crop_flip", "crop", "none"):
            expected = "crop_flip, crop or none"
            raise ValueError(f"Preprocessing: `augment` must be {expected}, got {self.augment!r}.")
        if self.padding < 0 or not 1 <= self.margin < math.inf:
            expected = "at least 0 and `margin` at least 1"
            raise ValueError(
                f"Preprocessing: `padding` must be {expected}, got {self.padding} and {self.margin}."
            )

        if not 0 <= self.noise < math.inf:
            raise ValueError(f"Preprocessing: `noise` must be finite and not negative, got {self.noise}.")

    @property
    def channels(self) -> int:
        """One for grey, three for colour."""
        return len(self.mean)

    def to_json(self) -> dict[str, Any]:
        """As JSON can hold it; `from_json` undoes it."""
        values = asdict(self)
        return {**values, "mean": list(self.mean), "std": list(self.std)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Preprocessing":
        """What `to_json` wrote; a key that is not ours is an error."""
        known = {field.name for field in fields(cls)}
        unknown, absent = set(values) - known, {"mean", "std"} - set(values)
        if unknown or absent:
            what = f"unknown {min(unknown)!r}" if unknown else f"no {min(absent)!r}"
            raise ValueError(f"Preprocessing: keys must be of {', '.join(sorted(known))}, got {what}.")
        return cls(**values)


def default_padding(height: int, width: int) -> int:
    """An eighth of the short side: 4 pixels of 32, 1 of 8.

    >>> default_padding(32, 32), default_padding(8, 8), default_padding(28, 28)
    (4, 1, 4)
    """
    return max(1, round(min(height, width) / 8))
