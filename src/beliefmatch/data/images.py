"""Encoded images and their decoding: in memory, in files, in tables of the hub, or chained."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from beliefmatch._environment import needs
from beliefmatch._utils import reason_of

__all__ = [
    "SUFFIXES",
    "ArrayImages",
    "ChainedImages",
    "EncodedImages",
    "FileImages",
    "HubImages",
    "Images",
    "UnreadableImage",
    "decode",
]

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
MAX_PIXELS = 1 << 27
"""Maximum pixels of one image; a small file that claims more is treated as an attack on the memory."""

_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")  # Pillow runs no other program for these
_ORIENTATION = 0x0112  # the EXIF tag that says which side is up


class UnreadableImage(Exception):  # noqa: N818 - the reader decides whether it is an error
    """An image that cannot be read, and why."""


class Images:
    """Images in any encoding, read one at a time, also in worker processes.

    Attributes:
        origin: what precedes an image's number in its name.
    """

    origin = ""

    def __len__(self) -> int:
        raise NotImplementedError

    def name(self, index: int) -> str:
        """The name of an image in errors and tables."""
        return f"{self.origin}[{index}]"

    def read(self, index: int) -> Any:
        """The Pillow image, upright, in mode L or RGB; `UnreadableImage` if it cannot be decoded."""
        raise NotImplementedError

    def identity(self) -> Iterator[bytes | str | np.ndarray]:
        """What distinguishes these images from others, for the digest."""
        raise NotImplementedError


def decode(content: bytes) -> Any:
    """The image as Pillow holds it: upright, in mode L if it is grey and RGB if it has colours.

    Palettes, CMYK and 16 bits are converted to either mode; transparent pixels are blended with white.

    Raises:
        UnreadableImage: whatever is wrong with the bytes.
    """
    with needs("pillow", extra="data", caller="data"):
        from PIL import Image, ImageOps

    if not content:
        raise UnreadableImage("it is empty")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on odd but readable files, and on sizes, which are checked here
            image = Image.open(io.BytesIO(content), formats=_FORMATS)
            width, height = image.size
            if width * height > MAX_PIXELS:
                raise ValueError(f"it claims {width} x {height} pixels, above the limit of {MAX_PIXELS:,}")
            turned = image.getexif().get(_ORIENTATION, 1) != 1
            return _grey_or_rgb(ImageOps.exif_transpose(image) if turned else image)
    except Exception as error:  # decoders raise exceptions of any type
        is_unknown = "cannot identify image file" in f"{error}"
        reason = "it is no image of a known format" if is_unknown else reason_of(error, limit=160)
        raise UnreadableImage(reason) from None


def _grey_or_rgb(image: Any) -> Any:
    from PIL import Image

    if image.has_transparency_data:
        blended = Image.new("RGBA", image.size, "white")
        blended.alpha_composite(image.convert("RGBA"))
        return blended.convert("L" if image.mode in ("L", "LA", "La", "1") else "RGB")
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers of unknown range")
    if image.mode.startswith("I"):
        values = np.asarray(image)
        return Image.fromarray((values >> 8 if values.max(initial=0) > 255 else values).astype(np.uint8))
    image.load()
    return image if image.mode in ("L", "RGB") else image.convert("L" if image.mode == "1" else "RGB")


def _decode_file(path: Path) -> Any:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UnreadableImage(error.strerror or f"{error}") from None
    return decode(content)


class ArrayImages(Images):
    """Decoded images in memory: bytes of shape (N, H, W, C), C of 1 or 3.

    Args:
        pixels: the images.
        origin: what precedes an image's number in its name.
    """

    def __init__(self, pixels: np.ndarray, origin: str = "") -> None:
        self.pixels, self.origin = pixels, origin

    def __len__(self) -> int:
        return len(self.pixels)

    def read(self, index: int) -> Any:
        """One image for Pillow."""
        with needs("pillow", extra="data", caller="data"):
            from PIL import Image

        pixels = self.pixels[index]
        return Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)

    def identity(self) -> Iterator[np.ndarray]:
        """All bytes."""
        yield self.pixels


class _Packed:
    """Many byte strings in two tensors, which worker processes share; a list would be copied to each."""

    def __init__(self, contents: Sequence[bytes]) -> None:
        ends = np.concatenate([[0], np.cumsum([len(content) for content in contents], dtype=np.int64)])
        self.bytes = torch.from_numpy(np.frombuffer(bytearray(b"".join(contents)), np.uint8))
        self.ends = torch.from_numpy(ends.astype(np.int64))

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __getitem__(self, index: int) -> bytes:
        return self.bytes[self.ends[index] : self.ends[index + 1]].numpy().tobytes()


class EncodedImages(Images):
    """Images in memory as JPEG, PNG and so on; one without a byte is unreadable.

    Args:
        contents: the bytes of each image.
        names: the name of each image.
    """

    def __init__(self, contents: Sequence[bytes], names: Sequence[str]) -> None:
        self._contents = _Packed(contents)
        self._names = _Packed([os.fsencode(name) for name in names])

    def __len__(self) -> int:
        return len(self._contents)

    def name(self, index: int) -> str:
        """The name that was given."""
        return os.fsdecode(self._names[index])

    def read(self, index: int) -> Any:
        """Decode one."""
        return decode(self._contents[index])

    def identity(self) -> Iterator[np.ndarray]:
        """All bytes; the names do not matter."""
        yield self._contents.ends.numpy()
        yield self._contents.bytes.numpy()


class FileImages(Images):
    """Images in files of their own.

    Args:
        root: the directory of the files.
        names: paths of the files relative to it.
    """

    def __init__(self, root: Path, names: Sequence[str]) -> None:
        self._root = root
        self._names = _Packed([os.fsencode(name) for name in names])

    def __len__(self) -> int:
        return len(self._names)

    def _path(self, index: int) -> Path:
        return self._root / os.fsdecode(self._names[index])

    def name(self, index: int) -> str:
        """The path."""
        return f"{self._path(index)}"

    def read(self, index: int) -> Any:
        """Read and decode one."""
        return _decode_file(self._path(index))

    def identity(self) -> Iterator[str | np.ndarray]:
        """Names and sizes: reading terabytes only to recognise them would take hours."""
        sizes = np.full(len(self), -1)
        for index in range(len(self)):
            yield os.fsdecode(self._names[index]).replace(os.sep, "/")
            try:
                sizes[index] = self._path(index).stat().st_size
            except OSError:  # reported when the image is needed
                continue
        yield sizes


class HubImages(Images):
    """Encoded images in a memory-mapped table of Hugging Face's `datasets`.

    Args:
        table: with a column of `datasets.Image(decode=False)`.
        column: its name.
        origin: what precedes an image's number in its name.
    """

    def __init__(self, table: Any, column: str, origin: str) -> None:
        self._table = table.select_columns([column])
        self._column, self.origin = column, origin

    def __len__(self) -> int:
        return len(self._table)

    def read(self, index: int) -> Any:
        """Read and decode one."""
        cell = self._table[index][self._column] or {}
        if cell.get("bytes") is None and cell.get("path"):
            return _decode_file(Path(cell["path"]))
        return decode(cell.get("bytes") or b"")

    def identity(self) -> Iterator[str]:
        """The number of rows; the digest adds the labels."""
        yield f"{len(self)} rows"


class ChainedImages(Images):
    """Several sets of images in a row."""

    def __init__(self, links: Sequence[Images]) -> None:
        self._links = links
        self._ends = np.cumsum([len(link) for link in links])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def name(self, index: int) -> str:
        """The link's name for the image."""
        link, inner = self._at(index)
        return link.name(inner)

    def read(self, index: int) -> Any:
        """The link's image."""
        link, inner = self._at(index)
        return link.read(inner)

    def identity(self) -> Iterator[bytes | str | np.ndarray]:
        """That of every link."""
        for link in self._links:
            yield from link.identity()

    def _at(self, index: int) -> tuple[Images, int]:
        which = int(np.searchsorted(self._ends, index, side="right"))
        return self._links[which], index - (int(self._ends[which - 1]) if which else 0)
