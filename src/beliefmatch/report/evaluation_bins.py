"""The bins of a reliability diagram: how sure their accuracy is, and which are joined by a line."""

from math import sqrt
from typing import NamedTuple

from beliefmatch.experiments.evaluation_record import Bins

__all__ = ["FEW", "DrawnBin", "drawn_bins", "joined", "thin", "wilson"]

FEW = 10
"""Bins of fewer examples are drawn pale, and no line runs to them."""
_Z = 1.959964  # a normal variable lies within it 95 times in 100


class DrawnBin(NamedTuple):
    """Examples of like confidence; `low` and `high` are the interval of the accuracy."""

    lower: float
    upper: float
    examples: int
    confidence: float
    accuracy: float
    low: float
    high: float


def wilson(share: float, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share seen in `count` draws.

    >>> low, high = wilson(0.5, 10)
    >>> round(low, 4), round(high, 4)
    (0.2366, 0.7634)
    """
    scale = 1 + _Z**2 / count
    middle = (share + _Z**2 / (2 * count)) / scale
    half = _Z * sqrt(share * (1 - share) / count + _Z**2 / (4 * count**2)) / scale
    return min(max(middle - half, 0.0), share), max(min(middle + half, 1.0), share)


def drawn_bins(bins: Bins) -> list[DrawnBin | None]:
    """Every bin in its place, None where it is empty."""
    columns = zip(bins.lower, bins.upper, bins.count, bins.confidence, bins.accuracy, strict=True)
    return [
        DrawnBin(lower, upper, count, confidence, accuracy, *wilson(accuracy, count))
        if count and confidence is not None and accuracy is not None
        else None
        for lower, upper, count, confidence, accuracy in columns
    ]


def joined(bins: Bins) -> list[DrawnBin | None]:
    """The bins that a line joins, with None between those that have none or a thin one in between."""
    kept: list[DrawnBin | None] = []
    for drawn in drawn_bins(bins):
        if drawn is not None and drawn.examples >= FEW:
            kept.append(drawn)
        elif kept and kept[-1] is not None:
            kept.append(None)
    return kept[:-1] if kept and kept[-1] is None else kept


def thin(bins: Bins) -> list[DrawnBin]:
    """The bins of few examples."""
    return [drawn for drawn in drawn_bins(bins) if drawn is not None and drawn.examples < FEW]
