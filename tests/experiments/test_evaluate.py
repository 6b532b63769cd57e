"""Evaluations against scikit-learn, scipy and plain arithmetic; their records, options and bad input."""

import base64
import io
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.image import imread
from scipy.special import entr, log_softmax, logsumexp, softmax
from scipy.stats import beta, binomtest, norm
from sklearn.metrics import (
    average_precision_score,
    brier_score_loss,
    confusion_matrix,
    log_loss,
    roc_auc_score,
    top_k_accuracy_score,
)

from beliefmatch import Belief
from beliefmatch.experiments.evaluate import STEPS, evaluate
from beliefmatch.experiments.evaluate_config import EvaluateConfig
from beliefmatch.experiments.evaluation_parts import LONGEST_SIDE, entropy_density, thumbnail
from beliefmatch.experiments.evaluation_record import EvaluationRecord, Number
from beliefmatch.experiments.paired_aurocs import PairedAurocs
from beliefmatch.metrics import auroc_difference
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
    N,
    gaps_of,
    judged,
    predictions,
)

CONFIDENCE, ENTROPY = PROBS.max(1), entr(PROBS).sum(1)
WITHOUT_INTERVALS = EvaluateConfig(resamples=0)


def evaluated(values, targets=TARGETS, *, kind="logits", settings=QUICK, **options) -> EvaluationRecord:
    """The record of some predictions, which is the same when it is read back from JSON."""
    record = evaluate(predictions(values, kind, targets), settings=settings, **options)
    assert EvaluationRecord.from_json(record.to_json()) == record
    return record


@pytest.fixture(name="record")
def _record():
    return judged("logits")


def test_scores_equal_those_of_other_libraries(record):
    gaps = gaps_of(CONFIDENCE, RIGHT, 15)
    by_class = [
        sum(n / N * abs(p - y) for n, p, y in gaps_of(PROBS[:, k], np.equal(TARGETS, k), 15))
        for k in range(K)
    ]
    order = np.argsort(-CONFIDENCE, kind="stable")
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
        "overconfidence": CONFIDENCE.mean() - RIGHT.mean(),
        "aurc": risks.mean(),
        "excess_aurc": risks.mean() - best.mean(),
        "mean_confidence": CONFIDENCE.mean(),
        "mean_entropy": ENTROPY.mean(),
    }
    assert {key: record.scores[key].value for key in expected} == pytest.approx(expected, rel=1e-9)
    assert set(record.scores) == {*expected, "adaptive_ece", "debiased_ece"}
    assert [c.calibration_error for c in record.classes] == pytest.approx(by_class)


def test_reliability_bins_count_every_example_once(record):
    bins = record.reliability
    filled = [row for row in zip(bins.count, bins.confidence, bins.accuracy, strict=True) if row[0]]
    assert filled == [pytest.approx(group) for group in gaps_of(CONFIDENCE, RIGHT, 15)]
    assert all((n == 0) == (c is None) for n, c in zip(bins.count, bins.confidence, strict=True))
    assert (bins.lower[0], bins.upper[-1]) == (0, 1)
    by_mass = record.reliability_by_mass
    assert sum(by_mass.count) == N and max(by_mass.count) - min(by_mass.count) <= 1
    parts = np.array_split(np.argsort(CONFIDENCE, kind="stable"), 15)
    expected = sum(len(part) / N * abs(CONFIDENCE[part].mean() - RIGHT[part].mean()) for part in parts)
    assert record.scores["adaptive_ece"].value == pytest.approx(expected, abs=0.01)  # other ends of bins


def test_intervals_hold_their_values_and_are_as_wide_as_theory_says():
    scores = evaluated(LOGITS, settings=EvaluateConfig(resamples=1000)).scores
    assert all(one.low <= one.value <= one.high for key, one in scores.items() if key != "classwise_ece")
    width = {key: scores[key].high - scores[key].low for key in ("error", "nll")}
    assert width["error"] == pytest.approx(2 * 1.96 * RIGHT.std() / math.sqrt(N), rel=0.15)
    nll = -log_softmax(LOGITS, 1)[np.arange(N), TARGETS]
    assert width["nll"] == pytest.approx(2 * 1.96 * nll.std() / math.sqrt(N), rel=0.15)


def test_no_resamples_give_the_same_values_without_intervals(record):
    bare = evaluated(LOGITS, settings=WITHOUT_INTERVALS)
    assert bare.scores == {key: Number(one.value) for key, one in record.scores.items()}
    assert bare.misclassification[0].auroc == Number(record.misclassification[0].auroc.value)
    assert bare.draws is None and bare.settings["resamples_drawn"] == 0
    assert bare.conventions["intervals"] != record.conventions["intervals"]


def test_brier_shares_add_up_to_the_score(record):
    shares = record.brier_shares
    total = shares.reliability - shares.resolution + shares.uncertainty + shares.remainder
    assert total == pytest.approx(record.scores["brier"].value, rel=1e-12)
    frequency = np.bincount(TARGETS, minlength=K) / N
    assert shares.uncertainty == pytest.approx((frequency * (1 - frequency)).sum())


def test_probabilities_have_the_record_of_their_logits_but_for_scores_that_need_logits(record):
    of_probs = judged("probs")
    assert {key: one.value for key, one in of_probs.scores.items()} == pytest.approx(
        {key: one.value for key, one in record.scores.items()}, rel=1e-9
    )
    assert of_probs.entropy.y == pytest.approx(record.entropy.y)
    assert of_probs.confusion == record.confusion
    assert of_probs.kind == "probs"
    assert [found.score for found in record.misclassification] == list(SCORES)
    assert [found.score for found in record.ood[0].detections] == list(SCORES)
    assert [found.score for found in of_probs.ood[0].detections] == list(SCORES)[:2]
    assert EvaluationRecord.from_json(of_probs.to_json()) == of_probs


def test_an_impossible_class_that_came_true_leaves_no_finite_likelihood():
    found = evaluated(np.eye(K)[(TARGETS + (np.arange(N) == 0)) % K], kind="probs")
    assert found.scores["nll"].value is None and found.scores["nll"].why
    assert found.scores["error"].value == 1 / N
    assert "nll" not in found.draws.metrics


def test_as_few_classes_as_top_k_have_no_top_k_error():
    found = evaluated(LOGITS[:, :5], TARGETS % 5)
    assert found.scores["top_k_error"].value is None and found.scores["top_k_error"].why


def test_intervals_of_rates_are_exact():
    found = evaluated(9 * np.tile(np.eye(4), (5, 1)), np.tile(np.arange(4), 5))
    assert found.scores["error"].value == 0
    assert found.scores["error"].high == pytest.approx(binomtest(0, 20).proportion_ci(0.95, "exact").high)


@pytest.mark.parametrize("examples", [1, 2])
def test_one_example_is_enough_but_has_no_bootstrap(examples):
    found = evaluated(LOGITS[:examples], TARGETS[:examples])
    assert found.examples == examples
    assert (found.scores["nll"].low is None) == (found.draws is None) == (examples == 1)
    if examples == 1:
        assert found.scores["error"].low is not None


# Detection, selective prediction.

BELIEFS = Belief(torch.from_numpy(LOGITS)), Belief(torch.from_numpy(OTHERS))
SCORES = {
    "entropy": (ENTROPY, entr(OTHER_PROBS).sum(1)),
    "confidence": (1 - CONFIDENCE, 1 - OTHER_PROBS.max(1)),
    "mutual_information": [belief.mutual_information().numpy() for belief in BELIEFS],
    "differential_entropy": [belief.differential_entropy().numpy() for belief in BELIEFS],
    "energy": (-logsumexp(LOGITS, 1), -logsumexp(OTHERS, 1)),
    "max_logit": (-LOGITS.max(1), -OTHERS.max(1)),
}


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("task", ["ood", "misclassification"])
def test_detection_equals_scikit_learn(record, score, task):
    known, others = SCORES[score]
    detections = record.ood[0].detections
    if task == "misclassification":
        known, others, detections = known[RIGHT], known[~RIGHT], record.misclassification
    (found,) = (one for one in detections if one.score == score)
    truth, both = np.r_[np.zeros(len(known)), np.ones(len(others))], np.r_[known, others]
    assert found.auroc.value == pytest.approx(roc_auc_score(truth, both), rel=1e-9)
    assert found.aupr_ood.value == pytest.approx(average_precision_score(truth, both), rel=1e-9)
    assert found.aupr_id.value == pytest.approx(average_precision_score(1 - truth, -both), rel=1e-9)
    threshold = np.sort(known)[math.ceil(0.95 * len(known) - 1e-9) - 1]
    assert found.fpr95.value == pytest.approx((others <= threshold).mean())
    assert found.auroc.low < found.auroc.value < found.auroc.high
    assert np.trapezoid(found.roc.y, found.roc.x) == pytest.approx(found.auroc.value, abs=0.005)


def together(*models, settings=QUICK):
    """Records of logits, targets and OOD logits, evaluated together."""
    areas = PairedAurocs(settings.level)
    made = []
    for place, (values, targets, others) in enumerate(models):
        given = replace(predictions(values, targets=targets), path=Path(f"{place}.npz"))
        ood = {"noise": predictions(others)}
        made.append(evaluate(given, ood=ood, settings=settings, areas=areas))
    return areas.with_differences(made)


def test_models_that_are_evaluated_together_have_paired_differences_of_their_areas():
    noise = np.random.default_rng(3).normal(size=LOGITS.shape)
    first, second = together((LOGITS, TARGETS, OTHERS), (LOGITS + noise, TARGETS, 0.5 * OTHERS))
    assert EvaluationRecord.from_json(first.to_json()) == first
    sides = [
        torch.from_numpy(np.stack([entr(softmax(z, 1)).sum(1) for z in pair], 1))
        for pair in ((LOGITS, LOGITS + noise), (OTHERS, 0.5 * OTHERS))
    ]
    found, back = first.ood[0].detections[0], second.ood[0].detections[0]
    (one,), (other,) = found.auroc_differences, back.auroc_differences
    expected = auroc_difference(*sides)
    assert (one.source, other.source) == ("1.npz", "0.npz")
    assert (one.difference.value, one.difference.low, one.difference.high) == pytest.approx(expected)
    assert other.difference.low == pytest.approx(-expected.high)
    assert one.difference.value == pytest.approx(found.auroc.value - back.auroc.value)
    for mine, theirs in zip(first.misclassification, second.misclassification, strict=True):
        (paired,) = mine.auroc_differences
        assert paired.difference.value == pytest.approx(mine.auroc.value - theirs.auroc.value)
        assert paired.difference.low < paired.difference.value < paired.difference.high


@pytest.mark.parametrize(
    ("second", "of_ood"),
    [
        ((LOGITS, np.roll(TARGETS, 1), OTHERS), False),
        ((LOGITS[1:], TARGETS[1:], OTHERS), False),
        ((LOGITS, TARGETS, OTHERS[1:]), False),
        ((LOGITS, TARGETS, OTHERS), True),
    ],
    ids=["targets", "examples", "OOD examples", "the same"],
)
def test_only_areas_of_the_same_examples_are_paired(second, of_ood):
    record, _ = together((LOGITS, TARGETS, OTHERS), second)
    assert all(bool(one.auroc_differences) is of_ood for one in record.ood[0].detections)
    alone, _ = together((LOGITS, TARGETS, OTHERS), second, settings=WITHOUT_INTERVALS)
    assert not any(one.auroc_differences for one in alone.ood[0].detections)


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_records_of_earlier_versions_are_read(record, version):
    content = json.loads(record.to_json())
    for one in (*content["misclassification"], *content["ood"][0]["detections"]):
        del one["auroc_differences"]
    for name in ("prediction_sets", "draws")[: max(0, 3 - version)]:
        del content[name]
    read = EvaluationRecord.from_json(json.dumps({**content, "schema": f"beliefmatch.evaluation/{version}"}))
    assert read.scores == record.scores and read.ood == record.ood
    assert (read.draws is None, read.prediction_sets == []) == (version == 1, version < 3)


def test_an_ood_set_is_described(record):
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
    found = evaluated(rng.normal(size=(5000, 3)), rng.integers(0, 3, 5000), settings=WITHOUT_INTERVALS)
    curve = found.risk_coverage
    assert (len(curve.x), curve.x[0], curve.x[-1]) == (500, 1 / 5000, 1)
    assert len(found.misclassification[0].roc.x) <= 500


def test_risk_thresholds_keep_their_bounds(record):
    assert [one.risk for one in record.risk_thresholds] == [0.3, 0.5]
    for one in record.risk_thresholds:
        answered = one.threshold <= CONFIDENCE
        wrong = (~RIGHT[answered]).sum()
        assert one.coverage == pytest.approx(answered.mean())
        assert one.observed_risk == pytest.approx(wrong / answered.sum())
        bound = beta.ppf(1 - 0.05 / 50, wrong + 1, answered.sum() - wrong)
        assert one.bound == pytest.approx(bound, rel=1e-6)
        assert one.bound <= one.risk
    (none,) = evaluated(LOGITS, settings=EvaluateConfig(resamples=0, risks=(1e-6,))).risk_thresholds
    assert (none.threshold, none.coverage, none.bound) == (None, 0, None)


@pytest.mark.parametrize(("sign", "why"), [(1, "right"), (-1, "wrong")])
def test_without_mistakes_or_without_right_predictions_there_is_nothing_to_detect(sign, why):
    found = evaluated(sign * 9 * np.eye(K)[TARGETS])
    assert found.misclassification[0].auroc == Number(None, why=f"every prediction is {why}")
    assert found.misclassification[0].roc.x == []
    assert (found.mistakes == []) == (sign == 1)


# Classes and examples.


def test_confusions_equal_scikit_learn(record):
    expected = confusion_matrix(TARGETS, PROBS.argmax(1), labels=range(K))
    assert record.confusion.matrix == expected.tolist()
    mistakes = {(t, p): expected[t, p] for t in range(K) for p in range(K) if t != p and expected[t, p]}
    assert {(t, p): count for t, p, count in record.confusion.pairs} == mistakes
    counts = [count for *_, count in record.confusion.pairs]
    assert counts == sorted(counts, reverse=True)


def test_many_classes_have_pairs_in_place_of_a_matrix():
    rng = np.random.default_rng(1)
    found = evaluated(rng.normal(size=(300, 60)), rng.integers(0, 60, 300))
    assert found.confusion.matrix is None
    assert (len(found.confusion.pairs), len(found.classes)) == (50, 60)


def test_classes_are_counted(record):
    for one in record.classes:
        own = np.equal(TARGETS, one.index)
        assert one.examples == own.sum()
        assert one.predicted == (PROBS.argmax(1) == one.index).sum()
        assert one.error == pytest.approx(1 - RIGHT[own].mean())
        assert one.mean_probability == pytest.approx(PROBS[:, one.index].mean())
    absent = evaluated(LOGITS, np.where(TARGETS == 3, 0, TARGETS)).classes[3]
    assert (absent.examples, absent.error) == (0, None)


def test_the_most_confident_mistakes_and_the_highest_entropies_come_first(record):
    mistakes = sorted(np.flatnonzero(~RIGHT), key=lambda row: -CONFIDENCE[row])[:5]
    assert [example.index for example in record.mistakes] == mistakes
    assert [example.index for example in record.doubtful] == list(np.argsort(-ENTROPY)[:5])
    images = np.arange(N * 20, dtype=np.uint8).reshape(N, 4, 5)
    for example in (*record.mistakes, *record.doubtful):
        row = example.index
        assert (example.target, example.predicted) == (TARGETS[row], PROBS[row].argmax())
        assert example.confidence == pytest.approx(CONFIDENCE[row])
        assert example.target_probability == pytest.approx(PROBS[row, TARGETS[row]])
        assert example.entropy == pytest.approx(ENTROPY[row])
        assert np.array_equal(pixels(example.image), images[row])


def pixels(text: str | None) -> np.ndarray:
    """A PNG in base64 as bytes, read by matplotlib."""
    assert text is not None
    return (imread(io.BytesIO(base64.b64decode(text)), format="png") * 255).round().astype(np.uint8)


RGB = np.random.default_rng(5).integers(0, 256, (6, 5, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (RGB, RGB),
        (RGB.transpose(2, 0, 1), RGB),
        (RGB / 255, RGB),
        (RGB[..., :1], RGB[..., 0]),
        (RGB[..., 0], RGB[..., 0]),
        (np.dstack([RGB, RGB[..., :1]]), np.dstack([RGB, RGB[..., :1]])),
        (np.array([[-1.0, 0.0], [1.0, 3.0]]), np.array([[0, 64], [128, 255]])),
        (np.array([[0, 4], [8, 16]]), np.array([[0, 64], [128, 255]])),
        (np.full((2, 2), 7.0), np.zeros((2, 2))),
        (np.array([[np.nan, 0.0], [1.0, np.inf]]), np.array([[0, 0], [255, 255]])),
        (np.full((2, 2), np.nan), np.zeros((2, 2))),
        (np.array([[False, True], [True, False]]), np.array([[0, 255], [255, 0]])),
    ],
)
def test_thumbnails_are_the_images_they_are_made_of(image, expected):
    assert np.array_equal(pixels(thumbnail(torch.from_numpy(np.ascontiguousarray(image)))), expected)


def test_large_images_are_averaged_down():
    large = torch.zeros(3, 4 * LONGEST_SIDE, LONGEST_SIDE, dtype=torch.uint8)
    large[:, ::2] = 200
    small = pixels(thumbnail(large))
    assert small.shape == (LONGEST_SIDE, LONGEST_SIDE // 4, 3)
    assert set(small.ravel()) == {100}
    assert pixels(thumbnail(torch.zeros(1, 500, dtype=torch.uint8))).shape == (1, LONGEST_SIDE)


# The record.


def test_the_circumstances_are_recorded(record):
    assert record.settings["fields"] == {"logits": "logits"}
    assert record.settings["resamples_drawn"] == 50
    assert record.settings["risks"] == [0.3, 0.5]
    assert record.versions["torch"].startswith(torch.__version__.split("+")[0])
    assert (record.name, record.source, record.examples) == ("model", "some/model.npz", N)
    assert record.class_names == [str(k) for k in range(K)]
    assert set(record.scores) <= set(record.conventions)
    assert all("{" not in text for text in record.conventions.values())
    assert EvaluationRecord.from_json(record.to_json()) == record


def test_the_same_seed_gives_the_same_bytes_and_leaves_the_global_random_state():
    def again(seed: int) -> list[str]:
        lines = evaluated(LOGITS, settings=EvaluateConfig(resamples=50, seed=seed)).to_json().splitlines()
        return [line for line in lines if '"created"' not in line and '"wall_seconds"' not in line]

    before = torch.get_rng_state()
    assert again(1) == again(1) != again(2)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_single_and_half_precision_agree_with_double(dtype):
    found, exact = (evaluated(LOGITS.astype(dtype).astype(kind)) for kind in (dtype, float))
    for key, number in exact.scores.items():
        assert found.scores[key].value == pytest.approx(number.value, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("classes", [2, 60])
@pytest.mark.parametrize("share", [0.0, 1e-30, 1e-3, 1.0])
def test_any_finite_logits_have_a_record(dtype, classes, share):
    """Up to the largest number of the type, where differences overflow."""
    rng = np.random.default_rng(0)
    values = (rng.uniform(-1, 1, (5, classes)) * share * float(np.finfo(dtype).max)).astype(dtype)
    ood = {"noise": predictions(rng.normal(size=(4, classes)).astype(dtype))}
    targets = rng.integers(0, classes, 5)
    found = evaluated(values, targets, ood=ood)
    assert found.scores["error"].value == (values.argmax(1) != targets).mean()


def test_every_step_is_announced():
    steps = []
    ood = {"a": predictions(OTHERS), "b": predictions(OTHERS)}
    evaluated(LOGITS, name="m", ood=ood, on_step=steps.append)
    assert len(steps) == STEPS + 2
    assert all(step.startswith("m: ") for step in steps)


def test_the_targets_are_identified_by_a_digest():
    digests = [
        evaluated(LOGITS, targets, settings=WITHOUT_INTERVALS).settings["targets_sha256"]
        for targets in (TARGETS, TARGETS.copy(), TARGETS[::-1].copy())
    ]
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize(
    ("targets", "options", "argument"),
    [
        (None, {}, "predictions"),
        (TARGETS, {"class_names": ["a"]}, "class_names"),
        (TARGETS, {"ood": {"x": predictions(OTHERS[:, :3])}}, "ood"),
    ],
)
def test_predictions_that_do_not_fit_are_refused(targets, options, argument):
    with pytest.raises(ValueError, match=f"^evaluate: `{argument}`"):
        evaluated(LOGITS, targets, **options)


@pytest.mark.parametrize(
    ("option", "value"),
    [("n_bins", 0), ("resamples", -1), ("level", 1.0), ("seed", -1), ("seed", 2**63), ("delta", 0.0),
     ("risks", (0.1, 2.0))],
)  # fmt: skip
def test_settings_out_of_range_are_refused(option, value):
    with pytest.raises(ValueError, match=rf"EvaluateConfig: `{option}(\.\d)?` must"):
        EvaluateConfig(**{option: value})


def test_prediction_sets_hold_the_target_as_often_as_asked_and_are_those_of_the_halves():
    rng = np.random.default_rng(3)
    targets = rng.integers(0, 6, 4000)
    logits = rng.normal(size=(4000, 6)) + 1.5 * np.eye(6)[targets]
    record = evaluate(
        predictions(logits, targets=targets),
        settings=EvaluateConfig(resamples=0, coverages=(0.8, 0.95)),
        name="m",
    )
    assert [(one.method, one.wanted) for one in record.prediction_sets] == [
        (method, wanted) for wanted in (0.8, 0.95) for method in ("lac", "aps", "raps")
    ]
    for one in record.prediction_sets:
        assert abs(one.coverage - one.wanted) < 0.02 and one.worst_coverage <= one.coverage
    sizes = {(one.method, one.wanted): one.mean_size for one in record.prediction_sets}
    assert sizes["lac", 0.95] <= min(sizes["aps", 0.95], sizes["raps", 0.95]) + 0.02
    assert sizes["lac", 0.8] < sizes["lac", 0.95]
    few = evaluate(
        predictions(logits[:12], targets=targets[:12]), settings=EvaluateConfig(resamples=0), name="m"
    )
    assert few.prediction_sets == []
