"""Large images: the same batches whatever the number of processes, and errors where they can be read."""

import pickle

import numpy as np
import pytest
import torch

from beliefmatch.data.images import ArrayImages, ChainedImages, EncodedImages, FileImages, decode
from beliefmatch.data.preprocessing import Preprocessing
from beliefmatch.data.sources import MemorySource, StreamedSource, in_order
from beliefmatch.data.transforms import center_crop, to_pixels
from image_files import encoded, labels, pixels

HOW = Preprocessing((0.4, 0.5, 0.6), (0.2, 0.25, 0.3), "crop_flip", margin=8 / 7)
SIZES = [(9, 12), (12, 9), (20, 20), (8, 30)]


def contents():
    return [encoded(pixels(1, *SIZES[n % 4], seed=n)[0]) for n in range(12)]


def source(workers=0, **changes):
    how = Preprocessing(**{**HOW.to_json(), **changes})
    names = [f"image{n}" for n in range(12)]
    return StreamedSource(
        EncodedImages(contents(), names), labels(), shape=(3, 8, 8), preprocessing=how, workers=workers
    )


def test_without_seeds_batches_are_the_middles_scaled():
    part = torch.tensor([3, 0, 11])
    (batch,) = source().batches([part])
    cut = np.stack([to_pixels(center_crop(decode(contents()[n]), 8, 8, 8 / 7), 3) for n in part.tolist()])
    mean, std = torch.tensor(HOW.mean).view(3, 1, 1), torch.tensor(HOW.std).view(3, 1, 1)
    expected = (torch.from_numpy(cut).permute(0, 3, 1, 2) / 255.0 - mean) / std
    torch.testing.assert_close(batch.inputs, expected, rtol=1e-5, atol=1e-6)
    assert batch.inputs.is_contiguous(memory_format=torch.channels_last)
    assert batch.targets.tolist() == labels()[part.numpy()].tolist()


@pytest.mark.parametrize("workers", [1, 3])
def test_the_number_of_workers_cannot_be_seen(workers):
    parts, seeds = list(torch.randperm(12, generator=torch.Generator().manual_seed(0)).split(3)), [4, 5, 6, 7]
    state = torch.get_rng_state()
    alone = list(source(0).batches(parts, seeds=seeds))
    together = list(source(workers).batches(parts, seeds=seeds))
    assert torch.equal(torch.get_rng_state(), state)
    for one, other in zip(alone, together, strict=True):
        assert torch.equal(one.inputs, other.inputs)
        assert torch.equal(one.targets, other.targets)


def test_augmentation_depends_on_the_seed_and_the_place_in_the_batch_alone():
    parts = [torch.tensor([1, 2, 2]), torch.tensor([5, 2])]
    first, second = source().batches(parts, seeds=[9, 9])
    assert torch.equal(first.inputs[1], second.inputs[1])
    assert not torch.equal(first.inputs[1], first.inputs[2])
    (again,) = source().batches(parts[1:], seeds=[9])
    assert torch.equal(again.inputs, second.inputs)


def test_no_augmentation_means_none():
    (plain,) = source().batches([torch.arange(12)])
    (seeded,) = source(augment="none").batches([torch.arange(12)], seeds=[3])
    assert torch.equal(plain.inputs, seeded.inputs)


def test_a_subset_keeps_order_and_labels():
    part = source().subset([7, 2]).subset([1])
    assert len(part) == 1 and part.targets.tolist() == [2] and part.shape == (3, 8, 8)
    (batch,), (same,) = part.batches([torch.tensor([0])]), source().batches([torch.tensor([2])])
    assert torch.equal(batch.inputs, same.inputs)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_unreadable_image_is_told_by_name_in_the_main_process(workers):
    broken = contents()
    broken[5] = broken[5][:50]
    pictures = EncodedImages(broken, [f"image{n}" for n in range(12)])
    whole = StreamedSource(pictures, shape=(3, 8, 8), preprocessing=HOW, workers=workers)
    with pytest.raises(ValueError, match=r"^data: images must be readable, got image5 \(.*corrupt") as caught:
        list(whole.batches(list(torch.arange(12).split(3))))
    assert "\n" not in f"{caught.value}"


def test_a_file_that_has_gone_is_told_by_its_path(tmp_path):
    (tmp_path / "a.png").write_bytes(contents()[0])
    (tmp_path / "b.png").write_bytes(contents()[1])
    whole = StreamedSource(
        FileImages(tmp_path, ["a.png", "b.png"]), shape=(3, 8, 8), preprocessing=HOW, workers=0
    )
    (tmp_path / "b.png").unlink()
    with pytest.raises(ValueError, match=r"b\.png \(No such file or directory\)"):
        list(whole.batches([torch.arange(2)]))


def test_sources_can_be_sent_to_processes_that_start_afresh(tmp_path):
    (tmp_path / "a.png").write_bytes(contents()[0])
    streamed = StreamedSource(FileImages(tmp_path, ["a.png"]), shape=(3, 8, 8), preprocessing=HOW, workers=0)
    in_memory = MemorySource(pixels(), labels(), preprocessing=HOW)
    for before in (source(), streamed, in_memory):
        after = pickle.loads(pickle.dumps(before))
        part = [torch.arange(len(before))]
        (one,), (other,) = before.batches(part, seeds=[2]), after.batches(part, seeds=[2])
        assert torch.equal(one.inputs, other.inputs) and torch.equal(one.targets, other.targets)


def test_a_loop_that_is_left_early_leaves_no_process_behind():
    batches = source(2).batches(list(torch.arange(12).split(2)))
    next(batches)
    batches.close()
    assert len(list(source(2).batches([torch.arange(2), torch.arange(3)]))) == 2


def test_results_come_in_order_whichever_worker_is_slow():
    assert list(in_order(_slow_square, [5, 0, 3, 1], workers=2)) == [25, 0, 9, 1]
    assert list(in_order(_slow_square, [], workers=2)) == []


def test_a_worker_that_dies_is_told_in_one_line():
    with pytest.raises(RuntimeError, match=r"^data: a process that reads images died; .*`workers`"):
        list(in_order(_die, [0, 1, 2], workers=1))


def test_chained_pictures_are_found_by_their_place():
    both = ChainedImages([ArrayImages(pixels(2), "a"), ArrayImages(pixels(3, seed=1), "b")])
    assert len(both) == 5
    assert [both.name(n) for n in range(5)] == ["a[0]", "a[1]", "b[0]", "b[1]", "b[2]"]
    assert np.array_equal(np.asarray(both.read(3)), pixels(3, seed=1)[1])


def test_shape_and_preprocessing_must_agree():
    with pytest.raises(ValueError, match=r"StreamedSource: `shape` must have 3 channels.*got \(1, 8, 8\)"):
        StreamedSource(EncodedImages(contents(), ["x"] * 12), shape=(1, 8, 8), preprocessing=HOW)


def _slow_square(number):
    import time

    time.sleep(number / 50)
    return number * number


def _die(_):
    import os

    os._exit(3)


def test_noise_is_added_by_the_seed_whatever_the_number_of_workers():
    part = [torch.arange(12)]
    (clean,), (alone,), (together,) = (
        source(**options).batches(part, seeds=[3])
        for options in ({}, {"noise": 0.15}, {"noise": 0.15, "workers": 2})
    )
    assert torch.equal(alone.inputs, together.inputs)
    assert (alone.inputs - clean.inputs).std().item() == pytest.approx(0.15, rel=0.1)
    (unseeded,), (plain,) = source(noise=0.15).batches(part), source().batches(part)
    assert torch.equal(unseeded.inputs, plain.inputs)


def test_labels_can_be_held_back_and_images_seen_in_another_way():
    whole = source()
    assert whole.unlabelled().targets.tolist() == [-1] * 12 and whole.targets.tolist() == labels().tolist()
    other = whole.with_preprocessing(Preprocessing((0.0,) * 3, (1.0,) * 3))
    assert other.preprocessing.margin == 1.0
    (as_new,), (as_other,) = (
        each.batches([torch.tensor([2, 5])])
        for each in (source(mean=(0.0,) * 3, std=(1.0,) * 3, margin=1.0), other)
    )
    assert torch.equal(as_new.inputs, as_other.inputs)
