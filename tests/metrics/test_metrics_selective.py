"""Selective prediction: curves against plain loops, and a promise kept in simulation."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from beliefmatch import Belief
from beliefmatch.metrics import aurc, binomial_interval, coverage_at_risk, excess_aurc, risk_coverage
from forecasts import answers, seeds


@given(st.integers(1, 80), seeds)
@settings(max_examples=30, deadline=None)
def test_the_curve_equals_a_plain_loop(examples, seed):
    confidence, correct = answers(examples, seed, ties=False)
    order = np.argsort(-confidence.numpy())
    wrong = ~correct.numpy()[order]
    curve = risk_coverage(confidence, correct)
    np.testing.assert_allclose(curve.risk, [wrong[:k].mean() for k in range(1, examples + 1)])
    np.testing.assert_allclose(curve.coverage, np.arange(1, examples + 1) / examples)
    assert aurc(confidence, correct) == pytest.approx(curve.risk.mean().item())


def test_ties_count_as_the_mean_over_their_orders():
    confidence = torch.tensor([0.5, 0.5, 0.5, 0.9, 0.1])
    correct = torch.tensor([True, False, True, True, False])
    spread = torch.tensor([1e-3, 2e-3, 3e-3, 0.0, 0.0])
    orders = [
        risk_coverage(confidence + torch.cat([spread[list(order)], spread[3:]]), correct).risk
        for order in itertools.permutations(range(3))
    ]
    torch.testing.assert_close(risk_coverage(confidence, correct).risk, torch.stack(orders).mean(0))


@given(st.integers(1, 60), st.booleans(), seeds)
@settings(max_examples=40, deadline=None)
def test_excess_is_zero_for_the_best_order_and_never_negative(examples, ties, seed):
    confidence, correct = answers(examples, seed, ties=ties)
    best = correct.double() + confidence / 10
    assert excess_aurc(best, correct) == pytest.approx(0, abs=1e-12)
    assert 0 <= excess_aurc(confidence, correct) <= aurc(confidence, correct) <= 1
    rows = torch.randperm(examples, generator=torch.Generator().manual_seed(seed))
    assert aurc(confidence[rows], correct[rows]) == pytest.approx(aurc(confidence, correct))
    assert aurc(confidence.exp(), correct) == pytest.approx(aurc(confidence, correct))


def test_all_right_and_all_wrong():
    confidence = torch.tensor([0.2, 0.4, 0.9])
    assert aurc(confidence, torch.ones(3)) == excess_aurc(confidence, torch.ones(3)) == 0.0
    assert aurc(confidence, torch.zeros(3)) == 1.0
    assert excess_aurc(confidence, torch.zeros(3)) == 0.0


def test_a_constant_confidence_has_the_error_as_its_area():
    correct = torch.tensor([True, False, True, True, False])
    assert aurc(torch.ones(5), correct) == pytest.approx(0.4)


def test_the_bound_is_that_of_clopper_and_pearson():
    confidence, correct = answers(1000, 1, ties=False)
    found = coverage_at_risk(confidence, correct, risk=0.3, delta=0.1, levels=20)
    kept = confidence >= found.threshold
    errors, trials = int((~correct[kept]).sum()), int(kept.sum())
    assert found.coverage == trials / 1000
    assert found.risk == pytest.approx(errors / trials)
    exact = binomtest(errors, trials).proportion_ci(confidence_level=1 - 2 * 0.1 / 20, method="exact")
    assert found.bound == pytest.approx(exact.high)
    assert found.risk < found.bound <= 0.3


def test_the_coverage_is_the_largest_that_can_be_promised():
    confidence, correct = answers(1000, 2, ties=False)
    found = coverage_at_risk(confidence, correct, risk=0.3, levels=20)
    ordered = confidence.sort(descending=True).values
    for kept in range(int(1000 * found.coverage) + 50, 1000, 50):
        errors = int((~correct[confidence > ordered[kept]]).sum())
        bound = binomtest(errors, kept).proportion_ci(1 - 2 * 0.05 / 20, method="exact").high
        assert bound > 0.3


@pytest.mark.parametrize("ties", [False, True])
def test_the_promise_is_broken_no_more_often_than_it_says(ties):
    """Right with probability equal to the confidence, so that the true risk above t is known."""
    delta, broken, promised = 0.2, 0, 0
    grid = (torch.arange(200_001, dtype=torch.float64) / 200_000).clamp(1e-9, 1 - 1e-9)
    grid = (8 * grid).round() / 8 if ties else grid
    for seed in range(400):
        confidence, correct = answers(300, seed, ties=ties)
        found = coverage_at_risk(confidence, correct, risk=0.25, delta=delta, levels=5)
        if found.coverage:
            promised += 1
            broken += (1 - grid[grid >= found.threshold]).mean().item() > found.bound
    assert promised > 300
    assert broken / 400 <= delta + 2 * math.sqrt(delta * (1 - delta) / 400)


def test_with_one_level_the_promise_is_broken_about_as_often_as_it_says():
    """Nothing is given away: the error 0.3 of all answers exceeds the bound in nearly delta of the draws."""
    generator, broken = torch.Generator().manual_seed(0), 0
    for _ in range(1000):
        correct = torch.rand(400, generator=generator) < 0.7
        found = coverage_at_risk(
            torch.rand(400, generator=generator), correct, risk=0.99, delta=0.1, levels=1
        )
        assert (found.coverage, found.threshold) == (1.0, 0.0)
        broken += found.bound < 0.3
    assert 0.06 < broken / 1000 <= 0.115


def test_where_nothing_can_be_promised_nothing_is_answered():
    confidence, correct = answers(20, 0, ties=False)
    found = coverage_at_risk(confidence, correct, risk=0.01)
    assert (found.threshold, found.coverage) == (math.inf, 0.0)
    assert math.isnan(found.risk) and math.isnan(found.bound)


def test_an_atom_is_answered_whole_or_not_at_all():
    """Half of the confidences are 1: only answers strictly above another example's are promised."""
    confidence = torch.cat([torch.ones(500), torch.linspace(0, 0.5, 500)])
    correct = torch.cat([torch.ones(500), torch.zeros(500)]).bool()
    found = coverage_at_risk(confidence, correct, risk=0.05)
    assert 0.5 <= found.coverage < 0.53
    assert found.threshold <= 0.5 + 1e-6


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_threshold_answers_the_promised_share_in_the_type_of_the_confidences(dtype):
    confidence, correct = answers(500, 3, ties=False)
    confidence = confidence.to(dtype)
    found = coverage_at_risk(confidence, correct, risk=0.3)
    assert (confidence >= found.threshold).double().mean().item() == pytest.approx(found.coverage)


def test_a_belief_abstains_by_the_promise():
    generator = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(2000, 5, generator=generator)
    belief = Belief(logits)
    correct = torch.rand(2000, generator=generator) < belief.confidence
    found = coverage_at_risk(belief.confidence, correct, risk=0.1)
    answered = ~belief.abstain(found.threshold)
    assert answered.double().mean().item() == pytest.approx(found.coverage)
    assert (~correct[answered]).double().mean().item() == pytest.approx(found.risk)


def test_any_score_will_do():
    confidence, correct = answers(300, 4, ties=False)
    found = coverage_at_risk(confidence - 5, correct, risk=0.3)
    assert found.coverage == coverage_at_risk(confidence, correct, risk=0.3).coverage
    everything = coverage_at_risk(confidence - 5, correct, risk=0.9)
    assert (everything.coverage, everything.threshold) == (1.0, -math.inf)


@pytest.mark.parametrize("metric", [risk_coverage, aurc, excess_aurc])
def test_bad_columns_are_refused(metric):
    for confidence, correct, words in (
        (torch.ones(3), torch.ones(2), r"`correct` must have shape \(3,\)"),
        (torch.ones(2) * math.nan, torch.ones(2), "`confidence` must be free of NaN"),
        (torch.ones(2), torch.full((2,), 0.5), "`correct` must be 0 or 1, got 0.5"),
    ):
        with pytest.raises(ValueError, match=rf"^{metric.__name__}: {words}"):
            metric(confidence, correct)


@pytest.mark.parametrize(
    "options", [{"risk": 0}, {"risk": 1}, {"risk": 0.1, "delta": 0}, {"risk": 0.1, "levels": 0}]
)
def test_options_are_checked(options):
    with pytest.raises(ValueError, match=r"`(risk|delta|levels)`"):
        coverage_at_risk(torch.ones(3), torch.ones(3), **options)


@pytest.mark.parametrize(("errors", "trials"), [(0, 1), (1, 1), (0, 20), (3, 20), (20, 20), (411, 10000)])
@pytest.mark.parametrize("level", [0.8, 0.95])
def test_the_binomial_interval_is_scipys_exact_one(errors, trials, level):
    expected = binomtest(errors, trials).proportion_ci(level, method="exact")
    assert binomial_interval(errors, trials, level=level) == pytest.approx(tuple(expected), abs=1e-12)
