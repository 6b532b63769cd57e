"""Means and deviations over seeds, as points of a figure."""

from collections.abc import Sequence
from statistics import fmean, stdev

from beliefmatch.reproduce.outcome import Measure, Trained
from beliefmatch.reproduce.record import Series

__all__ = ["mean_points"]


def mean_points(label: str, places: Sequence[float], arms: Sequence[Trained], measure: Measure) -> Series:
    """A line through the means of a number over the seeds; arms of which none came to an end are left out."""
    found = [[value for value in one.values(measure) if value is not None] for one in arms]
    kept = [(place, values) for place, values in zip(places, found, strict=True) if values]
    return Series(
        label,
        "line",
        [place for place, _ in kept],
        [fmean(values) for _, values in kept],
        [stdev(values) if len(values) > 1 else 0.0 for _, values in kept],
    )
