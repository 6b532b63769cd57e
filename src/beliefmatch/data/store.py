"""Where the images of a part are kept: in memory, decoded, or where they lie, to be read when needed."""

import warnings
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np

from beliefmatch._validate import fail, level_of_caller, require_choice
from beliefmatch.data.decode import Unreadable
from beliefmatch.data.found import Part, Pictures
from beliefmatch.data.memory import MemorySource
from beliefmatch.data.parallel import in_order
from beliefmatch.data.pictures import Arrays
from beliefmatch.data.preprocessing import Preprocessing
from beliefmatch.data.streamed import BatchReader, Reading, StreamedSource, unreadable

__all__ = [
    "IN_MEMORY_BYTES",
    "IN_MEMORY_SIDE",
    "MARGIN",
    "Frame",
    "Stored",
    "common_frame",
    "stored",
    "warn_of_skipped",
]

IN_MEMORY_SIDE = 64
IN_MEMORY_BYTES = 4 << 30
"""Images of at most this side that take at most these bytes together are decoded once and kept."""

MARGIN = 256 / 224
"""Of images that are larger than that, where nothing else is said."""

_AT_ONCE = 256  # images that a worker reads at a time
_FEW = 2000  # images that are read sooner than workers are started


@dataclass(frozen=True)
class Frame:
    """What images are brought to: height and width, and the margin; exact if all have that size already."""

    height: int
    width: int
    margin: float = 1.0
    exact: bool = False


@dataclass(frozen=True, eq=False)
class Stored:
    """Images of a part that can be read.

    Args:
        pictures: decoded ones as `Arrays` of what is left, others as they were found.
        labels: of the images that are left.
        kept: which of the images found are left.
        shape: C, H, W.
        in_memory: whether the pictures are arrays of that very shape.
        skipped: name and reason of the images that could not be read.
    """

    pictures: Pictures
    labels: np.ndarray
    kept: np.ndarray
    shape: tuple[int, int, int]
    in_memory: bool
    skipped: tuple[tuple[str, str], ...] = ()

    def source(self, preprocessing: Preprocessing, *, workers: int = 2) -> MemorySource | StreamedSource:
        """The images and labels that are left, ready to train on."""
        if self.in_memory and isinstance(self.pictures, Arrays):
            return MemorySource(self.pictures.pixels, self.labels, preprocessing=preprocessing)
        targets = np.full(len(self.pictures), -1)
        targets[self.kept] = self.labels
        return StreamedSource(
            self.pictures,
            targets,
            shape=self.shape,
            preprocessing=preprocessing,
            workers=workers,
            rows=self.kept,
        )

    def identity(self) -> Iterator[bytes | str | np.ndarray]:
        """What tells these images and labels from others, for the fingerprint."""
        yield from self.pictures.identity()
        yield self.kept
        yield self.labels


def common_frame(pictures: Pictures, size: int | None, *, margin: float | None = None) -> Frame:
    """The size asked for, with the margin or what is usual for the size; else that of the first picture."""
    if size is not None:
        usual = 1.0 if size <= IN_MEMORY_SIDE else MARGIN
        return Frame(size, size, usual if margin is None else margin)
    if isinstance(pictures, Arrays):
        return Frame(*pictures.pixels.shape[1:3], exact=True)
    for index in range(len(pictures)):
        try:
            image = pictures.picture(index)
        except Unreadable:  # told, counted or refused by those who read them all
            continue
        return Frame(image.height, image.width, exact=True)
    raise fail("data", f"images must be readable, got {len(pictures)} that are not.")


def stored(
    parts: Mapping[str, Part], frame: Frame, *, channels: int | None, corrupt: str, workers: int
) -> dict[str, Stored]:
    """Keep every part in memory, or none.

    Args:
        parts: the images by the name of their part.
        frame: what they are brought to.
        channels: 1 or 3; grey where every image is if not given, and 3 where images are not kept.
        corrupt: "stop" at the first image that cannot be read, or "skip" them all, now and for good: what
            is left has a fixed length and order, so that a training can be taken up again exactly.
        workers: processes that read.
    """
    require_choice("data", "corrupt", corrupt, ("stop", "skip"))
    if ready := _as_they_are(parts, frame, channels):
        return ready
    count = sum(len(part.labels) for part in parts.values())
    keeps = max(frame.height, frame.width) <= IN_MEMORY_SIDE
    keeps = keeps and count * frame.height * frame.width * (channels or 3) <= IN_MEMORY_BYTES
    shape = (channels or 3, frame.height, frame.width)
    if keeps:
        read = {name: _decoded(part, shape, frame, corrupt, workers) for name, part in parts.items()}
        grey = channels is None and not any(coloured for _, coloured in read.values())
        return {name: _grey(result) if grey else result for name, (result, _) in read.items()}
    return {name: _left_in_place(part, shape, frame, corrupt, workers) for name, part in parts.items()}


def warn_of_skipped(kept: Mapping[str, Stored]) -> None:
    """Tell in one line how many images were left out, and the first of them."""
    skipped = [problem for part in kept.values() for problem in part.skipped]
    if skipped:
        total = len(skipped) + sum(len(part.kept) for part in kept.values())
        name, reason = skipped[0]
        told = f"data: {len(skipped)} of {total} images cannot be read and are left out, first {name}"
        warnings.warn(f"{told} ({reason}).", stacklevel=level_of_caller())


def _as_they_are(parts: Mapping[str, Part], frame: Frame, channels: int | None) -> dict[str, Stored] | None:
    """Arrays of the right shape need no reading."""
    found = [part.pictures for part in parts.values()]
    shapes = {pictures.pixels.shape[1:] if isinstance(pictures, Arrays) else None for pictures in found}
    shape = shapes.pop()
    if shapes or shape is None or shape[:2] != (frame.height, frame.width) or frame.margin != 1:
        return None
    if channels not in (None, shape[2]):
        return None
    return {name: _kept_whole(part, (shape[2], *shape[:2])) for name, part in parts.items()}


def _kept_whole(part: Part, shape: tuple[int, int, int]) -> Stored:
    return Stored(part.pictures, part.labels, np.arange(len(part.labels)), shape, in_memory=True)


def _decoded(
    part: Part, shape: tuple[int, int, int], frame: Frame, corrupt: str, workers: int
) -> tuple[Stored, bool]:
    """All images of a part as bytes, and whether any has colours."""
    channels, height, width = shape
    pixels = np.empty((len(part.labels), height, width, channels), np.uint8)
    kept, skipped, coloured, start = np.ones(len(part.labels), bool), [], False, 0
    with closing(_readings(part, shape, frame, workers)) as readings:
        for reading in readings:
            stop = start + len(reading.pixels)
            pixels[start:stop] = reading.pixels.numpy()
            kept[start:stop] = _usable(reading, frame, corrupt)
            skipped += [(name, reason) for _, name, reason in reading.failures]
            coloured |= reading.coloured
            start = stop
    rows = np.flatnonzero(kept)
    left = pixels if len(rows) == len(pixels) else pixels[rows]
    return Stored(Arrays(left), part.labels[rows], rows, shape, True, tuple(skipped)), coloured


def _left_in_place(
    part: Part, shape: tuple[int, int, int], frame: Frame, corrupt: str, workers: int
) -> Stored:
    """Look at every image only where something hangs on it: those to skip, or a size for all."""
    kept, skipped = [np.zeros(0, bool)], []
    looked_at = corrupt == "skip" or frame.exact
    if looked_at:
        small = (1, 1, 1)  # the pixels are of no interest
        with closing(_readings(part, small, frame, workers)) as readings:
            for reading in readings:
                kept.append(_usable(reading, frame, corrupt))
                skipped += [(name, reason) for _, name, reason in reading.failures]
    rows = np.flatnonzero(np.concatenate(kept)) if looked_at else np.arange(len(part.labels))
    return Stored(part.pictures, part.labels[rows], rows, shape, False, tuple(skipped))


def _readings(
    part: Part, shape: tuple[int, int, int], frame: Frame, workers: int
) -> Generator[Reading, None, None]:
    chunks = [
        (np.arange(start, min(start + _AT_ONCE, len(part.labels))), None)
        for start in range(0, len(part.labels), _AT_ONCE)
    ]
    reader = BatchReader(part.pictures, shape, margin=frame.margin)
    return in_order(reader, chunks, workers=workers if len(part.labels) > _FEW else 0)


def _usable(reading: Reading, frame: Frame, corrupt: str) -> np.ndarray:
    others = reading.sizes - {(frame.height, frame.width)}
    if frame.exact and others:
        height, width = min(others)
        found = f"{frame.width} x {frame.height} and {width} x {height}"
        raise fail("data", f"`size` must be given where images differ in size, got {found} pixels.")
    usable = np.ones(len(reading.pixels), bool)
    for place, name, reason in reading.failures:
        if corrupt == "stop":
            raise unreadable(name, reason)
        usable[place] = False
    return usable


def _grey(result: Stored) -> Stored:
    assert isinstance(result.pictures, Arrays)
    pixels = np.ascontiguousarray(result.pictures.pixels[..., :1])
    return replace(result, pictures=Arrays(pixels), shape=(1, *result.shape[1:]))
