"""The scores of an evaluation and their intervals, against scikit-learn, scipy and plain arithmetic."""

import math

import numpy as np
import pytest
import torch
from scipy.special import entr, log_softmax
from scipy.stats import binomtest
from sklearn.metrics import (
    brier_score_loss,
    log_loss,
    top_k_accuracy_score,
)

from beliefmatch.experiments.evaluate import evaluate
from beliefmatch.experiments.evaluate_config import EvaluateConfig
from beliefmatch.experiments.evaluation_record import EvaluationRecord, Number
from scored_models import LOGITS, PROBS, QUICK, RIGHT, TARGETS, K, N, gaps_of, judged, predictions


@pytest.fixture(name="record")
def _record():
    return judged("logits")


@pytest.fixture(name="record_of_probs")
def _record_of_probs():
    return judged("probs")


def test_scores_equal_those_of_other_libraries(record):
    confidence = PROBS.max(1)
    gaps = gaps_of(confidence, RIGHT, 15)
    by_class = [
        sum(n / N * abs(p - y) for n, p, y in gaps_of(PROBS[:, k], np.equal(TARGETS, k), 15))
        for k in range(K)
    ]
    order = np.argsort(-confidence, kind="stable")
    risks = np.cumsum(~RIGHT[order]) / np.arange(1, N + 1)
    best = np.cumsum(np.sort(~RIGHT)) / np.arange(1, N + 1)
    expected = {
        "error": 1 - RIGHT.mean(),
        "top_k_error": 1 - top_k_accuracy_score(TARGETS, PROBS, k=5),
        "nll": log_loss(TARGETS, PROBS),
        "brier": brier_score_loss(TARGETS, PROBS),
        "ece": sum(n / N * abs(c - a) for n, c, a in gaps),
        "mce": max(abs(c - a) for _, c, a in gaps),
        "classwise_ece": np.mean(by_class),
        "overconfidence": confidence.mean() - RIGHT.mean(),
        "aurc": risks.mean(),
        "excess_aurc": risks.mean() - best.mean(),
        "mean_confidence": confidence.mean(),
        "mean_entropy": entr(PROBS).sum(1).mean(),
    }
    assert {key: record.scores[key].value for key in expected} == pytest.approx(expected, rel=1e-9)
    assert set(record.scores) == {*expected, "adaptive_ece", "debiased_ece"}
    assert [c.calibration_error for c in record.classes] == pytest.approx(by_class)


def test_groups_of_equal_size_are_those_of_a_sorted_list(record):
    order = np.argsort(PROBS.max(1), kind="stable")
    parts = np.array_split(order, 15)
    expected = sum(len(p) / N * abs(PROBS.max(1)[p].mean() - RIGHT[p].mean()) for p in parts)
    assert sum(record.reliability_by_mass.count) == N
    assert max(record.reliability_by_mass.count) - min(record.reliability_by_mass.count) <= 1
    assert record.scores["adaptive_ece"].value == pytest.approx(expected, abs=0.01)  # other ends of groups


def test_intervals_hold_their_values_and_are_as_wide_as_theory_says():
    wide = evaluate(predictions(LOGITS, targets=TARGETS), settings=EvaluateConfig(resamples=1000))
    for key, number in wide.scores.items():
        if key != "classwise_ece":
            assert number.low <= number.value <= number.high
    error = wide.scores["error"]
    assert error.high - error.low == pytest.approx(2 * 1.96 * (RIGHT.std() / math.sqrt(N)), rel=0.15)
    nll = -log_softmax(LOGITS, 1)[np.arange(N), TARGETS]
    width = wide.scores["nll"].high - wide.scores["nll"].low
    assert width == pytest.approx(2 * 1.96 * nll.std() / math.sqrt(N), rel=0.15)


def test_no_resamples_give_values_without_intervals(record):
    bare = evaluate(predictions(LOGITS, targets=TARGETS), settings=EvaluateConfig(resamples=0))
    assert bare.scores["nll"] == Number(record.scores["nll"].value)
    assert bare.misclassification[0].auroc.low is None
    assert bare.conventions["intervals"] == "None were requested."


def test_brier_shares_add_up_to_the_score(record):
    shares = record.brier_shares
    total = shares.reliability - shares.resolution + shares.uncertainty + shares.remainder
    assert total == pytest.approx(record.scores["brier"].value, rel=1e-12)
    frequency = np.bincount(TARGETS, minlength=K) / N
    assert shares.uncertainty == pytest.approx((frequency * (1 - frequency)).sum())


def test_logits_and_their_probabilities_have_one_record_but_for_the_scores_that_need_logits(
    record, record_of_probs
):
    for key, number in record.scores.items():
        assert record_of_probs.scores[key].value == pytest.approx(number.value, rel=1e-9)
    assert record_of_probs.entropy.y == pytest.approx(record.entropy.y)
    assert record_of_probs.confusion == record.confusion
    assert record_of_probs.kind == "probs"
    names = ["entropy", "confidence", "mutual_information", "differential_entropy", "precision", "energy"]
    assert [found.score for found in record.misclassification] == names
    assert [found.score for found in record.ood[0].detections] == names
    assert [found.score for found in record_of_probs.ood[0].detections] == names[:2]


def test_reliability_diagram_counts_every_example_once(record):
    bins = record.reliability
    expected = gaps_of(PROBS.max(1), RIGHT, 15)
    filled = [(n, c, a) for n, c, a in zip(bins.count, bins.confidence, bins.accuracy, strict=True) if n]
    assert filled == [pytest.approx(group) for group in expected]
    assert all((n == 0) == (c is None) for n, c in zip(bins.count, bins.confidence, strict=True))
    assert (bins.lower[0], bins.upper[-1]) == (0, 1)


def test_an_impossible_class_that_came_true_leaves_no_finite_likelihood():
    probs = np.eye(K)[(TARGETS + (np.arange(N) == 0)) % K]
    found = evaluate(predictions(probs, "probs", TARGETS), settings=QUICK)
    assert found.scores["nll"].value is None
    assert "probability 0" in found.scores["nll"].why
    assert found.scores["error"].value == 1 / N
    assert EvaluationRecord.from_json(found.to_json()) == found


def test_few_classes_have_no_top_five():
    found = evaluate(predictions(LOGITS[:, :5], targets=TARGETS % 5), settings=QUICK)
    assert found.scores["top_k_error"] == Number(None, why="there are no more than 5 classes")


def test_no_mistakes_in_few_examples_are_no_proof_of_none():
    logits = 9 * torch.eye(4).repeat(5, 1)
    targets = torch.arange(4).repeat(5)
    record = evaluate(
        predictions(logits.numpy(), targets=targets.numpy()), settings=EvaluateConfig(resamples=50)
    )
    assert record.scores["error"].value == 0
    assert record.scores["error"].high == pytest.approx(binomtest(0, 20).proportion_ci(0.95, "exact").high)


def test_one_example_has_a_value_and_no_interval():
    record = evaluate(predictions(np.array([[2.0, 0.0, 1.0]]), targets=np.array([0])))
    assert record.scores["nll"].value is not None and record.scores["nll"].low is None
    assert record.scores["error"].high == pytest.approx(0.975)
