"""Small images in memory: batches against computation by hand, and what chance may depend on."""

import json

import numpy as np
import pytest
import torch

from beliefmatch.data import sources
from beliefmatch.data.preprocessing import Preprocessing, default_padding
from beliefmatch.data.sources import MemorySource
from beliefmatch.data.transforms import crop_and_flip
from image_files import labels, pixels

PLAIN = Preprocessing((0.4, 0.5, 0.6), (0.2, 0.25, 0.3), "crop_flip", 1)


def source(**changes):
    how = Preprocessing(**{**PLAIN.to_json(), **changes})
    return MemorySource(pixels(), labels(), preprocessing=how)


def by_hand(images):
    mean, std = torch.tensor(PLAIN.mean).view(3, 1, 1), torch.tensor(PLAIN.std).view(3, 1, 1)
    return (torch.as_tensor(images).permute(0, 3, 1, 2) / 255.0 - mean) / std


def test_batches_are_the_chosen_images_scaled():
    parts = [torch.tensor([3, 0, 3, 11]), torch.tensor([7])]
    batches = list(source().batches(parts))
    assert len(batches) == 2
    for part, batch in zip(parts, batches, strict=True):
        torch.testing.assert_close(batch.inputs, by_hand(pixels()[part.numpy()]), rtol=1e-5, atol=1e-6)
        assert batch.inputs.dtype == torch.float32
        assert batch.inputs.is_contiguous(memory_format=torch.channels_last)
        assert batch.targets.tolist() == labels()[part.numpy()].tolist()
        assert batch.targets.dtype == torch.int64


def test_a_seed_augments_as_its_generator_does():
    part = torch.arange(12)
    (batch,) = source().batches([part], seeds=[5])
    shifted = crop_and_flip(torch.from_numpy(pixels()), padding=1, generator=torch.Generator().manual_seed(5))
    torch.testing.assert_close(batch.inputs, by_hand(shifted), rtol=1e-5, atol=1e-6)


def test_augmentation_depends_on_the_batch_and_its_seed_alone():
    parts, seeds = [torch.tensor([1, 2, 3]), torch.tensor([4, 5]), torch.tensor([1, 2, 3])], [8, 9, 8]
    state = torch.get_rng_state()
    first, second, again = source().batches(parts, seeds=seeds)
    assert torch.equal(first.inputs, again.inputs)
    (alone,) = source().batches(parts[1:2], seeds=seeds[1:2])
    assert torch.equal(second.inputs, alone.inputs)
    (other,) = source().batches(parts[:1], seeds=[7])
    assert not torch.equal(first.inputs, other.inputs)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("augment", ["none", "crop"])
def test_augmentation_does_only_what_was_asked_for(augment):
    (batch,) = source(augment=augment, padding=0).batches([torch.arange(12)], seeds=[1])
    torch.testing.assert_close(batch.inputs, by_hand(pixels()), rtol=1e-5, atol=1e-6)


def test_a_subset_shares_the_images_and_keeps_the_order():
    whole = source()
    part = whole.subset([9, 4, 4]).subset([2, 0])
    assert len(part) == 2 and part.shape == (3, 6, 6)
    assert part.targets.tolist() == [labels()[4], labels()[9]]
    assert torch.equal(part.images, torch.from_numpy(pixels()[[4, 9]]))
    assert part._pixels is whole._pixels
    (batch,) = part.batches([torch.tensor([1])])
    torch.testing.assert_close(batch.inputs, by_hand(pixels()[9:10]), rtol=1e-5, atol=1e-6)


def test_without_labels_every_target_is_minus_one():
    unlabelled = MemorySource(pixels(5), preprocessing=PLAIN)
    assert unlabelled.targets.tolist() == [-1] * 5


@pytest.mark.parametrize("limit", [0, 1 << 30])
def test_images_go_to_a_device_once_or_in_batches_where_they_are_many(monkeypatch, limit):
    monkeypatch.setattr(sources, "ON_DEVICE_BYTES", limit)
    whole = source()
    batches = list(whole.batches([torch.arange(4), torch.arange(3)], device="meta"))
    assert [batch.inputs.device.type for batch in batches] == ["meta"] * 2
    assert [tuple(batch.inputs.shape) for batch in batches] == [(4, 3, 6, 6), (3, 3, 6, 6)]
    assert batches[0].targets.device.type == "meta"
    assert list(whole._on_device) == ([torch.device("meta")] if limit else [])


def test_images_that_cannot_be_written_to_are_copied():
    frozen = pixels()
    frozen.flags.writeable = False
    assert len(MemorySource(frozen, preprocessing=PLAIN)) == 12


@pytest.mark.parametrize(
    ("images", "targets", "words"),
    [
        (pixels()[..., :1], None, r"uint8 of shape \(N, H, W, 3\).*got uint8 of shape \(12, 6, 6, 1\)"),
        (pixels().astype(np.float32), None, "got float32"),
        (pixels()[0], None, r"got uint8 of shape \(6, 6, 3\)"),
        (pixels(), np.zeros(5, int), r"`targets` must be 12 whole numbers, got int64 of shape \(5,\)"),
        (pixels(), np.zeros(12), "`targets` must be 12 whole numbers, got float64"),
    ],
)
def test_other_arrays_are_refused(images, targets, words):
    with pytest.raises(ValueError, match=words):
        MemorySource(images, targets, preprocessing=PLAIN)


def test_seeds_must_be_as_many_as_parts():
    with pytest.raises(ValueError, match="batches: `seeds` must be one for each of 2 parts, got 1"):
        list(source().batches([torch.arange(2), torch.arange(2)], seeds=[1]))


def test_preprocessing_survives_json():
    how = Preprocessing((0.1,), (0.3,), "crop", 2, 256 / 224)
    assert Preprocessing.from_json(json.loads(json.dumps(how.to_json()))) == how
    assert how.channels == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mean": (0.1, 0.2)}, "`mean` must be 1 or 3 finite numbers"),
        ({"mean": (float("nan"),)}, "`mean` must be 1 or 3 finite numbers"),
        ({"std": (0.0, 0.1, 0.1)}, "`std` must be as many as `mean` and above 0"),
        ({"std": (0.1,)}, "`std` must be as many"),
        ({"augment": "mixup"}, "`augment` must be crop_flip, crop or none, got 'mixup'"),
        ({"margin": 0.5}, "`margin` at least 1"),
        ({"paddings": 4}, "unknown 'paddings'"),
    ],
)
def test_impossible_preprocessing_is_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        Preprocessing.from_json({**PLAIN.to_json(), **changes})


def test_preprocessing_needs_mean_and_std():
    with pytest.raises(ValueError, match="got no 'std'"):
        Preprocessing.from_json({"mean": [0.5]})


def test_padding_is_an_eighth_of_the_short_side():
    assert [default_padding(n, n) for n in (4, 8, 28, 32, 64)] == [1, 1, 4, 4, 8]
    assert default_padding(64, 32) == 4
