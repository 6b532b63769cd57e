"""Rows of features: subsets, parts of sets, and more rows than fit into memory."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from beliefmatch.adaptation.batched import fit_heads
from torch.nn import functional

from beliefmatch.adaptation import head_init, scoring
from beliefmatch.adaptation.adapt_config import AdaptConfig
from beliefmatch.adaptation.candidates import candidates
from beliefmatch.adaptation.reading import Batches
from beliefmatch.adaptation.refit import refit
from beliefmatch.adaptation.result import FeatureSets
from beliefmatch.adaptation.types import Features, in_memory, parted, subset
from head_features import CLASSES, WIDTH, assert_same, features


def test_blocks_come_in_order():
    found = Features(np.random.default_rng(0).random((1000, 3), np.float32), torch.arange(1000), "x")
    rows, targets = (torch.cat(parts) for parts in zip(*found.blocks(130), strict=True))
    assert torch.equal(rows, torch.from_numpy(found.rows)) and torch.equal(targets, found.targets)
    assert [len(rows) for rows, _ in found.blocks(300)] == [300, 300, 300, 100]


def test_subsets_read_as_the_rows_they_are(tmp_path):
    data = features(50)
    whole = Features(mapped(data.rows, tmp_path), data.targets, "all")
    numbers = np.array([7, 3, 4, 5, 49])
    some = subset(subset(whole, np.arange(50)), numbers)
    assert some.rows.shape == (5, WIDTH) and some.rows.nbytes == 5 * 4 * WIDTH
    np.testing.assert_array_equal(np.asarray(some.rows), data.rows[numbers])
    np.testing.assert_array_equal(some.rows[1:3], data.rows[[3, 4]])
    np.testing.assert_array_equal(some.rows[2], data.rows[4])
    np.testing.assert_array_equal(some.rows[np.array([4, 0])], data.rows[[49, 7]])
    assert torch.equal(some.targets, data.targets[torch.from_numpy(numbers)])
    assert len({whole.digest, some.digest, subset(whole, numbers[:4]).digest}) == 3
    for wrong in ([50], [-1], []):
        with pytest.raises(ValueError, match="`numbers`"):
            subset(whole, np.array(wrong, dtype=int))


def test_rows_are_parted_in_proportion():
    ids = torch.tensor([0] * 60 + [1] * 30 + [2] * 10 + [-1] * 7)
    data = Features(np.arange(107, dtype=np.float32)[:, None], ids, "")
    rest, some = parted(data, 0.2)
    assert some.targets.bincount().tolist() == [12, 6, 2]
    assert len(rest) + len(some) == 107 and int((rest.targets < 0).sum()) == 7
    both = np.concatenate([np.asarray(rest.rows), np.asarray(some.rows)])[:, 0]
    np.testing.assert_array_equal(np.sort(both), np.arange(107))
    votes_too = Features(data.rows[:100], functional.one_hot(ids[:100], 3).float(), "")
    assert parted(votes_too, 0.2)[1].targets.sum(0).tolist() == [12, 6, 2]
    other = parted(data, 0.2, seed=1)[1]
    assert not torch.equal(torch.tensor(np.asarray(other.rows)), torch.tensor(np.asarray(some.rows)))
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


def mapped(rows, place):
    np.save(place / "rows.npy", rows)
    return np.load(place / "rows.npy", mmap_mode="r")


def in_records(rows, place):
    """Rows of a memory map with other values between them, as in the cache."""
    return mapped(np.pad(rows, ((0, 0), (0, 5)), constant_values=9), place)[:, : rows.shape[1]]


def with_rows_of_no_class(data):
    """Every third row is of none."""
    places = np.flatnonzero(np.arange(3 * len(data) // 2) % 3)
    rows = np.full((3 * len(data) // 2, WIDTH), 7, np.float32)
    targets = torch.full((len(rows),), -1)
    rows[places], targets[places] = data.rows, data.targets
    return Features(rows, targets, "")


FORMS = {
    "counts of one vote": lambda data, _: replace(data, targets=functional.one_hot(data.targets).float()),
    "with rows of no class": lambda data, _: with_rows_of_no_class(data),
    "on disk": lambda data, place: replace(data, rows=mapped(data.rows, place)),
    "in records": lambda data, place: replace(data, rows=in_records(data.rows, place)),
    "a subset on disk": lambda data, place: subset(
        Features(mapped(np.repeat(data.rows, 2, 0), place), data.targets.repeat_interleave(2), ""),
        np.arange(0, 2 * len(data), 2),
    ),
}


@pytest.mark.parametrize("optimizer", ["adam", "lbfgs"])
@pytest.mark.parametrize("form", FORMS)
def test_features_in_another_form_give_the_same_heads(form, optimizer, tmp_path, monkeypatch):
    data, heads = features(), candidates(CLASSES, kl_weights=[0.02], controls=["softmax", "label_smoothing"])
    options = {
        "classes": CLASSES,
        "epochs": 3,
        "batch_size": 16,
        "optimizer": optimizer,
        "weight_decay": 0.01,
    }
    expected = fit_heads(data, heads, validation=data, **options)
    monkeypatch.setattr("beliefmatch.adaptation.reading.BLOCK_NUMBERS", 13 * WIDTH)
    other = FORMS[form](data, tmp_path)
    for one, two in zip(expected, fit_heads(other, heads, validation=other, **options), strict=True):
        assert_same(one, two)
        assert one.nll == pytest.approx(two.nll, rel=1e-4)


@pytest.mark.parametrize("form", ["on disk", "in records", "a subset on disk"])
def test_rows_are_streamed_where_they_have_no_room(form, tmp_path):
    data = FORMS[form](features(700), tmp_path)
    assert not Batches(data, 16, 0, memory=4000).in_memory
    heads = candidates(CLASSES, kl_weights=[0.01], controls=[])
    options = {"classes": CLASSES, "epochs": 3, "batch_size": 16, "learning_rate": 0.01}
    one, two = (fit_heads(data, heads, memory=4000, **options)[0] for _ in range(2))
    assert torch.equal(one.weight, two.weight) and one.curve[-1].loss < one.curve[0].loss
    assert in_memory(data.rows, data.rows.nbytes - 1) is None
    np.testing.assert_array_equal(in_memory(data.rows, data.rows.nbytes), features(700).rows)


def test_thousands_of_classes_in_few_rows_at_a_time(monkeypatch):
    """Blocks, passes and the fit of scales are bounded by numbers, not by rows."""
    classes, width = 2500, 6
    rng = np.random.default_rng(0)
    centres = 4 * rng.normal(size=(classes, width))
    ids = np.arange(2 * classes) % classes

    def some(numbers):
        rows = centres[numbers] + 0.3 * rng.normal(size=(len(numbers), width))
        return Features(rows.astype(np.float32), torch.from_numpy(numbers), "")

    sets = FeatureSets(some(ids), some(ids[:300]))
    seen = []
    real = scoring.product
    monkeypatch.setattr(scoring, "product", lambda *args: seen.append(real(*args)) or seen[-1])
    monkeypatch.setattr(scoring, "_LOGITS", 500_000)
    adapt_config = AdaptConfig(kl_weights=(1e-4, 1e-5), controls=("softmax",), epochs=2, learning_rate=0.05)
    with pytest.warns(UserWarning, match="`validation` has only 300"):
        made = refit(sets, adapt_config=adapt_config)
    assert made.classes == classes and made.chosen.weight.shape == (classes, width)
    assert max(logits.numel() for logits in seen) <= 500_000
    assert made.chosen.curve[-1].loss < made.chosen.curve[0].loss
    init = torch.from_numpy(centres).float(), torch.zeros(classes)
    monkeypatch.setattr(head_init, "_LOGITS", 50_000)
    rows, targets = head_init._some(sets.train, classes)
    assert len(rows) == len(targets) == 20
    weight, _ = head_init.initial_weights([made.chosen.candidate], init, classes, width, sets.train)
    scale = weight.norm() / init[0].norm()
    torch.testing.assert_close(weight[0], scale * init[0], rtol=1e-4, atol=1e-5)


def test_every_row_is_streamed_once_an_epoch(tmp_path):
    rows = mapped(np.arange(1000, dtype=np.float32)[:, None], tmp_path)
    batches = Batches(Features(rows, torch.arange(1000), ""), 33, 0, memory=3000)
    assert not batches.in_memory
    epochs = [[*batches.epoch(epoch)] for epoch in range(2)]
    for epoch in epochs:
        assert len(epoch) == batches.sampler.n_batches
        assert all(torch.equal(rows[:, 0].long(), ids) for rows, ids in epoch)
        assert torch.equal(torch.cat([ids for _, ids in epoch]).sort().values, torch.arange(1000))
    assert not torch.equal(epochs[0][0][1], epochs[1][0][1])
