"""Conformal prediction: MAPIE, plain loops, the laws of coverage in simulation, bad input."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import BaseEstimator, ClassifierMixin

from beliefmatch.metrics import (
    class_coverage,
    conformal_sets,
    conformal_threshold,
    mean_set_size,
    set_coverage,
)
from forecasts import forecast, seeds
from outside_packages import imported

METHODS = ("lac", "aps", "raps")


def uniform(examples, seed):
    return torch.rand(examples, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def score_by_loop(row, k, method, u, penalty, k_reg):
    """How badly class k fits a row of probabilities."""
    if method == "lac":
        return 1 - row[k]
    order = sorted(range(len(row)), key=lambda j: (-row[j], j))
    rank = order.index(k)
    beyond = max(0, rank + 1 - k_reg) if method == "raps" else 0
    return sum(row[j] for j in order[:rank]) + u * row[k] + penalty * beyond


@pytest.mark.parametrize("method", METHODS)
@given(examples=st.integers(1, 40), random=st.booleans(), alpha=st.floats(0.02, 0.98), seed=seeds)
@settings(max_examples=30, deadline=None)
def test_thresholds_and_sets_equal_a_plain_loop(method, examples, random, alpha, seed):
    _, probs, targets = forecast(examples, 5, seed)
    u = uniform(examples, seed) if random else None
    options = {"method": method, "u": u, "penalty": 0.1, "k_reg": 2}
    rows, shares = probs.tolist(), torch.ones(examples).tolist() if u is None else u.tolist()
    loop = [
        [score_by_loop(row, k, method, share, 0.1, 2) for k in range(5)]
        for row, share in zip(rows, shares, strict=True)
    ]
    own = sorted(scores[y] for scores, y in zip(loop, targets.tolist(), strict=True))
    rank = math.ceil((examples + 1) * (1 - alpha) - 1e-9)  # 2/3 of 9 is 6
    found = conformal_threshold(probs, targets, alpha=alpha, **options)
    assert found == (pytest.approx(own[rank - 1]) if rank <= examples else math.inf)
    middle = float(np.median(loop)) + 1e-9  # on no score
    assert conformal_sets(probs, middle, **options).tolist() == [
        [s <= middle for s in scores] for scores in loop
    ]


class Given(ClassifierMixin, BaseEstimator):
    """A classifier whose inputs are its probabilities."""

    def fit(self, _, y):
        self.classes_ = np.unique(y)
        return self

    def predict_proba(self, x):
        return x

    def predict(self, x):
        return x.argmax(1)


@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.3])
@pytest.mark.parametrize("method", ["lac", "aps"])
def test_sets_are_those_of_mapie(method, alpha):
    mapie = imported("mapie.classification")
    _, calibration, targets = forecast(300, 6, seed=0)
    _, probs, _ = forecast(200, 6, seed=1)
    theirs = mapie.SplitConformalClassifier(
        Given().fit(None, np.arange(6)), confidence_level=1 - alpha, conformity_score=method, random_state=7
    )
    theirs.conformalize(calibration.numpy(), targets.numpy())
    options = {} if method == "lac" else {"include_last_label": "randomized"}
    expected = theirs.predict_set(probs.numpy(), conformity_score_params=options)[1][:, :, 0]
    # MAPIE takes u p away from the sum that includes p, where we add it to the sum before it
    u = [torch.from_numpy(1 - np.random.RandomState(7).uniform(size=n)) for n in (300, 200)]
    threshold = conformal_threshold(calibration, targets, alpha=alpha, method=method, u=u[0])
    np.testing.assert_array_equal(conformal_sets(probs, threshold, method=method, u=u[1]), expected)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("examples", "alpha"), [(19, 0.1), (50, 0.2)])
def test_coverage_lies_between_one_minus_alpha_and_one_over_n_more(method, examples, alpha):
    """Over many calibration sets, each with its own new examples."""
    held, draws = [], 1500
    for seed in range(draws):
        _, probs, targets = forecast(examples + 20, 5, seed)
        u = uniform(examples + 20, seed)
        old, new = slice(examples), slice(examples, None)
        threshold = conformal_threshold(probs[old], targets[old], alpha=alpha, method=method, u=u[old])
        held.append(
            set_coverage(conformal_sets(probs[new], threshold, method=method, u=u[new]), targets[new])
        )
    noise = 3 * np.std(held) / math.sqrt(draws)
    assert 1 - alpha - noise <= np.mean(held) <= 1 - alpha + 1 / (examples + 1) + noise


def test_without_random_numbers_aps_covers_no_less_and_is_no_smaller():
    _, probs, targets = forecast(4000, 5, seed=3)
    old, new = slice(2000), slice(2000, None)
    u = uniform(4000, 1)
    sets = {
        random: conformal_sets(
            probs[new],
            conformal_threshold(probs[old], targets[old], method="aps", u=u[old] if random else None),
            method="aps",
            u=u[new] if random else None,
        )
        for random in (False, True)
    }
    assert mean_set_size(sets[False]) > mean_set_size(sets[True])
    assert set_coverage(sets[True], targets[new]) == pytest.approx(0.9, abs=0.03)


def test_lac_has_the_smallest_sets_and_raps_is_aps_without_its_tail():
    probs = forecast(3000, 40, seed=5)[1]
    targets = torch.multinomial(probs, 1, generator=torch.Generator().manual_seed(0))[:, 0]
    u = uniform(3000, 2)
    size = {}
    for method in METHODS:
        threshold = conformal_threshold(probs, targets, method=method, u=u)
        sets = conformal_sets(probs, threshold, method=method, u=u)
        size[method] = mean_set_size(sets)
        assert set_coverage(sets, targets) == pytest.approx(0.9, abs=0.001)
    assert size["lac"] < size["aps"] and size["raps"] < size["aps"]
    plain = conformal_threshold(probs, targets, method="aps", u=u)
    assert conformal_threshold(probs, targets, method="raps", u=u, penalty=0.0) == plain


def test_too_few_calibration_examples_give_sets_of_all_classes():
    _, probs, targets = forecast(8, 4, seed=0)
    assert conformal_threshold(probs, targets, alpha=0.1) == math.inf  # the ninth of eight
    assert conformal_sets(probs, math.inf).all()
    _, probs, targets = forecast(9, 4, seed=0)
    worst = (1 - probs.gather(1, targets[:, None])).max().item()
    assert conformal_threshold(probs, targets, alpha=0.1) == worst  # 0.9 · 10 is 9 in spite of rounding


def test_coverage_of_each_class_and_its_mean():
    _, probs, targets = forecast(500, 4, seed=2)
    sets = conformal_sets(probs, conformal_threshold(probs, targets, alpha=0.2))
    by_class = class_coverage(sets, targets)
    held = sets.numpy()[np.arange(500), targets.numpy()]
    assert by_class.tolist() == pytest.approx([held[targets.numpy() == k].mean() for k in range(4)])
    counts = torch.bincount(targets)
    assert (by_class * counts).sum().item() / 500 == pytest.approx(set_coverage(sets, targets))


PROBS, IDS = torch.full((4, 3), 1 / 3), torch.tensor([0, 1, 2, 0])


@pytest.mark.parametrize(
    ("options", "argument", "kind"),
    [
        ({"alpha": 0}, "alpha", ValueError),
        ({"method": "top"}, "method", ValueError),
        ({"method": "aps", "u": torch.ones(3)}, "u", ValueError),
        ({"method": "aps", "u": torch.full((4,), 2.0)}, "u", ValueError),
        ({"method": "raps", "penalty": -1.0}, "penalty", ValueError),
        ({"method": "raps", "k_reg": 0}, "k_reg", ValueError),
        ({"preds": PROBS.log()}, "preds", ValueError),
        ({"target": IDS + 1}, "target", ValueError),
        ({"target": IDS.float()}, "target", TypeError),
    ],
)
def test_invalid_arguments_are_named_in_one_line(options, argument, kind):
    with pytest.raises(kind, match=rf"^conformal_threshold: `{argument}` [^\n]+\.$"):
        conformal_threshold(**{"preds": PROBS, "target": IDS, **options})


@pytest.mark.parametrize("metric", [set_coverage, class_coverage, lambda sets, _: mean_set_size(sets)])
@pytest.mark.parametrize("sets", [PROBS, PROBS[0] > 0, [[True]], PROBS[:0] > 0])
def test_sets_must_be_rows_of_booleans(metric, sets):
    with pytest.raises(TypeError, match=r": `sets` "):
        metric(sets, IDS)
    with pytest.raises(ValueError, match=r"^conformal_sets: `threshold`"):
        conformal_sets(PROBS, math.nan)
