"""Calibration: bins and their edges, the debiased error, and other libraries."""

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
    debiased_calibration_error,
    expected_calibration_error,
    maximum_calibration_error,
    reliability_bins,
)
from forecasts import answers, forecast, seeds, two_classes

DOUBLE = torch.float64


def bins_of(confidence, correct, n_bins):
    return reliability_bins(torch.tensor(confidence, dtype=DOUBLE), torch.tensor(correct), n_bins=n_bins)


# Bins


@pytest.mark.parametrize("edge", range(8, 16))
def test_a_confidence_on_an_edge_belongs_to_the_bin_below(edge):
    """With two others just below or just above the edge, one bin holds all or two share them."""
    on = edge / 15

    def ece(other: float) -> float:
        return expected_calibration_error(*two_classes([other, on, on], [True, False, False]))

    assert ece(np.nextafter(on, 0)) == pytest.approx(abs(1 / 3 - on))
    if edge < 15:
        assert ece(np.nextafter(on, 2)) == pytest.approx((1 - on) / 3 + 2 * on / 3)


def test_zero_and_one_are_in_the_first_and_the_last_bin():
    bins = bins_of([0.0, 1.0, 1.0], [False, True, False], 15)
    assert bins.count.tolist() == [1] + [0] * 13 + [2]
    assert bins.lower[0] == 0 and bins.upper[-1] == 1
    assert bins.accuracy[[0, -1]].tolist() == [0.0, 0.5]
    assert expected_calibration_error(torch.eye(4)[:3], torch.tensor([3, 1, 2])) == pytest.approx(1 / 3)


def test_a_fifth_of_single_precision_is_above_the_edge():
    """The float32 next to 0.2 is 0.2000000030; bins hold what is stored."""
    single = reliability_bins(torch.tensor([0.2]), torch.tensor([True]), n_bins=5)
    assert single.count.tolist() == [0, 1, 0, 0, 0]
    assert bins_of([0.2], [True], 5).count.tolist() == [1, 0, 0, 0, 0]


def test_empty_bins_have_no_mean_and_no_weight():
    bins = bins_of([0.3], [True], 3)
    assert bins.count.tolist() == [1, 0, 0]
    assert bins.accuracy.isnan().tolist() == bins.confidence.isnan().tolist() == [False, True, True]
    assert calibration_error(bins) == calibration_error(bins, norm="max") == pytest.approx(0.7, abs=1e-7)


def test_calibration_errors_worked_by_hand():
    """Confidences 0.9, 0.9 (one right) and 0.6 (right): 2/3 · 0.4 + 1/3 · 0.4."""
    assert expected_calibration_error(*two_classes([0.9, 0.9, 0.6], [True, False, True])) == pytest.approx(
        0.4
    )
    assert expected_calibration_error(*two_classes([0.75] * 4, [True, True, True, False])) == 0


@given(st.integers(2, 80), st.integers(1, 20), seeds)
@settings(max_examples=30, deadline=None)
def test_bins_do_not_depend_on_the_order_of_ties_and_those_of_equal_mass_differ_by_one(
    examples, n_bins, seed
):
    confidence, correct = answers(examples, seed, ties=True)
    rows = torch.randperm(examples, generator=torch.Generator().manual_seed(seed))
    for scheme in ("width", "mass"):
        bins, other = (
            reliability_bins(confidence[order], correct[order], n_bins=n_bins, scheme=scheme)
            for order in (slice(None), rows)
        )
        torch.testing.assert_close(bins.accuracy, other.accuracy, equal_nan=True)
        torch.testing.assert_close(bins.confidence, other.confidence, equal_nan=True)
        assert bins.count.sum() == examples and bins.lower[0] == 0 and bins.upper[-1] == 1
        hits = (bins.count * bins.accuracy.nan_to_num()).sum().item()
        assert hits == pytest.approx(correct.sum().item())
    assert bins.count.max() - bins.count.min() <= 1 and (bins.upper >= bins.lower).all()


@given(st.integers(1, 60), st.integers(1, 7), st.integers(1, 16), seeds)
@settings(max_examples=30, deadline=None)
def test_bins_of_classes_are_those_of_yes_or_no_forecasts(examples, classes, n_bins, seed):
    logits, probs, targets = forecast(examples, classes, seed)
    expected = [
        calibration_error(reliability_bins(probs[:, k], targets == k, n_bins=n_bins)) for k in range(classes)
    ]
    bins = class_bins(targets, probs=probs, n_bins=n_bins)
    assert bins.errors.tolist() == pytest.approx(expected, abs=1e-12)
    assert bins.mean_probability.tolist() == pytest.approx(probs.mean(0).tolist())
    assert (bins.count.sum(1) == examples).all() and bins.examples == examples
    of_logits = class_bins(targets, logits=logits, n_bins=n_bins)
    torch.testing.assert_close(of_logits.probability, bins.probability)


@pytest.mark.parametrize(
    ("confidence", "correct", "options", "argument"),
    [
        ([0.5, 1.5], [True, False], {}, "confidence"),
        ([0.5, torch.nan], [True, False], {}, "confidence"),
        ([], [], {}, "confidence"),
        ([0.5], [True, False], {}, "correct"),
        ([0.5, 0.5], [0.5, 1.0], {}, "correct"),
        ([0.5], [True], {"scheme": "height"}, "scheme"),
        ([0.5], [True], {"n_bins": 0}, "n_bins"),
    ],
)
def test_invalid_columns_and_options_are_named(confidence, correct, options, argument):
    with pytest.raises(ValueError, match=rf"^reliability_bins: `{argument}`"):
        reliability_bins(torch.tensor(confidence), torch.tensor(correct), **options)


# The debiased error


def test_debiased_error_is_right_on_average_where_the_plain_one_is_not():
    """Forecasts of 0.8 that come true at 0.8: the squared gap is 0 on average after the subtraction."""
    generator = torch.Generator().manual_seed(0)
    correct = torch.rand(2000, 50, generator=generator, dtype=DOUBLE) < 0.8
    confidence = torch.full((50,), 0.8, dtype=DOUBLE)
    plain, debiased = [], []
    for row in correct:
        bins = reliability_bins(confidence, row, n_bins=1, scheme="mass")
        plain.append(bins.gap.square().item())
        debiased.append(plain[-1] - (bins.accuracy * (1 - bins.accuracy) / 49).item())
    assert np.mean(plain) == pytest.approx(0.16 / 50, rel=0.1)
    assert abs(np.mean(debiased)) < 0.16 / 50 / 10


def test_debiased_error_worked_by_hand():
    """Two bins of two: gaps 0.3 and 0.4 with accuracies 1/2 and 1, so that only the first is reduced."""
    forecasts = two_classes([0.8, 0.8, 0.6 + 1e-12, 0.6], [True, False, True, True])
    assert debiased_calibration_error(*forecasts, n_bins=2) == 0  # (0.4² + 0.3² − 0.25)/2 = 0
    forecasts = two_classes([0.9, 0.9, 0.6, 0.6], [True, False, True, True])
    expected = ((0.4**2 + 0.4**2 - 0.25) / 2) ** 0.5
    assert debiased_calibration_error(*forecasts, n_bins=2) == pytest.approx(expected)


# Other libraries


@given(st.integers(1, 80), st.integers(3, 9), st.integers(1, 20), seeds)
@settings(max_examples=30, deadline=None)
def test_mean_and_maximum_equal_torchmetrics_off_the_edges(examples, classes, n_bins, seed):
    _, probs, targets = forecast(examples, classes, seed)
    probs = 0.999 * probs + 0.001 / classes  # nothing rounds to 1 in the single precision of torchmetrics
    for norm, metric in (("l1", expected_calibration_error), ("max", maximum_calibration_error)):
        theirs = multiclass_calibration_error(
            probs, targets, num_classes=classes, n_bins=n_bins, norm=norm, validate_args=False
        ).item()
        assert metric(probs, targets, n_bins=n_bins) == pytest.approx(theirs, abs=1e-5)


@pytest.mark.parametrize("n_bins", [5, 15])
@pytest.mark.parametrize("seed", range(3))
def test_calibration_errors_equal_netcal_off_the_edges(n_bins, seed):
    netcal = pytest.importorskip("netcal.metrics")
    _, probs, targets = forecast(300, 5, seed)
    for theirs, ours, tolerance in (
        (netcal.ECE(bins=n_bins), expected_calibration_error, 1e-6),
        (netcal.MCE(bins=n_bins), maximum_calibration_error, 1e-6),
        # cut at interpolated quantiles: a bin may have one example more or less than ours
        (netcal.ECE(bins=n_bins, equal_intervals=False), adaptive_calibration_error, 7e-3),
    ):
        expected = theirs.measure(probs.numpy(), targets.numpy())
        assert ours(probs, targets, n_bins=n_bins) == pytest.approx(expected, abs=tolerance)


@pytest.mark.parametrize("n_bins", [4, 15])
def test_means_of_bins_equal_scikit_learn_even_on_the_edges(n_bins):
    confidence, correct = answers(200, 3, ties=True)
    bins = reliability_bins(confidence, correct, n_bins=n_bins)
    accuracy, mean = calibration_curve(correct, confidence, n_bins=n_bins)
    np.testing.assert_allclose(bins.accuracy[bins.count > 0], accuracy)
    np.testing.assert_allclose(bins.confidence[bins.count > 0], mean)
