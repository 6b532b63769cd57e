"""Images as they are found, before they are divided, brought to one size and made into sources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from beliefmatch.data.preprocessing import Augment

if TYPE_CHECKING:
    from beliefmatch.data.config import DataConfig

__all__ = ["PARTS", "Found", "Habits", "Known", "Part", "Pictures"]

PARTS = ("train", "validation", "test")


class Pictures(Protocol):
    """Images in any encoding, read one at a time, in worker processes too."""

    def __len__(self) -> int: ...

    def name(self, index: int) -> str:
        """What to call an image in an error or a table."""
        ...

    def picture(self, index: int) -> Any:
        """The image, decoded by Pillow, upright, in mode L or RGB; `Unreadable` if it cannot be."""
        ...

    def identity(self) -> Iterator[bytes | str | np.ndarray]:
        """What tells these images from others, for the fingerprint."""
        ...


@dataclass(frozen=True, eq=False)
class Part:
    """Images and their class ids (N,), int64; -1 where there are none."""

    pictures: Pictures
    labels: np.ndarray


@dataclass(frozen=True, eq=False)
class Found:
    """What a place holds: a part for each of "train", "validation" and "test" that is there.

    One part called "all" has still to be divided.
    """

    form: str
    parts: Mapping[str, Part]
    class_names: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Habits:
    """What is usual for a set of data where the user does not say; None where nothing is."""

    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    augment: Augment | None = None
    size: int | None = None
    class_names: tuple[str, ...] | None = None


class Known(Protocol):
    """A set of data that has a name in `DATASETS`."""

    @property
    def habits(self) -> Habits:
        """What is usual for it."""
        ...

    def find(self, settings: DataConfig, *, only: str | None = None) -> Found:
        """All parts, or, to save time, the one of that name alone."""
        ...
