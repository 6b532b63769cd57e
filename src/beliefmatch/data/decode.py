"""One image: from encoded bytes to upright pixels in grey or colour, and to the size that is wanted."""

import io
import math
import random
import warnings
from typing import Any

import numpy as np

from beliefmatch._environment import needs

__all__ = ["SUFFIXES", "Unreadable", "as_pixels", "decoded", "middle", "random_part"]

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
MAX_PIXELS = 1 << 27
"""Of one image; a small file that claims more is taken for an attack on the memory."""

_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")  # of Pillow's, none runs another program
_ORIENTATION = 0x0112  # the tag by which cameras say which side is up
_AREA, _RATIO, _TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10  # of random parts, as usual since Inception


class Unreadable(Exception):  # noqa: N818 - no error yet: the reader decides what becomes of the image
    """An image that cannot be read, and why."""


def decoded(content: bytes) -> Any:
    """The image as Pillow holds it: upright, in mode L if it is grey and RGB if it has colours.

    Palettes, CMYK and 16 bits are turned into either, and what is transparent is seen on white.

    Raises:
        Unreadable: whatever it is that is wrong with the bytes.
    """
    with needs("pillow", extra="data", caller="data"):
        from PIL import Image, ImageOps

    if not content:
        raise Unreadable("it is empty")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on odd but readable files, and on sizes, which are checked here
            image = Image.open(io.BytesIO(content), formats=_FORMATS)
            _require_size(image)
            turned = image.getexif().get(_ORIENTATION, 1) != 1
            return _plain(ImageOps.exif_transpose(image) if turned else image)
    except Exception as error:  # decoders raise whatever they like about bytes that are not theirs
        raise Unreadable(_reason(error)) from None


def _require_size(image: Any) -> None:
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise ValueError(f"it claims {width} x {height} pixels, above the limit of {MAX_PIXELS:,}")


def _reason(error: Exception) -> str:
    text = " ".join(f"{error}".split()).rstrip(".")
    if "cannot identify image file" in text:
        return "it is no image of a known format"
    return text[:160] or type(error).__name__


def _plain(image: Any) -> Any:
    from PIL import Image

    if image.has_transparency_data:
        seen = Image.new("RGBA", image.size, "white")
        seen.alpha_composite(image.convert("RGBA"))
        return seen.convert("L" if image.mode in ("L", "LA", "La", "1") else "RGB")
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers, whose range nobody knows")
    if image.mode.startswith("I"):
        values = np.asarray(image)
        return Image.fromarray((values >> 8 if values.max(initial=0) > 255 else values).astype(np.uint8))
    image.load()
    return image if image.mode in ("L", "RGB") else image.convert("L" if image.mode == "1" else "RGB")


def middle(image: Any, height: int, width: int, margin: float = 1.0) -> Any:
    """The middle of an image, whose short side is first brought to `margin` times the size."""
    if image.size == (width, height) and margin == 1:
        return image
    scale = max(width * margin / image.width, height * margin / image.height)
    across, down = width / scale, height / scale
    left, top = (image.width - across) / 2, (image.height - down) / 2
    return _resized(image, height, width, (left, top, left + across, top + down))


def random_part(image: Any, height: int, width: int, *, flips: bool, chance: random.Random) -> Any:
    """A part of 8 to 100 % of an image, of sides up to 4 to 3, brought to the size; mirrored or not."""
    part = _resized(image, height, width, _random_box(image.width, image.height, chance))
    if flips and chance.random() < 0.5:
        from PIL import Image

        return part.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return part


def _random_box(width: int, height: int, chance: random.Random) -> tuple[float, float, float, float]:
    for _ in range(_TRIES):
        area = width * height * chance.uniform(*_AREA)
        ratio = math.exp(chance.uniform(math.log(_RATIO[0]), math.log(_RATIO[1])))
        across, down = max(1, round(math.sqrt(area * ratio))), max(1, round(math.sqrt(area / ratio)))
        if across <= width and down <= height:
            left, top = chance.randint(0, width - across), chance.randint(0, height - down)
            return left, top, left + across, top + down
    across, down = min(width, height * _RATIO[1]), min(height, width / _RATIO[0])
    left, top = (width - across) / 2, (height - down) / 2
    return left, top, left + across, top + down


def _resized(image: Any, height: int, width: int, box: tuple[float, float, float, float]) -> Any:
    from PIL import Image

    left, top, right, bottom = box
    inside = max(left, 0.0), max(top, 0.0), min(right, image.width), min(bottom, image.height)  # of rounding
    return image.resize((width, height), Image.Resampling.BILINEAR, box=inside)  # smoothed where it shrinks


def as_pixels(image: Any, channels: int) -> np.ndarray:
    """Bytes (H, W, C), grey or coloured as wanted."""
    pixels = np.asarray(image.convert("L" if channels == 1 else "RGB"))
    return pixels[..., None] if channels == 1 else pixels
