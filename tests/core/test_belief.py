"""Belief: what a network's logits say, checked against scipy, torch and closed forms."""

import math

import numpy as np
import pytest
import scipy.stats
import torch
from scipy import special
from torch.distributions import Dirichlet, kl_divergence

from beliefmatch import Belief

DOUBLE = torch.float64


def belief(seed=0, rows=4, classes=5, scale=1.0):
    torch.manual_seed(seed)
    return Belief(2 * torch.randn(rows, classes, dtype=DOUBLE), scale=scale)


def test_mean_is_softmax_and_confidence_and_prediction_read_it():
    torch.manual_seed(0)
    logits = torch.randn(4, 5)
    subject = Belief(logits)
    torch.testing.assert_close(subject.probs, logits.softmax(-1))
    torch.testing.assert_close(subject.confidence, logits.softmax(-1).amax(-1))
    assert torch.equal(subject.predictions, logits.argmax(-1))
    torch.testing.assert_close(subject.alpha, logits.exp())
    torch.testing.assert_close(subject.precision, logits.exp().sum(-1))
    torch.testing.assert_close(subject.log_precision, logits.logsumexp(-1))


def test_scale_changes_the_spread_and_not_the_mean():
    wide, narrow = belief(scale=0.01), belief(scale=1.0)
    torch.testing.assert_close(wide.probs, narrow.probs)
    torch.testing.assert_close(wide.alpha, 0.01 * narrow.alpha)
    assert (wide.variance > narrow.variance).all()
    assert (wide.mutual_information() > narrow.mutual_information()).all()


def test_variance_and_covariance_match_torch_and_numpy():
    subject = belief()
    exact = Dirichlet(subject.alpha)
    torch.testing.assert_close(subject.variance, exact.variance, rtol=1e-12, atol=0)
    for row in range(4):
        covariance = scipy.stats.dirichlet.cov(subject.alpha[row].numpy())
        np.testing.assert_allclose(subject.covariance[row].numpy(), covariance, rtol=1e-12)
    found = subject.covariance
    assert found.sum(-1).abs().max() < 8 * torch.finfo(found.dtype).eps * found.abs().max()


def test_variance_of_a_dominating_class_keeps_its_digits():
    logits = torch.tensor([[0.0, -18.0, -20.0]])
    share = math.exp(-18) + math.exp(-20)
    expected = share / (1 + share) ** 2 / (2 + share)
    assert Belief(logits).variance[0, 0].item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("level", [0.5, 0.9, 0.99])
def test_credible_interval_is_that_of_the_beta_marginal(level):
    subject = belief()
    lower, upper = subject.credible_interval(level)
    alpha = subject.alpha.numpy()
    rest = alpha.sum(-1, keepdims=True) - alpha
    np.testing.assert_allclose(lower, scipy.stats.beta.ppf(0.5 - level / 2, alpha, rest), rtol=1e-9)
    np.testing.assert_allclose(upper, scipy.stats.beta.ppf(0.5 + level / 2, alpha, rest), rtol=1e-9)


def test_credible_interval_holds_the_promised_share_of_draws():
    torch.manual_seed(1)
    subject = Belief(torch.randn(3, 4))
    lower, upper = subject.credible_interval(0.8)
    draws = subject.sample(20_000)
    in_distribution = ((draws >= lower) & (draws <= upper)).double().mean(0)
    assert (in_distribution - 0.8).abs().max() < 0.015  # five standard errors


def test_credible_interval_is_defined_at_the_extremes():
    logits = torch.tensor([[300.0, 0.0, -300.0], [-300.0, -300.0, -300.0], [80.0, 80.0, 80.0]])
    lower, upper = Belief(logits).credible_interval()
    assert lower.isfinite().all() and upper.isfinite().all()
    assert (lower <= upper).all()
    torch.testing.assert_close(lower[2], torch.full((3,), 1 / 3))
    assert lower[0].tolist() == [1.0, 0.0, 0.0] and upper[1].tolist() == [1.0, 1.0, 1.0]


def test_interval_of_a_large_belief_agrees_across_the_change_of_method():
    """Just below and just above the concentration where the normal approximation takes over."""
    edge = math.log(1e12)
    widths = []
    for logit in (edge - 0.01, edge + 0.01):
        lower, upper = Belief(torch.tensor([logit, logit], dtype=DOUBLE)).credible_interval()
        widths.append((upper - lower)[0].item())
    assert widths[1] / widths[0] == pytest.approx(math.exp(-0.01), rel=1e-4)


def test_draws_have_the_mean_and_covariance_of_the_belief():
    subject = belief(rows=3, classes=4)
    torch.manual_seed(0)
    draws = subject.sample(100_000)
    assert draws.shape == (100_000, 3, 4)
    torch.testing.assert_close(draws.sum(-1), torch.ones(100_000, 3, dtype=DOUBLE))
    torch.testing.assert_close(draws.mean(0), subject.probs, rtol=0, atol=7e-3)
    for row in range(3):
        covariance = torch.cov(draws[:, row].T)
        torch.testing.assert_close(covariance, subject.covariance[row], rtol=0, atol=3e-3)


def test_draws_at_tiny_concentrations_are_corners_drawn_by_the_mean():
    torch.manual_seed(0)
    logits = torch.tensor([-30.0, -30.0 + math.log(3.0)])
    draws = Belief(logits).sample(20_000)
    assert draws.isfinite().all()
    assert (draws.amax(-1) > 1 - 1e-6).all()
    assert draws[:, 1].mean().item() == pytest.approx(0.75, abs=0.015)


def test_draws_repeat_with_the_seed():
    subject = belief()
    torch.manual_seed(3)
    first = subject.sample(2)
    torch.manual_seed(3)
    assert torch.equal(first, subject.sample(2))


def test_log_prob_matches_torch_and_stays_right_where_torch_does_not():
    subject = belief()
    points = Dirichlet(subject.alpha).sample()
    exact = Dirichlet(subject.alpha).log_prob(points)
    torch.testing.assert_close(subject.log_prob(points), exact, rtol=1e-10, atol=1e-10)
    # At α = e^30 the density at the mean is that of a normal with the belief's covariance.
    logits = torch.full((3,), 30.0)
    value = Belief(logits).log_prob(torch.full((3,), 1 / 3)).item()
    a = math.exp(30)
    covariance = 1 / (9 * (3 * a + 1))
    expected = -math.log(2 * math.pi) - 0.5 * math.log(3 * covariance**2)
    assert value == pytest.approx(expected, rel=1e-7)


def test_density_integrates_to_one():
    subject = Belief(torch.tensor([0.7, 1.1], dtype=DOUBLE))
    nodes, weights = np.polynomial.legendre.leggauss(200)
    first = torch.from_numpy(0.5 * (nodes + 1))
    density = subject.log_prob(torch.stack([first, 1 - first], -1)).exp()
    assert (density * torch.from_numpy(0.5 * weights)).sum().item() == pytest.approx(1, rel=1e-6)


def test_log_prob_on_the_boundary_is_zero_or_infinite_density():
    subject = Belief(torch.tensor([[1.0, 1.0, 1.0], [-1.0, 1.0, 1.0], [0.0, 0.0, 0.0]]))
    edge = subject.log_prob(torch.tensor([0.0, 0.5, 0.5]))
    assert edge.tolist() == [-math.inf, math.inf, pytest.approx(math.log(2.0))]


def test_kl_is_that_of_torch():
    one, other = belief(seed=0), belief(seed=1)
    exact = kl_divergence(Dirichlet(one.alpha), Dirichlet(other.alpha))
    torch.testing.assert_close(one.kl(other), exact, rtol=1e-9, atol=1e-9)


def test_update_is_bayes_rule_and_adds_up():
    subject = belief()
    first, second = torch.randint(0, 5, (2, 4, 5))
    together = subject.update(first + second)
    apart = subject.update(first).update(second)
    torch.testing.assert_close(together.alpha, subject.alpha + first + second)
    torch.testing.assert_close(together.alpha, apart.alpha)
    torch.testing.assert_close(subject.update(torch.zeros(4, 5)).alpha, subject.alpha)


def test_votes_make_the_belief_surer():
    subject = belief(rows=3)
    votes = torch.zeros(3, 5).index_fill(1, torch.tensor([2]), 1000.0)
    updated = subject.update(votes)
    assert (updated.predictions == 2).all() and (updated.confidence > 0.9).all()
    assert (updated.mutual_information() < subject.mutual_information()).all()


def test_to_distribution_moves_the_classes_last():
    subject = Belief(torch.randn(2, 3, 4), dim=1)
    distribution = subject.to_distribution()
    assert distribution.batch_shape == (2, 4) and distribution.event_shape == (3,)
    torch.testing.assert_close(distribution.mean.movedim(-1, 1), subject.probs)


def test_class_dimension_is_selectable_for_every_question():
    torch.manual_seed(0)
    logits = torch.randn(2, 3, 4, dtype=DOUBLE)
    along, last = Belief(logits, dim=1), Belief(logits.movedim(1, -1))
    for name in ("confidence", "predictions", "precision"):
        torch.testing.assert_close(getattr(along, name), getattr(last, name))
    for name in ("entropy", "expected_entropy", "mutual_information", "differential_entropy"):
        torch.testing.assert_close(getattr(along, name)(), getattr(last, name)())
    torch.testing.assert_close(along.variance.movedim(1, -1), last.variance)
    torch.testing.assert_close(along.prob_of_being_best().movedim(1, -1), last.prob_of_being_best())
    torch.testing.assert_close(along.covariance, last.covariance)
    for own, other in zip(along.credible_interval(), last.credible_interval(), strict=True):
        torch.testing.assert_close(own.movedim(1, -1), other)
    points = logits.softmax(1)
    torch.testing.assert_close(along.log_prob(points), last.log_prob(points.movedim(1, -1)))
    torch.testing.assert_close(along.kl(Belief(0 * logits, dim=1)), last.kl(Belief(torch.zeros(3))))
    assert along.sample(7).shape == (7, 2, 3, 4)
    assert along.update(torch.ones(2, 3, 4)).dim == 1


def test_abstention_takes_the_doubtful_side_of_each_measure():
    subject = Belief(torch.tensor([[5.0, 0.0, 0.0], [0.0, 0.0, 0.1], [9.0, 9.0, 9.0]]))
    assert subject.abstain(0.9).tolist() == [False, True, True]
    assert subject.abstain(100.0, measure="precision").tolist() == [False, True, False]
    assert subject.abstain(0.5, measure="entropy").tolist() == [False, True, True]
    assert subject.abstain(0.5, measure="expected_entropy").tolist() == [False, True, True]
    assert subject.abstain(0.1, measure="mutual_information").tolist() == [False, True, False]
    assert subject.abstain(-1.5, measure="differential_entropy").tolist() == [False, True, False]


def test_abstains_on_nan():
    subject = Belief(torch.tensor([[math.nan, 0.0], [3.0, 0.0]]))
    for measure in ("confidence", "entropy", "mutual_information"):
        threshold = 0.0 if measure == "confidence" else 10.0
        assert subject.abstain(threshold, measure=measure).tolist() == [True, False]


def test_bounds_of_the_measures_hold():
    torch.manual_seed(0)
    subject = Belief(30 * torch.randn(50, 7))
    limit = math.log(7) * (1 + 1e-6)
    assert ((subject.entropy() >= 0) & (subject.entropy() <= limit)).all()
    assert ((subject.expected_entropy() >= 0) & (subject.expected_entropy() <= limit)).all()
    assert (subject.mutual_information() >= 0).all()
    assert (subject.differential_entropy() <= -math.lgamma(7) * (1 - 1e-6)).all()
    assert ((subject.variance >= 0) & (subject.variance <= 0.25)).all()
    uniform = Belief(torch.zeros(7)).differential_entropy().item()
    assert uniform == pytest.approx(-math.lgamma(7), rel=1e-6)


def test_half_precision_is_lifted():
    logits = torch.randn(3, 4).bfloat16()
    subject = Belief(logits)
    assert subject.probs.dtype == torch.float32
    torch.testing.assert_close(subject.entropy(), Belief(logits.float()).entropy())


def test_measures_carry_gradients():
    logits = torch.randn(3, 4, requires_grad=True)
    (Belief(logits).mutual_information().sum() + Belief(logits).variance.sum()).backward()
    assert logits.grad.abs().sum() > 0


def test_repr_tells_classes_and_shape():
    assert repr(Belief(torch.zeros(2, 3))) == "Belief(classes=3, shape=(2, 3), dim=1)"


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: Belief(torch.zeros(3).long()), TypeError, "Belief: `logits`"),
        (lambda: Belief(torch.tensor(1.0)), ValueError, "classes along dim=-1"),
        (lambda: Belief(torch.zeros(3, 0)), ValueError, r"got shape \(3, 0\)"),
        (lambda: Belief(torch.zeros(3, 2), dim=2), ValueError, "dim=2"),
        (
            lambda: Belief(torch.zeros(3), scale=0.0),
            ValueError,
            "`scale` must be positive, got 0.0",
        ),
        (lambda: Belief(torch.zeros(3), scale=math.nan), ValueError, "`scale` must be finite"),
        (lambda: Belief(torch.zeros(3)).credible_interval(1.0), ValueError, "`level`"),
        (lambda: Belief(torch.zeros(3)).sample(0), ValueError, "`n`"),
        (lambda: Belief(torch.zeros(3), dim="x"), TypeError, "`dim` must be an integer"),
        (lambda: Belief(torch.zeros(3)).sample(True), TypeError, "`n` must be an integer"),
        (lambda: Belief(torch.tensor([math.nan, 0.0])).to_distribution(), ValueError, "NaN"),
        (lambda: Belief(torch.zeros(3)).log_prob(torch.ones(3)), ValueError, "sum to one, got 3.0"),
        (lambda: Belief(torch.zeros(2, 3)).log_prob(torch.ones(5, 3) / 3), ValueError, r"got shape \(5, 3\)"),
        (lambda: Belief(torch.zeros(2, 3, 4), dim=1).log_prob(torch.ones(3) / 3), ValueError, "3 classes"),
        (lambda: Belief(torch.zeros(3)).log_prob(torch.ones(2) / 2), ValueError, "3 classes"),
        (lambda: Belief(torch.zeros(3)).kl(torch.zeros(3)), TypeError, "must be a Belief"),
        (lambda: Belief(torch.zeros(3)).kl(Belief(torch.zeros(4))), ValueError, "dirichlet_kl"),
        (lambda: Belief(torch.zeros(3)).update(-torch.ones(3)), ValueError, "not negative, got -1"),
        (lambda: Belief(torch.zeros(3)).update(torch.ones(2)), ValueError, r"shape \(3,\)"),
        (lambda: Belief(torch.zeros(3)).update([1, 2, 3]), TypeError, "`counts`"),
        (lambda: Belief(torch.zeros(3)).abstain(0.5, measure="vibes"), ValueError, "'entropy'"),
        (lambda: Belief(torch.zeros(3)).abstain("0.5"), TypeError, "`threshold`"),
    ],
)
def test_bad_input_is_refused_by_name(call, kind, message):
    with pytest.raises(kind, match=message):
        call()


def test_derivatives_stay_finite_where_values_saturate():
    logits = torch.tensor([[90.0, 0.0], [-1000.0, 0.0], [-89.0, 3.0]], requires_grad=True)
    subject = Belief(logits)
    for value in (subject.precision, subject.alpha, subject.differential_entropy(), subject.variance):
        (gradient,) = torch.autograd.grad(value.sum(), logits, retain_graph=True)
        assert gradient.isfinite().all()


def test_update_has_the_slope_of_bayes_rule_even_at_no_votes():
    logits = torch.randn(3, 4, dtype=DOUBLE)
    counts = torch.zeros(3, 4, dtype=DOUBLE, requires_grad=True)
    (gradient,) = torch.autograd.grad(Belief(logits).update(counts).log_alpha.sum(), counts)
    torch.testing.assert_close(gradient, (-logits).exp())


def test_a_sample_of_nan_leaves_the_others_alone():
    draws = Belief(torch.tensor([[0.0, math.nan], [0.0, 1.0], [math.inf, 0.0]])).sample(3)
    assert draws.isnan().all(0).all(-1).tolist() == [True, False, True]
    assert draws[:, 1].isfinite().all()


def test_whole_numbers_of_numpy_will_do():
    assert Belief(torch.zeros(3), dim=np.int64(0)).sample(np.int64(2)).shape == (2, 3)


@pytest.mark.parametrize(
    "measure", ["entropy", "expected_entropy", "mutual_information", "differential_entropy"]
)
@pytest.mark.parametrize("create_graph", [False, True])
def test_a_hook_on_the_logits_is_called_once(measure, create_graph):
    logits = torch.tensor([[1.0, 2.0, 3.0]], requires_grad=True)
    (plain,) = torch.autograd.grad(getattr(Belief(logits), measure)().sum(), logits)
    logits.register_hook(lambda gradient: 2 * gradient)
    value = getattr(Belief(logits), measure)().sum()
    (hooked,) = torch.autograd.grad(value, logits, create_graph=create_graph)
    torch.testing.assert_close(hooked, 2 * plain)


@pytest.mark.parametrize("level", [-30.0, -8.0, -2.0, 0.0, 2.0, 8.0, 16.0, 22.0])
@pytest.mark.parametrize("lead", [0.0, 0.1, 1.0, 3.0])
def test_probability_of_being_best_of_two_classes_is_a_beta_tail(level, lead):
    """P(p₁ > ½) with p₁ ~ Beta(a, b), leads counted in standard deviations where those are small."""
    step = lead * min(1.0, math.exp(-level / 2))
    a, b = math.exp(level), math.exp(level + step)
    best = Belief(torch.tensor([level, level + step], dtype=torch.float64)).prob_of_being_best()
    exact = 1 - special.betainc(a, b, 0.5)
    assert best[0].item() == pytest.approx(exact, abs=2e-7)
    assert best.sum().item() == pytest.approx(1, abs=1e-12)


def test_probability_of_being_best_agrees_with_simulation():
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
    assert best == pytest.approx(special.ndtr(1.5), abs=1e-3)


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
