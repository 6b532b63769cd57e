"""Files of predictions that are wrong: one line for each way, and nothing in them is ever run."""

import os
import pickle
import random
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beliefmatch.data.predictions import read_class_names, read_predictions
from prediction_files import (
    IMAGES,
    LOGITS,
    PROBS,
    ROWS,
    TARGETS,
    complaint,
    every_format,
    save,
    save_npz,
)

BAD = [
    ({"logits": LOGITS}, "`targets` must be in"),
    ({"targets": TARGETS}, "must be in"),
    ({"logits": LOGITS, "y": TARGETS[:-1]}, "one class id for each of the 7 rows in `y`, got 6"),
    ({"logits": LOGITS, "y": np.eye(3)[TARGETS]}, "one class id for each row in `y`, got shape (7, 3)"),
    ({"logits": LOGITS, "y": TARGETS + 1}, "class ids from 0 to 2 in `y`, got 3 in row 2"),
    ({"logits": LOGITS, "y": TARGETS - 1}, "class ids from 0 to 2 in `y`, got -1 in row 0"),
    ({"logits": LOGITS, "y": TARGETS.astype("u8") + 2**63}, f"from 0 to 2 in `y`, got {2**63} in row 0"),
    ({"logits": LOGITS, "y": TARGETS.astype("u8") + (2**64 - 3)}, f"`y`, got {2**64 - 3} in row 0"),
    ({"logits": LOGITS, "y": TARGETS + 1234567.0}, "class ids from 0 to 2 in `y`, got 1234567 in row 0"),
    ({"logits": LOGITS, "y": TARGETS * 0 + 1e30}, "class ids from 0 to 2 in `y`, got 1e+30 in row 0"),
    ({"logits": LOGITS, "y": TARGETS + 0.5}, "whole class ids in `y`, got 0.5 in row 0"),
    ({"logits": LOGITS, "y": TARGETS * np.nan}, "whole class ids in `y`, got nan in row 0"),
    ({"logits": LOGITS, "y": TARGETS == 1}, "class ids in `y`, got bool"),
    ({"logits": LOGITS[:0], "y": TARGETS[:0]}, "one row for each example"),
    ({"logits": LOGITS[:, :1], "y": TARGETS}, "two or more classes in `logits`, got shape (7, 1)"),
    ({"logits": LOGITS[:, 0], "y": TARGETS}, "two or more classes in `logits`, got shape (7,)"),
    ({"logits": LOGITS[None], "y": TARGETS}, "two or more classes in `logits`, got shape (1, 7, 3)"),
    ({"logits": LOGITS > 0, "y": TARGETS}, "real numbers in `logits`, got bool"),
    ({"logits": LOGITS + 1j, "y": TARGETS}, "numbers or text, got complex128"),
    ({"logits": LOGITS.astype(str), "y": TARGETS}, "numbers in `logits`, got the text"),
    ({"probs": PROBS / 2, "y": TARGETS}, "probabilities whose rows sum to 1 in `probs`, got 0.5 in row 0"),
    ({"probs": PROBS * 1.02, "y": TARGETS}, "in `probs`"),
    ({"probs": LOGITS, "y": TARGETS}, "probabilities in [0, 1] (logits are called logits) in `probs`, got"),
    (
        {"probs": PROBS, "y": TARGETS, "images": IMAGES[:3]},
        "one image for each of the 7 rows in `images`, got 3",
    ),
    ({"probs": PROBS, "y": TARGETS, "images": IMAGES[:, 0]}, "images of shape (N, H, W), "),
    ({"probs": PROBS, "y": TARGETS, "images": IMAGES.astype(str)}, "images in `images`, got no real numbers"),
]


@pytest.mark.parametrize(("arrays", "words"), BAD)
def test_bad_arrays_are_told_in_one_line(tmp_path, arrays, words):
    assert words in complaint(save_npz(tmp_path / "a.npz", **arrays))


@every_format
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_none_is_found_with_its_row(tmp_path, extension, value):
    for kind, saved in (("logits", LOGITS), ("probs", PROBS)):
        spoiled = saved.copy()
        spoiled[5, 1] = value
        said = complaint(save(tmp_path, extension, **{kind: spoiled, "y": TARGETS}))
        assert said.endswith(f"got {value} in row 5.")


def test_a_bad_row_far_down_is_counted_right(tmp_path):
    many = np.zeros((300_000, 4), dtype=np.float32)
    many[299_998, 3] = np.nan
    path = save_npz(tmp_path / "a.npz", logits=many)
    assert complaint(path, labelled=False).endswith("got nan in row 299998.")


def test_rounded_probabilities_are_taken(tmp_path):
    path = save_npz(tmp_path / "a.npz", probs=PROBS.round(3), y=TARGETS)
    assert np.array_equal(read_predictions(path).values, PROBS.round(3))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "got nothing"),
        ("\n", "got nothing"),
        ("logit_0,logit_1,y\n", "one row for each example"),
        ("logit_0,logit_1,y\n1,2\n", "row 1 has 2 cells, the heading 3"),
        ("logit_0,logit_1,y\n1,2,0\n\n1,2,0,9\n", "row 2 has 4 cells, the heading 3"),
        ("logit_0,logit_1,y\n1,2,0\n1,many,0\n", "row 2: logit_1 must be a number, got 'many'"),
        ("logit_0,logit_1,y\n1,,0\n", "row 1: logit_1 must be a number, got ''"),
        ("logit_0,logit_1,y\n1,2,\n", "got the text ''"),
        ("logit_0;logit_1;y\n1,5;2;0\n", "row 1: logit_0 must be a number, got '1,5'"),
        ("logit_0,logit_1,y,y\n1,2,0,0\n", "two columns named"),
        ("a,b\n1,2\n", "got a, b; name it"),
    ],
)
def test_a_bad_table_is_told_in_one_line(tmp_path, text, words):
    (tmp_path / "a.csv").write_text(text)
    assert words in complaint(tmp_path / "a.csv")


def test_text_in_another_encoding_is_told_in_one_line(tmp_path):
    (tmp_path / "a.csv").write_bytes("logit_0,logit_1,größe\n1,2,3\n".encode("latin-1"))
    assert "must be a whole .csv file" in complaint(tmp_path / "a.csv")


def test_parquet_with_holes_or_ragged_lists_is_refused(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"logits": [[1.0, 2.0], [1.0]], "y": [0, 1]}), path)
    assert "logits has lists of 1 to 2 numbers" in complaint(path)
    pq.write_table(pa.table({"logits": [[1.0, 2.0], None], "y": [0, 1]}), path)
    assert "logits has 1 empty cells" in complaint(path)
    pq.write_table(pa.table({"logits": [[1.0, 2.0], [1.0, None]], "y": [0, 1]}), path)
    assert "logits has 1 empty cells in its lists" in complaint(path)
    pq.write_table(pa.table({"logit_0": [1.0, 2.0], "logit_1": [1.0, None], "y": [0, 1]}), path)
    assert "logit_1 has 1 empty cells" in complaint(path)
    pq.write_table(
        pa.table({"logits": pa.array([], pa.list_(pa.float32())), "y": pa.array([], pa.int8())}), path
    )
    assert "one row for each example" in complaint(path)


@pytest.mark.parametrize("name", ["a.pt", "a.pkl", "a", "a.csv.gz", "a.json"])
def test_other_formats_are_refused(tmp_path, name):
    (tmp_path / name).write_bytes(b"anything")
    said = complaint(tmp_path / name)
    assert "must end in .npz, .npy, .parquet, .csv or .safetensors" in said
    assert "pickles are not read" in said


@every_format
def test_a_missing_file_a_directory_and_an_empty_file_are_told_in_one_line(tmp_path, extension):
    missing = tmp_path / f"missing.{extension}"
    assert complaint(missing) == f"read_predictions: `path` must be a file, got no file at {missing}."
    place = tmp_path / f"place.{extension}"
    place.mkdir()
    assert f"got the directory {place}" in complaint(place)
    empty = tmp_path / f"logits.{extension}"
    empty.touch()
    assert f"{empty}" in complaint(empty)


@pytest.mark.parametrize("extension", ["npz", "npy", "safetensors", "parquet"])
def test_a_file_cut_short_or_scrambled_is_never_more_than_one_line(tmp_path, extension):
    path = save(tmp_path, extension, logits=LOGITS, targets=TARGETS)
    whole, rng = path.read_bytes(), random.Random(0)
    broken = [whole[: len(whole) * share // 16] for share in range(16)]
    for _ in range(60):
        spoiled = bytearray(whole)
        for _ in range(3):
            spoiled[rng.randrange(len(spoiled))] = rng.randrange(256)
        broken.append(bytes(spoiled))
    complaints = []
    for content in broken:
        path.write_bytes(content)
        try:
            read_predictions(path)
        except ValueError as error:
            complaints.append(str(error))
    assert len(complaints) >= 16
    assert all(said.startswith("read_predictions: ") and "\n" not in said for said in complaints)


class Bomb:
    """Leaves a trace if it is ever unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return os.mkdir, (f"{self.trace}",)


@pytest.mark.parametrize("place", ["targets", "logits"])
@pytest.mark.parametrize("extension", ["npz", "npy"])
def test_pickled_objects_are_refused_and_never_run(tmp_path, extension, place):
    trace = tmp_path / "trace"
    arrays = {"logits": LOGITS, "targets": TARGETS, place: np.array([Bomb(trace)] * ROWS, dtype=object)}
    said = complaint(save(tmp_path, extension, **arrays))
    assert "it holds Python objects, which only a pickle can" in said
    assert not trace.exists()
    with np.load(save_npz(tmp_path / "proof.npz", x=arrays[place]), allow_pickle=True) as loaded:
        _ = loaded["x"]
    assert trace.exists()  # the bomb does go off for those who let it


@pytest.mark.parametrize("extension", ["npz", "npy"])
def test_a_bare_pickle_under_another_name_is_not_loaded(tmp_path, extension):
    trace, path = tmp_path / "trace", tmp_path / f"logits.{extension}"
    path.write_bytes(pickle.dumps(Bomb(trace)))
    assert f"must be a whole .{extension} file" in complaint(path)
    assert not trace.exists()


@pytest.mark.parametrize(
    ("module", "extension", "package"),
    [("pyarrow", "parquet", "pyarrow"), ("safetensors", "safetensors", "safetensors")],
)
def test_without_the_extra_it_is_named(tmp_path, monkeypatch, module, extension, package):
    path = save(tmp_path, extension, logits=LOGITS, y=TARGETS)
    for name in [name for name in sys.modules if name.split(".")[0] == module]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ModuleNotFoundError) as caught:
        read_predictions(path)
    assert str(caught.value) == f'`read_predictions` needs {package}: pip install "beliefmatch[files]"'


def test_class_names_are_lines_of_text(tmp_path):
    path = tmp_path / "names.txt"
    path.write_bytes("\ufeffcat\r\n déjà vu \r\n<b>,=1+1\r\n\r\n".encode())
    assert read_class_names(path) == ["cat", "déjà vu", "<b>,=1+1"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a\nb\na\n", "got 'a' twice in"),
        (b"a\n\nb\n", "got an empty line 2 in"),
        (b"", "got an empty line 1 in"),
        (b"\xff\xfe\x00", "it is not UTF-8 text"),
        (None, "No such file"),
    ],
)
def test_bad_class_names_are_told_in_one_line(tmp_path, content, words):
    path = tmp_path / "names.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError) as caught:
        read_class_names(path)
    assert words in str(caught.value)
    assert str(caught.value).startswith("read_class_names: `class_names` must be")


def test_class_names_must_be_as_many_as_the_classes(tmp_path):
    path = save_npz(tmp_path / "a.npz", logits=LOGITS, y=TARGETS)
    assert "`class_names` must be one for each of the 3 classes" in complaint(path, class_names=["a", "b"])
