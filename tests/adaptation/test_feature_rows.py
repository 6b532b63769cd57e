"""Rows of features in memory, on disk, and in part read alike."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from beliefmatch.adaptation.feature_rows import Features
from beliefmatch.adaptation.solver import Design

WIDTH, CLASSES = 7, 3


def features(rows=90):
    rng = np.random.default_rng(0)
    return Features(rng.normal(size=(rows, WIDTH)).astype(np.float32), torch.arange(rows) % CLASSES, "all")


def mapped(rows, place):
    np.save(place / "rows.npy", rows)
    return np.load(place / "rows.npy", mmap_mode="r")


def with_rows_of_no_class(data):
    """Every third row belongs to no class."""
    places = np.flatnonzero(np.arange(3 * len(data) // 2) % 3)
    rows, targets = np.full((3 * len(data) // 2, WIDTH), 7, np.float32), torch.full((3 * len(data) // 2,), -1)
    rows[places], targets[places] = data.rows, data.targets
    return Features(rows, targets, "")


FORMS = {
    "with rows of no class": lambda data, _: with_rows_of_no_class(data),
    "on disk": lambda data, place: replace(data, rows=mapped(data.rows, place)),
    "in records": lambda data, place: replace(
        data, rows=mapped(np.pad(data.rows, ((0, 0), (0, 5))), place)[:, :WIDTH]
    ),
    "a subset on disk": lambda data, place: Features(
        mapped(np.repeat(data.rows, 2, 0), place), data.targets.repeat_interleave(2), ""
    ).subset(np.arange(0, 2 * len(data), 2)),
    "in double precision": lambda data, _: replace(data, rows=data.rows.astype(np.float64)),
}


@pytest.mark.parametrize("memory", [0, 1 << 20])
@pytest.mark.parametrize("form", FORMS)
def test_features_in_another_form_are_the_same_to_the_solver(form, memory, tmp_path, monkeypatch):
    expected = [one[1:] for one in Design(features()).blocks(1000)]
    monkeypatch.setattr("beliefmatch.adaptation.feature_rows.BLOCK_NUMBERS", 13 * WIDTH)
    found = [one[1:] for one in Design(FORMS[form](features(), tmp_path), memory=memory).blocks(11)]
    for one, two in zip(zip(*expected, strict=True), zip(*found, strict=True), strict=True):
        torch.testing.assert_close(torch.cat(two), torch.cat(one))


def test_blocks_come_in_order():
    found = features(1000)
    rows, targets = (torch.cat(parts) for parts in zip(*found.blocks(130), strict=True))
    assert torch.equal(rows, torch.from_numpy(found.rows)) and torch.equal(targets, found.targets)
    assert [len(rows) for rows, _ in found.blocks(300)] == [300, 300, 300, 100]
    with pytest.raises(ValueError, match="`size`"):
        next(found.blocks(0))


def test_subsets_read_as_the_rows_they_are(tmp_path):
    data = features(50)
    whole = replace(data, rows=mapped(data.rows, tmp_path))
    numbers = np.array([7, 3, 4, 5, 49])
    some = whole.subset(np.arange(50)).subset(numbers)
    assert some.rows.shape == (5, WIDTH) and some.rows.nbytes == 5 * 4 * WIDTH
    for key in (slice(None), slice(1, 3), slice(4, 0, -2), 2, np.array([4, 0]), np.arange(5) > 2):
        np.testing.assert_array_equal(some.rows[key], data.rows[numbers][key])
    assert torch.equal(some.targets, data.targets[torch.from_numpy(numbers)])
    assert len({whole.digest, some.digest, whole.subset(numbers[:4]).digest}) == 3
    for wrong in ([50], [-1], []):
        with pytest.raises(ValueError, match="`indices`"):
            whole.subset(np.array(wrong, dtype=int))


def parted(data, share, **options):
    return tuple(data.subset(numbers) for numbers in data.hold_out(share, **options))


def test_rows_are_held_out_in_proportion():
    ids = torch.tensor([0] * 60 + [1] * 30 + [2] * 10 + [-1] * 7)
    data = Features(np.arange(107, dtype=np.float32)[:, None], ids, "")
    rest, some = parted(data, 0.2)
    assert some.targets.bincount().tolist() == [12, 6, 2]
    assert len(rest) + len(some) == 107 and int((rest.targets < 0).sum()) == 7
    both = np.concatenate([rest.rows, some.rows])[:, 0]
    np.testing.assert_array_equal(np.sort(both), np.arange(107))
    votes = Features(data.rows[:100], functional.one_hot(ids[:100], 3).float(), "")
    assert parted(votes, 0.2)[1].targets.sum(0).tolist() == [12, 6, 2]
    assert not np.array_equal(parted(data, 0.2, seed=1)[1].rows, some.rows)
    none = Features(data.rows[:7], ids[100:], "")
    for some, share, argument in ((data, 0.0, "validation"), (data, 200, "validation"), (none, 0.2, "train")):
        with pytest.raises(ValueError, match=f"`{argument}`"):
            parted(some, share)


def test_a_row_of_each_class_remains_for_training():
    data = Features(np.arange(9, dtype=np.float32)[:, None], torch.tensor([0, 1, 2, 2, 2, 2, 2, 2, -1]), "")
    rest, some = parted(data, 0.99)
    assert rest.targets.unique().tolist() == [-1, 0, 1, 2] and some.targets.tolist() == [2] * 5
    with pytest.raises(ValueError, match=r"`train`.* 3 rows of 3 classes"):
        parted(Features(data.rows[:3], data.targets[:3], ""), 0.2)


def test_rows_and_targets_must_fit():
    good = np.zeros((4, 2), np.float32)
    counts = torch.zeros(4, 2, dtype=torch.int64)
    wrong = [(good[0], torch.arange(2)), (good[:0], torch.arange(0)), (good, torch.arange(3)), (good, counts)]
    for rows, targets in [*wrong, (good, torch.zeros(4))]:
        with pytest.raises(ValueError, match=r"`(rows|targets)`"):
            Features(rows, targets, "")
