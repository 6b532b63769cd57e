"""Bring images to one shape: decoded into memory where they are small, else left in place and streamed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from typing import NamedTuple

import numpy as np

from beliefmatch._validate import fail, require_choice, warn
from beliefmatch.data.images import ArrayImages, Images, UnreadableImage
from beliefmatch.data.preprocessing import Preprocessing
from beliefmatch.data.raw import LabelledImages, without_labels
from beliefmatch.data.sources import (
    BatchReader,
    ImageSource,
    MemorySource,
    ReadImages,
    StreamedSource,
    in_order,
    unreadable,
)

__all__ = ["Frame", "common_frame", "prepare", "prepare_like"]

IN_MEMORY_SIDE = 64
IN_MEMORY_BYTES = 4 << 30
"""Images of at most this side that take at most these bytes together are decoded once and kept in memory."""

DEFAULT_MARGIN = 256 / 224
"""Default margin of images larger than `IN_MEMORY_SIDE`."""

_CHUNK = 256  # images that a worker reads at a time
_MIN_IMAGES_FOR_WORKERS = 2000  # fewer are read sooner than workers start


class Frame(NamedTuple):
    """Height and width of the inputs, and the margin; exact if every image must have that size already."""

    height: int
    width: int
    margin: float = 1.0
    exact: bool = False


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


def prepare_like(
    images: Images,
    shape: tuple[int, ...],
    preprocessing: Preprocessing,
    *,
    corrupt: str,
    workers: int,
) -> tuple[ImageSource, np.ndarray]:
    """Unlabelled images in the form of a network's inputs, and the rows of those that can be read."""
    channels, height, width = shape
    frame, parts = Frame(height, width, preprocessing.margin), {"": without_labels(images)}
    source, rows = prepare(parts, frame, channels=channels, corrupt=corrupt, workers=workers)[""]
    return source.with_preprocessing(preprocessing), rows


def prepare(
    parts: Mapping[str, LabelledImages],
    frame: Frame,
    *,
    channels: int | None,
    corrupt: str,
    workers: int,
) -> dict[str, tuple[ImageSource, np.ndarray]]:
    """Bring every part into memory, or none; a warning counts the images that are skipped.

    Args:
        parts: images and labels by the name of their part.
        frame: the size of the inputs.
        channels: 1 or 3. If not given, images in memory are grey where every image is, and others have 3.
        corrupt: "stop" at the first image that cannot be read, or "skip" them all, now and for good: the
            readable images have a fixed number and order, so that a training can be resumed exactly.
        workers: processes that read.

    Returns:
        For each part a source of its readable images, with pixels between 0 and 1 as its inputs, and their
        rows among all images of the part.
    """
    require_choice("data", "corrupt", corrupt, ("stop", "skip"))
    if (ready := _sources_of_arrays(parts, frame, channels)) is not None:
        return ready
    shape = (channels or 3, frame.height, frame.width)
    count = sum(len(part.labels) for part in parts.values())
    in_memory = max(shape[1:]) <= IN_MEMORY_SIDE and count * math.prod(shape) <= IN_MEMORY_BYTES
    read = partial(_read, shape=shape, frame=frame, in_memory=in_memory, corrupt=corrupt, workers=workers)
    found = {name: read(part) for name, part in parts.items()}
    skipped = [problem for _, _, problems, _ in found.values() for problem in problems]
    if skipped:
        (name, reason), number = skipped[0], f"{len(skipped)} of {count}"
        warn("data", f"{number} images cannot be read and are left out, first {name} ({reason}).")
    is_grey = channels is None and not any(coloured for *_, coloured in found.values())
    return {
        name: (_grey(source) if is_grey and isinstance(source, MemorySource) else source, rows)
        for name, (source, rows, _, _) in found.items()
    }


def _unscaled(channels: int, margin: float) -> Preprocessing:
    return Preprocessing((0.0,) * channels, (1.0,) * channels, margin=margin)


def _grey(source: MemorySource) -> MemorySource:
    return MemorySource(
        source.pixels[..., :1], source.targets, preprocessing=_unscaled(1, source.preprocessing.margin)
    )


def _sources_of_arrays(
    parts: Mapping[str, LabelledImages], frame: Frame, channels: int | None
) -> dict[str, tuple[ImageSource, np.ndarray]] | None:
    """Arrays of the right shape need no decoding; None if some part is anything else."""
    arrays = {
        name: part.images.pixels for name, part in parts.items() if isinstance(part.images, ArrayImages)
    }
    shapes = {pixels.shape[1:] for pixels in arrays.values()}
    if len(arrays) < len(parts) or len(shapes) > 1 or frame.margin != 1:
        return None
    *size, own_channels = shapes.pop()
    if size != [frame.height, frame.width] or channels not in (None, own_channels):
        return None
    preprocessing = _unscaled(own_channels, frame.margin)
    return {
        name: (MemorySource(pixels, parts[name].labels, preprocessing=preprocessing), np.arange(len(pixels)))
        for name, pixels in arrays.items()
    }


def _read(
    part: LabelledImages,
    *,
    shape: tuple[int, int, int],
    frame: Frame,
    in_memory: bool,
    corrupt: str,
    workers: int,
) -> tuple[ImageSource, np.ndarray, list[tuple[str, str]], bool]:
    """The readable images, their rows, name and reason of the others, and whether any image has colours.

    Images that stay in place are read only where that is needed: to skip some, or to compare their sizes.
    """
    images, labels, count = part.images, part.labels, len(part.images)
    preprocessing = _unscaled(shape[0], frame.margin)
    rows, skipped, coloured = np.arange(count), list[tuple[str, str]](), False
    if in_memory or corrupt == "skip" or frame.exact:
        read_shape = shape if in_memory else (1, 1, 1)  # the pixels are not needed
        pixels = np.empty((count if in_memory else 0, *shape[1:], shape[0]), np.uint8)
        usable = np.ones(count, bool)
        chunks = [(rows[start : start + _CHUNK], None) for start in range(0, count, _CHUNK)]
        reader = BatchReader(images, read_shape, margin=frame.margin)
        used_workers = workers if count > _MIN_IMAGES_FOR_WORKERS else 0
        with closing(in_order(reader, chunks, workers=used_workers)) as results:
            for (chunk, _), read in zip(chunks, results, strict=True):
                _require_frame(read, frame)
                if in_memory:
                    pixels[chunk] = read.pixels.numpy()
                for position, name, reason in read.failures:
                    if corrupt == "stop":
                        raise unreadable(name, reason)
                    usable[chunk[position]] = False
                    skipped.append((name, reason))
                coloured |= read.coloured
        rows = np.flatnonzero(usable)
        if in_memory:
            pixels = pixels[rows] if skipped else pixels
            return MemorySource(pixels, labels[rows], preprocessing=preprocessing), rows, skipped, coloured
    source = StreamedSource(images, labels, shape=shape, preprocessing=preprocessing, workers=workers)
    return source.subset(rows), rows, skipped, coloured


def _require_frame(read: ReadImages, frame: Frame) -> None:
    others = read.sizes - {(frame.height, frame.width)}
    if frame.exact and others:
        height, width = min(others)
        found = f"{frame.width} x {frame.height} and {width} x {height}"
        raise fail("data", f"`size` must be given where images differ in size, got {found} pixels.")
