"""How well the scores of predictions tell OOD examples, and mistakes, from the others."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from beliefmatch.data.predictions import Predictions
from beliefmatch.experiments.evaluate_config import EvaluateConfig
from beliefmatch.experiments.evaluation_record import Curve, Detection, Number, OODSet
from beliefmatch.experiments.evaluation_views import entropy_density, numbers
from beliefmatch.metrics import SCORES, bootstrap_detection, roc

__all__ = ["misclassification", "ood_set", "score_columns"]


def score_columns(predictions: Predictions) -> dict[str, Tensor]:
    """Every score that the predictions allow, by its name; some need logits."""
    given: dict[str, Any] = {predictions.kind: predictions.values}
    allowed = (score for score in SCORES.values() if predictions.kind == "logits" or not score.needs_logits)
    return {score.name: score(**given) for score in allowed}


def misclassification(
    scores: Mapping[str, Tensor], correct: Tensor, settings: EvaluateConfig
) -> list[Detection]:
    """Wrong predictions as the outside, right ones as the inside."""
    in_distribution = {name: score[correct] for name, score in scores.items()}
    ood = {name: score[~correct] for name, score in scores.items()}
    return _detections(in_distribution, ood, settings)


def ood_set(
    name: str,
    source: str,
    predictions: Predictions,
    in_distribution: Mapping[str, Tensor],
    settings: EvaluateConfig,
) -> OODSet:
    """What the model makes of examples that belong to no class."""
    ood = score_columns(predictions)
    return OODSet(
        name=name,
        source=source,
        examples=len(predictions.values),
        mean_confidence=1 - ood["confidence"].mean().item(),
        entropy=entropy_density(ood["entropy"], predictions.values.shape[1]),
        detections=_detections(in_distribution, ood, settings),
    )


def _detections(
    in_distribution: Mapping[str, Tensor], ood: Mapping[str, Tensor], settings: EvaluateConfig
) -> list[Detection]:
    """One for each score that both sides have."""
    made: list[Detection] = []
    for name in (name for name in in_distribution if name in ood):
        twin = _twin(name, made, in_distribution, ood)
        made.append(twin or _detection(name, in_distribution[name], ood[name], settings))
    return made


def _twin(
    name: str, made: list[Detection], in_distribution: Mapping[str, Tensor], ood: Mapping[str, Tensor]
) -> Detection | None:
    """The same numbers under another name, not to be resampled again: "energy" is "precision"."""
    for other in made:
        if all(torch.equal(side[name], side[other.score]) for side in (in_distribution, ood)):
            return Detection(name, other.auroc, other.aupr_ood, other.aupr_id, other.fpr95, other.roc)
    return None


def _detection(name: str, in_distribution: Tensor, ood: Tensor, settings: EvaluateConfig) -> Detection:
    if not len(in_distribution) or not len(ood):
        why = "every prediction is right" if len(in_distribution) else "every prediction is wrong"
        nothing = Number(None, why=why)
        return Detection(name, nothing, nothing, nothing, nothing, Curve([], []))
    found = bootstrap_detection(
        in_distribution,
        ood,
        resamples=max(1, settings.resamples),
        level=settings.level,
        seed=settings.seed,
    )
    flagged_id, flagged_ood = roc(in_distribution, ood)
    return Detection(
        score=name, roc=Curve(flagged_id.tolist(), flagged_ood.tolist()), **numbers(found, settings)
    )
