"""From a name or a path to three sets: sizes, classes, facts, and what is refused."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from beliefmatch.data import DATASETS, load, prepare
from beliefmatch.data.config import DataConfig
from beliefmatch.data.digits import load_digits
from beliefmatch.data.preprocessing import Preprocessing
from beliefmatch.data.sources import MemorySource, StreamedSource
from beliefmatch.data.splits import split_rows
from image_files import CLASSES, encoded, labels, pixels, save_folder, save_npz, save_parquet

IMAGES, LABELS = pixels(60), labels(60)


def settings(name, **changes):
    return DataConfig(**{"name": f"{name}", "workers": 0, **changes})


def everything(source):
    (batch,) = source.batches([torch.arange(len(source))])
    return batch.inputs


def complaint(name, **changes):
    with pytest.raises(ValueError) as caught:
        load(settings(name, **changes))
    assert f"{caught.value}".startswith("data: ") and "\n" not in f"{caught.value}"
    return f"{caught.value}"


@pytest.fixture
def parts(tmp_path):
    """A directory with arrays to train and to report on."""
    save_npz(tmp_path / "cifar10_train.npz", IMAGES, LABELS)
    save_npz(tmp_path / "cifar10_test.npz", pixels(20, seed=1), labels(20))
    return tmp_path


def test_the_package_is_read_without_torch():
    code = "import sys, beliefmatch.data; print({'torch', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_digits_are_those_of_the_old_loader():
    dataset, splits = load(DataConfig()), load_digits()
    assert dataset.class_names == tuple("0123456789")
    for name in ("train", "validation", "test"):
        source, examples = getattr(dataset, name), getattr(splits, name)
        torch.testing.assert_close(everything(source), examples.images, rtol=1e-6, atol=1e-7)
        assert torch.equal(source.targets, examples.targets)
    assert dataset.facts["counts"] == {"train": 898, "validation": 359, "test": 540}
    assert dataset.facts["preprocessing"]["augment"] == "none"
    json.dumps(dataset.facts)


def test_digits_to_report_on_stay_whatever_is_asked_of_the_others():
    usual, other = load(DataConfig()), load(DataConfig(validation=100, limit=50))
    assert torch.equal(everything(usual.test), everything(other.test))
    assert other.facts["counts"] == {"train": 50, "validation": 100, "test": 540}
    assert other.facts["digest"] != usual.facts["digest"]
    assert load(DataConfig(split_seed=1)).facts["digest"] != usual.facts["digest"]
    assert load(DataConfig()).facts["digest"] == usual.facts["digest"]


def test_validation_is_taken_from_the_training_part_and_the_test_part_left_alone(parts):
    dataset = load(settings(parts, validation=12))
    rows = split_rows(LABELS, validation=12, seed=0)
    assert isinstance(dataset.train, MemorySource)
    assert np.array_equal(dataset.train.images, IMAGES[rows.train])
    assert np.array_equal(dataset.validation.images, IMAGES[rows.validation])
    assert dataset.validation.targets.tolist() == LABELS[rows.validation].tolist()
    assert np.array_equal(dataset.test.images, pixels(20, seed=1))
    assert dataset.facts["counts"] == {"train": 48, "validation": 12, "test": 20}
    assert dataset.facts["divided_by_us"] == ["validation"]


def test_mean_and_deviation_are_those_of_the_images_to_train_on(parts):
    dataset = load(settings(parts))
    inputs = everything(dataset.train).double()
    assert inputs.mean((0, 2, 3)).abs().max() < 1e-4
    assert (inputs.std((0, 2, 3), correction=0) - 1).abs().max() < 1e-4
    how = Preprocessing.from_json(dataset.facts["preprocessing"])
    assert how.augment == "crop_flip" and how.padding == 1
    assert load(settings(parts, augment="crop")).facts["preprocessing"]["augment"] == "crop"


def test_a_named_dataset_in_a_directory_keeps_its_habits(parts):
    save_npz(parts / "cifar10_train.npz", IMAGES, labels(60, 10))
    dataset = load(settings("cifar10", directory=f"{parts}"))
    assert dataset.facts["preprocessing"]["mean"] == [0.4914, 0.4822, 0.4465]
    assert dataset.class_names[:3] == ("airplane", "automobile", "bird")


def test_one_set_is_divided_in_three(tmp_path):
    dataset = load(settings(save_npz(tmp_path / "a.npz", IMAGES, LABELS, classes=np.array(CLASSES))))
    assert dataset.facts["counts"] == {"train": 38, "validation": 10, "test": 12}
    held = torch.cat([dataset.train.images, dataset.validation.images, dataset.test.images])
    assert sorted(map(bytes, held.numpy())) == sorted(map(bytes, IMAGES))
    assert dataset.class_names == CLASSES


def test_own_validation_images_serve_for_validation(tmp_path):
    for part, count in {"train": 30, "val": 9, "test": 12}.items():
        save_folder(tmp_path / part, IMAGES[:count], LABELS[:count])
    dataset = load(settings(tmp_path, limit=6))
    assert dataset.facts["counts"] == {"train": 6, "validation": 9, "test": 12}
    assert dataset.train.targets.bincount().tolist() == [2, 2, 2]


def test_without_a_test_part_the_validation_part_is_reported_on(tmp_path):
    save_folder(tmp_path / "train", IMAGES, LABELS)
    save_folder(tmp_path / "val", IMAGES[:9], LABELS[:9])
    assert load(settings(tmp_path)).facts["counts"] == {"train": 48, "validation": 12, "test": 9}


def test_the_same_pixels_have_the_same_digest_in_arrays_and_tables(tmp_path):
    first = load(settings(save_npz(tmp_path / "a.npz", IMAGES, LABELS)))
    second = load(settings(save_parquet(tmp_path / "a.parquet", IMAGES, LABELS)))
    assert first.facts["digest"] == second.facts["digest"]
    changed = IMAGES.copy()
    changed[7, 0, 0, 0] ^= 1
    third = load(settings(save_npz(tmp_path / "b.npz", changed, LABELS)))
    assert third.facts["digest"] != first.facts["digest"]


def test_grey_images_stay_grey_unless_one_has_colours(tmp_path):
    grey = np.repeat(IMAGES[..., :1], 3, 3)
    folder = save_folder(tmp_path / "grey", IMAGES[..., :1], LABELS)
    dataset = load(settings(folder))
    assert dataset.train.shape == (1, 6, 6)
    assert dataset.facts["preprocessing"]["augment"] == "crop"
    (folder / "ant" / "0000.png").write_bytes(encoded(IMAGES[0]))
    assert load(settings(folder)).train.shape == (3, 6, 6)
    assert load(settings(save_folder(tmp_path / "rgb", grey, LABELS))).train.shape == (3, 6, 6)


def test_images_of_different_sizes_need_a_size(tmp_path):
    folder = save_folder(tmp_path, IMAGES, LABELS)
    (folder / "ant" / "0000.png").write_bytes(encoded(pixels(1, 5, 9)[0]))
    assert "`size` must be given where images differ in size" in complaint(folder)
    assert load(settings(folder, size=4)).train.shape == (3, 4, 4)


def test_large_images_are_streamed(tmp_path):
    folder = save_folder(tmp_path, IMAGES, LABELS)
    dataset = load(settings(folder, size=70))
    assert isinstance(dataset.train, StreamedSource)
    assert dataset.train.shape == (3, 70, 70) and not dataset.facts["in_memory"]
    assert dataset.facts["preprocessing"]["margin"] == 256 / 224
    assert dataset.facts["preprocessing"]["mean"] == [0.485, 0.456, 0.406]
    rows = split_rows(np.sort(LABELS), validation=0.2, test=0.2, seed=0)
    assert dataset.test.targets.tolist() == np.sort(LABELS)[rows.test].tolist()
    (folder / "ant" / "0000.png").write_bytes(encoded(IMAGES[0]) + b"more")
    assert load(settings(folder, size=70)).facts["digest"] != dataset.facts["digest"]


def test_scaling_of_another_network_takes_the_place_of_what_is_usual(parts):
    mean, std = (0.5, 0.25, 0.1), (0.5, 0.2, 0.4)
    dataset = load(settings(parts, mean=mean, std=list(std)))
    pixels_seen = dataset.test.images.permute(0, 3, 1, 2).double() / 255
    wanted = (pixels_seen - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    torch.testing.assert_close(everything(dataset.test).double(), wanted, rtol=1e-5, atol=1e-5)
    assert dataset.facts["preprocessing"]["std"] == [0.5, 0.2, 0.4]


def test_the_number_of_means_decides_on_colours(parts):
    images = load(settings(parts, mean=[0.5], std=[0.5])).test.images
    red, green, blue = np.moveaxis(pixels(20, seed=1).astype(float), 3, 0)
    assert np.abs(images[..., 0].numpy() - (0.299 * red + 0.587 * green + 0.114 * blue)).max() <= 1
    digits = load(DataConfig(mean=(0.1, 0.2, 0.3), std=(1, 1, 1)))
    assert digits.train.shape == (3, 8, 8)
    one, two, three = everything(digits.test).unbind(1)
    torch.testing.assert_close(one + 0.1, two + 0.2)
    torch.testing.assert_close(one + 0.1, three + 0.3)


def test_a_margin_is_cut_off_small_and_large_images(tmp_path):
    """Images whose outer pixels are white and whose middle is black: all black once the rim is cut off."""
    images = np.full((12, 12, 12, 3), 255, np.uint8)
    images[:, 3:9, 3:9] = 0
    place = save_npz(tmp_path / "a.npz", images, labels(12))
    scaling = {"mean": (0.0,) * 3, "std": (1.0,) * 3}
    assert everything(load(settings(place, size=6, margin=2, **scaling)).test).max() == 0
    assert everything(load(settings(place, size=6, **scaling)).test).max() == 1
    assert everything(load(settings(place, size=72, margin=3, **scaling)).test).max() == 0
    whole = load(settings(place, size=72, margin=1, **scaling))
    assert everything(whole.test)[:, :, 0].min() == 1 and whole.facts["preprocessing"]["margin"] == 1
    assert "`size` must be given with `margin`" in complaint(place, margin=2)


def test_sets_too_large_for_the_memory_are_streamed_as_they_are(tmp_path, monkeypatch):
    monkeypatch.setattr(prepare, "IN_MEMORY_BYTES", 1000)
    dataset = load(settings(save_folder(tmp_path, IMAGES, LABELS)))
    assert isinstance(dataset.train, StreamedSource) and dataset.train.shape == (3, 6, 6)
    kept = load(settings(save_npz(tmp_path / "a.npz", IMAGES, LABELS)))
    order = np.argsort(LABELS, kind="stable")
    by_class = load(settings(save_npz(tmp_path / "b.npz", IMAGES[order], LABELS[order])))
    assert isinstance(kept.train, MemorySource)
    raw = everything(dataset.test) * torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
    raw = (raw + torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)) * 255
    expected = by_class.test.images.permute(0, 3, 1, 2).float()
    torch.testing.assert_close(raw, expected, rtol=0, atol=1e-2)


@pytest.mark.parametrize("size", [None, 70])
def test_unreadable_images_stop_or_are_skipped_and_counted(tmp_path, size):
    folder = save_folder(tmp_path, IMAGES, LABELS)
    (folder / "bee" / "0004.png").write_bytes(b"")
    (folder / "cat" / "0005.png").write_bytes(encoded(IMAGES[5])[:40])
    if size is None:  # else it is told when it is read
        assert "0004.png (it is empty); mend or remove it" in complaint(folder)
    told = r"^data: 2 of 60 images cannot be read and are left out, first .*0004.png \(it is empty\)\.$"
    with pytest.warns(UserWarning, match=told):
        dataset = load(settings(folder, size=size, corrupt="skip"))
    assert dataset.facts["skipped"] == {"all": 2}
    assert sum(dataset.facts["counts"].values()) == 58
    targets = torch.cat([dataset.train.targets, dataset.validation.targets, dataset.test.targets])
    assert targets.bincount().tolist() == [20, 19, 19]
    for source in (dataset.train, dataset.validation, dataset.test):
        assert everything(source).isfinite().all()


def test_skipping_in_workers_finds_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(prepare, "_FEW", 10)
    monkeypatch.setattr(prepare, "_CHUNK", 7)
    folder = save_folder(tmp_path, IMAGES, LABELS)
    (folder / "bee" / "0004.png").write_bytes(b"")
    with pytest.warns(UserWarning, match="1 of 60"):
        alone = load(settings(folder, corrupt="skip"))
    with pytest.warns(UserWarning, match="1 of 60"):
        together = load(settings(folder, corrupt="skip", workers=2))
    assert alone.facts == together.facts
    assert torch.equal(alone.train.images, together.train.images)


def test_nothing_readable_is_an_error(tmp_path):
    folder = save_folder(tmp_path, IMAGES[:3], LABELS[:3])
    for path in folder.rglob("*.png"):
        path.write_bytes(b"x")
    assert "images must be readable, got 3 that are not" in complaint(folder, corrupt="skip")


def test_a_mistyped_name_is_told_the_nearest(tmp_path):
    for directory in (None, f"{tmp_path}"):
        assert complaint("cifr10", directory=directory).endswith("got 'cifr10'; did you mean cifar10?")


def test_names_that_are_nothing_are_refused():
    words = complaint("cifar11")
    assert "`name` must be one of digits, cifar10" in words and "got 'cifar11'" in words
    assert "where `directory` is given, got './images'" in complaint("./images", directory=".")
    assert "got nothing at" in complaint("cifar10", directory="nowhere")


def test_a_part_alone_is_refused(tmp_path):
    save_npz(tmp_path / "test.npz", IMAGES, LABELS)
    assert "got only test; give the path of that part itself" in complaint(tmp_path)
    assert "got only test" in complaint("cifar10", directory=f"{tmp_path}")
    save_folder(tmp_path / "folder" / "test", IMAGES, LABELS)
    assert "got only test" in complaint(tmp_path / "folder")


@pytest.mark.parametrize(
    ("ids", "more", "words"),
    [
        (LABELS - 1, {}, "a.npz must be class ids from 0 to 1, got -1 at image 0"),
        (LABELS, {"classes": np.array(["a", "b"])}, "class ids from 0 to 1, got 2 at image 2"),
        (LABELS * 2, {}, r"got none of class 1 (1) and 1 more"),
        (LABELS * 0, {}, "images must be of 2 classes or more, got 1"),
        (LABELS + 10**9, {}, "class ids counted from 0, got 1000000002"),
    ],
)
def test_impossible_labels_are_refused(tmp_path, ids, more, words):
    assert words in complaint(save_npz(tmp_path / "a.npz", IMAGES, ids, **more))


def test_impossible_divisions_are_refused(parts):
    assert "below the 60 images there are, got 60" in complaint(parts, validation=60)
    assert "every class must have an image to train on" in complaint(parts, limit=2)


def test_an_empty_archive_is_refused(tmp_path):
    assert "got none" in complaint(save_npz(tmp_path / "a.npz", IMAGES[:0], LABELS[:0]))


def test_every_name_of_the_table_leads_somewhere():
    for name, known in DATASETS.items():
        assert known.defaults.augment in ("none", "crop", "crop_flip"), name
        assert callable(known.find)
