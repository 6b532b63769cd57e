"""Sources of batches: a contract for images in memory and streamed ones, and what each does by itself."""

import json
import os
import pickle
import time

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from beliefmatch.data import sources
from beliefmatch.data.images import ArrayImages, ChainedImages, EncodedImages, FileImages, decode
from beliefmatch.data.preprocessing import Preprocessing, default_padding
from beliefmatch.data.sources import CountedSource, MemorySource, StreamedSource, in_order
from beliefmatch.data.transforms import center_crop, crop_and_flip, to_pixels
from image_files import encoded, labels, pixels

HOW = Preprocessing((0.4, 0.5, 0.6), (0.2, 0.25, 0.3), "crop_flip", 1, margin=8 / 7)
SIZES = [(9, 12), (12, 9), (20, 20), (8, 30)]
NAMES = [f"image{n}" for n in range(12)]


def contents():
    return [encoded(pixels(1, *SIZES[n % 4], seed=n)[0]) for n in range(12)]


def how(**changes):
    return Preprocessing(**{**HOW.to_json(), **changes})


def in_memory(**changes):
    return MemorySource(pixels(), labels(), preprocessing=how(**changes))


def streamed(workers=0, **changes):
    images = EncodedImages(contents(), NAMES)
    return StreamedSource(images, labels(), shape=(3, 8, 8), preprocessing=how(**changes), workers=workers)


def expected(part, kind):
    """The inputs of some rows, computed by hand."""
    if kind is in_memory:
        rows = pixels()[part.numpy()]
    else:
        rows = np.stack(
            [to_pixels(center_crop(decode(contents()[n]), 8, 8, 8 / 7), 3) for n in part.tolist()]
        )
    return by_hand(torch.from_numpy(rows))


def by_hand(images):
    mean, std = torch.tensor(HOW.mean).view(3, 1, 1), torch.tensor(HOW.std).view(3, 1, 1)
    return (images.permute(0, 3, 1, 2) / 255.0 - mean) / std


def only(source, part, **options):
    (batch,) = source.batches([torch.as_tensor(part)], **options)
    return batch


both = pytest.mark.parametrize("make", [in_memory, streamed])


@both
def test_without_seeds_batches_are_the_chosen_images_scaled(make):
    parts = [torch.tensor([3, 0, 3, 11]), torch.tensor([7])]
    batches = list(make().batches(parts))
    for part, batch in zip(parts, batches, strict=True):
        torch.testing.assert_close(batch.inputs, expected(part, make), rtol=1e-5, atol=1e-6)
        assert batch.inputs.dtype == torch.float32
        assert batch.inputs.is_contiguous(memory_format=torch.channels_last)
        assert (
            batch.targets.dtype == torch.int64 and batch.targets.tolist() == labels()[part.numpy()].tolist()
        )


@both
def test_augmentation_depends_on_the_seed_and_the_batch_alone(make):
    parts, seeds = [torch.tensor([1, 2, 3]), torch.tensor([4, 5]), torch.tensor([1, 2, 3])], [8, 9, 8]
    state = torch.get_rng_state()
    first, second, again = make().batches(parts, seeds=seeds)
    assert torch.equal(first.inputs, again.inputs)
    assert torch.equal(only(make(), parts[1], seeds=[9]).inputs, second.inputs)
    assert not torch.equal(only(make(), parts[0], seeds=[7]).inputs, first.inputs)
    assert torch.equal(torch.get_rng_state(), state)


@both
def test_no_augmentation_means_none(make):
    everything = torch.arange(12)
    plain, seeded = only(make(), everything), only(make(augment="none"), everything, seeds=[3])
    assert torch.equal(plain.inputs, seeded.inputs)


@both
def test_a_subset_keeps_order_and_labels_and_shares_the_images(make):
    whole = make()
    part = whole.subset([9, 4, 4]).subset([2, 0])
    assert len(part) == 2 and part.shape == whole.shape
    assert part.targets.tolist() == labels()[[4, 9]].tolist()
    assert torch.equal(only(part, [1]).inputs, only(whole, [9]).inputs)
    shared = "pixels" if make is in_memory else "_images"
    assert getattr(part, shared) is getattr(whole, shared)


@both
def test_digests_are_of_rows_and_scaling_but_not_of_augmentation(make):
    whole = make()
    assert whole.digest() == make(augment="none", noise=0.1).digest()
    others = [whole.subset([0, 2, 5]), whole.subset([0, 2, 4]), whole.unlabelled(), make(std=(0.1,) * 3)]
    assert len({whole.digest(), *(other.digest() for other in others)}) == 5


@both
def test_labels_can_be_held_back_and_the_preprocessing_changed(make):
    whole = make()
    assert whole.unlabelled().targets.tolist() == [-1] * 12 and whole.targets.tolist() == labels().tolist()
    other = whole.with_preprocessing(how(mean=(0.0,) * 3, std=(1.0,) * 3, margin=1.0))
    fresh = make(mean=(0.0,) * 3, std=(1.0,) * 3, margin=1.0)
    assert torch.equal(only(other, [2, 5]).inputs, only(fresh, [2, 5]).inputs)
    assert torch.equal(other.targets, whole.targets)


@both
def test_noise_comes_with_a_seed_and_has_the_configured_deviation(make):
    everything = torch.arange(12)
    clean = only(make(augment="none"), everything)
    noisy = make(augment="none", noise=0.15)
    one, same, other = (only(noisy, everything, seeds=[seed]).inputs for seed in (1, 1, 2))
    assert torch.equal(one, same) and not torch.equal(one, other)
    assert (one - clean.inputs).std().item() == pytest.approx(0.15, rel=0.1)
    assert abs(((other - clean.inputs) * (one - clean.inputs)).mean()) < 0.005  # draws are independent
    assert one.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(only(noisy, everything).inputs, clean.inputs)


@both
def test_sources_can_be_sent_to_new_processes(make):
    before = make()
    after = pickle.loads(pickle.dumps(before))
    one, other = (only(source, torch.arange(12), seeds=[2]) for source in (before, after))
    assert torch.equal(one.inputs, other.inputs) and torch.equal(one.targets, other.targets)


@both
def test_seeds_must_be_as_many_as_parts(make):
    with pytest.raises(ValueError, match="batches: `seeds`"):
        list(make().batches([torch.arange(2), torch.arange(2)], seeds=[1]))


def test_small_images_are_augmented_as_a_batch():
    batch = only(in_memory(), torch.arange(12), seeds=[5])
    shifted = crop_and_flip(torch.from_numpy(pixels()), padding=1, generator=torch.Generator().manual_seed(5))
    torch.testing.assert_close(batch.inputs, by_hand(shifted), rtol=1e-5, atol=1e-6)


def test_small_images_are_shifted_by_no_more_than_the_padding():
    images = np.zeros((64, 9, 9, 1), np.uint8)
    images[:, 4, 4] = 255
    source = MemorySource(images, preprocessing=Preprocessing((0.0,), (1.0,), "crop", padding=2))
    found = (only(source, torch.arange(64), seeds=[3]).inputs[:, 0] > 0).nonzero()[:, 1:].tolist()
    assert {row for row, _ in found} == {column for _, column in found} == {2, 3, 4, 5, 6}


@pytest.mark.parametrize("limit", [0, 1 << 30])
def test_images_go_to_a_device_once_or_in_batches_where_they_are_many(monkeypatch, limit):
    monkeypatch.setattr(sources, "ON_DEVICE_BYTES", limit)
    whole = in_memory()
    batches = list(whole.batches([torch.arange(4), torch.arange(3)], device="meta"))
    assert [tuple(batch.inputs.shape) for batch in batches] == [(4, 3, 6, 6), (3, 3, 6, 6)]
    assert {batch.inputs.device.type for batch in batches} == {"meta"} == {batches[0].targets.device.type}
    assert list(whole._on_device) == ([torch.device("meta")] if limit else [])


def test_read_only_images_are_copied_and_unlabelled_ones_have_the_target_minus_one():
    frozen = pixels(5)
    frozen.flags.writeable = False
    assert MemorySource(frozen, preprocessing=HOW).targets.tolist() == [-1] * 5


@pytest.mark.parametrize(
    ("images", "targets", "name"),
    [
        (pixels()[..., :1], None, "images"),
        (pixels().astype(np.float32), None, "images"),
        (pixels()[0], None, "images"),
        (pixels(), np.zeros(5, int), "targets"),
        (pixels(), np.zeros(12), "targets"),
    ],
)
def test_other_arrays_are_refused(images, targets, name):
    with pytest.raises(ValueError, match=f"`{name}`"):
        MemorySource(images, targets, preprocessing=HOW)


def test_shape_and_preprocessing_must_agree():
    with pytest.raises(ValueError, match="StreamedSource: `shape`"):
        StreamedSource(EncodedImages(contents(), NAMES), shape=(1, 8, 8), preprocessing=HOW)


@pytest.mark.parametrize("workers", [1, 3])
def test_the_number_of_workers_does_not_change_the_batches(workers):
    parts = list(torch.randperm(12, generator=torch.Generator().manual_seed(0)).split(3))
    state = torch.get_rng_state()
    alone, together = (list(streamed(n, noise=0.1).batches(parts, seeds=[4, 5, 6, 7])) for n in (0, workers))
    assert torch.equal(torch.get_rng_state(), state)
    for one, other in zip(alone, together, strict=True):
        assert torch.equal(one.inputs, other.inputs) and torch.equal(one.targets, other.targets)


def test_a_random_crop_depends_on_the_seed_and_the_position_in_the_batch():
    first, second = streamed().batches([torch.tensor([1, 2, 2]), torch.tensor([5, 2])], seeds=[9, 9])
    assert torch.equal(first.inputs[1], second.inputs[1])
    assert not torch.equal(first.inputs[1], first.inputs[2])


@pytest.mark.parametrize("workers", [0, 2])
def test_an_unreadable_image_is_named_in_the_main_process(tmp_path, workers):
    broken = contents()
    broken[5] = broken[5][:50]
    (tmp_path / "a.png").write_bytes(broken[0])
    for images, name in (
        (EncodedImages(broken, NAMES), "image5"),
        (FileImages(tmp_path, ["a.png", "b.png"]), "b.png"),
    ):
        whole = StreamedSource(images, shape=(3, 8, 8), preprocessing=HOW, workers=workers)
        with pytest.raises(ValueError, match=rf"^data: images must be readable, got .*{name} \(") as caught:
            list(whole.batches(list(torch.arange(len(images)).split(1))))
        assert "\n" not in f"{caught.value}"


def test_a_loop_that_is_left_early_leaves_no_process_behind():
    batches = streamed(2).batches(list(torch.arange(12).split(2)))
    next(batches)
    batches.close()
    assert len(list(streamed(2).batches([torch.arange(2), torch.arange(3)]))) == 2


def test_results_come_in_order_whichever_worker_is_slow():
    assert list(in_order(SlowSquares(), [5, 0, 3, 1], workers=2)) == [25, 0, 9, 1]
    assert list(in_order(SlowSquares(), [], workers=2)) == []


def test_a_worker_that_dies_is_reported_in_one_line():
    with pytest.raises(RuntimeError, match=r"^data: a process that reads images died; .*`workers`"):
        list(in_order(Deadly(), [0, 1, 2], workers=1))


class SlowSquares(Dataset):
    def __getitem__(self, number):
        time.sleep(number / 50)
        return number * number


class Deadly(Dataset):
    def __getitem__(self, _):
        os._exit(3)


def test_chained_images_are_found_by_their_position():
    chain = ChainedImages([ArrayImages(pixels(2), "a"), ArrayImages(pixels(3, seed=1), "b")])
    assert [chain.name(n) for n in range(len(chain))] == ["a[0]", "a[1]", "b[0]", "b[1]", "b[2]"]
    assert np.array_equal(np.asarray(chain.read(3)), pixels(3, seed=1)[1])


def test_votes_follow_their_images():
    source, votes, part = in_memory(), torch.rand(12, 10), torch.tensor([7, 3, 3])
    counted = CountedSource(source, votes)
    inputs, targets = only(counted, part)
    assert torch.equal(targets, votes[part]) and torch.equal(inputs, only(source, part).inputs)
    assert len(counted) == 12 and counted.shape == source.shape and counted.targets is votes
    others = [source, *(CountedSource(source, one) for one in (votes + 1, votes.flip(0)))]
    assert len({counted.digest(), *(other.digest() for other in others)}) == 4
    assert counted.digest() == CountedSource(source, votes.clone()).digest()
    for wrong in (votes[:9], votes.long(), votes[:, 0]):
        with pytest.raises(ValueError, match="`counts`"):
            CountedSource(source, wrong)


def test_preprocessing_survives_json():
    some = Preprocessing((0.1,), (0.3,), "crop", 2, 256 / 224)
    assert Preprocessing.from_json(json.loads(json.dumps(some.to_json()))) == some
    assert some.channels == 1


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"mean": (0.1, 0.2)}, "`mean`"),
        ({"mean": (float("nan"),)}, "`mean`"),
        ({"std": (0.0, 0.1, 0.1)}, "`std.0`"),
        ({"std": (0.1,)}, "`std`"),
        ({"augment": "mixup"}, "`augment`"),
        ({"margin": 0.5}, "`margin`"),
        ({"noise": -1.0}, "`noise`"),
        ({"paddings": 4}, "paddings"),
    ],
)
def test_impossible_preprocessing_is_refused(changes, name):
    with pytest.raises(ValueError, match=name):
        Preprocessing.from_json({**HOW.to_json(), **changes})
    with pytest.raises(ValueError, match="std"):
        Preprocessing.from_json({"mean": [0.5]})


def test_padding_is_an_eighth_of_the_short_side():
    assert [default_padding(n, n) for n in (4, 8, 28, 32, 64)] == [1, 1, 4, 4, 8]
    assert default_padding(64, 32) == 4
