"""Predictions: which array means what, which values are refused, and the dialects of tables."""

from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

from beliefmatch.data.predictions import FieldNames, npz_bytes, read_class_names, read_predictions
from prediction_files import IMAGES, LOGITS, PROBS, ROWS, TARGETS, save_csv, save_npz, save_parquet_lists
from refusals import refusal

NAMES = ["ant", "bée", "<script>"]
complaint = partial(refusal, read_predictions)


# Names


@pytest.mark.parametrize("name", ["targets", "Target", "labels", "y_true", "y", "ground_truth", "GT"])
def test_targets_have_several_spellings(tmp_path, name):
    found = read_predictions(save_npz(tmp_path / "a.npz", **{"LOGIT": LOGITS, name: TARGETS}))
    assert found.recognised == {"logits": "LOGIT", "targets": name}


@pytest.mark.parametrize("name", ["probs", "probabilities", "proba", "predict_proba", "y_prob"])
def test_probabilities_have_several_spellings(tmp_path, name):
    found = read_predictions(save_csv(tmp_path / "a.csv", **{name: PROBS, "y": TARGETS}))
    assert found.kind == "probs" and found.recognised["probs"] == f"{name}_0 … {name}_2"


@pytest.mark.parametrize("name", ["scores", "outputs", "predictions", "y_pred"])
def test_an_ambiguous_name_is_taken_for_probabilities_where_it_can_be_nothing_else(tmp_path, name):
    path = save_npz(tmp_path / "a.npz", **{name: PROBS, "y": TARGETS})
    assert read_predictions(path).recognised == {"probs": name, "targets": "y"}
    unclear = save_npz(tmp_path / "b.npz", **{name: LOGITS, "y": TARGETS})
    words = complaint(unclear)
    assert f"`{name}`" in words and "`logits`" in words and "`probs`" in words
    for kind in ("probs", "logits"):
        assert read_predictions(path, names=FieldNames(**{kind: name})).kind == kind


def test_an_unknown_name_is_not_guessed(tmp_path):
    path = save_npz(tmp_path / "a.npz", arr_0=PROBS, y=TARGETS)
    assert f"`logits` must be in {path}" in complaint(path) and "got arr_0, y" in complaint(path)


def save_columns(path, heads, targets, values=PROBS):
    rows = [
        ",".join([*map(repr, map(float, row)), f"{target}"])
        for row, target in zip(values, targets, strict=True)
    ]
    path.write_text("\n".join([",".join([*heads, "label"]), *rows]) + "\n", "utf-8")
    return path


def test_a_table_may_have_one_column_a_class(tmp_path):
    texts = [("cat", "dog", "owl")[target] for target in TARGETS]
    for heads, labels in (
        (("prob_cat", "prob_dog", "prob_owl"), texts),
        (("prob_cat", "prob_dog", "prob_owl"), TARGETS),  # ids count the columns
        (("cat_prob", "dog_prob", "owl_prob"), texts),
        (("cat probability", "dog probability", "owl probability"), TARGETS),
        (("cat", "dog", "owl"), texts),
        (("p.cat", "p.dog", "p.owl"), texts),
    ):
        found = read_predictions(save_columns(tmp_path / "a.csv", heads, labels))
        assert found.kind == "probs" and found.class_names == ("cat", "dog", "owl")
        assert found.targets.tolist() == list(TARGETS)
        torch.testing.assert_close(found.values.double(), torch.from_numpy(np.asarray(PROBS)).double())
    logits = read_predictions(
        save_columns(tmp_path / "l.csv", ("logit_cat", "logit_dog", "logit_owl"), texts, LOGITS)
    )
    assert logits.kind == "logits" and logits.class_names == ("cat", "dog", "owl")
    top = save_columns(tmp_path / "n.csv", ("top1_prob", "top2_prob", "top3_prob"), TARGETS)
    assert "`logits`" in complaint(top)  # ranks are no classes
    turned = save_columns(tmp_path / "t.csv", ("owl", "dog", "cat"), texts, np.asarray(PROBS)[:, ::-1])
    known = read_predictions(turned, class_names=("cat", "dog", "owl"))
    torch.testing.assert_close(known.values.double(), torch.from_numpy(np.asarray(PROBS)).double())
    turned = save_columns(
        tmp_path / "v.csv", ("prob_owl", "prob_dog", "prob_cat"), texts, np.asarray(PROBS)[:, ::-1]
    )
    known = read_predictions(turned, class_names=("cat", "dog", "owl"))
    torch.testing.assert_close(known.values.double(), torch.from_numpy(np.asarray(PROBS)).double())
    assert known.class_names == ("cat", "dog", "owl") and known.targets.tolist() == list(TARGETS)
    for others in (["cat", "dog", "cow"], ["cat", "dog"], ["cat", "dog", "owl", "cow"]):
        words = complaint(turned, class_names=others)
        assert "`class_names` must be the classes of the columns, owl, dog, cat, in any order" in words
    words = complaint(save_columns(tmp_path / "u.csv", ("cat", "dog", "owl"), texts, LOGITS))
    assert "prob_cat" in words and "logit_cat" in words


@pytest.mark.parametrize(
    ("names", "kind", "recognised"),
    [
        ({}, "logits", {"logits": "logits", "unused": "probs"}),
        ({"probs": "probs"}, "probs", {"probs": "probs"}),
        ({"probs": "probs", "logits": "logits"}, "logits", {"logits": "logits", "unused": "probs"}),
        ({"probs": "probs", "logits": "other"}, "probs", {"probs": "probs"}),
    ],
)
def test_logits_take_precedence_over_probabilities_unless_those_are_named(tmp_path, names, kind, recognised):
    path = save_npz(tmp_path / "a.npz", probs=PROBS, logits=LOGITS, labels=TARGETS, y=TARGETS)
    found = read_predictions(path, names=FieldNames(**names, targets="labels"))
    assert found.kind == kind and found.recognised == {**recognised, "targets": "labels"}
    assert "`targets`" in complaint(path, names=FieldNames(**names))  # there are two
    assert "`probs`" in complaint(path, names=FieldNames(probs="logits", logits="logits"))


@pytest.mark.parametrize("heading", ["logit_{}", "Logit{}", "logits.0{}"])
def test_columns_are_taken_in_the_order_of_their_numbers(tmp_path, heading):
    columns = {heading.format(k): LOGITS[:, k] for k in (2, 0, 1)} | {"y2": TARGETS, "top5": TARGETS}
    found = read_predictions(save_csv(tmp_path / "a.csv", **columns, y=TARGETS))
    assert np.array_equal(found.values, LOGITS) and found.recognised["targets"] == "y"
    wide = np.tile(np.arange(12.0), (3, 1))  # 10 comes after 9
    found = read_predictions(save_csv(tmp_path / "a.csv", logit=wide, y=TARGETS[:3]))
    assert found.values[0].tolist() == list(range(12))


@pytest.mark.parametrize("numbers", [(0, 2), (1, 2), (0, 1, 3)])
def test_a_gap_among_the_columns_is_an_error(tmp_path, numbers):
    heading = ",".join([*(f"prob_{k}" for k in numbers), "y"])
    (tmp_path / "a.csv").write_text(heading + "\n" + "0.5," * len(numbers) + "0\n")
    assert f"got prob {', '.join(map(str, numbers))}" in complaint(tmp_path / "a.csv")


def test_npy_files_are_named_by_their_last_word(tmp_path):
    for name in ("net-v2.logits", "other_targets", "targets"):
        np.save(tmp_path / f"{name}.npy", LOGITS if "logits" in name else TARGETS[:2])
    assert "`targets`" in complaint(tmp_path / "net-v2.logits.npy")
    np.save(tmp_path / "net-v2.labels.npy", TARGETS)
    found = read_predictions(tmp_path / "net-v2.logits.npy")
    assert found.recognised == {"logits": "logits", "targets": "labels"}
    assert found.targets.tolist() == TARGETS.tolist()
    assert read_predictions(tmp_path / "net-v2.logits.npy", labelled=False).targets is None
    np.save(tmp_path / "out.npy", PROBS)
    assert "`logits`" in complaint(tmp_path / "out.npy", labelled=False)


@pytest.mark.parametrize("targets", ["y_test.npy", "labels.npz", "t.csv"])
def test_targets_may_be_in_a_file_of_their_own(tmp_path, targets):
    path, place = save_npz(tmp_path / "a.npz", logits=LOGITS, y=TARGETS * 0), tmp_path / targets
    if place.suffix == ".csv":
        place.write_text("\n".join(["truth", *map(str, TARGETS)]))
    else:
        (np.save if place.suffix == ".npy" else np.savez)(place, TARGETS)
    found = read_predictions(path, targets_file=place)
    assert found.targets.tolist() == TARGETS.tolist()
    assert found.recognised["targets"].endswith(f" in {place}")


def test_a_column_called_image_is_not_read_as_images(tmp_path):
    path = save_csv(tmp_path / "a.csv", logit=LOGITS, y=TARGETS, image=np.array(["x.png"] * ROWS))
    assert read_predictions(path).images is None
    assert "`image`" in complaint(path, names=FieldNames(images="image"))
    assert "`images`" in complaint(path, names=FieldNames(images="photo"))


# Values


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ">f4", "int8", "longdouble"])
@pytest.mark.parametrize("target_dtype", ["uint8", ">i8", "float32", "uint64"])
def test_numbers_are_of_any_type(tmp_path, dtype, target_dtype):
    saved, targets = LOGITS.astype(dtype), TARGETS.astype(target_dtype)[:, None]
    found = read_predictions(save_npz(tmp_path / "a.npz", logits=saved, y=targets))
    assert np.array_equal(found.values.double(), saved.astype(float))
    assert found.targets.tolist() == TARGETS.tolist()


def test_bfloat16_comes_from_safetensors_and_rounded_probabilities_are_accepted(tmp_path):
    saved = torch.from_numpy(LOGITS).bfloat16()
    save_file({"logits": saved, "y": torch.from_numpy(TARGETS)}, tmp_path / "a.safetensors")
    assert torch.equal(read_predictions(tmp_path / "a.safetensors").values, saved)
    path = save_npz(tmp_path / "a.npz", probs=PROBS.round(3), y=TARGETS)
    assert np.array_equal(read_predictions(path).values, PROBS.round(3))


def test_mutual_information_comes_with_arrays_of_probabilities_and_is_written_again(tmp_path):
    information = np.linspace(0, 1e-9, ROWS)
    path = save_npz(tmp_path / "a.npz", probs=PROBS, y=TARGETS, mutual_information=information)
    found = read_predictions(path)
    assert found.mutual_information.tolist() == information.tolist()
    assert found.recognised["mutual_information"] == "mutual_information"
    (tmp_path / "b.npz").write_bytes(npz_bytes(found))
    assert torch.equal(read_predictions(tmp_path / "b.npz").mutual_information, found.mutual_information)
    of_logits = save_npz(tmp_path / "c.npz", logits=LOGITS, y=TARGETS, mutual_information=information)
    assert read_predictions(of_logits).mutual_information is None  # logits have that of their Dirichlet


BAD = [
    ({"logits": LOGITS, "y": TARGETS[:-1]}, "`y`, got 6"),
    ({"logits": LOGITS, "y": np.eye(3)[TARGETS]}, "`y`, got shape (7, 3)"),
    ({"logits": LOGITS, "y": TARGETS - 1}, "`y`, got -1 in row 0"),
    ({"logits": LOGITS, "y": TARGETS.astype("u8") + 2**63}, f"`y`, got {2**63} in row 0"),
    ({"logits": LOGITS, "y": TARGETS.astype("u8") + (2**64 - 3)}, f"`y`, got {2**64 - 3} in row 0"),
    ({"logits": LOGITS, "y": TARGETS + 1234567.0}, "`y`, got 1234567 in row 0"),
    ({"logits": LOGITS, "y": TARGETS * 0 + 1e30}, "`y`, got 1e+30 in row 0"),
    ({"logits": LOGITS, "y": TARGETS * np.nan}, "`y`, got nan in row 0"),
    ({"logits": LOGITS, "y": TARGETS == 1}, "`y`, got bool"),
    ({"logits": LOGITS[:, 0], "y": TARGETS}, "`logits`, got shape (7,)"),
    ({"logits": LOGITS[None], "y": TARGETS}, "`logits`, got shape (1, 7, 3)"),
    ({"logits": LOGITS > 0, "y": TARGETS}, "`logits`, got bool"),
    ({"logits": LOGITS + 1j, "y": TARGETS}, "got complex128"),
    ({"logits": LOGITS.astype(str), "y": TARGETS}, "`logits`, got the text"),
    ({"probs": PROBS * 1.02, "y": TARGETS}, "`probs`"),
    ({"probs": LOGITS, "y": TARGETS}, "`probs`"),
    ({"probs": PROBS, "y": TARGETS, "images": IMAGES[:3]}, "`images`, got 3"),
    ({"probs": PROBS, "y": TARGETS, "images": IMAGES[:, 0]}, "`images`, got shape"),
    ({"probs": PROBS, "y": TARGETS, "images": IMAGES.astype(str)}, "`images`"),
    ({"probs": PROBS, "y": TARGETS, "mutual_information": PROBS}, "`mutual_information`, got shape (7, 3)"),
    (
        {"probs": PROBS, "y": TARGETS, "mutual_information": PROBS[:5, 0]},
        "`mutual_information`, got shape (5,)",
    ),
    ({"probs": PROBS, "y": TARGETS, "mutual_information": -PROBS[:, 0]}, "`mutual_information`, got -"),
    (
        {"probs": PROBS, "y": TARGETS, "mutual_information": PROBS[:, 0] * np.nan},
        "`mutual_information`, got nan",
    ),
]


@pytest.mark.parametrize(("arrays", "words"), BAD)
def test_bad_arrays_are_refused_with_their_name_and_row(tmp_path, arrays, words):
    assert words in complaint(save_npz(tmp_path / "a.npz", **arrays))


def test_a_bad_row_far_down_has_the_right_number(tmp_path):
    many = np.zeros((300_000, 4), dtype=np.float32)
    many[299_998, 3] = np.nan
    path = save_npz(tmp_path / "a.npz", logits=many)
    assert complaint(path, labelled=False).endswith("got nan in row 299998.")


# Tables


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize(("ending", "mark"), [("\n", ""), ("\r\n", "\ufeff")])
def test_csv_of_other_programs_is_read(tmp_path, delimiter, ending, mark):
    rows = [["file", "logit_0", "logit_1", "y"], ['"a, b"', "1.5", "-2e-3", "0"], ["c", " 0", "7", "1"], []]
    text = ending.join(delimiter.join(row) for row in rows)
    (tmp_path / "a.csv").write_bytes((mark + text).encode())
    found = read_predictions(tmp_path / "a.csv")
    assert found.values.tolist() == [[1.5, -0.002], [0.0, 7.0]] and found.targets.tolist() == [0, 1]


def test_a_long_csv_is_read_whole_and_its_last_row_has_its_number(tmp_path):
    rows = 9_000  # several times what is parsed at once
    values = np.random.default_rng(2).normal(size=(rows, 4))
    path = save_csv(tmp_path / "a.csv", logit=values, y=np.arange(rows) % 4)
    found = read_predictions(path)
    assert np.array_equal(found.values, values) and found.targets.tolist() == [n % 4 for n in range(rows)]
    with path.open("a") as file:
        file.write("1,2,three,4,0\n")
    assert "row 9001: logit_1" in complaint(path)


@pytest.mark.parametrize(
    ("role", "remedy"),
    [
        ("probs", "stack [1 - p, p] of the probability p of class 1."),
        ("logits", "stack [-z/2, z/2] of the decision function z."),
    ],
)
@pytest.mark.parametrize("shape", [(4,), (4, 1)])
def test_one_number_a_row_is_refused_with_what_to_stack(tmp_path, role, remedy, shape):
    path = save_npz(tmp_path / "a.npz", **{role: np.full(shape, 0.25), "y": np.array([0, 1, 1, 0])})
    assert complaint(path).endswith(f"got shape {shape}; of a binary classifier, {remedy}")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "got nothing"),
        (b"\n", "got nothing"),
        (b"logit_0,logit_1,y\n1,2\n", "row 1 has 2 cells"),
        (b"logit_0,logit_1,y\n1,2,0\n\n1,2,0,9\n", "row 2 has 4 cells"),
        (b"logit_0,logit_1,y\n1,2,0\n1,many,0\n", "row 2: logit_1 must be a number, got 'many'"),
        (b"logit_0,logit_1,y\n1,,0\n", "row 1: logit_1 must be a number, got ''"),
        (b"logit_0,logit_1,y\n1,2,\n", "got the text ''"),
        (b"logit_0;logit_1;y\n1,5;2;0\n", "row 1: logit_0 must be a number, got '1,5'"),
        (b"logit_0,logit_1,y,y\n1,2,0,0\n", "'y'"),
        (b"a,b\n1,2\n", "got a, b"),
        ("logit_0,logit_1,größe\n1,2,3\n".encode("latin-1"), "`path`"),
    ],
)
def test_a_bad_csv_is_refused_with_its_row(tmp_path, text, words):
    (tmp_path / "a.csv").write_bytes(text)
    assert words in complaint(tmp_path / "a.csv")


def test_in_text_a_number_that_names_another_class_is_refused(tmp_path):
    path = save_csv(tmp_path / "a.csv", logit=LOGITS, y=TARGETS)
    assert "`y`, got 1, the name of class 0" in complaint(path, class_names=["1", "2", "3"])
    typed = save_npz(tmp_path / "a.npz", logits=LOGITS, y=TARGETS)
    for place, names in ((path, "012"), (path, "789"), (typed, "123")):
        assert read_predictions(place, class_names=list(names)).targets.tolist() == TARGETS.tolist()


def test_parquet_holds_lists_dictionaries_and_several_row_groups(tmp_path):
    found = read_predictions(save_parquet_lists(tmp_path / "a.parquet", logits=LOGITS, label=TARGETS))
    assert np.array_equal(found.values, LOGITS)
    assert found.recognised == {"logits": "logits", "targets": "label"}
    text = pa.array([NAMES[i] for i in TARGETS]).dictionary_encode()
    for kind in (pa.list_(pa.float64()), pa.list_(pa.float64(), 3), pa.large_list(pa.float64())):
        table = pa.table({"logits": pa.array(LOGITS.tolist(), kind), "label": text})
        pq.write_table(table, tmp_path / "b.parquet", row_group_size=2)
        found = read_predictions(tmp_path / "b.parquet", class_names=NAMES)
        assert np.array_equal(found.values, LOGITS) and found.targets.tolist() == TARGETS.tolist()


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"logits": [[1.0, 2.0], [1.0]], "y": [0, 1]}, "logits has lists of 1 to 2 numbers"),
        ({"logits": [[1.0, 2.0], None], "y": [0, 1]}, "logits has 1 empty cells"),
        ({"logits": [[1.0, 2.0], [1.0, None]], "y": [0, 1]}, "logits has 1 empty cells in its lists"),
        ({"logit_0": [1.0, 2.0], "logit_1": [1.0, None], "y": [0, 1]}, "logit_1 has 1 empty cells"),
        ({"logits": pa.array([], pa.list_(pa.float32())), "y": pa.array([], pa.int8())}, "`logits`"),
    ],
)
def test_parquet_with_holes_or_ragged_lists_is_refused(tmp_path, columns, words):
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    assert words in complaint(tmp_path / "a.parquet")


# Class names


def test_class_names_are_lines_of_text(tmp_path):
    path = tmp_path / "names.txt"
    path.write_bytes("\ufeffcat\r\n déjà vu \r\n<b>,=1+1\r\n\r\n".encode())
    assert read_class_names(path) == ["cat", "déjà vu", "<b>,=1+1"]
    predictions = save_npz(tmp_path / "a.npz", logits=LOGITS, y=TARGETS)
    assert "`class_names`" in complaint(predictions, class_names=["a", "b"])


@pytest.mark.parametrize("content", [b"a\nb\na\n", b"a\n\nb\n", b"", b"\xff\xfe\x00", None])
def test_bad_class_names_are_refused(tmp_path, content):
    path = tmp_path / "names.txt"
    if content is not None:
        path.write_bytes(content)
    assert refusal(read_class_names, path).startswith("read_class_names: `class_names`")
