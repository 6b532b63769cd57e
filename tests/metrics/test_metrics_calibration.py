"""Calibration against torchmetrics, netcal, scikit-learn and plain loops, and where they differ."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.calibration import calibration_curve
from torchmetrics.functional.classification import multiclass_calibration_error

from beliefmatch.metrics import (
    adaptive_calibration_error,
    calibration_error,
    class_bins,
    classwise_calibration_error,
    debiased_calibration_error,
    expected_calibration_error,
    maximum_calibration_error,
    overconfidence,
    reliability_bins,
)
from forecasts import answers, forecast, seeds, two_classes

METRICS = (
    expected_calibration_error,
    maximum_calibration_error,
    adaptive_calibration_error,
    classwise_calibration_error,
    debiased_calibration_error,
)


@given(st.integers(1, 80), st.integers(3, 9), st.integers(1, 20), seeds)
@settings(max_examples=30, deadline=None)
def test_mean_and_maximum_equal_torchmetrics_off_the_edges(examples, classes, n_bins, seed):
    _, probs, targets = forecast(examples, classes, seed)
    probs = 0.999 * probs + 0.001 / classes  # nothing rounds to 1 in the single precision of torchmetrics

    def theirs(norm: str) -> float:
        return multiclass_calibration_error(
            probs, targets, num_classes=classes, n_bins=n_bins, norm=norm, validate_args=False
        ).item()

    assert expected_calibration_error(probs, targets, n_bins=n_bins) == pytest.approx(theirs("l1"), abs=1e-5)
    assert maximum_calibration_error(probs, targets, n_bins=n_bins) == pytest.approx(theirs("max"), abs=1e-5)


@pytest.mark.parametrize("n_bins", [5, 15])
@pytest.mark.parametrize("seed", range(3))
def test_mean_and_maximum_equal_netcal_off_the_edges(n_bins, seed):
    netcal = pytest.importorskip("netcal.metrics")
    _, probs, targets = forecast(300, 5, seed)
    pairs = (netcal.ECE, expected_calibration_error), (netcal.MCE, maximum_calibration_error)
    for theirs, ours in pairs:
        expected = theirs(bins=n_bins).measure(probs.numpy(), targets.numpy())
        assert ours(probs, targets, n_bins=n_bins) == pytest.approx(expected)


@pytest.mark.parametrize("n_bins", [5, 10])
def test_equal_mass_comes_near_to_the_quantiles_of_netcal(n_bins):
    """Netcal cuts at interpolated quantiles: a group may have one example more or less than ours."""
    netcal = pytest.importorskip("netcal.metrics")
    _, probs, targets = forecast(1000, 5, seed=1)
    expected = netcal.ECE(bins=n_bins, equal_intervals=False).measure(probs.numpy(), targets.numpy())
    assert adaptive_calibration_error(probs, targets, n_bins=n_bins) == pytest.approx(expected, abs=2e-3)


@pytest.mark.parametrize("n_bins", [4, 15])
def test_means_of_the_groups_equal_scikit_learn_even_on_the_edges(n_bins):
    confidence, correct = answers(200, 3, ties=True)
    bins = reliability_bins(confidence, correct, n_bins=n_bins)
    accuracy, mean = calibration_curve(correct, confidence, n_bins=n_bins)
    filled = bins.count > 0
    np.testing.assert_allclose(bins.accuracy[filled], accuracy)
    np.testing.assert_allclose(bins.confidence[filled], mean)


def test_a_single_precision_fifth_is_above_the_edge():
    """The float32 next to 0.2 is 0.2000000030; n_bins hold what is stored."""
    bins = reliability_bins(torch.tensor([0.2]), torch.tensor([True]), n_bins=5)
    assert bins.count.tolist() == [0, 1, 0, 0, 0]
    bins = reliability_bins(torch.tensor([0.2]).double().round(decimals=1), torch.tensor([True]), n_bins=5)
    assert bins.count.tolist() == [1, 0, 0, 0, 0]


def test_zero_and_one_are_in_the_first_and_the_last_group():
    bins = reliability_bins(torch.tensor([0.0, 1.0, 1.0]), torch.tensor([False, True, False]), n_bins=15)
    assert bins.count.tolist() == [1] + [0] * 13 + [2]
    assert bins.lower[0] == 0 and bins.upper[-1] == 1
    assert bins.accuracy[[0, -1]].tolist() == [0.0, 0.5]


def test_empty_groups_have_no_mean_and_no_weight():
    bins = reliability_bins(torch.tensor([0.3]), torch.tensor([True]), n_bins=3)
    assert bins.count.tolist() == [1, 0, 0]
    assert bins.accuracy.isnan().tolist() == bins.confidence.isnan().tolist() == [False, True, True]
    assert calibration_error(bins) == calibration_error(bins, norm="max") == pytest.approx(0.7, abs=1e-7)


@given(st.integers(1, 80), st.integers(1, 20), seeds)
@settings(max_examples=30, deadline=None)
def test_groups_of_equal_mass_differ_by_one_example_at_most(examples, n_bins, seed):
    confidence, correct = answers(examples, seed, ties=True)
    bins = reliability_bins(confidence, correct, n_bins=n_bins, scheme="mass")
    assert bins.count.sum() == examples
    assert bins.count.max() - bins.count.min() <= 1
    assert bins.lower[0] == 0 and bins.upper[-1] == 1 and (bins.upper >= bins.lower).all()
    hits = (bins.count * bins.accuracy.nan_to_num()).sum().item()
    assert hits == pytest.approx(correct.sum().item())


@given(st.integers(2, 60), st.integers(1, 12), seeds)
@settings(max_examples=30, deadline=None)
def test_order_of_ties_is_moot(examples, n_bins, seed):
    confidence, correct = answers(examples, seed, ties=True)
    rows = torch.randperm(examples, generator=torch.Generator().manual_seed(seed))
    for scheme in ("width", "mass"):
        one = reliability_bins(confidence, correct, n_bins=n_bins, scheme=scheme)
        two = reliability_bins(confidence[rows], correct[rows], n_bins=n_bins, scheme=scheme)
        torch.testing.assert_close(one.accuracy, two.accuracy, equal_nan=True)
        torch.testing.assert_close(one.confidence, two.confidence, equal_nan=True)


def test_equal_mass_of_distinct_confidences_equals_a_plain_loop():
    _, probs, targets = forecast(103, 5, seed=6)
    confidence, predicted = probs.max(1)
    order = confidence.argsort()
    gaps = (confidence - (predicted == targets).double())[order]
    ends = [i * 103 // 7 for i in range(8)]
    expected = sum(abs(gaps[a:b].sum().item()) for a, b in pairwise(ends)) / 103
    assert adaptive_calibration_error(probs, targets, n_bins=7) == pytest.approx(expected)


@given(st.integers(1, 60), st.integers(1, 7), st.integers(1, 16), seeds)
@settings(max_examples=30, deadline=None)
def test_classwise_error_is_the_mean_over_the_classes_as_yes_or_no_forecasts(examples, classes, n_bins, seed):
    logits, probs, targets = forecast(examples, classes, seed)
    expected = [
        calibration_error(reliability_bins(probs[:, k], targets == k, n_bins=n_bins)) for k in range(classes)
    ]
    bins = class_bins(targets, probs=probs, n_bins=n_bins)
    assert bins.errors.tolist() == pytest.approx(expected, abs=1e-12)
    assert bins.mean_probability.tolist() == pytest.approx(probs.mean(0).tolist())
    assert (bins.count.sum(1) == examples).all() and bins.examples == examples
    mean = classwise_calibration_error(probs, targets, n_bins=n_bins)
    assert mean == pytest.approx(np.mean(expected), abs=1e-12)
    of_logits = class_bins(targets, logits=logits, n_bins=n_bins)
    torch.testing.assert_close(of_logits.probability, bins.probability)


def test_classwise_error_in_single_precision_over_many_blocks():
    _, probs, targets = forecast(600, 1000, seed=7)
    single = classwise_calibration_error(probs.float(), targets)
    assert single == pytest.approx(classwise_calibration_error(probs.float().double(), targets), rel=1e-6)


def test_debiased_error_is_right_on_average_where_the_plain_one_is_not():
    """Forecasts of 0.8 that come true at 0.8: the squared gap is 0 on average after the subtraction."""
    generator = torch.Generator().manual_seed(0)
    confidence = torch.full((50,), 0.8, dtype=torch.float64)
    plain, debiased = [], []
    for _ in range(2000):
        correct = torch.rand(50, generator=generator, dtype=torch.float64) < 0.8
        bins = reliability_bins(confidence, correct, n_bins=1, scheme="mass")
        plain.append(bins.gap.square().item())
        debiased.append(plain[-1] - (bins.accuracy * (1 - bins.accuracy) / 49).item())
    assert np.mean(plain) == pytest.approx(0.16 / 50, rel=0.1)
    assert abs(np.mean(debiased)) < 0.16 / 50 / 10


def test_debiased_error_by_hand():
    """Two n_bins of two: gaps 0.3 and 0.4 with accuracies 1/2 and 1, so that only the first is reduced."""
    probs, targets = two_classes([0.8, 0.8, 0.6 + 1e-12, 0.6], [True, False, True, True])
    assert debiased_calibration_error(probs, targets, n_bins=2) == 0  # (0.4² + 0.3² − 0.25)/2 = 0
    probs, targets = two_classes([0.9, 0.9, 0.6, 0.6], [True, False, True, True])
    expected = ((0.4**2 + 0.4**2 - 0.25) / 2) ** 0.5
    assert debiased_calibration_error(probs, targets, n_bins=2) == pytest.approx(expected)


@given(st.integers(1, 80), st.integers(2, 9), st.integers(1, 20), seeds)
@settings(max_examples=30, deadline=None)
def test_over_and_under_confidence_add_to_the_error_and_differ_by_the_sign(examples, classes, n_bins, seed):
    _, probs, targets = forecast(examples, classes, seed)
    parts = overconfidence(probs, targets, n_bins=n_bins)
    assert parts.over >= 0 and parts.under >= 0
    assert parts.over + parts.under == pytest.approx(
        expected_calibration_error(probs, targets, n_bins=n_bins)
    )
    gap = (probs.amax(1) - (probs.argmax(1) == targets).double()).mean().item()
    assert parts.signed == pytest.approx(gap, abs=1e-12)
    assert parts.over - parts.under == pytest.approx(gap, abs=1e-12)


@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 20), seeds)
@settings(max_examples=20, deadline=None)
def test_bounds(examples, classes, n_bins, seed):
    _, probs, targets = forecast(examples, classes, seed)
    values = [metric(probs, targets, n_bins=n_bins) for metric in METRICS]
    assert all(0 <= value <= 1 for value in values)
    assert values[0] <= values[1] + 1e-12  # the mean gap is no larger than the largest


@pytest.mark.parametrize("metric", METRICS)
def test_examples_and_classes_may_be_reordered(metric):
    _, probs, targets = forecast(50, 6, seed=5)
    generator = torch.Generator().manual_seed(0)
    rows, order = torch.randperm(50, generator=generator), torch.randperm(6, generator=generator)
    whole = metric(probs, targets)
    assert metric(probs[rows], targets[rows]) == pytest.approx(whole)
    assert metric(probs[:, order], order.argsort()[targets]) == pytest.approx(whole)


@pytest.mark.parametrize("metric", [*METRICS, overconfidence])
@pytest.mark.parametrize("n_bins", [0, -3])
def test_groups_must_be_positive(metric, n_bins):
    _, probs, targets = forecast(5, 3, seed=0)
    with pytest.raises(
        ValueError, match=rf"^{metric.__name__}: `n_bins` must be at least 1, got {n_bins}\.$"
    ):
        metric(probs, targets, n_bins=n_bins)


@pytest.mark.parametrize("metric", [*METRICS, overconfidence])
def test_bad_probabilities_are_refused_in_the_name_of_the_metric(metric):
    logits, probs, targets = forecast(5, 3, seed=0)
    for bad in (logits, probs / 2, probs * torch.nan):
        with pytest.raises(ValueError, match=rf"^{metric.__name__}: `probs` must be .*\.$"):
            metric(bad, targets)


@pytest.mark.parametrize(
    ("confidence", "correct", "words"),
    [
        (torch.tensor([0.5, 1.5]), torch.tensor([True, False]), "`confidence`"),
        (torch.tensor([0.5, torch.nan]), torch.tensor([True, False]), "`confidence`"),
        (torch.tensor([0.5]), torch.tensor([True, False]), "`correct`"),
        (torch.tensor([]), torch.tensor([]), "`confidence`"),
        (torch.tensor([0.5, 0.5]), torch.tensor([0.5, 1.0]), "`correct`"),
    ],
)
def test_bad_columns_are_refused(confidence, correct, words):
    with pytest.raises(ValueError, match=rf"^reliability_bins: {words}"):
        reliability_bins(confidence, correct)
    with pytest.raises(ValueError, match="`scheme`"):
        reliability_bins(confidence, correct, scheme="height")
