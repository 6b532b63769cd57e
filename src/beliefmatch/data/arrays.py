"""Images of one size that are already decoded."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from beliefmatch.extras import needs

__all__ = ["Arrays"]


class Arrays:
    """Bytes of shape (N, H, W, C), C of 1 or 3, as `Pictures`.

    Args:
        pixels: the images.
        origin: what comes before an image's number in its name.
    """

    def __init__(self, pixels: np.ndarray, origin: str = "") -> None:
        self.pixels = pixels
        self._origin = origin

    def __len__(self) -> int:
        return len(self.pixels)

    def name(self, index: int) -> str:
        """The origin and the number."""
        return f"{self._origin}[{index}]"

    def picture(self, index: int) -> Any:
        """One image for Pillow."""
        with needs("pillow", extra="data", caller="data"):
            from PIL import Image

        pixels = self.pixels[index]
        return Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)

    def identity(self) -> Iterator[np.ndarray]:
        """All bytes."""
        yield self.pixels
