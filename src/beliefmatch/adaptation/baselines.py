"""What a fitted head has to beat on the same features: the head as it was, and its temperature scaled."""

import torch
from torch import Tensor

from beliefmatch.adaptation.candidates import Candidate
from beliefmatch.adaptation.fitted import FittedHead
from beliefmatch.adaptation.head_init import Init, require_init
from beliefmatch.adaptation.reading import require_labels
from beliefmatch.adaptation.scoring import Evaluator
from beliefmatch.adaptation.types import Features
from beliefmatch.methods.temperature import fit_temperature

__all__ = ["head_logits", "temperature", "untouched"]

MOST_LOGITS = 20_000_000
"""Numbers that a temperature is fitted on, 160 MB; of more, evenly spaced rows."""


def untouched(init: Init, validation: Features) -> FittedHead:
    """The head as it was, with its scores."""
    weight, bias = _checked("untouched", init, validation)
    return _scored(Candidate("untouched", "untouched"), weight, bias, validation, ())


def temperature(init: Init, validation: Features) -> FittedHead:
    """The head with weight and bias divided by the temperature of the lowest NLL on the validation rows.

    Its scores are on the rows it was fitted on, a little better than on others: one number was fitted.
    """
    weight, bias = _checked("temperature", init, validation)
    logits, targets, step = head_logits((weight, bias), validation)
    fitted = fit_temperature(logits, targets)
    candidate = Candidate("temperature", "temperature", {"temperature": fitted})
    notes = (f"fitted on every {step}th validation row",) if step > 1 else ()
    return _scored(candidate, weight / fitted, bias / fitted, validation, notes)


def head_logits(init: Init, features: Features) -> tuple[Tensor, Tensor, int]:
    """Logits (n, K) in double and targets of every nth row that belongs to a class, and n."""
    weight, bias = init
    evaluator = Evaluator(features)
    step = -(-len(evaluator) * len(bias) // MOST_LOGITS)
    parts, labels, at = [], [], 0
    for logits, targets in evaluator.logits(weight[None], bias[None]):
        first = -at % step
        at += len(targets)
        parts.append(logits[0].t()[first::step].double())
        labels.append(targets[first::step])
    return torch.cat(parts), torch.cat(labels), step


def _checked(function: str, init: Init, validation: Features) -> Init:
    weight, bias = require_init(function, init)
    require_labels(function, "validation", validation, *weight.shape)
    return weight, bias


def _scored(
    candidate: Candidate, weight: Tensor, bias: Tensor, validation: Features, notes: tuple[str, ...]
) -> FittedHead:
    scores = Evaluator(validation).scores([candidate], weight[None], bias[None])[0]
    return FittedHead(candidate, weight, bias, 0, scores, notes=notes)
