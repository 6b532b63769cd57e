"""From a name or a path to a dataset: sizes, classes, splits, facts, digests, and what is refused."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from beliefmatch.data import DATASETS, load, prepare
from beliefmatch.data.config import DataConfig
from beliefmatch.data.datasets import DatasetDefaults, FunctionDataset
from beliefmatch.data.digits import load_digits
from beliefmatch.data.images import ArrayImages
from beliefmatch.data.preprocessing import Preprocessing
from beliefmatch.data.raw import LabelledImages
from beliefmatch.data.sources import MemorySource, StreamedSource
from beliefmatch.data.splits import ROLES, split_rows
from image_files import CLASSES, encoded, labels, pixels, save_folder, save_npz
from refusals import refusal

IMAGES, LABELS = pixels(60), labels(60)
TEST = pixels(21, seed=1), labels(21)


def loaded(name, *, validation_from="train", **changes):
    return load(DataConfig(**{"name": f"{name}", "workers": 0, **changes}), validation_from=validation_from)


def complaint(name, **changes):
    message = refusal(loaded, name, **changes)
    assert message.startswith("data: ")
    return message


def everything(source):
    (batch,) = source.batches([torch.arange(len(source))])
    return batch.inputs


def same_bytes(*arrays):
    first, second = (sorted(map(bytes, np.asarray(one))) for one in arrays)
    return first == second


@pytest.fixture
def parts(tmp_path):
    """A directory with arrays to train and to test on."""
    save_npz(tmp_path / "cifar10_train.npz", IMAGES, LABELS)
    save_npz(tmp_path / "cifar10_test.npz", *TEST)
    return tmp_path


@pytest.fixture
def folder(tmp_path):
    return save_folder(tmp_path / "folder", IMAGES, LABELS)


def test_the_package_is_read_without_torch():
    code = "import sys, beliefmatch.data; print({'torch', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


# Digits


def test_digits_are_those_of_load_digits():
    dataset, splits = load(DataConfig()), load_digits()
    assert dataset.class_names == tuple("0123456789")
    for role in ROLES:
        source, examples = getattr(dataset, role), getattr(splits, role)
        torch.testing.assert_close(everything(source), examples.images, rtol=1e-6, atol=1e-7)
        assert torch.equal(source.targets, examples.targets)
    assert dataset.facts["counts"] == {"train": 898, "validation": 359, "test": 540}
    assert dataset.facts["preprocessing"]["augment"] == "none"
    published = "ec4873f60a92c7426965a10d90f206450756e39f5c303e5a952c3aa2958c2ae4"
    assert json.loads(json.dumps(dataset.facts))["digest"] == published


def test_digits_to_test_on_do_not_depend_on_the_other_amounts():
    default, other, reseeded = (
        loaded("digits", **some) for some in ({}, {"validation": 100, "limit": 50}, {"split_seed": 1})
    )
    assert torch.equal(everything(default.test), everything(other.test))
    assert other.facts["counts"] == {"train": 50, "validation": 100, "test": 540}
    assert len({some.facts["digest"] for some in (default, other, reseeded)}) == 3


def one_image_a_class(config):
    images = ArrayImages(pixels(6), "own")
    return {"all": LabelledImages(images, labels(6), class_names=CLASSES, format="generated")}


def test_a_dataset_of_ones_own_is_one_entry(monkeypatch):
    own = FunctionDataset(f"{__name__}:one_image_a_class", DatasetDefaults((0.5,) * 3, (0.25,) * 3, "crop"))
    monkeypatch.setitem(DATASETS, "own", own)
    dataset = loaded("own", validation=0.3)
    assert (dataset.facts["form"], dataset.class_names) == ("generated", CLASSES)
    assert np.array_equal(dataset.sources["all"].images, pixels(6))
    assert dataset.facts["preprocessing"]["augment"] == "crop"


# Splits


def test_validation_is_taken_from_the_train_part_and_the_test_part_left_alone(parts):
    dataset = loaded(parts, validation=12)
    rows = split_rows(LABELS, validation=12, seed=0)
    assert isinstance(dataset.train, MemorySource)
    assert np.array_equal(dataset.train.images, IMAGES[rows.train])
    assert np.array_equal(dataset.validation.images, IMAGES[rows.validation])
    assert dataset.validation.targets.tolist() == LABELS[rows.validation].tolist()
    assert np.array_equal(dataset.test.images, TEST[0])
    assert dataset.facts["counts"] == {"train": 48, "validation": 12, "test": 21}
    assert dataset.facts["divided_by_us"] == ["validation"]


@pytest.mark.parametrize("changes", [{}, {"validation": 12}, {"limit": 9}, {"split_seed": 3}, {"size": 70}])
@pytest.mark.parametrize("validation_from", ["train", "test"])
def test_the_roles_are_rows_of_whole_parts(parts, changes, validation_from):
    dataset = loaded(parts, validation_from=validation_from, **changes)
    assert set(dataset.sources) == {"train", "test"}
    assert [dataset.role_rows[role].part for role in ROLES] == ["train", validation_from, "test"]
    for role in ROLES:
        part, rows = dataset.role_rows[role]
        (ours,), source = dataset.sources[part].batches([torch.as_tensor(rows)]), getattr(dataset, role)
        assert torch.equal(ours.inputs, everything(source)) and torch.equal(ours.targets, source.targets)


def test_a_validation_part_is_for_validation_and_else_for_the_test(tmp_path):
    for part, count in {"train": 30, "val": 9, "test": 12}.items():
        save_folder(tmp_path / "three" / part, IMAGES[:count], LABELS[:count])
    dataset = loaded(tmp_path / "three", limit=6)
    assert dataset.facts["counts"] == {"train": 6, "validation": 9, "test": 12}
    assert dataset.train.targets.bincount().tolist() == [2, 2, 2]
    for part, count in {"train": 60, "val": 9}.items():
        save_folder(tmp_path / "two" / part, IMAGES[:count], LABELS[:count])
    assert loaded(tmp_path / "two").facts["counts"] == {"train": 48, "validation": 12, "test": 9}


def test_half_of_the_test_part_can_be_for_validation(parts):
    dataset = loaded(parts, validation_from="test")
    assert np.array_equal(dataset.train.images, IMAGES)
    assert dataset.facts["counts"] == {"train": 60, "validation": 10, "test": 11}
    assert dataset.facts["divided_by_us"] == ["validation", "test"]
    assert dataset.facts["validation_from"] == "test"
    assert same_bytes(torch.cat([dataset.validation.images, dataset.test.images]), TEST[0])
    assert sorted(dataset.validation.targets.bincount().tolist()) == [3, 3, 4]

    def rows(**changes):
        return loaded(parts, validation_from="test", **changes).role_rows["validation"].rows.tolist()

    assert rows() == rows(validation=0.4) == rows(limit=6) != rows(split_seed=1)


def test_an_undivided_set_is_split_in_three_and_its_test_images_can_be_halved(tmp_path):
    place = save_npz(tmp_path / "a.npz", IMAGES, LABELS, classes=np.array(CLASSES))
    default, halved = (loaded(place, validation_from=part) for part in ("train", "test"))
    assert default.facts["counts"] == {"train": 38, "validation": 10, "test": 12}
    assert default.class_names == CLASSES and np.array_equal(default.sources["all"].images, IMAGES)
    assert sorted(np.concatenate([default.role_rows[role].rows for role in ROLES])) == list(range(60))
    both = np.concatenate([halved.role_rows["validation"].rows, halved.role_rows["test"].rows])
    assert sorted(both) == default.role_rows["test"].rows.tolist()
    rest = np.concatenate([default.role_rows["train"].rows, default.role_rows["validation"].rows])
    assert halved.role_rows["train"].rows.tolist() == sorted(rest)
    digits = load(DataConfig(), validation_from="test")  # the validation part is left alone
    assert digits.facts["counts"] == {"train": 898, "validation": 270, "test": 270}
    assert {digits.role_rows[role].part for role in ROLES} == {"train", "test"}


def test_digests_of_parts_depend_on_pixels_labels_and_size_and_not_on_split_or_augmentation(parts):
    def digest(**changes):
        return loaded(parts, mean=(0.5,) * 3, std=(0.5,) * 3, **changes).digests["test"]

    before, changed = digest(), TEST[0].copy()
    changed[3, 0, 0, 0] ^= 1
    same = [
        {"augment": "none"},
        {"split_seed": 2},
        {"validation": 9, "limit": 7},
        {"validation_from": "test"},
    ]
    assert all(digest(**changes) == before for changes in same)
    assert digest(size=5) != before
    for images, ids in ((changed, TEST[1]), (TEST[0], (TEST[1] + 1) % 3)):
        save_npz(parts / "cifar10_test.npz", images, ids)
        assert digest() != before


def test_five_labels_of_each_digit():
    whole, few = load(DataConfig()), load(DataConfig(labels=50))
    assert few.unlabelled is not None and whole.unlabelled is None
    assert few.train.targets.bincount().tolist() == [5] * 10
    assert few.unlabelled.targets.unique().tolist() == [-1]
    assert few.facts["counts"] == {"train": 50, "unlabelled": 848, "validation": 359, "test": 540}
    assert few.epoch_images == whole.epoch_images == len(whole.train)
    assert few.facts["preprocessing"] == whole.facts["preprocessing"]
    assert same_bytes(torch.cat([few.train.images, few.unlabelled.images]), whole.train.images)
    assert torch.equal(few.validation.images, whole.validation.images)
    known = dict(zip(map(bytes, whole.train.images.numpy()), whole.train.targets.tolist(), strict=True))
    kept = zip(map(bytes, few.train.images.numpy()), few.train.targets.tolist(), strict=True)
    assert all(known[image] == label for image, label in kept)
    other = load(DataConfig(labels=50, split_seed=1))
    assert len({some.facts["digest"] for some in (whole, few, other)}) == 3
    limited = load(DataConfig(labels=50, limit=200))
    assert limited.unlabelled is not None and len(limited.unlabelled) == 150


# Preprocessing


def test_mean_and_deviation_are_those_of_the_training_images(parts):
    dataset = loaded(parts)
    inputs = everything(dataset.train).double()
    assert inputs.mean((0, 2, 3)).abs().max() < 1e-4
    assert (inputs.std((0, 2, 3), correction=0) - 1).abs().max() < 1e-4
    how = Preprocessing.from_json(dataset.facts["preprocessing"])
    assert how.augment == "crop_flip" and how.padding == 1
    changed = loaded(parts, augment="crop", shift=2).facts["preprocessing"]
    assert (changed["augment"], changed["padding"]) == ("crop", 2)
    black = save_npz(parts / "black" / "a.npz", IMAGES * 0, LABELS)
    assert loaded(black).facts["preprocessing"]["std"] == [round(1 / 255, 6)] * 3  # never 0


def test_a_named_dataset_in_a_directory_keeps_its_defaults(parts):
    save_npz(parts / "cifar10_train.npz", IMAGES, labels(60, 10))
    dataset = loaded("cifar10", directory=f"{parts}")
    assert dataset.facts["preprocessing"]["mean"] == [0.4914, 0.4822, 0.4465]
    assert dataset.class_names[:3] == ("airplane", "automobile", "bird")
    assert {named.defaults.augment for named in DATASETS.values()} == {"none", "crop", "crop_flip"}


def test_configured_scaling_takes_precedence_and_its_length_decides_on_colours(parts):
    mean, std = (0.5, 0.25, 0.1), (0.5, 0.2, 0.4)
    dataset = loaded(parts, mean=mean, std=std)
    shown = dataset.test.images.permute(0, 3, 1, 2).double() / 255
    expected = (shown - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    torch.testing.assert_close(everything(dataset.test).double(), expected, rtol=1e-5, atol=1e-5)
    grey = loaded(parts, mean=(0.5,), std=(0.5,)).test.images[..., 0].numpy()
    assert np.abs(grey - TEST[0] @ np.array([0.299, 0.587, 0.114])).max() <= 1
    one, two, three = everything(loaded("digits", mean=(0.1, 0.2, 0.3), std=(1.0, 1.0, 1.0)).test).unbind(1)
    torch.testing.assert_close(one + 0.1, two + 0.2)
    torch.testing.assert_close(one + 0.1, three + 0.3)


@pytest.mark.parametrize(("size", "margin", "rim"), [(6, 2, 0), (6, None, 1), (72, 3, 0), (72, 1, 1)])
def test_a_margin_is_cut_off_small_and_large_images(tmp_path, size, margin, rim):
    """Images with a white rim, which is cut off or stays."""
    images = np.full((12, 12, 12, 3), 255, np.uint8)
    images[:, 3:9, 3:9] = 0
    place = save_npz(tmp_path / "a.npz", images, labels(12))
    dataset = loaded(place, size=size, margin=margin, mean=(0.0,) * 3, std=(1.0,) * 3)
    inputs = everything(dataset.test)
    assert (inputs[:, :, 0] == rim).all() and inputs.max() == rim
    assert dataset.facts["preprocessing"]["margin"] == (margin or 1)
    assert "`size`" in complaint(place, margin=2)


def test_grey_images_stay_grey_unless_one_has_colours(tmp_path):
    grey = save_folder(tmp_path, IMAGES[..., :1], LABELS)
    dataset = loaded(grey)
    assert dataset.train.shape == (1, 6, 6) and dataset.facts["preprocessing"]["augment"] == "crop"
    assert loaded(grey, size=5, margin=1.5).facts["preprocessing"]["margin"] == 1.5
    (grey / "ant" / "0000.png").write_bytes(encoded(IMAGES[0]))
    assert loaded(grey).train.shape == (3, 6, 6)


# Large images and unreadable ones


def test_images_of_different_sizes_need_a_size(folder):
    (folder / "ant" / "0000.png").write_bytes(encoded(pixels(1, 5, 9)[0]))
    assert "`size`" in complaint(folder)
    assert loaded(folder, size=4).train.shape == (3, 4, 4)


def test_large_images_are_streamed(folder):
    dataset = loaded(folder, size=70)
    assert isinstance(dataset.train, StreamedSource)
    assert dataset.train.shape == (3, 70, 70) and not dataset.facts["in_memory"]
    assert dataset.facts["preprocessing"]["margin"] == 256 / 224
    assert dataset.facts["preprocessing"]["mean"] == [0.485, 0.456, 0.406]
    rows = split_rows(np.sort(LABELS), validation=0.2, test=0.2, seed=0)
    assert dataset.test.targets.tolist() == np.sort(LABELS)[rows.test].tolist()
    (folder / "ant" / "0000.png").write_bytes(encoded(IMAGES[0]) + b"more")
    assert loaded(folder, size=70).facts["digest"] != dataset.facts["digest"]


def test_sets_too_large_for_the_memory_are_streamed_unchanged(tmp_path, folder, monkeypatch):
    monkeypatch.setattr(prepare, "IN_MEMORY_BYTES", 1000)
    dataset = loaded(folder)
    assert isinstance(dataset.train, StreamedSource) and dataset.train.shape == (3, 6, 6)
    order = np.argsort(LABELS, kind="stable")
    kept = loaded(save_npz(tmp_path / "a.npz", IMAGES[order], LABELS[order]))
    assert isinstance(kept.train, MemorySource)
    shown = everything(dataset.test) * torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
    shown = (shown + torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)) * 255
    torch.testing.assert_close(shown, kept.test.images.permute(0, 3, 1, 2).float(), rtol=0, atol=1e-2)


@pytest.mark.parametrize("size", [None, 70])
def test_unreadable_images_stop_or_are_skipped_and_counted(folder, size):
    (folder / "bee" / "0004.png").write_bytes(b"")
    (folder / "cat" / "0005.png").write_bytes(encoded(IMAGES[5])[:40])
    if size is None:  # streamed images are refused when they are needed
        assert "0004.png (it is empty)" in complaint(folder)
    with pytest.warns(UserWarning, match=r"^data: 2 of 60 images .*0004.png \(it is empty\)\.$"):
        dataset = loaded(folder, size=size, corrupt="skip")
    assert dataset.facts["skipped"] == {"all": 2}
    assert sum(dataset.facts["counts"].values()) == 58
    targets = torch.cat([getattr(dataset, role).targets for role in ROLES])
    assert targets.bincount().tolist() == [20, 19, 19]
    assert all(everything(getattr(dataset, role)).isfinite().all() for role in ROLES)


def test_workers_skip_the_same_images(folder, monkeypatch):
    monkeypatch.setattr(prepare, "_MIN_IMAGES_FOR_WORKERS", 10)
    monkeypatch.setattr(prepare, "_CHUNK", 7)
    (folder / "bee" / "0004.png").write_bytes(b"")
    with pytest.warns(UserWarning, match="1 of 60"):
        alone, together = (loaded(folder, corrupt="skip", workers=n) for n in (0, 2))
    assert alone.facts == together.facts
    assert torch.equal(alone.train.images, together.train.images)


def test_a_set_without_a_readable_image_is_an_error(folder):
    for path in folder.rglob("*.png"):
        path.write_bytes(b"x")
    assert "got 60" in complaint(folder, corrupt="skip")


# Refusals


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"labels": 0}, "labels"),
        ({"shift": -1}, "shift"),
        ({"noise": -0.1}, "noise"),
        ({"noise": float("inf")}, "noise"),
        ({"mean": (0.5,)}, "std"),
        ({"mean": (0.5,) * 3, "std": (0.5,)}, "std"),
        ({"mean": (0.5,) * 2, "std": (0.5,) * 2}, "mean"),
    ],
)
def test_impossible_configurations_are_refused(changes, name):
    assert f"`{name}`" in refusal(DataConfig, **changes)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"labels": 9}, "`labels`"),
        ({"labels": 898}, "`labels`"),
        ({"labels": 5000}, "`labels`"),
        ({"validation_from": "x"}, "`validation_from`"),
        ({"name": "cifr10"}, "got 'cifr10'; did you mean cifar10?"),
        ({"name": "cifr10", "directory": "."}, "got 'cifr10'; did you mean cifar10?"),
        ({"name": "cifar11"}, "got 'cifar11'"),
        ({"name": "./images", "directory": "."}, "`directory`"),
        ({"name": "cifar10", "directory": "nowhere"}, "got nothing at"),
    ],
)
def test_names_and_amounts_that_are_impossible_are_refused(options, words):
    assert words in complaint(**{"name": "digits", **options})


def test_a_part_alone_is_refused(tmp_path):
    save_npz(tmp_path / "test.npz", IMAGES, LABELS)
    save_folder(tmp_path / "folder" / "test", IMAGES, LABELS)
    assert "got only test" in complaint(tmp_path)
    assert "got only test" in complaint("cifar10", directory=f"{tmp_path}")
    assert "got only test" in complaint(tmp_path / "folder")
    save_npz(tmp_path / "train.npz", IMAGES, LABELS)
    save_npz(tmp_path / "test.npz", IMAGES[:1], LABELS[:1])
    assert "got 1" in complaint(tmp_path, validation_from="test")  # one image cannot be halved


@pytest.mark.parametrize(
    ("ids", "more", "words"),
    [
        (LABELS - 1, {}, "got -1 at image 0"),
        (LABELS * 0 - 1, {}, "images must have labels"),
        (LABELS, {"classes": np.array(["a", "b"])}, "got 2 at image 2"),
        (LABELS * 2, {}, "got none of class 1 (1) and 1 more"),
        (LABELS * 0, {}, "got 1"),
        (LABELS + 10**9, {}, "got 1000000002"),
        (LABELS[:0], {}, "got none"),
    ],
)
def test_impossible_labels_are_refused(tmp_path, ids, more, words):
    assert words in complaint(save_npz(tmp_path / "a.npz", IMAGES[: len(ids)], ids, **more))


@pytest.mark.parametrize(("name", "value"), [("validation", 60), ("limit", 2)])
def test_impossible_splits_are_refused(parts, name, value):
    assert f"`{name}`" in complaint(parts, **{name: value})
