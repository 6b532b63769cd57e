"""Small images: bytes in memory, gathered and augmented a batch at a time on the device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from beliefmatch._validate import fail
from beliefmatch.data.augment import crop_and_flip, noisy, normalised
from beliefmatch.data.preprocessing import Preprocessing
from beliefmatch.data.source import Batch
from beliefmatch.data.splits import fingerprint

__all__ = ["MemorySource", "as_targets", "inputs_digest", "paired"]

ON_DEVICE_BYTES = 2 << 30
"""Images that take more stay in the main memory, and only batches go to the device."""


class MemorySource:
    """Images held as bytes, a `Source`.

    Args:
        images: uint8 (N, H, W, C), C of 1 or 3; not copied where it need not be.
        targets: class ids (N,); -1 for each if not given.
        preprocessing: scaling, and augmentation for batches that come with a seed.
        rows: which of the images this source holds, in this order; all if not given. Sources made by
            `subset` share the images, on the device as well.
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
            images = images.copy()  # torch knows no tensors that cannot be written to
        pixels = torch.as_tensor(images)
        if pixels.dim() != 4 or pixels.dtype != torch.uint8 or pixels.shape[3] != preprocessing.channels:
            expected = f"uint8 of shape (N, H, W, {preprocessing.channels}), as `preprocessing` has channels"
            raise fail("MemorySource", f"`images` must be {expected}, got {_told(pixels)}.")
        self._held = _Held(pixels.contiguous())
        self._rows = torch.arange(len(pixels)) if rows is None else rows
        self._targets = as_targets(targets, len(pixels))[self._rows]
        self.preprocessing = preprocessing

    @property
    def targets(self) -> Tensor:
        """Class id of each example; -1 where there is none."""
        return self._targets

    @property
    def shape(self) -> tuple[int, int, int]:
        """C, H, W of the inputs."""
        _, height, width, channels = self._held.pixels.shape
        return channels, height, width

    @property
    def images(self) -> Tensor:
        """The bytes of every example, (N, H, W, C), on the CPU."""
        return self._held.pixels[self._rows]

    def __len__(self) -> int:
        return len(self._rows)

    def subset(self, rows: Any) -> MemorySource:
        """The examples of these rows alone; the images are shared, not copied."""
        part = object.__new__(MemorySource)
        chosen = torch.as_tensor(rows, dtype=torch.int64)
        part._held, part._rows, part._targets = self._held, self._rows[chosen], self._targets[chosen]
        part.preprocessing = self.preprocessing
        return part

    def digest(self) -> str:
        """What tells inputs and targets from others, as a hash: images, rows, labels, scaling; not chance."""
        identity = (self._held.pixels.numpy(), self._rows.numpy(), self._targets.numpy())
        return inputs_digest(self.shape, self.preprocessing, identity)

    def unlabelled(self) -> MemorySource:
        """The same examples without their class ids."""
        part = self.subset(torch.arange(len(self)))
        part._targets = as_targets(None, len(self))
        return part

    def seen_through(self, preprocessing: Preprocessing) -> MemorySource:
        """The same examples on another way into a network."""
        part = self.subset(torch.arange(len(self)))
        part.preprocessing = preprocessing
        return part

    def batches(
        self,
        parts: Sequence[Tensor],
        *,
        seeds: Sequence[int] | None = None,
        device: torch.device | str = "cpu",
    ) -> Iterator[Batch]:
        """One batch for each tensor of indices, in that order; see `Source`."""
        place = torch.device(device)
        for part, seed in paired(parts, seeds):
            images = self._held.gathered(self._rows[part], place)
            yield Batch(self._inputs(images, seed), self._targets[part].to(place, non_blocking=True))

    def _inputs(self, images: Tensor, seed: int | None) -> Tensor:
        how = self.preprocessing
        if seed is None:
            return normalised(images, mean=how.mean, std=how.std)
        generator = torch.Generator(images.device).manual_seed(seed)
        if how.augment != "none":
            flips = how.augment == "crop_flip"
            images = crop_and_flip(images, padding=how.padding, flips=flips, generator=generator)
        return noisy(normalised(images, mean=how.mean, std=how.std), std=how.noise, generator=generator)


class _Held:
    """Bytes that are sent to each device once, however many sources share them."""

    def __init__(self, pixels: Tensor) -> None:
        self.pixels = pixels
        self._copies: dict[torch.device, Tensor] = {}

    def gathered(self, rows: Tensor, device: torch.device) -> Tensor:
        if device.type == "cpu":
            return self.pixels[rows]
        if self.pixels.nbytes > ON_DEVICE_BYTES:
            return self.pixels[rows].to(device, non_blocking=True)
        if device not in self._copies:
            self._copies[device] = self.pixels.to(device)
        return self._copies[device][rows.to(device, non_blocking=True)]


def inputs_digest(
    shape: tuple[int, int, int], how: Preprocessing, identity: Iterable[bytes | str | np.ndarray]
) -> str:
    """A hash of images and of all that decides what a network sees of them when nothing is left to chance."""
    scaling = np.array([*how.mean, *how.std, how.margin])
    return fingerprint([f"{tuple(shape)}", scaling, *identity])


def as_targets(targets: Any, count: int) -> Tensor:
    """Class ids (count,) as int64, or -1 for each where there are none."""
    if targets is None:
        return torch.full((count,), -1)
    ids = torch.as_tensor(targets)
    if ids.shape != (count,) or ids.is_floating_point() or ids.dtype == torch.bool:
        raise fail("data", f"`targets` must be {count} whole numbers, got {_told(ids)}.")
    return ids.to(torch.int64)


def paired(parts: Sequence[Tensor], seeds: Sequence[int] | None) -> Iterator[tuple[Tensor, int | None]]:
    """Each part with its seed, or with None."""
    if seeds is not None and len(seeds) != len(parts):
        raise fail("batches", f"`seeds` must be one for each of {len(parts)} parts, got {len(seeds)}.")
    return zip(parts, seeds if seeds is not None else [None] * len(parts), strict=True)


def _told(values: Tensor) -> str:
    return f"{values.dtype} of shape {tuple(values.shape)}".removeprefix("torch.")
