"""Classes, confusions, single examples and their thumbnails in a record."""

import base64
import io

import numpy as np
import pytest
import torch
from matplotlib.image import imread
from scipy.special import entr
from sklearn.metrics import (
    confusion_matrix,
)

from beliefmatch.experiments.evaluate import evaluate
from beliefmatch.experiments.evaluation_views import LONGEST_SIDE, thumbnail
from scored_models import LOGITS, PROBS, QUICK, RIGHT, TARGETS, K, N, judged, predictions


@pytest.fixture(name="record")
def _record():
    return judged("logits")


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
