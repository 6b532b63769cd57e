"""Whether kept features are still what the network gives: code that no key can see may have changed."""

from collections.abc import Iterator

import numpy as np
import torch

from beliefmatch.adaptation.computing import BF16_TOLERANCE, Computing
from beliefmatch.adaptation.streams import Piece, Stream
from beliefmatch.adaptation.types import Features

__all__ = ["largest_change"]

_FIRST, _MIDDLE = 8, 4  # rows that are computed again
_TOLERANCE = {"float32": 1e-3, "float16": 2e-3}  # of a row's norm; batches of other sizes round otherwise


def largest_change(kept: Features, stream: Stream, computing: Computing) -> float | None:
    """By how much a few rows differ when computed again, over their norm; None where that is rounding.

    Data that change by chance from reading to reading tell nothing, so they count as unchanged. Features of
    another width differ by infinity.
    """
    largest = 0.0
    for piece in _few(kept, stream):
        rows = computing(piece)
        stored = kept.rows[piece.start : piece.start + len(rows)]
        largest = max(largest, _change(stored, rows))
    tolerance = max(_TOLERANCE[computing.dtype], BF16_TOLERANCE if computing.bf16 else 0.0)
    return largest if largest > tolerance and _is_repeatable(kept, stream) else None


def _few(kept: Features, stream: Stream) -> Iterator[Piece]:
    """Some rows of the beginning, and of the middle where rows can be read in any order."""
    middle = max(0, len(kept) // 2 - _MIDDLE // 2)
    indices = [torch.arange(min(_FIRST, len(kept)))]
    if middle >= _FIRST:
        indices.append(torch.arange(middle, middle + _MIDDLE))
    if (picked := stream.picked(indices)) is not None:
        yield from picked
        return
    start, inputs, targets = stream.first()
    few = min(_FIRST, len(kept))
    yield Piece(start, inputs[:few], targets[:few])


def _is_repeatable(kept: Features, stream: Stream) -> bool:
    one, two = ([piece.inputs for piece in _few(kept, stream)] for _ in range(2))
    return all(map(torch.equal, one, two))


def _change(stored: np.ndarray, rows: np.ndarray) -> float:
    if stored.shape != rows.shape:
        return float("inf")
    one, two = stored.astype(np.float64), rows.astype(np.float64)
    norms = np.maximum(np.linalg.norm(one, axis=1), np.linalg.norm(two, axis=1))
    return float((np.linalg.norm(one - two, axis=1) / norms.clip(1e-30)).max())
