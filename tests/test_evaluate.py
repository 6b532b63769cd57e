"""The record of an evaluation against scikit-learn, scipy and plain arithmetic on the same arrays."""

import base64
import io
import math
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
from beliefmatch.data.predictions import Predictions
from beliefmatch.experiments.evaluate import STEPS, evaluate
from beliefmatch.experiments.evaluation_record import EvaluationRecord, Number
from beliefmatch.experiments.evaluation_settings import EvaluationSettings
from beliefmatch.experiments.evaluation_views import entropy_density
from beliefmatch.experiments.thumbnails import LONGEST_SIDE, thumbnail

N, K, FOREIGN = 400, 7, 250
QUICK = EvaluationSettings(resamples=50, risks=(0.3, 0.5), shown=5)


def arrays(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits, targets and foreign logits."""
    rng = np.random.default_rng(seed)
    targets = rng.integers(0, K, N)
    logits = rng.normal(size=(N, K)) * 2
    logits[np.arange(N), targets] += 3
    return logits, targets, rng.normal(size=(FOREIGN, K))


LOGITS, TARGETS, OTHERS = arrays()
PROBS, OTHER_PROBS = softmax(LOGITS, 1), softmax(OTHERS, 1)
RIGHT = PROBS.argmax(1) == TARGETS


def predictions(values: np.ndarray, kind: str = "logits", targets=None, images=None) -> Predictions:
    return Predictions(
        path=Path("some/model.npz"),
        kind="logits" if kind == "logits" else "probs",
        values=torch.from_numpy(values),
        targets=None if targets is None else torch.from_numpy(targets),
        images=images,
        recognised={kind: kind},
    )


@pytest.fixture(scope="module")
def record() -> EvaluationRecord:
    images = torch.arange(N * 20, dtype=torch.uint8).reshape(N, 4, 5)
    return evaluate(
        predictions(LOGITS, targets=TARGETS, images=images),
        foreign={"noise": predictions(OTHERS)},
        settings=QUICK,
    )


@pytest.fixture(scope="module")
def record_of_probs() -> EvaluationRecord:
    return evaluate(
        predictions(PROBS, "probs", TARGETS),
        foreign={"noise": predictions(OTHER_PROBS, "probs")},
        settings=QUICK,
    )


def gaps_of(confidence: np.ndarray, hits: np.ndarray, groups: int) -> list[tuple[int, float, float]]:
    """Count, mean confidence and share of hits of each group of equal width, one group at a time."""
    found = []
    for group in range(groups):
        inside = (confidence > group / groups) & (confidence <= (group + 1) / groups)
        found += [(inside.sum(), confidence[inside].mean(), hits[inside].mean())] if inside.any() else []
    return found


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
    wide = evaluate(predictions(LOGITS, targets=TARGETS), settings=EvaluationSettings(resamples=1000))
    for key, number in wide.scores.items():
        if key != "classwise_ece":
            assert number.low <= number.value <= number.high
    error = wide.scores["error"]
    assert error.high - error.low == pytest.approx(2 * 1.96 * (RIGHT.std() / math.sqrt(N)), rel=0.15)
    nll = -log_softmax(LOGITS, 1)[np.arange(N), TARGETS]
    width = wide.scores["nll"].high - wide.scores["nll"].low
    assert width == pytest.approx(2 * 1.96 * nll.std() / math.sqrt(N), rel=0.15)


def test_no_resamples_give_values_without_intervals(record):
    bare = evaluate(predictions(LOGITS, targets=TARGETS), settings=EvaluationSettings(resamples=0))
    assert bare.scores["nll"] == Number(record.scores["nll"].value)
    assert bare.misclassification[0].auroc.low is None
    assert bare.conventions["intervals"] == "None were asked for."


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
    names = ["entropy", "confidence", "spread", "differential_entropy", "precision", "energy"]
    assert [found.score for found in record.misclassification] == names
    assert [found.score for found in record.foreign[0].detections] == names
    assert [found.score for found in record_of_probs.foreign[0].detections] == names[:2]


SCORES = {
    "entropy": (entr(PROBS).sum(1), entr(OTHER_PROBS).sum(1)),
    "confidence": (1 - PROBS.max(1), 1 - OTHER_PROBS.max(1)),
    "spread": tuple(Belief(torch.from_numpy(z)).mutual_information().numpy() for z in (LOGITS, OTHERS)),
    "differential_entropy": tuple(
        Belief(torch.from_numpy(z)).differential_entropy().numpy() for z in (LOGITS, OTHERS)
    ),
    "precision": (-logsumexp(LOGITS, 1), -logsumexp(OTHERS, 1)),
    "energy": (-logsumexp(LOGITS, 1), -logsumexp(OTHERS, 1)),
}


@pytest.mark.parametrize("score", SCORES)
def test_detection_equals_scikit_learn(record, score):
    inside, outside = SCORES[score]
    tasks = [
        (record.foreign[0].detections, inside, outside),
        (record.misclassification, inside[RIGHT], inside[~RIGHT]),
    ]
    for detections, known, foreign in tasks:
        (found,) = (one for one in detections if one.score == score)
        truth = np.r_[np.zeros(len(known)), np.ones(len(foreign))]
        both = np.r_[known, foreign]
        assert found.auroc.value == pytest.approx(roc_auc_score(truth, both), rel=1e-9)
        assert found.aupr_outside.value == pytest.approx(average_precision_score(truth, both), rel=1e-9)
        assert found.aupr_inside.value == pytest.approx(average_precision_score(1 - truth, -both), rel=1e-9)
        threshold = np.sort(known)[math.ceil(0.95 * len(known) - 1e-9) - 1]
        assert found.fpr95.value == pytest.approx((foreign <= threshold).mean())
        assert found.auroc.low < found.auroc.value < found.auroc.high
        assert np.trapezoid(found.roc.y, found.roc.x) == pytest.approx(found.auroc.value, abs=0.005)


def test_a_foreign_set_is_described(record):
    (noise,) = record.foreign
    assert (noise.name, noise.examples) == ("noise", FOREIGN)
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


def test_reliability_diagram_counts_every_example_once(record):
    bins = record.reliability
    expected = gaps_of(PROBS.max(1), RIGHT, 15)
    filled = [(n, c, a) for n, c, a in zip(bins.count, bins.confidence, bins.accuracy, strict=True) if n]
    assert filled == [pytest.approx(group) for group in expected]
    assert all((n == 0) == (c is None) for n, c in zip(bins.count, bins.confidence, strict=True))
    assert (bins.lower[0], bins.upper[-1]) == (0, 1)


def test_risk_coverage_ends_at_the_error(record):
    curve = record.risk_coverage
    assert (curve.x[-1], curve.y[-1]) == (1, pytest.approx(1 - RIGHT.mean()))
    assert np.mean(curve.y) == pytest.approx(record.scores["aurc"].value)


def test_long_curves_are_thinned_but_keep_their_ends():
    rng = np.random.default_rng(3)
    many = evaluate(
        predictions(rng.normal(size=(5000, 3)), targets=rng.integers(0, 3, 5000)),
        settings=EvaluationSettings(resamples=0),
    )
    assert len(many.risk_coverage.x) == 500
    assert many.risk_coverage.x[0] == 1 / 5000
    assert many.risk_coverage.x[-1] == 1
    assert len(many.misclassification[0].roc.x) <= 500


def test_promises_keep_what_they_say(record):
    for promise in record.promises:
        answered = PROBS.max(1) >= promise.threshold
        wrong = (~RIGHT[answered]).sum()
        assert promise.coverage == pytest.approx(answered.mean())
        assert promise.observed_risk == pytest.approx(wrong / answered.sum())
        bound = beta.ppf(1 - 0.05 / 50, wrong + 1, answered.sum() - wrong)
        assert promise.bound == pytest.approx(bound, rel=1e-6)
        assert promise.bound <= promise.risk
    assert [promise.risk for promise in record.promises] == [0.3, 0.5]


def test_a_promise_that_cannot_be_made_is_none():
    hard = EvaluationSettings(resamples=0, risks=(1e-6,))
    (promise,) = evaluate(predictions(LOGITS, targets=TARGETS), settings=hard).promises
    assert (promise.threshold, promise.coverage, promise.bound) == (None, 0, None)


def test_confusions_equal_scikit_learn(record):
    expected = confusion_matrix(TARGETS, PROBS.argmax(1), labels=range(K))
    assert record.confusion.matrix == expected.tolist()
    off = expected - np.diag(np.diag(expected))
    assert sum(count for *_, count in record.confusion.pairs) == off.sum()
    counts = [count for *_, count in record.confusion.pairs]
    assert counts == sorted(counts, reverse=True)
    for target, predicted, count in record.confusion.pairs:
        assert expected[target, predicted] == count


def test_many_classes_have_pairs_in_place_of_a_matrix():
    rng = np.random.default_rng(1)
    values, targets = rng.normal(size=(300, 60)), rng.integers(0, 60, 300)
    found = evaluate(predictions(values, targets=targets), settings=QUICK)
    assert found.confusion.matrix is None
    assert len(found.confusion.pairs) == 50
    assert len(found.classes) == 60


def test_classes_are_counted(record):
    for one in record.classes:
        own = np.equal(TARGETS, one.index)
        assert one.examples == own.sum()
        assert one.predicted == (PROBS.argmax(1) == one.index).sum()
        assert one.error == pytest.approx(1 - RIGHT[own].mean())
        assert one.mean_probability == pytest.approx(PROBS[:, one.index].mean())


def test_a_class_that_never_came_true_has_no_error():
    targets = np.where(TARGETS == 3, 0, TARGETS)
    found = evaluate(predictions(LOGITS, targets=targets), settings=QUICK)
    assert (found.classes[3].examples, found.classes[3].error) == (0, None)


def test_the_most_confident_mistakes_and_the_most_doubtful_examples_come_first(record):
    confidence, entropy = PROBS.max(1), entr(PROBS).sum(1)
    mistakes = sorted(np.flatnonzero(~RIGHT), key=lambda row: -confidence[row])[:5]
    assert [example.index for example in record.mistakes] == mistakes
    assert [example.index for example in record.doubtful] == list(np.argsort(-entropy)[:5])
    for example in (*record.mistakes, *record.doubtful):
        row = example.index
        assert example.target == TARGETS[row]
        assert example.predicted == PROBS[row].argmax()
        assert example.confidence == pytest.approx(confidence[row])
        assert example.target_probability == pytest.approx(PROBS[row, TARGETS[row]])
        assert example.entropy == pytest.approx(entropy[row])


def test_thumbnails_show_the_image_of_their_row(record):
    images = np.arange(N * 20, dtype=np.uint8).reshape(N, 4, 5)
    for example in record.mistakes:
        assert np.array_equal(pixels(example.image), images[example.index])


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


def test_json_gives_back_the_record(record, record_of_probs):
    for one in (record, record_of_probs):
        assert EvaluationRecord.from_json(one.to_json()) == one


def same_but_times(record: EvaluationRecord) -> str:
    lines = record.to_json().splitlines()
    return "\n".join(line for line in lines if '"created"' not in line and '"wall_seconds"' not in line)


def test_the_same_seed_gives_the_same_bytes(record):
    def again(seed: int) -> str:
        settings = EvaluationSettings(resamples=50, seed=seed)
        return same_but_times(evaluate(predictions(LOGITS, targets=TARGETS), settings=settings))

    assert again(1) == again(1)
    assert again(1) != again(2)


def test_the_global_random_state_is_left_alone():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    evaluate(predictions(LOGITS, targets=TARGETS), settings=QUICK)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_model_without_mistakes_says_why_there_is_nothing_to_detect():
    sure = np.eye(K)[TARGETS] * 9
    found = evaluate(predictions(sure, targets=TARGETS), settings=QUICK)
    assert found.misclassification[0].auroc == Number(None, why="every prediction is right")
    assert found.misclassification[0].roc.x == []
    assert found.mistakes == []
    assert EvaluationRecord.from_json(found.to_json()) == found
    wrong = evaluate(predictions(-sure, targets=TARGETS), settings=QUICK)
    assert wrong.misclassification[0].auroc.why == "every prediction is wrong"


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


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_single_and_half_precision_agree_with_double(record, dtype):
    found = evaluate(predictions(LOGITS.astype(dtype), targets=TARGETS), settings=QUICK)
    rounded = evaluate(predictions(LOGITS.astype(dtype).astype(float), targets=TARGETS), settings=QUICK)
    for key, number in rounded.scores.items():
        assert found.scores[key].value == pytest.approx(number.value, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("classes", [2, 60])
@pytest.mark.parametrize("share", [0.0, 1e-30, 1e-3, 1.0])
def test_any_finite_logits_have_a_record(dtype, classes, share):
    """Up to the largest number of the type, where differences overflow."""
    rng = np.random.default_rng(0)
    values = (rng.uniform(-1, 1, (5, classes)) * share * float(np.finfo(dtype).max)).astype(dtype)
    foreign = {"noise": predictions(rng.normal(size=(4, classes)).astype(dtype))}
    targets = rng.integers(0, classes, 5)
    found = evaluate(predictions(values, targets=targets), foreign=foreign, settings=QUICK)
    assert found.scores["error"].value == (values.argmax(1) != targets).mean()
    assert EvaluationRecord.from_json(found.to_json()) == found


@pytest.mark.parametrize("examples", [1, 2])
def test_one_example_is_enough(examples):
    found = evaluate(predictions(LOGITS[:examples], targets=TARGETS[:examples]), settings=QUICK)
    assert found.examples == examples
    assert EvaluationRecord.from_json(found.to_json()) == found


def test_every_step_is_announced():
    done = []
    foreign = {"a": predictions(OTHERS), "b": predictions(OTHERS)}
    evaluate(
        predictions(LOGITS, targets=TARGETS), name="m", foreign=foreign, settings=QUICK, on_step=done.append
    )
    assert len(done) == STEPS + 2
    assert all(step.startswith("m: ") for step in done)


def test_the_circumstances_are_kept(record):
    assert record.settings["fields"] == {"logits": "logits"}
    assert record.settings["resamples_drawn"] == 50
    assert record.settings["risks"] == [0.3, 0.5]
    assert record.versions["torch"].startswith(torch.__version__.split("+")[0])
    assert (record.name, record.source, record.examples) == ("model", "some/model.npz", N)
    assert record.class_names == [str(k) for k in range(K)]
    assert set(record.scores) <= set(record.conventions)
    assert all("{" not in text for text in record.conventions.values())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"class_names": ["a"]}, "`class_names` must be one for each of the 7 classes"),
        ({"foreign": {"x": predictions(OTHERS[:, :3])}}, "`foreign` set 'x' must have the 7 classes"),
    ],
)
def test_mismatches_are_told_in_one_line(options, words):
    with pytest.raises(ValueError, match=words) as caught:
        evaluate(predictions(LOGITS, targets=TARGETS), **options)
    assert str(caught.value).startswith("evaluate: ")


def test_targets_are_needed():
    with pytest.raises(ValueError, match="`predictions` must have targets"):
        evaluate(predictions(LOGITS))


@pytest.mark.parametrize(
    ("option", "value"),
    [("groups", 0), ("resamples", -1), ("level", 1.0), ("seed", -1), ("seed", 2**63), ("delta", 0.0)],
)
def test_settings_out_of_range_are_refused(option, value):
    with pytest.raises(ValueError, match=f"evaluate: `{option}` must"):
        EvaluationSettings(**{option: value})
    with pytest.raises(ValueError, match="evaluate: `risk` must lie strictly in"):
        EvaluationSettings(risks=(0.1, 2.0))


def test_no_mistakes_in_few_examples_are_no_proof_of_none():
    logits = 9 * torch.eye(4).repeat(5, 1)
    targets = torch.arange(4).repeat(5)
    record = evaluate(
        predictions(logits.numpy(), targets=targets.numpy()), settings=EvaluationSettings(resamples=50)
    )
    assert record.scores["error"].value == 0
    assert record.scores["error"].high == pytest.approx(binomtest(0, 20).proportion_ci(0.95, "exact").high)


def test_one_example_has_a_value_and_no_interval():
    record = evaluate(predictions(np.array([[2.0, 0.0, 1.0]]), targets=np.array([0])))
    assert record.scores["nll"].value is not None and record.scores["nll"].low is None
    assert record.scores["error"].high == pytest.approx(0.975)


def test_the_record_tells_which_targets_it_was_judged_on():
    logits = torch.randn(30, 3, generator=torch.Generator().manual_seed(0))
    targets = torch.arange(30) % 3
    digests = [
        evaluate(
            predictions(logits.numpy(), targets=labels.numpy()), settings=EvaluationSettings(resamples=0)
        ).settings["targets_sha256"]
        for labels in (targets, targets.clone(), targets.flip(0))
    ]
    assert digests[0] == digests[1] != digests[2]
