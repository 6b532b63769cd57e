"""Belief: the Dirichlet of a network's logits, checked against scipy, torch and closed forms."""

import base64
import io
import math
import re
from xml.etree import ElementTree

import matplotlib.image
import numpy as np
import pytest
import scipy.stats
import torch
from scipy import special
from torch.distributions import Dirichlet, kl_divergence

from beliefmatch import Belief
from beliefmatch.metrics import coverage_at_risk

DOUBLE = torch.float64
ENTROPIES = ("entropy", "expected_entropy", "mutual_information", "differential_entropy")


def random_belief(seed=0, rows=4, classes=5, scale=1.0):
    torch.manual_seed(seed)
    return Belief(2 * torch.randn(rows, classes, dtype=DOUBLE), scale=scale)


# Moments and measures


def test_mean_is_softmax_and_confidence_and_prediction_follow_from_it():
    torch.manual_seed(0)
    logits = torch.randn(4, 5)
    belief = Belief(logits)
    torch.testing.assert_close(belief.probs, logits.softmax(-1))
    torch.testing.assert_close(belief.confidence, logits.softmax(-1).amax(-1))
    assert torch.equal(belief.predictions, logits.argmax(-1))
    torch.testing.assert_close(belief.alpha, logits.exp())
    torch.testing.assert_close(belief.precision, logits.exp().sum(-1))
    torch.testing.assert_close(belief.log_precision, logits.logsumexp(-1))
    assert repr(Belief(torch.zeros(2, 3))) == "Belief(classes=3, shape=(2, 3), dim=1)"


def test_scale_changes_the_spread_and_not_the_mean():
    wide, narrow = random_belief(scale=0.01), random_belief(scale=1.0)
    torch.testing.assert_close(wide.probs, narrow.probs)
    torch.testing.assert_close(wide.alpha, 0.01 * narrow.alpha)
    assert (wide.variance > narrow.variance).all()
    assert (wide.mutual_information() > narrow.mutual_information()).all()


def test_variance_covariance_and_divergence_match_torch_and_scipy():
    belief, other = random_belief(seed=0), random_belief(seed=1)
    exact = Dirichlet(belief.alpha)
    torch.testing.assert_close(belief.variance, exact.variance, rtol=1e-12, atol=0)
    covariance = belief.covariance
    for row in range(4):
        expected = scipy.stats.dirichlet.cov(belief.alpha[row].numpy())
        np.testing.assert_allclose(covariance[row].numpy(), expected, rtol=1e-12)
    assert covariance.sum(-1).abs().max() < 8 * torch.finfo(DOUBLE).eps * covariance.abs().max()
    divergence = kl_divergence(exact, Dirichlet(other.alpha))
    torch.testing.assert_close(belief.kl(other), divergence, rtol=1e-9, atol=1e-9)


def test_variance_of_a_dominating_class_keeps_its_digits():
    share = math.exp(-18) + math.exp(-20)
    expected = share / (1 + share) ** 2 / (2 + share)
    variance = Belief(torch.tensor([[0.0, -18.0, -20.0]])).variance[0, 0]
    assert variance.item() == pytest.approx(expected, rel=1e-6)


def test_measures_keep_their_bounds():
    torch.manual_seed(0)
    belief = Belief(30 * torch.randn(50, 7))
    for entropy in (belief.entropy(), belief.expected_entropy()):
        assert ((entropy >= 0) & (entropy <= math.log(7) * (1 + 1e-6))).all()
    assert (belief.mutual_information() >= 0).all()
    assert (belief.differential_entropy() <= -math.lgamma(7) * (1 - 1e-6)).all()
    assert ((belief.variance >= 0) & (belief.variance <= 0.25)).all()
    uniform = Belief(torch.zeros(7)).differential_entropy().item()
    assert uniform == pytest.approx(-math.lgamma(7), rel=1e-6)


def test_half_precision_is_computed_in_single():
    logits = torch.randn(3, 4).bfloat16()
    assert Belief(logits).probs.dtype == torch.float32
    torch.testing.assert_close(Belief(logits).entropy(), Belief(logits.float()).entropy())


def test_measures_carry_gradients_which_stay_finite_where_values_saturate():
    logits = torch.tensor([[90.0, 0.0], [-1000.0, 0.0], [-89.0, 3.0], [0.3, 0.1]], requires_grad=True)
    belief = Belief(logits)
    measures = (belief.variance, belief.mutual_information(), belief.differential_entropy())
    for value in (belief.precision, belief.alpha, *measures):
        (gradient,) = torch.autograd.grad(value.sum(), logits, retain_graph=True)
        assert gradient.isfinite().all() and gradient[-1].any()


@pytest.mark.parametrize("measure", ENTROPIES)
@pytest.mark.parametrize("create_graph", [False, True])
def test_a_hook_on_the_logits_is_called_once(measure, create_graph):
    logits = torch.tensor([[1.0, 2.0, 3.0]], requires_grad=True)
    (plain,) = torch.autograd.grad(getattr(Belief(logits), measure)().sum(), logits)
    logits.register_hook(lambda gradient: 2 * gradient)
    value = getattr(Belief(logits), measure)().sum()
    (hooked,) = torch.autograd.grad(value, logits, create_graph=create_graph)
    torch.testing.assert_close(hooked, 2 * plain)


def test_any_dimension_can_hold_the_classes():
    torch.manual_seed(0)
    logits = torch.randn(2, 3, 4, dtype=DOUBLE)
    along, last = Belief(logits, dim=1), Belief(logits.movedim(1, -1))
    for name in ("confidence", "predictions", "precision", "covariance"):
        torch.testing.assert_close(getattr(along, name), getattr(last, name))
    for name in ENTROPIES:
        torch.testing.assert_close(getattr(along, name)(), getattr(last, name)())
    for ours, expected in (
        (along.variance, last.variance),
        (along.prob_of_being_best(), last.prob_of_being_best()),
        *zip(along.credible_interval(), last.credible_interval(), strict=True),
    ):
        torch.testing.assert_close(ours.movedim(1, -1), expected)
    points = logits.softmax(1)
    torch.testing.assert_close(along.log_prob(points), last.log_prob(points.movedim(1, -1)))
    torch.testing.assert_close(along.kl(Belief(0 * logits, dim=1)), last.kl(Belief(torch.zeros(3))))
    assert along.sample(7).shape == (7, 2, 3, 4)
    assert along.update(torch.ones(2, 3, 4)).dim == 1
    distribution = along.to_distribution()
    assert distribution.batch_shape == (2, 4) and distribution.event_shape == (3,)
    torch.testing.assert_close(distribution.mean.movedim(-1, 1), along.probs)


# Credible intervals


@pytest.mark.parametrize("level", [0.5, 0.9, 0.99])
def test_credible_interval_is_that_of_the_beta_marginal(level):
    belief = random_belief()
    alpha = belief.alpha.numpy()
    rest = alpha.sum(-1, keepdims=True) - alpha
    for end, tail in zip(belief.credible_interval(level), (0.5 - level / 2, 0.5 + level / 2), strict=True):
        np.testing.assert_allclose(end, scipy.stats.beta.ppf(tail, alpha, rest), rtol=1e-9)


def test_credible_interval_holds_its_share_of_samples():
    torch.manual_seed(1)
    belief = Belief(torch.randn(3, 4))
    lower, upper = belief.credible_interval(0.8)
    draws = belief.sample(20_000)
    held = ((draws >= lower) & (draws <= upper)).double().mean(0)
    assert (held - 0.8).abs().max() < 0.015  # five standard errors


def test_credible_interval_is_defined_at_the_extremes():
    logits = torch.tensor([[300.0, 0.0, -300.0], [-300.0, -300.0, -300.0], [80.0, 80.0, 80.0]])
    lower, upper = Belief(logits).credible_interval()
    assert lower.isfinite().all() and upper.isfinite().all() and (lower <= upper).all()
    torch.testing.assert_close(lower[2], torch.full((3,), 1 / 3))
    assert lower[0].tolist() == [1.0, 0.0, 0.0] and upper[1].tolist() == [1.0, 1.0, 1.0]


def test_credible_interval_is_continuous_where_the_normal_approximation_takes_over():
    edge, widths = math.log(1e12), []
    for logit in (edge - 0.01, edge + 0.01):
        lower, upper = Belief(torch.tensor([logit, logit], dtype=DOUBLE)).credible_interval()
        widths.append((upper - lower)[0].item())
    assert widths[1] / widths[0] == pytest.approx(math.exp(-0.01), rel=1e-4)


# Samples and density


def test_samples_have_the_mean_and_covariance_of_the_belief_and_repeat_with_the_seed():
    belief = random_belief(rows=3, classes=4)
    torch.manual_seed(0)
    draws = belief.sample(100_000)
    assert draws.shape == (100_000, 3, 4)
    torch.testing.assert_close(draws.sum(-1), torch.ones(100_000, 3, dtype=DOUBLE))
    torch.testing.assert_close(draws.mean(0), belief.probs, rtol=0, atol=7e-3)
    for row in range(3):
        covariance = torch.cov(draws[:, row].T)
        torch.testing.assert_close(covariance, belief.covariance[row], rtol=0, atol=3e-3)
    torch.manual_seed(0)
    assert torch.equal(belief.sample(100_000), draws)


def test_samples_at_tiny_concentrations_are_corners_drawn_by_the_mean():
    torch.manual_seed(0)
    draws = Belief(torch.tensor([-30.0, -30.0 + math.log(3.0)])).sample(20_000)
    assert draws.isfinite().all() and (draws.amax(-1) > 1 - 1e-6).all()
    assert draws[:, 1].mean().item() == pytest.approx(0.75, abs=0.015)


@pytest.mark.parametrize(
    "log_alpha",
    [
        (-1000.0, -990.0),
        (-1000.0, -999.0, -998.5),
        (-650.0, -649.0, -3000.0),
        (-1e5, -1e5 + 0.5),
        (-590.0, -588.0, -800.0),
        (0.0, -700.0),
        (610.0, 605.0, 609.0),
        (570.0, 567.0, 565.0),
        (1e5, 1e5 - 1, -1e5),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_samples_have_the_mean_of_the_belief_where_concentrations_overflow(log_alpha, dtype):
    belief = Belief(torch.tensor(log_alpha, dtype=dtype))
    draws = belief.sample(20_000).double()
    torch.testing.assert_close(draws.sum(-1), torch.ones(20_000, dtype=DOUBLE), rtol=0, atol=1e-6)
    probs = belief.probs.double()
    allowed = 5 * (belief.variance.double() / 20_000).sqrt() + 1e-6  # five standard errors, and rounding
    assert ((draws.mean(0) - probs).abs() <= allowed).all()


def test_nan_in_a_row_leaves_the_samples_of_others_alone():
    draws = Belief(torch.tensor([[0.0, math.nan], [0.0, 1.0], [math.inf, 0.0]])).sample(3)
    assert draws.isnan().all(0).all(-1).tolist() == [True, False, True]
    assert draws[:, 1].isfinite().all()


def test_log_prob_matches_torch_and_stays_right_where_torch_does_not():
    belief = random_belief()
    points = Dirichlet(belief.alpha).sample()
    exact = Dirichlet(belief.alpha).log_prob(points)
    torch.testing.assert_close(belief.log_prob(points), exact, rtol=1e-10, atol=1e-10)
    # At α = e^30 the density at the mean is that of a normal with the belief's covariance.
    value = Belief(torch.full((3,), 30.0)).log_prob(torch.full((3,), 1 / 3)).item()
    covariance = 1 / (9 * (3 * math.exp(30) + 1))
    expected = -math.log(2 * math.pi) - 0.5 * math.log(3 * covariance**2)
    assert value == pytest.approx(expected, rel=1e-7)


def test_density_integrates_to_one():
    nodes, weights = np.polynomial.legendre.leggauss(200)
    first = torch.from_numpy(0.5 * (nodes + 1))
    density = Belief(torch.tensor([0.7, 1.1], dtype=DOUBLE)).log_prob(torch.stack([first, 1 - first], -1))
    assert (density.exp() * torch.from_numpy(0.5 * weights)).sum().item() == pytest.approx(1, rel=1e-6)


def test_density_on_the_boundary_is_zero_or_infinite():
    belief = Belief(torch.tensor([[1.0, 1.0, 1.0], [-1.0, 1.0, 1.0], [0.0, 0.0, 0.0]]))
    edge = belief.log_prob(torch.tensor([0.0, 0.5, 0.5]))
    assert edge.tolist() == [-math.inf, math.inf, pytest.approx(math.log(2.0))]


# Bayes' rule and abstention


def test_update_is_bayes_rule_and_adds_up():
    belief = random_belief()
    first, second = torch.randint(0, 5, (2, 4, 5))
    together, apart = belief.update(first + second), belief.update(first).update(second)
    torch.testing.assert_close(together.alpha, belief.alpha + first + second)
    torch.testing.assert_close(together.alpha, apart.alpha)
    torch.testing.assert_close(belief.update(torch.zeros(4, 5)).alpha, belief.alpha)


def test_votes_make_the_belief_surer():
    belief = random_belief(rows=3)
    updated = belief.update(torch.zeros(3, 5).index_fill(1, torch.tensor([2]), 1000.0))
    assert (updated.predictions == 2).all() and (updated.confidence > 0.9).all()
    assert (updated.mutual_information() < belief.mutual_information()).all()


def test_the_gradient_of_an_update_is_right_even_without_votes():
    logits = torch.randn(3, 4, dtype=DOUBLE)
    counts = torch.zeros(3, 4, dtype=DOUBLE, requires_grad=True)
    (gradient,) = torch.autograd.grad(Belief(logits).update(counts).log_alpha.sum(), counts)
    torch.testing.assert_close(gradient, (-logits).exp())


@pytest.mark.parametrize(
    ("measure", "threshold", "abstains"),
    [
        ("confidence", 0.9, [False, True, True]),
        ("precision", 100.0, [False, True, False]),
        ("entropy", 0.5, [False, True, True]),
        ("expected_entropy", 0.5, [False, True, True]),
        ("mutual_information", 0.1, [False, True, False]),
        ("differential_entropy", -1.5, [False, True, False]),
    ],
)
def test_abstains_on_the_doubtful_side_of_each_measure_and_on_nan(measure, threshold, abstains):
    rows = [[5.0, 0.0, 0.0], [0.0, 0.0, 0.1], [9.0, 9.0, 9.0], [math.nan, 0.0, 0.0]]
    assert Belief(torch.tensor(rows)).abstain(threshold, measure=measure).tolist() == [*abstains, True]


def calibrated(seed, rows, classes=3, lead=6.0):
    """Logits in favour of one class, more or less, and class ids drawn from their probabilities."""
    chance = torch.Generator().manual_seed(seed)
    favoured = torch.eye(classes)[torch.randint(classes, (rows,), generator=chance)]
    logits = lead * torch.rand(rows, 1, generator=chance) * favoured
    return logits, torch.multinomial(logits.softmax(1), 1, generator=chance)[:, 0]


@pytest.mark.parametrize("measure", ["confidence", "precision", "entropy", "mutual_information"])
def test_a_risk_bounds_the_error_among_future_answers_by_any_measure(measure):
    logits, targets = calibrated(0, 4000)
    new, truth = calibrated(1, 20_000)
    answered = ~Belief(new).abstain(risk=0.05, calibration=(logits, targets), measure=measure)
    wrong = new.argmax(1) != truth
    assert wrong.double().mean() > 0.1
    assert answered.double().mean() > 0.1
    assert wrong[answered].double().mean() <= 0.05


def test_the_threshold_of_a_risk_is_that_of_coverage_at_risk():
    logits, targets = calibrated(2, 3000)
    held_out, new = Belief(logits), Belief(calibrated(3, 500)[0])
    found = coverage_at_risk(held_out.confidence, held_out.predictions == targets, risk=0.1, delta=0.2)
    given = new.abstain(risk=0.1, delta=0.2, calibration=(held_out, targets))
    assert torch.equal(given, new.abstain(found.threshold))
    assert 0 < given.sum() < 500


def test_a_risk_that_no_threshold_keeps_abstains_from_everything_with_a_warning():
    logits, targets = calibrated(4, 50)
    with pytest.warns(UserWarning, match="^Belief.abstain: no threshold"):
        assert Belief(logits).abstain(risk=0.01, calibration=(logits, targets)).all()


# Batches

BATCH = torch.arange(2 * 5 * 4 * 6, dtype=DOUBLE).reshape(2, 5, 4, 6).sin()  # 5 classes along dim 1


def test_a_belief_without_values_has_a_text_in_place_of_its_picture():
    belief = Belief(torch.zeros(2, 3, device="meta"))
    assert repr(belief) in belief._repr_html_()


@pytest.mark.parametrize(
    "index",
    [
        0,
        -1,
        slice(1),
        (slice(None), 2),
        (..., 3),
        (1, ..., slice(1, 4)),
        (slice(None), slice(None, None, 2), 0),
        (None, 1),
        torch.tensor([1, 0, 1]),
        [1, 1],
        np.array([True, False]),
        (slice(None), torch.tensor([3, 0])),
        (slice(None), torch.tensor([3, 0]), torch.tensor([5, 5])),
        (torch.tensor([1, 0]), slice(None), torch.tensor([5, 5])),
        (torch.zeros(2, 3).long(), 1),
        (1, torch.tensor([[0, 1], [2, 3]])),
        BATCH[:, 0] > 0,
        (1, BATCH[0, 0] > 0),
        (0, 1, 2),
        (),
        [],
        torch.tensor(1),
    ],
)
def test_an_index_is_that_of_a_tensor_of_the_batch_shape(index):
    belief = Belief(BATCH, dim=1)
    chosen = belief[index]
    own = tuple(torch.as_tensor(one) if isinstance(one, list | np.ndarray) else one
                for one in (index if isinstance(index, tuple) else (index,)))  # fmt: skip
    own = (
        torch.zeros(0, dtype=torch.long) if isinstance(index, list) and not index else own
    )  # torch takes an empty list for a mask
    assert torch.equal(chosen.predictions, belief.predictions[own])
    assert torch.equal(chosen.entropy(), belief.entropy()[own])
    assert chosen.num_classes == 5 and chosen.batch_shape == belief.entropy()[own].shape


@pytest.mark.parametrize(
    ("index", "shape"),
    [
        (0, (5, 4, 6)),
        (slice(1), (1, 5, 4, 6)),
        ((slice(None), 1), (2, 5, 6)),
        ((..., 1), (2, 5, 4)),
        ([0, 1, 1], (3, 5, 4, 6)),
        (torch.ones(2, 4, 6, dtype=torch.bool), (48, 5)),
    ],
)
def test_an_index_leaves_the_classes_at_their_place_among_the_rest(index, shape):
    assert Belief(BATCH, dim=1)[index].log_alpha.shape == shape


def test_length_and_iteration_go_along_the_first_batch_dimension():
    belief = Belief(BATCH.movedim(1, 0), dim=0)
    assert len(belief) == 2
    assert [one.batch_shape for one in belief] == [(4, 6), (4, 6)]
    again = Belief.stack(list(belief))
    assert torch.equal(again.entropy(), belief.entropy()) and again.num_classes == 5
    assert Belief(torch.zeros(0, 3)) and len(Belief(torch.zeros(0, 3))) == 0
    with pytest.raises(TypeError, match="length"):
        len(Belief(torch.zeros(3)))
    with pytest.raises(TypeError, match="length"):
        list(Belief(torch.zeros(3)))


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_parts_are_put_together_again_along_each_batch_dimension(dim):
    belief = Belief(BATCH, dim=1)
    at = [slice(None)] * 3
    parts = []
    for cut in (slice(0, 1), slice(1, None)):
        at[dim] = cut
        parts.append(belief[tuple(at)])
    joined = Belief.cat(parts, dim=dim)
    assert joined.dim == 1 and torch.equal(joined.log_alpha, BATCH)
    at[dim] = 0
    one = belief[tuple(at)]
    stacked = Belief.stack([one, one], dim=dim)
    assert torch.equal(stacked.entropy(), torch.stack([one.entropy(), one.entropy()], dim))


def test_beliefs_of_other_layouts_are_joined_by_their_meaning():
    rows, columns = Belief(BATCH[0, :, :, 0].T), Belief(BATCH[1, :, :, 0], dim=0)
    joined = Belief.cat([rows, columns])
    assert joined.dim == 1
    assert torch.equal(joined.predictions, torch.cat([rows.predictions, columns.predictions]))


def test_moving_keeps_the_belief_and_its_gradient():
    logits = torch.randn(3, 4, requires_grad=True)
    belief = Belief(logits, scale=0.5).to(torch.float64)
    assert belief.log_alpha.dtype == torch.float64 and belief.cpu().log_alpha.device.type == "cpu"
    belief[1].entropy().backward()
    assert logits.grad is not None and logits.grad[1].any() and not logits.grad[0].any()
    assert not belief.detach().log_alpha.requires_grad
    assert belief.to(torch.float16).log_alpha.dtype == torch.float32
    assert belief.to("meta").log_alpha.device.type == "meta"


# In a notebook


def svgs(html):
    """Every drawing, parsed: what is no XML is an error."""
    ElementTree.fromstring(html.replace("<br>", "<br/>"))  # the whole is well-formed too
    return [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", html, re.DOTALL)]


def test_a_notebook_shows_the_density_of_three_classes_at_its_place():
    drawing = svgs(Belief(torch.tensor([[4.0, 0.0, 0.0], [0.0, 4.0, 0.0], [0.0, 0.0, 4.0]]))._repr_html_())
    assert len(drawing) == 3
    dots = [next(one.iter("circle")) for one in drawing]
    x, y = ([float(dot.get(axis)) for dot in dots] for axis in ("cx", "cy"))
    assert x[0] < x[2] < x[1] and y[2] < min(y[0], y[1])  # class 0 left, 1 right, 2 on top
    data = next(drawing[0].iter("image")).get("href").removeprefix("data:image/png;base64,")
    picture = matplotlib.image.imread(io.BytesIO(base64.b64decode(data)))
    rows, columns = np.nonzero(picture[..., 3] > 0.5)
    assert len(rows) and columns.max() < 0.2 * picture.shape[1] and rows.min() > 0.8 * picture.shape[0]


def test_bars_of_other_beliefs_are_their_largest_probabilities():
    belief = Belief(torch.tensor([0.0, 3.0, 1.0, 2.0, -1.0, -2.0, 2.5]))
    (drawing,) = svgs(belief._repr_html_())
    widths = [float(one.get("width")) for one in drawing.iter("rect")]
    lengths = [width / widths[0] for width in widths[1::2]]
    assert lengths == pytest.approx(belief.probs.sort(descending=True).values[:5].tolist(), abs=1e-3)
    assert "2 others" in "".join(drawing.itertext())


def test_a_notebook_shows_few_items_of_a_large_batch_and_says_how_many_are_left():
    html = Belief(torch.zeros(40, 4, 5), dim=1)._repr_html_()
    assert len(svgs(html)) == 6 and "194 more" in html and "[0, 4]" in html
    assert len(html) < 100_000


@pytest.mark.parametrize("level", [-1e30, -300.0, 0.0, 80.0, 1e30, math.nan, math.inf])
@pytest.mark.parametrize("classes", [1, 2, 3, 4])
def test_a_notebook_shows_beliefs_at_the_extremes_and_of_nothing(level, classes):
    html = Belief(torch.full((2, classes), level))._repr_html_()
    assert len(svgs(html)) == 2 and "nan" not in html.replace("not a number", "").lower().split("base64")[0]
    assert not svgs(Belief(torch.zeros(0, classes))._repr_html_())


# The probability of being the best class


@pytest.mark.parametrize("level", [-30.0, -8.0, -2.0, 0.0, 2.0, 8.0, 16.0, 22.0])
@pytest.mark.parametrize("lead", [0.0, 0.1, 1.0, 3.0])
def test_probability_of_being_best_of_two_classes_is_a_beta_tail(level, lead):
    """P(p₁ > ½) with p₁ ~ Beta(a, b), leads counted in standard deviations where those are small."""
    step = lead * min(1.0, math.exp(-level / 2))
    best = Belief(torch.tensor([level, level + step], dtype=DOUBLE)).prob_of_being_best()
    exact = 1 - special.betainc(math.exp(level), math.exp(level + step), 0.5)
    assert best[0].item() == pytest.approx(exact, abs=2e-7)
    assert best.sum().item() == pytest.approx(1, abs=1e-12)


def test_probability_of_being_best_agrees_with_simulation():
    torch.manual_seed(0)
    belief = Belief(2 * torch.randn(4, 6))
    draws = belief.sample(100_000).argmax(-1)
    frequency = torch.nn.functional.one_hot(draws, 6).double().mean(0)
    torch.testing.assert_close(belief.prob_of_being_best().double(), frequency, rtol=0, atol=8e-3)


def test_probability_of_being_best_at_the_extremes():
    """At tiny concentrations it is the mean, at large ones the order, in between a lead in deviations."""
    logits = torch.tensor([0.3, 0.0, -0.4], dtype=DOUBLE)
    vague, sure = Belief(logits - 25), Belief(logits + 40)
    torch.testing.assert_close(vague.prob_of_being_best(), vague.probs, rtol=1e-8, atol=1e-9)
    assert sure.prob_of_being_best().tolist() == pytest.approx([1.0, 0.0, 0.0], abs=1e-7)
    lead = 1.5 * math.exp(-50.0 / 2) * math.sqrt(2)
    best = Belief(torch.tensor([50.0 + lead, 50.0], dtype=DOUBLE)).prob_of_being_best()[0].item()
    assert best == pytest.approx(special.ndtr(1.5), abs=1e-3)
    for level in (-1e30, -500.0, 0.0, 80.0, 1e30):
        ties = Belief(torch.full((3, 5), level)).prob_of_being_best()
        torch.testing.assert_close(ties, torch.full((3, 5), 0.2), rtol=1e-5, atol=0)


def test_probability_of_being_best_of_many_classes_of_no_rows_and_of_nan():
    best = Belief(torch.randn(2, 3000)).prob_of_being_best()
    torch.testing.assert_close(best.sum(-1), torch.ones(2))
    assert Belief(torch.zeros(0, 3)).prob_of_being_best().shape == (0, 3)
    assert Belief(torch.tensor([math.nan, 0.0])).prob_of_being_best().isnan().all()
    assert Belief(torch.zeros(3)).prob_of_being_best().shape == (3,)


# Arguments

THREE, IMAGES = Belief(torch.zeros(3)), Belief(torch.zeros(2, 3, 4), dim=1)
CALIBRATION = (torch.zeros(4, 3), torch.zeros(4).long())
NAN_LOGITS = torch.tensor([math.nan, 0.0])


def test_integers_of_numpy_are_accepted():
    assert Belief(torch.zeros(3), dim=np.int64(0)).sample(np.int64(2)).shape == (2, 3)


@pytest.mark.parametrize(
    ("call", "kind", "named"),
    [
        (lambda: Belief(torch.zeros(3).long()), TypeError, "Belief: `logits`"),
        (lambda: Belief(torch.tensor(1.0)), ValueError, "Belief: `logits`"),
        (lambda: Belief(torch.zeros(3, 0)), ValueError, "Belief: `logits`"),
        (lambda: Belief(torch.zeros(3, 2), dim=2), ValueError, "Belief: `logits`"),
        (lambda: Belief(torch.zeros(3), dim="x"), TypeError, "Belief: `dim`"),
        (lambda: Belief(torch.zeros(3), scale=0.0), ValueError, "Belief: `scale`"),
        (lambda: Belief(torch.zeros(3), scale=math.nan), ValueError, "Belief: `scale`"),
        (lambda: THREE.credible_interval(1.0), ValueError, "Belief.credible_interval: `level`"),
        (lambda: THREE.sample(0), ValueError, "Belief.sample: `n`"),
        (lambda: THREE.sample(True), TypeError, "Belief.sample: `n`"),
        (lambda: THREE.log_prob(torch.ones(3)), ValueError, "Belief.log_prob: `p`"),
        (lambda: THREE.log_prob(torch.ones(2) / 2), ValueError, "Belief.log_prob: `p`"),
        (lambda: THREE.log_prob(torch.tensor([1.5, -0.5, 0.0])), ValueError, "Belief.log_prob: `p`"),
        (lambda: IMAGES.log_prob(torch.ones(5, 3) / 3), ValueError, "Belief.log_prob: `p`"),
        (lambda: IMAGES.log_prob(torch.ones(3) / 3), ValueError, "Belief.log_prob: `p`"),
        (lambda: THREE.log_prob(torch.ones(3, device="meta") / 3), ValueError, "Belief.log_prob: `p`"),
        (lambda: THREE.kl(torch.zeros(3)), TypeError, "Belief.kl: `other`"),
        (lambda: THREE.kl(Belief(torch.zeros(4))), ValueError, "dirichlet_kl: .*`q_logits`"),
        (lambda: THREE.update(-torch.ones(3)), ValueError, "Belief.update: `counts`"),
        (lambda: THREE.update(torch.ones(2)), ValueError, "Belief.update: `counts`"),
        (lambda: THREE.update([1, 2, 3]), TypeError, "Belief.update: `counts`"),
        (lambda: THREE.update(torch.ones(3, device="meta")), ValueError, "Belief.update: `counts`"),
        (lambda: THREE.abstain(0.5, measure="vibes"), ValueError, "Belief.abstain: `measure`"),
        (lambda: THREE.abstain("0.5"), TypeError, "Belief.abstain: `threshold`"),
        (lambda: THREE.abstain(90), ValueError, "Belief.abstain: `threshold` must be a probability"),
        (lambda: THREE.abstain(-0.1), ValueError, "Belief.abstain: `threshold`"),
        (lambda: THREE.abstain(), ValueError, "Belief.abstain: `threshold`"),
        (lambda: THREE.abstain(0.5, risk=0.1), ValueError, "Belief.abstain: `threshold`"),
        (lambda: THREE.abstain(risk=0.1), ValueError, "Belief.abstain: `threshold`"),
        (lambda: THREE.abstain(0.5, calibration=CALIBRATION), ValueError, "Belief.abstain: `threshold`"),
        (
            lambda: THREE.abstain(risk=0.1, calibration=(torch.zeros(4, 3), torch.full((4,), 3))),
            ValueError,
            "Belief.abstain: `calibration`",
        ),
        (
            lambda: THREE.abstain(risk=0.1, calibration=(torch.zeros(4, 5), torch.zeros(4).long())),
            ValueError,
            "Belief.abstain: `calibration`",
        ),
        (lambda: THREE.abstain(risk=1, calibration=CALIBRATION), ValueError, "Belief.abstain: `risk`"),
        (lambda: THREE.abstain(risk="1", calibration=CALIBRATION), TypeError, "Belief.abstain: `risk`"),
        (
            lambda: THREE.abstain(risk=0.1, delta=0, calibration=CALIBRATION),
            ValueError,
            "Belief.abstain: `delta`",
        ),
        (lambda: THREE.abstain(0.5, delta=0.1), ValueError, "Belief.abstain: `delta`"),
        *(
            (lambda bad=bad: THREE.abstain(risk=0.1, calibration=bad), kind, "Belief.abstain: `calibration`")
            for bad, kind in [
                (torch.zeros(4, 3), TypeError),
                ((torch.zeros(4, 3), torch.zeros(3).long()), ValueError),
                ((torch.zeros(4, 3), torch.zeros(4)), TypeError),
                ((torch.zeros(4, 3), [0, 1, 2, 0]), TypeError),
                (([[0.0, 0.0]], torch.zeros(1).long()), TypeError),
                ((torch.full((4, 3), math.nan), torch.zeros(4).long()), ValueError),
            ]
        ),
        (lambda: THREE[0], IndexError, r"Belief: `\[\]`"),
        (lambda: IMAGES[2], IndexError, r"Belief: `\[\]`"),
        (lambda: IMAGES[0, 0, 0], IndexError, r"Belief: `\[\]`"),
        (lambda: IMAGES[..., ...], IndexError, r"Belief: `\[\]`"),
        (lambda: IMAGES[True], IndexError, r"Belief: `\[\]`"),
        (lambda: IMAGES[torch.tensor(True)], IndexError, r"Belief: `\[\]` .*bool"),
        (lambda: IMAGES[np.array(True)], IndexError, r"Belief: `\[\]` .*bool"),
        (lambda: IMAGES[np.True_], IndexError, r"Belief: `\[\]` .*bool"),
        (lambda: IMAGES[::-1], IndexError, r"Belief: `\[\]` .*positive step"),
        (lambda: IMAGES[torch.ones(3, dtype=torch.bool)], IndexError, r"Belief: `\[\]`"),
        (lambda: IMAGES["a"], (IndexError, TypeError), r"Belief: `\[\]`"),
        (lambda: Belief.cat([]), TypeError, "Belief.cat: `beliefs`"),
        (lambda: Belief.cat(IMAGES), TypeError, "Belief.cat: `beliefs`"),
        (lambda: Belief.cat([torch.zeros(3)]), TypeError, "Belief.cat: `beliefs`"),
        (lambda: Belief.cat([THREE]), ValueError, "Belief.cat: `dim`"),
        (lambda: Belief.cat([IMAGES, Belief(torch.zeros(2, 4))]), ValueError, "Belief.cat: `beliefs`"),
        (lambda: Belief.stack([THREE, IMAGES]), ValueError, "Belief.stack: `beliefs`"),
        (lambda: Belief.stack([THREE], dim=1), ValueError, "Belief.stack: `dim`"),
        (lambda: THREE.to(torch.int64), TypeError, "Belief: `logits`"),
        (lambda: Belief(NAN_LOGITS).to_distribution(), ValueError, "Belief.to_distribution: `logits`"),
    ],
)
def test_an_invalid_argument_is_named(call, kind, named):
    with pytest.raises(kind, match=f"^{named}"):
        call()
