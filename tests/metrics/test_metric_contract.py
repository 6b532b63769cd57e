"""The contract of metrics of probabilities and targets: independent values, laws, streams, bad input."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from metric_cases import CLASSES, METRICS
from sklearn.metrics import brier_score_loss, log_loss, top_k_accuracy_score

from beliefmatch import metrics
from beliefmatch.metrics import (
    brier,
    brier_parts,
    classwise_calibration_error,
    error,
    expected_calibration_error,
    nll,
    top_k_error,
)
from forecasts import batches, cuts, forecast, seeds
from kernel_contract import READERS, using

FUNCTIONS = [
    case.metric.func if isinstance(case.metric, partial) else case.metric for case in METRICS.values()
]
FUNCTIONS.pop()  # the area under the risk-coverage curve has columns of its own
BINNED = [case.metric.func for case in METRICS.values() if "n_bins" in getattr(case.metric, "keywords", {})]
STREAMED = [name for name, case in METRICS.items() if case.stream is not None]


def approx(expected, **options):
    """Equality of numbers and of tuples of numbers."""
    return pytest.approx(tuple(expected) if isinstance(expected, tuple) else expected, **options)


@pytest.mark.parametrize("name", METRICS)
@given(examples=st.integers(2, 60), classes=st.integers(3, 12), seed=seeds)
@settings(max_examples=25, deadline=None)
def test_equals_an_independent_implementation(name, examples, classes, seed):
    _, probs, targets = forecast(examples, classes, seed)
    metric, oracle, _ = METRICS[name]
    expected = approx(
        oracle(probs.numpy(), targets.numpy()), rel=1e-9, abs=1e-7 if name == "debiased_ece" else 1e-12
    )
    for kernel in READERS:
        with using(kernel):
            assert metric(probs, targets) == expected, kernel


@pytest.mark.parametrize("name", STREAMED)
@given(cuts=cuts, seed=seeds)
@settings(max_examples=15, deadline=None)
def test_any_split_into_batches_gives_the_value_of_the_whole(name, cuts, seed):
    metric, _, stream = METRICS[name]
    logits, probs, targets = forecast(60, CLASSES, seed)
    of_probs, of_logits = stream(), stream()
    for z, p, y in batches(cuts, logits, probs, targets):
        of_probs.update(p, y)
        of_logits.update(logits=z, target=y)
    expected = approx(metric(probs, targets), rel=1e-9)
    assert of_probs.compute().item() == expected
    assert of_logits.compute().item() == expected


@pytest.mark.parametrize("name", METRICS)
def test_examples_and_classes_may_be_reordered(name):
    _, probs, targets = forecast(50, 6, seed=5)
    metric, generator = METRICS[name].metric, torch.Generator().manual_seed(0)
    rows, order = torch.randperm(50, generator=generator), torch.randperm(6, generator=generator)
    whole = approx(metric(probs, targets))
    assert metric(probs[rows], targets[rows]) == whole
    assert metric(probs[:, order], order.argsort()[targets]) == whole


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_lower_precision_agrees_with_double(name, dtype):
    _, probs, targets = forecast(50, 5, seed=1)
    metric, rounded = METRICS[name].metric, probs.to(dtype)
    assert metric(rounded, targets) == approx(metric(rounded.double(), targets), abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8])
def test_targets_may_be_of_any_integer_type(dtype):
    probs = torch.tensor([[0.6, 0.4], [0.3, 0.7], [0.2, 0.8]])
    assert error(probs, torch.tensor([0, 1, 0], dtype=dtype)) == pytest.approx(1 / 3)


def test_fifteen_bins_and_five_classes_are_the_defaults():
    _, probs, targets = forecast(200, 8, seed=2)
    for metric in BINNED:
        assert metric(probs, targets) == metric(probs, targets, n_bins=15)
    assert top_k_error(probs, targets) == top_k_error(probs, targets, k=5)
    summary = metrics.Summary()
    summary.update(probs, targets)
    found = {name: value.item() for name, value in summary.compute().items()}
    assert found["top_k_error"] == pytest.approx(top_k_error(probs, targets))
    assert found["ece"] == pytest.approx(expected_calibration_error(probs, targets))
    calibration = (
        metrics.ExpectedCalibrationError(),
        metrics.ClasswiseCalibrationError(8),
        metrics.TopKError(),
    )
    assert [*(stream.n_bins for stream in calibration[:2]), calibration[2].k] == [15, 15, 5]


def test_classwise_error_in_single_precision_over_many_blocks():
    _, probs, targets = forecast(600, 1000, seed=7)
    single = classwise_calibration_error(probs.float(), targets)
    assert single == pytest.approx(classwise_calibration_error(probs.float().double(), targets), rel=1e-6)


@given(examples=st.integers(1, 60), classes=st.integers(1, 9), seed=seeds)
@settings(max_examples=20, deadline=None)
def test_values_keep_their_bounds(examples, classes, seed):
    _, probs, targets = forecast(examples, classes, seed)
    value = {name: case.metric(probs, targets) for name, case in METRICS.items()}
    for name in (
        "error",
        "top_k_error",
        "ece",
        "mce",
        "adaptive_ece",
        "debiased_ece",
        "classwise_ece",
        "aurc",
    ):
        assert 0 <= value[name] <= 1, name
    assert value["top_k_error"] <= value["error"] and 0 <= value["brier"] <= 2 and value["nll"] >= 0
    assert value["ece"] <= value["mce"] + 1e-12  # the mean gap is no larger than the largest
    signed, over, under = value["overconfidence"]
    assert over >= 0 and under >= 0 and signed == pytest.approx(over - under, abs=1e-12)
    assert over + under == pytest.approx(value["ece"])
    reliability, resolution, uncertainty, remainder = value["brier_parts"]
    assert reliability - resolution + uncertainty + remainder == pytest.approx(value["brier"], abs=1e-14)


@pytest.mark.parametrize("name", ["error", "nll", "brier", "ece"])
def test_metrics_that_are_means_are_those_of_two_halves_averaged(name):
    _, probs, targets = forecast(40, 7, seed=3)
    metric = METRICS[name].metric
    average = (metric(probs[:20], targets[:20]) + metric(probs[20:], targets[20:])) / 2
    if name == "ece":
        assert metric(probs, targets) <= average + 1e-12  # gaps of opposite sign cancel in the larger bin
    else:
        assert metric(probs, targets) == pytest.approx(average)


# Cases worked by hand, and where scikit-learn has another convention


def test_top_k_error_falls_with_k_from_the_error_to_zero():
    _, probs, targets = forecast(80, 6, seed=3)
    errors = [top_k_error(probs, targets, k=k) for k in range(1, 8)]
    assert errors[0] == error(probs, targets)
    assert errors == sorted(errors, reverse=True)
    assert errors[5:] == [0.0, 0.0]


def test_nll_is_zero_for_the_certain_and_infinite_for_the_impossible_where_scikit_learn_clips():
    probs, targets = torch.tensor([[1.0, 0.0], [0.5, 0.5]]).double(), torch.tensor([1, 0])
    assert nll(probs, targets) == math.inf
    assert log_loss(targets, probs) == pytest.approx((-math.log(np.finfo(float).eps) + math.log(2)) / 2)
    assert nll(probs[:1], torch.tensor([0])) == 0


def test_of_tied_classes_scikit_learn_takes_the_last_and_we_the_first():
    probs = torch.tensor([[0.4, 0.4, 0.2]]).double()
    theirs = [top_k_accuracy_score([y], probs, k=1, labels=[0, 1, 2]) for y in range(3)]
    ours = [1 - top_k_error(probs, torch.tensor([y]), k=1) for y in range(3)]
    assert (theirs, ours) == ([0, 1, 0], [1, 0, 0])
    assert [1 - error(probs, torch.tensor([y])) for y in range(3)] == ours


def test_brier_scores_worked_by_hand():
    certain = torch.eye(3)
    assert brier(certain, torch.tensor([0, 1, 2])) == 0
    assert brier(certain, torch.tensor([1, 2, 0])) == 2
    assert brier(torch.full((3, 4), 0.25), torch.tensor([0, 1, 3])) == pytest.approx(0.75)
    _, probs, targets = forecast(50, 2, seed=1)  # of two classes scikit-learn takes the half
    assert brier(probs, targets) == pytest.approx(2 * brier_score_loss(targets, probs[:, 1]))


def test_forecasts_of_one_value_a_bin_leave_no_remainder():
    probs = torch.tensor([[0.75, 0.25]] * 4 + [[0.25, 0.75]] * 4, dtype=torch.float64)
    parts = brier_parts(probs, torch.tensor([0, 0, 0, 1, 1, 1, 0, 0]))
    assert parts.remainder == pytest.approx(0, abs=1e-15)
    assert parts.reliability == pytest.approx(
        2 * 0.5 * 0.25**2
    )  # the second four forecast 3/4, half come true
    assert parts.uncertainty == pytest.approx(2 * (5 / 8) * (3 / 8))


# Bad input

PROBS, IDS = torch.full((4, 3), 1 / 3), torch.tensor([0, 1, 2, 0])
BAD = [
    (PROBS, IDS[:3], ValueError, "target"),
    (PROBS, IDS[:, None], ValueError, "target"),
    (PROBS, IDS + 1, ValueError, "target"),
    (PROBS, IDS - 1, ValueError, "target"),
    (PROBS, IDS.float(), TypeError, "target"),
    (PROBS, IDS == 0, TypeError, "target"),
    (PROBS, [0, 1, 2, 0], TypeError, "target"),
    (PROBS[0], IDS[:3], ValueError, "preds"),
    (PROBS[:0], IDS[:0], ValueError, "preds"),
    (PROBS.log(), IDS, ValueError, "preds"),
    (PROBS * math.nan, IDS, ValueError, "preds"),
    (PROBS / 2, IDS, ValueError, "preds"),
    (PROBS.long(), IDS, TypeError, "preds"),
    (PROBS.tolist(), IDS, TypeError, "preds"),
]


@pytest.mark.parametrize("metric", FUNCTIONS)
@pytest.mark.parametrize(("probs", "targets", "kind", "argument"), BAD)
def test_an_invalid_argument_is_named_in_one_line(metric, probs, targets, kind, argument):
    with pytest.raises(kind, match=rf"^{metric.__name__}: `{argument}` [^\n]+\.$"):
        metric(probs, targets)


@pytest.mark.parametrize("bad", [0, -3, 1.5, True])
def test_numbers_of_bins_and_of_classes_must_be_positive_integers(bad):
    kind = ValueError if type(bad) is int else TypeError
    for metric in BINNED:
        with pytest.raises(kind, match=rf"^{metric.__name__}: `n_bins`"):
            metric(PROBS, IDS, n_bins=bad)
    with pytest.raises(kind, match=r"^top_k_error: `k`"):
        top_k_error(PROBS, IDS, k=bad)


@pytest.mark.parametrize("received", [3, -1, 2**63 + 5])
def test_a_target_of_no_class_is_shown_as_it_was_received(received):
    targets = torch.tensor([0, 1, received], dtype=torch.int64 if received < 0 else torch.uint64)
    with pytest.raises(ValueError, match=rf"^error: `target` .*, got {received}\.$"):
        error(torch.full((3, 2), 0.5), targets)


def test_the_message_of_logits_given_as_probabilities_says_so():
    with pytest.raises(ValueError, match=r"^expected_calibration_error: `preds` .*not logits.*got -1\.09"):
        expected_calibration_error(PROBS.log(), IDS)
