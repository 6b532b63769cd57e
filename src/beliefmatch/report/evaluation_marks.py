"""The best model of each row, and the models that are indistinguishable from it."""

from collections.abc import Sequence
from typing import Literal

from beliefmatch.experiments.evaluation_record import EvaluationRecord, Number
from beliefmatch.report.evaluation_metrics import Better
from beliefmatch.resampling import paired_difference

__all__ = ["PAIRED", "Mark", "above_best", "best", "detection_scores", "difference", "has_interval"]

Mark = Literal["best", "close", ""]

PAIRED = ("error", "nll", "brier", "ece")
"""Metrics whose draws a record keeps; of all of them less is better."""


def has_interval(number: Number) -> bool:
    """Whether both ends are known."""
    return number.low is not None and number.high is not None


def best(numbers: Sequence[Number], better: Better) -> list[Mark]:
    """Mark the best value, all of them where several tie, and those whose interval meets the best one's.

    Nothing is marked where there is nothing to compare, or nothing to choose, or a value without an interval.
    """
    folded = [_cost(number, better) for number in numbers]
    present = [cost for cost in folded if cost is not None]
    values = {value for value, _, _ in present}
    unsure = any(number.value is not None and not has_interval(number) for number in numbers)
    if not better or unsure or len(values) < 2:
        return [""] * len(numbers)
    least = min(values)
    reach = max(high for value, _, high in present if value == least)
    return [_mark(cost, least, reach) for cost in folded]


def _mark(cost: tuple[float, float, float] | None, least: float, reach: float) -> Mark:
    if cost is None:
        return ""
    value, low, _ = cost
    return "best" if value == least else "close" if low <= reach else ""


def _cost(number: Number, better: Better) -> tuple[float, float, float] | None:
    """Value, low and high turned so that less is better."""
    if number.value is None:
        return None
    value = number.value
    low, high = (value, value) if number.low is None or number.high is None else (number.low, number.high)
    if better == "high":
        return -value, -high, -low
    if better == "zero":
        nearest = 0.0 if low <= 0 <= high else min(abs(low), abs(high))
        return abs(value), nearest, max(abs(low), abs(high))
    return value, low, high


def above_best(records: Sequence[EvaluationRecord], key: str, marks: Sequence[Mark]) -> list[Number]:
    """How much larger a metric of each model is than that of the best one, with an interval of that.

    Draw by draw, of the same rows for both. Empty where no model drew the rows of the best one.
    """
    if "best" not in marks:
        return []
    first = marks.index("best")
    found = [
        Number(0.0) if index == first else difference(record, records[first], key)
        for index, record in enumerate(records)
    ]
    return found if any(map(has_interval, found)) else []


def detection_scores(marks: Sequence[Mark], differences: Sequence[Number]) -> list[Mark | None]:
    """Marks by whether the interval of the difference from the best holds 0; None where it is not known."""
    return [
        mark if mark == "best" else _zero(difference) if has_interval(difference) else None
        for mark, difference in zip(marks, differences, strict=True)
    ]


def _zero(difference: Number) -> Mark:
    return "close" if difference.low is not None and difference.low <= 0 else ""


def difference(record: EvaluationRecord, reference: EvaluationRecord, key: str) -> Number:
    """How much larger a metric of one model is than that of another, on the same draws where there are some.

    No value, and why, where there are none.
    """
    number, other = record.scores.get(key, Number(None)), reference.scores[key]
    if number.value is None or other.value is None:
        return Number(None, why=number.why)
    common = _drawn(record, key)
    if record.draws is None or reference.draws is None or common is None or common != _drawn(reference, key):
        return Number(None, why="not drawn alike")
    return Number(
        *paired_difference(
            (number.value, other.value),
            (record.draws.metrics[key], reference.draws.metrics[key]),
            level=record.settings["level"],
            trials=record.examples if key == "error" else None,
        )
    )


def _drawn(record: EvaluationRecord, key: str) -> tuple[object, ...] | None:
    """What two models must have in common, so that their draws of a metric are of the same rows; or None."""
    values = record.draws.metrics.get(key) if record.draws else None
    targets, level = record.settings.get("targets_sha256"), record.settings.get("level")
    if record.draws is None or not values or None in values:
        return None
    if not targets or not isinstance(level, float) or not 0 < level < 1:
        return None
    n_bins = record.settings.get("n_bins") if key == "ece" else None
    return record.examples, targets, level, n_bins, record.draws.rows_sha256, len(values)
