"""Readers: one contract for the formats of arrays, one for the containers of images."""

import json
import pickle
import random
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor

from beliefmatch.data import load
from beliefmatch.data.config import DataConfig
from beliefmatch.data.formats import open_arrays
from beliefmatch.data.predictions import read_predictions
from beliefmatch.data.raw import read_images_at, read_parts_at
from image_files import CLASSES, encoded, labels, pixels, save_folder, save_npz, save_parquet
from prediction_files import LOGITS, PROBS, ROWS, SAVERS, TARGETS, Bomb, every_format, save
from refusals import refusal

NAMES = ["ant", "bée", "<script>"]
TEXT_FORMATS = [extension for extension in SAVERS if extension != "safetensors"]  # which holds numbers alone


def prediction_refusal(path, **options):
    message = refusal(read_predictions, path, **options)
    assert message.startswith("read_predictions: ")
    return message


def spoiled(values, value):
    values = values.copy()
    values[5, 1] = value
    return values


# Arrays: predictions in .npz, .npy, .safetensors, .parquet and .csv


@every_format
@pytest.mark.parametrize("kind", ["logits", "probs"])
def test_every_format_gives_back_values_and_targets(tmp_path, extension, kind):
    saved = LOGITS if kind == "logits" else PROBS
    found = read_predictions(save(tmp_path, extension, **{kind: saved, "targets": TARGETS}))
    assert found.kind == kind and found.images is None and found.recognised["targets"] == "targets"
    assert found.values.dtype == torch.float64 and np.array_equal(found.values, saved)
    assert found.targets.dtype == torch.int64 and found.targets.tolist() == TARGETS.tolist()


@every_format
def test_a_memory_map_has_the_values_of_the_array(tmp_path, extension):
    file = open_arrays(save(tmp_path, extension, logits=LOGITS, y=TARGETS), caller="test")
    for name in file.names:
        values, mapped = file.load([name]), file.map(name)
        assert isinstance(values, Tensor)
        assert (mapped is None) == (file.is_table or name == "y")  # maps are of floating point alone
        assert mapped is None or np.array_equal(mapped, values)


@pytest.mark.parametrize("extension", TEXT_FORMATS)
def test_every_format_with_text_has_targets_by_class_name(tmp_path, extension):
    path = save(tmp_path, extension, logits=LOGITS, label=np.array([NAMES[i] for i in TARGETS]))
    assert read_predictions(path, class_names=NAMES).targets.tolist() == TARGETS.tolist()
    assert "`label`, got the text 'ant'" in prediction_refusal(path)
    assert "`label`, got '<script>' in row 2" in prediction_refusal(path, class_names=["ant", "bée", "c"])


@pytest.mark.parametrize("shape", [(4, 5), (4, 5, 3), (3, 4, 5), (1, 4, 5), (4, 5, 4)])
@pytest.mark.parametrize("extension", ["npz", "npy", "safetensors"])
def test_every_format_with_arrays_has_images(tmp_path, extension, shape):
    images = np.zeros((ROWS, *shape), dtype=np.float32)
    found = read_predictions(save(tmp_path, extension, logits=LOGITS, y=TARGETS, images=images))
    assert found.images.shape == images.shape and found.recognised["images"] == "images"


@every_format
@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"logits": LOGITS}, "`targets`"),
        ({"targets": TARGETS}, "`logits`"),
        ({"logits": LOGITS[:, :1], "y": TARGETS}, "got shape (7,"),
        ({"logits": LOGITS[:0], "y": TARGETS[:0]}, "got shape (0, 3)"),
        ({"logits": LOGITS, "y": TARGETS + 1}, "`y`, got 3 in row 2"),
        ({"logits": LOGITS, "y": TARGETS + 0.5}, "`y`, got 0.5 in row 0"),
        ({"probs": PROBS / 2, "y": TARGETS}, "got 0.5 in row 0"),
        *(
            ({kind: spoiled(saved, value), "y": TARGETS}, f"got {value} in row 5")
            for kind, saved in (("logits", LOGITS), ("probs", PROBS))
            for value in (np.nan, np.inf, -np.inf)
        ),
    ],
)
def test_every_format_refuses_missing_keys_wrong_shapes_and_bad_values(tmp_path, extension, arrays, words):
    assert words in prediction_refusal(save(tmp_path, extension, **arrays))


def scrambled(content, rng):
    changed = bytearray(content)
    for _ in range(3):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def read_damaged(path, contents):
    """What is read from the file with each of the contents; every refusal is one line."""
    accepted, refused = [], []
    for content in contents:
        path.write_bytes(content)
        try:
            accepted.append(read_predictions(path))
        except ValueError as error:
            refused.append(f"{error}")
    assert all(message.startswith("read_predictions: ") and "\n" not in message for message in refused)
    return accepted


@every_format
def test_every_format_refuses_missing_empty_and_damaged_files(tmp_path, extension):
    missing, place = tmp_path / f"missing.{extension}", tmp_path / f"place.{extension}"
    place.mkdir()
    (tmp_path / f"logits.{extension}").touch()
    for path in (missing, place, tmp_path / f"logits.{extension}"):
        assert f"{path}" in prediction_refusal(path)
    path = save(tmp_path, extension, logits=LOGITS, targets=TARGETS)
    whole = path.read_bytes()
    cut = [whole[: len(whole) * share // 16] for share in range(16)]
    accepted = read_damaged(path, cut)
    assert len(accepted) <= (8 if extension == "csv" else 0)  # text that is cut may still be a table


@every_format
def test_scrambled_files_are_mostly_refused_and_never_misread_where_there_is_a_checksum(tmp_path, extension):
    path = save(tmp_path, extension, logits=LOGITS, targets=TARGETS)
    whole, rng = path.read_bytes(), random.Random(0)
    accepted = read_damaged(path, [scrambled(whole, rng) for _ in range(60)])
    assert len(accepted) <= 10
    if extension == "npz":
        for found in accepted:
            assert np.array_equal(found.values, LOGITS) and found.targets.tolist() == TARGETS.tolist()


@every_format
def test_every_format_refuses_pickles_and_never_runs_them(tmp_path, extension):
    trace = tmp_path / "trace"
    bare = tmp_path / f"probs.{extension}"
    bare.write_bytes(pickle.dumps(Bomb(trace)))
    assert f"{bare}" in prediction_refusal(bare)
    if extension in ("npz", "npy"):
        bombs = np.array([Bomb(trace)] * ROWS, dtype=object)
        for arrays in ({"logits": bombs, "targets": TARGETS}, {"logits": LOGITS, "targets": bombs}):
            assert "pickle" in prediction_refusal(save(tmp_path, extension, **arrays))
    assert not trace.exists()
    pickle.loads(bare.read_bytes())
    assert trace.exists()  # the bomb does go off for those who unpickle it


@pytest.mark.parametrize("name", ["a.pt", "a.pkl", "a", "a.csv.gz", "a.json"])
def test_other_formats_are_refused(tmp_path, name):
    (tmp_path / name).write_bytes(b"anything")
    assert "pickles are not read" in prediction_refusal(tmp_path / name)


@pytest.mark.parametrize(("module", "extension"), [("pyarrow", "parquet"), ("safetensors", "safetensors")])
def test_a_missing_extra_is_named(tmp_path, monkeypatch, module, extension):
    path = save(tmp_path, extension, logits=LOGITS, y=TARGETS)
    for name in [name for name in sys.modules if name.split(".")[0] == module]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ModuleNotFoundError, match=rf'needs {module}: pip install "beliefmatch\[files\]"'):
        read_predictions(path)


# Images: in .npz, .parquet, folders and tables of the hub

IMAGES, LABELS = pixels(30), np.sort(labels(30))
METADATA = {b"huggingface": json.dumps({"info": {"features": {"label": {"names": list(CLASSES)}}}}).encode()}


def save_images(form, place, images=IMAGES, ids=LABELS):
    if form == "folder":
        return save_folder(place, images, ids)
    if form == "parquet":
        return save_parquet(place / "a.parquet", images, ids, metadata=METADATA)
    return save_npz(place / "a.npz", images, ids, classes=np.array(CLASSES))


def read_all(images):
    return np.stack([np.asarray(images.read(n)) for n in range(len(images))])


@pytest.mark.parametrize("form", ["npz", "parquet", "folder"])
def test_the_same_images_give_the_same_dataset_in_every_container(tmp_path, form):
    expected = load(DataConfig(name=f"{save_images('npz', tmp_path / 'reference')}"))
    path = save_images(form, tmp_path / "place")
    (found,) = read_parts_at(path).values()
    assert found.format == form and found.class_names == CLASSES
    assert found.labels.tolist() == LABELS.tolist()
    assert np.array_equal(read_all(found.images), IMAGES)
    assert np.array_equal(read_all(read_images_at(path)), IMAGES)
    dataset = load(DataConfig(name=f"{path}", workers=0))
    assert dataset.facts["digest"] == expected.facts["digest"]
    assert dataset.class_names == CLASSES and torch.equal(dataset.train.images, expected.train.images)


@pytest.mark.parametrize("form", ["npz", "npy", "parquet", "png"])
def test_images_without_labels_are_found_in_every_container(tmp_path, form):
    path, images = tmp_path / f"a.{form}", IMAGES[:1] if form == "png" else IMAGES
    if form == "npz":
        np.savez(path, images=images)
    elif form == "npy":
        np.save(path, images)
    elif form == "parquet":
        pq.write_table(pa.table({"image": [encoded(image) for image in images]}), path)
    else:
        path.write_bytes(encoded(images[0]))
    assert np.array_equal(read_all(read_images_at(path)), images)
    if form in ("npz", "parquet"):
        assert "images must have labels" in refusal(load, DataConfig(name=f"{path}"))


@pytest.mark.parametrize("form", ["npz", "parquet"])
def test_damaged_files_of_images_are_refused_with_their_path(tmp_path, form):
    path = save_images(form, tmp_path)
    whole, trace = path.read_bytes(), tmp_path / "trace"
    damaged = (b"", b"PAR1 and more", whole[: len(whole) // 2], whole[:-9], pickle.dumps(Bomb(trace)))
    for content in damaged:
        path.write_bytes(content)
        message = refusal(read_parts_at, path)
        assert message.startswith("data: `path`") and f"{path}" in message
    np.savez(tmp_path / "b.npz", images=np.array([Bomb(trace)], object), labels=[0])
    (tmp_path / "c.pkl").write_bytes(pickle.dumps(Bomb(trace)))
    for name in ("b.npz", "c.pkl"):
        assert name in refusal(read_parts_at, tmp_path / name)
    assert not trace.exists()


@pytest.mark.parametrize(
    ("contents", "words"),
    [
        ({"images": IMAGES / 255, "labels": LABELS}, "got float64"),
        ({"images": IMAGES[..., :2], "labels": LABELS}, "(30, 6, 6, 2)"),
        ({"images": IMAGES[:, :0], "labels": LABELS}, "(30, 0, 6, 3)"),
        ({"images": IMAGES, "labels": LABELS[:5]}, "labels of shape (5,)"),
        ({"images": IMAGES, "labels": LABELS / 2}, "got float64"),
        ({"images": IMAGES, "labels": LABELS == 1}, "got bool"),
        ({"images": IMAGES, "labels": LABELS, "targets": LABELS}, "targets and labels"),
        ({"x": IMAGES, "labels": LABELS}, "got x, labels"),
    ],
)
def test_other_archives_are_refused(tmp_path, contents, words):
    np.savez(tmp_path / "a.npz", **contents)
    assert words in refusal(read_parts_at, tmp_path / "a.npz")


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"x": [1]}, "got x"),
        ({"image": [[1, 2]], "label": [0]}, "neither bytes nor {bytes, path}"),
        ({"image": [b"a"], "label": [None]}, "label has 1 empty cells"),
        ({"image": [b"a"], "label": [0.5]}, "got float64"),
    ],
)
def test_other_tables_are_refused(tmp_path, columns, words):
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    assert words in refusal(read_parts_at, tmp_path / "a.parquet")
