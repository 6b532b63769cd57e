"""Intervals and paired differences: resampling by hand, theory, coverage in simulation, limits."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from metric_cases import METRICS, N_BINS, K
from scipy import stats
from sklearn.metrics import roc_auc_score

from beliefmatch.metrics import (
    area_difference,
    aupr,
    aupr_interval,
    aurc,
    auroc,
    auroc_difference,
    auroc_interval,
    binomial_interval,
    bootstrap,
    bootstrap_differences,
    bootstrap_outcomes,
    delong,
    detection_area,
    detection_intervals,
    excess_aurc,
    fpr_at_tpr,
    fpr_at_tpr_interval,
    outcomes,
)
from beliefmatch.metrics.intervals import (
    OutcomeSums,
    _weights,
    enough_resamples,
    interval,
    resample_outcomes,
)
from beliefmatch.resampling import bias_corrected, fewest_that_differ, paired_difference
from forecasts import answers, forecast, seeds

OF_PROBS = {
    **{name: case.metric for name, case in METRICS.items() if name not in ("brier_parts", "classwise_ece")},
    "overconfidence": lambda p, y: METRICS["overconfidence"].metric(p, y).signed,
    "mean_confidence": lambda p, y: p.amax(1).mean().item(),
    "mean_entropy": lambda p, y: torch.special.entr(p).sum(1).mean().item(),
    "excess_aurc": lambda p, y: excess_aurc(p.amax(1), p.argmax(1) == y),
}
N, DRAWS = 300, 60


def coarse_forecast(examples, seed):
    """Probabilities in eighths, so that confidences tie."""
    logits, _, targets = forecast(examples, 4, seed)
    probs = (8 * logits.softmax(1)).floor()
    probs[:, 0] += 8 - probs.sum(1)
    return probs / 8, targets


def counted(rows, size):
    """How often each of `size` columns occurs in each row."""
    return torch.stack([torch.bincount(row, minlength=size) for row in rows]).double()


@given(st.integers(1, 40), st.booleans(), seeds)
@settings(max_examples=30, deadline=None)
def test_weights_are_as_good_as_copies(examples, ties, seed):
    """Every metric of weighted examples equals that of examples repeated as often."""
    probs, targets = coarse_forecast(examples, seed) if ties else forecast(examples, 4, seed)[1:]
    rows = torch.randint(examples, (3, examples), generator=torch.Generator().manual_seed(seed))
    sums = OutcomeSums(outcomes(targets, probs=probs), K, N_BINS)
    found = sums(counted(rows, examples)[:, sums.order])
    assert set(found) == set(OF_PROBS)
    for name, metric in OF_PROBS.items():
        expected = [metric(probs[drawn], targets[drawn]) for drawn in rows]
        tolerance = 1e-7 if name == "debiased_ece" else 1e-10  # a root of what may be nearly zero
        assert found[name].tolist() == pytest.approx(expected, abs=tolerance), name


def test_blocks_of_like_confidence_move_draws_by_a_twentieth_of_their_spread_at_most():
    """Of five thousand examples, which are merged into blocks, against the plain functions."""
    _, probs, targets = forecast(5000, 4, seed=4)
    drawn = resample_outcomes(outcomes(targets, probs=probs), top_k=K, n_bins=N_BINS, resamples=40, seed=7)
    rows = drawn_rows(5000, 40, seed=7)
    for name in ("ece", "mce", "adaptive_ece", "debiased_ece", "aurc", "excess_aurc"):
        expected = np.array([OF_PROBS[name](probs[row], targets[row]) for row in rows])
        moved = drawn.draws[name].numpy() - expected
        assert np.sqrt((moved**2).mean()) < 0.05 * expected.std(), name


@pytest.mark.parametrize("examples", [1, 3, 50, 400])
def test_examples_are_drawn_with_replacement(examples):
    """How often each is drawn has the mean, variance, covariance and tail of a multinomial distribution."""
    weights = torch.cat(list(_weights(torch.arange(examples), 20_000, 0))).numpy()
    assert (weights.sum(1) == examples).all()
    assert (weights[:, 0] >= 2).mean() == pytest.approx(stats.binom.sf(1, examples, 1 / examples), abs=0.01)
    covariance = np.atleast_2d(np.cov(weights[:, :3].T))
    expected = np.eye(len(covariance)) - 1 / examples
    np.testing.assert_allclose(covariance, expected, atol=0.04)
    np.testing.assert_allclose(weights.mean(0), 1, atol=0.04)


# Intervals


@pytest.mark.parametrize("name", ["nll", "brier", "ece", "adaptive_ece", "aurc", "overconfidence"])
def test_intervals_agree_with_an_ordinary_bootstrap(name):
    """To 5 % of the width, of ten thousand resamples."""
    _, probs, targets = forecast(400, 4, seed=1)
    found = bootstrap_outcomes(outcomes(targets, probs=probs), top_k=K, n_bins=N_BINS)[name]
    plain = bootstrap(OF_PROBS[name], [probs, targets], resamples=10_000, seed=2)
    assert found == pytest.approx(plain, abs=0.05 * (plain.high - plain.low))


def exact_draws(seen, resamples, seed):
    """Every metric on every draw, without counting like confidences together."""
    sums = OutcomeSums(seen, K, N_BINS, merge=False)
    parts = [sums(weights) for weights in _weights(sums.order, resamples, seed)]
    return {name: torch.cat([part[name] for part in parts]).numpy() for name in parts[0]}


def apart(one, other):
    """Largest distance of two ends, in widths of the other interval."""
    far = max(abs(one.low - other.low), abs(one.high - other.high))
    return far / (other.high - other.low) if far else 0.0


@pytest.mark.parametrize("scale", [1.0, 1.6])
def test_all_intervals_agree_with_a_bootstrap_of_ten_thousand_as_far_as_bootstraps_do(scale):
    """To 5 % of the width. Of a calibrated model nearly all draws of a calibration error lie above its value,
    so that its interval hangs on the few least ones: there 4000 plain draws are as far from 10,000.
    """
    generator = torch.Generator().manual_seed(5)
    logits = 2 * torch.randn(2000, 10, generator=generator, dtype=torch.float64)
    targets = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    seen = outcomes(targets, logits=scale * logits)
    found = bootstrap_outcomes(seen, top_k=K, n_bins=N_BINS)
    many = exact_draws(seen, 10_000, 11)
    fewer = [exact_draws(seen, 4000, seed) for seed in (12, 13, 14)]
    for name, one in found.items():
        expected, bound = interval(one.value, many[name], 0.95), 0.05
        if name in ("ece", "mce", "adaptive_ece", "debiased_ece"):
            chance = max(apart(interval(one.value, draws[name], 0.95), expected) for draws in fewer)
            bound = max(bound, 1.5 * chance)
        assert apart(one, expected) < bound, name


def test_a_bin_of_two_examples_is_drawn_as_two():
    """The largest gap is that of such a bin, and was once computed with the mean of its confidences."""
    confidence = torch.cat([torch.tensor([0.521, 0.532]), 0.9 + 0.09 * torch.arange(3000) / 3000]).double()
    probs = torch.stack([confidence, 1 - confidence], 1)
    targets = torch.zeros(3002, dtype=torch.int64)
    seen = outcomes(targets, probs=probs)
    drawn = resample_outcomes(seen, n_bins=N_BINS, resamples=300, seed=1).draws["mce"].numpy()
    exact = exact_draws(seen, 300, 1)["mce"]
    np.testing.assert_allclose(drawn, exact, atol=1e-5)  # the wider bins are counted together
    assert exact.std() > 0.1


def test_the_interval_of_a_mean_is_near_that_of_the_central_limit():
    x = torch.randn(2000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = bootstrap(lambda x: x.mean().item(), [x], resamples=2000)
    reach = stats.norm.ppf(0.975) * x.std().item() / 2000**0.5
    assert found[1:] == pytest.approx((found.value - reach, found.value + reach), abs=0.1 * reach)


def test_the_interval_is_the_bias_corrected_one():
    """Draws 1 ... 999 about a value at their 30 % point: the ends move down by twice that shift."""
    draws = torch.arange(1, 1000, dtype=torch.float64)
    shift = 2 * stats.norm.ppf(299.5 / 999)
    ends = 1 + 998 * stats.norm.cdf([shift - stats.norm.ppf(0.95), shift + stats.norm.ppf(0.95)])
    assert interval(300.0, draws.numpy(), 0.9)[1:] == pytest.approx(tuple(ends), abs=0.51)
    assert interval(500.0, draws.numpy(), 0.9)[1:] == pytest.approx((51, 949), abs=1.1)
    assert bias_corrected(2.0, [1.0, 2.0, 3.0], 0.95) == (1.0, 3.0)
    for value in (-5.0, 2000.0):  # an interval always holds the value
        found = interval(value, draws.numpy(), 0.95)
        assert found.low <= value <= found.high


def share_that_hold(truth, intervals):
    return sum(found.low <= truth <= found.high for found in intervals) / 100


def test_intervals_hold_the_truth_about_as_often_as_their_level():
    def found(seed):
        sets = (torch.randn(100, generator=torch.Generator().manual_seed(2 * seed + i)) + i for i in (0, 1))
        return auroc_interval(*sets, level=0.9)

    assert 0.83 <= share_that_hold(stats.norm.cdf(2**-0.5), map(found, range(100))) <= 0.97


def test_the_same_seed_gives_the_same_interval():
    columns = answers(60, 0, ties=False)
    one, two, other = (bootstrap(aurc, columns, resamples=50, seed=seed) for seed in (3, 3, 4))
    assert one == two != other


def test_an_infinite_value_keeps_its_finite_lower_end():
    probs = torch.tensor([[0.5, 0.5]] * 30 + [[1.0, 0.0]]).double()
    targets = torch.ones(31, dtype=torch.int64)
    found = bootstrap_outcomes(outcomes(targets, probs=probs), resamples=200)["nll"]
    assert found.value == found.high == math.inf
    assert found.low == pytest.approx(math.log(2))  # of the draws that miss the impossible example


def test_one_example_and_all_right_have_intervals_of_no_width():
    probs, targets = torch.tensor([[0.75, 0.25]]).double(), torch.tensor([0])
    for found in bootstrap_outcomes(outcomes(targets, probs=probs), resamples=20).values():
        assert found.low == found.value == found.high
    found = bootstrap_outcomes(outcomes(targets.repeat(9), probs=probs.repeat(9, 1)), resamples=20)
    assert found["error"] == found["aurc"] == (0, 0, 0)


def test_many_examples_are_drawn_less_often():
    examples = {10_000: 4000, 100_000: 2000, 1_000_000: 200}
    assert {n: enough_resamples(n, 4000) for n in examples} == examples
    assert enough_resamples(1_000_000, 50) == 50


# Areas under curves


def two_sets(known, others, shift, seed=0):
    generator = torch.Generator().manual_seed(seed)
    in_distribution = torch.randn(known, generator=generator, dtype=torch.float64)
    return in_distribution, 1.2 * torch.randn(others, generator=generator, dtype=torch.float64) + shift


@given(st.integers(2, 30), st.integers(2, 30), st.integers(1, 4), st.booleans(), seeds)
@settings(max_examples=40, deadline=None)
def test_the_covariance_of_areas_is_that_of_all_pairs(known, others, scores, ties, seed):
    generator = torch.Generator().manual_seed(seed)
    sides = [torch.randn(n, scores, generator=generator, dtype=torch.float64) for n in (known, others)]
    if ties:
        sides = [side.round() for side in sides]
    pairs = (sides[1][:, None] > sides[0][None]).double() + (sides[1][:, None] == sides[0][None]).double() / 2
    expected = sum(
        np.atleast_2d(np.cov(pairs.mean(axis).numpy().T)) / pairs.shape[1 - axis] for axis in (0, 1)
    )
    found = delong(*sides)
    np.testing.assert_allclose(found.covariance, expected, atol=1e-14)
    areas = [roc_auc_score([0] * known + [1] * others, torch.cat(sides)[:, s]) for s in range(scores)]
    assert found.auroc.tolist() == pytest.approx(areas)


@pytest.mark.parametrize(("known", "others", "shift"), [(1000, 600, 1.0), (1500, 400, 2.5)])
def test_detection_intervals_agree_with_an_ordinary_bootstrap(known, others, shift):
    """To 5 % of the width, of ten thousand resamples."""
    sides = two_sets(known, others, shift)
    rng = np.random.default_rng(1)
    draws = {name: [] for name in DETECTION}
    for _ in range(10_000):
        resample = [side[torch.from_numpy(rng.integers(0, len(side), len(side)))] for side in sides]
        for name, metric in DETECTION.items():
            draws[name].append(metric(*resample))
    found = detection_intervals(*sides)
    for name, metric in DETECTION.items():
        expected = interval(metric(*sides), np.array(draws[name]), 0.95)
        width = expected.high - expected.low
        assert found[name] == pytest.approx(expected, abs=0.05 * width), name


DETECTION = {
    "auroc": auroc,
    "aupr_ood": aupr,
    "aupr_id": lambda x, y: aupr(x, y, positive="in_distribution"),
    "fpr95": fpr_at_tpr,
}


def test_near_one_the_interval_of_an_area_holds_the_truth_as_often_as_its_level():
    """Nearly, and on both sides; a plain normal interval misses it twice as often, all on one side."""
    truth = stats.norm.cdf(3.5 / (1 + 1.2**2) ** 0.5)
    held = [auroc_interval(*two_sets(100, 100, 3.5, seed)) for seed in range(1000)]
    above, below = (
        np.mean([miss(one) for one in held]) for miss in (lambda x: x.low > truth, lambda x: x.high < truth)
    )
    assert 0.01 < above < 0.055 and 0.01 < below < 0.055


def test_the_difference_of_two_areas_is_narrower_than_unpaired():
    sides = two_scores(2000)
    found = auroc_difference(*sides)
    areas = [auroc(sides[0][:, s], sides[1][:, s]) for s in range(2)]
    assert found.value == pytest.approx(areas[0] - areas[1])
    assert found.low > 0
    alone = [auroc_interval(sides[0][:, s], sides[1][:, s]) for s in range(2)]
    assert found.high - found.low < 0.7 * math.hypot(*(one.high - one.low for one in alone))


def two_scores(size, seed=5):
    """Scores of n in-distribution and n OOD examples by two models that share most of their noise."""
    generator = torch.Generator().manual_seed(seed)
    noise = (0.5 * torch.randn(size, generator=generator, dtype=torch.float64) for _ in range(2))
    sides = zip(two_sets(size, size, 1.0), noise, strict=True)
    return [torch.stack([side, side + each], 1) for side, each in sides]


def test_the_paired_interval_of_two_areas_agrees_with_an_ordinary_bootstrap():
    """To 5 % of the width, of ten thousand resamples."""
    sides, rng, draws = two_scores(500), np.random.default_rng(0), []
    for _ in range(10_000):
        some = [side[torch.from_numpy(rng.integers(0, 500, 500))] for side in sides]
        draws.append(auroc(some[0][:, 0], some[1][:, 0]) - auroc(some[0][:, 1], some[1][:, 1]))
    found = auroc_difference(*sides)
    expected = interval(found.value, np.array(draws), 0.95)
    assert found == pytest.approx(expected, abs=0.05 * (expected.high - expected.low))


def test_mistakes_of_two_models_are_paired_example_by_example():
    """Each model has mistakes of its own; to 5 % of the width of a bootstrap of ten thousand resamples."""
    size, rng, draws = 800, np.random.default_rng(1), []
    known, other = two_scores(size)
    scores = torch.where(torch.arange(size)[:, None] % 3 == 0, other, known)
    wrong = torch.stack([(torch.arange(size) + shift) % 3 == 0 for shift in (0, 30 * 3)], 1)
    wrong[:60, 1] = ~wrong[:60, 0]
    areas = [detection_area(scores[:, s], wrong[:, s]) for s in range(2)]
    for one, s in zip(areas, range(2), strict=True):
        sides = scores[~wrong[:, s], s], scores[wrong[:, s], s]
        assert one.auroc == pytest.approx(auroc(*sides))
        assert one.influence.square().sum().item() == pytest.approx(delong(*sides).covariance.item())
    for _ in range(10_000):
        rows = torch.from_numpy(rng.integers(0, size, size))
        some, bad = scores[rows], wrong[rows]
        area = [auroc(some[~bad[:, s], s], some[bad[:, s], s]) for s in range(2)]
        draws.append(area[0] - area[1])
    found = area_difference(*areas)
    expected = interval(found.value, np.array(draws), 0.95)
    assert found == pytest.approx(expected, abs=0.05 * (expected.high - expected.low))


def test_areas_that_cannot_be_paired_are_named():
    area = detection_area(torch.arange(5.0), torch.arange(5) > 2)
    with pytest.raises(ValueError, match=r"^area_difference: `second`"):
        area_difference(area, detection_area(torch.arange(4.0), torch.arange(4) > 2))
    alone = detection_area(torch.arange(5.0), torch.arange(5) > 3)
    assert area_difference(area, alone)[1:] == (-1, 1)
    with pytest.raises(TypeError, match=r"^detection_area: `is_ood`"):
        detection_area(torch.arange(5.0), torch.arange(5))
    with pytest.raises(ValueError, match=r"^detection_area: `is_ood`"):
        detection_area(torch.arange(5.0), torch.arange(5) > 9)
    with pytest.raises(ValueError, match=r"^detection_area: `scores`"):
        detection_area(torch.arange(4.0), torch.arange(5) > 2)


def test_areas_of_one_have_the_exact_interval_of_disjoint_pairs_and_one_example_tells_nothing():
    low, high = torch.arange(30.0), torch.arange(50.0) + 40
    bound = binomial_interval(30, 30)
    assert auroc_interval(low, high) == (1.0, *bound) == (1.0, pytest.approx(0.025 ** (1 / 30)), 1.0)
    assert auroc_interval(high, low) == (0.0, *binomial_interval(0, 30))
    assert aupr_interval(low, high) == (1.0, *binomial_interval(50, 50))
    assert fpr_at_tpr_interval(low, high) == (0.0, *binomial_interval(0, 50))
    assert fpr_at_tpr_interval(high, low) == (1.0, *binomial_interval(30, 30))
    for one in (auroc_interval, aupr_interval):
        for sides in ((torch.ones(1), torch.arange(3.0)), (torch.arange(3.0), torch.ones(1))):
            assert one(*sides)[1:] == (0, 1)
    assert auroc_difference(torch.ones(1, 2), torch.arange(6.0).view(3, 2))[1:] == (-1, 1)
    assert auroc_interval(torch.zeros(4), torch.zeros(5)) == (0.5, 0.5, 0.5)


@pytest.mark.parametrize(
    ("sides", "argument"),
    [
        ((torch.ones(3, 2), torch.ones(3, 3)), "ood"),
        ((torch.ones(3, 2, 1), torch.ones(3)), "in_distribution"),
        ((torch.ones(3), torch.ones(0)), "ood"),
        ((torch.ones(3), torch.tensor([math.nan])), "ood"),
    ],
)
def test_scores_that_do_not_fit_are_named(sides, argument):
    with pytest.raises(ValueError, match=rf"^delong: `{argument}`"):
        delong(*sides)
    with pytest.raises(ValueError, match=r"^auroc_difference: `in_distribution`"):
        auroc_difference(torch.ones(3, 3), torch.ones(4, 3))


ONES = torch.ones(3)


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (bootstrap, (lambda x: 0.0, [ONES])),
        *((function, (ONES, ONES)) for function in (auroc_interval, aupr_interval, fpr_at_tpr_interval)),
        (auroc_difference, (torch.ones(3, 2), torch.ones(4, 2))),
    ],
)
def test_invalid_levels_are_named(function, arguments):
    with pytest.raises(ValueError, match=rf"^{function.__name__}: `level`"):
        function(*arguments, level=95)


def test_there_must_be_resamples():
    with pytest.raises(ValueError, match=r"^bootstrap: `resamples`"):
        bootstrap(lambda x: 0.0, [ONES], resamples=0)


@pytest.mark.parametrize("columns", [[], [ONES, torch.ones(4)], [torch.ones(0)], [1.0]])
def test_columns_must_have_the_same_rows(columns):
    with pytest.raises(ValueError, match="`columns`"):
        bootstrap(lambda *x: 0.0, columns)


# Paired differences of two models


def of_rows(probs, targets, rows):
    """The main metrics of some rows, by numpy and scikit-learn alone."""
    return {
        name: METRICS[name].oracle(probs[rows], targets[rows]) for name in ("error", "nll", "brier", "ece")
    }


def two_models(seed=0):
    """Probabilities of a model and of one that differs from it a little, and the targets."""
    logits, probs, targets = forecast(N, 5, seed)
    noise = 0.4 * torch.randn(N, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return probs.numpy(), (logits + noise).softmax(1).numpy(), targets.numpy()


def seen_of(probs, targets):
    return outcomes(torch.from_numpy(targets), probs=torch.from_numpy(probs))


def drawn_rows(examples, draws, seed):
    """The rows of each draw, from how often each was drawn."""
    (weights,) = _weights(torch.arange(examples), draws, seed)
    return [np.repeat(np.arange(examples), row) for row in weights.long().numpy()]


def test_differences_equal_a_paired_bootstrap_by_hand():
    first, second, targets = two_models()
    pairs = [
        (of_rows(first, targets, rows), of_rows(second, targets, rows))
        for rows in (np.arange(N), *drawn_rows(N, DRAWS, 3))
    ]
    one, two = seen_of(first, targets), seen_of(second, targets)
    drawn = resample_outcomes(one, n_bins=N_BINS, resamples=DRAWS, seed=3).draws
    found = bootstrap_differences(one, two, n_bins=N_BINS, resamples=DRAWS, seed=3, level=0.8)
    for key in pairs[0][0]:
        assert drawn[key].tolist() == pytest.approx([pair[0][key] for pair in pairs[1:]], rel=1e-9)
        value, *draws = (pair[0][key] - pair[1][key] for pair in pairs)
        away = np.array(draws) - value
        below = (away < -1e-12).mean() + (np.abs(away) <= 1e-12).mean() / 2
        bias, reach = stats.norm.ppf(below), stats.norm.ppf(0.9)
        ends = np.sort(draws)[np.rint(stats.norm.cdf([2 * bias - reach, 2 * bias + reach]) * 59).astype(int)]
        assert found[key] == pytest.approx((value, *ends), abs=1e-11), key


def test_the_rows_drawn_depend_on_nothing_but_their_number_and_the_seed():
    """Not on the classes, the precision, ties, nor on logits in place of probabilities."""
    targets, even = torch.arange(N) % 2, torch.full((N, 4), 0.25)
    models = [
        outcomes(targets, probs=forecast(N, 7, seed=1)[1]),
        outcomes(targets, logits=forecast(N, 2, seed=2)[0].float()),
        outcomes(targets, probs=even),
    ]
    (digest,) = {resample_outcomes(seen, resamples=DRAWS, seed=5).rows_sha256 for seen in models}
    fewer = outcomes(targets[1:], probs=even[1:])
    calls = (models[0], DRAWS, 6), (models[0], DRAWS + 1, 5), (fewer, DRAWS, 5)
    others = {resample_outcomes(seen, resamples=n, seed=seed).rows_sha256 for seen, n, seed in calls}
    assert len(others) == 3 and digest not in others


def test_a_paired_interval_is_as_wide_as_in_theory_and_narrower_than_an_unpaired_one():
    first, second, targets = two_models()
    one, two = seen_of(first, targets), seen_of(second, targets)
    found = bootstrap_differences(one, two, resamples=2000)["nll"]
    apart = (one.nll - two.nll).std().item() / math.sqrt(N)
    assert found.high - found.low == pytest.approx(2 * 1.96 * apart, rel=0.1)
    alone = [bootstrap_outcomes(seen, resamples=500)["nll"] for seen in (one, two)]
    assert found.high - found.low < 0.6 * math.hypot(*(each.high - each.low for each in alone))
    itself = bootstrap_differences(one, one, resamples=20)
    assert set(itself.values()) == {(0.0, 0.0, 0.0)}


def test_intervals_of_equally_good_models_hold_zero_about_as_often_as_their_level():
    def found(seed):
        generator = torch.Generator().manual_seed(seed)
        targets = torch.randint(3, (200,), generator=generator)
        models = (torch.randn(200, 3, generator=generator).double() + torch.eye(3)[targets] for _ in range(2))
        seen = (outcomes(targets, logits=logits) for logits in models)
        return bootstrap_differences(*seen, resamples=300, level=0.9)["nll"]

    assert 0.83 <= share_that_hold(0.0, map(found, range(100))) <= 0.97


@pytest.mark.parametrize(("better", "differs"), [(5, False), (6, True)])
def test_five_examples_never_separate_two_error_rates(better, differs):
    """As in an exact sign test: five heads in a row have a probability of 6.25 %, counting both sides."""
    draws = [better / N] * 50
    value, low, high = paired_difference((better / N, 0.0), (draws, [0.0] * 50), level=0.95, trials=N)
    assert value == pytest.approx(better / N) and high == value
    assert (low > 0) == differs == (stats.binomtest(better, better).pvalue <= 0.05)
    assert paired_difference((better / N, 0.0), (draws, [0.0] * 50), level=0.95)[1] > 0


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95, 0.99])
def test_the_fewest_that_separate_two_rates_are_those_of_the_sign_test(level):
    enough = fewest_that_differ(level)
    assert stats.binomtest(enough, enough).pvalue <= 1 - level + 1e-12
    assert enough == 1 or stats.binomtest(enough - 1, enough - 1).pvalue > 1 - level


def test_differences_that_are_equal_tie_in_spite_of_rounding():
    found = paired_difference((0.3, 0.2), ([0.3, 0.4, 0.7], [0.2, 0.3, 0.6]), level=0.95)
    assert found == (0.1, 0.1, 0.1)


def test_an_infinite_metric_has_no_difference_and_targets_must_be_the_same():
    targets = torch.tensor([0, 1, 1])
    impossible = outcomes(targets, probs=torch.tensor([[1.0, 0.0]] * 3).double())
    even = torch.full((3, 2), 0.5).double()
    found = bootstrap_differences(impossible, outcomes(targets, probs=even), resamples=10)
    assert "nll" not in found and found["brier"].value == pytest.approx(4 / 3 - 0.5)
    with pytest.raises(ValueError, match=r"^bootstrap_differences: `second`"):
        bootstrap_differences(impossible, outcomes(1 - targets, probs=even))
