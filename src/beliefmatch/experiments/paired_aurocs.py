"""AUROC of several models on the same examples: how much larger one is than another, by DeLong's method.

The scores of single examples are needed for that, which records do not keep. So the differences are computed
while models are evaluated together, and every record gets its own.
"""

from collections.abc import Sequence

from msgspec.structs import replace
from torch import Tensor

from beliefmatch.experiments.evaluation_record import (
    AurocDifference,
    Detection,
    EvaluationRecord,
    Number,
)
from beliefmatch.metrics import DetectionArea, area_difference, detection_area

__all__ = ["PairedAurocs"]

_Key = tuple[str | None, str]
"""Name of an OOD set, or None for wrong predictions, and a score."""


class PairedAurocs:
    """Areas of the models that are evaluated together, kept until all have been.

    OOD sets of the same name and size are taken for the same examples in the same order, and labelled
    examples with the same targets.
    """

    def __init__(self, level: float = 0.95) -> None:
        self.level = level
        self._models: list[dict[_Key, DetectionArea]] = []

    def start_model(self) -> None:
        """All that is added from now on is of the next model."""
        self._models.append({})

    def add(self, ood_set: str | None, score: str, scores: Tensor, is_ood: Tensor) -> None:
        """Scores of all examples of a set, in their order, and which of them are OOD, or wrong."""
        if is_ood.any() and not is_ood.all():
            self._models[-1][ood_set, score] = detection_area(scores, is_ood)

    def extend(self, others: "PairedAurocs") -> None:
        """Take over the models of another one, after those that are here."""
        self._models += others._models

    def with_differences(self, records: Sequence[EvaluationRecord]) -> list[EvaluationRecord]:
        """The records, in the order of the models, with the differences from each other."""
        return [
            replace(
                record,
                misclassification=self._detections(records, place, None, record.misclassification),
                ood=[
                    replace(one, detections=self._detections(records, place, one.name, one.detections))
                    for one in record.ood
                ],
            )
            for place, record in enumerate(records)
        ]

    def _detections(
        self,
        records: Sequence[EvaluationRecord],
        place: int,
        ood_set: str | None,
        detections: Sequence[Detection],
    ) -> list[Detection]:
        others = [
            (index, other.source)
            for index, other in enumerate(records)
            if index != place and _targets(other) == _targets(records[place])
        ]
        made = []
        for one in detections:
            key, found = (ood_set, one.score), []
            for index, source in others:
                areas = self._models[place].get(key), self._models[index].get(key)
                difference = self._difference(*areas)
                found += [] if difference is None else [AurocDifference(source, difference)]
            made.append(replace(one, auroc_differences=found))
        return made

    def _difference(self, first: DetectionArea | None, second: DetectionArea | None) -> Number | None:
        if first is None or second is None or len(first.influence) != len(second.influence):
            return None
        return Number(*area_difference(first, second, level=self.level))


def _targets(record: EvaluationRecord) -> tuple[int, object]:
    return record.examples, record.settings["targets_sha256"]
