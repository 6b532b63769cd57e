"""How well the scores of predictions tell foreign examples, and mistakes, from the others."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from beliefmatch.data.predictions import Predictions
from beliefmatch.experiments.evaluation_record import Curve, Detection, Foreign, Number
from beliefmatch.experiments.evaluation_settings import EvaluationSettings
from beliefmatch.experiments.evaluation_views import entropy_density, numbers
from beliefmatch.metrics import SCORES, bootstrap_detection, roc

__all__ = ["foreign_set", "misclassification", "score_columns"]


def score_columns(predictions: Predictions) -> dict[str, Tensor]:
    """Every score that the predictions allow, by its name; some need logits."""
    given: dict[str, Any] = {predictions.kind: predictions.values}
    allowed = (score for score in SCORES.values() if predictions.kind == "logits" or not score.needs_logits)
    return {score.name: score(**given) for score in allowed}


def misclassification(
    scores: Mapping[str, Tensor], correct: Tensor, settings: EvaluationSettings
) -> list[Detection]:
    """Wrong predictions as the outside, right ones as the inside."""
    inside = {name: score[correct] for name, score in scores.items()}
    outside = {name: score[~correct] for name, score in scores.items()}
    return _detections(inside, outside, settings)


def foreign_set(
    name: str,
    source: str,
    predictions: Predictions,
    inside: Mapping[str, Tensor],
    settings: EvaluationSettings,
) -> Foreign:
    """What the model makes of examples that belong to no class."""
    outside = score_columns(predictions)
    return Foreign(
        name=name,
        source=source,
        examples=len(predictions.values),
        mean_confidence=1 - outside["confidence"].mean().item(),
        entropy=entropy_density(outside["entropy"], predictions.values.shape[1]),
        detections=_detections(inside, outside, settings),
    )


def _detections(
    inside: Mapping[str, Tensor], outside: Mapping[str, Tensor], settings: EvaluationSettings
) -> list[Detection]:
    """One for each score that both sides have."""
    made: list[Detection] = []
    for name in (name for name in inside if name in outside):
        twin = _twin(name, made, inside, outside)
        made.append(twin or _detection(name, inside[name], outside[name], settings))
    return made


def _twin(
    name: str, made: list[Detection], inside: Mapping[str, Tensor], outside: Mapping[str, Tensor]
) -> Detection | None:
    """The same numbers under another name, not to be resampled again: "energy" is "precision"."""
    for other in made:
        if all(torch.equal(side[name], side[other.score]) for side in (inside, outside)):
            return Detection(name, other.auroc, other.aupr_outside, other.aupr_inside, other.fpr95, other.roc)
    return None


def _detection(name: str, inside: Tensor, outside: Tensor, settings: EvaluationSettings) -> Detection:
    if not len(inside) or not len(outside):
        why = "every prediction is right" if len(inside) else "every prediction is wrong"
        nothing = Number(None, why=why)
        return Detection(name, nothing, nothing, nothing, nothing, Curve([], []))
    found = bootstrap_detection(
        inside,
        outside,
        resamples=max(1, settings.resamples),
        level=settings.level,
        seed=settings.seed,
    )
    flagged_inside, flagged_outside = roc(inside, outside)
    return Detection(
        score=name, roc=Curve(flagged_inside.tolist(), flagged_outside.tolist()), **numbers(found, settings)
    )
