"""Bring images to one shape: decoded into memory where they are small, else left in place and streamed."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np

from beliefmatch._validate import fail, level_of_caller, require_choice
from beliefmatch.data.images import ArrayImages, Images, UnreadableImage
from beliefmatch.data.preprocessing import Preprocessing
from beliefmatch.data.sources import (
    BatchReader,
    MemorySource,
    ReadImages,
    StreamedSource,
    in_order,
    unreadable,
)

__all__ = ["Frame", "PreparedImages", "common_frame", "prepare"]

IN_MEMORY_SIDE = 64
IN_MEMORY_BYTES = 4 << 30
"""Images of at most this side that take at most these bytes together are decoded once and kept in memory."""

DEFAULT_MARGIN = 256 / 224
"""Of images larger than that, where the configuration has none."""

_CHUNK = 256  # images that a worker reads at a time
_FEW = 2000  # images that are read sooner than workers start


@dataclass(frozen=True)
class Frame:
    """Height and width of the inputs, and the margin; exact if every image must have that size already."""

    height: int
    width: int
    margin: float = 1.0
    exact: bool = False


@dataclass(frozen=True, eq=False)
class PreparedImages:
    """The readable images of a part of a dataset, with their labels.

    Args:
        images: the readable images as `ArrayImages` if in memory, else all images as they were found.
        labels: of the readable images.
        rows: of the readable images among all that were found.
        shape: C, H, W of the inputs.
        in_memory: whether the images are arrays of that shape.
        skipped: name and reason of the images that could not be read.
    """

    images: Images
    labels: np.ndarray
    rows: np.ndarray
    shape: tuple[int, int, int]
    in_memory: bool
    skipped: tuple[tuple[str, str], ...] = ()

    def source(self, preprocessing: Preprocessing, *, workers: int = 2) -> MemorySource | StreamedSource:
        """A source of batches of the readable images."""
        if self.in_memory and isinstance(self.images, ArrayImages):
            return MemorySource(self.images.pixels, self.labels, preprocessing=preprocessing)
        targets = np.full(len(self.images), -1)
        targets[self.rows] = self.labels
        return StreamedSource(
            self.images,
            targets,
            shape=self.shape,
            preprocessing=preprocessing,
            workers=workers,
            rows=self.rows,
        )

    def identity(self) -> Iterator[bytes | str | np.ndarray]:
        """What distinguishes these images and labels from others, for the fingerprint."""
        yield from self.images.identity()
        yield self.rows
        yield self.labels


def common_frame(images: Images, size: int | None, *, margin: float | None = None) -> Frame:
    """The configured size, with the configured or the default margin; else the size of the first image."""
    if size is not None:
        default = 1.0 if size <= IN_MEMORY_SIDE else DEFAULT_MARGIN
        return Frame(size, size, default if margin is None else margin)
    if isinstance(images, ArrayImages):
        return Frame(*images.pixels.shape[1:3], exact=True)
    for index in range(len(images)):
        try:
            image = images.read(index)
        except UnreadableImage:  # skipped or refused when all are read
            continue
        return Frame(image.height, image.width, exact=True)
    raise fail("data", f"images must be readable, got {len(images)} that are not.")


def prepare(
    parts: Mapping[str, tuple[Images, np.ndarray]],
    frame: Frame,
    *,
    channels: int | None,
    corrupt: str,
    workers: int,
) -> dict[str, PreparedImages]:
    """Bring every part into memory, or none; a warning counts the images that are skipped.

    Args:
        parts: images and labels by the name of their part.
        frame: the size of the inputs.
        channels: 1 or 3. If not given, images in memory are grey where every image is, and others have 3.
        corrupt: "stop" at the first image that cannot be read, or "skip" them all, now and for good: the
            readable images have a fixed number and order, so that a training can be resumed exactly.
        workers: processes that read.
    """
    require_choice("data", "corrupt", corrupt, ("stop", "skip"))
    if (ready := _as_they_are(parts, frame, channels)) is not None:
        return ready
    count = sum(len(labels) for _, labels in parts.values())
    in_memory = max(frame.height, frame.width) <= IN_MEMORY_SIDE
    in_memory &= count * frame.height * frame.width * (channels or 3) <= IN_MEMORY_BYTES
    shape = (channels or 3, frame.height, frame.width)
    prepared, coloured = {}, False
    for name, (images, labels) in parts.items():
        prepared[name], has_colour = _prepare_part(
            images, labels, shape, frame, in_memory=in_memory, corrupt=corrupt, workers=workers
        )
        coloured |= has_colour
    if in_memory and channels is None and not coloured:
        prepared = {name: _as_grey(part) for name, part in prepared.items()}
    _warn_of_skipped(prepared)
    return prepared


def _as_they_are(
    parts: Mapping[str, tuple[Images, np.ndarray]], frame: Frame, channels: int | None
) -> dict[str, PreparedImages] | None:
    """Arrays of the right shape need no decoding; None if some part is anything else."""
    shapes = {
        images.pixels.shape[1:] if isinstance(images, ArrayImages) else None for images, _ in parts.values()
    }
    shape = shapes.pop()
    if shapes or shape is None or shape[:2] != (frame.height, frame.width) or frame.margin != 1:
        return None
    if channels not in (None, shape[2]):
        return None
    return {
        name: PreparedImages(images, labels, np.arange(len(labels)), (shape[2], *shape[:2]), in_memory=True)
        for name, (images, labels) in parts.items()
    }


def _prepare_part(
    images: Images,
    labels: np.ndarray,
    shape: tuple[int, int, int],
    frame: Frame,
    *,
    in_memory: bool,
    corrupt: str,
    workers: int,
) -> tuple[PreparedImages, bool]:
    """Decode the images of a part, and tell whether any has colours.

    Images that stay in place are read only where that is needed: to skip some, or to compare their sizes.
    """
    count = len(images)
    if not in_memory and corrupt != "skip" and not frame.exact:
        return PreparedImages(images, labels, np.arange(count), shape, in_memory=False), False
    channels, height, width = shape if in_memory else (1, 1, 1)  # else the pixels are not needed
    pixels = np.empty((count if in_memory else 0, height, width, channels), np.uint8)
    usable, skipped, coloured = np.ones(count, bool), [], False
    chunks = [(np.arange(start, min(start + _CHUNK, count)), None) for start in range(0, count, _CHUNK)]
    reader = BatchReader(images, (channels, height, width), margin=frame.margin)
    with closing(in_order(reader, chunks, workers=workers if count > _FEW else 0)) as results:
        for (rows, _), read in zip(chunks, results, strict=True):
            if in_memory:
                pixels[rows] = read.pixels.numpy()
            usable[rows] = _usable(read, frame, corrupt)
            skipped += [(name, reason) for _, name, reason in read.failures]
            coloured |= read.coloured
    rows = np.flatnonzero(usable)
    if in_memory:
        images = ArrayImages(pixels if len(rows) == count else pixels[rows])
    return PreparedImages(images, labels[rows], rows, shape, in_memory, tuple(skipped)), coloured


def _usable(read: ReadImages, frame: Frame, corrupt: str) -> np.ndarray:
    others = read.sizes - {(frame.height, frame.width)}
    if frame.exact and others:
        height, width = min(others)
        found = f"{frame.width} x {frame.height} and {width} x {height}"
        raise fail("data", f"`size` must be given where images differ in size, got {found} pixels.")
    usable = np.ones(len(read.pixels), bool)
    for position, name, reason in read.failures:
        if corrupt == "stop":
            raise unreadable(name, reason)
        usable[position] = False
    return usable


def _as_grey(part: PreparedImages) -> PreparedImages:
    assert isinstance(part.images, ArrayImages)
    pixels = np.ascontiguousarray(part.images.pixels[..., :1])
    return replace(part, images=ArrayImages(pixels), shape=(1, *part.shape[1:]))


def _warn_of_skipped(prepared: Mapping[str, PreparedImages]) -> None:
    skipped = [problem for part in prepared.values() for problem in part.skipped]
    if skipped:
        total = len(skipped) + sum(len(part.rows) for part in prepared.values())
        name, reason = skipped[0]
        message = f"data: {len(skipped)} of {total} images cannot be read and are left out, first {name}"
        warnings.warn(f"{message} ({reason}).", stacklevel=level_of_caller())
