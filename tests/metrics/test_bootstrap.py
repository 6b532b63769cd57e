"""Bootstrap intervals and paired differences: resampling by hand, theory, coverage in simulation, limits."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from metric_cases import METRICS, N_BINS, K
from scipy import stats

from beliefmatch.metrics import (
    aupr,
    aurc,
    auroc,
    bootstrap,
    bootstrap_detection,
    bootstrap_differences,
    bootstrap_outcomes,
    excess_aurc,
    fpr_at_tpr,
    outcomes,
)
from beliefmatch.metrics.bootstrap import enough_resamples, interval, resample_outcomes
from beliefmatch.metrics.resampled import DetectionCurves, OutcomeSums
from beliefmatch.resampling import bias_corrected, fewest_that_differ, paired_difference
from forecasts import answers, coarse_scores, forecast, seeds

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


@given(st.integers(1, 30), st.integers(1, 30), st.booleans(), seeds)
@settings(max_examples=30, deadline=None)
def test_weights_of_two_sets_are_as_good_as_copies(in_distribution, ood, ties, seed):
    generator = torch.Generator().manual_seed(seed)
    draw = coarse_scores if ties else lambda n, s: torch.randn(n, generator=generator).double()
    sets = draw(in_distribution, seed), draw(ood, seed + 1)
    rows = [torch.randint(len(x), (3, len(x)), generator=generator) for x in sets]
    curves = DetectionCurves(*sets, 0.95)
    found = curves(*(counted(at[ids], curves.scores) for at, ids in zip(curves.columns, rows, strict=True)))
    for i in range(3):
        copies = sets[0][rows[0][i]], sets[1][rows[1][i]]
        assert found["auroc"][i].item() == pytest.approx(auroc(*copies))
        assert found["aupr_ood"][i].item() == pytest.approx(aupr(*copies))
        assert found["aupr_id"][i].item() == pytest.approx(aupr(*copies, positive="in_distribution"))
        assert found["fpr95"][i].item() == pytest.approx(fpr_at_tpr(*copies))


# Intervals


def test_fast_and_plain_intervals_agree():
    _, probs, targets = forecast(200, 4, seed=1)
    fast = bootstrap_outcomes(outcomes(targets, probs=probs), top_k=K, n_bins=N_BINS, resamples=800, seed=1)
    for name in ("error", "ece", "aurc"):
        plain = bootstrap(OF_PROBS[name], [probs, targets], resamples=800, seed=2)
        assert fast[name].value == pytest.approx(plain.value)
        width = plain.high - plain.low
        assert fast[name][1:] == pytest.approx(plain[1:], abs=0.2 * width)


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
    assert interval(300.0, draws, 0.9)[1:] == pytest.approx(tuple(ends), abs=0.51)
    assert interval(500.0, draws, 0.9)[1:] == pytest.approx((51, 949), abs=1.1)
    assert bias_corrected(2.0, [1.0, 2.0, 3.0], 0.95) == (1.0, 3.0)
    for value in (-5.0, 2000.0):  # an interval always holds the value
        found = interval(value, draws, 0.95)
        assert found.low <= value <= found.high


def share_that_hold(truth, intervals):
    return sum(found.low <= truth <= found.high for found in intervals) / 100


def test_intervals_hold_the_truth_about_as_often_as_their_level():
    def found(seed):
        sets = (torch.randn(100, generator=torch.Generator().manual_seed(2 * seed + i)) + i for i in (0, 1))
        return bootstrap_detection(*sets, resamples=300, level=0.9)["auroc"]

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
    examples = {10_000: 1000, 100_000: 500, 1_000_000: 200}
    assert {n: enough_resamples(n, 1000) for n in examples} == examples
    assert enough_resamples(1_000_000, 50) == 50


ONES = torch.ones(3)


@pytest.mark.parametrize(
    ("function", "arguments"),
    [(bootstrap, (lambda x: 0.0, [ONES])), (bootstrap_detection, (ONES, ONES))],
)
@pytest.mark.parametrize("option", [{"level": 95}, {"resamples": 0}])
def test_invalid_options_are_named(function, arguments, option):
    with pytest.raises(ValueError, match=rf"^{function.__name__}: `{next(iter(option))}`"):
        function(*arguments, **option)


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


def drawn_rows(seed):
    return np.random.default_rng(seed).integers(0, N, (DRAWS, N), dtype=np.int32)


def test_differences_equal_a_paired_bootstrap_by_hand():
    first, second, targets = two_models()
    pairs = [
        (of_rows(first, targets, rows), of_rows(second, targets, rows))
        for rows in (np.arange(N), *drawn_rows(3))
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
