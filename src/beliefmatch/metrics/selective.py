"""Selective prediction: risk-coverage curves, and confidence thresholds that bound the error."""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from beliefmatch._validate import fail
from beliefmatch.metrics._readings import answers, require_at_least_one, require_share
from beliefmatch.metrics.calibration import share_ties
from beliefmatch.metrics.intervals import upper_bound

__all__ = ["CoverageAtRisk", "RiskCoverage", "aurc", "coverage_at_risk", "excess_aurc", "risk_coverage"]


class RiskCoverage(NamedTuple):
    """Error among the answered, for every share of answered examples; columns of shape (N,)."""

    coverage: Tensor
    risk: Tensor


def risk_coverage(confidence: Tensor, correct: Tensor) -> RiskCoverage:
    """Error rate of the k most confident predictions, for k = 1 ... N.

    Tied confidences share their mistakes evenly: the risk is the mean over their orders.

    Args:
        confidence: any score, shape (N,), higher where more confident.
        correct: whether each prediction is right, shape (N,).

    >>> import torch
    >>> curve = risk_coverage(torch.tensor([0.9, 0.6, 0.8, 0.7]), torch.tensor([True, False, True, False]))
    >>> curve.risk.tolist()
    [0.0, 0.0, 0.3333333333333333, 0.5]
    """
    confidence, correct = answers("risk_coverage", confidence, correct)
    return _curve(confidence, correct)


def aurc(confidence: Tensor, correct: Tensor) -> float:
    """Area under the risk-coverage curve: the mean of its N risks, in [0, 1]; lower is better."""
    return _curve(*answers("aurc", confidence, correct)).risk.mean().item()


def excess_aurc(confidence: Tensor, correct: Tensor) -> float:
    """`aurc` less that of the best order of the same predictions, all right ones first; in [0, 1)."""
    confidence, correct = answers("excess_aurc", confidence, correct)
    best = _curve(correct, correct)
    return (_curve(confidence, correct).risk.mean() - best.risk.mean()).clamp(min=0).item()


class CoverageAtRisk(NamedTuple):
    """Answer where the confidence is at least `threshold`."""

    threshold: float
    """Infinite where no threshold meets the risk."""
    coverage: float
    """Share of the held-out examples that are answered."""
    risk: float
    """Error among them; NaN where there are none."""
    bound: float
    """Upper bound on the error among future answers; NaN where there are none."""


def coverage_at_risk(
    confidence: Tensor, correct: Tensor, *, risk: float, delta: float = 0.05, levels: int = 50
) -> CoverageAtRisk:
    """Largest coverage at which the error among the answers stays below `risk`, with a guarantee.

    With probability of at least 1 − `delta` over the draw of the held-out set, the error among all future
    answers is at most the `bound` returned, and so at most `risk`, if the future is drawn like the held-out
    set and that was used for nothing else.

    Args:
        confidence: any score of the held-out predictions, shape (N,), higher where more confident.
        correct: whether each is right, shape (N,).
        risk: error rate that the answers must not exceed.
        delta: probability with which the guarantee may fail.
        levels: number of coverages j/levels that are tried.
    """
    name = "coverage_at_risk"
    risk, delta = require_share(name, "risk", risk), require_share(name, "delta", delta)
    levels = require_at_least_one(name, "levels", levels)
    scores = confidence
    confidence, correct = answers(name, confidence, correct)
    if not confidence.isfinite().all():
        raise fail(name, "`confidence` must be finite, got an infinite one.")
    cut, answered, errors = _levels(confidence, correct, levels)
    bound = upper_bound(errors, answered, delta / levels, caller=name)
    allowed = torch.where(bound <= risk, answered, 0)
    best = int(allowed.argmax())
    if not allowed[best]:
        return CoverageAtRisk(math.inf, 0.0, math.nan, math.nan)
    observed = (errors[best] / answered[best]).item()
    share = answered[best].item() / len(confidence)
    return CoverageAtRisk(_just_above(cut[best], scores), share, observed, bound[best].item())


def _levels(confidence: Tensor, correct: Tensor, levels: int) -> tuple[Tensor, Tensor, Tensor]:
    """For each level the score that its answers exceed, their number, and how many of them are wrong.

    The answers are those strictly above the confidence of the next example: given that one, they are
    independent draws, whatever ties there are. The last level answers everything.
    """
    ordered, order = confidence.sort(descending=True)
    wrong = torch.cat([correct.new_zeros(1), (1 - correct[order]).cumsum(0)])
    rank = torch.arange(1, levels + 1, device=ordered.device) * len(ordered) // levels
    cut = torch.cat([ordered, ordered.new_full((1,), -math.inf)])[rank]
    answered = torch.searchsorted(-ordered, -cut)
    return cut, answered, wrong[answered]


def _just_above(cut: Tensor, confidence: Tensor) -> float:
    """The next number after `cut` of the type in which confidences come."""
    if cut == -math.inf:
        return 0.0 if confidence.min() >= 0 else -math.inf
    if confidence.dtype == torch.float16:  # torch has no next number there
        return float(np.nextafter(np.float16(cut.item()), np.float16(math.inf)))
    at = cut.to(confidence.dtype if confidence.is_floating_point() else torch.float64)
    return torch.nextafter(at, torch.full_like(at, math.inf)).item()


def _curve(confidence: Tensor, correct: Tensor) -> RiskCoverage:
    ordered, order = confidence.sort(descending=True)
    wrong = share_ties(ordered, 1 - correct[order]).cumsum(0)
    answered = torch.arange(1, len(ordered) + 1, dtype=torch.float64, device=ordered.device)
    return RiskCoverage(answered / len(ordered), wrong / answered)
