"""Out-of-distribution images and images for prediction, in the form of a dataset's inputs."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from beliefmatch.data import load, load_ood, prepare
from beliefmatch.data.config import DataConfig
from beliefmatch.data.digits import rotated
from beliefmatch.data.loading import read_images
from beliefmatch.data.ood import SYMMETRIC_DIGITS
from beliefmatch.data.preprocessing import Preprocessing
from beliefmatch.data.sources import MemorySource, StreamedSource
from beliefmatch.data.transforms import center_crop, normalise, to_pixels
from image_files import encoded, labels, picture, pixels, save_folder, save_npz
from refusals import refusal

GREY = Preprocessing((0.0,), (240 / 255,))
COLOUR = Preprocessing((0.4, 0.5, 0.6), (0.2, 0.25, 0.3), "crop_flip", 1)


@pytest.fixture(scope="module")
def digits():
    return load(DataConfig())


@pytest.fixture(scope="module")
def colours(tmp_path_factory):
    path = save_npz(tmp_path_factory.mktemp("id") / "id.npz", pixels(60), labels(60))
    return load(DataConfig(name=f"{path}"))


def everything(source):
    (batch,) = source.batches([torch.arange(len(source))])
    assert batch.targets.tolist() == [-1] * len(source)
    return batch.inputs


def test_noise_is_uniform_over_the_levels_of_digits_and_over_bytes(digits, colours):
    name, noise = load_ood("noise", digits)
    counts = (everything(noise).double() * 16).round().long().flatten().bincount()
    assert name == "noise" and len(noise) == 540
    assert len(counts) == 17
    assert 0.9 * counts.sum() / 17 < counts.min() and counts.max() < 1.15 * counts.sum() / 17
    _, noise = load_ood("noise", colours)
    assert noise.images.shape == (12, 6, 6, 3)  # as many as are reported on
    assert abs(noise.images.double().mean() - 127.5) < 8
    assert torch.equal(noise.images, load_ood("noise", colours)[1].images)


def test_rotations_are_test_digits_that_are_no_digits_any_more(digits, colours):
    _, turned = load_ood("rotations", digits)
    (batch,) = digits.test.batches([torch.arange(len(digits.test))])
    there = batch.inputs[[target not in SYMMETRIC_DIGITS for target in batch.targets.tolist()]]
    assert len(turned) == len(there)
    inputs = everything(turned)
    assert torch.equal(inputs, everything(load_ood("rotations", digits)[1]))
    angles = torch.arange(60.0, 301.0, 1.0).tolist()
    for one, original in zip(inputs[:5], there[:5], strict=True):
        nearest = (rotated(original, angles) - one).abs().mean((1, 2, 3)).min()
        assert nearest < 0.02 < (original - one).abs().mean()
    assert "`text`" in refusal(load_ood, "rotations", colours)


def test_patches_are_squares_out_of_the_photographs(digits):
    from sklearn.datasets import load_sample_images

    _, found = load_ood("patches", digits)
    assert found.images.shape == (540, 8, 8, 1)
    grey = [image @ np.array([0.299, 0.587, 0.114]) * 240 / 255 for image in load_sample_images().images]
    windows = [np.lib.stride_tricks.sliding_window_view(image, (8, 8)) for image in grey]
    for patch in found.images[:5, :, :, 0].numpy():
        assert any((np.abs(window - patch) <= 0.5).all((2, 3)).any() for window in windows)


def test_a_named_set_gives_its_test_images_in_the_form_of_the_dataset(colours, digits):
    name, ood = load_ood("digits", colours)
    assert name == "digits" and ood.shape == (3, 6, 6) and len(ood) == 540
    first = digits.test.images[:1].numpy()[0]
    expected = to_pixels(center_crop(picture(first), 6, 6), 3)
    assert np.array_equal(ood.images[0], expected)
    assert ood.preprocessing == colours.test.preprocessing


def test_paths_take_the_name_they_are_given(tmp_path, digits):
    np.savez(tmp_path / "photos.npz", images=pixels(5, 16, 12))
    name, ood = load_ood(f"{tmp_path / 'photos.npz'}", digits)
    assert name == "photos" and ood.images.shape == (5, 8, 8, 1)
    name, same = load_ood(f"holiday={tmp_path / 'photos.npz'}", digits)
    assert name == "holiday" and torch.equal(ood.images, same.images)
    folder = save_folder(tmp_path / "folder", pixels(), labels())
    assert len(load_ood(f"{folder}", digits)[1]) == 12


def test_a_named_set_lies_in_a_directory_under_its_name_and_is_never_another_one(tmp_path, digits):
    """Files and folders without a name, or of other names, are not taken for it."""
    files, folders = tmp_path / "files", tmp_path / "folders"
    save_npz(files / "svhn_test10k.npz", pixels(7, 32, 32), labels(7))
    save_npz(files / "cifar10_test.npz", pixels(5, 32, 32), labels(5))
    save_folder(folders / "svhn", pixels(), labels())
    save_folder(folders / "cifar10", pixels(30), labels(30))
    found = [("svhn", files, 7), (f"svhn={files}", None, 7), ("svhn", folders, 12), ("cifar10", files, 5)]
    for text, directory, count in found:
        name, ood = load_ood(text, digits, directory=directory and f"{directory}")
        assert name == text.partition("=")[0] and len(ood) == count
    save_npz(tmp_path / "unnamed" / "test.npz", pixels(5, 32, 32), labels(5))
    for place in (folders / "cifar10", tmp_path / "unnamed", tmp_path / "nowhere"):
        assert "`text`" in refusal(load_ood, "svhn", digits, directory=f"{place}")
    known = load(DataConfig(name="cifar10", directory=f"{folders}", validation=0.3, augment="none"))
    assert sum(known.facts["counts"].values()) == 30
    assert "got cifar10, svhn in" in refusal(load, DataConfig(name="mnist", directory=f"{folders}"))


@pytest.mark.parametrize("text", ["nois", "=photos", "photos="])
def test_misspelt_names_are_refused(digits, text):
    message = refusal(load_ood, text, digits)
    assert "`text`" in message and f"got '{text}'" in message
    assert "`like`" in refusal(load_ood, "noise", replace(digits, facts={}))
    assert "`corrupt`" in refusal(load_ood, "digits", digits, corrupt="ship")


def test_unreadable_ood_images_stop_or_are_skipped(tmp_path, digits):
    folder = save_folder(tmp_path, pixels(), labels())
    (folder / "ant" / "0000.png").write_bytes(b"")
    assert "0000.png (it is empty)" in refusal(load_ood, f"x={folder}", digits)
    with pytest.warns(UserWarning, match="1 of 12 images cannot be read"):
        assert len(load_ood(f"x={folder}", digits, corrupt="skip")[1]) == 11


def test_images_to_predict_come_in_the_order_of_the_paths(tmp_path):
    images = pixels(6, 6, 6)
    folder = tmp_path / "b"
    folder.mkdir()
    for number in (1, 0):
        (folder / f"{number}.png").write_bytes(encoded(images[number]))
    (tmp_path / "a.bmp").write_bytes(encoded(images[2], "BMP"))
    np.save(tmp_path / "c.npy", images[3:4])
    np.savez(tmp_path / "d.npz", images=images[4:5])
    pq.write_table(pa.table({"image": [encoded(images[5])]}), tmp_path / "e.parquet")
    paths = [folder, *(tmp_path / name for name in ("a.bmp", "c.npy", "d.npz", "e.parquet"))]
    names, source = read_images(paths, like_shape=(3, 6, 6), preprocessing=COLOUR)
    assert names == [
        *(f"{path}" for path in (folder / "0.png", folder / "1.png", tmp_path / "a.bmp")),
        "c.npy[0]",
        "d.npz[0]",
        "e.parquet[0]",
    ]
    assert np.array_equal(source.images, images)
    assert everything(source).shape == (6, 3, 6, 6)


@pytest.mark.parametrize(("side", "channels", "how"), [(64, 1, GREY), (4, 3, COLOUR)])
def test_images_to_predict_are_brought_to_size_and_channels(tmp_path, monkeypatch, side, channels, how):
    monkeypatch.setattr(prepare, "IN_MEMORY_SIDE", side)
    photograph = pixels(1, 20, 12)[0]
    (tmp_path / "a.png").write_bytes(encoded(photograph))
    options = {"like_shape": (channels, 8, 8), "preprocessing": how, "workers": 0}
    names, source = read_images(f"{tmp_path / 'a.png'}", **options)
    assert names == [f"{tmp_path / 'a.png'}"] and source.shape == (channels, 8, 8)
    assert isinstance(source, StreamedSource if side < 8 else MemorySource)
    expected = torch.tensor(to_pixels(center_crop(picture(photograph), 8, 8), channels))
    assert torch.equal(everything(source), normalise(expected[None], mean=how.mean, std=how.std))
    with pytest.raises(ValueError, match="`preprocessing`"):
        read_images(tmp_path, **{**options, "preprocessing": COLOUR if how is GREY else GREY})


def test_skipped_images_have_no_name(tmp_path):
    for number in range(3):
        (tmp_path / f"{number}.png").write_bytes(encoded(pixels(1)[0]) if number != 1 else b"no")
    with pytest.warns(UserWarning, match=r"1 of 3 images .*1\.png"):
        names, source = read_images(tmp_path, like_shape=(3, 6, 6), preprocessing=COLOUR, corrupt="skip")
    assert [name[-5:] for name in names] == ["0.png", "2.png"] and len(source) == 2


@pytest.mark.parametrize(
    ("paths", "words"),
    [
        ([], "`paths`"),
        ("nowhere.png", "got nothing at"),
        ("a.pkl", "a.pkl"),
        ("empty", "got nothing"),
        ("none.npy", "got none"),
        ("broken.npy", "`path`"),
    ],
)
def test_what_holds_no_images_is_refused(tmp_path, paths, words):
    for name in ("a.pkl", "broken.npy"):
        (tmp_path / name).write_bytes(b"\x80\x04.")
    (tmp_path / "empty").mkdir()
    np.save(tmp_path / "none.npy", pixels(0))
    given = tmp_path / paths if isinstance(paths, str) else paths
    assert words in refusal(read_images, given, like_shape=(3, 6, 6), preprocessing=COLOUR)
