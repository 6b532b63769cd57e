"""Heads calibrated on validation rows: temperature, vector and matrix scaling.

All change the logits linearly, so the result is a linear head again. Its validation scores come from
cross-fitting: each fifth of the rows is scored with the calibration fitted to the other four.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from beliefmatch.adaptation.fitted import Calibration, FittedHead
from beliefmatch.adaptation.scoring import Evaluator, head_logits, row_scores, score_predictions
from beliefmatch.methods.base import Prediction
from beliefmatch.methods.temperature import Scaling, fit_matrix_scaling, fit_temperature, fit_vector_scaling

__all__ = ["calibrate", "calibrations"]

_Fit = Callable[[Tensor, Tensor, Scaling | None], Scaling]
"""From logits and targets their scaling, from a given one on."""
_FOLDS = 5
_MIN_ERRORS = 5
_ROWS_PER_CLASS = 5  # of vector scaling, which fits two numbers for each class
_ROWS_PER_NUMBER = 2.5  # of matrix scaling, which fits K² + K
_MATRIX_WORK = 20_000_000  # products N K² of matrix scaling at most
_REGULARISATIONS = (10_000.0, 1000.0, 100.0, 10.0, 1.0, 0.1, 0.01)  # of matrix scaling, tried in this order


def calibrations(head: FittedHead, evaluator: Evaluator) -> tuple[list[FittedHead], str | None]:
    """The head with a temperature, and with vector or matrix scaling where better; or why one is missing.

    Rows that are all right would ask for unlimited confidence.
    """
    assert head.validation is not None
    if round(head.validation.error * head.validation.rows) < _MIN_ERRORS:
        return [], f"no calibration of heads that err on fewer than {_MIN_ERRORS} validation rows"
    scaled, classes = calibrate(head, evaluator, "temperature"), len(head.bias)
    found, rows, numbers = [scaled], len(evaluator), classes**2 + classes
    if rows < _ROWS_PER_CLASS * classes:
        return found, f"no vector scaling: {rows:,} validation rows are too few for {classes:,} classes"
    ways: list[Calibration] = ["vector_scaling"]
    is_affordable = rows * classes**2 <= _MATRIX_WORK
    if rows >= _ROWS_PER_NUMBER * numbers and is_affordable:
        ways.append("matrix_scaling")
    for how in ways:
        tried = calibrate(head, evaluator, how)
        found += [tried] if tried.selection_nll < min(one.selection_nll for one in found) else []
    return found, None


def calibrate(head: FittedHead, evaluator: Evaluator, how: Calibration) -> FittedHead:
    """The head with logits rescaled to the lowest NLL on validation rows.

    The spread of a belief keeps its scale: the mean of ln α₀ over the rows stays what it was.

    Args:
        head: A linear head.
        evaluator: Of the validation rows.
        how: "temperature" divides all logits by one number; "vector_scaling" multiplies the logits of each
            class by a number and adds another; "matrix_scaling" multiplies them by a matrix.
    """
    logits, targets = head_logits((head.weight, head.bias), evaluator)
    note = list[str]()
    fit = {"temperature": _temperature, "vector_scaling": _vector}.get(how)
    if fit is None:
        regularisation = _choose_regularisation(logits, targets)
        fit, note = partial(_matrix, regularisation), [f"regularisation {regularisation:g}"]
    fitted = fit(logits, targets, None)
    weight, shift = fitted
    if head.candidate.kind == "belief_matching":
        shift = shift + (logits.logsumexp(1) - fitted(logits).logsumexp(1)).mean()
    if how == "temperature":
        note = [f"temperature {1 / weight.mean().item():.4g}"]
    layer = torch.cat([head.weight, head.bias[:, None]], 1).double()
    layer = weight[:, None] * layer if weight.dim() == 1 else weight @ layer
    return replace(
        head,
        candidate=replace(head.candidate, calibration=how),
        weight=layer[:, :-1].float(),
        bias=(layer[:, -1] + shift).float(),
        validation=score_predictions(
            (Prediction(probs=made.softmax(1)), some)
            for made, some in _cross_fitted(fit, logits, targets, fitted)
        ),
        notes=(*head.notes, *note),
    )


def _choose_regularisation(logits: Tensor, targets: Tensor) -> float:
    """The strongest regularisation whose cross-fitted NLL is within one standard error of the lowest.

    From the strongest down, until the NLL rises.
    """
    tried: dict[float, Tensor] = {}
    start = None
    for regularisation in _REGULARISATIONS:
        fit = partial(_matrix, regularisation)
        start = fit(logits, targets, start)
        parts = _cross_fitted(fit, logits, targets, start)
        tried[regularisation] = torch.cat([row_scores(made.log_softmax(1), some)[0] for made, some in parts])
        if tried[regularisation].mean() > min(one.mean() for one in tried.values()):
            break
    lowest = min(tried.values(), key=lambda rows: rows.mean().item())
    for regularisation, rows in tried.items():
        excess = rows - lowest
        if excess.mean() <= excess.std() / math.sqrt(len(excess)):
            return regularisation
    raise AssertionError("the lowest is within any distance of itself")


def _cross_fitted(
    fit: _Fit, logits: Tensor, targets: Tensor, start: Scaling
) -> Iterator[tuple[Tensor, Tensor]]:
    """Logits of each fold by the calibration of the others, and its targets."""
    order = torch.randperm(len(logits), generator=torch.Generator().manual_seed(0))
    folds = min(_FOLDS, len(logits))
    for number in range(folds):
        held = order[number::folds]
        rest = order[torch.arange(len(order)) % folds != number] if folds > 1 else held
        yield fit(logits[rest], targets[rest], start)(logits[held]), targets[held]


def _temperature(logits: Tensor, targets: Tensor, start: Scaling | None) -> Scaling:
    init = 1.0 if start is None else 1 / start.weight[0].item()
    scale = logits.new_full((logits.shape[1],), 1 / fit_temperature(logits, targets, init=init))
    return Scaling(scale, torch.zeros_like(scale))


def _vector(logits: Tensor, targets: Tensor, start: Scaling | None) -> Scaling:
    return fit_vector_scaling(logits, targets, init=start)


def _matrix(regularisation: float, logits: Tensor, targets: Tensor, start: Scaling | None) -> Scaling:
    return fit_matrix_scaling(logits, targets, regularisation=regularisation, init=start)
