"""What is done to pixels before they enter a network, as a run directory keeps it; read without torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta

from beliefmatch._config import Config, Index, NonNegative, Positive, from_mapping, plain
from beliefmatch._errors import fail

__all__ = ["Augment", "Preprocessing", "default_padding", "require_channels"]

Augment = Literal["crop_flip", "crop", "none"]


class Preprocessing(Config, frozen=True):
    """How bytes become inputs, and how training images are augmented.

    Args:
        mean: of each channel, for pixels between 0 and 1. One number is for grey images, three for colour, in
            the order red, green, blue.
        std: of each channel, likewise.
        augment: in training only. "crop" shifts small images by up to `padding` pixels and takes random crops
            of large ones; "crop_flip" also mirrors half of the images.
        padding: the largest shift of small images.
        margin: the short side of an image that is resized, over the size of the centre that is then cut out:
            1 keeps all of the short side, 256/224 is common for large photographs.
        noise: standard deviation of Gaussian noise in training, added after scaling.
        channel_order: of the inputs; "bgr" for networks trained on images as OpenCV or Caffe read them.
    """

    mean: tuple[float, ...]
    std: tuple[Positive, ...]
    augment: Augment = "none"
    padding: Index = 4
    margin: Annotated[float, Meta(ge=1)] = 1.0
    noise: NonNegative = 0.0
    channel_order: Literal["rgb", "bgr"] = "rgb"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_channels("Preprocessing", self.mean, self.std)

    @property
    def channels(self) -> int:
        """One for grey, three for colour."""
        return len(self.mean)

    def to_json(self) -> dict[str, Any]:
        """As JSON can hold it; `from_json` reads it back.

        The order RGB is left out: the keys of cached features stay as they were before there was another.
        """
        return {key: value for key, value in plain(self).items() if (key, value) != ("channel_order", "rgb")}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Preprocessing:
        """Read what `to_json` wrote; an unknown key is an error."""
        return from_mapping(cls, values, caller="Preprocessing")


def require_channels(caller: str, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
    """Require one mean and one standard deviation for each channel; images have 1 or 3 channels."""
    if len(mean) not in (1, 3):
        raise fail(caller, f"`mean` must be 1 or 3 numbers, got {mean}.")
    if len(std) != len(mean):
        raise fail(caller, f"`std` must have as many numbers as `mean`, got {std} for {mean}.")


def default_padding(height: int, width: int) -> int:
    """An eighth of the short side: 4 pixels of 32, 1 of 8.

    >>> default_padding(32, 32), default_padding(8, 8), default_padding(28, 28)
    (4, 1, 4)
    """
    return max(1, round(min(height, width) / 8))
