"""How networks learned: each one's numbers by epoch, and the mean over a method's networks."""

from itertools import zip_longest
from statistics import fmean
from typing import NamedTuple

from beliefmatch.experiments.records import ComparisonRecord

__all__ = ["CURVES", "Learning", "learning_curves"]

CURVES = (("loss", "training loss"), ("validation_error", "validation error"))
"""Names in a record, and in words."""


class Learning(NamedTuple):
    """One number by epoch, of every network of a method and on the mean; None where it was not finite."""

    epochs: list[int]
    """Counted from 1; without those that no network was validated after."""
    networks: list[list[float | None]]
    mean: list[float | None]


def learning_curves(record: ComparisonRecord, key: str) -> dict[int, Learning]:
    """By the place of the method, for those that recorded the number."""
    found = {}
    for index, method in enumerate(record.methods):
        networks = [curves[key] for run in method.runs for curves in run.curves if curves.get(key)]
        if networks:
            found[index] = _learning(networks, gaps=not key.startswith("validation_"))
    return found


def _learning(networks: list[list[float | None]], *, gaps: bool) -> Learning:
    rows = list(zip_longest(*networks))
    kept = [place for place, row in enumerate(rows) if gaps or any(value is not None for value in row)]
    return Learning(
        [place + 1 for place in kept],
        [[rows[place][network] for place in kept] for network in range(len(networks))],
        [_mean(rows[place]) for place in kept],
    )


def _mean(values: tuple[float | None, ...]) -> float | None:
    present = [value for value in values if value is not None]
    return fmean(present) if present else None
