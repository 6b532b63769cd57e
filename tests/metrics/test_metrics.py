"""Scores and calibration against hand-worked cases, plain loops and scikit-learn."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, log_loss

from beliefmatch.metrics import error, expected_calibration_error, nll

METRICS = (error, nll, expected_calibration_error)


def forecast(examples: int, classes: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(examples, classes, generator=generator, dtype=torch.float64)
    return logits.softmax(1), torch.randint(classes, (examples,), generator=generator)


def ece_by_loop(probs: np.ndarray, targets: np.ndarray, n_bins: int) -> float:
    """The definition, one group and one example at a time."""
    total = 0.0
    for group in range(n_bins):
        low, high = group / n_bins, (group + 1) / n_bins
        members = [
            (row.max(), row.argmax() == target)
            for row, target in zip(probs, targets, strict=True)
            if low < row.max() <= high or (group == 0 and row.max() == 0)
        ]
        if members:
            confidence, right = np.array(members, dtype=float).T
            total += len(members) / len(targets) * abs(right.mean() - confidence.mean())
    return total


@given(st.integers(1, 60), st.integers(2, 12), st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_error_and_nll_equal_scikit_learn(examples, classes, seed):
    probs, targets = forecast(examples, classes, seed)
    labels = np.arange(classes)
    assert error(probs, targets) == pytest.approx(1 - accuracy_score(targets, probs.argmax(1)))
    assert nll(probs, targets) == pytest.approx(log_loss(targets, probs, labels=labels), rel=1e-9)


@given(st.integers(1, 60), st.integers(2, 12), st.integers(1, 20), st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_calibration_error_equals_a_plain_loop(examples, classes, n_bins, seed):
    probs, targets = forecast(examples, classes, seed)
    expected = ece_by_loop(probs.numpy(), targets.numpy(), n_bins)
    assert expected_calibration_error(probs, targets, n_bins=n_bins) == pytest.approx(expected)


@pytest.mark.parametrize("edge", range(8, 16))
def test_a_confidence_on_an_edge_belongs_to_the_group_below(edge):
    """With the mates just below or just above the edge, one group holds all or two share them."""
    on = edge / 15
    below, above = np.nextafter(on, 0), np.nextafter(on, 2)
    targets = torch.tensor([0, 1, 1])  # the first example right, the others wrong

    def ece(*confidences: float) -> float:
        top = torch.tensor(confidences, dtype=torch.float64)
        return expected_calibration_error(torch.stack([top, 1 - top], 1), targets)

    assert ece(below, on, on) == pytest.approx(abs(1 / 3 - on))
    if edge < 15:
        assert ece(above, on, on) == pytest.approx((1 - on) / 3 + 2 * on / 3)


def test_sure_forecasts_count_in_the_last_group():
    sure = torch.eye(4, dtype=torch.float64)[:3]
    assert expected_calibration_error(sure, torch.tensor([0, 1, 2])) == 0
    assert expected_calibration_error(sure, torch.tensor([3, 1, 2])) == pytest.approx(1 / 3)


def test_a_calibrated_forecast_has_no_calibration_error():
    probs = torch.tensor([[0.75, 0.25, 0.0]]).repeat(4, 1)
    assert expected_calibration_error(probs, torch.tensor([0, 0, 0, 1])) == 0


def test_hand_worked_calibration_error():
    """Confidences 0.9, 0.9 (one right) and 0.6 (right): 2/3 · 0.4 + 1/3 · 0.4."""
    probs = torch.tensor([[0.9, 0.1], [0.1, 0.9], [0.6, 0.4]], dtype=torch.float64)
    assert expected_calibration_error(probs, torch.tensor([0, 0, 0])) == pytest.approx(0.4)


def test_nll_is_infinite_for_the_impossible_and_zero_for_the_certain():
    probs = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.5, 0.5]])
    assert nll(probs, torch.tensor([1, 0, 0])) == math.inf
    assert nll(probs[:2], torch.tensor([0, 0])) == 0


@pytest.mark.parametrize("metric", METRICS)
def test_means_of_two_halves_average_only_where_the_metric_is_a_mean(metric):
    probs, targets = forecast(40, 7, seed=3)
    halves = [metric(probs[part], targets[part]) for part in (slice(0, 20), slice(20, 40))]
    whole, average = metric(probs, targets), sum(halves) / 2
    if metric is expected_calibration_error:
        assert whole <= average + 1e-12  # gaps of opposite sign cancel in the larger group
    else:
        assert whole == pytest.approx(average)


@pytest.mark.parametrize("metric", METRICS)
def test_classes_may_be_renamed(metric):
    probs, targets = forecast(30, 6, seed=5)
    order = torch.randperm(6, generator=torch.Generator().manual_seed(0))
    renamed = order.argsort()[targets]
    assert metric(probs[:, order], renamed) == pytest.approx(metric(probs, targets))


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_lower_precision_agrees_with_double(metric, dtype):
    probs, targets = forecast(50, 5, seed=1)
    rounded = probs.to(dtype)
    assert metric(rounded, targets) == pytest.approx(metric(rounded.double(), targets), abs=1e-12)


PROBS = torch.full((4, 3), 1 / 3)
IDS = torch.tensor([0, 1, 2, 0])


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(
    ("probs", "targets", "kind", "words"),
    [
        (PROBS, IDS[:3], ValueError, "`targets`"),
        (PROBS, IDS[:, None], ValueError, "`targets`"),
        (PROBS[0], IDS[:3], ValueError, "`probs`"),
        (PROBS[:0], IDS[:0], ValueError, "`probs`"),
        (PROBS, IDS + 1, ValueError, "class ids from 0 to 2, got 3"),
        (PROBS, IDS - 1, ValueError, "class ids from 0 to 2, got -1"),
        (PROBS.log(), IDS, ValueError, "not logits"),
        (PROBS * math.nan, IDS, ValueError, r"in \[0, 1\].*got nan"),
        (PROBS / 2, IDS, ValueError, "rows that sum to 1, got 0.5"),
        (PROBS.long(), IDS, TypeError, "floating-point"),
        (PROBS.tolist(), IDS, TypeError, "floating-point"),
        (PROBS, IDS.float(), TypeError, "integer class ids"),
        (PROBS, IDS == 0, TypeError, "integer class ids"),
        (PROBS, [0, 1, 2, 0], TypeError, "integer class ids"),
    ],
)
def test_bad_input_is_refused_in_one_line(metric, probs, targets, kind, words):
    with pytest.raises(kind, match=words) as caught:
        metric(probs, targets)
    assert str(caught.value).startswith(f"{metric.__name__}: ")
    assert "\n" not in str(caught.value)


def test_groups_must_be_positive():
    with pytest.raises(ValueError, match="`n_bins`"):
        expected_calibration_error(PROBS, IDS, n_bins=0)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8])
def test_targets_of_any_integer_type_will_do(dtype):
    probs = torch.tensor([[0.6, 0.4], [0.3, 0.7], [0.2, 0.8]])
    assert error(probs, torch.tensor([0, 1, 0], dtype=dtype)) == pytest.approx(1 / 3)


def test_a_target_beyond_the_signed_numbers_is_told_as_it_is():
    targets = torch.tensor([0, 1, 2**63 + 5], dtype=torch.uint64)
    with pytest.raises(
        ValueError, match=rf"^error: `targets` must be class ids from 0 to 1, got {2**63 + 5}\.$"
    ):
        error(torch.full((3, 2), 0.5), targets)
