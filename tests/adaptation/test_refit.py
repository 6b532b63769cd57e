"""From features alone to a chosen head: seeds, the choice, the controls and risk thresholds."""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
import torch
from beliefmatch.adaptation.batched import fit_heads
from beliefmatch.adaptation.choosing import choose_setting
from msgspec import structs

from beliefmatch.adaptation.candidates import Candidate
from beliefmatch.adaptation.fitted import FittedHead, HeadScores
from beliefmatch.adaptation.refit import refit, shown
from beliefmatch.adaptation.result import FeatureSets
from beliefmatch.adaptation.risk_thresholds import risk_thresholds
from beliefmatch.metrics import coverage_at_risk
from head_features import CLASSES, FEW, SETS, assert_same, features, knowing_head, quiet, votes


@pytest.fixture
def old():
    return knowing_head()


def named(adaptation, seed=None):
    return {
        (head.candidate.kind, repr(head.candidate.options)): head
        for head in adaptation.fitted
        if seed is None or head.candidate.seed == seed
    }


def test_fresh_heads_of_all_seeds_are_those_fitted_alone():
    made = refit(SETS, adapt_config=structs.replace(FEW, seeds=(0, 3)))
    assert (made.labels, made.classes, made.head) == ("new", CLASSES, None)
    assert made.sets is SETS and set(made.seconds) == {"heads"}
    for seed in (0, 3):
        alone = named(refit(SETS, adapt_config=structs.replace(FEW, seeds=(seed,))))
        together = named(made, seed)
        assert alone.keys() == together.keys()
        for key, head in together.items():
            assert_same(head, alone[key])
    first, second = named(made, 0), named(made, 3)
    assert not any(torch.equal(first[key].weight, second[key].weight) for key in first)


def test_seeds_are_trials_of_a_repair_too(old):
    """Each is the order of batches, from the same first weights."""
    made = refit(SETS, init=old, adapt_config=structs.replace(FEW, seeds=(0, 1, 2), labels="same"))
    trained = [head for head in made.fitted if head.epoch]
    assert len(trained) == 3 * (2 + 1 + 2 + 1)
    weights = [head.weight for head in trained if head.candidate.kind == "softmax"]
    assert not torch.equal(weights[0], weights[1]) and not torch.equal(weights[1], weights[2])
    options = {"epochs": 6, "learning_rate": 0.01, "batch_size": 32, "validation": SETS.validation}
    for head in trained:
        one = [replace(head.candidate, seed=0)]
        (alone,) = fit_heads(SETS.train, one, init=old, order_seed=head.candidate.seed, **options)
        assert_same(head, alone)


def test_progress_of_several_passes_grows_to_one(old):
    news = []
    adapt_config = structs.replace(FEW, seeds=(4, 9), labels="same")
    refit(SETS, init=old, adapt_config=adapt_config, on_progress=lambda *one: news.append(one))
    fractions = [fraction for fraction, _ in news]
    assert fractions == sorted(fractions) and fractions[-1] == 1
    assert "seed 4" in news[0][1] and "seed 9" in news[-1][1]


def test_lbfgs_from_one_head_has_no_use_for_seeds(old):
    adapt_config = structs.replace(FEW, seeds=(4, 9), labels="same", optimizer="lbfgs", epochs=2)
    with pytest.warns(UserWarning, match="only 4 is fitted"):
        made = refit(SETS, init=old, adapt_config=adapt_config)
    assert {head.candidate.seed for head in made.fitted if head.epoch} == {4}


def head_of(kl_weight, seed, nll, error=0.1, *, diverged=False, kind="belief_matching"):
    candidate = Candidate(f"{kl_weight} {seed}", kind, {"kl_weight": kl_weight}, seed)
    weight = torch.zeros(2, 1)
    return FittedHead(candidate, weight, weight[:, 0], 1, HeadScores(nll, error, 0.0, 9), diverged=diverged)


def test_the_setting_is_chosen_by_its_mean_and_then_the_best_of_its_seeds():
    lucky = [head_of(0.1, 0, 0.10), head_of(0.1, 1, 0.90)]
    steady = [head_of(0.2, 0, 0.40), head_of(0.2, 1, 0.30)]
    assert choose_setting([*lucky, *steady]) is steady[1]
    halves = [head_of(0.3, 0, 0.01), head_of(0.3, 1, 0.02, diverged=True)]
    assert choose_setting([*lucky, *steady, *halves]) is steady[1]
    assert choose_setting(halves) is halves[0]
    by_error = [head_of(0.1, 0, 0.1, 0.3), head_of(0.2, 0, 0.9, 0.2)]
    assert choose_setting(by_error, by="error") is by_error[1]
    with pytest.raises(ValueError, match="`fitted`"):
        choose_setting([head_of(0.1, 0, 0.1, diverged=True)])


def test_the_choice_of_a_fit_is_that_of_the_means():
    made = refit(SETS, adapt_config=structs.replace(FEW, seeds=(0, 1, 2), kl_weights=(0.3, 0.03, 0.003)))
    values = defaultdict(list)
    for head in made.fitted:
        if head.candidate.kind == "belief_matching":
            values[head.candidate.kl_weight].append(head.nll)
    best = min(values, key=lambda one: np.mean(values[one]))
    assert made.chosen.candidate.kl_weight == best
    assert made.chosen.nll == min(values[best])


def test_the_table_has_one_head_for_every_seed(old):
    rows = shown(refit(SETS, init=old, adapt_config=structs.replace(FEW, seeds=(0, 1))))
    controls = {"softmax": 2, "label smoothing": 2, "evidential": 2}
    counts = {"untouched": 1, "temperature": 1, **controls, "belief matching": 2}
    assert {label: len(heads) for label, heads in rows.items()} == counts
    made = refit(SETS, adapt_config=structs.replace(FEW, seeds=(0, 1), controls=("label_smoothing",)))
    rows = shown(made)
    assert list(rows) == ["label smoothing", "belief matching"]
    assert made.chosen in rows["belief matching"]
    chosen = made.chosen.candidate
    for smooth, own in zip(rows["label smoothing"], rows["belief matching"], strict=True):
        assert smooth.candidate.options == {"matched_kl_weight": chosen.kl_weight}
        assert own.candidate.options == chosen.options
        assert smooth.candidate.seed == own.candidate.seed


def test_priors_are_part_of_the_setting():
    made = refit(SETS, adapt_config=structs.replace(FEW, priors=(1.0, 3.0), controls=()))
    assert len(made.fitted) == 4
    assert shown(made) == {"belief matching": [made.chosen]}


def test_counts_have_no_evidential_head():
    sets = FeatureSets(votes(200), votes(100, 5))
    made = quiet(sets, adapt_config=FEW)
    assert {head.candidate.kind for head in made.fitted} == {"belief_matching", "softmax", "label_smoothing"}
    assert made.classes == CLASSES
    again = quiet(FeatureSets(votes(200), features(100, 5)), adapt_config=FEW)  # chosen by single labels
    assert again.chosen.validation.rows == 100


@pytest.mark.parametrize("kind", ["ids", "counts"])
def test_risk_thresholds_are_those_of_the_metrics(kind):
    held_out = features(800, 8) if kind == "ids" else votes(800, 8)
    adapt_config = structs.replace(FEW, risks=(0.4, 1e-4), delta=0.1)
    made = quiet(FeatureSets(features(400), held_out), adapt_config=adapt_config)
    some = torch.ones(len(held_out), dtype=torch.bool) if kind == "ids" else held_out.targets.sum(1) > 0
    right = held_out.targets[some] if kind == "ids" else held_out.targets[some].argmax(1)
    probs = made.chosen.predict(torch.from_numpy(held_out.rows)[some]).probs
    confidence, place = probs.max(1)
    likely, unlikely = made.risk_thresholds
    expected = coverage_at_risk(confidence, place == right, risk=0.4, delta=0.1)
    assert likely.threshold == pytest.approx(expected.threshold, rel=1e-6)
    assert (likely.coverage, likely.bound) == pytest.approx((expected.coverage, expected.bound))
    assert likely.coverage > 0 and likely.bound <= 0.4
    assert (unlikely.threshold, unlikely.coverage, unlikely.bound) == (None, 0.0, None)


def test_risk_thresholds_do_not_depend_on_the_size_of_blocks(monkeypatch):
    made = refit(SETS, adapt_config=FEW)
    monkeypatch.setattr("beliefmatch.adaptation.scoring._LOGITS", 4 * CLASSES)
    (again,) = risk_thresholds(made.chosen, SETS.validation, risks=(0.4,), delta=0.05)
    assert again.coverage == made.risk_thresholds[0].coverage
    assert again.threshold == pytest.approx(made.risk_thresholds[0].threshold, rel=1e-6)
