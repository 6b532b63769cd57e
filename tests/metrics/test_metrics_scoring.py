"""Scores against scikit-learn, torchmetrics and hand-worked cases; Brier's parts against a plain loop."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import brier_score_loss, log_loss, top_k_accuracy_score
from torchmetrics.functional.classification import multiclass_accuracy

from beliefmatch.metrics import brier, brier_parts, error, nll, top_k_error
from forecasts import forecast, seeds


@given(st.integers(2, 60), st.integers(3, 9), st.integers(1, 8), seeds)
@settings(max_examples=30, deadline=None)
def test_top_k_error_equals_scikit_learn(examples, classes, k, seed):
    _, probs, targets = forecast(examples, classes, seed)
    k = min(k, classes - 1)
    accuracy = top_k_accuracy_score(targets, probs, k=k, labels=np.arange(classes))
    assert top_k_error(probs, targets, k=k) == pytest.approx(1 - accuracy)


@given(st.integers(1, 60), st.integers(3, 9), seeds)
@settings(max_examples=30, deadline=None)
def test_brier_equals_scikit_learn(examples, classes, seed):
    _, probs, targets = forecast(examples, classes, seed)
    assert brier(probs, targets) == pytest.approx(brier_score_loss(targets, probs, labels=np.arange(classes)))


@pytest.mark.parametrize("k", [1, 3])
def test_top_k_error_equals_torchmetrics(k):
    _, probs, targets = forecast(80, 6, seed=2)
    accuracy = multiclass_accuracy(probs, targets, num_classes=6, top_k=k, average="micro")
    assert top_k_error(probs, targets, k=k) == pytest.approx(1 - accuracy.item(), abs=1e-6)


def test_top_k_error_falls_with_k_from_the_error_to_zero():
    _, probs, targets = forecast(80, 6, seed=3)
    errors = [top_k_error(probs, targets, k=k) for k in range(1, 8)]
    assert errors[0] == error(probs, targets)
    assert errors == sorted(errors, reverse=True)
    assert errors[5:] == [0.0, 0.0]


def test_with_two_classes_the_score_is_twice_that_of_the_halved_convention():
    _, probs, targets = forecast(50, 2, seed=1)
    halved = brier_score_loss(targets, probs[:, 1])
    assert brier(probs, targets) == pytest.approx(2 * halved)


def test_where_scikit_learn_clips_the_nll_is_infinite():
    probs, targets = torch.tensor([[1.0, 0.0], [0.5, 0.5]]).double(), torch.tensor([1, 0])
    assert nll(probs, targets) == math.inf
    assert log_loss(targets, probs) == pytest.approx((-math.log(np.finfo(float).eps) + math.log(2)) / 2)


def test_of_tied_classes_scikit_learn_takes_the_last_and_we_the_first():
    probs, targets = torch.tensor([[0.4, 0.4, 0.2]] * 3).double(), torch.tensor([0, 1, 2])
    assert top_k_error(probs, targets, k=1) == error(probs, targets)
    assert (probs.argmax(1) == targets).tolist() == [True, False, False]
    theirs = [top_k_accuracy_score([y], probs[:1], k=1, labels=[0, 1, 2]) for y in range(3)]
    ours = [1 - top_k_error(probs[:1], torch.tensor([y]), k=1) for y in range(3)]
    assert (theirs, ours) == ([0, 1, 0], [1, 0, 0])


def test_hand_worked_brier_scores():
    certain = torch.eye(3)
    assert brier(certain, torch.tensor([0, 1, 2])) == 0
    assert brier(certain, torch.tensor([1, 2, 0])) == 2
    assert brier(torch.full((3, 4), 0.25), torch.tensor([0, 1, 3])) == pytest.approx(0.75)


def parts_by_loop(probs: np.ndarray, targets: np.ndarray, n_bins: int) -> tuple[float, ...]:
    """Murphy's parts class by class and group by group, the remainder by its own formula."""
    classes = probs.shape[1]
    reliability = resolution = uncertainty = remainder = 0.0
    for k in range(classes):
        p, y = probs[:, k], (targets == k).astype(float)
        uncertainty += y.mean() * (1 - y.mean())
        for i in range(n_bins):
            in_distribution = (p > i / n_bins) & (p <= (i + 1) / n_bins) | ((i == 0) & (p == 0))
            if in_distribution.any():
                pi, yi, share = p[in_distribution], y[in_distribution], in_distribution.mean()
                reliability += share * (pi.mean() - yi.mean()) ** 2
                resolution += share * (yi.mean() - y.mean()) ** 2
                within = ((pi - pi.mean()) ** 2).mean()
                remainder += share * (within - 2 * ((pi - pi.mean()) * (yi - yi.mean())).mean())
    return reliability, resolution, uncertainty, remainder


@given(st.integers(1, 60), st.integers(2, 6), st.integers(1, 16), seeds)
@settings(max_examples=30, deadline=None)
def test_parts_of_the_brier_score_equal_a_plain_loop_and_add_up(examples, classes, n_bins, seed):
    _, probs, targets = forecast(examples, classes, seed)
    parts = brier_parts(probs, targets, n_bins=n_bins)
    assert tuple(parts) == pytest.approx(parts_by_loop(probs.numpy(), targets.numpy(), n_bins), abs=1e-12)
    whole = parts.reliability - parts.resolution + parts.uncertainty + parts.remainder
    assert whole == pytest.approx(brier(probs, targets), abs=1e-14)


def test_forecasts_of_one_value_a_group_leave_no_remainder():
    probs = torch.tensor([[0.75, 0.25]] * 4 + [[0.25, 0.75]] * 4, dtype=torch.float64)
    parts = brier_parts(probs, torch.tensor([0, 0, 0, 1, 1, 1, 0, 0]))
    assert parts.remainder == pytest.approx(0, abs=1e-15)
    assert parts.reliability == pytest.approx(2 * 0.5 * 0.25**2)  # the second four promise 3/4, hold 1/2
    assert parts.uncertainty == pytest.approx(2 * (5 / 8) * (3 / 8))


@pytest.mark.parametrize("metric", [brier, top_k_error, lambda p, y: sum(brier_parts(p, y))])
def test_examples_and_classes_may_be_reordered(metric):
    _, probs, targets = forecast(40, 6, seed=5)
    generator = torch.Generator().manual_seed(0)
    rows, order = torch.randperm(40, generator=generator), torch.randperm(6, generator=generator)
    whole = metric(probs, targets)
    assert metric(probs[rows], targets[rows]) == pytest.approx(whole)
    assert metric(probs[:, order], order.argsort()[targets]) == pytest.approx(whole)


@pytest.mark.parametrize("metric", [brier, top_k_error, brier_parts])
def test_logits_given_as_probabilities_are_refused(metric):
    logits, _, targets = forecast(10, 4, seed=0)
    with pytest.raises(ValueError, match=rf"^{metric.__name__}: `probs` must be in \[0, 1\]"):
        metric(logits, targets)


@pytest.mark.parametrize(
    ("k", "kind"), [(0, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError)]
)
def test_k_must_be_a_positive_integer(k, kind):
    _, probs, targets = forecast(10, 4, seed=0)
    with pytest.raises(kind, match="`k`"):
        top_k_error(probs, targets, k=k)
