"""Bootstrap: the fast intervals against resampling by hand, coverage in simulation, and edge cases."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from beliefmatch.metrics import (
    adaptive_calibration_error,
    aupr,
    aurc,
    auroc,
    bootstrap,
    bootstrap_detection,
    bootstrap_outcomes,
    brier,
    debiased_calibration_error,
    error,
    excess_aurc,
    expected_calibration_error,
    fpr_at_tpr,
    maximum_calibration_error,
    nll,
    outcomes,
    overconfidence,
    top_k_error,
)
from beliefmatch.metrics.bootstrap import enough_resamples, interval
from beliefmatch.metrics.resampled import DetectionCurves, OutcomeSums
from forecasts import answers, coarse_scores, forecast, seeds

OF_PROBS = {
    "error": error,
    "top_k_error": lambda p, y: top_k_error(p, y, k=2),
    "nll": nll,
    "brier": brier,
    "ece": lambda p, y: expected_calibration_error(p, y, n_bins=6),
    "mce": lambda p, y: maximum_calibration_error(p, y, n_bins=6),
    "adaptive_ece": lambda p, y: adaptive_calibration_error(p, y, n_bins=6),
    "debiased_ece": lambda p, y: debiased_calibration_error(p, y, n_bins=6),
    "overconfidence": lambda p, y: overconfidence(p, y, n_bins=6).signed,
    "mean_confidence": lambda p, y: p.amax(1).mean().item(),
    "mean_entropy": lambda p, y: torch.special.entr(p).sum(1).mean().item(),
    "aurc": lambda p, y: aurc(p.amax(1), p.argmax(1) == y),
    "excess_aurc": lambda p, y: excess_aurc(p.amax(1), p.argmax(1) == y),
}


def coarse_forecast(examples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Probabilities in eighths, so that confidences tie."""
    logits, _, targets = forecast(examples, 4, seed)
    probs = (8 * logits.softmax(1)).floor()
    probs[:, 0] += 8 - probs.sum(1)
    return probs / 8, targets


@given(st.integers(1, 40), st.booleans(), seeds)
@settings(max_examples=30, deadline=None)
def test_weights_are_as_good_as_copies(examples, ties, seed):
    """Every metric of weighted examples equals that of examples repeated as often."""
    probs, targets = coarse_forecast(examples, seed) if ties else forecast(examples, 4, seed)[1:]
    rows = torch.randint(examples, (3, examples), generator=torch.Generator().manual_seed(seed))
    weights = torch.stack([torch.bincount(drawn, minlength=examples) for drawn in rows]).double()
    sums = OutcomeSums(outcomes(targets, probs=probs), 2, 6)
    found = sums(weights[:, sums.order])
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
    weights = [
        torch.stack([torch.bincount(place[drawn], minlength=curves.scores) for drawn in ids]).double()
        for place, ids in zip(curves.places, rows, strict=True)
    ]
    found = curves(*weights)
    for i in range(3):
        copies = sets[0][rows[0][i]], sets[1][rows[1][i]]
        assert found["auroc"][i].item() == pytest.approx(auroc(*copies))
        assert found["aupr_ood"][i].item() == pytest.approx(aupr(*copies))
        assert found["aupr_id"][i].item() == pytest.approx(aupr(*copies, positive="in_distribution"))
        assert found["fpr95"][i].item() == pytest.approx(fpr_at_tpr(*copies))


def test_fast_and_plain_intervals_agree():
    _, probs, targets = forecast(200, 4, seed=1)
    fast = bootstrap_outcomes(outcomes(targets, probs=probs), top_k=2, n_bins=6, resamples=800, seed=1)
    for name in ("error", "ece", "aurc"):
        plain = bootstrap(OF_PROBS[name], [probs, targets], resamples=800, seed=2)
        assert fast[name].value == pytest.approx(plain.value)
        width = plain.high - plain.low
        assert fast[name].low == pytest.approx(plain.low, abs=0.2 * width)
        assert fast[name].high == pytest.approx(plain.high, abs=0.2 * width)


def test_the_interval_of_a_mean_is_near_that_of_the_central_limit():
    x = torch.randn(2000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = bootstrap(lambda x: x.mean().item(), [x], resamples=2000)
    reach = stats.norm.ppf(0.975) * x.std().item() / 2000**0.5
    assert found.low == pytest.approx(found.value - reach, abs=0.1 * reach)
    assert found.high == pytest.approx(found.value + reach, abs=0.1 * reach)


def test_intervals_hold_the_truth_about_as_often_as_they_say():
    held = 0
    for seed in range(100):
        in_distribution, ood = (
            torch.randn(100, generator=torch.Generator().manual_seed(2 * seed + i)) + i for i in (0, 1)
        )
        low, high = bootstrap_detection(in_distribution, ood, resamples=300, level=0.9)["auroc"][1:]
        held += low <= stats.norm.cdf(2**-0.5) <= high
    assert 83 <= held <= 97


def test_the_interval_is_the_bias_corrected_one():
    """Draws 1 ... 999 about a value at their 30 % point: the ends move down by twice that shift."""
    draws = torch.arange(1, 1000, dtype=torch.float64)
    found = interval(300.0, draws, 0.9)
    shift = 2 * stats.norm.ppf(299.5 / 999)
    ends = 1 + 998 * stats.norm.cdf([shift - stats.norm.ppf(0.95), shift + stats.norm.ppf(0.95)])
    assert [found.low, found.high] == pytest.approx(ends, abs=0.51)
    middle = interval(500.0, draws, 0.9)
    assert [middle.low, middle.high] == pytest.approx([51, 949], abs=1.1)


@pytest.mark.parametrize("value", [-5.0, 2000.0])
def test_the_interval_always_holds_the_value(value):
    found = interval(value, torch.arange(1, 1000, dtype=torch.float64), 0.95)
    assert found.low <= value <= found.high


def test_the_same_seed_gives_the_same_interval():
    confidence, correct = answers(60, 0, ties=False)
    one, two, other = (bootstrap(aurc, [confidence, correct], resamples=50, seed=seed) for seed in (3, 3, 4))
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
    assert enough_resamples(10_000, 1000) == 1000
    assert enough_resamples(100_000, 1000) == 500
    assert enough_resamples(1_000_000, 1000) == 200
    assert enough_resamples(1_000_000, 50) == 50


@pytest.mark.parametrize(
    ("options", "words"), [({"level": 95}, "`level`"), ({"resamples": 0}, "`resamples`")]
)
def test_options_are_checked(options, words):
    with pytest.raises(ValueError, match=rf"^bootstrap: {words}"):
        bootstrap(lambda x: 0.0, [torch.ones(3)], **options)
    with pytest.raises(ValueError, match=rf"^bootstrap_detection: {words}"):
        bootstrap_detection(torch.ones(3), torch.ones(3), **options)


@pytest.mark.parametrize("columns", [[], [torch.ones(3), torch.ones(4)], [torch.ones(0)], [1.0]])
def test_columns_must_have_the_same_rows(columns):
    with pytest.raises(ValueError, match="`columns`"):
        bootstrap(lambda *x: 0.0, columns)
