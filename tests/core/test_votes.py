"""Votes: the Pólya likelihood, the scale of a belief, the majority of a panel, the gain of one more vote."""

import itertools
import math
import warnings

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from beliefmatch import Belief
from beliefmatch.votes import (
    UnboundedScale,
    _probs_more_than,
    expected_gain,
    fit_class_prior,
    fit_scale,
    fitted_belief,
    fitted_scale,
    prob_of_majority,
    tempered,
    votes_log_likelihood,
)

mpmath.mp.dps = 50
seeds = st.integers(0, 2**31)


def items(count, classes, votes, seed, spread=2.0):
    """Log-concentrations and votes of some items."""
    generator = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(count, classes, generator=generator, dtype=torch.float64)
    drawn = torch.randint(classes, (count, votes), generator=generator)
    return logits, torch.nn.functional.one_hot(drawn, classes).sum(1)


def simulated(alpha, votes, count, seed):
    """Votes of items whose class probabilities follow Dir(alpha)."""
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.multinomial(votes, rng.dirichlet(alpha, count)))


# The Pólya likelihood


@given(st.integers(2, 6), st.integers(0, 80), seeds)
@settings(max_examples=40, deadline=None)
def test_the_likelihood_without_order_is_that_of_scipy(classes, votes, seed):
    logits, counts = items(3, classes, votes, seed)
    found = votes_log_likelihood(logits, counts, ordered=False, reduction="none")
    expected = [
        stats.dirichlet_multinomial.logpmf(c.numpy(), z.exp().numpy(), votes) if votes else 0.0
        for z, c in zip(logits, counts, strict=True)
    ]
    assert found.tolist() == pytest.approx(expected, rel=1e-9, abs=1e-9)


LOGITS_FAR_APART = [
    [300.0, 301.0, -300.0],
    [-600.0, -600.0, -599.0],
    [40.0, 0.0, -40.0],
    [2.2, -20.1, -22.0],  # ln j − z beyond 20, where the softplus of torch is linear by default
]


@pytest.mark.parametrize("logits", LOGITS_FAR_APART)
@pytest.mark.parametrize("counts", [[3, 2, 0], [30, 20, 5], [1000, 17, 16]])
def test_the_likelihood_is_exact_at_any_concentration(logits, counts):
    alpha = [mpmath.exp(z) for z in logits]

    def rising(a, n):
        return mpmath.fsum(mpmath.log(a + j) for j in range(n))

    expected = mpmath.fsum(map(rising, alpha, counts)) - rising(mpmath.fsum(alpha), sum(counts))
    z = torch.tensor([logits], dtype=torch.float64, requires_grad=True)
    found = votes_log_likelihood(z, torch.tensor([counts]))
    assert found.item() == pytest.approx(float(expected), rel=1e-13)
    (grad,) = torch.autograd.grad(found, z)
    total = mpmath.fsum(alpha)
    for k, (a, c) in enumerate(zip(alpha, counts, strict=True)):
        slope = mpmath.fsum(a / (a + j) for j in range(c))
        slope -= mpmath.fsum(a / (total + j) for j in range(sum(counts)))
        assert grad[0, k].item() == pytest.approx(float(slope), rel=1e-11, abs=1e-13 * sum(counts))


def test_votes_one_after_another_multiply_to_the_likelihood():
    logits, _ = items(1, 3, 0, seed=4)
    sequence, alpha, expected = [0, 2, 2, 1, 2], logits[0].exp().clone(), 0.0
    for vote in sequence:
        expected += (alpha[vote] / alpha.sum()).log().item()
        alpha[vote] += 1
    counts = torch.bincount(torch.tensor(sequence), minlength=3)[None]
    assert votes_log_likelihood(logits, counts).item() == pytest.approx(expected, rel=1e-14)


def test_the_likelihood_reduces_as_named_and_keeps_the_type_of_the_logits():
    logits, counts = items(4, 3, 7, seed=1)
    each = votes_log_likelihood(logits, counts, reduction="none")
    assert votes_log_likelihood(logits, counts).item() == pytest.approx(each.mean().item())
    assert votes_log_likelihood(logits, counts, reduction="sum").item() == pytest.approx(each.sum().item())
    assert votes_log_likelihood(logits.float(), counts).dtype == torch.float32
    assert votes_log_likelihood(logits[0], counts[0]).item() == pytest.approx(each[0].item())
    assert torch.autograd.gradcheck(lambda z: votes_log_likelihood(z, counts), logits.requires_grad_())


# The scale


@pytest.mark.parametrize("scale", [0.05, 0.5, 3.0])
@pytest.mark.parametrize("votes", [5, 40])
def test_the_scale_of_simulated_items_is_recovered(scale, votes):
    alpha = np.array([4.0, 2.0, 1.0, 0.5])
    counts = simulated(scale * alpha, votes, 20_000, seed=3)
    logits = torch.from_numpy(alpha).log().expand(len(counts), 4)
    assert fit_scale(logits, counts) == pytest.approx(scale, rel=0.07)


def test_the_scale_maximises_the_likelihood_of_few_votes():
    logits, _ = items(300, 3, 0, seed=5, spread=1.0)
    rng = np.random.default_rng(6)
    counts = torch.tensor(np.stack([rng.multinomial(4, rng.dirichlet(3 * a)) for a in logits.exp().numpy()]))
    best = fit_scale(logits, counts)
    around = [votes_log_likelihood(logits + math.log(best * f), counts).item() for f in (0.98, 1.0, 1.02)]
    assert around[1] > max(around[0], around[2])


def test_more_votes_stand_for_all_choices_of_a_few():
    """In expectation over subsets, so that the scale equals that of every subset listed once."""
    logits, counts = items(30, 3, 6, seed=8, spread=1.0)
    subsets = []
    for row in counts:
        people = [k for k, n in enumerate(row.tolist()) for _ in range(n)]
        chosen = itertools.combinations(people, 4)
        subsets.append(torch.stack([torch.bincount(torch.tensor(c), minlength=3) for c in chosen]))
    repeated = torch.cat([z.expand(len(s), 3) for z, s in zip(logits, subsets, strict=True)])
    assert fit_scale(logits, counts, max_votes=4) == pytest.approx(
        fit_scale(repeated, torch.cat(subsets), max_votes=4), rel=1e-9
    )


@pytest.mark.parametrize("largest", [1, 2, 7])
def test_more_votes_than_an_item_has_change_no_fit_and_cost_nothing(largest):
    z, counts = items(60, 4, 1, seed=2)
    counts[:7] = items(7, 4, largest, seed=3)[1]
    most = 1_000_000  # the terms of as many votes would take days
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnboundedScale)  # of items with one vote alone, or two
        fewer = max(largest, 2)
        assert torch.equal(fit_class_prior(counts, max_votes=most), fit_class_prior(counts, max_votes=fewer))
        if largest > 1:
            assert fitted_scale(z, counts, max_votes=most) == fitted_scale(z, counts, max_votes=fewer)
            both = [fitted_belief(z, counts, one_precision=True, max_votes=m) for m in (most, fewer)]
            assert both[0] == both[1]


def test_the_votes_that_count_of_an_item_with_many_are_hypergeometric():
    c, n, m = (
        torch.tensor(x, dtype=torch.float64) for x in ([3.0, 9, 40, 2], [20.0, 9, 41, 5], [8.0, 9, 30, 5])
    )
    levels = dict(_probs_more_than(range(1, 30), c, n, m))
    assert list(levels) == list(range(1, 30))
    for j, found in levels.items():
        expected = stats.hypergeom(n.numpy(), c.numpy(), m.numpy()).sf(j)
        assert found.numpy() == pytest.approx(expected, abs=1e-12)


def test_the_scale_does_not_depend_on_the_order_of_items_and_classes():
    logits, counts = items(200, 4, 5, seed=9, spread=1.0)
    order, classes = torch.randperm(200), torch.randperm(4)
    permuted = fit_scale(logits[order][:, classes], counts[order][:, classes])
    assert permuted == pytest.approx(fit_scale(logits, counts), rel=1e-9)


def test_votes_that_always_agree_have_no_scale_and_warn():
    logits = torch.zeros(50, 3)
    with pytest.warns(UnboundedScale):
        assert fit_scale(logits, 5 * torch.eye(3).repeat(17, 1)[:50]) == pytest.approx(1e-6)
    scattered = torch.tensor([[1, 1, 1]]).expand(50, 3)
    with pytest.warns(UnboundedScale):
        assert fit_scale(logits, scattered) == pytest.approx(1e6)


def test_items_with_fewer_than_two_votes_do_not_count():
    logits, counts = items(100, 3, 5, seed=10, spread=1.0)
    single = torch.nn.functional.one_hot(torch.arange(60) % 3, 3)
    more = fit_scale(torch.cat([logits, torch.randn(60, 3)]), torch.cat([counts, single]))
    assert more == pytest.approx(fit_scale(logits, counts), rel=1e-9)


def test_the_gain_of_a_scale_is_over_independent_draws_from_the_means():
    logits, counts = items(50, 3, 4, seed=3)
    found = fitted_scale(logits, counts)
    scaled = votes_log_likelihood(logits + math.log(found.scale), counts)
    independent = (counts * logits.log_softmax(1)).sum(1).mean()
    assert found.gain == pytest.approx((scaled - independent).item(), rel=1e-9)
    assert found.scale == fit_scale(logits, counts)


# The temperature


@pytest.mark.parametrize("one_precision", [True, False])
@pytest.mark.parametrize("temperature", [0.6, 1.0, 3.0])
def test_the_temperature_and_scale_of_simulated_items_are_recovered(temperature, one_precision):
    logits = 2 * torch.randn(8000, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    alpha = 3.0 * tempered(logits, temperature, one_precision).exp()
    rng = np.random.default_rng(1)
    shares = rng.gamma(alpha.numpy())
    counts = torch.from_numpy(rng.multinomial(3, shares / shares.sum(1, keepdims=True)))
    found = fitted_belief(logits, counts, one_precision=one_precision)
    assert found.temperature == pytest.approx(temperature, rel=0.07)
    assert found.scale == pytest.approx(3.0, rel=0.15)


@pytest.mark.parametrize("one_precision", [True, False])
def test_the_temperature_and_scale_are_the_likeliest_and_have_a_gain(one_precision):
    logits, _ = items(400, 3, 0, seed=31, spread=1.0)
    rng = np.random.default_rng(31)
    counts = torch.tensor(np.stack([rng.multinomial(4, rng.dirichlet(a)) for a in logits.exp().numpy()]))
    found = fitted_belief(logits, counts, one_precision=one_precision)
    parameters = torch.tensor([found.temperature, found.scale], dtype=torch.float64).log().requires_grad_()
    log_alpha = tempered(logits, parameters[0].exp(), one_precision) + parameters[1]
    likelihood = votes_log_likelihood(log_alpha, counts, reduction="sum")
    (grad,) = torch.autograd.grad(likelihood - 0.5 * parameters[0] ** 2, parameters)
    assert grad.abs().max() < 1e-3
    independent = (counts * logits.log_softmax(1)).sum()
    assert found.gain == pytest.approx((likelihood - independent).item() / 400, rel=1e-9)


@pytest.mark.parametrize("one_precision", [True, False])
def test_the_temperature_stays_one_where_no_votes_tell_it(one_precision):
    counts = simulated([1.0, 1.0, 1.0], 4, 60, seed=32)
    alike = torch.zeros(60, 3, dtype=torch.float64)
    found = fitted_belief(alike, counts, one_precision=one_precision)
    assert found.temperature == pytest.approx(1.0)
    assert found.scale == pytest.approx(fit_scale(tempered(alike, 1.0, one_precision), counts))
    logits, few = items(1, 3, 2, seed=33)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnboundedScale)
        found = fitted_belief(logits, few, one_precision=one_precision)
    assert abs(math.log(found.temperature)) < 1.5  # one item, whose votes are for the unlikely classes


def test_probabilities_of_zero_and_useless_ones_have_a_temperature():
    rng = np.random.default_rng(34)
    counts = torch.from_numpy(rng.multinomial(4, [0.5, 0.3, 0.2], 300))
    certain = torch.where(torch.eye(3)[torch.arange(300) % 3] > 0, 0.0, -1e3).double()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnboundedScale)  # independent draws
        found = fitted_belief(certain, counts, one_precision=True)
    assert math.isfinite(found.gain) and found.temperature > 20.0
    assert tempered(certain, found.temperature, True).exp().amax() < 0.6


# The prior of all items


@pytest.mark.parametrize("alpha", [[4.0, 2.0, 1.0], [0.3, 0.1, 0.6], [30.0, 10.0, 20.0]])
def test_the_prior_of_simulated_items_is_recovered(alpha):
    found = fit_class_prior(simulated(alpha, 5, 40_000, seed=0)).exp()
    assert found.tolist() == pytest.approx(alpha, rel=0.12)


def test_the_prior_maximises_the_likelihood():
    counts = simulated([2.0, 1.0, 0.5], 5, 300, seed=1)
    z = fit_class_prior(counts).requires_grad_()
    halves = 0.5 * z.log_softmax(0).sum()  # half a vote for each class
    total = votes_log_likelihood(z.expand(300, 3), counts, reduction="sum") + halves
    (grad,) = torch.autograd.grad(total, z)
    assert grad.abs().max() < 1e-4


@pytest.mark.parametrize("seed", range(4))
def test_the_prior_is_likelier_than_base_rates_at_its_precision(seed):
    counts = simulated([0.8, 0.2, 3.0], 4, 60, seed)
    z = fit_class_prior(counts)
    rates = (counts.sum(0) + 0.5).double()
    base = (rates / rates.sum()).log() + z.logsumexp(0)

    def likelihood(log_alpha):
        halves = 0.5 * log_alpha.log_softmax(0).sum()
        return votes_log_likelihood(log_alpha.expand(60, 3), counts, reduction="sum") + halves

    assert likelihood(z) >= likelihood(base) - 1e-9


def test_votes_that_agree_keep_the_mean_of_the_prior_at_the_lower_end():
    counts = torch.tensor([[5, 0]] * 95 + [[0, 5]] * 5)
    with pytest.warns(UnboundedScale, match="fit_class_prior"):
        z = fit_class_prior(counts)
    assert z.softmax(0).tolist() == pytest.approx([95.5 / 101, 5.5 / 101], rel=1e-4)
    assert z.logsumexp(0).exp().item() == pytest.approx(1e-6)


def test_votes_that_scatter_keep_the_mean_of_the_prior_at_the_upper_end():
    counts = torch.tensor([[9, 1]] * 40)  # more even than independent draws are
    with pytest.warns(UnboundedScale, match="fit_class_prior"):
        z = fit_class_prior(counts, max_votes=10)
    assert z.softmax(0).tolist() == pytest.approx([360.5 / 401, 40.5 / 401], rel=1e-4)
    assert z.logsumexp(0).exp().item() == pytest.approx(1e6)
    majority = stats.binom(5, 360.5 / 401).sf(2)  # of five independent votes
    assert prob_of_majority(z, 5)[0].item() == pytest.approx(majority, rel=1e-4)


def test_independent_votes_keep_their_mean_and_their_majority():
    rng = np.random.default_rng(0)
    first = torch.from_numpy(rng.binomial(5, 0.9, 4000))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnboundedScale)  # by chance
        z = fit_class_prior(torch.stack([first, 5 - first], 1))
    assert z.softmax(0)[0].item() == pytest.approx(0.9, abs=0.01)
    assert prob_of_majority(z, 5)[0].item() == pytest.approx(stats.binom(5, 0.9).sf(2), abs=0.01)


def test_one_vote_an_item_leaves_the_precision_of_the_prior_at_one():
    z = fit_class_prior(torch.tensor([[1, 0]] * 9 + [[0, 1]]))
    assert z.exp().tolist() == pytest.approx([9.5 / 11, 1.5 / 11])


# The majority of a panel


def by_enumeration(alpha, panel, votes):
    left, found = panel - sum(votes), np.zeros(len(alpha))
    for more in itertools.product(range(left + 1), repeat=len(alpha)):
        if sum(more) != left:
            continue
        posterior = np.add(alpha, votes)
        weight = stats.dirichlet_multinomial.pmf(more, posterior, left) if left else 1.0
        final = np.add(votes, more)
        found[final == final.max()] += weight / (final == final.max()).sum()
    return found


@given(st.integers(2, 4), st.integers(1, 7), st.data(), seeds)
@settings(max_examples=60, deadline=None)
def test_the_majority_equals_the_sum_over_all_outcomes(classes, panel, data, seed):
    logits, votes = items(1, classes, data.draw(st.integers(0, panel)), seed)
    found = prob_of_majority(logits, panel, votes)[0].tolist()
    assert found == pytest.approx(
        by_enumeration(logits[0].exp().numpy(), panel, votes[0].tolist()), abs=1e-12
    )


@pytest.mark.parametrize("votes", [(), (0,), (0, 1), (0, 39, 39)])
@pytest.mark.parametrize("shift", [-30.0, -3.0, 0.0, 8.0])
def test_the_majority_of_many_classes_equals_the_sum_over_all_outcomes(shift, votes):
    """Most of forty classes are taken together; some are likely."""
    classes, panel = 40, 3 if len(votes) < 2 else 5
    logits = shift + 1.5 * torch.randn(classes, generator=torch.Generator().manual_seed(2)).double()
    known = np.bincount(np.array(votes, dtype=int), minlength=classes)
    outcomes = itertools.combinations_with_replacement(range(classes), panel - len(votes))
    more = np.stack([np.bincount(np.array(one), minlength=classes) for one in outcomes])
    weights = exact_weights(logits.exp().numpy() + known, more)
    wins = more + known == (more + known).max(1, keepdims=True)
    expected = (weights[:, None] * wins / wins.sum(1, keepdims=True)).sum(0)
    assert expected.sum() == pytest.approx(1, abs=1e-12)
    found = prob_of_majority(logits, panel, torch.from_numpy(known)).numpy()
    assert found == pytest.approx(expected, abs=1e-13)


def exact_weights(alpha, outcomes):
    """Probabilities of the Dirichlet-multinomial distribution, by products of few factors."""
    n = outcomes[0].sum()
    rising = np.cumprod(np.concatenate([np.ones((1, len(alpha))), alpha + np.arange(n)[:, None]]), 0)
    factorial = np.array([math.factorial(j) for j in range(n + 1)])
    ways = factorial[n] / factorial[outcomes].prod(1)
    shares = rising[outcomes, np.arange(len(alpha))].prod(1)
    return ways * shares / np.prod(alpha.sum() + np.arange(n))


@pytest.mark.parametrize("panel", [2, 7, 20])
@pytest.mark.parametrize("shift", [-40.0, -4.0, 0.0, 3.0, 40.0])
def test_classes_taken_together_have_the_majorities_of_classes_in_turn(shift, panel, monkeypatch):
    logits, votes = items(4, 36, panel // 2, seed=41)
    votes[0] = 0
    monkeypatch.setattr("beliefmatch.votes._CLASSES_IN_TURN", 1000)
    expected = prob_of_majority(logits + shift, panel, votes)
    monkeypatch.setattr("beliefmatch.votes._CLASSES_IN_TURN", 1)
    assert torch.allclose(prob_of_majority(logits + shift, panel, votes), expected, rtol=0, atol=1e-13)


def test_a_majority_that_no_vote_can_change_is_certain():
    votes = torch.tensor([[3, 0, 0], [0, 4, 1], [2, 2, 1]])
    found = prob_of_majority(torch.full((3, 3), 700.0, dtype=torch.float64), 5, votes)
    assert found[:2].tolist() == [[1, 0, 0], [0, 1, 0]] and found[2].tolist() == pytest.approx([0.5, 0.5, 0])


@pytest.mark.parametrize("shift", [-12.0, 0.0, 0.4, 4.0, 12.0])
def test_the_majority_of_a_large_panel_equals_the_sum_over_all_outcomes(shift):
    """Of three classes, whose outcomes are a triangle; products of the recursion are Fourier transforms."""
    panel, votes = 160, np.array([3, 0, 9])
    z = torch.tensor([0.3, 0.1, -0.2], dtype=torch.float64) + shift
    first, second = np.meshgrid(range(149), range(149), indexing="ij")
    more = np.stack([first, second, 148 - first - second], -1)[first + second <= 148]
    weights = stats.dirichlet_multinomial.pmf(more, z.exp().numpy() + votes, 148)
    final = more + votes
    wins = final == final.max(1, keepdims=True)
    expected = (weights[:, None] * wins / wins.sum(1, keepdims=True)).sum(0)
    assert expected.sum() == pytest.approx(1, abs=1e-8)  # of scipy, whose lnΓ loses digits
    found = prob_of_majority(z, panel, torch.from_numpy(votes)).numpy()
    assert found == pytest.approx(expected / expected.sum(), abs=1e-9)


@pytest.mark.parametrize("classes", [3, 8])
@pytest.mark.parametrize("shift", [-30.0, -2.0, 1.0, 6.0, 30.0])
def test_products_by_fourier_transforms_are_those_term_by_term(classes, shift, monkeypatch):
    logits, votes = items(5, classes, 4, seed=21)
    found = prob_of_majority(logits + shift, 130, votes)
    monkeypatch.setattr("beliefmatch.votes._DIRECT_TERMS", 1000)
    assert torch.allclose(found, prob_of_majority(logits + shift, 130, votes), rtol=0, atol=1e-12)


def test_an_item_with_a_whole_panel_stands_beside_one_without_votes():
    """At a concentration whose powers are beyond the range of numbers."""
    logits = torch.full((3, 2), 300.0, dtype=torch.float64)
    votes = torch.tensor([[61, 0], [0, 0], [30, 31]])
    found = prob_of_majority(logits, 61, votes)
    expected = torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]], dtype=torch.float64)
    assert torch.allclose(found, expected, atol=1e-11)


@pytest.mark.parametrize("panel", [1, 5, 51, 301])
def test_the_majority_of_two_classes_is_a_beta_binomial_tail(panel):
    a, b = 1.7, 0.4
    logits = torch.tensor([[a, b]], dtype=torch.float64).log()
    expected = stats.betabinom.sf(panel // 2, panel, a, b)
    assert prob_of_majority(logits, panel)[0, 0].item() == pytest.approx(expected, rel=1e-9)


def test_the_majority_agrees_with_simulation():
    alpha, panel, votes = np.array([0.6, 2.0, 1.0, 0.3, 0.8]), 9, np.array([2, 0, 1, 0, 0])
    more = simulated(alpha + votes, panel - votes.sum(), 200_000, seed=11).numpy()
    final = more + votes
    wins = final == final.max(1, keepdims=True)
    expected = (wins / wins.sum(1, keepdims=True)).mean(0)
    logits = torch.from_numpy(alpha).log()[None]
    found = prob_of_majority(logits, panel, torch.from_numpy(votes)[None])[0].numpy()
    assert np.abs(found - expected).max() < 4 * math.sqrt(0.25 / 200_000)


def test_a_large_panel_decides_as_the_largest_probability():
    logits, _ = items(4, 3, 0, seed=12, spread=1.0)
    assert torch.allclose(prob_of_majority(logits, 201), Belief(logits).prob_of_being_best(), atol=0.01)


def test_one_voter_is_the_majority_and_a_complete_panel_is_certain():
    logits, votes = items(5, 3, 5, seed=13)
    assert torch.allclose(prob_of_majority(logits, 1), logits.softmax(-1), atol=1e-14)
    decided = prob_of_majority(logits, 5, votes)
    winners = votes == votes.amax(1, keepdim=True)
    assert torch.equal(decided, winners.double() / winners.sum(1, keepdim=True))


@given(st.integers(2, 5), st.integers(2, 9), seeds)
@settings(max_examples=40, deadline=None)
def test_settled_stays_settled_under_agreeing_votes(classes, panel, seed):
    logits, votes = items(6, classes, panel - 2, seed)
    before = prob_of_majority(logits, panel, votes)
    best = before.argmax(1, keepdim=True)
    more = votes + torch.zeros_like(votes).scatter(1, best, 1)
    after = prob_of_majority(logits, panel, more)
    assert (after.gather(1, best) >= before.gather(1, best) - 1e-12).all()


def test_the_next_vote_does_not_change_the_majority_in_expectation():
    logits, votes = items(5, 3, 2, seed=14)
    predictive = (logits.exp() + votes) / (logits.exp() + votes).sum(1, keepdim=True)
    later = sum(
        predictive[:, k, None] * prob_of_majority(logits, 6, votes + torch.eye(3, dtype=torch.int64)[k])
        for k in range(3)
    )
    assert torch.allclose(later, prob_of_majority(logits, 6, votes), atol=1e-12)


@pytest.mark.parametrize("shift", [-500.0, 500.0])
def test_the_majority_is_finite_at_any_concentration(shift):
    logits, votes = items(6, 4, 2, seed=15)
    found = prob_of_majority(logits + shift, 7, votes)
    assert torch.allclose(found.sum(1), torch.ones(6, dtype=torch.float64))
    if shift > 0:  # the votes say nothing new: those to come are independent draws from the means
        probs = logits[0].softmax(0).numpy()
        alike = by_enumeration(1e9 * probs, 7, votes[0].tolist())
        assert found[0].tolist() == pytest.approx(alike, abs=1e-6)


def test_the_majority_is_the_same_for_permuted_classes_and_any_batch_shape():
    logits, votes = items(6, 4, 3, seed=16)
    order = torch.tensor([2, 0, 3, 1])
    whole = prob_of_majority(logits, 7, votes)
    assert torch.allclose(prob_of_majority(logits[:, order], 7, votes[:, order]), whole[:, order])
    shaped = prob_of_majority(logits.view(2, 3, 4), 7, votes.view(2, 3, 4))
    assert torch.equal(shaped.view(6, 4), whole)


def test_a_belief_has_the_majority_along_its_class_dimension():
    logits, votes = items(6, 4, 3, seed=19)
    expected = prob_of_majority(logits, 7, votes)
    belief = Belief(logits.T.contiguous(), dim=0)
    assert torch.allclose(belief.prob_of_majority(7, votes.T), expected.T)
    assert torch.allclose(
        Belief(logits, scale=0.3).prob_of_majority(5), prob_of_majority(logits + math.log(0.3), 5)
    )
    for bad, argument in (((0,), "panel"), ((3, votes[:2]), "votes"), ((1, votes), "votes")):
        with pytest.raises(ValueError, match=rf"^Belief.prob_of_majority: `{argument}`"):
            Belief(logits).prob_of_majority(*bad)


# Which vote to ask for next


def test_the_expected_gain_is_what_the_votes_tell_about_the_majority():
    logits, votes = items(7, 3, 2, seed=17)

    def entropy(p):
        return torch.special.entr(p).sum(-1)

    predictive = (logits.exp() + votes) / (logits.exp() + votes).sum(1, keepdim=True)
    later = sum(
        predictive[:, k] * entropy(prob_of_majority(logits, 5, votes + torch.eye(3, dtype=torch.int64)[k]))
        for k in range(3)
    )
    expected = entropy(prob_of_majority(logits, 5, votes)) - later
    assert torch.allclose(expected_gain(logits, 5, votes), expected, atol=1e-12)
    assert (expected > 0).all()


@pytest.mark.parametrize("spread", [0.0, 1.0, 4.0])
def test_many_classes_are_followed_up_in_groups_within_the_stated_bound(spread, monkeypatch):
    """A majority is asked for once a group and not once a class; equal classes lose nothing."""
    logits, votes = items(4, 80, 2, seed=41, spread=spread)
    logits[1:] -= 3.0
    found, calls = expected_gain(logits, 5, votes), []
    monkeypatch.setattr("beliefmatch.votes._CLASSES_ALONE", 80)
    exact = expected_gain(logits, 5, votes)
    predictive = (logits.exp() + votes) / (logits.exp() + votes).sum(1, keepdim=True)
    rest = predictive.sort(1).values[:, :-24].sum(1)
    assert ((found - exact).abs() <= rest * math.log(80) + 1e-12).all()
    assert torch.allclose(found, exact, rtol=0.03, atol=1e-12 if spread == 0 else 0.003)
    monkeypatch.undo()

    def counted(*args):
        calls.append(args)
        return prob_of_majority(*args)

    monkeypatch.setattr("beliefmatch.votes.prob_of_majority", counted)
    expected_gain(logits, 5, votes)
    assert len(calls) <= 1 + 32


def test_the_expected_gain_has_no_gradient_and_refuses_by_its_own_name():
    logits, votes = items(4, 3, 2, seed=1)
    assert not expected_gain(logits.requires_grad_(), 5, votes).requires_grad
    calls = [(logits[0], 5, votes[0]), (logits, 1, votes), (logits, 0, votes), (logits, 5, votes[:2])]
    for call, argument in zip(calls, ["logits", "votes", "panel", "votes"], strict=True):
        with pytest.raises(ValueError) as refused:
            expected_gain(*call)
        assert (refused.value.function, refused.value.argument) == ("expected_gain", argument)


def test_complete_panels_gain_nothing():
    logits, votes = items(3, 3, 5, seed=18)
    votes[1] = torch.tensor([1, 1, 0])
    gain = expected_gain(logits, 5, votes)
    assert gain[[0, 2]].tolist() == [0, 0] and gain[1] > 0


# Bad input


CALLS = {
    "votes_log_likelihood": lambda z, c: votes_log_likelihood(z, c),
    "fit_scale": lambda z, c: fit_scale(z, c),
    "prob_of_majority": lambda z, c: prob_of_majority(z, 9, c),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    ("logits", "counts", "error", "argument"),
    [
        (torch.zeros(3, 2), [[1, 2]], TypeError, "counts|votes"),
        (torch.zeros(3, 2), torch.ones(2, 3), ValueError, "counts|votes"),
        (torch.zeros(3, 2), torch.full((3, 2), 0.5), ValueError, "counts|votes"),
        (torch.zeros(3, 2), torch.full((3, 2), -1), ValueError, "counts|votes"),
        (torch.zeros(3, 2), torch.full((3, 2), math.nan), ValueError, "counts|votes"),
        (torch.zeros(3, 2), torch.ones(3, 2, dtype=torch.bool), TypeError, "counts|votes"),
        (torch.zeros(3, 2, dtype=torch.int64), torch.ones(3, 2), TypeError, "logits"),
        (torch.zeros(()), torch.ones(()), ValueError, "logits"),
    ],
)
def test_bad_votes_are_refused_by_name(name, logits, counts, error, argument):
    with pytest.raises(error, match=rf"^{name}: `({argument})`"):
        CALLS[name](logits, counts)


@pytest.mark.parametrize("name", [*CALLS, "expected_gain"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_logits_that_are_not_finite_are_refused_by_name(name, value):
    call = CALLS.get(name, lambda z, c: expected_gain(z, 9, c))
    logits = torch.tensor([[0.0, 1.0], [0.0, value], [1.0, 0.0]])
    with pytest.raises(ValueError, match=rf"^{name}: `logits` must be finite"):
        call(logits, torch.ones(3, 2))


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: fit_scale(torch.zeros(3, 2), torch.eye(3, 2)), "counts"),
        (lambda: fit_scale(torch.zeros(0, 2), torch.zeros(0, 2)), "counts"),
        (lambda: fit_scale(torch.zeros(2), torch.ones(2)), "logits"),
        (lambda: fit_scale(torch.full((3, 2), math.nan), torch.ones(3, 2)), "logits"),
        (lambda: fit_scale(torch.zeros(3, 2), torch.ones(3, 2), max_votes=1), "max_votes"),
        (lambda: prob_of_majority(torch.zeros(3, 2), 0), "panel"),
        (lambda: prob_of_majority(torch.zeros(3, 2), 3, torch.full((3, 2), 2)), "votes"),
        (lambda: votes_log_likelihood(torch.zeros(3, 2), torch.ones(3, 2), reduction="max"), "reduction"),
    ],
)
def test_bad_arguments_are_refused_by_name(call, argument):
    with warnings.catch_warnings(), pytest.raises(ValueError, match=f"`{argument}`"):
        call()
