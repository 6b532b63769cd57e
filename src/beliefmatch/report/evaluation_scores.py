"""Numbers of evaluation records: what a score detected, and how two models differ on the same examples."""

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from beliefmatch.experiments.evaluation_record import Detection, EvaluationRecord, Number
from beliefmatch.resampling import paired_difference

__all__ = ["PAIRED", "detection_of", "difference", "has_same_examples", "headline_score", "score_names"]

PAIRED = ("error", "nll", "brier", "ece")
"""Metrics whose draws a record keeps; of all of them less is better."""


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
    """Every score that any record used, without energy where it is −ln α₀ under a second name."""
    names = list(dict.fromkeys(found.score for group in _detections(records) for found in group))
    if {"energy", "precision"} <= {*names} and all(
        _of_score(group, "energy") == _of_score(group, "precision") for group in _detections(records)
    ):
        names.remove("energy")
    return names


def _of_score(group: Sequence[Detection], score: str) -> Detection | None:
    found = next((detection for detection in group if detection.score == score), None)
    return None if found is None else replace(found, score="")


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
