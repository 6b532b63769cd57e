"""Images in folders, tables and arrays: what is read, and what is refused with which words."""

import json
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beliefmatch.data.datasets import Columns
from beliefmatch.data.raw import find_at, find_unlabelled, part_of
from image_files import CLASSES, encoded, labels, pixels, save_folder, save_npz, save_parquet

IMAGES, LABELS = pixels(), labels()
NAMES = {"classes": np.array(CLASSES)}


def complaint(path, **options):
    with pytest.raises(ValueError) as caught:
        find_at(path, **options)
    assert "\n" not in f"{caught.value}"
    return f"{caught.value}"


def arrays(part):
    return np.stack([np.asarray(part.images.read(n)) for n in range(len(part.images))])


def test_a_folder_for_each_class_is_one_set_in_the_order_of_the_names(tmp_path):
    found = find_at(save_folder(tmp_path, IMAGES, LABELS))
    assert found.format == "folder" and found.class_names == CLASSES
    assert found.parts["all"].labels.tolist() == sorted(LABELS)
    assert np.array_equal(arrays(found.parts["all"]), IMAGES[np.argsort(LABELS, kind="stable")])


@pytest.mark.parametrize("folder", ["validation", "val", "Valid"])
def test_folders_of_parts_hold_folders_of_classes(tmp_path, folder):
    for part in ("train", folder, "test"):
        save_folder(tmp_path / part, IMAGES, LABELS)
    (tmp_path / "test" / "ant" / "deeper").mkdir()
    (tmp_path / "test" / "ant" / "deeper" / "more.PNG").write_bytes(encoded(IMAGES[0]))
    (tmp_path / "test" / "ant" / ".hidden.png").write_bytes(b"")
    (tmp_path / "test" / "ant" / "notes.txt").write_text("none")
    (tmp_path / "test" / "__MACOSX").mkdir()
    found = find_at(tmp_path)
    assert list(found.parts) == ["train", "validation", "test"]
    assert [len(part.labels) for part in found.parts.values()] == [12, 12, 13]


def test_a_single_folder_called_all_is_seen_through(tmp_path):
    save_folder(tmp_path / "all", IMAGES, LABELS)
    assert find_at(tmp_path).class_names == CLASSES


def test_a_class_that_is_only_tested_is_refused(tmp_path):
    save_folder(tmp_path / "train", IMAGES, LABELS)
    save_folder(tmp_path / "test", IMAGES, LABELS, classes=("ant", "bee", "cow"))
    assert "every class must be one to train on, got 'cow'" in complaint(tmp_path)


def test_empty_folders_are_refused(tmp_path):
    words = complaint(tmp_path)
    assert "must hold a folder for each class, or .npz or .parquet files" in words and "got nothing" in words
    (tmp_path / "ant").mkdir()
    assert "must hold images, got none" in complaint(tmp_path)
    assert "got nothing at" in complaint(tmp_path / "elsewhere")
    (tmp_path / "train").mkdir()
    (tmp_path / "Training").mkdir()
    assert "one folder for each part, got Training and train" in complaint(tmp_path)


def test_parquet_files_are_parts_by_their_names_and_one_after_another(tmp_path):
    save_parquet(tmp_path / "train-00000-of-00002.parquet", IMAGES[:7], LABELS[:7])
    save_parquet(tmp_path / "train-00001-of-00002.parquet", IMAGES[7:], LABELS[7:])
    save_parquet(tmp_path / "test-00000-of-00001.parquet", IMAGES[:5], LABELS[:5])
    found = find_at(tmp_path)
    assert found.format == "parquet" and found.class_names is None
    assert list(found.parts) == ["train", "test"]
    assert np.array_equal(arrays(found.parts["train"]), IMAGES)
    assert found.parts["train"].labels.tolist() == LABELS.tolist()
    assert found.parts["train"].images.name(8) == "train-00001-of-00002.parquet[1]"


def test_parquet_takes_class_names_from_the_description_of_the_hub(tmp_path):
    features = {"label": {"names": list(CLASSES), "_type": "ClassLabel"}}
    metadata = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
    path = save_parquet(tmp_path / "a.parquet", IMAGES, LABELS, metadata=metadata)
    assert find_at(path).class_names == CLASSES
    save_parquet(path, IMAGES, LABELS, metadata={b"huggingface": b"{]"})
    assert find_at(path).class_names is None


def test_parquet_labels_may_be_names_and_images_plain_bytes(tmp_path):
    table = pa.table({"img": [encoded(i) for i in IMAGES], "y": [CLASSES[k] for k in LABELS]})
    pq.write_table(table, tmp_path / "a.parquet")
    found = find_at(tmp_path / "a.parquet")
    assert found.class_names == CLASSES
    assert found.parts["all"].labels.tolist() == LABELS.tolist()
    assert np.array_equal(arrays(found.parts["all"]), IMAGES)


def test_columns_may_be_named_where_there_are_several(tmp_path):
    cells = [{"bytes": encoded(i), "path": None} for i in IMAGES]
    table = pa.table({"img": cells, "label": [0] * 12, "fine_label": LABELS})
    pq.write_table(table, tmp_path / "train.parquet")
    found = find_at(tmp_path / "train.parquet", columns=Columns("img", "fine_label"))
    assert found.parts["all"].labels.tolist() == LABELS.tolist()


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"x": [1]}, "must have a column of images, image or img or images, got x"),
        ({"image": [[1, 2]], "label": [0]}, "neither bytes nor {bytes, path}"),
        ({"image": [b"a"], "label": [None]}, "label has 1 empty cells"),
        ({"image": [b"a"], "label": [0.5]}, "one class id or class name"),
        ({"image": [b"a"]}, "images must have labels to train on"),
    ],
)
def test_other_tables_are_refused(tmp_path, columns, words):
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    assert words in complaint(tmp_path / "a.parquet")


def test_what_is_no_parquet_file_is_refused(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and more")
    assert "data: `path` must be a whole .parquet file" in complaint(tmp_path / "a.parquet")


@pytest.mark.parametrize("key", ["labels", "targets", "y"])
def test_an_archive_holds_images_labels_and_perhaps_class_names(tmp_path, key):
    np.savez(tmp_path / "a.npz", images=IMAGES, classes=np.array(CLASSES), **{key: LABELS})
    found = find_at(tmp_path / "a.npz")
    assert found.format == "npz" and found.class_names == CLASSES
    assert np.array_equal(found.parts["all"].images.pixels, IMAGES)
    assert found.parts["all"].labels.tolist() == LABELS.tolist()


@pytest.mark.parametrize(
    "stored",
    [IMAGES[..., 0], IMAGES[..., :1], IMAGES[..., :1].transpose(0, 3, 1, 2)],
    ids=["NHW", "NHW1", "N1HW"],
)
def test_grey_archives_gain_a_channel(tmp_path, stored):
    found = find_at(save_npz(tmp_path / "a.npz", stored, LABELS))
    assert np.array_equal(found.parts["all"].images.pixels, IMAGES[..., :1])


def test_archives_are_parts_by_their_names_and_a_datasets_name_chooses(tmp_path):
    for name in ("cifar10_train", "cifar10_test", "cifar100_train10k", "cifar100_test"):
        save_npz(
            tmp_path / f"{name}.npz",
            IMAGES[: 9 if "100" in name else 12],
            LABELS[: 9 if "100" in name else 12],
        )
    found = find_at(tmp_path, name="cifar10")
    assert {part: len(held.labels) for part, held in found.parts.items()} == {"train": 12, "test": 12}
    found = find_at(tmp_path, name="cifar100", only="test")
    assert {part: len(held.labels) for part, held in found.parts.items()} == {"test": 9}
    assert "one .npz file for each part; a dataset's name chooses" in complaint(tmp_path)
    assert "must hold a folder for each class" in complaint(tmp_path, name="svhn")


def test_files_may_be_one_level_down(tmp_path):
    save_parquet(tmp_path / "data" / "train-0.parquet", IMAGES, LABELS)
    save_parquet(tmp_path / "data" / "validation-0.parquet", IMAGES[:4], LABELS[:4])
    found = find_at(tmp_path, name="food101", test_part="validation")
    assert list(found.parts) == ["train", "test"]
    assert len(found.parts["test"].labels) == 4


def test_two_forms_or_files_without_a_part_are_not_guessed_at(tmp_path):
    save_npz(tmp_path / "train.npz", IMAGES, LABELS)
    save_npz(tmp_path / "more.npz", IMAGES, LABELS)
    assert "files whose names say train, validation or test" in complaint(tmp_path)
    save_parquet(tmp_path / "test.parquet", IMAGES, LABELS)
    assert "images in one format" in complaint(tmp_path)


@pytest.mark.parametrize(
    ("contents", "words"),
    [
        ({"images": IMAGES / 255, "labels": LABELS}, "images as uint8 of shape"),
        ({"images": IMAGES[..., :2], "labels": LABELS}, "images as uint8 of shape"),
        ({"images": IMAGES[:, :0], "labels": LABELS}, "images as uint8 of shape"),
        ({"images": IMAGES, "labels": LABELS[:5]}, "one label for each of 12 images"),
        ({"images": IMAGES, "labels": LABELS / 2}, "one class id or class name for each image, got float64"),
        ({"images": IMAGES, "labels": LABELS == 1}, "got bool"),
        (
            {"images": IMAGES, "labels": LABELS, "targets": LABELS},
            "one array of targets, got targets and labels",
        ),
        ({"images": IMAGES}, "images must have labels to train on"),
        ({"x": IMAGES, "labels": LABELS}, "must hold images under that name, got x, labels"),
    ],
)
def test_other_archives_are_refused(tmp_path, contents, words):
    np.savez(tmp_path / "a.npz", **contents)
    assert words in complaint(tmp_path / "a.npz")


def test_pickles_are_never_opened(tmp_path):
    np.savez(tmp_path / "a.npz", images=np.array([_Bomb()], object), labels=[0])
    assert "it holds Python objects, which only a pickle can" in complaint(tmp_path / "a.npz")
    (tmp_path / "b.npz").write_bytes(pickle.dumps(_Bomb()))
    assert "must be a whole .npz file" in complaint(tmp_path / "b.npz")
    assert "pickles are not read" in complaint(_written(tmp_path / "c.pkl"))


def test_an_archive_that_claims_terabytes_is_refused(tmp_path):
    import zipfile

    header = {"descr": "|u1", "fortran_order": False, "shape": (1 << 22, 1 << 10, 1 << 10, 3)}
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive, archive.open("images.npy", "w") as file:
        np.lib.format.write_array_header_1_0(file, header)
    assert "must be a whole .npz file, cannot read `images`" in complaint(tmp_path / "a.npz")


def test_images_without_labels_are_found_in_every_form(tmp_path):
    folder = save_folder(tmp_path / "folder", IMAGES, LABELS)
    np.savez(tmp_path / "a.npz", images=IMAGES)
    np.save(tmp_path / "b.npy", IMAGES)
    pq.write_table(pa.table({"image": [encoded(i) for i in IMAGES]}), tmp_path / "c.parquet")
    for path in (folder, tmp_path / "a.npz", tmp_path / "b.npy", tmp_path / "c.parquet"):
        assert len(find_unlabelled(path)) == 12
    assert len(find_unlabelled(folder / "ant" / "0000.png")) == 1
    for part in ("train", "test"):
        save_folder(
            tmp_path / "parts" / part,
            IMAGES[: 12 if part == "train" else 5],
            LABELS[: 12 if part == "train" else 5],
        )
    assert len(find_unlabelled(tmp_path / "parts")) == 5


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
def test_parts_are_told_by_whole_words(stem, part):
    assert part_of(stem) == part


def test_class_names_must_be_the_same_in_all_parts(tmp_path):
    save_npz(tmp_path / "train.npz", IMAGES, LABELS, **NAMES)
    save_npz(tmp_path / "test.npz", IMAGES, LABELS, classes=np.array(["ant", "bee", "cow"]))
    assert "the same classes, got 'cat' in one only" in complaint(tmp_path)
    save_npz(tmp_path / "test.npz", IMAGES, LABELS, classes=np.array(["bee", "ant", "cat"]))
    assert "another order in one" in complaint(tmp_path)


class _Bomb:
    def __reduce__(self):
        return pytest.fail, ("a pickle was opened",)


def _written(path):
    path.write_bytes(pickle.dumps(_Bomb()))
    return path
