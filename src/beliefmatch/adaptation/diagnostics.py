"""Diagnostics of an adaptation: warnings and notes about the data, the labels and the choice."""

import math

from beliefmatch.adaptation.baselines import untouched
from beliefmatch.adaptation.contamination import MANY_COPIES, copied_share
from beliefmatch.adaptation.fitted import FittedHead
from beliefmatch.adaptation.head_init import Init
from beliefmatch.adaptation.labelling import LabelSet, knows
from beliefmatch.adaptation.reading import labelled
from beliefmatch.adaptation.result import FeatureSets
from beliefmatch.adaptation.types import Features

__all__ = ["on_data", "on_the_choice", "on_the_labels", "sentence"]

_LEAST_ROWS, _LEAST_OF_CLASS = 50, 5
_WORSE, _ERRORS = 0.02, 2.0  # by which a head is clearly worse: in error, and in standard errors


def on_data(sets: FeatureSets, found: LabelSet, init: Init | None) -> list[str]:
    """Problems of the data, found before anything is fitted."""
    messages = (_numbered_differently(sets, found, init), _copied(sets), _few(sets.validation, found))
    return [one for one in messages if one is not None]


def on_the_labels(sets: FeatureSets, found: LabelSet, init: Init | None) -> list[str]:
    """How `labels="auto"` decided whether the classes are those of the existing head."""
    if init is None:
        return []
    taken = "the same classes" if found.kind == "same" else "other classes"
    if _fits(sets.validation, found, init):
        right = _right(init, sets.validation)
        why = f"the existing head is right for {100 * right:.1f} % of the validation rows"
    else:
        why = f"the existing head has {len(init[0])} classes and there are {found.classes}"
    return [f"{why}, so `labels` 'auto' takes them as {taken}; set `labels` to override"]


def sentence(diagnostic: str) -> str:
    """As it stands in a report."""
    return f"{diagnostic[:1].upper()}{diagnostic[1:]}."


def on_the_choice(chosen: FittedHead, before: FittedHead | None) -> list[str]:
    """Whether the chosen head is clearly worse on the validation rows than the head as it was."""
    if before is None or chosen.validation is None or before.validation is None:
        return []
    new, old = chosen.validation, before.validation
    variance = sum(one.error * (1 - one.error) / max(1, one.rows) for one in (new, old))
    if new.error - old.error <= max(_WORSE, _ERRORS * math.sqrt(variance)):
        return []
    values = f"is wrong for {new.error:.1%} of the validation rows, the untouched head for {old.error:.1%}"
    remedy = "look at the labels of `train`, give more of them, or stay with the untouched head"
    return [f"the chosen head ({chosen.candidate.name}) {values}: {remedy}"]


def _numbered_differently(sets: FeatureSets, found: LabelSet, init: Init | None) -> str | None:
    """The existing head knows the labels of one set and not those of the other."""
    if init is None or not all(_fits(one, found, init) for one in (sets.train, sets.validation)):
        return None
    right = {name: _right(init, getattr(sets, name)) for name in ("train", "validation")}
    known = {name: knows(init, share, found.classes) for name, share in right.items()}
    better, worse = sorted(right, key=lambda name: -right[name])
    if known[worse] or not known[better] or 2 * right[worse] > right[better]:
        return None
    values = f"{right[better]:.0%} of the rows of `{better}`, but only for {right[worse]:.0%} of `{worse}`"
    return f"the existing head is right for {values}: their classes seem to be numbered differently"


def _copied(sets: FeatureSets) -> str | None:
    """Test rows that heads were fitted on or chosen by."""
    if sets.test is None:
        return None
    shares = {name: copied_share(sets.test, getattr(sets, name)) for name in ("train", "validation")}
    found = [f"{share:.0%} in `{name}`" for name, share in shares.items() if share >= MANY_COPIES]
    if not found:
        return None
    return f"rows of `test` also occur in other sets ({', '.join(found)}), so its scores are optimistic"


def _few(validation: Features, found: LabelSet) -> str | None:
    """Too few rows to compare values of λ."""
    targets = validation.targets
    many = int((targets >= 0).sum() if targets.dim() == 1 else (targets.sum(1) > 0).sum())
    if many >= max(_LEAST_ROWS, _LEAST_OF_CLASS * found.classes):
        return None
    wanted = f"{_LEAST_ROWS} rows, and {_LEAST_OF_CLASS} a class, is the recommended minimum"
    return f"`validation` has only {many} labelled rows for {found.classes} classes to choose λ: {wanted}"


def _fits(features: Features, found: LabelSet, init: Init) -> bool:
    """Whether the existing head has the classes of these rows."""
    own = len(init[0])
    few = found.classes == own if features.targets.dim() == 2 else found.classes <= own
    return few and len(labelled(features)) > 0


def _right(init: Init, features: Features) -> float:
    error = untouched(init, features).error
    return 0.0 if error is None else 1 - error
