"""Labels of an adaptation: the number of classes, whether the existing head knows them, and checks of ids."""

import warnings
from typing import Literal, NamedTuple

from torch import Tensor

from beliefmatch._validate import fail, level_of_caller, require_index
from beliefmatch.adaptation.adapt_config import Labels
from beliefmatch.adaptation.fitted import Init
from beliefmatch.adaptation.result import FeatureSets
from beliefmatch.adaptation.scoring import untouched
from beliefmatch.adaptation.types import Features, labelled, require_init, require_labels

__all__ = ["MOST_CLASSES", "LabelSet", "knows", "label_set", "require_sets"]

_CALLER = "adapt"
_BETTER_THAN_CHANCE = 3.0  # times: a head that is right so often has learnt these classes
_OFTEN = 0.5  # right so often, a head knows the classes even if not all of them are here
MOST_CLASSES = 1_000_000
"""Class ids must be below this number."""
_SHOWN = 10


class LabelSet(NamedTuple):
    """Number of classes, and whether they are those of the existing head."""

    kind: Literal["same", "new"]
    classes: int


def require_sets(sets: FeatureSets, init: Init | None) -> Init | None:
    """Require rows of one width in all sets and the existing head, and return its weights in float32."""
    width = sets.train.width
    others = {"validation": sets.validation, "test": sets.test}
    others |= {f"ood[{name!r}]": one for name, one in sets.ood.items()}
    for name, one in others.items():
        if one is not None and one.width != width:
            fact = f"`{name}` must have rows of {width} numbers as `train` has, got {one.width}"
            raise fail(_CALLER, f"{fact}; compute them with the same network and layer.")
    if init is None:
        return None
    init = require_init(_CALLER, init)
    if init[0].shape[1] != width:
        fact = f"`train` must have rows of {init[0].shape[1]} numbers for this head, got {width}"
        raise fail(_CALLER, f"{fact}: the features are of another network or layer.")
    return init


def label_set(sets: FeatureSets, *, classes: int | None, init: Init | None, labels: Labels) -> LabelSet:
    """Decide the number of classes and whether the existing head knows them; see `AdaptConfig.labels`.

    Raises:
        ValueError: ids or counts that do not fit the number of classes, or classes without any example.
    """
    for name, one in _labelled_sets(sets).items():
        _require_plain_ids(name, one)
    known = _known_classes(sets, classes)
    found = _decided(sets, known, init, labels)
    for name, one in _labelled_sets(sets).items():
        _require_ids(name, one, found.classes, f"of the {found.classes} classes")
        require_labels(_CALLER, name, one, found.classes, sets.train.width)
    _require_examples(sets, found, is_known=known is not None)
    _warn_of_rows_without_class(sets)
    return found


def _labelled_sets(sets: FeatureSets) -> dict[str, Features]:
    named = {"train": sets.train, "validation": sets.validation, "test": sets.test}
    return {name: one for name, one in named.items() if one is not None}


def _known_classes(sets: FeatureSets, classes: int | None) -> int | None:
    """The number of classes as given, or the width of the counts; None if neither is known."""
    if classes is not None and require_index(_CALLER, "classes", classes) < 2:
        raise fail(_CALLER, f"`classes` must be at least 2, got {classes}.")
    known = classes
    for name, one in _labelled_sets(sets).items():
        if one.targets.dim() == 2:
            width = one.targets.shape[1]
            if known is not None and width != known:
                fact = f"`classes` must fit the targets, got {known}"
                raise fail(_CALLER, f"{fact}, but `{name}` has counts of {width} classes.")
            known = width
    if known is not None:
        for name, one in _labelled_sets(sets).items():
            _require_ids(name, one, known, f"got {known}")
    return known


def _require_plain_ids(name: str, features: Features) -> None:
    """Require ids of at least −1, which marks rows of no class, and below `MOST_CLASSES`."""
    targets = features.targets
    if targets.dim() == 1 and (beyond := targets[targets >= MOST_CLASSES].unique().tolist()):
        fact = f"`{name}` must have class ids below {MOST_CLASSES}, got {_listed(beyond)}"
        raise fail(_CALLER, f"{fact}; number the classes from 0 without a gap.")
    if targets.dim() == 1 and (below := targets[targets < -1].unique().tolist()):
        fact = f"`{name}` must have class ids from 0, or −1 for no class, got {_listed(below)}"
        raise fail(_CALLER, f"{fact}; give −1 to rows that are to be left out.")


def _warn_of_rows_without_class(sets: FeatureSets) -> None:
    """Warn once about rows of no class in all sets."""
    empty_sets = []
    for name, one in _labelled_sets(sets).items():
        targets = one.targets
        empty = targets < 0 if targets.dim() == 1 else targets.sum(1) <= 0
        if many := int(empty.sum()):
            what = "of class −1" if targets.dim() == 1 else "without a vote"
            empty_sets.append(f"{many} of {len(one)} rows of `{name}` ({what})")
    if empty_sets:
        fact = f"{' and '.join(empty_sets)} belong to no class and are not used"
        warnings.warn(f"{_CALLER}: {fact}; remove them if that is intended.", stacklevel=level_of_caller())


def _require_ids(name: str, features: Features, classes: int, received: str) -> None:
    targets = features.targets
    if targets.dim() == 1 and (beyond := targets[targets >= classes].unique().tolist()):
        fact = f"`classes` must fit the targets, {received}, but `{name}` has the ids {_listed(beyond)}"
        raise fail(_CALLER, f"{fact}; ids run from 0 to {classes - 1}.")


def _decided(sets: FeatureSets, known: int | None, init: Init | None, labels: Labels) -> LabelSet:
    seen = _classes_seen(sets) if known is None else known
    if init is None:
        if labels == "same":
            raise fail(_CALLER, "`labels` must be new or auto where there is no head to repair, got same.")
        return LabelSet("new", seen)
    own = len(init[0])
    fits = seen == own if known is not None else seen <= own
    if labels == "same" and not fits:
        there = f"targets have {seen}" if known is None else f"there are {seen}"
        raise fail(_CALLER, f"`labels` must be new where the head has {own} classes and {there}, got same.")
    if labels == "new" or not fits:
        return LabelSet("new", seen)
    if labels == "same" or _knows(init, sets.validation, seen):
        return LabelSet("same", own)
    return LabelSet("new", seen)


def _classes_seen(sets: FeatureSets) -> int:
    """One more than the largest class id."""
    return max(2, *(int(one.targets.max()) + 1 for one in _labelled_sets(sets).values()))


def _knows(init: Init, validation: Features, seen: int) -> bool:
    if not len(labelled(validation)):
        return False
    error = untouched(init, validation).error
    return error is not None and knows(init, 1 - error, seen)


def knows(init: Init, right: float, seen: int) -> bool:
    """Whether a head of this accuracy on rows of `seen` classes is far enough above chance to know them."""
    own = len(init[0])
    return right > (min(_OFTEN, _BETTER_THAN_CHANCE / own) if seen == own else _OFTEN)


def _require_examples(sets: FeatureSets, found: LabelSet, *, is_known: bool) -> None:
    """Require training examples of each class, or warn about missing ones where that can be intended.

    Ids with a gap are a mistake more often than not, unless the number of classes was given or is that of the
    existing head.
    """
    absent = (_votes(sets.train.targets, found.classes) == 0).nonzero()[:, 0].tolist()
    if not absent:
        return
    fact = f"`train` must have examples of all {found.classes} classes, got none of {_listed(absent)}"
    if found.kind == "new" and not is_known:
        raise fail(_CALLER, f"{fact}; number the classes from 0 without a gap, or give `classes`.")
    end = "the new head unlearns them" if found.kind == "same" else "no head can learn them"
    warnings.warn(f"{_CALLER}: {fact}: {end}.", stacklevel=level_of_caller())


def _votes(targets: Tensor, classes: int) -> Tensor:
    if targets.dim() == 2:
        return targets.clamp(min=0).sum(0)
    return targets[targets >= 0].bincount(minlength=classes)


def _listed(ids: list[int]) -> str:
    more = f" and {len(ids) - _SHOWN} more" if len(ids) > _SHOWN else ""
    return ", ".join(map(str, ids[:_SHOWN])) + more
