"""Diagnostics of an adaptation: warnings and notes about the data, the labels and the choice.

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
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from beliefmatch._environment import needs
from beliefmatch._validate import fail
from beliefmatch.adaptation.fitted import FittedHead, Init
from beliefmatch.adaptation.labelling import LabelSet, knows
from beliefmatch.adaptation.result import FeatureSets, Verdict
from beliefmatch.adaptation.scoring import head_logits, untouched
from beliefmatch.adaptation.types import Features, block_size, labelled, require_init, require_labels
from beliefmatch.methods.temperature import fit_temperature
from beliefmatch.metrics import auroc

__all__ = ["contamination", "copied_share", "on_data", "on_the_choice", "on_the_labels", "sentence"]

MANY_COPIES, SOME_COPIES = 0.05, 0.005
"""Share of copied rows that proves contamination, and the share that is worth a note."""
LEVEL = 0.001
"""p-value below which a test of `contamination` decides."""

_LEAST_GAP, _LEAST_AUROC = 0.005, 0.51  # smaller differences decide nothing, however many rows there are
_NO_ERRORS = 0.99  # accuracy from which on a head makes hardly any errors
_LEAST_ROWS, _LEAST_OF_CLASS = 50, 5
_WORSE, _ERRORS = 0.02, 2.0  # by which a head is clearly worse: in error, and in standard errors

_SAMPLED = 2000  # validation rows that are searched for among the training rows
_PROJECTIONS = 3  # random directions in which copies must agree before they are compared in full
_COMPARED = 200  # rows of the same projections that are compared in full
_NEAR = 2e-3  # distance of copies relative to their length; half precision causes 5e-4 at most


def contamination(
    validation: Features,
    *,
    train: Features | None = None,
    init: Init | None = None,
    test: Features | None = None,
) -> Verdict:
    """Whether the network was trained on the validation rows; the module's documentation states the rules.

    Args:
        validation: Rows that choose λ.
        train: Rows that heads are fitted on.
        init: Weight and bias of the head that the network was trained with, if its classes are these.
        test: Rows that the network was not trained on.
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
    verdict = _by_head(validation, train, test, require_init("contamination", init))
    seen = None if note and verdict.seen is False else verdict.seen
    return verdict._replace(seen=seen, why=verdict.why + note)


class _Outcomes(NamedTuple):
    """Predictions of the existing head for the rows of one set."""

    name: str
    logits: Tensor
    targets: Tensor

    @property
    def surprise(self) -> Tensor:
        return -self.logits.log_softmax(1).gather(1, self.targets[:, None])[:, 0]

    @property
    def correct(self) -> int:
        return int((self.logits.argmax(1) == self.targets).sum())

    @property
    def accuracy(self) -> float:
        return self.correct / len(self.targets)

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


def _p(value: float) -> str:
    return f"p = {value:.2g}" if value >= 1e-9 else "p < 1e-9"


def _outcomes(name: str, features: Features, init: Init) -> _Outcomes:
    require_labels("contamination", name, features, *init[0].shape)
    logits, targets, _ = head_logits(init, features)
    return _Outcomes(
        "training" if name == "train" else name,
        logits,
        targets.argmax(1) if targets.dim() == 2 else targets,
    )


def _compare(known: _Outcomes, other: _Outcomes) -> _Comparison:
    with needs("scipy", extra="stats", caller="contamination"):
        from scipy import stats
    total, right = len(known.targets) + len(other.targets), known.correct + other.correct
    accuracy_p = float(
        stats.hypergeom.sf(known.correct - 1, total, right, len(known.targets))
    )  # Fisher's test
    ranks = stats.mannwhitneyu(
        other.surprise.numpy(),
        known.surprise.numpy(),
        alternative="greater",
        method="asymptotic",
        use_continuity=False,
    )
    surprise_p = 0.5 if math.isnan(ranks.pvalue) else float(ranks.pvalue)  # all examples are tied
    gap = known.accuracy - other.accuracy
    is_better = (accuracy_p < LEVEL and gap > _LEAST_GAP) or (
        surprise_p < LEVEL and auroc(known.surprise, other.surprise) > _LEAST_AUROC
    )
    return _Comparison(accuracy_p, surprise_p, is_better)


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


def _by_head(validation: Features, train: Features | None, test: Features | None, init: Init) -> Verdict:
    """The verdict by the predictions of the existing head."""
    new = _outcomes("validation", validation, init)
    temperature, overconfidence_p = fit_temperature(new.logits, new.targets), _overconfidence(new)
    evidence = {"validation_accuracy": new.accuracy, "temperature": temperature}
    evidence["overconfidence_p"] = overconfidence_p
    facts = [f"its head is right for {new}"]

    def verdict(seen: bool | None, reason: str) -> Verdict:
        return Verdict(seen, f"{reason}: {', '.join(facts)}.", evidence)

    old = None if train is None else _outcomes("train", train, init)
    if old is not None:
        less_known = _compare(old, new)
        evidence |= {"train_accuracy": old.accuracy, **less_known.p_values("train")}
        facts.append(f"{old} ({less_known})")
        if less_known.is_better:
            return verdict(False, "The network knows the training rows better than the validation rows")
    facts.append(f"with a temperature of {temperature:.2f} (score test for above 1 {_p(overconfidence_p)})")
    if overconfidence_p < LEVEL:
        return verdict(False, "The network is overconfident on the validation rows, as on new rows")
    if test is not None:
        fresh = _outcomes("test", test, init)
        better_known = _compare(new, fresh)
        evidence |= {"test_accuracy": fresh.accuracy, **better_known.p_values("test")}
        facts.insert(-1, f"{fresh} ({better_known})")
        if better_known.is_better and better_known.accuracy_p < LEVEL:
            reason = "Unless the test rows are harder, the network was trained on the validation rows"
            return verdict(True, reason)
    if old is None:
        return verdict(None, "There are no training rows to compare with")
    if _compare(new, old).is_better:
        return verdict(None, "The network knows the validation rows better than the training rows")
    if min(new.accuracy, old.accuracy) >= _NO_ERRORS:
        return verdict(None, "The network was trained on both sets, or they are too easy to tell")
    return verdict(None, "The network has seen both sets or neither, or there are too few rows to tell")


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


def on_data(sets: FeatureSets, found: LabelSet, init: Init | None) -> list[str]:
    """Problems of the data that are found before any head is fitted."""
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
    """A diagnostic as a sentence of a report."""
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
    """Warn if the existing head knows the labels of only one of `train` and `validation`."""
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
