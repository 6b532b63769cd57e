"""From which confidence on a head may answer, so that few of its answers are wrong."""

import math
from collections.abc import Sequence

import torch

from beliefmatch.adaptation.fitted import FittedHead
from beliefmatch.adaptation.result import RiskThreshold
from beliefmatch.adaptation.scoring import predicted
from beliefmatch.adaptation.types import Features
from beliefmatch.metrics import coverage_at_risk

__all__ = ["risk_thresholds"]


def risk_thresholds(
    head: FittedHead, validation: Features, *, risks: Sequence[float], delta: float
) -> tuple[RiskThreshold, ...]:
    """For each risk the threshold of the largest coverage; see `beliefmatch.metrics.coverage_at_risk`.

    Of counts, the class of the most votes is the right one. The guarantee holds for rows drawn like these.
    Where the same rows have chosen the head it leans on them a little more than it may.

    Args:
        head: that answers.
        validation: rows it was not trained on.
        risks: error rates that the answers must not exceed.
        delta: probability with which each threshold may fail.
    """
    confidence, correct = [], []
    for prediction, targets in predicted(head, validation):
        top, place = prediction.probs.max(1)
        confidence.append(top)
        correct.append(place == (targets if targets.dim() == 1 else targets.argmax(1)))
    columns = torch.cat(confidence), torch.cat(correct)
    found = []
    for risk in risks:
        threshold, coverage, _, bound = coverage_at_risk(*columns, risk=risk, delta=delta)
        is_there = math.isfinite(threshold)
        found.append(
            RiskThreshold(risk, delta, threshold if is_there else None, coverage, bound if is_there else None)
        )
    return tuple(found)
