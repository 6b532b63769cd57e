"""Heads calibrated on validation rows: temperature scaling and vector scaling (Guo et al. 2017).

Both change the logits of each class linearly, so the result is a linear head again. Its validation scores
come from cross-fitting: each fifth of the rows is scored with the calibration fitted to the other four.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from beliefmatch.adaptation.fitted import Calibration, FittedHead
from beliefmatch.adaptation.scoring import Evaluator, head_logits, score_predictions
from beliefmatch.methods.base import Prediction
from beliefmatch.methods.temperature import fit_temperature

__all__ = ["calibrate", "calibrations"]

_Scaling = tuple[Tensor, Tensor]
"""Scale and shift of the logits of each class."""
_Fit = Callable[[Tensor, Tensor, _Scaling | None], _Scaling]
"""From logits and targets their scaling, from a given one on."""
_FOLDS = 5
_MIN_ERRORS = 5
_ROWS_PER_CLASS = 5  # of vector scaling, which fits two numbers for each class
_RIDGE = 1e-3  # of the mean squared distance to the temperature, so that classes without rows keep it
_STEPS, _ENOUGH = 20, 1e-7  # of Newton's method, and the relative fall of the objective that ends it


def calibrations(head: FittedHead, evaluator: Evaluator) -> tuple[list[FittedHead], str | None]:
    """The head with a temperature, and with vector scaling where that is better; or why one is missing.

    Rows that are all right would ask for unlimited confidence.
    """
    assert head.validation is not None
    if round(head.validation.error * head.validation.rows) < _MIN_ERRORS:
        return [], f"no calibration of heads that err on fewer than {_MIN_ERRORS} validation rows"
    scaled, classes = calibrate(head, evaluator, "temperature"), len(head.bias)
    if len(evaluator) < _ROWS_PER_CLASS * classes:
        fact = f"{len(evaluator):,} validation rows are too few for {classes:,} classes"
        return [scaled], f"no vector scaling: {fact}"
    vector = calibrate(head, evaluator, "vector_scaling")
    return [scaled, vector] if vector.selection_nll < scaled.selection_nll else [scaled], None


def calibrate(head: FittedHead, evaluator: Evaluator, how: Calibration) -> FittedHead:
    """The head with logits rescaled to the lowest NLL on validation rows.

    The spread of a belief keeps its scale: the mean of ln α₀ over the rows stays what it was.

    Args:
        head: A linear head.
        evaluator: Of the validation rows.
        how: "temperature" divides all logits by one number; "vector_scaling" multiplies the logits of each
            class by a number and adds another.
    """
    logits, targets = head_logits((head.weight, head.bias), evaluator)
    fit = _temperature if how == "temperature" else _vector
    scale, shift = start = fit(logits, targets, None)
    if head.candidate.kind == "belief_matching":
        shift = shift + (logits.logsumexp(1) - (logits * scale + shift).logsumexp(1)).mean()
    note = [f"temperature {1 / scale.mean().item():.4g}"] if how == "temperature" else []
    return replace(
        head,
        candidate=replace(head.candidate, calibration=how),
        weight=(head.weight.double() * scale[:, None]).float(),
        bias=(head.bias.double() * scale + shift).float(),
        validation=score_predictions(_cross_fitted(fit, logits, targets, start)),
        notes=(*head.notes, *note),
    )


def _cross_fitted(
    fit: _Fit, logits: Tensor, targets: Tensor, start: _Scaling
) -> Iterator[tuple[Prediction, Tensor]]:
    """Predictions for each fold by the calibration of the others."""
    order = torch.randperm(len(logits), generator=torch.Generator().manual_seed(0))
    folds = min(_FOLDS, len(logits))
    for number in range(folds):
        held = order[number::folds]
        rest = order[torch.arange(len(order)) % folds != number] if folds > 1 else held
        scale, shift = fit(logits[rest], targets[rest], start)
        yield Prediction(probs=(logits[held] * scale + shift).softmax(1)), targets[held]


def _temperature(logits: Tensor, targets: Tensor, start: _Scaling | None) -> _Scaling:
    init = 1.0 if start is None else 1 / start[0][0].item()
    scale = logits.new_full((logits.shape[1],), 1 / fit_temperature(logits, targets, init=init))
    return scale, torch.zeros_like(scale)


def _vector(logits: Tensor, targets: Tensor, start: _Scaling | None) -> _Scaling:
    """Newton's method on the NLL plus a weak pull to the temperature; the objective is convex."""
    centre = _temperature(logits, targets, start)
    scale, shift = centre if start is None else start
    classes = logits.shape[1]
    goal = functional.one_hot(targets, classes).double() if targets.dim() == 1 else targets.double()
    goal = goal / goal.sum(1, keepdim=True)
    pull = _RIDGE / classes

    def objective(scale: Tensor, shift: Tensor) -> Tensor:
        nll = -(goal * (logits * scale + shift).log_softmax(1)).sum(1).mean()
        away = (scale / centre[0] - 1).square().sum() + shift.square().sum()
        return nll + pull * away / 2

    value = objective(scale, shift)
    for _ in range(_STEPS):
        probs = (logits * scale + shift).softmax(1)
        weighted = probs * logits
        rest = probs - goal
        scale_grad = (rest * logits).mean(0) + pull * (scale / centre[0] - 1) / centre[0]
        grad = torch.cat([scale_grad, rest.mean(0) + pull * shift])
        both = torch.cat([weighted, probs], 1)
        hessian = -both.t() @ both / len(logits)
        indices = torch.arange(classes)
        hessian[indices, indices] += (weighted * logits).mean(0) + pull / centre[0].square()
        hessian[indices, indices + classes] += weighted.mean(0)
        hessian[indices + classes, indices] += weighted.mean(0)
        hessian[indices + classes, indices + classes] += probs.mean(0) + pull
        step = torch.linalg.solve(hessian, grad)
        length = 1.0
        while length > 1e-4:
            tried = scale - length * step[:classes], shift - length * step[classes:]
            after = objective(*tried)
            if after <= value:
                break
            length /= 2
        else:
            break
        fall, value, (scale, shift) = value - after, after, tried
        if fall < _ENOUGH * value:
            break
    return scale, shift
