"""Whole parts and their division: the images of `load`, halves of the test part, digests that ignore both."""

import numpy as np
import pytest
import torch

from beliefmatch.data import load
from beliefmatch.data.config import DataConfig
from beliefmatch.data.splits import halves
from image_files import labels, pixels, save_folder, save_npz

IMAGES, LABELS = pixels(60), labels(60)
REPORTED = pixels(21, seed=1), labels(21)


@pytest.fixture
def divided_set(tmp_path):
    save_npz(tmp_path / "train.npz", IMAGES, LABELS)
    save_npz(tmp_path / "test.npz", *REPORTED)
    return tmp_path


@pytest.fixture
def undivided_set(tmp_path):
    return save_npz(tmp_path / "a.npz", IMAGES, LABELS)


def settings(name, **changes):
    return DataConfig(**{"name": f"{name}", "workers": 0, **changes})


def inputs(source, rows=None):
    (batch,) = source.batches([torch.arange(len(source)) if rows is None else torch.as_tensor(rows)])
    return batch


def held(parts, role):
    """Bytes of the images that a role's rows point at."""
    part, rows = parts.rows(role)
    return parts.sources[part].images.numpy()[rows]


def check_same_images(parts, dataset):
    for role in ("train", "validation", "test"):
        part, rows = parts.rows(role)
        ours, theirs = inputs(parts.sources[part], rows), inputs(getattr(dataset, role))
        assert torch.equal(ours.inputs, theirs.inputs)
        assert torch.equal(ours.targets, theirs.targets)


@pytest.mark.parametrize("changes", [{}, {"validation": 12}, {"limit": 9}, {"split_seed": 3}, {"size": 5}])
def test_rows_of_parts_are_the_images_of_load(divided_set, changes):
    told = settings(divided_set, **changes)
    parts = load(told)
    check_same_images(parts, load(told))
    assert set(parts.sources) == {"train", "test"}
    assert parts.facts == load(told).facts
    assert (parts.rows("train").part, parts.rows("validation").part, parts.rows("test").part) == (
        "train",
        "train",
        "test",
    )


def test_an_undivided_set_is_one_part(undivided_set):
    parts = load(settings(undivided_set))
    check_same_images(parts, load(settings(undivided_set)))
    assert list(parts.sources) == ["all"]
    assert np.array_equal(parts.sources["all"].images, IMAGES)
    together = np.concatenate([parts.rows(role).rows for role in ("train", "validation", "test")])
    assert sorted(together) == list(range(60))


def test_digits_keep_their_three_parts():
    parts = load(DataConfig())
    check_same_images(parts, load(DataConfig()))
    assert [parts.rows(role).part for role in ("train", "validation", "test")] == [*parts.sources]


def test_streamed_images_are_the_same_too(tmp_path):
    large = pixels(24, 80, 80)
    told = settings(save_folder(tmp_path, large, labels(24)), size=72)
    parts = load(told)
    check_same_images(parts, load(told))
    assert not parts.facts["in_memory"]


def test_half_of_the_test_part_serves_for_choosing(divided_set):
    parts = load(settings(divided_set), validation_from="test")
    assert np.array_equal(held(parts, "train"), IMAGES)
    assert parts.facts["counts"] == {"train": 60, "validation": 10, "test": 11}
    assert parts.facts["divided_by_us"] == ["validation", "test"]
    assert parts.facts["validation_from"] == "test"
    both = np.concatenate([held(parts, "validation"), held(parts, "test")])
    assert sorted(map(bytes, both)) == sorted(map(bytes, REPORTED[0]))
    counts = np.bincount(REPORTED[1][parts.rows("validation").rows])
    assert counts.tolist() in ([4, 3, 3], [3, 4, 3], [3, 3, 4])
    check_same_images(parts, parts)


def test_the_half_depends_on_the_split_seed_and_not_on_the_share_for_validation(divided_set):
    def rows(**changes):
        return load(settings(divided_set, **changes), validation_from="test").rows("validation").rows.tolist()

    assert rows() == rows(validation=0.4) == rows(limit=6)
    assert rows() != rows(split_seed=1)


def test_of_an_undivided_set_the_images_that_load_reports_on_are_halves(undivided_set):
    usual = load(settings(undivided_set))
    parts = load(settings(undivided_set), validation_from="test")
    halves = np.concatenate([parts.rows("validation").rows, parts.rows("test").rows])
    assert sorted(halves) == usual.rows("test").rows.tolist()
    rest = np.concatenate([usual.rows("train").rows, usual.rows("validation").rows])
    assert parts.rows("train").rows.tolist() == sorted(rest)


def test_a_validation_part_is_left_alone_where_the_test_part_is_halves():
    parts = load(DataConfig(), validation_from="test")
    assert parts.facts["counts"] == {"train": 898, "validation": 270, "test": 270}
    assert {parts.rows(role).part for role in ("train", "validation", "test")} == {"train", "test"}


def test_one_image_cannot_be_halved_and_other_words_are_refused(tmp_path):
    save_npz(tmp_path / "train.npz", IMAGES, LABELS)
    save_npz(tmp_path / "test.npz", IMAGES[:1], LABELS[:1])
    with pytest.raises(ValueError, match=r"^data: test images must be at least 2 .* got 1\.$"):
        load(settings(tmp_path), validation_from="test")
    with pytest.raises(ValueError, match=r"^data: `validation_from` must be one of 'train', 'test', got 'x'"):
        load(settings(tmp_path), validation_from="x")


@pytest.mark.parametrize("count", [2, 7, 40])
def test_halves_are_disjoint_and_complete(count):
    first, second = halves(labels(count), seed=5)
    assert len(first) == count // 2
    assert sorted([*first, *second]) == list(range(count))


def test_digests_of_parts_know_nothing_of_the_division(divided_set):
    def digests(validation_from="train", **changes):
        told = settings(divided_set, mean=(0.5,) * 3, std=(0.5,) * 3, **changes)
        return load(told, validation_from=validation_from).digests

    usual = digests()
    assert usual == digests(split_seed=2) == digests(validation=9, limit=7) == digests("test")
    assert usual["train"] != usual["test"]


def test_digests_change_with_pixels_labels_and_size_and_not_with_chance(divided_set):
    def digest(**changes):
        return load(settings(divided_set, **changes)).digests["test"]

    before = digest()
    assert digest(augment="none") == digest(limit=None) == before
    assert digest(size=5) != before
    changed = REPORTED[0].copy()
    changed[3, 0, 0, 0] ^= 1
    save_npz(divided_set / "test.npz", changed, REPORTED[1])
    assert digest() != before
    save_npz(divided_set / "test.npz", REPORTED[0], (REPORTED[1] + 1) % 3)
    assert digest() != before
    save_npz(divided_set / "test.npz", *REPORTED)
    assert digest() == before


def test_sources_that_are_parts_of_others_have_digests_of_their_own(tmp_path):
    whole = load(settings(save_folder(tmp_path, pixels(12, 70, 70), labels(12)), size=66)).sources["all"]
    small = load(DataConfig()).sources["test"]
    for source in (whole, small):
        rows = [0, 2, 5]
        assert source.subset(rows).digest() == source.subset(rows).digest() != source.digest()
        assert source.subset([0, 2, 4]).digest() != source.subset(rows).digest()
