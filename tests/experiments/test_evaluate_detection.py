"""Detection, risk thresholds and risk-coverage of an evaluation, against scikit-learn and scipy."""

import math

import numpy as np
import pytest
import torch
from scipy.special import entr, logsumexp
from scipy.stats import beta, norm
from sklearn.metrics import (
    average_precision_score,
    roc_auc_score,
)

from beliefmatch import Belief
from beliefmatch.experiments.evaluate import evaluate
from beliefmatch.experiments.evaluate_config import EvaluateConfig
from beliefmatch.experiments.evaluation_record import EvaluationRecord, Number
from beliefmatch.experiments.evaluation_views import entropy_density
from scored_models import (
    LOGITS,
    OOD,
    OTHER_PROBS,
    OTHERS,
    PROBS,
    QUICK,
    RIGHT,
    TARGETS,
    K,
    judged,
    predictions,
)


@pytest.fixture(name="record")
def _record():
    return judged("logits")


SCORES = {
    "entropy": (entr(PROBS).sum(1), entr(OTHER_PROBS).sum(1)),
    "confidence": (1 - PROBS.max(1), 1 - OTHER_PROBS.max(1)),
    "mutual_information": tuple(
        Belief(torch.from_numpy(z)).mutual_information().numpy() for z in (LOGITS, OTHERS)
    ),
    "differential_entropy": tuple(
        Belief(torch.from_numpy(z)).differential_entropy().numpy() for z in (LOGITS, OTHERS)
    ),
    "precision": (-logsumexp(LOGITS, 1), -logsumexp(OTHERS, 1)),
    "energy": (-logsumexp(LOGITS, 1), -logsumexp(OTHERS, 1)),
}


@pytest.mark.parametrize("score", SCORES)
def test_detection_equals_scikit_learn(record, score):
    in_distribution, ood = SCORES[score]
    tasks = [
        (record.ood[0].detections, in_distribution, ood),
        (record.misclassification, in_distribution[RIGHT], in_distribution[~RIGHT]),
    ]
    for detections, known, ood in tasks:
        (found,) = (one for one in detections if one.score == score)
        truth = np.r_[np.zeros(len(known)), np.ones(len(ood))]
        both = np.r_[known, ood]
        assert found.auroc.value == pytest.approx(roc_auc_score(truth, both), rel=1e-9)
        assert found.aupr_ood.value == pytest.approx(average_precision_score(truth, both), rel=1e-9)
        assert found.aupr_id.value == pytest.approx(average_precision_score(1 - truth, -both), rel=1e-9)
        threshold = np.sort(known)[math.ceil(0.95 * len(known) - 1e-9) - 1]
        assert found.fpr95.value == pytest.approx((ood <= threshold).mean())
        assert found.auroc.low < found.auroc.value < found.auroc.high
        assert np.trapezoid(found.roc.y, found.roc.x) == pytest.approx(found.auroc.value, abs=0.005)


def test_a_ood_set_is_described(record):
    (noise,) = record.ood
    assert (noise.name, noise.examples) == ("noise", OOD)
    assert noise.mean_confidence == pytest.approx(OTHER_PROBS.max(1).mean())
    assert np.trapezoid(noise.entropy.y, noise.entropy.x) == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("classes", [2, 10, 1000])
@pytest.mark.parametrize("place", [0.0, 0.3, 1.0])
def test_entropy_densities_cover_their_range_and_have_area_one(classes, place):
    top = math.log(classes)
    samples = torch.tensor([place * top, 0.5 * top, 0.9 * top], dtype=torch.float64)
    curve = entropy_density(samples, classes)
    assert (curve.x[0], curve.x[-1]) == (0, pytest.approx(top))
    assert min(curve.y) >= 0
    assert np.trapezoid(curve.y, curve.x) == pytest.approx(1, abs=1e-3)
    grid, width = np.array(curve.x)[:, None], 0.02 * top
    mirrored = np.concatenate([samples, -samples, 2 * top - samples])
    expected = norm.pdf(grid, mirrored, width).sum(1) / len(samples)
    assert curve.y == pytest.approx(expected, abs=0.01 * expected.max())


def test_risk_coverage_ends_at_the_error(record):
    curve = record.risk_coverage
    assert (curve.x[-1], curve.y[-1]) == (1, pytest.approx(1 - RIGHT.mean()))
    assert np.mean(curve.y) == pytest.approx(record.scores["aurc"].value)


def test_long_curves_are_thinned_but_keep_their_ends():
    rng = np.random.default_rng(3)
    many = evaluate(
        predictions(rng.normal(size=(5000, 3)), targets=rng.integers(0, 3, 5000)),
        settings=EvaluateConfig(resamples=0),
    )
    assert len(many.risk_coverage.x) == 500
    assert many.risk_coverage.x[0] == 1 / 5000
    assert many.risk_coverage.x[-1] == 1
    assert len(many.misclassification[0].roc.x) <= 500


def test_promises_keep_what_they_say(record):
    for promise in record.risk_thresholds:
        answered = PROBS.max(1) >= promise.threshold
        wrong = (~RIGHT[answered]).sum()
        assert promise.coverage == pytest.approx(answered.mean())
        assert promise.observed_risk == pytest.approx(wrong / answered.sum())
        bound = beta.ppf(1 - 0.05 / 50, wrong + 1, answered.sum() - wrong)
        assert promise.bound == pytest.approx(bound, rel=1e-6)
        assert promise.bound <= promise.risk
    assert [promise.risk for promise in record.risk_thresholds] == [0.3, 0.5]


def test_a_promise_that_cannot_be_made_is_none():
    hard = EvaluateConfig(resamples=0, risks=(1e-6,))
    (promise,) = evaluate(predictions(LOGITS, targets=TARGETS), settings=hard).risk_thresholds
    assert (promise.threshold, promise.coverage, promise.bound) == (None, 0, None)


def test_a_model_without_mistakes_says_why_there_is_nothing_to_detect():
    sure = np.eye(K)[TARGETS] * 9
    found = evaluate(predictions(sure, targets=TARGETS), settings=QUICK)
    assert found.misclassification[0].auroc == Number(None, why="every prediction is right")
    assert found.misclassification[0].roc.x == []
    assert found.mistakes == []
    assert EvaluationRecord.from_json(found.to_json()) == found
    wrong = evaluate(predictions(-sure, targets=TARGETS), settings=QUICK)
    assert wrong.misclassification[0].auroc.why == "every prediction is wrong"
