"""Large images: decoded, cut and mirrored one by one in worker processes, scaled on the device."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from beliefmatch._utils import derive_seed
from beliefmatch._validate import fail
from beliefmatch.data.augment import noisy, normalised
from beliefmatch.data.decode import Unreadable, as_pixels, middle, random_part
from beliefmatch.data.found import Pictures
from beliefmatch.data.memory import as_targets, inputs_digest, paired
from beliefmatch.data.parallel import in_order
from beliefmatch.data.preprocessing import Preprocessing
from beliefmatch.data.source import Batch

__all__ = ["BatchReader", "Reading", "StreamedSource", "unreadable"]

_NOISE = -1  # a stream of chance beside those of the places in a batch


class Reading(NamedTuple):
    """Pixels (N, H, W, C) of a batch, and what went wrong with which of its places."""

    pixels: Tensor
    failures: list[tuple[int, str, str]]
    """Place, name of the image and reason."""
    coloured: bool
    """Whether any image was not grey."""
    sizes: set[tuple[int, int]]
    """Height and width of the images as they were."""


class BatchReader:
    """Reads some of the pictures, at random parts of them where a seed is given.

    What chance does to an image depends on the seed and its place in the batch alone, so that neither the
    number of workers nor their speed can be seen in the result.
    """

    def __init__(
        self, pictures: Pictures, shape: tuple[int, int, int], *, margin: float = 1.0, augment: str = "none"
    ) -> None:
        self.pictures = pictures
        self.shape = shape
        self._margin, self._augment = margin, augment

    def __call__(self, part: tuple[np.ndarray, int | None]) -> Reading:
        """Read the pictures of these rows, with this seed."""
        rows, seed = part
        channels, height, width = self.shape
        pixels = np.zeros((len(rows), height, width, channels), np.uint8)
        failures, coloured, sizes = [], False, set()
        for place, row in enumerate(rows.tolist()):
            try:
                image = self.pictures.picture(row)
            except Unreadable as problem:
                failures.append((place, self.pictures.name(row), f"{problem}"))
                continue
            coloured |= image.mode != "L"
            sizes.add((image.height, image.width))
            pixels[place] = as_pixels(self._cut(image, seed, place), channels)
        return Reading(torch.from_numpy(pixels), failures, coloured, sizes)

    def _cut(self, image: Any, seed: int | None, place: int) -> Any:
        _, height, width = self.shape
        if seed is None or self._augment == "none":
            return middle(image, height, width, self._margin)
        chance = random.Random(derive_seed(seed, place))
        return random_part(image, height, width, flips=self._augment == "crop_flip", chance=chance)


class StreamedSource:
    """Images that are read when they are needed, a `Source`.

    Args:
        pictures: the images in whatever form they lie.
        targets: class ids, one for each picture; -1 for each if not given.
        shape: C, H, W that images are brought to.
        preprocessing: scaling, and augmentation for batches that come with a seed.
        workers: processes that read; each reads whole batches. 0 reads in this process.
        rows: which of the pictures this source holds, in this order; all if not given.
    """

    def __init__(
        self,
        pictures: Pictures,
        targets: Any = None,
        *,
        shape: tuple[int, int, int],
        preprocessing: Preprocessing,
        workers: int = 2,
        rows: Any = None,
    ) -> None:
        if shape[0] != preprocessing.channels:
            expected = f"{preprocessing.channels} channels, as `preprocessing` has"
            raise fail("StreamedSource", f"`shape` must have {expected}, got {shape}.")
        how = preprocessing
        self._read = BatchReader(pictures, shape, margin=how.margin, augment=how.augment)
        self._rows = torch.arange(len(pictures)) if rows is None else torch.as_tensor(rows, dtype=torch.int64)
        self._targets = as_targets(targets, len(pictures))[self._rows]
        self._workers = workers
        self.preprocessing = preprocessing

    @property
    def targets(self) -> Tensor:
        """Class id of each example; -1 where there is none."""
        return self._targets

    @property
    def shape(self) -> tuple[int, int, int]:
        """C, H, W of the inputs."""
        return self._read.shape

    def __len__(self) -> int:
        return len(self._rows)

    def subset(self, rows: Any) -> StreamedSource:
        """The examples of these rows alone."""
        part = object.__new__(StreamedSource)
        chosen = torch.as_tensor(rows, dtype=torch.int64)
        part._read, part._rows, part._targets = self._read, self._rows[chosen], self._targets[chosen]
        part._workers, part.preprocessing = self._workers, self.preprocessing
        return part

    def digest(self) -> str:
        """What tells inputs and targets from others, as a hash; image files count by name and size alone."""
        identity = (*self._read.pictures.identity(), self._rows.numpy(), self._targets.numpy())
        return inputs_digest(self.shape, self.preprocessing, identity)

    def unlabelled(self) -> StreamedSource:
        """The same examples without their class ids."""
        part = self.subset(torch.arange(len(self)))
        part._targets = as_targets(None, len(self))
        return part

    def seen_through(self, preprocessing: Preprocessing) -> StreamedSource:
        """The same examples on another way into a network."""
        part, how = self.subset(torch.arange(len(self))), preprocessing
        part._read = BatchReader(self._read.pictures, self.shape, margin=how.margin, augment=how.augment)
        part.preprocessing = preprocessing
        return part

    def batches(
        self,
        parts: Sequence[Tensor],
        *,
        seeds: Sequence[int] | None = None,
        device: torch.device | str = "cpu",
    ) -> Iterator[Batch]:
        """One batch for each tensor of indices, in that order; see `Source`.

        An image that cannot be read is an error here, in this process, with the image's name.
        """
        place, how = torch.device(device), self.preprocessing
        chances = list(paired(parts, seeds))
        wanted = [(self._rows[part].numpy(), seed) for part, seed in chances]
        readings = in_order(self._read, wanted, workers=self._workers, pinned=place.type == "cuda")
        with closing(readings):  # or an error would keep the workers as long as its traceback
            for (part, seed), reading in zip(chances, readings, strict=True):
                for _, name, reason in reading.failures:
                    raise unreadable(name, reason)
                pixels = reading.pixels.to(place, non_blocking=True)
                inputs = normalised(pixels, mean=how.mean, std=how.std)
                if seed is not None and how.noise:
                    chance = torch.Generator(place).manual_seed(derive_seed(seed, _NOISE))
                    inputs = noisy(inputs, std=how.noise, generator=chance)
                yield Batch(inputs, self._targets[part].to(place, non_blocking=True))


def unreadable(name: str, reason: str) -> Exception:
    """The error for an image that cannot be read."""
    remedy = 'mend or remove it, or set `corrupt` to "skip"'
    return fail("data", f"images must be readable, got {name} ({reason}); {remedy}.")
