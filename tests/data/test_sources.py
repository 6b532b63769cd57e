"""Sources of batches: a contract for images in memory and streamed ones, and what each does by itself."""

import json
import multiprocessing
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
from refusals import refusal

HOW = Preprocessing((0.4, 0.5, 0.6), (0.2, 0.25, 0.3), "crop_flip", 1, margin=8 / 7)
SIZES = [(9, 12), (12, 9), (20, 20), (8, 30)]
NAMES = [f"image{n}" for n in range(12)]
CONTENTS = [encoded(pixels(1, *SIZES[n % 4], seed=n)[0]) for n in range(12)]
EVERYTHING = torch.arange(12)


def how(**changes):
    return Preprocessing(**{**HOW.to_json(), **changes})


def in_memory(**changes):
    return MemorySource(pixels(), labels(), preprocessing=how(**changes))


def streamed(workers=0, **changes):
    images = EncodedImages(CONTENTS, NAMES)
    return StreamedSource(images, labels(), shape=(3, 8, 8), preprocessing=how(**changes), workers=workers)


def scaled(images):
    """Inputs computed by hand."""
    mean, std = torch.tensor(HOW.mean).view(3, 1, 1), torch.tensor(HOW.std).view(3, 1, 1)
    return (torch.as_tensor(images).permute(0, 3, 1, 2) / 255.0 - mean) / std


def only(source, indices=EVERYTHING, **options):
    (batch,) = source.batches([torch.as_tensor(indices)], **options)
    return batch


both = pytest.mark.parametrize("make", [in_memory, streamed])


@both
def test_without_seeds_batches_are_the_chosen_images_scaled(make):
    cropped = [to_pixels(center_crop(decode(content), 8, 8, 8 / 7), 3) for content in CONTENTS]
    expected = scaled(pixels() if make is in_memory else np.stack(cropped))
    indices = [torch.tensor([3, 0, 3, 11]), torch.tensor([7])]
    for chosen, batch in zip(indices, make().batches(indices), strict=True):
        torch.testing.assert_close(batch.inputs, expected[chosen], rtol=1e-5, atol=1e-6)
        assert batch.inputs.dtype == torch.float32
        assert batch.inputs.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(batch.targets, torch.from_numpy(labels())[chosen])


@both
def test_augmentation_depends_on_the_seed_and_the_batch_alone(make):
    indices, seeds = [torch.tensor([1, 2, 3]), torch.tensor([4, 5]), torch.tensor([1, 2, 3])], [8, 9, 8]
    state = torch.get_rng_state()
    first, second, again = make().batches(indices, seeds=seeds)
    assert torch.equal(first.inputs, again.inputs)
    assert torch.equal(only(make(), indices[1], seeds=[9]).inputs, second.inputs)
    assert not torch.equal(only(make(), indices[0], seeds=[7]).inputs, first.inputs)
    assert torch.equal(torch.get_rng_state(), state)
    assert "`seeds`" in refusal(list, make().batches(indices, seeds=[1]))


@both
def test_noise_comes_with_a_seed_and_has_the_configured_deviation(make):
    clean, noisy = only(make()).inputs, make(augment="none", noise=0.15)
    assert torch.equal(only(make(augment="none"), seeds=[3]).inputs, clean)
    assert torch.equal(only(noisy).inputs, clean)
    one, same, other = (only(noisy, seeds=[seed]).inputs for seed in (1, 1, 2))
    assert torch.equal(one, same) and not torch.equal(one, other)
    assert (one - clean).std().item() == pytest.approx(0.15, rel=0.1)
    assert abs(((other - clean) * (one - clean)).mean()) < 0.005  # draws are independent
    assert one.is_contiguous(memory_format=torch.channels_last)


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
    plain = {"mean": (0.0,) * 3, "std": (1.0,) * 3, "margin": 1.0}
    other = whole.with_preprocessing(how(**plain))
    assert torch.equal(only(other).inputs, only(make(**plain)).inputs)
    assert torch.equal(other.targets, whole.targets) and whole.preprocessing == HOW
    assert "`preprocessing`" in refusal(whole.with_preprocessing, Preprocessing((0.1,), (0.3,)))


@both
def test_sources_can_be_sent_to_new_processes(make):
    before = make()
    one, other = (only(source, seeds=[2]) for source in (before, pickle.loads(pickle.dumps(before))))
    assert torch.equal(one.inputs, other.inputs) and torch.equal(one.targets, other.targets)


# Images in memory


def test_small_images_are_augmented_as_a_batch():
    batch = only(in_memory(), seeds=[5])
    shifted = crop_and_flip(torch.from_numpy(pixels()), padding=1, generator=torch.Generator().manual_seed(5))
    torch.testing.assert_close(batch.inputs, scaled(shifted), rtol=1e-5, atol=1e-6)


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
    assert {tensor.device.type for batch in batches for tensor in batch} == {"meta"}
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
        (pixels(), np.zeros(12, bool), "targets"),
    ],
)
def test_other_arrays_are_refused(images, targets, name):
    assert f"`{name}`" in refusal(MemorySource, images, targets, preprocessing=HOW)


# Streamed images


@pytest.mark.parametrize("workers", [1, 3])
def test_the_number_of_workers_does_not_change_the_batches(workers):
    indices = list(torch.randperm(12, generator=torch.Generator().manual_seed(0)).split(3))
    state = torch.get_rng_state()
    alone, together = (
        list(streamed(n, noise=0.1).batches(indices, seeds=[4, 5, 6, 7])) for n in (0, workers)
    )
    assert torch.equal(torch.get_rng_state(), state)
    for one, other in zip(alone, together, strict=True):
        assert torch.equal(one.inputs, other.inputs) and torch.equal(one.targets, other.targets)


def test_a_random_crop_depends_on_the_seed_and_the_position_in_the_batch():
    first, second = streamed().batches([torch.tensor([1, 2, 2]), torch.tensor([5, 2])], seeds=[9, 9])
    assert torch.equal(first.inputs[1], second.inputs[1])
    assert not torch.equal(first.inputs[1], first.inputs[2])


@pytest.mark.parametrize("workers", [0, 2])
def test_an_unreadable_image_is_named_in_the_main_process(tmp_path, workers):
    (tmp_path / "a.png").write_bytes(CONTENTS[0])
    for images, name in (
        (EncodedImages([*CONTENTS[:5], CONTENTS[5][:50]], NAMES[:6]), "image5"),
        (FileImages(tmp_path, ["a.png", "b.png"]), "b.png"),
    ):
        whole = StreamedSource(images, shape=(3, 8, 8), preprocessing=HOW, workers=workers)
        batches = whole.batches(list(torch.arange(len(images)).split(1)))
        assert f"{name} (" in refusal(list, batches)
    assert "`shape`" in refusal(StreamedSource, images, shape=(1, 8, 8), preprocessing=HOW)


def test_a_loop_that_is_left_early_leaves_no_process_behind():
    batches = streamed(2).batches(list(EVERYTHING.split(2)))
    next(batches)
    assert len(multiprocessing.active_children()) == 2
    batches.close()
    assert multiprocessing.active_children() == []
    assert len(list(streamed(2).batches([torch.arange(2), torch.arange(3)]))) == 2


class SlowSquares(Dataset):
    def __getitem__(self, number):
        time.sleep(number / 50)
        return number * number


class Deadly(Dataset):
    def __getitem__(self, _):
        os._exit(3)


class Wrong(Dataset):
    def __getitem__(self, _):
        raise RuntimeError("a mistake of ours")


def test_results_come_in_order_whichever_worker_is_slow():
    assert list(in_order(SlowSquares(), [5, 0, 3, 1], workers=2)) == [25, 0, 9, 1]
    assert list(in_order(SlowSquares(), [], workers=2)) == []


def test_a_worker_that_dies_is_reported_in_one_line():
    with pytest.raises(RuntimeError, match=r"^data: .*`workers`"):
        list(in_order(Deadly(), [0, 1, 2], workers=1))
    with pytest.raises(RuntimeError, match="a mistake of ours"):
        list(in_order(Wrong(), [0, 1, 2], workers=1))


def test_chained_images_are_found_by_their_position():
    first, second = ArrayImages(pixels(2), "a"), ArrayImages(pixels(3, seed=1), "b")
    chain = ChainedImages([first, second])
    assert [chain.name(n) for n in range(len(chain))] == ["a[0]", "a[1]", "b[0]", "b[1]", "b[2]"]
    assert np.array_equal(np.asarray(chain.read(3)), pixels(3, seed=1)[1])
    assert [*map(id, chain.identity())] == [id(first.pixels), id(second.pixels)]


def test_votes_follow_their_images():
    source, votes, indices = in_memory(), torch.rand(12, 10), torch.tensor([7, 3, 3])
    counted = CountedSource(source, votes)
    inputs, targets = only(counted, indices)
    assert torch.equal(targets, votes[indices]) and torch.equal(inputs, only(source, indices).inputs)
    assert len(counted) == 12 and counted.shape == source.shape and counted.targets is votes
    others = [source, *(CountedSource(source, one) for one in (votes + 1, votes.flip(0)))]
    assert len({counted.digest(), *(other.digest() for other in others)}) == 4
    assert counted.digest() == CountedSource(source, votes.clone()).digest()
    for wrong in (votes[:9], votes.long(), votes[:, 0]):
        assert "`counts`" in refusal(CountedSource, source, wrong)


# Preprocessing


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
    assert name in refusal(Preprocessing.from_json, {**HOW.to_json(), **changes})
    assert "std" in refusal(Preprocessing.from_json, {"mean": [0.5]})


def test_padding_is_an_eighth_of_the_short_side():
    assert [default_padding(n, n) for n in (4, 8, 28, 32, 64)] == [1, 1, 4, 4, 8]
    assert default_padding(64, 32) == 4
