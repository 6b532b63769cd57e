"""Every method of a comparison judged in full, by the predictions of its first seed."""

from dataclasses import replace
from pathlib import Path

from beliefmatch.data.memory import MemorySource
from beliefmatch.data.predictions import Predictions, read_predictions
from beliefmatch.experiments.compare import Comparison
from beliefmatch.experiments.comparison_record import ComparisonRecord
from beliefmatch.experiments.evaluate import evaluate
from beliefmatch.experiments.evaluation_record import EvaluationRecord
from beliefmatch.experiments.parts import dataset
from beliefmatch.experiments.plan import plan_from
from beliefmatch.experiments.run_directory import RunDirectory

__all__ = ["evaluations"]


def evaluations(record: ComparisonRecord, work: Comparison) -> list[EvaluationRecord]:
    """One for each method, in their order."""
    return [_evaluation(compared.label, work, compared.runs[0].plan) for compared in record.methods]


def _evaluation(name: str, work: Comparison, mapping: dict) -> EvaluationRecord:
    plan = plan_from(mapping)
    home, data = RunDirectory(work.directory_of(plan)), dataset(plan.data)
    places = home.foreign_predictions([one.name for one in home.finished().foreign])
    foreign = {name: read_predictions(place, labelled=False) for name, place in places.items()}
    said = read_predictions(home.predictions("test"))
    if isinstance(data.test, MemorySource):
        said = replace(said, images=data.test.images)
    return evaluate(_placed(said, work.directory), name=name, class_names=data.class_names, foreign=foreign)


def _placed(said: Predictions, root: Path) -> Predictions:
    """With the path as seen from the comparison's directory, which may be moved."""
    return replace(said, path=said.path.relative_to(root))
