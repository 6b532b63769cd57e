"""Examples that come with votes for their classes in place of class ids."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from beliefmatch._validate import fail
from beliefmatch.data.source import Batch, Source
from beliefmatch.data.splits import fingerprint

__all__ = ["CountedSource"]


class CountedSource:
    """The examples of another source with votes as their targets, a `Source` but for that.

    Args:
        source: the examples.
        counts: votes for each class, floating point (N, K), on the CPU.
    """

    def __init__(self, source: Source, counts: Tensor) -> None:
        if counts.dim() != 2 or len(counts) != len(source) or not counts.is_floating_point():
            expected = f"floating point of shape ({len(source)}, K)"
            raise fail(
                "CountedSource", f"`counts` must be {expected}, got {counts.dtype} {tuple(counts.shape)}."
            )
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
        """What tells inputs and votes from others, as a hash."""
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
