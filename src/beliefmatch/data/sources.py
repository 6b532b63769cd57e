"""Sources of batches: small images in memory, large ones decoded by worker processes, examples with votes."""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from beliefmatch._utils import derive_seed
from beliefmatch._validate import fail
from beliefmatch.data.images import Images, UnreadableImage
from beliefmatch.data.preprocessing import Preprocessing
from beliefmatch.data.splits import RowSelection, fingerprint
from beliefmatch.data.transforms import (
    add_noise,
    center_crop,
    crop_and_flip,
    normalise,
    random_crop,
    to_pixels,
)

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "Batch",
    "BatchReader",
    "CountedSource",
    "Dataset",
    "MemorySource",
    "ReadImages",
    "Source",
    "StreamedSource",
    "in_order",
    "unreadable",
]

ON_DEVICE_BYTES = 2 << 30
"""Images that take more stay in main memory, and only batches go to the device."""

_NOISE = -1  # a random stream apart from those of the positions in a batch


class Batch(NamedTuple):
    """Inputs (N, C, H, W), float32 in the channels-last layout, and their class ids (N,), on one device."""

    inputs: Tensor
    targets: Tensor


class Source(Protocol):
    """Examples that can be read in any order, any number of times."""

    @property
    def targets(self) -> Tensor:
        """Class id of each example, int64 (N,), on the CPU; -1 where there is none."""
        ...

    @property
    def shape(self) -> tuple[int, int, int]:
        """C, H, W of the inputs."""
        ...

    def __len__(self) -> int: ...

    def digest(self) -> str:
        """A hash of inputs and targets."""
        ...

    def batches(
        self,
        parts: Sequence[Tensor],
        *,
        seeds: Sequence[int] | None = None,
        device: torch.device | str = "cpu",
    ) -> Iterator[Batch]:
        """One batch for each tensor of indices, in that order.

        Args:
            parts: indices of the examples of each batch, int64 on the CPU.
            seeds: of each batch's augmentation, which depends on them alone; no augmentation if not given.
            device: where the batches go.
        """
        ...


@dataclass(frozen=True, eq=False)
class Dataset:
    """Disjoint sources of images to train, validate and test on, and the parts they were taken from.

    What a network computes for an image does not depend on the image's role. Features are therefore computed
    for whole parts in the order of the files, and rows are picked afterwards: another split of the same
    images needs no new computation.

    Args:
        name: of the data.
        train: images to train on.
        validation: images to choose settings on.
        test: images to report on.
        class_names: by id.
        unlabelled: training images whose labels are held back; None if all are labelled.
        facts: what a record holds about the data, as JSON: counts, split seed, "digest" and so on.
        sources: every part whole, in the order of its files: "train" and "test", perhaps "validation"; or
            "all".
        role_rows: the rows of these parts that are for "train", "validation" and "test".
    """

    name: str
    train: Source
    validation: Source
    test: Source
    class_names: tuple[str, ...]
    unlabelled: Source | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    sources: Mapping[str, MemorySource | StreamedSource] = field(default_factory=dict)
    role_rows: Mapping[str, RowSelection] = field(default_factory=dict)

    @property
    def epoch_images(self) -> int:
        """Training images, whether labelled or not: an epoch is as long as one pass over them."""
        return len(self.train) + (0 if self.unlabelled is None else len(self.unlabelled))

    def rows(self, role: str) -> RowSelection:
        """The rows for "train", "validation" or "test"."""
        return self.role_rows[role]

    @cached_property
    def digests(self) -> dict[str, str]:
        """The digest of each part, whatever the split; computed on first use, from all bytes in memory."""
        return {name: source.digest() for name, source in self.sources.items()}


class _ImageSource:
    """RowSelection of a set of images with class ids."""

    def __init__(self, count: int, targets: Any, preprocessing: Preprocessing, rows: Any) -> None:
        self._rows = torch.arange(count) if rows is None else torch.as_tensor(rows, dtype=torch.int64)
        if targets is None:
            ids = torch.full((count,), -1)
        else:
            ids = torch.as_tensor(targets)
            if ids.shape != (count,) or ids.is_floating_point() or ids.dtype == torch.bool:
                raise fail("data", f"`targets` must be {count} whole numbers, got {_describe(ids)}.")
        self._targets = ids.to(torch.int64)[self._rows]
        self.preprocessing = preprocessing

    @property
    def targets(self) -> Tensor:
        """Class id of each example; -1 where there is none."""
        return self._targets

    @property
    def shape(self) -> tuple[int, int, int]:
        """C, H, W of the inputs."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self._rows)

    def subset(self, rows: Any) -> Self:
        """The examples of these rows alone; the images are shared, not copied."""
        part, chosen = copy.copy(self), torch.as_tensor(rows, dtype=torch.int64)
        part._rows, part._targets = self._rows[chosen], self._targets[chosen]
        return part

    def unlabelled(self) -> Self:
        """The same examples without their class ids."""
        part = copy.copy(self)
        part._targets = torch.full((len(self),), -1)
        return part

    def with_preprocessing(self, preprocessing: Preprocessing) -> Self:
        """The same examples with another preprocessing."""
        part = copy.copy(self)
        part.preprocessing = preprocessing
        return part

    def digest(self) -> str:
        """A hash of images, rows, labels and scaling; augmentation has no part in it.

        Image files count by name and size alone.
        """
        how = self.preprocessing
        scaling = np.array([*how.mean, *how.std, how.margin])
        rows, targets = self._rows.numpy(), self._targets.numpy()
        return fingerprint([f"{tuple(self.shape)}", scaling, *self._identity(), rows, targets])

    def _identity(self) -> Iterator[bytes | str | np.ndarray]:
        raise NotImplementedError


class MemorySource(_ImageSource):
    """Small images held as bytes, gathered and augmented a batch at a time on the device; a `Source`.

    Args:
        images: uint8 (N, H, W, C), C of 1 or 3; copied only where necessary.
        targets: class ids (N,); -1 for each if not given.
        preprocessing: scaling, and augmentation for batches that come with a seed.
        rows: the images that this source holds, in this order; all if not given. Sources made by `subset`
            share the images, on the device as well.
    """

    def __init__(
        self,
        images: Tensor | np.ndarray,
        targets: Any = None,
        *,
        preprocessing: Preprocessing,
        rows: Tensor | None = None,
    ) -> None:
        if isinstance(images, np.ndarray) and not images.flags.writeable:
            images = images.copy()  # torch has no read-only tensors
        pixels = torch.as_tensor(images)
        if pixels.dim() != 4 or pixels.dtype != torch.uint8 or pixels.shape[3] != preprocessing.channels:
            expected = f"uint8 of shape (N, H, W, {preprocessing.channels}), as `preprocessing` has channels"
            raise fail("MemorySource", f"`images` must be {expected}, got {_describe(pixels)}.")
        super().__init__(len(pixels), targets, preprocessing, rows)
        self._pixels = pixels.contiguous()
        self._on_device: dict[torch.device, Tensor] = {}  # shared by all subsets

    @property
    def shape(self) -> tuple[int, int, int]:
        """C, H, W of the inputs."""
        _, height, width, channels = self._pixels.shape
        return channels, height, width

    @property
    def images(self) -> Tensor:
        """The bytes of every example, (N, H, W, C), on the CPU."""
        return self._pixels[self._rows]

    def _identity(self) -> Iterator[np.ndarray]:
        yield self._pixels.numpy()

    def batches(
        self,
        parts: Sequence[Tensor],
        *,
        seeds: Sequence[int] | None = None,
        device: torch.device | str = "cpu",
    ) -> Iterator[Batch]:
        """One batch for each tensor of indices, in that order; see `Source`."""
        place, how = torch.device(device), self.preprocessing
        for part, seed in _with_seeds(parts, seeds):
            images = self._gather(self._rows[part], place)
            generator = None if seed is None else torch.Generator(images.device).manual_seed(seed)
            if generator is not None and how.augment != "none":
                flip = how.augment == "crop_flip"
                images = crop_and_flip(images, padding=how.padding, flip=flip, generator=generator)
            inputs = normalise(images, mean=how.mean, std=how.std)
            if generator is not None:
                inputs = add_noise(inputs, std=how.noise, generator=generator)
            yield Batch(inputs, self._targets[part].to(place, non_blocking=True))

    def _gather(self, rows: Tensor, device: torch.device) -> Tensor:
        if device.type == "cpu":
            return self._pixels[rows]
        if self._pixels.nbytes > ON_DEVICE_BYTES:
            return self._pixels[rows].to(device, non_blocking=True)
        if device not in self._on_device:
            self._on_device[device] = self._pixels.to(device)
        return self._on_device[device][rows.to(device, non_blocking=True)]


class StreamedSource(_ImageSource):
    """Large images that worker processes decode and crop when they are needed; a `Source`.

    Args:
        images: the images in any encoding.
        targets: class ids, one for each image; -1 for each if not given.
        shape: C, H, W of the inputs.
        preprocessing: scaling, and augmentation for batches that come with a seed.
        workers: processes that read whole batches; 0 reads in this process.
        rows: the images that this source holds, in this order; all if not given.
    """

    def __init__(
        self,
        images: Images,
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
        super().__init__(len(images), targets, preprocessing, rows)
        self._images, self._shape, self._workers = images, shape, workers

    @property
    def shape(self) -> tuple[int, int, int]:
        """C, H, W of the inputs."""
        return self._shape

    def _identity(self) -> Iterator[bytes | str | np.ndarray]:
        return self._images.identity()

    def batches(
        self,
        parts: Sequence[Tensor],
        *,
        seeds: Sequence[int] | None = None,
        device: torch.device | str = "cpu",
    ) -> Iterator[Batch]:
        """One batch for each tensor of indices, in that order; see `Source`.

        An image that cannot be read raises an error in this process, with the image's name.
        """
        place, how = torch.device(device), self.preprocessing
        reader = BatchReader(self._images, self._shape, margin=how.margin, augment=how.augment)
        pairs = list(_with_seeds(parts, seeds))
        items = [(self._rows[part].numpy(), seed) for part, seed in pairs]
        results = in_order(reader, items, workers=self._workers, pinned=place.type == "cuda")
        with closing(results):  # or an error would keep the workers as long as its traceback
            for (part, seed), result in zip(pairs, results, strict=True):
                for _, name, reason in result.failures:
                    raise unreadable(name, reason)
                inputs = normalise(result.pixels.to(place, non_blocking=True), mean=how.mean, std=how.std)
                if seed is not None and how.noise:
                    generator = torch.Generator(place).manual_seed(derive_seed(seed, _NOISE))
                    inputs = add_noise(inputs, std=how.noise, generator=generator)
                yield Batch(inputs, self._targets[part].to(place, non_blocking=True))


class CountedSource:
    """The examples of another source with votes as their targets; otherwise a `Source`.

    Args:
        source: the examples.
        counts: votes for each class, floating point (N, K), on the CPU.
    """

    def __init__(self, source: Source, counts: Tensor) -> None:
        if counts.dim() != 2 or len(counts) != len(source) or not counts.is_floating_point():
            expected = f"floating point of shape ({len(source)}, K)"
            raise fail("CountedSource", f"`counts` must be {expected}, got {_describe(counts)}.")
        self._source, self._counts = source, counts

    @property
    def targets(self) -> Tensor:
        """Votes of each example (N, K)."""
        return self._counts

    @property
    def shape(self) -> tuple[int, int, int]:
        """C, H, W of the inputs."""
        return self._source.shape

    def __len__(self) -> int:
        return len(self._source)

    def digest(self) -> str:
        """A hash of inputs and votes."""
        return fingerprint([self._source.digest(), self._counts.numpy()])

    def batches(
        self,
        parts: Sequence[Tensor],
        *,
        seeds: Sequence[int] | None = None,
        device: torch.device | str = "cpu",
    ) -> Iterator[Batch]:
        """One batch for each tensor of indices, in that order; see `Source`."""
        batches = self._source.batches(parts, seeds=seeds, device=device)
        for part, batch in zip(parts, batches, strict=True):
            yield Batch(batch.inputs, self._counts[part].to(batch.inputs.device, non_blocking=True))


class ReadImages(NamedTuple):
    """Pixels (N, H, W, C) of a batch, and the images that could not be read."""

    pixels: Tensor
    failures: list[tuple[int, str, str]]
    """Position in the batch, name of the image and reason."""
    coloured: bool
    """Whether any image was not grey."""
    sizes: set[tuple[int, int]]
    """Height and width of the images before they were resized."""


class BatchReader:
    """Decodes a batch of images and crops them: at random where a seed is given, else their centres.

    A random crop depends on the seed and the position in the batch alone, so that neither the number of
    workers nor their speed changes the result.
    """

    def __init__(
        self, images: Images, shape: tuple[int, int, int], *, margin: float = 1.0, augment: str = "none"
    ) -> None:
        self._images, self._shape = images, shape
        self._margin, self._augment = margin, augment

    def __call__(self, item: tuple[np.ndarray, int | None]) -> ReadImages:
        """Read the images of these rows, with this seed."""
        rows, seed = item
        channels, height, width = self._shape
        pixels = np.zeros((len(rows), height, width, channels), np.uint8)
        failures, coloured, sizes = [], False, set()
        for position, row in enumerate(rows.tolist()):
            try:
                image = self._images.read(row)
            except UnreadableImage as problem:
                failures.append((position, self._images.name(row), f"{problem}"))
                continue
            coloured |= image.mode != "L"
            sizes.add((image.height, image.width))
            if seed is None or self._augment == "none":
                crop = center_crop(image, height, width, self._margin)
            else:
                rng, flip = random.Random(derive_seed(seed, position)), self._augment == "crop_flip"
                crop = random_crop(image, height, width, flip=flip, rng=rng)
            pixels[position] = to_pixels(crop, channels)
        return ReadImages(torch.from_numpy(pixels), failures, coloured, sizes)


def unreadable(name: str, reason: str) -> Exception:
    """The error for an image that cannot be read."""
    remedy = 'mend or remove it, or set `corrupt` to "skip"'
    return fail("data", f"images must be readable, got {name} ({reason}); {remedy}.")


Item = TypeVar("Item")
Result = TypeVar("Result")


def in_order(
    function: Callable[[Item], Result], items: Sequence[Item], *, workers: int, pinned: bool = False
) -> Generator[Result, None, None]:
    """Apply a function to each item in worker processes and yield the results in order.

    Without workers, or with one item, it runs in this process. The caller's random state is not touched.
    `function` must be importable by the workers, and may not raise.
    """
    if workers == 0 or len(items) < 2:
        yield from map(function, items)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on machines with fewer cores than workers, and on forks
        loader = DataLoader(
            _Calls(function, items),
            batch_size=None,
            num_workers=min(workers, len(items)),
            collate_fn=_identity,
            pin_memory=pinned,
            generator=torch.Generator(),  # or the loader would draw from the global one
        )
        results = iter(loader)
    try:
        yield from results
    except RuntimeError as error:
        if "DataLoader worker" not in f"{error}":
            raise
        remedy = "give them more memory (/dev/shm in a container), or set `workers` to fewer or to 0"
        raise RuntimeError(f"data: a process that reads images died; {remedy}.") from error


class _Calls(TorchDataset, Generic[Item, Result]):
    def __init__(self, function: Callable[[Item], Result], items: Sequence[Item]) -> None:
        self._function, self._items = function, items

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> Result:
        return self._function(self._items[index])


def _identity(value: Any) -> Any:
    return value


def _with_seeds(parts: Sequence[Tensor], seeds: Sequence[int] | None) -> Iterator[tuple[Tensor, int | None]]:
    if seeds is not None and len(seeds) != len(parts):
        raise fail("batches", f"`seeds` must be one for each of {len(parts)} parts, got {len(seeds)}.")
    return zip(parts, seeds if seeds is not None else [None] * len(parts), strict=True)


def _describe(values: Tensor) -> str:
    return f"{values.dtype} of shape {tuple(values.shape)}".removeprefix("torch.")
