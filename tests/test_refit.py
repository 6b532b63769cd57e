"""From features alone to a chosen head: labels, seeds, the choice, what stands beside it, and promises."""

import warnings
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from beliefmatch.adaptation import scoring, starting
from beliefmatch.adaptation.batched import fit_heads
from beliefmatch.adaptation.candidates import Candidate, candidates
from beliefmatch.adaptation.choosing import choose_setting
from beliefmatch.adaptation.fitted import FittedHead, Scores
from beliefmatch.adaptation.labelling import label_set
from beliefmatch.adaptation.promising import promises
from beliefmatch.adaptation.reading import Batches
from beliefmatch.adaptation.refit import refit, shown
from beliefmatch.adaptation.remarks import on_the_choice
from beliefmatch.adaptation.result import FeatureSets
from beliefmatch.adaptation.rows import ShardedRows, in_memory
from beliefmatch.adaptation.subsets import parted, subset
from beliefmatch.adaptation.types import Features
from beliefmatch.adaptation.wishes import Wishes
from beliefmatch.metrics import coverage_at_risk
from head_features import CLASSES, WIDTH, assert_same, features, votes

SETS = FeatureSets(features(200), features(150, 5), features(60, 6), {"noise": features(30, 7)})
FEW = Wishes(kl_weights=(0.03, 0.003), epochs=6, learning_rate=0.01, batch_size=32, risks=(0.4,))


@pytest.fixture(scope="module")
def old():
    """A head that knows the classes."""
    wanted = [Candidate("softmax", "softmax")]
    (head,) = fit_heads(features(300, 11), wanted, classes=CLASSES, epochs=30, optimizer="lbfgs")
    return head.weight, head.bias


def quiet(*args, **options):
    """The same whatever it warns of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return refit(*args, **options)


def named(adaptation, seed=None):
    return {
        (head.candidate.kind, repr(head.candidate.options)): head
        for head in adaptation.fitted
        if seed is None or head.candidate.seed == seed
    }


def test_fresh_heads_of_all_seeds_are_those_fitted_alone():
    made = refit(SETS, wishes=replace(FEW, seeds=(0, 3)))
    assert (made.labels, made.classes, made.head) == ("new", CLASSES, None)
    assert made.sets is SETS and set(made.seconds) == {"heads"}
    for seed in (0, 3):
        alone, together = named(refit(SETS, wishes=replace(FEW, seeds=(seed,)))), named(made, seed)
        assert alone.keys() == together.keys()
        for key, head in together.items():
            assert_same(head, alone[key])
    first, second = named(made, 0), named(made, 3)
    assert not any(torch.equal(first[key].weight, second[key].weight) for key in first)


def test_seeds_are_trials_of_a_repair_too(old):
    """Each is the order of batches, from the same first weights."""
    made = refit(SETS, start=old, wishes=replace(FEW, seeds=(0, 1, 2), labels="same"))
    trained = [head for head in made.fitted if head.epoch]
    assert len(trained) == 3 * (2 + 1 + 2 + 1)
    weights = [head.weight for head in trained if head.candidate.kind == "softmax"]
    assert not torch.equal(weights[0], weights[1]) and not torch.equal(weights[1], weights[2])
    options = {"epochs": 6, "learning_rate": 0.01, "batch_size": 32, "validation": SETS.validation}
    for head in trained:
        one = [replace(head.candidate, seed=0)]
        (alone,) = fit_heads(SETS.train, one, start=old, order_seed=head.candidate.seed, **options)
        assert_same(head, alone)


def test_progress_of_several_passes_grows_to_one(old):
    told = []
    wishes = replace(FEW, seeds=(4, 9), labels="same")
    refit(SETS, start=old, wishes=wishes, on_progress=lambda *news: told.append(news))
    shares = [share for share, _ in told]
    assert shares == sorted(shares) and shares[-1] == 1
    assert "seed 4" in told[0][1] and "seed 9" in told[-1][1]


def test_lbfgs_from_one_head_has_no_use_for_seeds(old):
    wishes = replace(FEW, seeds=(4, 9), labels="same", optimizer="lbfgs", epochs=2)
    with pytest.warns(UserWarning, match="make no difference .* only 4 is fitted"):
        made = refit(SETS, start=old, wishes=wishes)
    assert {head.candidate.seed for head in made.fitted if head.epoch} == {4}


def head_of(kl_weight, seed, nll, error=0.1, *, diverged=False, kind="belief_matching"):
    candidate = Candidate(f"{kl_weight} {seed}", kind, {"kl_weight": kl_weight}, seed)
    weight = torch.zeros(2, 1)
    return FittedHead(candidate, weight, weight[:, 0], 1, Scores(nll, error, 0.0, 9), diverged=diverged)


def test_the_setting_is_chosen_by_its_mean_and_then_the_best_of_its_seeds():
    lucky = [head_of(0.1, 0, 0.10), head_of(0.1, 1, 0.90)]
    steady = [head_of(0.2, 0, 0.40), head_of(0.2, 1, 0.30)]
    assert choose_setting([*lucky, *steady]) is steady[1]
    halves = [head_of(0.3, 0, 0.01), head_of(0.3, 1, 0.02, diverged=True)]
    assert choose_setting([*lucky, *steady, *halves]) is steady[1]
    assert choose_setting(halves) is halves[0]
    by_error = [head_of(0.1, 0, 0.1, 0.3), head_of(0.2, 0, 0.9, 0.2)]
    assert choose_setting(by_error, by="error") is by_error[1]
    with pytest.raises(ValueError, match="`fitted` must hold"):
        choose_setting([head_of(0.1, 0, 0.1, diverged=True)])


def test_the_choice_of_a_fit_is_that_of_the_means():
    made = refit(SETS, wishes=replace(FEW, seeds=(0, 1, 2), kl_weights=(0.3, 0.03, 0.003)))
    values = defaultdict(list)
    for head in made.fitted:
        if head.candidate.kind == "belief_matching":
            values[head.candidate.kl_weight].append(head.nll)
    best = min(values, key=lambda one: np.mean(values[one]))
    assert made.chosen.candidate.kl_weight == best
    assert made.chosen.nll == min(values[best])


def test_the_honest_table_has_one_head_for_every_seed(old):
    rows = shown(refit(SETS, start=old, wishes=replace(FEW, seeds=(0, 1))))
    assert {label: len(heads) for label, heads in rows.items()} == {
        "untouched": 1,
        "temperature": 1,
        "softmax": 2,
        "label smoothing": 2,
        "evidential": 2,
        "belief matching": 2,
    }
    made = refit(SETS, wishes=replace(FEW, seeds=(0, 1), controls=("label_smoothing",)))
    rows = shown(made)
    assert list(rows) == ["label smoothing", "belief matching"]
    assert made.chosen in rows["belief matching"]
    chosen = made.chosen.candidate
    for smooth, own in zip(rows["label smoothing"], rows["belief matching"], strict=True):
        assert smooth.candidate.options == {"matched_kl_weight": chosen.kl_weight}
        assert own.candidate.options == chosen.options
        assert smooth.candidate.seed == own.candidate.seed


def test_priors_are_part_of_the_setting():
    made = refit(SETS, wishes=replace(FEW, priors=(1.0, 3.0), controls=()))
    assert len(made.fitted) == 4
    assert shown(made) == {"belief matching": [made.chosen]}


def test_counts_have_no_evidential_head():
    sets = FeatureSets(votes(200), votes(100, 5))
    made = quiet(sets, wishes=FEW)
    assert {head.candidate.kind for head in made.fitted} == {"belief_matching", "softmax", "label_smoothing"}
    assert made.classes == CLASSES
    again = quiet(FeatureSets(votes(200), features(100, 5)), wishes=FEW)  # chosen by single labels
    assert again.chosen.validation.rows == 100


def test_labels_are_told_from_how_well_the_head_knows_them(old):
    assert quiet(SETS, start=old, wishes=FEW).labels == "same"
    assert quiet(SETS, start=old, wishes=replace(FEW, labels="new")).labels == "new"
    turned = FeatureSets(*(Features(one.rows, (one.targets + 1) % CLASSES, "") for one in halves()))
    assert quiet(turned, start=old, wishes=FEW).labels == "new"
    fewer = FeatureSets(*(Features(one.rows, one.targets % 2, "") for one in halves()))
    assert label_set(fewer, classes=2, start=old, labels="auto") == ("new", 2)
    assert label_set(fewer, classes=None, start=old, labels="auto") == ("new", 2)


def halves():
    return SETS.train, SETS.validation


def without(data, absent):
    kept = (data.targets != absent).numpy()
    return Features(data.rows[kept], data.targets[torch.from_numpy(kept)], "")


def test_a_head_is_known_by_most_of_its_classes(old):
    """Where the last class has no example, its number must not make the labels new."""
    some = FeatureSets(*(without(one, CLASSES - 1) for one in halves()))
    with pytest.warns(UserWarning, match=f"none of {CLASSES - 1}: the new head unlearns them"):
        assert label_set(some, classes=None, start=old, labels="auto") == ("same", CLASSES)


def test_a_class_without_examples_is_named():
    gap = FeatureSets(without(SETS.train, 1), SETS.validation)
    with pytest.raises(ValueError, match="`train` must have examples of all 4 classes, got none of 1;"):
        refit(gap, wishes=FEW)
    with pytest.warns(UserWarning, match="got none of 1: no head can learn them"):
        refit(gap, classes=CLASSES, wishes=FEW)
    beyond = Features(SETS.validation.rows, SETS.validation.targets + 2, "")
    with pytest.raises(ValueError, match="got none of 4, 5;"):
        refit(FeatureSets(SETS.train, beyond), wishes=FEW)
    empty, full = votes(50), votes(50)
    empty.targets[:, 0] += 1
    full.targets[:, 0] += 1
    empty.targets[:, 2] = 0
    with pytest.warns(UserWarning, match="got none of 2: no head"):
        label_set(FeatureSets(empty, full), classes=None, start=None, labels="auto")


@pytest.mark.parametrize(
    ("changed", "options", "message"),
    [
        (
            {},
            {"classes": 3},
            r"`classes` must fit the targets, got 3, but `train` has the ids 3; ids run from 0",
        ),
        ({"train": votes()}, {"classes": 5}, "got 5, but `train` has counts of 4 classes"),
        (
            {"train": votes(), "validation": features(60, 5, classes=9)},
            {},
            "`validation` has the ids 4, 5, 6, 7",
        ),
        ({}, {"classes": 1}, "`classes` must be at least 2"),
        (
            {"validation": features(width=3)},
            {},
            "`validation` must have rows of 7 numbers as `train` has, got 3",
        ),
        ({"foreign": {"far": features(width=3)}}, {}, r"`foreign\['far'\]` must have rows of 7"),
        (
            {},
            {"start": (torch.zeros(4, 9), torch.zeros(4))},
            "rows of 9 numbers for this head, got 7: the feat",
        ),
        ({}, {"start": (torch.zeros(4, 7), torch.zeros(3))}, "`start` must be a weight"),
        ({}, {"wishes": Wishes(labels="same")}, "no head to repair"),
        (
            {},
            {"wishes": Wishes(labels="same"), "start": (torch.zeros(3, 7), torch.zeros(3))},
            "`labels` must be new where the head has 3 classes and targets have 4",
        ),
        ({}, {"wishes": Wishes(norms=True)}, "`norms` must be False for features alone"),
        ({"test": features(20, classes=9)}, {"classes": 4}, "`test` has the ids"),
        (
            {"validation": Features(SETS.validation.rows, torch.full((150,), -1), "")},
            {},
            "`validation` must have rows that belong to a class, got none of 150",
        ),
        (
            {"train": Features(SETS.train.rows, SETS.train.targets + 9 * 10**15, "")},
            {},
            "`train` must have class ids below 1000000, got 9000000000000000, .*; number the classes",
        ),
        (
            {"validation": Features(SETS.validation.rows, SETS.validation.targets - 3, "")},
            {},
            "`validation` must have class ids from 0, or −1 for no class, got -3, -2; give −1",
        ),
    ],
)
def test_what_does_not_match_is_told(changed, options, message):
    with pytest.raises(ValueError, match=message):
        refit(replace(SETS, **changed), **{"wishes": FEW, **options})


def test_rows_of_no_class_are_counted_in_one_warning():
    targets = SETS.train.targets.clone()
    targets[:7] = -1
    empty = votes(150, 5)
    empty.targets[:] = 1
    empty.targets[3:6] = 0
    given = FeatureSets(Features(SETS.train.rows, targets, ""), empty)
    with pytest.warns(UserWarning, match="belong to no class") as told:
        label_set(given, classes=None, start=None, labels="auto")
    (one,) = told
    expected = "7 of 200 rows of `train` (of class −1) and 3 of 150 rows of `validation` (without a vote)"
    assert expected in f"{one.message}"


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ({"labels": "old"}, "`labels` must be one of 'auto', 'same', 'new', got 'old'"),
        ({"choose_by": "ece"}, "`choose_by` must be one of"),
        ({"optimizer": "sgd"}, "`optimizer` must be one of"),
        ({"controls": ["dropout"]}, "`controls` must be one of"),
        ({"seeds": ()}, "`seeds` must not be empty"),
        ({"seeds": (1, 1)}, r"`seeds` must differ, got \[1, 1\]"),
        ({"seeds": 1}, "`seeds` must be a list, got 1"),
        ({"kl_weights": []}, "`kl_weights` must not be empty"),
        ({"kl_weights": (0.1, 0.0)}, "`kl_weights` must be positive and finite, got 0.0"),
        ({"kl_weights": (float("nan"),)}, "`kl_weights` must be positive and finite, got nan"),
        ({"epochs": 0}, "`epochs` must be at least 1"),
        ({"patience": 0}, "`patience` must be at least 1"),
        ({"risks": (0.1, 1.0)}, "`risks` must lie between 0 and 1, got 1.0"),
        ({"delta": 0.0}, "`delta` must lie between 0 and 1"),
        ({"learning_rate": 0.0}, "`learning_rate` must be positive"),
    ],
)
def test_wishes_that_cannot_be_granted_are_told_at_once(wish, message):
    with pytest.raises(ValueError, match=message):
        Wishes(**wish)


@pytest.mark.parametrize("given", [["0.1"], "0.1", [True], [None]])
def test_values_of_lambda_are_numbers(given):
    with pytest.raises(TypeError, match=r"^adapt: `kl_weights` must be (numbers|a list), got "):
        Wishes(kl_weights=given)
    assert Wishes(kl_weights=[np.float32(0.5), 1]).kl_weights == [0.5, 1]


def test_a_fit_in_which_every_head_diverged_is_told_with_the_remedy(old):
    rows = 1e30 * SETS.train.rows
    given = replace(SETS, train=Features(rows, SETS.train.targets, ""))
    with pytest.raises(ValueError, match=r"^adapt: `learning_rate` must be .* 1e\+20, .*use a lower one"):
        quiet(given, wishes=replace(FEW, learning_rate=1e20))


def test_a_choice_on_seen_rows_is_told():
    with pytest.warns(UserWarning, match="data that the network was trained on.*among the training rows"):
        made = refit(FeatureSets(SETS.train, SETS.train), wishes=FEW)
    assert made.verdict.seen


def test_a_part_of_the_training_rows_is_told(old):
    with pytest.warns(UserWarning, match="20% of `train`, on which the network has probably been trained"):
        refit(SETS, start=old, aside=0.2, wishes=FEW)
    with pytest.warns(UserWarning, match="20% of `train` were set aside to choose λ on"):
        refit(SETS, aside=0.2, wishes=FEW)


def test_labels_numbered_differently_and_a_head_that_got_worse_are_told(old):
    turned = Features(SETS.train.rows, (SETS.train.targets + 1) % CLASSES, "")
    with pytest.warns(UserWarning, match="adapt: ") as told:
        made = refit(replace(SETS, train=turned), start=old, wishes=FEW)
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

    with pytest.warns(UserWarning, match=f"25% among those of `{other}` are found again"):
        made = refit(joined(20), wishes=FEW)
    found = f"Of the rows of `test` 25% among those of `{other}` are found again"
    assert made.notes == (f"{found}: on these every head looks too good.",)
    assert refit(joined(3), wishes=FEW).notes == ()  # 3 of 63


def test_a_choice_on_very_few_rows_is_told():
    few = replace(SETS, validation=features(49, 5))
    with pytest.warns(UserWarning, match="very few rows choose λ, 49 of `validation` for 4 classes"):
        made = refit(few, wishes=FEW)
    assert made.notes[0].startswith("Very few rows choose λ")
    assert refit(replace(SETS, validation=features(50, 5)), wishes=FEW).notes == ()
    many = replace(SETS, train=features(3000, classes=20), validation=features(99, 5, classes=20), test=None)
    with pytest.warns(UserWarning, match="99 of `validation` for 20 classes: 50 rows, and 5 a class"):
        refit(many, classes=20, wishes=replace(FEW, epochs=1, controls=()))


def test_how_the_labels_were_taken_is_told(old):
    made = quiet(SETS, start=old, wishes=FEW)
    right = 100 * (1 - made.fitted[0].error)
    expected = f"The existing head is right for {right:.1f} % of the validation rows, so they are taken as"
    assert made.notes[0] == f"{expected} the same classes; `labels` to say otherwise."
    turned = replace(
        SETS,
        **{
            name: Features(one.rows, (one.targets + 1) % CLASSES, "")
            for name, one in (("train", SETS.train), ("validation", SETS.validation))
        },
    )
    assert "so they are taken as other classes" in quiet(turned, start=old, wishes=FEW).notes[0]
    more = quiet(SETS, start=(torch.ones(3, WIDTH), torch.zeros(3)), wishes=FEW)
    assert more.notes[0].startswith(
        "The existing head has 3 classes and there are 4, so they are taken as other"
    )
    assert quiet(SETS, start=old, wishes=replace(FEW, labels="same")).notes == ()
    assert quiet(SETS, wishes=FEW).notes == ()


def test_a_head_is_clearly_worse_beyond_two_points_and_two_standard_errors():
    def head(error, rows):
        return FittedHead(
            Candidate("softmax", "softmax"), torch.zeros(2, 2), torch.zeros(2), 0, Scores(1, error, 0, rows)
        )

    assert on_the_choice(head(0.131, 10_000), head(0.1, 10_000))
    assert not on_the_choice(head(0.119, 10**6), head(0.1, 10**6))
    assert not on_the_choice(head(0.131, 400), head(0.1, 400))
    assert not on_the_choice(head(0.131, 10_000), None)


@pytest.mark.parametrize("kind", ["ids", "counts"])
def test_promises_are_those_of_the_metrics(kind):
    judge = features(800, 8) if kind == "ids" else votes(800, 8)
    made = quiet(FeatureSets(features(400), judge), wishes=replace(FEW, risks=(0.4, 1e-4), delta=0.1))
    some = torch.ones(len(judge), dtype=torch.bool) if kind == "ids" else judge.targets.sum(1) > 0
    right = judge.targets[some] if kind == "ids" else judge.targets[some].argmax(1)
    probs = made.chosen.predict(torch.from_numpy(judge.rows)[some]).probs
    confidence, place = probs.max(1)
    likely, unlikely = made.promises
    expected = coverage_at_risk(confidence, place == right, risk=0.4, delta=0.1)
    assert likely.threshold == pytest.approx(expected.threshold, rel=1e-6)
    assert (likely.coverage, likely.bound) == pytest.approx((expected.coverage, expected.bound))
    assert likely.coverage > 0 and likely.bound <= 0.4
    assert (unlikely.threshold, unlikely.coverage, unlikely.bound) == (None, 0.0, None)


def test_promises_do_not_depend_on_the_size_of_blocks(monkeypatch):
    made = refit(SETS, wishes=FEW)
    monkeypatch.setattr("beliefmatch.adaptation.scoring._LOGITS", 4 * CLASSES)
    again = promises(made.chosen, SETS.validation, risks=(0.4,), delta=0.05)
    assert again[0].coverage == made.promises[0].coverage
    assert again[0].threshold == pytest.approx(made.promises[0].threshold, rel=1e-6)


def test_subsets_read_as_the_rows_they_are(tmp_path):
    data = features(50)
    np.save(tmp_path / "rows.npy", data.rows)
    mapped = Features(np.load(tmp_path / "rows.npy", mmap_mode="r"), data.targets, "all")
    numbers = np.array([7, 3, 4, 5, 49])
    some = subset(subset(mapped, np.arange(50)), numbers)
    assert some.rows.shape == (5, WIDTH) and some.rows.nbytes == 5 * 4 * WIDTH
    np.testing.assert_array_equal(np.asarray(some.rows), data.rows[numbers])
    np.testing.assert_array_equal(some.rows[1:3], data.rows[[3, 4]])
    np.testing.assert_array_equal(some.rows[2], data.rows[4])
    np.testing.assert_array_equal(some.rows[np.array([4, 0])], data.rows[[49, 7]])
    assert torch.equal(some.targets, data.targets[torch.from_numpy(numbers)])
    assert len({mapped.digest, some.digest, subset(mapped, numbers[:4]).digest}) == 3
    for wrong, message in (([50], "0 to 49, got 50"), ([-1], "got -1"), ([], "at least one row")):
        with pytest.raises(ValueError, match=message):
            subset(mapped, np.array(wrong, dtype=int))


def test_rows_are_parted_in_proportion():
    ids = torch.tensor([0] * 60 + [1] * 30 + [2] * 10 + [-1] * 7)
    data = Features(np.arange(107, dtype=np.float32)[:, None], ids, "")
    rest, some = parted(data, 0.2)
    assert some.targets.bincount().tolist() == [12, 6, 2]
    assert len(rest) + len(some) == 107 and int((rest.targets < 0).sum()) == 7
    both = np.concatenate([np.asarray(rest.rows), np.asarray(some.rows)])[:, 0]
    np.testing.assert_array_equal(np.sort(both), np.arange(107))
    votes_too = Features(data.rows[:100], functional.one_hot(ids[:100], 3).float(), "")
    assert parted(votes_too, 0.2)[1].targets.sum(0).tolist() == [12, 6, 2]
    other = parted(data, 0.2, seed=1)[1]
    assert not torch.equal(torch.tensor(np.asarray(other.rows)), torch.tensor(np.asarray(some.rows)))
    for share in (0.0, 1e-9, 200):
        with pytest.raises(ValueError, match="must"):
            parted(Features(data.rows[:1], ids[:1], "") if share == 1e-9 else data, share)


def test_parts_of_mapped_features_are_fitted_as_if_in_memory(tmp_path):
    data = features(300)
    np.save(tmp_path / "rows.npy", data.rows)
    mapped = Features(np.load(tmp_path / "rows.npy", mmap_mode="r"), data.targets, "")
    kept = [np.asarray(one.rows) for one in parted(data, 0.2)]
    heads = candidates(CLASSES, kl_weights=[0.01], controls=[])
    for part, rows in zip(parted(mapped, 0.2), kept, strict=True):
        direct = Features(rows, part.targets, "")
        options = {"classes": CLASSES, "epochs": 2, "batch_size": 16}
        assert_same(fit_heads(part, heads, **options)[0], fit_heads(direct, heads, **options)[0])


def test_thousands_of_classes_in_few_rows_at_a_time(monkeypatch):
    """Blocks, passes and the fit of scales are bounded by numbers, not by rows."""
    classes, width = 2500, 6
    chance = np.random.default_rng(0)
    centres = 4 * chance.normal(size=(classes, width))
    ids = np.arange(2 * classes) % classes

    def some(numbers):
        rows = centres[numbers] + 0.3 * chance.normal(size=(len(numbers), width))
        return Features(rows.astype(np.float32), torch.from_numpy(numbers), "")

    sets = FeatureSets(some(ids), some(ids[:300]))
    seen = []
    real = scoring.product
    monkeypatch.setattr(scoring, "product", lambda *args: seen.append(real(*args)) or seen[-1])
    monkeypatch.setattr(scoring, "_LOGITS", 500_000)
    wishes = Wishes(kl_weights=(1e-4, 1e-5), controls=("softmax",), epochs=2, learning_rate=0.05)
    with pytest.warns(UserWarning, match="very few rows choose λ, 300 of `validation` for 2500 classes"):
        made = refit(sets, wishes=wishes)
    assert made.classes == classes and made.chosen.weight.shape == (classes, width)
    assert max(logits.numel() for logits in seen) <= 500_000
    assert made.chosen.curve[-1].loss < made.chosen.curve[0].loss
    start = torch.from_numpy(centres).float(), torch.zeros(classes)
    monkeypatch.setattr(starting, "_LOGITS", 50_000)
    rows, targets = starting._some(sets.train, classes)
    assert len(rows) == len(targets) == 20
    weight, _ = starting.first_weights([made.chosen.candidate], start, classes, width, sets.train)
    scale = weight.norm() / start[0].norm()
    torch.testing.assert_close(weight[0], scale * start[0], rtol=1e-4, atol=1e-5)


def test_rows_in_shards_are_streamed_where_they_have_no_room():
    data = features(700)
    shards = ShardedRows([data.rows[:400], data.rows[400:]])
    in_shards = Features(shards, data.targets, "")
    assert in_memory(shards, shards.nbytes - 1) is None
    np.testing.assert_array_equal(in_memory(shards, shards.nbytes), data.rows)
    assert in_memory(data.rows, 0) is data.rows
    assert not Batches(in_shards, 16, 0, memory=4000).in_memory
    heads = candidates(CLASSES, kl_weights=[0.01], controls=[])
    options = {"classes": CLASSES, "epochs": 3, "batch_size": 16}
    assert_same(fit_heads(in_shards, heads, **options)[0], fit_heads(data, heads, **options)[0])
    (streamed,) = fit_heads(subset(in_shards, np.arange(0, 700, 2)), heads, memory=4000, **options)
    assert streamed.curve[-1].loss < streamed.curve[0].loss
