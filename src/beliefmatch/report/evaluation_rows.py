"""Which numbers of a record are shown, in what order, which way is better, and which model does best."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from beliefmatch.experiments.evaluation_record import Detection, EvaluationRecord, Number
from beliefmatch.report.evaluation_metrics import (
    BRIER,
    CALIBRATION,
    PREDICTIONS,
    SELECTION,
    Better,
    Metric,
    detection_metrics,
    score_title,
    set_title,
    unit,
)
from beliefmatch.report.evaluation_text import foreign_names, number_text

__all__ = [
    "MISCLASSIFICATION",
    "Cell",
    "Row",
    "Section",
    "detection_of",
    "detection_sections",
    "headline_score",
    "same_examples",
    "score_names",
    "summary",
]

Mark = Literal["best", "close", ""]

MISCLASSIFICATION = None
"""Stands in the place of a foreign set's name: wrong predictions are to be told from right ones."""


class Cell(NamedTuple):
    """One number as text. `interval` is empty where there is none, `why` where nothing is missing."""

    value: str
    interval: str
    why: str
    mark: Mark
    chance: str = ""
    """What guessing would give, where that differs from model to model."""


@dataclass(frozen=True)
class Row:
    """One metric of every model, in the order of the records."""

    metric: Metric
    numbers: list[Number]
    set: str = ""
    score: str = ""
    chances: Sequence[float | None] = ()
    compares: bool = True
    """Whether the models were judged on the same examples."""

    @property
    def key(self) -> str:
        """The metric's name in a record."""
        return self.metric.key

    @property
    def title(self) -> str:
        """The metric's name in words."""
        return self.metric.title

    @property
    def better(self) -> Better:
        """Which way is better."""
        return self.metric.better

    @property
    def unit(self) -> str:
        """Percent sign, nats, or nothing."""
        return unit(self.metric)

    def cells(self) -> list[Cell]:
        """The numbers as text, with the best ones marked."""
        marks = best(self.numbers, self.better if self.metric.comparable and self.compares else "")
        chances = self.chances or [None] * len(self.numbers)
        return [self._cell(*parts) for parts in zip(self.numbers, marks, chances, strict=True)]

    def _cell(self, number: Number, mark: Mark, chance: float | None) -> Cell:
        if number.value is None:
            return Cell("—", "", number.why or "not evaluated", "")
        low, high = self._text(number.low), self._text(number.high)
        interval = f"[{low}, {high}]" if _has_interval(number) else ""
        guess = "" if chance is None else f"chance {self._text(chance)}"
        return Cell(self._text(number.value), interval, "", mark, guess)

    def _text(self, value: float | None) -> str:
        share = self.metric.is_share
        return number_text(value, 2 if share else 4, scale=100 if share else 1)


def _has_interval(number: Number) -> bool:
    return number.low is not None and number.high is not None


class Section(NamedTuple):
    """Rows under a heading; `set` is a foreign set's name, None for misclassification, "" for neither."""

    title: str
    rows: list[Row]
    set: str | None = ""


def best(numbers: Sequence[Number], better: Better) -> list[Mark]:
    """Mark the best value, all of them where several tie, and those whose interval meets the best one's.

    Nothing is marked where there is nothing to compare, or nothing to choose, or a value without an interval.
    """
    folded = [_cost(number, better) for number in numbers]
    present = [cost for cost in folded if cost is not None]
    values = {value for value, _, _ in present}
    unsure = any(number.value is not None and not _has_interval(number) for number in numbers)
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


def summary(records: Sequence[EvaluationRecord]) -> list[Section]:
    """The numbers that tell the models apart at a glance."""
    sections = [
        Section("Predictions", [*_score_rows(records, PREDICTIONS), *_brier_rows(records)]),
        Section("Calibration", list(_score_rows(records, CALIBRATION))),
        Section("Selective prediction", list(_score_rows(records, SELECTION))),
        Section("Detection by " + score_title(headline_score(records)), list(_headlines(records))),
        Section("Other", list(_other_rows(records))),
    ]
    return _compared(records, [section for section in sections if section.rows])


def same_examples(records: Sequence[EvaluationRecord]) -> bool:
    """Whether all models were judged on as many examples and, as far as is known, on the same targets."""
    sizes = {record.examples for record in records}
    digests = {record.settings.get("targets_sha256") for record in records} - {None}
    return len(sizes) == 1 and len(digests) <= 1


def _compared(records: Sequence[EvaluationRecord], sections: list[Section]) -> list[Section]:
    """Without marks where the models were judged on different examples."""
    same = same_examples(records)
    return [s._replace(rows=[replace(row, compares=same) for row in s.rows]) for s in sections]


def _score_rows(records: Sequence[EvaluationRecord], metrics: Sequence[Metric]) -> Iterator[Row]:
    absent = Number(None, why="not in this record")
    for metric in metrics:
        if any(metric.key in record.scores for record in records):
            numbers = [record.scores.get(metric.key, absent) for record in records]
            yield Row(metric._replace(title=_with_k(metric.title, records)), numbers)


def _with_k(title: str, records: Sequence[EvaluationRecord]) -> str:
    """ "Top-k error" says which k, if the records agree on it."""
    found = {str(record.settings.get("top_k", "k")) for record in records}
    return title.replace("Top-k", f"Top-{found.pop()}") if len(found) == 1 else title


def _other_rows(records: Sequence[EvaluationRecord]) -> Iterator[Row]:
    """Metrics of a later version: shown, without an opinion on which way is better."""
    known = {metric.key for metric in (*PREDICTIONS, *CALIBRATION, *SELECTION)}
    keys = dict.fromkeys(key for record in records for key in record.scores if key not in known)
    yield from _score_rows(records, [Metric(key, key.replace("_", " "), "", False) for key in keys])


def _brier_rows(records: Sequence[EvaluationRecord]) -> Iterator[Row]:
    for metric in BRIER:
        part = metric.key.removeprefix("brier_")
        yield Row(metric, [_part(getattr(record.brier_shares, part)) for record in records])


def _part(value: float | None) -> Number:
    return Number(value, why="" if value is not None else "no finite value")


def _headlines(records: Sequence[EvaluationRecord]) -> Iterator[Row]:
    score = headline_score(records)
    for name in (MISCLASSIFICATION, *foreign_names(records)):
        shown = ("auroc", "fpr95") if name is not None else ("auroc",)
        for row in _detection_rows(records, name, score, shown):
            of = f": {set_title(name)}"
            short = f"{row.metric.short}{of}" if row.metric.short else ""
            yield replace(row, metric=row.metric._replace(title=row.title + of, short=short))


def detection_sections(records: Sequence[EvaluationRecord]) -> list[Section]:
    """All detection numbers: wrong predictions, then each foreign set, with every score."""
    scores = score_names(records)
    sections = [
        Section(
            "Wrong predictions" if name is None else name,
            [row for score in scores for row in _detection_rows(records, name, score)],
            name,
        )
        for name in (MISCLASSIFICATION, *foreign_names(records))
    ]
    return _compared(records, sections)


def _detection_rows(
    records: Sequence[EvaluationRecord], name: str | None, score: str, keys: Sequence[str] = ()
) -> Iterator[Row]:
    found = [detection_of(record, name, score) for record in records]
    if not any(found):
        return
    absent = Number(None, why="not evaluated for this model")
    metrics = detection_metrics(name)
    for key in keys or metrics:
        numbers = [getattr(detection, key) if detection else absent for detection in found]
        chances = [] if metrics[key].comparable else [_chance(record, key) for record in records]
        yield Row(metrics[key], numbers, "misclassification" if name is None else name, score, chances)


def _chance(record: EvaluationRecord, key: str) -> float | None:
    """The share of wrong predictions, or of right ones: the AUPR of a score that knows nothing."""
    error = record.scores.get("error", Number(None)).value
    return error if error is None or key == "aupr_outside" else 1 - error


def detection_of(record: EvaluationRecord, name: str | None, score: str) -> Detection | None:
    """What one score makes of a foreign set, or of wrong predictions; None where it was not tried."""
    if name is None:
        detections = record.misclassification
    else:
        detections = next((foreign.detections for foreign in record.foreign if foreign.name == name), [])
    return next((detection for detection in detections if detection.score == score), None)


def score_names(records: Sequence[EvaluationRecord]) -> list[str]:
    """Every score that any record used, in the order of their first appearance."""
    everything = (
        detection.score
        for record in records
        for detections in (record.misclassification, *(foreign.detections for foreign in record.foreign))
        for detection in detections
    )
    return list(dict.fromkeys(everything))


def headline_score(records: Sequence[EvaluationRecord]) -> str:
    """The paper's predictive entropy if it was used, else the first score."""
    names = score_names(records)
    return "entropy" if "entropy" in names or not names else names[0]
