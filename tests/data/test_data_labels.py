"""Few labels: which images keep theirs, and what becomes of the others."""

import numpy as np
import pytest
import torch

from beliefmatch.data import load
from beliefmatch.data.config import DataConfig
from beliefmatch.data.preprocessing import Preprocessing
from beliefmatch.data.sources import CountedSource, MemorySource
from beliefmatch.data.splits import balanced_rows

RAGGED = np.repeat([0, 1, 2, 3], [3, 40, 7, 25])[np.random.default_rng(0).permutation(75)]


def test_the_published_division_of_cifar_is_balanced_and_leaves_the_rest_unlabelled():
    labels = np.arange(45_000) % 10
    rows = balanced_rows(labels, 4000, seed=3)
    assert len(rows) == len(set(rows.tolist())) == 4000
    assert np.bincount(labels[rows]).tolist() == [400] * 10
    assert (np.diff(rows) > 0).all()


@pytest.mark.parametrize(("count", "expected"), [(4, [1, 1, 1, 1]), (12, [3, 3, 3, 3]), (36, [3, 13, 7, 13])])
def test_classes_keep_equally_many_as_long_as_they_have_them(count, expected):
    assert np.bincount(RAGGED[balanced_rows(RAGGED, count)]).tolist() == expected


def test_where_classes_do_not_divide_the_number_none_has_two_more_than_another():
    counts = np.bincount(RAGGED[balanced_rows(RAGGED, 10, seed=1)])
    assert counts.sum() == 10 and set(counts.tolist()) == {2, 3}


def test_fewer_labels_are_among_more_and_the_seed_decides():
    more = set(balanced_rows(RAGGED, 20, seed=5).tolist())
    assert set(balanced_rows(RAGGED, 8, seed=5).tolist()) < more
    assert set(balanced_rows(RAGGED, 20, seed=6).tolist()) != more
    assert balanced_rows(RAGGED, 20, seed=5).tolist() == sorted(more)


def test_five_labels_of_each_digit():
    whole, few = load(DataConfig()), load(DataConfig(labels=50))
    assert few.unlabelled is not None
    assert few.train.targets.bincount().tolist() == [5] * 10
    assert few.unlabelled.targets.unique().tolist() == [-1]
    assert few.facts["counts"] == {"train": 50, "unlabelled": 848, "validation": 359, "test": 540}
    assert few.epoch_images == whole.epoch_images == len(whole.train)
    assert few.facts["digest"] != whole.facts["digest"] and whole.unlabelled is None
    assert few.facts["preprocessing"] == whole.facts["preprocessing"]
    together = torch.cat([_images(few.train), _images(few.unlabelled)])
    assert sorted(map(bytes, together.numpy())) == sorted(map(bytes, _images(whole.train).numpy()))
    assert torch.equal(_images(few.validation), _images(whole.validation))


def _images(source):
    return source.images.flatten(1)


def test_the_labels_that_are_kept_are_the_right_ones():
    whole, few = load(DataConfig()), load(DataConfig(labels=30))
    known = dict(zip(map(bytes, _images(whole.train).numpy()), whole.train.targets.tolist(), strict=True))
    kept = zip(map(bytes, _images(few.train).numpy()), few.train.targets.tolist(), strict=True)
    assert all(known[image] == label for image, label in kept)


def test_the_split_seed_chooses_and_a_limit_is_kept():
    one, other = (load(DataConfig(labels=50, split_seed=seed)).facts["digest"] for seed in (0, 1))
    assert one != other
    limited = load(DataConfig(labels=50, limit=200))
    assert limited.unlabelled is not None and len(limited.unlabelled) == 150


@pytest.mark.parametrize("labels", [9, 898, 5000])
def test_too_few_or_too_many_labels_are_refused(labels):
    expected = "one for each of 10 classes at least and below the 898 training images"
    with pytest.raises(ValueError, match=rf"data: `labels` must be {expected}, got {labels}; leave it out"):
        load(DataConfig(labels=labels))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"labels": 0}, "`labels` must be at least 1, got 0"),
        ({"shift": -1}, "`shift` must be at least 0, got -1"),
        ({"noise": -0.1}, "`noise` must be finite and not negative, got -0.1"),
        ({"noise": float("inf")}, "`noise` must be finite and not negative, got inf"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings, said):
    with pytest.raises(ValueError, match=f"data: {said}"):
        DataConfig(**settings)


def test_noise_comes_with_a_seed_and_has_the_deviation_asked_for():
    data = load(DataConfig(noise=0.15))
    part = [torch.arange(400)]
    (clean,) = data.train.batches(part)
    (one,), (same,), (other,) = (data.train.batches(part, seeds=[seed]) for seed in (1, 1, 2))
    assert torch.equal(one.inputs, same.inputs) and not torch.equal(one.inputs, other.inputs)
    noise = one.inputs - clean.inputs
    assert noise.std().item() == pytest.approx(0.15, rel=0.02)
    assert abs(noise.mean().item()) < 0.005
    between = (other.inputs - clean.inputs) * noise
    assert abs(between.mean().item()) < 0.001  # two draws know nothing of each other


def test_noisy_images_lie_channels_last():
    pixels = np.zeros((4, 9, 9, 3), np.uint8)
    how = Preprocessing((0.0,) * 3, (1.0,) * 3, noise=0.1)
    (batch,) = MemorySource(pixels, preprocessing=how).batches([torch.arange(4)], seeds=[3])
    assert batch.inputs.is_contiguous(memory_format=torch.channels_last) and batch.inputs.std() > 0.05


def test_images_are_shifted_by_no_more_than_asked_for():
    pixels = np.zeros((64, 9, 9, 1), np.uint8)
    pixels[:, 4, 4] = 255
    how = Preprocessing((0.0,), (1.0,), "crop", padding=2)
    (batch,) = MemorySource(pixels, preprocessing=how).batches([torch.arange(64)], seeds=[3])
    places = {tuple(place) for place in (batch.inputs[:, 0] > 0).nonzero()[:, 1:].tolist()}
    assert {row for row, _ in places} == {column for _, column in places} == {2, 3, 4, 5, 6}
    assert load(DataConfig(augment="crop", shift=2)).facts["preprocessing"]["padding"] == 2


def test_a_set_seen_through_another_preprocessing_is_scaled_by_it():
    source = load(DataConfig(labels=50)).train
    (own,) = source.batches([torch.arange(5)])
    (other,) = source.with_preprocessing(Preprocessing((0.5,), (2.0,))).batches([torch.arange(5)])
    torch.testing.assert_close(other.inputs, (own.inputs * (240 / 255) - 0.5) / 2)
    assert torch.equal(own.targets, other.targets)


def test_votes_follow_their_images():
    source = load(DataConfig(labels=50)).train
    votes = torch.rand(50, 10)
    counted = CountedSource(source, votes)
    part = torch.tensor([7, 3, 3])
    ((inputs, targets),) = counted.batches([part])
    ((expected, _),) = source.batches([part])
    assert torch.equal(targets, votes[part]) and torch.equal(inputs, expected)
    assert len(counted) == 50 and counted.shape == source.shape and counted.targets is votes
    others = [
        source.digest(),
        *(CountedSource(source, one).digest() for one in (votes, votes + 1, votes.flip(0))),
    ]
    assert counted.digest() == others[1] and len(set(others)) == 4
    for wrong in (votes[:49], votes.long(), votes[:, 0]):
        with pytest.raises(ValueError, match=r"`counts` must be floating point of shape \(50, K\)"):
            CountedSource(source, wrong)
