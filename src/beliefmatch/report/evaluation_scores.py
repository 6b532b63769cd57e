"""Numbers of evaluation records: what a score detected, and how two models differ on the same examples."""

from collections.abc import Iterator, Sequence

from beliefmatch.experiments.evaluation_record import Detection, EvaluationRecord, Number
from beliefmatch.report.columns import distinct_scores
from beliefmatch.report.table import Cell
from beliefmatch.resampling import paired_difference

__all__ = [
    "cell_of",
    "detection_of",
    "difference",
    "has_same_examples",
    "headline_score",
    "ranked_by",
    "score_names",
    "score_value",
    "stored_auroc_difference",
]

_SAME = 1e-9  # that two areas may differ by rounding


def cell_of(number: Number | None) -> Cell:
    """A number of a record as a cell."""
    if number is None or number.value is None:
        return Cell(None, note="not evaluated" if number is None else number.why or "not evaluated")
    return Cell(number.value, number.low, number.high)


def score_value(model: EvaluationRecord, key: str) -> float | None:
    """The value of a metric; None where there is none."""
    return model.scores.get(key, Number(None)).value


def ranked_by(models: Sequence[EvaluationRecord], key: str) -> list[int]:
    """Models from the lowest value up; without those that have none."""
    known = [place for place, model in enumerate(models) if score_value(model, key) is not None]
    return sorted(known, key=lambda place: score_value(models[place], key) or 0.0)


def detection_of(record: EvaluationRecord, name: str | None, score: str) -> Detection | None:
    """What one score makes of an OOD set, or of wrong predictions (None); None where it was not tried."""
    if name is None:
        detections = record.misclassification
    else:
        detections = next((ood.detections for ood in record.ood if ood.name == name), [])
    return next((detection for detection in detections if detection.score == score), None)


def _detections(records: Sequence[EvaluationRecord]) -> Iterator[list[Detection]]:
    for record in records:
        yield record.misclassification
        yield from (ood.detections for ood in record.ood)


def score_names(records: Sequence[EvaluationRecord]) -> list[str]:
    """Every score that any record used, each under one name."""
    return distinct_scores([one.score for one in group] for group in _detections(records))


def headline_score(records: Sequence[EvaluationRecord]) -> str:
    """The paper's predictive entropy if it was used, else the first score."""
    names = score_names(records)
    return "entropy" if "entropy" in names or not names else names[0]


def has_same_examples(records: Sequence[EvaluationRecord]) -> bool:
    """Whether all models were scored on as many examples and, as far as is known, on the same targets."""
    sizes = {record.examples for record in records}
    digests = {record.settings.get("targets_sha256") for record in records} - {None}
    return len(sizes) == 1 and len(digests) <= 1


def difference(record: EvaluationRecord, reference: EvaluationRecord, key: str) -> Number:
    """How much larger a metric of one model is than that of another, on the same draws where there are some.

    No value, and why, where there are none.
    """
    number, other = record.scores.get(key, Number(None)), reference.scores.get(key, Number(None))
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


def stored_auroc_difference(
    record: EvaluationRecord, reference: EvaluationRecord, name: str | None, score: str
) -> Number:
    """How much larger the AUROC of one model is than that of another, where they were evaluated together.

    Args:
        record: The one.
        reference: The other, known by its file and its AUROC: a file may hold other predictions today.
        name: Of an OOD set; None for wrong predictions.
        score: By which they are detected.
    """
    ours, theirs = (detection_of(one, name, score) for one in (record, reference))
    if ours is None or theirs is None or ours.auroc.value is None or theirs.auroc.value is None:
        return Number(None, why="not evaluated")
    gap = ours.auroc.value - theirs.auroc.value
    for one in ours.auroc_differences:
        value = one.difference.value
        if one.source == reference.source and value is not None and abs(value - gap) < _SAME:
            return one.difference
    return Number(None, why="not evaluated together")


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
