"""Images as they may lie: decoded in memory, encoded in memory, in files, or several of these in a row."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from beliefmatch._environment import needs
from beliefmatch.data.decode import Unreadable, decoded
from beliefmatch.data.found import Pictures

__all__ = ["Arrays", "Chain", "Encoded", "Files"]


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


class Texts(Sequence[str]):
    """Many short texts in two tensors: processes share these, where a list would be copied to each."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._bytes, self._ends = _packed([os.fsencode(text) for text in texts])

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: Any) -> Any:
        return os.fsdecode(_unpacked(self._bytes, self._ends, index))


class Encoded:
    """Images in memory as JPEG, PNG and so on; one without a byte is unreadable.

    Args:
        contents: the bytes of each.
        names: what to call each.
    """

    def __init__(self, contents: Sequence[bytes], names: Sequence[str]) -> None:
        self._bytes, self._ends = _packed(contents)
        self._names = Texts(names)

    def __len__(self) -> int:
        return len(self._names)

    def name(self, index: int) -> str:
        """As given."""
        return self._names[index]

    def picture(self, index: int) -> Any:
        """Decode one."""
        return decoded(_unpacked(self._bytes, self._ends, index))

    def identity(self) -> Iterator[np.ndarray]:
        """All bytes; the names do not matter."""
        yield self._ends.numpy()
        yield self._bytes.numpy()


class Files:
    """Images in files of their own.

    Args:
        root: the directory they are in.
        names: of the files, from there.
    """

    def __init__(self, root: Path, names: Sequence[str]) -> None:
        self._root = root
        self._names = Texts(names)

    def __len__(self) -> int:
        return len(self._names)

    def name(self, index: int) -> str:
        """The path."""
        return f"{self._root / self._names[index]}"

    def picture(self, index: int) -> Any:
        """Read and decode one."""
        try:
            content = (self._root / self._names[index]).read_bytes()
        except OSError as error:
            raise Unreadable(error.strerror or f"{error}") from None
        return decoded(content)

    def identity(self) -> Iterator[str | np.ndarray]:
        """Names and sizes: to read terabytes only to recognise them would take hours."""
        sizes = np.full(len(self), -1)
        for index, name in enumerate(self._names):
            yield name.replace(os.sep, "/")
            try:
                sizes[index] = (self._root / name).stat().st_size
            except OSError:  # what cannot be read is told where it is needed
                continue
        yield sizes


class Chain:
    """Several sets of pictures in a row."""

    def __init__(self, links: Sequence[Pictures]) -> None:
        self._links = list(links)
        self._ends = np.cumsum([len(link) for link in links])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def name(self, index: int) -> str:
        """The link's name for it."""
        link, inner = self._at(index)
        return link.name(inner)

    def picture(self, index: int) -> Any:
        """The link's picture."""
        link, inner = self._at(index)
        return link.picture(inner)

    def identity(self) -> Iterator[bytes | str | np.ndarray]:
        """That of every link."""
        for link in self._links:
            yield from link.identity()

    def _at(self, index: int) -> tuple[Pictures, int]:
        which = int(np.searchsorted(self._ends, index, side="right"))
        return self._links[which], index - (int(self._ends[which - 1]) if which else 0)


def _packed(contents: Sequence[bytes]) -> tuple[torch.Tensor, torch.Tensor]:
    """All bytes end to end, and where each begins; tensors, for worker processes share their memory."""
    ends = np.concatenate([[0], np.cumsum([len(content) for content in contents], dtype=np.int64)])
    joined = np.frombuffer(bytearray(b"".join(contents)), np.uint8)
    return torch.from_numpy(joined), torch.from_numpy(ends.astype(np.int64))


def _unpacked(joined: torch.Tensor, ends: torch.Tensor, index: int) -> bytes:
    if not 0 <= index < len(ends) - 1:
        raise IndexError(index)
    return joined[ends[index] : ends[index + 1]].numpy().tobytes()
