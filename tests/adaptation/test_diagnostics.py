"""What `refit` finds out about its labels and data: refusals, warnings and notes."""

import re
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from msgspec import structs

from beliefmatch.adaptation.adapt_config import AdaptConfig
from beliefmatch.adaptation.diagnostics import choice_warnings
from beliefmatch.adaptation.feature_rows import Features
from beliefmatch.adaptation.fitted import Candidate, FittedHead, HeadScores
from beliefmatch.adaptation.refit import refit
from beliefmatch.adaptation.result import FeatureSets
from golden import assert_golden
from head_features import CLASSES, FEW, SETS, WIDTH, features, knowing_head, votes
from rendered import masked

QUICK = structs.replace(FEW, controls=())
SAME = structs.replace(QUICK, labels="same")


def relabelled(change, *names):
    """The sets with the targets of some of them changed."""
    parts = {name: getattr(SETS, name) for name in names or ("train", "validation")}
    parts = {name: Features(one.rows, change(one.targets), "") for name, one in parts.items()}
    return replace(SETS, test=None, **parts)


def permuted(targets):
    return (targets + 1) % CLASSES


def without(absent, *names):
    """The sets without the rows of one class."""
    parts = {}
    for name in names or ("train", "validation"):
        one = getattr(SETS, name)
        kept = one.targets != absent
        parts[name] = Features(one.rows[kept.numpy()], one.targets[kept], "")
    return replace(SETS, test=None, **parts)


def with_copies(other, copies):
    """The sets with some rows of another one among the test rows."""
    whole, some = SETS.test, getattr(SETS, other)
    targets = torch.cat([whole.targets, some.targets[:copies]])
    return replace(SETS, test=Features(np.concatenate([whole.rows, some.rows[:copies]]), targets, ""))


def of_no_class():
    targets = SETS.train.targets.clone()
    targets[:7] = -1
    empty = votes(150, 5)
    empty.targets[:] = 1
    empty.targets[3:6] = 0
    return FeatureSets(Features(SETS.train.rows, targets, ""), empty)


def votes_without(absent):
    one, other = votes(90), votes(90, 5)
    for some in (one, other):
        some.targets[:, 0] += 1
    one.targets[:, absent] = 0
    return FeatureSets(one, other)


def with_one_of(rare):
    """The sets with the class of all training rows of one class but the first changed to another."""
    targets = SETS.train.targets.clone()
    targets[(targets == rare).nonzero()[1:, 0]] = 0
    return replace(SETS, train=Features(SETS.train.rows, targets, ""))


def with_rows(change):
    """The sets with other training rows."""
    return replace(SETS, train=Features(change(SETS.train.rows.copy()), SETS.train.targets, ""))


def with_an_outlier(rows):
    rows[5] *= 1e12
    return rows


def with_nan(data):
    rows = data.rows.copy()
    rows[3, 1] = np.nan
    return Features(rows, data.targets, "")


def without_votes(data):
    return Features(data.rows, 0 * data.targets, "")


OLD = {"init": knowing_head()}
SITUATIONS = {
    "no head": (SETS, {}),
    "the head knows the labels": (SETS, OLD),
    "the same labels by option": (SETS, {**OLD, "adapt_config": SAME}),
    "new labels by option": (SETS, {**OLD, "adapt_config": structs.replace(QUICK, labels="new")}),
    "permuted labels": (relabelled(permuted), OLD),
    "half as many labels": (relabelled(lambda targets: targets % 2), OLD),
    "half as many labels, by option": (relabelled(lambda targets: targets % 2), {**OLD, "classes": 2}),
    "a head of fewer classes": (SETS, {"init": (torch.ones(3, WIDTH), torch.zeros(3))}),
    "no rows of the last class": (without(CLASSES - 1), OLD),
    "no training rows of a class, classes given": (without(1, "train"), {"classes": CLASSES}),
    "no votes for a class": (votes_without(2), {}),
    "a single training row of a class": (with_one_of(2), {}),
    "equal training rows": (with_rows(lambda rows: 0 * rows + 2), {}),
    "a training row far beyond all others": (with_rows(with_an_outlier), {}),
    "rows of no class": (of_no_class(), {}),
    "training rows for validation": (replace(SETS, validation=SETS.train, test=None), {}),
    "a fifth held out": (replace(SETS, val_fraction=0.2), {}),
    "a fifth held out, to repair": (replace(SETS, val_fraction=0.2), OLD),
    "a quarter of the test rows is in train": (with_copies("train", 20), {}),
    "a quarter of the test rows is in validation": (with_copies("validation", 20), {}),
    "3 of 63 test rows are in train": (with_copies("train", 3), {}),
    "49 validation rows": (replace(SETS, validation=features(49, 5)), {}),
    "50 validation rows": (replace(SETS, validation=features(50, 5)), {}),
    "99 validation rows of 20 classes": (
        FeatureSets(features(3000, classes=20), features(99, 5, classes=20)), {"classes": 20},
    ),
}  # fmt: skip


def test_labels_warnings_and_notes_of_each_situation():
    lines = []
    for name, (sets, options) in SITUATIONS.items():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            made = refit(sets, **{"adapt_config": QUICK, **options})
        lines += [f"# {name}", f"{made.labels} labels, {made.classes} classes, seen: {made.verdict.seen}"]
        lines += [f"warning: {one.message}" for one in caught] + [f"note: {note}" for note in made.notes]
    assert_golden("adaptation/diagnostics.txt", masked("\n".join(lines)))


def test_labels_numbered_differently_and_a_head_that_got_worse_are_warned_of():
    with pytest.warns(UserWarning, match="adapt: ") as caught:
        made = refit(relabelled(permuted, "train"), adapt_config=FEW, **OLD)
    before = made.fitted[0]
    assert made.chosen.error > before.error + 0.02
    messages = [f"{one.message}" for one in caught]
    assert any(f"{1 - before.error:.0%} of the rows of `validation`" in one for one in messages)
    assert any(f"{made.chosen.error:.1%}" in one and f"{before.error:.1%}" in one for one in messages)
    assert len(made.notes) >= 2


@pytest.mark.parametrize(
    ("new", "old", "rows", "is_worse"),
    [(0.131, 0.1, 10_000, True), (0.119, 0.1, 10**6, False), (0.131, 0.1, 400, False)],
)
def test_a_head_is_clearly_worse_beyond_two_points_and_two_standard_errors(new, old, rows, is_worse):
    def head(error):
        scores = HeadScores(1, error, 0, rows)
        return FittedHead(Candidate("softmax"), torch.zeros(2, 2), torch.zeros(2), scores)

    assert bool(choice_warnings(head(new), head(old))) == is_worse
    assert not choice_warnings(head(new), None)


@pytest.mark.parametrize(
    ("argument", "changed", "options"),
    [
        ("classes", {}, {"classes": 3}),
        ("classes", {}, {"classes": 1}),
        ("classes", {}, {"classes": 10**9}),
        ("classes", {"train": votes()}, {"classes": 5}),
        ("classes", {"train": votes(), "validation": features(60, 5, classes=9)}, {}),
        ("classes", {"test": features(20, classes=9)}, {"classes": 4}),
        ("train", {"train": without(1, "train").train}, {}),
        ("train", {"train": relabelled(lambda ids: 2 * ids).train}, {}),
        ("train", {"train": relabelled(lambda ids: 0 * ids).train}, {}),
        ("validation", {"validation": relabelled(lambda ids: ids + 2).validation}, {}),
        ("validation", {"validation": relabelled(lambda ids: ids + 9).validation}, OLD),
        ("test", {"test": features(20, classes=9)}, {}),
        ("train", {"train": relabelled(lambda ids: ids + 9 * 10**15).train}, {}),
        ("train", {}, {"init": (torch.zeros(4, 9), torch.zeros(4))}),
        ("validation", {"validation": features(width=3)}, {}),
        ("validation", {"validation": relabelled(lambda ids: ids * 0 - 1).validation}, {}),
        ("validation", {"validation": relabelled(lambda ids: ids - 3).validation}, {}),
        ("validation", {"validation": with_nan(SETS.validation)}, OLD),
        ("validation", {"validation": without_votes(votes(50))}, OLD),
        ("ood['far']", {"ood": {"far": features(width=3)}}, {}),
        ("init", {}, {"init": (torch.zeros(4, 7), torch.zeros(3))}),
        ("labels", {}, {"adapt_config": SAME}),
        ("labels", {}, {"adapt_config": SAME, "init": (torch.zeros(3, 7), torch.zeros(3))}),
        ("batchnorm", {}, {"adapt_config": AdaptConfig(batchnorm=True)}),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:adapt")
def test_sets_and_options_that_do_not_fit_are_refused(argument, changed, options):
    with pytest.raises(ValueError, match=re.escape(f"`{argument}`")):
        refit(replace(SETS, **changed), **{"adapt_config": QUICK, **options})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("labels", "old"), ("choose", "worst"), ("protocol", "sgd"), ("controls", ["dropout"]),
        ("seeds", ()), ("seeds", (1, 1)), ("seeds", 1), ("kl_weights", []), ("kl_weights", (0.1, 0.0)),
        ("kl_weights", (float("nan"),)), ("kl_weights", "0.1"), ("kl_weights", [True]),
        ("kl_weights", [None]), ("epochs", 0), ("risks", (0.1, 1.0)), ("delta", 0.0),
        ("learning_rate", 0.0),
    ],
)  # fmt: skip
def test_options_out_of_range_are_refused_at_once(name, value):
    with pytest.raises(ValueError, match=rf"AdaptConfig: `{name}(\.\d)?`"):
        AdaptConfig(**{name: value})


def test_values_of_lambda_may_be_those_of_numpy():
    assert AdaptConfig(kl_weights=[np.float32(0.5), 1]).kl_weights == (0.5, 1)
