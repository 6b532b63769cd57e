"""Rows of a reproduction as text: the paper's number, and ours over the seeds."""

from collections.abc import Sequence
from statistics import fmean, stdev

from beliefmatch.report.evaluation_text import MISSING, number_text, tidy
from beliefmatch.reproduce.record import Reported, ReproductionRecord, Row

__all__ = [
    "DEVIATIONS",
    "caption",
    "count",
    "grouped",
    "has_paper",
    "measures_of",
    "ours_text",
    "paper_text",
    "shown_reproduction",
]


DEVIATIONS = "± is the standard deviation over the seeds that came to an end (n − 1 in the denominator)."


def shown_reproduction(record: ReproductionRecord) -> ReproductionRecord:
    """Without control characters in its texts and without NaN or infinity."""
    return tidy(record)


def paper_text(reported: Reported | None, digits: int) -> str:
    """Such as "6.13 ± 0.13"."""
    if reported is None:
        return MISSING
    return _with_deviation(reported.value, reported.deviation, digits)


def ours_text(row: Row) -> str:
    """Mean and standard deviation (n − 1 in the denominator) of the seeds that came to an end.

    Where some of these have no finite number, such as an infinite NLL, it says of how many seeds it is.
    """
    present = [value for value in row.values if value is not None]
    if not present:
        return "diverged" if row.diverged == len(row.values) else MISSING
    deviation = stdev(present) if len(present) > 1 else None
    ended = len(row.values) - row.diverged
    told = f" ({len(present)} of {ended} seeds)" if len(present) < ended else ""
    return _with_deviation(fmean(present), deviation, row.digits) + told


def count(row: Row) -> int:
    """Seeds that have a number."""
    return sum(value is not None for value in row.values)


def _with_deviation(value: float, deviation: float | None, digits: int) -> str:
    mean = number_text(value, digits)
    return mean if deviation is None else f"{mean} ± {number_text(deviation, digits)}"


def grouped(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """By their groups, in order."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.group, []).append(row)
    return found


def has_paper(rows: Sequence[Row]) -> bool:
    """Whether the paper has a number for any."""
    return any(row.paper is not None for row in rows)


def measures_of(rows: Sequence[Row]) -> dict[str, dict[str, Row]]:
    """By their labels, then by the measure with its unit."""
    found: dict[str, dict[str, Row]] = {}
    for row in rows:
        found.setdefault(row.label, {})[f"{row.measure} {row.unit}".strip()] = row
    return found


def caption(record: ReproductionRecord) -> str:
    """What is said with every table and figure."""
    seeds = len(record.seeds)
    return f"{record.scale_words}; {seeds} seed{'' if seeds == 1 else 's'}"
