"""Where images lie: arrays, tables, folders of classes and parts, and the hub."""

import zipfile
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from beliefmatch.data import load, load_ood, raw
from beliefmatch.data.config import DataConfig
from beliefmatch.data.datasets import Columns
from beliefmatch.data.images import HubImages, UnreadableImage
from beliefmatch.data.raw import part_of, read_images_at, read_parts_at
from image_files import CLASSES, encoded, labels, pixels, save_folder, save_npz, save_parquet
from refusals import refusal

IMAGES, LABELS = pixels(30), np.sort(labels(30))
complaint = partial(refusal, read_parts_at)


def read_all(images):
    return np.stack([np.asarray(images.read(n)) for n in range(len(images))])


def counts(path, **options):
    return {part: len(found.labels) for part, found in read_parts_at(path, **options).items()}


# Arrays and tables


def test_an_archive_that_claims_terabytes_is_refused(tmp_path, monkeypatch):
    header = {"descr": "|u1", "fortran_order": False, "shape": (1 << 22, 1 << 10, 1 << 10, 3)}
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive, archive.open("images.npy", "w") as file:
        np.lib.format.write_array_header_1_0(file, header)
    assert "`images`" in complaint(tmp_path / "a.npz")
    monkeypatch.setattr(raw, "MAX_NPZ_BYTES", 100)
    assert "b.npz" in complaint(save_npz(tmp_path / "b.npz", IMAGES, LABELS))


@pytest.mark.parametrize("key", ["labels", "targets", "y"])
@pytest.mark.parametrize(
    "stored",
    [IMAGES[..., 0], IMAGES[..., :1], IMAGES[..., :1].transpose(0, 3, 1, 2)],
    ids=["NHW", "NHW1", "N1HW"],
)
def test_archives_may_hold_grey_images_and_several_names_of_labels(tmp_path, stored, key):
    np.savez(tmp_path / "a.npz", images=stored, **{key: LABELS})
    part = read_parts_at(tmp_path / "a.npz")["all"]
    assert np.array_equal(part.images.pixels, IMAGES[..., :1]) and part.labels.tolist() == LABELS.tolist()


def test_parquet_labels_may_be_names_and_images_plain_bytes(tmp_path):
    table = pa.table({"img": [encoded(i) for i in IMAGES], "y": [CLASSES[k] for k in LABELS]})
    pq.write_table(table, tmp_path / "a.parquet")
    part = read_parts_at(tmp_path / "a.parquet")["all"]
    assert part.class_names == CLASSES and part.labels.tolist() == LABELS.tolist()
    assert np.array_equal(read_all(part.images), IMAGES)


@pytest.mark.parametrize(
    "description", [b"{]", b"{}", b'{"info": {"features": {"fine_label": {"names": [1]}}}}']
)
def test_parquet_columns_can_be_named_and_a_malformed_description_is_ignored(tmp_path, description):
    cells = [{"bytes": encoded(i), "path": None} for i in IMAGES]
    table = pa.table({"img": cells, "label": [0] * 30, "fine_label": LABELS})
    pq.write_table(table.replace_schema_metadata({b"huggingface": description}), tmp_path / "a.parquet")
    part = read_parts_at(tmp_path / "a.parquet", columns=Columns("img", "fine_label"))["all"]
    assert part.labels.tolist() == LABELS.tolist() and part.class_names is None
    assert set(read_parts_at(tmp_path / "a.parquet")["all"].labels) == {0}


def test_files_are_parts_by_their_names_and_shards_follow_each_other(tmp_path):
    save_parquet(tmp_path / "data" / "train-00000-of-00002.parquet", IMAGES[:7], LABELS[:7])
    save_parquet(tmp_path / "data" / "train-00001-of-00002.parquet", IMAGES[7:], LABELS[7:])
    save_parquet(tmp_path / "data" / "validation-00000-of-00001.parquet", IMAGES[:4], LABELS[:4])
    found = read_parts_at(tmp_path, name="food101", test_part="validation")
    assert list(found) == ["train", "test"] and len(found["test"].labels) == 4
    assert np.array_equal(read_all(found["train"].images), IMAGES)
    assert found["train"].labels.tolist() == LABELS.tolist()
    assert found["train"].images.name(8) == "train-00001-of-00002.parquet[1]"


def test_the_name_of_a_dataset_chooses_among_files(tmp_path):
    for name in ("cifar10_train", "cifar10_test", "cifar100_train10k", "cifar100_test"):
        count = 9 if "100" in name else 12
        save_npz(tmp_path / f"{name}.npz", IMAGES[:count], LABELS[:count])
    assert counts(tmp_path, name="cifar10") == {"train": 12, "test": 12}
    assert counts(tmp_path, name="cifar100", only="test") == {"test": 9}
    assert "`directory`" in complaint(tmp_path) and "`directory`" in complaint(tmp_path, name="svhn")


def test_two_formats_or_files_without_a_part_are_refused(tmp_path):
    save_npz(tmp_path / "train.npz", IMAGES, LABELS)
    save_npz(tmp_path / "more.npz", IMAGES, LABELS)
    assert "`directory`" in complaint(tmp_path) and "more.npz" in complaint(tmp_path)
    save_parquet(tmp_path / "test.parquet", IMAGES, LABELS)
    assert ".npz and .parquet" in complaint(tmp_path)


@pytest.mark.parametrize(
    ("stem", "part"),
    [
        ("cifar10_train", "train"),
        ("train-00000-of-00002", "train"),
        ("svhn_test10k", "test"),
        ("Val", "validation"),
        ("pretrained", None),
        ("train_test", None),
        ("data", None),
    ],
)
def test_a_part_is_a_whole_word_of_a_name(stem, part):
    assert part_of(stem) == part


@pytest.mark.parametrize(
    ("train", "test", "words"),
    [
        ({"classes": list(CLASSES)}, {"classes": ["ant", "bee", "cow"]}, "'cat'"),
        ({"classes": list(CLASSES)}, {"classes": ["bee", "ant", "cat"]}, "order"),
        ({"ids": np.array(CLASSES)[LABELS]}, {"ids": np.array(["ant", "bee", "cow"])[LABELS]}, "'cow'"),
    ],
)
def test_class_names_must_be_the_same_in_all_parts(tmp_path, train, test, words):
    for part, options in (("train", train), ("test", test)):
        save_npz(tmp_path / f"{part}.npz", **{"images": IMAGES, "ids": LABELS, **options})
    assert words in complaint(tmp_path)


# Folders


@pytest.mark.parametrize("folder", ["validation", "val", "Valid"])
def test_folders_of_parts_hold_folders_of_classes(tmp_path, folder):
    for part in ("train", folder, "test"):
        save_folder(tmp_path / part, IMAGES[:12], labels(12))
    (tmp_path / "test" / "ant" / "deeper").mkdir()
    (tmp_path / "test" / "ant" / "deeper" / "more.PNG").write_bytes(encoded(IMAGES[0]))
    (tmp_path / "test" / "ant" / ".hidden.png").write_bytes(b"")
    (tmp_path / "test" / "ant" / "notes.txt").write_text("none")
    (tmp_path / "test" / "__MACOSX").mkdir()
    assert counts(tmp_path) == {"train": 12, "validation": 12, "test": 13}
    assert len(read_images_at(tmp_path)) == 13
    save_folder(tmp_path / "test", IMAGES[:3], labels(3), classes=("ant", "bee", "cow"))
    assert "'cow'" in complaint(tmp_path)


def test_a_single_folder_called_all_is_the_dataset(tmp_path):
    save_folder(tmp_path / "all", IMAGES, LABELS)
    assert read_parts_at(tmp_path)["all"].class_names == CLASSES


def test_empty_and_ambiguous_folders_are_refused(tmp_path):
    assert "`directory`" in complaint(tmp_path) and "got nothing" in complaint(tmp_path)
    (tmp_path / "ant").mkdir()
    assert "got none" in complaint(tmp_path)
    assert "got nothing at" in complaint(tmp_path / "elsewhere")
    (tmp_path / "train").mkdir()
    (tmp_path / "Training").mkdir()
    assert "Training and train" in complaint(tmp_path)


# The hub


def hub_table(images=IMAGES, ids=LABELS, column="image", label="label"):
    datasets = pytest.importorskip("datasets")
    cells = [{"bytes": encoded(image), "path": None} for image in images]
    features = {column: datasets.Image(), label: datasets.ClassLabel(names=list(CLASSES))}
    values = {column: cells, label: [int(one) for one in ids]}
    return datasets.Dataset.from_dict(values, features=datasets.Features(features))


@pytest.fixture
def hub(monkeypatch):
    """Requests to the hub, answered with small tables; no test goes online."""
    datasets, requests = pytest.importorskip("datasets"), []

    def answer(path, config=None, *, split):
        requests.append((path, config, split))
        names = ("img", "fine_label") if "cifar100" in path else ("image", "label")
        count = 30 if split == "train" else 9
        return hub_table(IMAGES[:count], LABELS[:count], *names)

    monkeypatch.setattr(datasets, "load_dataset", answer)
    return requests


def test_the_splits_of_a_named_dataset_come_from_the_hub(hub):
    dataset = load(DataConfig(name="cifar100", workers=0))
    assert hub == [("uoft-cs/cifar100", None, "train"), ("uoft-cs/cifar100", None, "test")]
    assert dataset.class_names == CLASSES and dataset.facts["form"] == "hub"
    assert dataset.facts["counts"] == {"train": 24, "validation": 6, "test": 9}
    assert np.array_equal(dataset.test.images, IMAGES[:9])
    assert dataset.test.targets.tolist() == LABELS[:9].tolist()


def test_variants_and_test_splits_of_the_hub_have_their_own_names(hub):
    assert load(DataConfig(name="svhn", workers=0)).train.shape == (3, 6, 6)
    dataset = load(DataConfig(name="food101", workers=0))
    assert hub[1:] == [
        ("ufldl-stanford/svhn", "cropped_digits", "test"),
        ("ethz/food101", None, "train"),
        ("ethz/food101", None, "validation"),
    ]
    assert dataset.train.shape == (3, 224, 224) and not dataset.facts["in_memory"]
    name, source = load_ood("mnist", load(DataConfig()))
    assert hub[4:] == [("ylecun/mnist", None, "test")]  # OOD images need the test split alone
    assert name == "mnist" and len(source) == 9 and source.shape == (1, 8, 8)


def test_rows_of_the_hub_are_read_by_workers_too(hub):
    alone, together = (load(DataConfig(name="food101", size=66, workers=n)).train for n in (0, 2))
    indices = list(torch.arange(24).split(8))
    for one, other in zip(alone.batches(indices), together.batches(indices), strict=True):
        assert torch.equal(one.inputs, other.inputs)


def test_a_hub_out_of_reach_or_with_other_columns_is_reported_in_one_line(monkeypatch):
    datasets = pytest.importorskip("datasets")

    def offline(*_, **__):
        raise ConnectionError("Couldn't reach the Hub\n(no network)")

    for answer, words in ((offline, "--data-dir"), (lambda *_, **__: hub_table(column="photo"), "photo")):
        monkeypatch.setattr(datasets, "load_dataset", answer)
        assert words in refusal(load, DataConfig(name="cifar10"))


def test_parquet_files_too_large_for_the_memory_are_laid_out_by_datasets(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    path = save_parquet(tmp_path / "a.parquet", IMAGES, LABELS)
    small = load(DataConfig(name=f"{path}", workers=0))
    monkeypatch.setattr(raw, "IN_MEMORY_PARQUET_BYTES", 10)
    original, cache = datasets.load_dataset, f"{tmp_path / 'cache'}"
    monkeypatch.setattr(datasets, "load_dataset", lambda *a, **k: original(*a, **k, cache_dir=cache))
    large = load(DataConfig(name=f"{path}", workers=0))
    assert small.facts["digest"] == large.facts["digest"] and large.facts["form"] == "parquet"


def test_rows_of_the_hub_may_point_at_files(tmp_path):
    datasets = pytest.importorskip("datasets")
    (tmp_path / "a.png").write_bytes(encoded(IMAGES[0]))
    cells = [{"bytes": None, "path": f"{tmp_path / name}"} for name in ("a.png", "b.png")]
    held = datasets.Dataset.from_dict({"image": cells}).cast_column("image", datasets.Image(decode=False))
    images = HubImages(held, "image", "here")
    assert np.array_equal(np.asarray(images.read(0)), IMAGES[0]) and images.name(1) == "here[1]"
    with pytest.raises(UnreadableImage, match="No such file"):
        images.read(1)
