"""Selective prediction: curves against plain loops, and a guarantee that holds in simulation."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from beliefmatch import Belief
from beliefmatch.metrics import aurc, binomial_interval, coverage_at_risk, excess_aurc, risk_coverage
from forecasts import answers, seeds


@given(st.integers(1, 80), st.booleans(), seeds)
@settings(max_examples=40, deadline=None)
def test_the_curve_equals_a_plain_loop_and_its_excess_is_zero_for_the_best_order(examples, ties, seed):
    confidence, correct = answers(examples, seed, ties=ties)
    curve, area = risk_coverage(confidence, correct), aurc(confidence, correct)
    assert curve.coverage.tolist() == pytest.approx([k / examples for k in range(1, examples + 1)])
    assert area == pytest.approx(curve.risk.mean().item())
    if not ties:
        wrong = (~correct)[confidence.argsort(descending=True)].double()
        loop = [wrong[:k].mean().item() for k in range(1, examples + 1)]
        assert curve.risk.tolist() == pytest.approx(loop)
    assert excess_aurc(correct.double() + confidence / 10, correct) == pytest.approx(0, abs=1e-12)
    assert 0 <= excess_aurc(confidence, correct) <= area <= 1
    rows = torch.randperm(examples, generator=torch.Generator().manual_seed(seed))
    assert aurc(confidence[rows], correct[rows]) == pytest.approx(area)
    assert aurc(confidence.exp(), correct) == pytest.approx(area)


def test_ties_count_as_the_mean_over_their_orders():
    confidence = torch.tensor([0.5, 0.5, 0.5, 0.9, 0.1])
    correct = torch.tensor([True, False, True, True, False])
    spread = torch.tensor([1e-3, 2e-3, 3e-3, 0.0, 0.0])
    orders = [
        risk_coverage(confidence + torch.cat([spread[list(order)], spread[3:]]), correct).risk
        for order in itertools.permutations(range(3))
    ]
    torch.testing.assert_close(risk_coverage(confidence, correct).risk, torch.stack(orders).mean(0))


def test_areas_of_all_right_of_all_wrong_and_of_a_constant_confidence():
    confidence = torch.tensor([0.2, 0.4, 0.9])
    assert aurc(confidence, torch.ones(3)) == excess_aurc(confidence, torch.ones(3)) == 0.0
    assert aurc(confidence, torch.zeros(3)) == 1.0
    assert excess_aurc(confidence, torch.zeros(3)) == 0.0
    assert aurc(torch.ones(5), torch.tensor([True, False, True, True, False])) == pytest.approx(0.4)


# Guarantees


def exact_bound(errors, trials, delta):
    """Clopper and Pearson's upper bound, by scipy."""
    return binomtest(errors, trials).proportion_ci(confidence_level=1 - 2 * delta, method="exact").high


def test_the_bound_is_that_of_clopper_and_pearson():
    confidence, correct = answers(1000, 1, ties=False)
    found = coverage_at_risk(confidence, correct, risk=0.3, delta=0.1, levels=20)
    kept = confidence >= found.threshold
    errors, trials = int((~correct[kept]).sum()), int(kept.sum())
    assert found.coverage == trials / 1000
    assert found.risk == pytest.approx(errors / trials)
    assert found.bound == pytest.approx(exact_bound(errors, trials, 0.1 / 20))
    assert found.risk < found.bound <= 0.3


def test_no_larger_coverage_has_a_bound_below_the_risk():
    confidence, correct = answers(1000, 2, ties=False)
    found = coverage_at_risk(confidence, correct, risk=0.3, levels=20)
    ordered = confidence.sort(descending=True).values
    for kept in range(int(1000 * found.coverage) + 50, 1000, 50):
        errors = int((~correct[confidence > ordered[kept]]).sum())
        assert exact_bound(errors, kept, 0.05 / 20) > 0.3


@pytest.mark.parametrize("ties", [False, True])
def test_the_guarantee_fails_no_more_often_than_its_delta(ties):
    """Right with probability equal to the confidence, so that the true risk above t is known."""
    delta, failures, guarantees = 0.2, 0, 0
    grid = (torch.arange(20_001, dtype=torch.float64) / 20_000).clamp(1e-9, 1 - 1e-9)
    grid = (8 * grid).round() / 8 if ties else grid
    for seed in range(400):
        found = coverage_at_risk(*answers(300, seed, ties=ties), risk=0.25, delta=delta, levels=5)
        if found.coverage:
            guarantees += 1
            failures += (1 - grid[grid >= found.threshold]).mean().item() > found.bound
    assert guarantees > 300
    assert failures / 400 <= delta + 2 * math.sqrt(delta * (1 - delta) / 400)


def test_with_one_level_the_guarantee_fails_about_as_often_as_its_delta():
    """Nothing is given away: the error 0.3 of all answers exceeds the bound in nearly delta of the draws."""
    generator, failures = torch.Generator().manual_seed(0), 0
    for _ in range(1000):
        confidence, draw = torch.rand(2, 400, generator=generator)
        found = coverage_at_risk(confidence, draw < 0.7, risk=0.99, delta=0.1, levels=1)
        assert (found.coverage, found.threshold) == (1.0, 0.0)
        failures += found.bound < 0.3
    assert 0.06 < failures / 1000 <= 0.115


def test_where_no_threshold_meets_the_risk_nothing_is_answered():
    found = coverage_at_risk(*answers(20, 0, ties=False), risk=0.01)
    assert (found.threshold, found.coverage) == (math.inf, 0.0)
    assert math.isnan(found.risk) and math.isnan(found.bound)


def test_tied_confidences_are_answered_together_or_not_at_all():
    """Half of the confidences are 1: only answers strictly above another example's count."""
    confidence = torch.cat([torch.ones(500), torch.linspace(0, 0.5, 500)])
    correct = torch.cat([torch.ones(500), torch.zeros(500)]).bool()
    found = coverage_at_risk(confidence, correct, risk=0.05)
    assert 0.5 <= found.coverage < 0.53
    assert found.threshold <= 0.5 + 1e-6


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_threshold_answers_its_share_in_the_type_of_the_confidences(dtype):
    confidence, correct = answers(500, 3, ties=False)
    confidence = confidence.to(dtype)
    found = coverage_at_risk(confidence, correct, risk=0.3)
    assert (confidence >= found.threshold).double().mean().item() == pytest.approx(found.coverage)


def test_a_belief_abstains_at_the_threshold():
    generator = torch.Generator().manual_seed(0)
    belief = Belief(4 * torch.randn(2000, 5, generator=generator))
    correct = torch.rand(2000, generator=generator) < belief.confidence
    found = coverage_at_risk(belief.confidence, correct, risk=0.1)
    answered = ~belief.abstain(found.threshold)
    assert answered.double().mean().item() == pytest.approx(found.coverage)
    assert (~correct[answered]).double().mean().item() == pytest.approx(found.risk)


def test_the_confidence_may_be_any_score():
    confidence, correct = answers(300, 4, ties=False)
    found = coverage_at_risk(confidence - 5, correct, risk=0.3)
    assert found.coverage == coverage_at_risk(confidence, correct, risk=0.3).coverage
    everything = coverage_at_risk(confidence - 5, correct, risk=0.9)
    assert (everything.coverage, everything.threshold) == (1.0, -math.inf)


@pytest.mark.parametrize(("errors", "trials"), [(0, 1), (1, 1), (0, 20), (3, 20), (20, 20), (411, 10000)])
@pytest.mark.parametrize("level", [0.8, 0.95])
def test_the_binomial_interval_is_the_exact_one_of_scipy(errors, trials, level):
    expected = binomtest(errors, trials).proportion_ci(level, method="exact")
    assert binomial_interval(errors, trials, level=level) == pytest.approx(tuple(expected), abs=1e-12)


@pytest.mark.parametrize("metric", [risk_coverage, aurc, excess_aurc])
@pytest.mark.parametrize(
    ("confidence", "correct", "argument"),
    [
        (torch.ones(3), torch.ones(2), "correct"),
        (torch.ones(2), torch.full((2,), 0.5), "correct"),
        (torch.ones(2) * math.nan, torch.ones(2), "confidence"),
    ],
)
def test_invalid_columns_are_named(metric, confidence, correct, argument):
    with pytest.raises(ValueError, match=rf"^{metric.__name__}: `{argument}`"):
        metric(confidence, correct)


@pytest.mark.parametrize("option", [{"risk": 0}, {"risk": 1}, {"delta": 0}, {"levels": 0}])
def test_invalid_options_are_named(option):
    with pytest.raises(ValueError, match=rf"^coverage_at_risk: `{next(iter(option))}`"):
        coverage_at_risk(torch.ones(3), torch.ones(3), **{"risk": 0.1, **option})
    with pytest.raises(ValueError, match=r"^coverage_at_risk: `confidence`"):
        coverage_at_risk(torch.tensor([1.0, math.inf]), torch.ones(2), risk=0.1)
