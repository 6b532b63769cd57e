"""Which numbers of a record are shown, in what order, which way is better, and which model does best."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from beliefmatch.experiments.evaluation_record import Detection, EvaluationRecord, Number
from beliefmatch.report.evaluation_text import foreign_names, number_text

__all__ = [
    "MISCLASSIFICATION",
    "Cell",
    "Row",
    "Section",
    "detection_of",
    "detection_sections",
    "headline_score",
    "metric_title",
    "score_names",
    "score_title",
    "summary",
]

Better = Literal["low", "high", "zero", ""]
Mark = Literal["best", "close", ""]

MISCLASSIFICATION = None
"""Stands in the place of a foreign set's name: wrong predictions are to be told from right ones."""


class _Metric(NamedTuple):
    key: str
    title: str
    better: Better
    is_share: bool = True
    """Shown in percent."""


_PREDICTIONS = (
    _Metric("error", "Error", "low"),
    _Metric("top_k_error", "Top-k error", "low"),
    _Metric("nll", "Negative log-likelihood", "low", False),
    _Metric("brier", "Brier score", "low", False),
)
_BRIER = (
    _Metric("brier_reliability", "Brier: reliability", "low", False),
    _Metric("brier_resolution", "Brier: resolution", "high", False),
    _Metric("brier_uncertainty", "Brier: uncertainty", "", False),
    _Metric("brier_remainder", "Brier: remainder", "", False),
)
_CALIBRATION = (
    _Metric("ece", "Expected calibration error", "low"),
    _Metric("mce", "Maximum calibration error", "low"),
    _Metric("adaptive_ece", "Adaptive calibration error", "low"),
    _Metric("classwise_ece", "Classwise calibration error", "low"),
    _Metric("debiased_ece", "Debiased calibration error, RMS", "low"),
    _Metric("overconfidence", "Overconfidence", "zero"),
    _Metric("mean_confidence", "Mean confidence", ""),
    _Metric("mean_entropy", "Mean predictive entropy", "", False),
)
_SELECTION = (
    _Metric("aurc", "Area under risk-coverage", "low"),
    _Metric("excess_aurc", "Excess of that area", "low"),
)
_DETECTION = (
    _Metric("auroc", "AUROC", "high"),
    _Metric("aupr_outside", "AUPR, outside positive", "high"),
    _Metric("aupr_inside", "AUPR, inside positive", "high"),
    _Metric("fpr95", "FPR at 95 % TPR", "low"),
)
_SCORES = {
    "entropy": "predictive entropy",
    "confidence": "1 − largest probability",
    "spread": "Dirichlet spread (mutual information)",
    "differential_entropy": "differential entropy",
    "precision": "−ln α₀",
    "energy": "energy",
}


class Cell(NamedTuple):
    """One number as text. `interval` is empty where there is none, `why` where nothing is missing."""

    value: str
    interval: str
    why: str
    mark: Mark


@dataclass(frozen=True)
class Row:
    """One metric of every model, in the order of the records."""

    key: str
    title: str
    better: Better
    is_share: bool
    numbers: list[Number]
    set: str = ""
    score: str = ""

    @property
    def unit(self) -> str:
        """Percent sign, or nothing."""
        return "%" if self.is_share else ""

    def cells(self) -> list[Cell]:
        """The numbers as text, with the best ones marked."""
        marks = best(self.numbers, self.better)
        return [self._cell(number, mark) for number, mark in zip(self.numbers, marks, strict=True)]

    def _cell(self, number: Number, mark: Mark) -> Cell:
        def text(value: float | None) -> str:
            return number_text(value, 2 if self.is_share else 4, scale=100 if self.is_share else 1)

        if number.value is None:
            return Cell("—", "", number.why or "not evaluated", "")
        known = number.low is not None and number.high is not None
        interval = f"[{text(number.low)}, {text(number.high)}]" if known else ""
        return Cell(text(number.value), interval, "", mark)


class Section(NamedTuple):
    """Rows under a heading; `set` is a foreign set's name, None for misclassification, "" for neither."""

    title: str
    rows: list[Row]
    set: str | None = ""


def best(numbers: Sequence[Number], better: Better) -> list[Mark]:
    """Mark the best value, all of them where several tie, and those whose interval meets the best one's.

    Nothing is marked where there is nothing to compare, or nothing to choose.
    """
    folded = [_cost(number, better) for number in numbers]
    present = [cost for cost in folded if cost is not None]
    values = {value for value, _, _ in present}
    if not better or len(values) < 2:
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
        Section("Predictions", [*_score_rows(records, _PREDICTIONS), *_brier_rows(records)]),
        Section("Calibration", list(_score_rows(records, _CALIBRATION))),
        Section("Selective prediction", list(_score_rows(records, _SELECTION))),
        Section("Detection by " + score_title(headline_score(records)), list(_headlines(records))),
        Section("Other", list(_other_rows(records))),
    ]
    return [section for section in sections if section.rows]


def _score_rows(records: Sequence[EvaluationRecord], metrics: Sequence[_Metric]) -> Iterator[Row]:
    absent = Number(None, why="not in this record")
    for metric in metrics:
        if any(metric.key in record.scores for record in records):
            numbers = [record.scores.get(metric.key, absent) for record in records]
            yield Row(metric.key, _with_k(metric.title, records), *metric[2:4], numbers)


def _with_k(title: str, records: Sequence[EvaluationRecord]) -> str:
    """ "Top-k error" says which k, if the records agree on it."""
    found = {str(record.settings.get("top_k", "k")) for record in records}
    return title.replace("Top-k", f"Top-{found.pop()}") if len(found) == 1 else title


def _other_rows(records: Sequence[EvaluationRecord]) -> Iterator[Row]:
    """Metrics of a later version: shown, without an opinion on which way is better."""
    known = {metric.key for metric in (*_PREDICTIONS, *_CALIBRATION, *_SELECTION)}
    keys = dict.fromkeys(key for record in records for key in record.scores if key not in known)
    yield from _score_rows(records, [_Metric(key, key.replace("_", " "), "", False) for key in keys])


def _brier_rows(records: Sequence[EvaluationRecord]) -> Iterator[Row]:
    for metric in _BRIER:
        part = metric.key.removeprefix("brier_")
        yield Row(*metric[:4], [_part(getattr(record.brier_shares, part)) for record in records])


def _part(value: float | None) -> Number:
    return Number(value, why="" if value is not None else "no finite value")


def _headlines(records: Sequence[EvaluationRecord]) -> Iterator[Row]:
    score = headline_score(records)
    for name in (MISCLASSIFICATION, *foreign_names(records)):
        shown = (_DETECTION[0], _DETECTION[3]) if name is not None else _DETECTION[:1]
        for row in _detection_rows(records, name, score, shown):
            yield Row(row.key, f"{row.title}: {row.set}", *_rest(row))


def _rest(row: Row) -> tuple[Better, bool, list[Number], str, str]:
    return row.better, row.is_share, row.numbers, row.set, row.score


def detection_sections(records: Sequence[EvaluationRecord]) -> list[Section]:
    """All detection numbers: misclassification, then each foreign set, with every score."""
    scores = score_names(records)
    return [
        Section(
            "Misclassification" if name is None else name,
            [row for score in scores for row in _detection_rows(records, name, score, _DETECTION)],
            name,
        )
        for name in (MISCLASSIFICATION, *foreign_names(records))
    ]


def _detection_rows(
    records: Sequence[EvaluationRecord], name: str | None, score: str, metrics: Sequence[_Metric]
) -> Iterator[Row]:
    found = [detection_of(record, name, score) for record in records]
    if not any(found):
        return
    absent = Number(None, why="not evaluated for this model")
    for metric in metrics:
        numbers = [getattr(detection, metric.key) if detection else absent for detection in found]
        yield Row(*metric[:4], numbers, "misclassification" if name is None else name, score)


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


def score_title(score: str) -> str:
    """A score's name in words."""
    return _SCORES.get(score, score.replace("_", " "))


def metric_title(key: str) -> str:
    """A metric's name in words."""
    metrics = (*_PREDICTIONS, *_CALIBRATION, *_SELECTION, *_DETECTION)
    return next((metric.title for metric in metrics if metric.key == key), key.replace("_", " "))
