"""Whether validation rows can evaluator: a network is surer of what it was trained on than of anything else.

On images that it was trained on every head looks certain and well chosen, and the choice made there is wrong
elsewhere. The measured case: a CIFAR-10 ResNet-20 on a slice of its own training images asks for a
temperature of 0.51, while on others it needs one above 1. Two signs are looked for.

Rows that are in the training features too. They are compared up to what storing them in half precision
changes. One validation row in twenty settles it (`MANY_COPIES`): the image sets in use have up to three in a
hundred near-copies between their parts, and fewer exact ones. A single one in two hundred is worth a word.

The existing head's surprise, −ln p of the label, on training and on validation rows. That of rows it has
learnt is lower: the probability that a validation row surprises it more than a training row is one half
where both were learnt or both were not, and above it where only the training rows were. Above by 0.01 and by
four standard errors (`CLEAR`, `SIGMAS`) the validation rows are new. Otherwise, where the training rows are
known by heart and so are these (accuracy of 0.95, `BY_HEART`), and a temperature fitted on these is below 0.8
(`COLD`), they have been seen: a network needs that only where it is right more often than it dares to say,
and of new rows it says too much. That ResNet-20, measured with 8,000 of its training images: on others of
them 0.497, accuracy 99.9 % and temperature 0.41; on test images 0.538 (seven standard errors), 91.5 % and
2.39. In between, or with fewer rows than some hundreds (`COARSEST`), nothing is claimed.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from beliefmatch._validate import fail
from beliefmatch.adaptation.baselines import head_logits
from beliefmatch.adaptation.head_init import Init, require_init
from beliefmatch.adaptation.reading import block_size, require_labels
from beliefmatch.adaptation.types import Features
from beliefmatch.methods.temperature import fit_temperature
from beliefmatch.metrics import auroc

__all__ = ["Verdict", "contamination", "copied_share"]

MANY_COPIES, SOME_COPIES = 0.05, 0.005
CLEAR, SIGMAS = 0.01, 4.0
BY_HEART, COLD = 0.95, 0.8
COARSEST = 0.06
"""Standard errors, times `SIGMAS`, above which there are too few rows to call them seen."""

_SAMPLED = 2000  # validation rows that are looked for
_SHADOWS = 3  # random directions in which copies have to agree before they are compared in full
_COMPARED = 200  # rows of the same shadows that are compared in full
_NEAR = 2e-3  # of its length, how far apart copies may be; half precision makes 5e-4 at most


class Verdict(NamedTuple):
    """Whether the validation rows were seen in training, None where that is unknown; and why."""

    seen: bool | None
    why: str


def contamination(
    validation: Features, *, train: Features | None = None, init: Init | None = None
) -> Verdict:
    """Whether validation rows were seen in training, in plain words; see the head of this module.

    Args:
        validation: rows that are to choose.
        train: rows that heads are trained on; of the network's own training data if it is to be repaired.
        init: weight and bias of the head that the network was trained with, if its classes are these.
    """
    if train is None and init is None:
        raise fail("contamination", "`train` or `init` must be given, got neither.")
    note = ""
    if train is not None:
        if train.rows.shape[1:] != validation.rows.shape[1:]:
            got = f"{train.rows.shape[1:]} and {validation.rows.shape[1:]}"
            raise fail("contamination", f"`train` must have rows as wide as `validation`, got {got}.")
        share = copied_share(validation, train)
        if share >= MANY_COPIES:
            return Verdict(True, f"{share:.0%} of the validation rows are among the training rows.")
        if share >= SOME_COPIES:
            note = f" ({share:.1%} of them are among the training rows; look for duplicates.)"
    if init is None:
        why = "No validation row is among the training rows" if not note else "Few validation rows are copies"
        return Verdict(None, f"{why}; only the network's own head could show whether it saw them.{note}")
    seen, why = _by_surprise(validation, train, require_init("contamination", init))
    return Verdict(None if note and seen is False else seen, why + note)


class _Reading(NamedTuple):
    """What a head makes of rows."""

    surprise: Tensor
    accuracy: float
    confidence: float
    temperature: float


def _read(name: str, features: Features, init: Init) -> _Reading:
    require_labels("contamination", name, features, *init[0].shape)
    logits, targets, _ = head_logits(init, features)
    ids = targets.argmax(1) if targets.dim() == 2 else targets
    logs = logits.log_softmax(1)
    confidence, best = logs.max(1)
    return _Reading(
        surprise=-logs.gather(1, ids[:, None])[:, 0],
        accuracy=(best == ids).double().mean().item(),
        confidence=confidence.exp().mean().item(),
        temperature=fit_temperature(logits, ids),
    )


def _by_surprise(validation: Features, train: Features | None, init: Init) -> Verdict:
    new = _read("validation", validation, init)
    shown = (
        f"accuracy {new.accuracy:.1%}, mean confidence {new.confidence:.1%}, "
        f"fitted temperature {new.temperature:.2f}"
    )
    by_heart = new.accuracy >= BY_HEART and new.temperature < COLD
    if train is None and by_heart:
        why = f"The head knows the validation rows nearly by heart ({shown}): they may be training data"
        return Verdict(None, f"{why}. Give the training data too to decide it.")
    if train is None:
        return Verdict(None, f"It is unknown without training rows to compare with ({shown}).")
    old = _read("train", train, init)
    above, error = _surprised(old.surprise, new.surprise)
    shown += f"; on training rows accuracy {old.accuracy:.1%}, confidence {old.confidence:.1%}"
    if above > max(CLEAR, SIGMAS * error):
        return Verdict(
            False, f"The head is less sure of the validation rows than of the training rows ({shown})."
        )
    if error * SIGMAS > COARSEST:
        return Verdict(None, f"There are too few rows to tell ({len(new.surprise)} of validation; {shown}).")
    if old.accuracy >= BY_HEART and by_heart:
        why = f"The head knows the validation rows as well as the training rows, nearly by heart ({shown})"
        return Verdict(True, f"{why}: they were seen in training, and all heads will look certain on them.")
    why = f"The head is as sure of the validation rows as of the training rows ({shown})"
    return Verdict(None, f"{why}: the network has seen both or neither.")


def _surprised(old: Tensor, new: Tensor) -> tuple[float, float]:
    """P(a new row surprises more than an old one) − 1/2, ties half, and its standard error if it were 0."""
    error = math.sqrt((len(old) + len(new) + 1) / (12 * len(old) * len(new)))
    return auroc(in_distribution=old, ood=new) - 0.5, error


def copied_share(validation: Features, train: Features) -> float:
    """Share of an even sample of validation rows that are training rows too; empty rows are left out."""
    step = -(-len(validation) // _SAMPLED)
    sample = np.array(validation.rows[::step], dtype=np.float32)
    sample = sample[np.abs(sample).max(1) > 0] if len(sample) else sample
    if not len(sample) or not len(train):
        return 0.0
    width = sample.shape[1]
    chance = torch.Generator().manual_seed(0)
    directions = torch.randn(width, _SHADOWS, generator=chance, dtype=torch.float32) / math.sqrt(width)
    ours = (torch.from_numpy(sample) @ directions).double().numpy()
    theirs = np.concatenate(
        [(rows @ directions).double().numpy() for rows, _ in train.blocks(block_size(train))]
    )
    order = np.argsort(theirs[:, 0], kind="stable")
    lengths = np.linalg.norm(sample.astype(np.float64), axis=1)
    reach = 5 * _NEAR * lengths / math.sqrt(width)
    first = np.searchsorted(theirs[order, 0], ours[:, 0] - reach, "left")
    last = np.searchsorted(theirs[order, 0], ours[:, 0] + reach, "right")
    found = 0
    for row, shadow, length, far, one, other in zip(sample, ours, lengths, reach, first, last, strict=True):
        near = order[one:other]
        near = near[(np.abs(theirs[near] - shadow) <= far).all(1)][:_COMPARED]
        found += any(
            np.linalg.norm(train.rows[place].astype(np.float64) - row) <= _NEAR * length for place in near
        )
    return found / len(sample)
