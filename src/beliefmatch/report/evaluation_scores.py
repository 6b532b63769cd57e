"""The scores by which OOD input and mistakes are detected: which there are, and what they found."""

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from beliefmatch.experiments.evaluation_record import Detection, EvaluationRecord

__all__ = ["detection_of", "every_score", "headline_score", "score_names"]


def detection_of(record: EvaluationRecord, name: str | None, score: str) -> Detection | None:
    """What one score makes of an OOD set, or of wrong predictions; None where it was not tried."""
    if name is None:
        detections = record.misclassification
    else:
        detections = next((ood.detections for ood in record.ood if ood.name == name), [])
    return next((detection for detection in detections if detection.score == score), None)


def _all_detections(records: Sequence[EvaluationRecord]) -> Iterator[list[Detection]]:
    for record in records:
        yield record.misclassification
        yield from (ood.detections for ood in record.ood)


def every_score(records: Sequence[EvaluationRecord]) -> list[str]:
    """Every score that any record used, in the order of their first appearance."""
    return list(dict.fromkeys(found.score for group in _all_detections(records) for found in group))


def score_names(records: Sequence[EvaluationRecord]) -> list[str]:
    """The scores without those that are others under a second name: energy is −ln α₀."""
    names: list[str] = []
    for score in every_score(records):
        if not any(_are_twins(records, score, earlier) for earlier in names):
            names.append(score)
    return names


def _are_twins(records: Sequence[EvaluationRecord], score: str, earlier: str) -> bool:
    """Whether they mean the same and, in every record that has one of them, are the same."""
    if (earlier, score) != ("precision", "energy"):
        return False
    for group in _all_detections(records):
        found = {detection.score: replace(detection, score="") for detection in group}
        if found.get(score) != found.get(earlier):
            return False
    return True


def headline_score(records: Sequence[EvaluationRecord]) -> str:
    """The paper's predictive entropy if it was used, else the first score."""
    names = score_names(records)
    return "entropy" if "entropy" in names or not names else names[0]
