"""Sources of batches: small images in memory, large ones decoded by worker processes, examples with votes."""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from beliefmatch._utils import derive_seed
from beliefmatch._validate import describe, fail
from beliefmatch.data.images import Images, UnreadableImage
from beliefmatch.data.preprocessing import Preprocessing
from beliefmatch.data.splits import RowSelection, content_digest
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
    "ImageSource",
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

_BatchRequests = Sequence[tuple[Tensor, int | None]]  # indices and seed of each batch
Result = TypeVar("Result")


class Batch(NamedTuple):
    """Inputs, float32, and their class ids (N,), on one device.

    Images are (N, C, H, W) in the channels-last layout, rows of a table (N, F).
    """

    inputs: Tensor
    targets: Tensor


class Source:
    """Examples that can be read in any order, any number of times.

    Attributes:
        targets: class id of each example, int64 (N,), on the CPU; -1 where there is none.
        shape: C, H, W of images, or the number of inputs of a row.
    """

    targets: Tensor
    shape: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.targets)

    def digest(self) -> str:
        """A hash of inputs and targets."""
        raise NotImplementedError

    def batches(
        self,
        indices: Sequence[Tensor],
        *,
        seeds: Sequence[int] | None = None,
        device: torch.device | str = "cpu",
    ) -> Iterator[Batch]:
        """One batch for each tensor of indices, in that order.

        An image that cannot be read raises an error in this process, with the image's name.

        Args:
            indices: of the examples of each batch, int64 on the CPU.
            seeds: of each batch's augmentation, which depends on them alone; no augmentation if not given.
            device: where the batches go.
        """
        if seeds is not None and len(seeds) != len(indices):
            raise fail(
                "batches", f"`seeds` must be one for each of {len(indices)} batches, got {len(seeds)}."
            )
        place, own_seeds = torch.device(device), [None] * len(indices) if seeds is None else seeds
        with closing(self._inputs(list(zip(indices, own_seeds, strict=True)), place)) as results:
            for chosen, inputs in zip(indices, results, strict=True):
                yield Batch(inputs, self.targets[chosen].to(place, non_blocking=True))

    def _inputs(self, requests: _BatchRequests, device: torch.device) -> Generator[Tensor, None, None]:
        """The inputs of each batch."""
        raise NotImplementedError


class ImageSource(Source):
    """Some rows of a set of images with class ids; the base of `MemorySource` and `StreamedSource`."""

    def __init__(self, count: int, targets: Any, preprocessing: Preprocessing) -> None:
        ids = torch.full((count,), -1) if targets is None else torch.as_tensor(targets)
        if ids.shape != (count,) or ids.is_floating_point() or ids.dtype == torch.bool:
            raise fail("data", f"`targets` must be {count} whole numbers, got {describe(ids)}.")
        self.targets, self.preprocessing = ids.to(torch.int64), preprocessing
        self._rows = torch.arange(count)

    def subset(self, rows: Any) -> Self:
        """The examples of these rows alone; the images are shared, not copied."""
        chosen = torch.as_tensor(rows, dtype=torch.int64)
        return self._with(_rows=self._rows[chosen], targets=self.targets[chosen])

    def unlabelled(self) -> Self:
        """The same examples without their class ids."""
        return self._with(targets=torch.full((len(self),), -1))

    def with_preprocessing(self, preprocessing: Preprocessing) -> Self:
        """The same examples with another preprocessing."""
        if preprocessing.channels != self.shape[0]:
            expected = f"{self.shape[0]} channels, as the images have"
            raise fail("data", f"`preprocessing` must have {expected}, got {preprocessing.channels}.")
        return self._with(preprocessing=preprocessing)

    def _with(self, **changes: Any) -> Self:
        other = copy.copy(self)
        vars(other).update(changes)
        return other

    def digest(self) -> str:
        """A hash of images, rows, labels and scaling; augmentation has no part in it.

        Image files count by name and size alone.
        """
        scaling = np.array([*self.preprocessing.mean, *self.preprocessing.std, self.preprocessing.margin])
        order = ["bgr"] if self.preprocessing.channel_order == "bgr" else []
        rows, targets = self._rows.numpy(), self.targets.numpy()
        return content_digest([f"{tuple(self.shape)}", scaling, *order, *self.identity(), rows, targets])

    def identity(self) -> Iterator[bytes | str | np.ndarray]:
        """What distinguishes the images from others, for the digest."""
        raise NotImplementedError

    def _normalise(self, images: Tensor) -> Tensor:
        return network_inputs(images, self.preprocessing)


def network_inputs(images: Tensor, preprocessing: Preprocessing) -> Tensor:
    """Bytes (N, H, W, C) as what enters a network (N, C, H, W), without augmentation."""
    inputs = normalise(images, mean=preprocessing.mean, std=preprocessing.std)
    return inputs.flip(1) if preprocessing.channel_order == "bgr" else inputs


class MemorySource(ImageSource):
    """Small images held as bytes, gathered and augmented a batch at a time on the device.

    Args:
        images: uint8 (N, H, W, C), C of 1 or 3; copied only where necessary. Sources made by `subset` share
            them, on the device as well.
        targets: class ids (N,); -1 for each if not given.
        preprocessing: scaling, and augmentation for batches that come with a seed.
    """

    def __init__(
        self, images: Tensor | np.ndarray, targets: Any = None, *, preprocessing: Preprocessing
    ) -> None:
        if isinstance(images, np.ndarray) and not images.flags.writeable:
            images = images.copy()  # torch has no read-only tensors
        self.pixels = torch.as_tensor(images).contiguous()
        shape, channels = tuple(self.pixels.shape), preprocessing.channels
        if len(shape) != 4 or self.pixels.dtype != torch.uint8 or shape[3] != channels:
            expected = f"uint8 of shape (N, H, W, {channels}), as `preprocessing` has channels"
            raise fail("MemorySource", f"`images` must be {expected}, got {describe(self.pixels)}.")
        super().__init__(len(self.pixels), targets, preprocessing)
        self.shape = (channels, shape[1], shape[2])
        self._on_device: dict[torch.device, Tensor] = {}  # shared by all subsets

    def __getstate__(self) -> dict[str, Any]:
        """Without the copies on devices, for another process."""
        return {**self.__dict__, "_on_device": {}}

    @property
    def images(self) -> Tensor:
        """The bytes of every example, (N, H, W, C), on the CPU."""
        return self.pixels[self._rows]

    def identity(self) -> Iterator[np.ndarray]:
        """All bytes."""
        yield self.pixels.numpy()

    def _inputs(self, requests: _BatchRequests, device: torch.device) -> Generator[Tensor, None, None]:
        preprocessing = self.preprocessing
        for indices, seed in requests:
            images = self._gather(self._rows[indices], device)
            if seed is None:
                yield self._normalise(images)
                continue
            generator = torch.Generator(images.device).manual_seed(seed)
            if preprocessing.augment != "none":
                flip = preprocessing.augment == "crop_flip"
                images = crop_and_flip(images, padding=preprocessing.padding, flip=flip, generator=generator)
            yield add_noise(self._normalise(images), std=preprocessing.noise, generator=generator)

    def _gather(self, rows: Tensor, device: torch.device) -> Tensor:
        if device.type == "cpu":
            return self.pixels[rows]
        if self.pixels.nbytes > ON_DEVICE_BYTES:
            return self.pixels[rows].to(device, non_blocking=True)
        if device not in self._on_device:
            self._on_device[device] = self.pixels.to(device)
        return self._on_device[device][rows.to(device, non_blocking=True)]


class StreamedSource(ImageSource):
    """Large images that worker processes decode and crop when they are needed.

    Args:
        images: the images in any encoding.
        targets: class ids, one for each image; -1 for each if not given.
        shape: C, H, W of the inputs.
        preprocessing: scaling, and augmentation for batches that come with a seed.
        workers: processes that read whole batches; 0 reads in this process.
    """

    def __init__(
        self,
        images: Images,
        targets: Any = None,
        *,
        shape: tuple[int, int, int],
        preprocessing: Preprocessing,
        workers: int = 2,
    ) -> None:
        if shape[0] != preprocessing.channels:
            expected = f"{preprocessing.channels} channels, as `preprocessing` has"
            raise fail("StreamedSource", f"`shape` must have {expected}, got {shape}.")
        super().__init__(len(images), targets, preprocessing)
        self._images, self.shape, self._workers = images, shape, workers

    def identity(self) -> Iterator[bytes | str | np.ndarray]:
        """Identity of the underlying images."""
        return self._images.identity()

    def _inputs(self, requests: _BatchRequests, device: torch.device) -> Generator[Tensor, None, None]:
        preprocessing = self.preprocessing
        reader = BatchReader(
            self._images, self.shape, margin=preprocessing.margin, augment=preprocessing.augment
        )
        keys = [(self._rows[indices].numpy(), seed) for indices, seed in requests]
        results = in_order(reader, keys, workers=self._workers, pinned=device.type == "cuda")
        with closing(results):  # or an error would keep the workers as long as its traceback
            for (_, seed), result in zip(requests, results, strict=True):
                for _, name, reason in result.failures:
                    raise unreadable(name, reason)
                inputs = self._normalise(result.pixels.to(device, non_blocking=True))
                if seed is not None and preprocessing.noise:
                    generator = torch.Generator(device).manual_seed(derive_seed(seed, _NOISE))
                    inputs = add_noise(inputs, std=preprocessing.noise, generator=generator)
                yield inputs


class CountedSource(Source):
    """The examples of another source with votes as their targets.

    Args:
        source: the examples.
        counts: votes for each class, floating point (N, K), on the CPU.
    """

    def __init__(self, source: Source, counts: Tensor) -> None:
        if counts.dim() != 2 or len(counts) != len(source) or not counts.is_floating_point():
            expected = f"floating point of shape ({len(source)}, K)"
            raise fail("CountedSource", f"`counts` must be {expected}, got {describe(counts)}.")
        self._source, self.targets, self.shape = source, counts, source.shape

    def digest(self) -> str:
        """A hash of inputs and votes."""
        return content_digest([self._source.digest(), self.targets.numpy()])

    def _inputs(self, requests: _BatchRequests, device: torch.device) -> Generator[Tensor, None, None]:
        return self._source._inputs(requests, device)


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
    sources: Mapping[str, ImageSource] = field(default_factory=dict)
    role_rows: Mapping[str, RowSelection] = field(default_factory=dict)

    def with_preprocessing(self, preprocessing: Preprocessing) -> Dataset:
        """The same images and split with another preprocessing."""

        def changed(source: Any) -> Any:
            return source if source is None else source.with_preprocessing(preprocessing)

        return replace(
            self,
            train=changed(self.train),
            validation=changed(self.validation),
            test=changed(self.test),
            unlabelled=changed(self.unlabelled),
            facts={**self.facts, "preprocessing": preprocessing.to_json()},
            sources={name: changed(source) for name, source in self.sources.items()},
        )

    @property
    def epoch_images(self) -> int:
        """Training images, whether labelled or not: an epoch is as long as one pass over them."""
        return len(self.train) + (0 if self.unlabelled is None else len(self.unlabelled))

    @cached_property
    def digests(self) -> dict[str, str]:
        """The digest of each part, whatever the split; computed on first use, from all bytes in memory."""
        return {name: source.digest() for name, source in self.sources.items()}


class ReadImages(NamedTuple):
    """Pixels (N, H, W, C) of a batch, and the images that could not be read."""

    pixels: Tensor
    failures: list[tuple[int, str, str]]
    """Position in the batch, name of the image and reason."""
    coloured: bool
    """Whether any image was not grey."""
    sizes: set[tuple[int, int]]
    """Height and width of the images before they were resized."""


class BatchReader(TorchDataset[ReadImages]):
    """Decodes a batch of images and crops them: at random where a seed is given, else their centres.

    A random crop depends on the seed and the position in the batch alone, so that neither the number of
    workers nor their speed changes the result.
    """

    def __init__(
        self, images: Images, shape: tuple[int, ...], *, margin: float = 1.0, augment: str = "none"
    ) -> None:
        self._images, self._shape = images, shape
        self._margin, self._augment = margin, augment

    def __getitem__(self, key: tuple[np.ndarray, int | None]) -> ReadImages:
        """Read the images of these rows, with this seed."""
        rows, seed = key
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
    remedy = 'repair or remove it, or set `corrupt` to "skip"'
    return fail("data", f"images must be readable, got {name} ({reason}); {remedy}.")


def in_order(
    dataset: TorchDataset[Result], keys: Sequence[Any], *, workers: int, pinned: bool = False
) -> Generator[Result, None, None]:
    """Get the item of each key in worker processes and yield the items in the order of the keys.

    Without workers, or with one key, it runs in this process. The caller's random state is not touched.
    The workers must be able to import the dataset's class, and `__getitem__` may not raise.
    """
    if workers == 0 or len(keys) < 2:
        yield from map(dataset.__getitem__, keys)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on machines with fewer cores than workers, and on forks
        loader = DataLoader(
            dataset,
            sampler=keys,
            batch_size=None,
            num_workers=min(workers, len(keys)),
            pin_memory=pinned,
            generator=torch.Generator(),  # or the loader would draw from the global one
        )
        results = iter(loader)
    try:
        yield from results
    except RuntimeError as error:
        if "DataLoader worker (pid" not in f"{error}":
            raise
        remedy = "give them more memory (/dev/shm in a container), or set `workers` to fewer or to 0"
        raise RuntimeError(f"data: a process that reads images died; {remedy}.") from error
