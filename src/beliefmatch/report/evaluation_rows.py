"""Which numbers of a record are shown, in what order, which way is better, and which model does best."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from beliefmatch.experiments.evaluation_record import EvaluationRecord, Number
from beliefmatch.report.evaluation_marks import PAIRED, Mark, above_best, best, detection_scores, has_interval
from beliefmatch.report.evaluation_metrics import (
    BRIER,
    CALIBRATION,
    PREDICTIONS,
    SELECTION,
    Better,
    Metric,
    detection_metrics,
    difference_of,
    score_title,
    set_title,
    unit,
)
from beliefmatch.report.evaluation_scores import detection_of, every_score, headline_score, score_names
from beliefmatch.report.evaluation_text import number_text, ood_names

__all__ = [
    "DIFFERENCES",
    "MISCLASSIFICATION",
    "MetricRow",
    "Section",
    "TableCell",
    "detection_sections",
    "has_differences",
    "same_examples",
    "summary",
]

DIFFERENCES = "Above the best, draw by draw"
MISCLASSIFICATION = None
"""Stands in the place of an OOD set's name: detection of wrong predictions."""


class TableCell(NamedTuple):
    """One number as text. `interval` is empty where there is none, `why` where nothing is missing."""

    value: str
    interval: str
    why: str
    mark: Mark
    chance: str = ""
    """What guessing would give, where that differs from model to model."""
    paired: bool = False
    """Whether the mark is that of a difference on the same draws."""


@dataclass(frozen=True)
class MetricRow:
    """One metric of every model, in the order of the records."""

    metric: Metric
    numbers: list[Number]
    set: str = ""
    score: str = ""
    chances: Sequence[float | None] = ()
    compares: bool = True
    """Whether the models were scored on the same examples."""
    paired: Sequence[Mark | None] = ()
    """Marks by the difference from the best on the same draws; None where that is not known."""

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

    def marks(self) -> list[Mark]:
        """The best ones, and those whose intervals overlap theirs."""
        return best(self.numbers, self.better if self.metric.comparable and self.compares else "")

    def cells(self) -> list[TableCell]:
        """The numbers as text, with the best ones marked."""
        chances = self.chances or [None] * len(self.numbers)
        paired = self.paired or [None] * len(self.numbers)
        parts = zip(self.numbers, self.marks(), chances, paired, strict=True)
        return [self._cell(*each) for each in parts]

    def _cell(self, number: Number, mark: Mark, chance: float | None, paired: Mark | None) -> TableCell:
        if number.value is None:
            return TableCell("—", "", number.why or "not evaluated", "")
        low, high = self._text(number.low), self._text(number.high)
        interval = f"[{low}, {high}]" if has_interval(number) else ""
        guess = "" if chance is None else f"chance {self._text(chance)}"
        known = paired is not None
        return TableCell(self._text(number.value), interval, "", paired if known else mark, guess, known)

    def _text(self, value: float | None) -> str:
        share = self.metric.is_share
        return number_text(value, 2 if share else 4, scale=100 if share else 1)


class Section(NamedTuple):
    """Rows under a heading; `set` is an OOD set's name, None for misclassification, "" for neither."""

    title: str
    rows: list[MetricRow]
    set: str | None = ""


def summary(records: Sequence[EvaluationRecord]) -> list[Section]:
    """The numbers that tell the models apart at a glance."""
    sections = [
        Section("Predictions", [*_score_rows(records, PREDICTIONS), *_brier_rows(records)]),
        Section("Calibration", list(_score_rows(records, CALIBRATION))),
        Section("Selective prediction", list(_score_rows(records, SELECTION))),
        Section("Detection by " + score_title(headline_score(records)), list(_headlines(records))),
        Section("Other", list(_other_rows(records))),
    ]
    compared = _compared(records, [section for section in sections if section.rows])
    return _with_differences(records, compared) if same_examples(records) else compared


def _with_differences(records: Sequence[EvaluationRecord], sections: list[Section]) -> list[Section]:
    """Marks of the main metrics by the differences from the best, and these in a section of their own."""
    shown: list[Section] = []
    rows: list[MetricRow] = []
    for section in sections:
        found = [_paired(records, row) for row in section.rows]
        shown.append(section._replace(rows=[row for row, _ in found]))
        rows += [difference for _, difference in found if difference]
    return [*shown[:2], Section(DIFFERENCES, rows), *shown[2:]] if rows else shown


def _paired(records: Sequence[EvaluationRecord], row: MetricRow) -> tuple[MetricRow, MetricRow | None]:
    marks = row.marks()
    differences = above_best(records, row.key, marks) if row.key in PAIRED else []
    if not differences:
        return row, None
    paired = detection_scores(marks, differences)
    return replace(row, paired=paired), MetricRow(difference_of(row.metric), differences, paired=paired)


def has_differences(sections: Sequence[Section]) -> bool:
    """Whether some marks are by differences."""
    return any(section.title == DIFFERENCES for section in sections)


def same_examples(records: Sequence[EvaluationRecord]) -> bool:
    """Whether all models were scored on as many examples and, as far as is known, on the same targets."""
    sizes = {record.examples for record in records}
    digests = {record.settings.get("targets_sha256") for record in records} - {None}
    return len(sizes) == 1 and len(digests) <= 1


def _compared(records: Sequence[EvaluationRecord], sections: list[Section]) -> list[Section]:
    """Without marks where the models were scored on different examples."""
    same = same_examples(records)
    return [s._replace(rows=[replace(row, compares=same) for row in s.rows]) for s in sections]


def _score_rows(records: Sequence[EvaluationRecord], metrics: Sequence[Metric]) -> Iterator[MetricRow]:
    absent = Number(None, why="not in this record")
    for metric in metrics:
        if any(metric.key in record.scores for record in records):
            numbers = [record.scores.get(metric.key, absent) for record in records]
            yield MetricRow(metric._replace(title=_with_k(metric.title, records)), numbers)


def _with_k(title: str, records: Sequence[EvaluationRecord]) -> str:
    """ "Top-k error" says which k, if the records agree on it."""
    found = {str(record.settings.get("top_k", "k")) for record in records}
    return title.replace("Top-k", f"Top-{found.pop()}") if len(found) == 1 else title


def _other_rows(records: Sequence[EvaluationRecord]) -> Iterator[MetricRow]:
    """Metrics of a later version: shown, without an opinion on which way is better."""
    known = {metric.key for metric in (*PREDICTIONS, *CALIBRATION, *SELECTION)}
    keys = dict.fromkeys(key for record in records for key in record.scores if key not in known)
    yield from _score_rows(records, [Metric(key, key.replace("_", " "), "", False) for key in keys])


def _brier_rows(records: Sequence[EvaluationRecord]) -> Iterator[MetricRow]:
    for metric in BRIER:
        part = metric.key.removeprefix("brier_")
        yield MetricRow(metric, [_part(getattr(record.brier_shares, part)) for record in records])


def _part(value: float | None) -> Number:
    return Number(value, why="" if value is not None else "no finite value")


def _headlines(records: Sequence[EvaluationRecord]) -> Iterator[MetricRow]:
    score = headline_score(records)
    for name in (MISCLASSIFICATION, *ood_names(records)):
        shown = ("auroc", "fpr95") if name is not None else ("auroc",)
        for row in _detection_rows(records, name, score, shown):
            of = f": {set_title(name)}"
            short = f"{row.metric.short}{of}" if row.metric.short else ""
            yield replace(row, metric=row.metric._replace(title=row.title + of, short=short))


def detection_sections(records: Sequence[EvaluationRecord], *, twins: bool = False) -> list[Section]:
    """All detection numbers: wrong predictions, then each OOD set; with `twins` under every name."""
    scores = every_score(records) if twins else score_names(records)
    sections = [
        Section(
            "Wrong predictions" if name is None else name,
            [row for score in scores for row in _detection_rows(records, name, score)],
            name,
        )
        for name in (MISCLASSIFICATION, *ood_names(records))
    ]
    return _compared(records, sections)


def _detection_rows(
    records: Sequence[EvaluationRecord], name: str | None, score: str, keys: Sequence[str] = ()
) -> Iterator[MetricRow]:
    found = [detection_of(record, name, score) for record in records]
    if not any(found):
        return
    absent = Number(None, why="not evaluated for this model")
    metrics = detection_metrics(name)
    for key in keys or metrics:
        numbers = [getattr(detection, key) if detection else absent for detection in found]
        chances = [] if metrics[key].comparable else [_chance(record, key) for record in records]
        yield MetricRow(metrics[key], numbers, "misclassification" if name is None else name, score, chances)


def _chance(record: EvaluationRecord, key: str) -> float | None:
    """The share of wrong predictions, or of right ones: the AUPR of a score that knows nothing."""
    error = record.scores.get("error", Number(None)).value
    return error if error is None or key == "aupr_ood" else 1 - error
