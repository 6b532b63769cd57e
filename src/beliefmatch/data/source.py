"""What a training sees of data, wherever the images are."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

__all__ = ["Batch", "Dataset", "Source"]


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
        """What tells inputs and targets from others, as a hash."""
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
            seeds: of each batch's augmentation, which depends on them alone; none if not given.
            device: where the batches go.
        """
        ...


@dataclass(frozen=True, eq=False)
class Dataset:
    """Disjoint sets to fit on, to choose settings on, and to report on."""

    name: str
    train: Source
    validation: Source
    test: Source
    class_names: tuple[str, ...]
    unlabelled: Source | None = None
    """Training images whose labels are held back; all have one if there are none."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What a record says of the data, as JSON can hold it: counts, split seed, "digest" and so on."""

    @property
    def epoch_images(self) -> int:
        """Training images, whether labelled or not: an epoch is as long as one pass over them."""
        return len(self.train) + (0 if self.unlabelled is None else len(self.unlabelled))
