"""What refitting is told of its labels and wishes, and what it tells of its choice."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from msgspec import structs

from beliefmatch.adaptation.adapt_config import AdaptConfig
from beliefmatch.adaptation.candidates import Candidate
from beliefmatch.adaptation.diagnostics import on_the_choice
from beliefmatch.adaptation.fitted import FittedHead, HeadScores
from beliefmatch.adaptation.labelling import label_set
from beliefmatch.adaptation.refit import refit
from beliefmatch.adaptation.result import FeatureSets
from beliefmatch.adaptation.types import Features
from head_features import CLASSES, WIDTH, features, votes
from refit_sets import FEW, SETS, knowing_head, quiet


@pytest.fixture
def old():
    return knowing_head()


def test_labels_are_told_from_how_well_the_head_knows_them(old):
    assert quiet(SETS, init=old, adapt_config=FEW).labels == "same"
    assert quiet(SETS, init=old, adapt_config=structs.replace(FEW, labels="new")).labels == "new"
    turned = FeatureSets(*(Features(one.rows, (one.targets + 1) % CLASSES, "") for one in halves()))
    assert quiet(turned, init=old, adapt_config=FEW).labels == "new"
    fewer = FeatureSets(*(Features(one.rows, one.targets % 2, "") for one in halves()))
    assert label_set(fewer, classes=2, init=old, labels="auto") == ("new", 2)
    assert label_set(fewer, classes=None, init=old, labels="auto") == ("new", 2)


def halves():
    return SETS.train, SETS.validation


def without(data, absent):
    kept = (data.targets != absent).numpy()
    return Features(data.rows[kept], data.targets[torch.from_numpy(kept)], "")


def test_a_head_is_known_by_most_of_its_classes(old):
    """Where the last class has no example, its number must not make the labels new."""
    some = FeatureSets(*(without(one, CLASSES - 1) for one in halves()))
    with pytest.warns(UserWarning, match=f"none of {CLASSES - 1}: the new head unlearns them"):
        assert label_set(some, classes=None, init=old, labels="auto") == ("same", CLASSES)


def test_a_class_without_examples_is_named():
    gap = FeatureSets(without(SETS.train, 1), SETS.validation)
    with pytest.raises(ValueError, match="`train`"):
        refit(gap, adapt_config=FEW)
    with pytest.warns(UserWarning, match="got none of 1: no head can learn them"):
        refit(gap, classes=CLASSES, adapt_config=FEW)
    beyond = Features(SETS.validation.rows, SETS.validation.targets + 2, "")
    with pytest.raises(ValueError, match="got none of 4, 5;"):
        refit(FeatureSets(SETS.train, beyond), adapt_config=FEW)
    empty, full = votes(50), votes(50)
    empty.targets[:, 0] += 1
    full.targets[:, 0] += 1
    empty.targets[:, 2] = 0
    with pytest.warns(UserWarning, match="got none of 2: no head"):
        label_set(FeatureSets(empty, full), classes=None, init=None, labels="auto")


@pytest.mark.parametrize(
    ("changed", "options", "message"),
    [
        ({}, {"classes": 3}, "`classes`"),
        ({"train": votes()}, {"classes": 5}, "`train`"),
        ({"train": votes(), "validation": features(60, 5, classes=9)}, {}, "`validation`"),
        ({}, {"classes": 1}, "`classes`"),
        ({"validation": features(width=3)}, {}, "`validation`"),
        ({"ood": {"far": features(width=3)}}, {}, r"`ood\['far'\]`"),
        (
            {},
            {"init": (torch.zeros(4, 9), torch.zeros(4))},
            "rows of 9 numbers for this head, got 7: the feat",
        ),
        ({}, {"init": (torch.zeros(4, 7), torch.zeros(3))}, "`init`"),
        ({}, {"adapt_config": AdaptConfig(labels="same")}, "no head to repair"),
        (
            {},
            {"adapt_config": AdaptConfig(labels="same"), "init": (torch.zeros(3, 7), torch.zeros(3))},
            "`labels`",
        ),
        ({}, {"adapt_config": AdaptConfig(batchnorm=True)}, "`batchnorm`"),
        ({"test": features(20, classes=9)}, {"classes": 4}, "`test`"),
        ({"validation": Features(SETS.validation.rows, torch.full((150,), -1), "")}, {}, "`validation`"),
        ({"train": Features(SETS.train.rows, SETS.train.targets + 9 * 10**15, "")}, {}, "`train`"),
        ({"validation": Features(SETS.validation.rows, SETS.validation.targets - 3, "")}, {}, "`validation`"),
    ],
)
def test_what_does_not_match_is_told(changed, options, message):
    with pytest.raises(ValueError, match=message):
        refit(replace(SETS, **changed), **{"adapt_config": FEW, **options})


def test_rows_of_no_class_are_counted_in_one_warning():
    targets = SETS.train.targets.clone()
    targets[:7] = -1
    empty = votes(150, 5)
    empty.targets[:] = 1
    empty.targets[3:6] = 0
    given = FeatureSets(Features(SETS.train.rows, targets, ""), empty)
    with pytest.warns(UserWarning, match="belong to no class") as told:
        label_set(given, classes=None, init=None, labels="auto")
    (one,) = told
    expected = "7 of 200 rows of `train` (of class −1) and 3 of 150 rows of `validation` (without a vote)"
    assert expected in f"{one.message}"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("labels", "old"), ("choose_by", "ece"), ("optimizer", "sgd"), ("controls", ["dropout"]),
        ("seeds", ()), ("seeds", (1, 1)), ("seeds", 1), ("kl_weights", []), ("kl_weights", (0.1, 0.0)),
        ("kl_weights", (float("nan"),)), ("kl_weights", "0.1"), ("kl_weights", [True]),
        ("kl_weights", [None]), ("epochs", 0), ("patience", 0), ("risks", (0.1, 1.0)), ("delta", 0.0),
        ("learning_rate", 0.0),
    ],
)  # fmt: skip
def test_options_out_of_range_are_refused_at_once(name, value):
    with pytest.raises(ValueError, match=rf"AdaptConfig: `{name}(\.\d)?` must "):
        AdaptConfig(**{name: value})


def test_values_of_lambda_may_be_those_of_numpy():
    assert AdaptConfig(kl_weights=[np.float32(0.5), 1]).kl_weights == (0.5, 1)


def test_a_fit_in_which_every_head_diverged_is_told_with_the_remedy(old):
    rows = 1e30 * SETS.train.rows
    given = replace(SETS, train=Features(rows, SETS.train.targets, ""))
    with pytest.raises(ValueError, match=r"^adapt: `learning_rate` must be .* 1e\+20, .*use a lower one"):
        quiet(given, adapt_config=structs.replace(FEW, learning_rate=1e20))


def test_a_choice_on_seen_rows_is_told():
    with pytest.warns(UserWarning, match="data that the network was trained on.*among the training rows"):
        made = refit(FeatureSets(SETS.train, SETS.train), adapt_config=FEW)
    assert made.verdict.seen


def test_a_part_of_the_training_rows_is_told(old):
    with pytest.warns(UserWarning, match="20% of `train`, on which the network has probably been trained"):
        refit(SETS, init=old, val_fraction=0.2, adapt_config=FEW)
    with pytest.warns(UserWarning, match="20% of `train` are held out to choose λ"):
        refit(SETS, val_fraction=0.2, adapt_config=FEW)


def test_labels_numbered_differently_and_a_head_that_got_worse_are_told(old):
    turned = Features(SETS.train.rows, (SETS.train.targets + 1) % CLASSES, "")
    with pytest.warns(UserWarning, match="adapt: ") as told:
        made = refit(replace(SETS, train=turned), init=old, adapt_config=FEW)
    said = [f"{one.message}" for one in told]
    (numbered,) = [one for one in said if "numbered differently" in one]
    right = 1 - made.fitted[0].error
    assert f"right for {right:.0%} of the rows of `validation`, but only for" in numbered
    (worse,) = [one for one in said if "the untouched head for" in one]
    assert made.chosen.candidate.name in worse and f"wrong for {made.chosen.error:.1%}" in worse
    assert made.chosen.error > made.fitted[0].error + 0.02
    assert {f"adapt: {note[0].lower()}{note[1:]}" for note in made.notes} >= {numbered, worse}


@pytest.mark.parametrize("other", ["train", "validation"])
def test_test_rows_that_are_copies_are_told(other):
    def joined(copies):
        whole, some = SETS.test, getattr(SETS, other)
        targets = torch.cat([whole.targets, some.targets[:copies]])
        return replace(SETS, test=Features(np.concatenate([whole.rows, some.rows[:copies]]), targets, ""))

    with pytest.warns(UserWarning, match=f"25% in `{other}`"):
        made = refit(joined(20), adapt_config=FEW)
    (note,) = made.notes
    assert f"25% in `{other}`" in note
    assert refit(joined(3), adapt_config=FEW).notes == ()  # 3 of 63


def test_a_choice_on_very_few_rows_is_told():
    few = replace(SETS, validation=features(49, 5))
    with pytest.warns(UserWarning, match="`validation` has only 49 labelled rows for 4 classes"):
        made = refit(few, adapt_config=FEW)
    assert made.notes[0].startswith("`validation` has only 49")
    assert refit(replace(SETS, validation=features(50, 5)), adapt_config=FEW).notes == ()
    many = replace(SETS, train=features(3000, classes=20), validation=features(99, 5, classes=20), test=None)
    with pytest.warns(UserWarning, match="`validation` has only 99 labelled rows for 20 classes"):
        refit(many, classes=20, adapt_config=structs.replace(FEW, epochs=1, controls=()))


def test_how_the_labels_were_taken_is_told(old):
    made = quiet(SETS, init=old, adapt_config=FEW)
    right = 100 * (1 - made.fitted[0].error)
    assert f"right for {right:.1f} % of the validation rows" in made.notes[0]
    assert "the same classes" in made.notes[0]
    turned = replace(
        SETS,
        **{
            name: Features(one.rows, (one.targets + 1) % CLASSES, "")
            for name, one in (("train", SETS.train), ("validation", SETS.validation))
        },
    )
    assert "as other classes" in quiet(turned, init=old, adapt_config=FEW).notes[0]
    more = quiet(SETS, init=(torch.ones(3, WIDTH), torch.zeros(3)), adapt_config=FEW)
    assert "has 3 classes and there are 4" in more.notes[0] and "as other classes" in more.notes[0]
    assert quiet(SETS, init=old, adapt_config=structs.replace(FEW, labels="same")).notes == ()
    assert quiet(SETS, adapt_config=FEW).notes == ()


def test_a_head_is_clearly_worse_beyond_two_points_and_two_standard_errors():
    def head(error, rows):
        return FittedHead(
            Candidate("softmax", "softmax"),
            torch.zeros(2, 2),
            torch.zeros(2),
            0,
            HeadScores(1, error, 0, rows),
        )

    assert on_the_choice(head(0.131, 10_000), head(0.1, 10_000))
    assert not on_the_choice(head(0.119, 10**6), head(0.1, 10**6))
    assert not on_the_choice(head(0.131, 400), head(0.1, 400))
    assert not on_the_choice(head(0.131, 10_000), None)
