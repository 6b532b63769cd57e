"""What the data of an adaptation allow: the classes, and refusals, warnings and notes about labels and rows.

`contamination` answers whether the network was trained on the validation rows. On such rows every head looks
certain, and a λ that is chosen on them is wrong elsewhere. These signs are used, in this order:

1. Validation rows that are also training rows, up to the rounding of half precision.
2. The existing head knows the training rows better than the validation rows: by accuracy (Fisher's exact
   test) or by surprise, −ln p of the label (Mann-Whitney test). The validation rows are then new.
3. A temperature above 1 on the validation rows (score test). Training drives the temperature of its own rows
   to 1 or below, so these rows are new. A temperature below 1 proves nothing: networks that were stopped
   early, or trained with label smoothing, mixup or weight decay, have one on new rows too.
4. The existing head knows the validation rows as well as the training rows, and is right more often for them
   than for the test rows (Fisher's exact test). The validation rows were then seen.

In all other cases the answer is that the rows cannot tell; docs/adapt.md has the measured rates.
"""

import math
from collections.abc import Mapping
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from beliefmatch import _validate
from beliefmatch._environment import needs
from beliefmatch._validate import fail, require_index
from beliefmatch.adaptation.adapt_config import Labels
from beliefmatch.adaptation.feature_rows import Features, block_size, require_init, require_labels
from beliefmatch.adaptation.fitted import Candidate, FittedHead, Init
from beliefmatch.adaptation.result import FeatureSets, Verdict
from beliefmatch.adaptation.scoring import head_logits, scorable, score
from beliefmatch.methods.temperature import fit_temperature
from beliefmatch.metrics import auroc

__all__ = [
    "MAX_CLASSES",
    "LabelSet",
    "choice_warnings",
    "contamination",
    "copied_share",
    "data_warnings",
    "label_notes",
    "label_set",
    "require_sets",
    "sentence",
    "warn",
]

MAX_CLASSES = 1_000_000
"""Class ids must be below this number."""
MANY_COPIES, SOME_COPIES = 0.05, 0.005
"""Share of copied rows that proves contamination, and the share that is worth a note."""
LEVEL = 0.001
"""p-value below which a test of `contamination` decides."""

_CALLER = "adapt"
_SHOWN = 10  # class ids in a message
_BETTER_THAN_CHANCE = 3.0  # times: a head that is right so often has learnt these classes
_OFTEN = 0.5  # right so often, a head knows the classes even if not all of them are here
_MIN_GAP, _MIN_AUROC = 0.005, 0.51  # smaller differences decide nothing, however many rows there are
_NEARLY_ALL = 0.95  # share of a class beyond which no head can be much better than always answering it
_NO_ERRORS = 0.99  # accuracy from which on a head makes hardly any errors
_MIN_ROWS, _MIN_OF_CLASS = 50, 5
_OUTLIER = 1e6  # times the usual length: such a row leaves no digits of the others in single precision
_WORSE, _ERRORS = 0.02, 2.0  # by which a head is clearly worse: in error, and in standard errors

_SAMPLED = 2000  # validation rows that are searched for among the training rows
_PROJECTIONS = 3  # random directions in which copies must agree before they are compared in full
_COMPARED = 200  # rows of the same projections that are compared in full
_NEAR = 2e-3  # distance of copies relative to their length; half precision causes 5e-4 at most


def warn(message: str) -> None:
    """Warn as `adapt`, at the user's own line."""
    _validate.warn(_CALLER, message)


def sentence(diagnostic: str) -> str:
    """A diagnostic as a sentence of a report."""
    return f"{diagnostic[:1].upper()}{diagnostic[1:]}."


# The classes


class LabelSet(NamedTuple):
    """Number of classes, and whether they are those of the existing head."""

    kind: Literal["same", "new"]
    classes: int


def require_sets(sets: FeatureSets, init: Init | None) -> Init | None:
    """Require rows of one width in all sets and the existing head, and return its weights in float32."""
    width = sets.train.width
    others = {"validation": sets.validation, "test": sets.test, "background": sets.background}
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
    named = {"train": sets.train, "validation": sets.validation, "test": sets.test}
    there = {name: one for name, one in named.items() if one is not None}
    for name, one in there.items():
        ids = one.targets if one.targets.dim() == 1 else one.targets[:0]
        if len(wrong := ids[(ids < -1) | (ids >= MAX_CLASSES)]):
            fact = f"`{name}` must have class ids from 0 to {MAX_CLASSES - 1}, or −1 for no class"
            raise fail(_CALLER, f"{fact}, got {_listed(wrong)}; number the classes from 0 without a gap.")
    known = _known_classes(there, classes)
    found = _decided(sets, there, known, init, labels)
    for name, one in there.items():
        _require_rows(name, one, found.classes)
    if found.kind == "new" and known is None:
        _require_ids_of_train(there)
    _require_examples(sets.train.targets, found, is_known=known is not None)
    _warn_of_rows_without_class(there)
    return found


def _known_classes(sets: Mapping[str, Features], classes: int | None) -> int | None:
    """The number of classes as given, or the width of the counts; None if neither is known."""
    if classes is not None and not 2 <= require_index(_CALLER, "classes", classes) <= MAX_CLASSES:
        raise fail(_CALLER, f"`classes` must be between 2 and {MAX_CLASSES}, got {classes}.")
    known = classes
    for name, one in sets.items():
        if one.targets.dim() == 2:
            known = known or one.targets.shape[1]
            if one.targets.shape[1] != known:
                fact = f"`classes` must fit the targets, got {known}"
                raise fail(_CALLER, f"{fact}, but `{name}` has counts of {one.targets.shape[1]} classes.")
    for name, one in sets.items():
        if known is not None and one.targets.dim() == 1 and len(beyond := one.targets[one.targets >= known]):
            fact = f"`classes` must fit the targets, got {known}, but `{name}` has the ids {_listed(beyond)}"
            raise fail(_CALLER, f"{fact}; ids run from 0 to {known - 1}.")
    return known


def _decided(
    sets: FeatureSets, there: Mapping[str, Features], known: int | None, init: Init | None, labels: Labels
) -> LabelSet:
    seen = known or max(2, *(int(one.targets.max()) + 1 for one in there.values()))
    own = 0 if init is None else len(init[0])
    fits = seen == own if known is not None else seen <= own
    if labels == "same" and not fits:
        if init is None:
            raise fail(_CALLER, "`labels` must be new or auto where there is no head to repair, got same.")
        what = f"targets have {seen}" if known is None else f"there are {seen}"
        raise fail(_CALLER, f"`labels` must be new where the head has {own} classes and {what}, got same.")
    if labels == "auto" and init is not None and fits:
        _require_rows("validation", sets.validation, own)
        accuracy = _accuracy(init, sets.validation)
        is_better = accuracy > _majority(sets.validation)  # than always the most frequent class
        labels = "same" if is_better and _knows(init, accuracy, seen) else "new"
    return LabelSet("same", own) if labels == "same" else LabelSet("new", seen)


def _accuracy(init: Init, features: Features) -> float:
    """Share of the rows for which the existing head is right."""
    return 1 - score(FittedHead(Candidate("untouched"), *init), features).error


def _knows(init: Init, accuracy: float, seen: int) -> bool:
    """Whether a head of this accuracy on rows of `seen` classes is far enough above chance to know them."""
    own = len(init[0])
    return accuracy > (min(_OFTEN, _BETTER_THAN_CHANCE / own) if seen == own else _OFTEN)


def _majority(features: Features) -> float:
    """Share of the most frequent class among the rows, plus two standard errors; 0 where it is nearly all."""
    targets = features.targets[scorable(features)]
    ids = targets if targets.dim() == 1 else targets.argmax(1)
    share = ids.bincount().max().item() / len(ids)
    return share + 2 * math.sqrt(share * (1 - share) / len(ids)) if share < _NEARLY_ALL else 0.0


def _require_rows(name: str, features: Features, classes: int) -> None:
    require_labels(_CALLER, name, features, classes, features.width)
    if not len(scorable(features)):
        raise fail(_CALLER, f"`{name}` must have rows with votes, got none of {len(features)}.")


def _require_ids_of_train(sets: Mapping[str, Features]) -> None:
    """Where the training ids have no gap, ids beyond them are the fault of the set that has them."""
    classes = int(sets["train"].targets.max()) + 1
    if classes < 2 or not bool(sets["train"].targets.add(1).bincount()[1:].all()):
        return
    for name, one in sets.items():
        if len(beyond := one.targets[one.targets >= classes]):
            fact = f"`{name}` must have class ids of `train`, from 0 to {classes - 1}, got {_listed(beyond)}"
            raise fail(_CALLER, f"{fact}; number the classes of both alike, or give `classes`.")


def _require_examples(targets: Tensor, found: LabelSet, *, is_known: bool) -> None:
    """Require training examples of each class, or warn about missing ones where that can be intended.

    Ids with a gap are a mistake more often than not, unless the number of classes was given or is that of the
    existing head.
    """
    has_ids = targets.dim() == 1
    votes = targets[targets >= 0].bincount(minlength=found.classes) if has_ids else targets.sum(0)
    absent = (votes == 0).nonzero()[:, 0]
    if not len(absent):
        return
    fact = f"`train` must have examples of all {found.classes} classes, got none of {_listed(absent)}"
    if found.kind == "new" and not is_known:
        raise fail(_CALLER, f"{fact}; number the classes from 0 without a gap, or give `classes`.")
    warn(f"{fact}: {'the new head unlearns them' if found.kind == 'same' else 'no head can learn them'}.")


def _warn_of_rows_without_class(sets: Mapping[str, Features]) -> None:
    """Warn once about rows of no class in all sets."""
    empty = []
    for name, one in sets.items():
        if many := len(one) - len(scorable(one)):
            what = "of class −1" if one.targets.dim() == 1 else "without a vote"
            empty.append(f"{many} of {len(one)} rows of `{name}` ({what})")
    if empty:
        warn(f"{' and '.join(empty)} belong to no class and are not used; remove them if that is intended.")


def _listed(ids: Tensor) -> str:
    found = ids.unique().tolist()
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(map(str, found[:_SHOWN])) + more


# Notes and warnings


def data_warnings(sets: FeatureSets, found: LabelSet, init: Init | None) -> list[str]:
    """Problems of the data that are found before any head is fitted."""
    messages = (
        _numbered_differently(sets, found, init),
        _copied(sets),
        _few(sets.validation, found),
        _single(sets, found),
        _degenerate(sets.train),
    )
    return [one for one in messages if one is not None]


def label_notes(sets: FeatureSets, found: LabelSet, init: Init | None) -> list[str]:
    """How `labels="auto"` decided whether the classes are those of the existing head."""
    if init is None:
        return []
    taken = "the same classes" if found.kind == "same" else "other classes"
    if _fits(sets.validation, found, init):
        right = _accuracy(init, sets.validation)
        why = f"the existing head is right for {100 * right:.1f} % of the validation rows"
    else:
        why = f"the existing head has {len(init[0])} classes and there are {found.classes}"
    return [f"{why}, so `labels` 'auto' takes them as {taken}; set `labels` to override"]


def choice_warnings(chosen: FittedHead, before: FittedHead | None) -> list[str]:
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
    """Warn if the existing head knows the labels of only one of `train` and `validation`."""
    if init is None or not all(_fits(one, found, init) for one in (sets.train, sets.validation)):
        return None
    right = {name: _accuracy(init, getattr(sets, name)) for name in ("train", "validation")}
    better, worse = sorted(right, key=lambda name: -right[name])
    known = {name: _knows(init, share, found.classes) for name, share in right.items()}
    if known[worse] or not known[better] or 2 * right[worse] > right[better]:
        return None
    values = f"{right[better]:.0%} of the rows of `{better}`, but only for {right[worse]:.0%} of `{worse}`"
    return f"the existing head is right for {values}: their classes seem to be numbered differently"


def _fits(features: Features, found: LabelSet, init: Init) -> bool:
    """Whether the existing head has the classes of these rows."""
    own = len(init[0])
    return found.classes == own if features.targets.dim() == 2 else found.classes <= own


def _copied(sets: FeatureSets) -> str | None:
    """Warn if test rows also occur in the sets that heads are fitted on or chosen by."""
    if sets.test is None:
        return None
    shares = {name: copied_share(sets.test, getattr(sets, name)) for name in ("train", "validation")}
    found = [f"{share:.0%} in `{name}`" for name, share in shares.items() if share >= MANY_COPIES]
    if not found:
        return None
    return f"rows of `test` also occur in other sets ({', '.join(found)}), so its scores are optimistic"


def _few(validation: Features, found: LabelSet) -> str | None:
    """Warn if there are too few validation rows to choose λ."""
    many = len(scorable(validation))
    if many >= max(_MIN_ROWS, _MIN_OF_CLASS * found.classes):
        return None
    wanted = f"{_MIN_ROWS} rows, and {_MIN_OF_CLASS} a class, is the recommended minimum"
    return f"`validation` has only {many} labelled rows for {found.classes} classes to choose λ: {wanted}"


def _single(sets: FeatureSets, found: LabelSet) -> str | None:
    """Warn of classes with one training row."""
    targets = sets.train.targets
    if targets.dim() == 1:
        rows = targets[targets >= 0].bincount(minlength=found.classes)
    else:
        rows = (targets > 0).sum(0)
    single = (rows == 1).nonzero()[:, 0]
    if not len(single):
        return None
    which = "class" if len(single) == 1 else "each of the classes"
    return f"`train` has a single row of {which} {_listed(single)}, too few to learn from"


def _degenerate(train: Features) -> str | None:
    """Warn if all rows are equal, or if one is so long that all others are equal beside it."""
    first, is_same, lengths = None, True, []
    for rows, _ in train.blocks(block_size(train)):
        first = rows[:1] if first is None else first
        is_same = is_same and bool((rows == first).all())
        lengths.append(rows.abs().amax(1))
    longest = torch.cat(lengths) if lengths else torch.zeros(0)
    if len(longest) < 2:
        return None
    if is_same:
        return "`train` has the same features in every row; a head can only learn how frequent classes are"
    usual, place = longest.median().item(), int(longest.argmax())
    if longest[place].item() <= _OUTLIER * usual or usual == 0:
        return None
    fact = (
        f"`train` has features of up to {longest[place].item():.3g} in row {place}, {usual:.3g} in most rows"
    )
    return f"{fact}; the long row hides the others, look for wrong values"


# Contamination


def contamination(
    validation: Features, *, train: Features, init: Init | None = None, test: Features | None = None
) -> Verdict:
    """Whether the network was trained on the validation rows; the module's documentation states the rules.

    Args:
        validation: Rows that choose λ.
        train: Rows that heads are fitted on.
        init: Weight and bias of the head that the network was trained with, if its classes are these.
        test: Rows that the network was not trained on.
    """
    share = copied_share(validation, train)
    if share >= MANY_COPIES:
        return Verdict(True, f"{share:.0%} of the validation rows are among the training rows.")
    note = ""
    if share >= SOME_COPIES:
        note = f" ({share:.1%} of them are among the training rows; look for duplicates.)"
    if init is None:
        why = "No validation row is among the training rows" if not note else "Few validation rows are copies"
        return Verdict(None, f"{why}; only the network's own head could show whether it saw them.{note}")
    verdict = _by_head(validation, train, test, init)
    seen = None if note and verdict.seen is False else verdict.seen
    return verdict._replace(seen=seen, why=verdict.why + note)


def _by_head(validation: Features, train: Features, test: Features | None, init: Init) -> Verdict:
    """The verdict by the predictions of the existing head."""
    new, old = _Outcomes("validation", validation, init), _Outcomes("training", train, init)
    temperature, overconfidence_p = fit_temperature(new.logits, new.targets), _overconfidence(new)
    less_known = _compare(old, new)
    evidence = {"validation_accuracy": new.accuracy, "temperature": temperature}
    evidence |= {"overconfidence_p": overconfidence_p, "train_accuracy": old.accuracy}
    evidence |= less_known.p_values("train")
    facts = [f"its head is right for {new}", f"{old} ({less_known})"]

    def verdict(seen: bool | None, reason: str) -> Verdict:
        return Verdict(seen, f"{reason}: {', '.join(facts)}.", evidence)

    if less_known.is_better:
        return verdict(False, "The network knows the training rows better than the validation rows")
    facts.append(f"with a temperature of {temperature:.2f} (score test for above 1 {_p(overconfidence_p)})")
    if overconfidence_p < LEVEL:
        return verdict(False, "The network is overconfident on the validation rows, as on new rows")
    if test is not None:
        fresh = _Outcomes("test", test, init)
        better_known = _compare(new, fresh)
        evidence |= {"test_accuracy": fresh.accuracy, **better_known.p_values("test")}
        facts.insert(-1, f"{fresh} ({better_known})")
        if better_known.is_better and better_known.accuracy_p < LEVEL:
            reason = "Unless the test rows are harder, the network was trained on the validation rows"
            return verdict(True, reason)
    if _compare(new, old).is_better:
        return verdict(None, "The network knows the validation rows better than the training rows")
    if min(new.accuracy, old.accuracy) >= _NO_ERRORS:
        return verdict(None, "The network was trained on both sets, or they are too easy to tell")
    return verdict(None, "The network has seen both sets or neither, or there are too few rows to tell")


class _Outcomes:
    """Predictions of the existing head for the rows of one set."""

    def __init__(self, name: str, features: Features, init: Init) -> None:
        self.name = name
        self.logits, targets = head_logits(init, features)
        self.targets = targets.argmax(1) if targets.dim() == 2 else targets
        self.surprise = -self.logits.log_softmax(1).gather(1, self.targets[:, None])[:, 0]
        self.correct = int((self.logits.argmax(1) == self.targets).sum())
        self.accuracy = self.correct / len(self.targets)

    def __str__(self) -> str:
        return f"{self.accuracy:.1%} of {len(self.targets)} {self.name} rows"


class _Comparison(NamedTuple):
    """Whether the existing head knows the rows of one set better than those of another, by two tests."""

    accuracy_p: float
    surprise_p: float
    is_better: bool

    def p_values(self, name: str) -> dict[str, float]:
        """For the record; `name` is the set that validation rows are compared with."""
        return {f"{name}_accuracy_p": self.accuracy_p, f"{name}_surprise_p": self.surprise_p}

    def __str__(self) -> str:
        return f"Fisher's exact test {_p(self.accuracy_p)}, Mann-Whitney {_p(self.surprise_p)}"


def _compare(known: _Outcomes, other: _Outcomes) -> _Comparison:
    with needs("scipy", extra="stats", caller="adapt"):
        from scipy import stats
    total, right = len(known.targets) + len(other.targets), known.correct + other.correct
    fisher = stats.hypergeom.sf(known.correct - 1, total, right, len(known.targets))
    ranks = stats.mannwhitneyu(
        other.surprise.numpy(),
        known.surprise.numpy(),
        alternative="greater",
        method="asymptotic",
        use_continuity=False,
    )
    surprise_p = 0.5 if math.isnan(ranks.pvalue) else float(ranks.pvalue)  # all examples are tied
    accuracy_p, gap = float(fisher), known.accuracy - other.accuracy
    is_better = (accuracy_p < LEVEL and gap > _MIN_GAP) or (
        surprise_p < LEVEL and auroc(known.surprise, other.surprise) > _MIN_AUROC
    )
    return _Comparison(accuracy_p, surprise_p, is_better)


def _p(value: float) -> str:
    return f"p = {value:.2g}" if value >= 1e-9 else "p < 1e-9"


def _overconfidence(outcomes: _Outcomes) -> float:
    """One-sided p-value of the hypothesis that the best temperature is 1 or below, by the score test.

    The larger of the model's and the empirical variance is used: a few wrong labels prove nothing.
    """
    probs, logits = outcomes.logits.softmax(1), outcomes.logits
    mean = (probs * logits).sum(1)
    score = logits.gather(1, outcomes.targets[:, None])[:, 0] - mean
    expected = (probs * (logits - mean[:, None]).square()).sum()
    variance = max(expected.item(), (score - score.mean()).square().sum().item())
    z = score.sum().item() / math.sqrt(variance) if variance > 0 else 0.0
    return 0.5 * math.erfc(-z / math.sqrt(2))


def copied_share(validation: Features, train: Features) -> float:
    """Share of an even sample of validation rows that are training rows too; empty rows are left out."""
    step = -(-len(validation) // _SAMPLED)
    sample = np.array(validation.rows[::step], dtype=np.float32)
    sample = sample[np.abs(sample).max(1) > 0] if len(sample) else sample
    if not len(sample) or not len(train):
        return 0.0
    width = sample.shape[1]
    chance = torch.Generator().manual_seed(0)
    directions = torch.randn(width, _PROJECTIONS, generator=chance, dtype=torch.float32) / math.sqrt(width)
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
    for row, own, length, far, one, other in zip(sample, ours, lengths, reach, first, last, strict=True):
        near = order[one:other]
        near = near[(np.abs(theirs[near] - own) <= far).all(1)][:_COMPARED]
        found += any(
            np.linalg.norm(train.rows[place].astype(np.float64) - row) <= _NEAR * length for place in near
        )
    return found / len(sample)
