"""The probability of being the best class, against exact values and simulation."""

import math

import pytest
import scipy.special
import torch

from beliefmatch import Belief


@pytest.mark.parametrize("level", [-30.0, -8.0, -2.0, 0.0, 2.0, 8.0, 16.0, 22.0])
@pytest.mark.parametrize("lead", [0.0, 0.1, 1.0, 3.0])
def test_of_two_classes_it_is_a_beta_tail(level, lead):
    """P(p₁ > ½) with p₁ ~ Beta(a, b), leads counted in standard deviations where those are small."""
    step = lead * min(1.0, math.exp(-level / 2))
    a, b = math.exp(level), math.exp(level + step)
    best = Belief(torch.tensor([level, level + step], dtype=torch.float64)).prob_of_being_best()
    exact = 1 - scipy.special.betainc(a, b, 0.5)
    assert best[0].item() == pytest.approx(exact, abs=2e-7)
    assert best.sum().item() == pytest.approx(1, abs=1e-12)


def test_it_agrees_with_simulation():
    torch.manual_seed(0)
    subject = Belief(2 * torch.randn(4, 6))
    draws = subject.sample(100_000).argmax(-1)
    frequency = torch.nn.functional.one_hot(draws, 6).double().mean(0)
    torch.testing.assert_close(subject.prob_of_being_best().double(), frequency, rtol=0, atol=8e-3)


def test_tiny_concentrations_leave_only_the_mean_and_large_ones_only_the_order():
    logits = torch.tensor([0.3, 0.0, -0.4], dtype=torch.float64)
    vague, sure = Belief(logits - 25), Belief(logits + 40)
    torch.testing.assert_close(vague.prob_of_being_best(), vague.probs, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(sure.prob_of_being_best(), torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64))


def test_beyond_a_million_millions_the_lead_counts_in_standard_deviations():
    z = 50.0
    deviation = math.exp(-z / 2)
    logits = torch.tensor([z + 1.5 * deviation * math.sqrt(2), z], dtype=torch.float64)
    best = Belief(logits).prob_of_being_best()[0].item()
    assert best == pytest.approx(scipy.special.ndtr(1.5), abs=1e-3)


def test_ties_are_even_at_any_size():
    for level in (-1e30, -500.0, 0.0, 80.0, 1e30):
        best = Belief(torch.full((3, 5), level)).prob_of_being_best()
        torch.testing.assert_close(best, torch.full((3, 5), 0.2), rtol=1e-5, atol=0)


def test_many_classes_and_no_rows_are_fine_and_nan_stays():
    best = Belief(torch.randn(2, 3000)).prob_of_being_best()
    torch.testing.assert_close(best.sum(-1), torch.ones(2))
    assert Belief(torch.zeros(0, 3)).prob_of_being_best().shape == (0, 3)
    assert Belief(torch.tensor([math.nan, 0.0])).prob_of_being_best().isnan().all()
    assert Belief(torch.zeros(3)).prob_of_being_best().shape == (3,)
