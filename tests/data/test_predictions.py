"""Predictions from files: five formats and many names."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

from beliefmatch.data.predictions import FieldNames, read_predictions
from prediction_files import (
    LOGITS,
    PROBS,
    ROWS,
    TARGETS,
    complaint,
    every_format,
    save,
    save_csv,
    save_npz,
    save_parquet_lists,
)


@every_format
@pytest.mark.parametrize("kind", ["logits", "probs"])
def test_every_format_gives_back_what_was_saved(tmp_path, extension, kind):
    saved = LOGITS if kind == "logits" else PROBS
    found = read_predictions(save(tmp_path, extension, **{kind: saved, "targets": TARGETS}))
    assert found.kind == kind
    assert found.values.dtype == torch.float64
    assert np.array_equal(found.values, saved)
    assert found.targets is not None and found.targets.dtype == torch.int64
    assert found.targets.tolist() == TARGETS.tolist()
    assert found.images is None
    assert found.recognised["targets"] == "targets"


def test_parquet_lists_are_rows(tmp_path):
    found = read_predictions(save_parquet_lists(tmp_path / "a.parquet", logits=LOGITS, label=TARGETS))
    assert np.array_equal(found.values, LOGITS)
    assert found.recognised == {"logits": "logits", "targets": "label"}


def test_parquet_in_many_pieces_keeps_its_rows_in_order(tmp_path):
    table = pa.table({"logits": LOGITS.tolist(), "label": TARGETS})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    found = read_predictions(tmp_path / "a.parquet")
    assert np.array_equal(found.values, LOGITS)


def test_parquet_text_may_be_a_dictionary(tmp_path):
    names = ["ant", "bee", "cat"]
    column = pa.array([names[i] for i in TARGETS]).dictionary_encode()
    pq.write_table(pa.table({"logits": LOGITS.tolist(), "label": column}), tmp_path / "a.parquet")
    found = read_predictions(tmp_path / "a.parquet", class_names=names)
    assert found.targets is not None and found.targets.tolist() == TARGETS.tolist()


@pytest.mark.parametrize("values", ["logits", "LOGIT"])
@pytest.mark.parametrize("targets", ["targets", "Target", "labels", "label", "y_true", "y"])
def test_usual_spellings_are_recognised_and_reported(tmp_path, values, targets):
    found = read_predictions(save_npz(tmp_path / "a.npz", **{values: LOGITS, targets: TARGETS}))
    assert found.recognised == {"logits": values, "targets": targets}


@pytest.mark.parametrize("name", ["probs", "prob", "probabilities", "probability", "proba", "predict_proba"])
def test_probabilities_have_several_spellings(tmp_path, name):
    found = read_predictions(save_csv(tmp_path / "a.csv", **{name: PROBS, "y": TARGETS}))
    assert found.kind == "probs"
    assert found.recognised["probs"] == f"{name}_0 … {name}_2"


@pytest.mark.parametrize("name", ["scores", "outputs", "predictions", "arr_0"])
def test_a_name_that_may_mean_either_is_not_guessed_from_values(tmp_path, name):
    path = save_npz(tmp_path / "a.npz", **{name: PROBS, "y": TARGETS})
    said = complaint(path)
    assert "`logits` must be in" in said
    assert f"got {name}, y; name it" in said
    assert read_predictions(path, names=FieldNames(probs=name)).kind == "probs"
    assert read_predictions(path, names=FieldNames(logits=name)).kind == "logits"


def test_logits_go_before_probabilities_unless_those_are_named(tmp_path):
    path = save_npz(tmp_path / "a.npz", probs=PROBS, logits=LOGITS, y=TARGETS)
    found = read_predictions(path)
    assert found.kind == "logits"
    assert found.recognised["unused"] == "probs"
    assert read_predictions(path, names=FieldNames(probs="probs")).kind == "probs"
    both = FieldNames(probs="probs", logits="logits")
    assert read_predictions(path, names=both).recognised["unused"] == "probs"


def test_two_arrays_that_could_be_it_must_be_told_apart(tmp_path):
    path = save_npz(tmp_path / "a.npz", logits=LOGITS, labels=TARGETS, targets=TARGETS)
    assert "`targets` must be named where there are several, got labels and targets" in complaint(path)
    assert read_predictions(path, names=FieldNames(targets="labels")).recognised["targets"] == "labels"


@pytest.mark.parametrize(
    "headings",
    [
        ["logit_0", "logit_1", "logit_2"],
        ["Logit0", "Logit1", "Logit2"],
        ["logits.00", "logits.01", "logits.02"],
    ],
)
def test_columns_are_taken_in_the_order_of_their_numbers(tmp_path, headings):
    order = [2, 0, 1]
    lines = [",".join([*(headings[k] for k in order), "y"])]
    lines += [
        ",".join([*(repr(row[k]) for k in order), str(y)])
        for row, y in zip(LOGITS.tolist(), TARGETS, strict=True)
    ]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    assert np.array_equal(read_predictions(tmp_path / "a.csv").values, LOGITS)


def test_ten_comes_after_nine(tmp_path):
    wide = np.tile(np.arange(12.0), (3, 1))
    found = read_predictions(save_csv(tmp_path / "a.csv", logit=wide, y=TARGETS[:3]))
    assert found.values[0].tolist() == list(range(12))


@pytest.mark.parametrize("numbers", [(0, 2), (1, 2), (0, 1, 3)])
def test_a_gap_among_the_columns_is_an_error(tmp_path, numbers):
    heading = ",".join([*(f"prob_{k}" for k in numbers), "y"])
    (tmp_path / "a.csv").write_text(heading + "\n" + "0.5," * len(numbers) + "0\n")
    said = complaint(tmp_path / "a.csv")
    assert f"counted from 0, got prob {', '.join(map(str, numbers))}" in said


def test_a_numbered_column_of_another_name_is_no_field(tmp_path):
    columns = {"y2": TARGETS, "top5": TARGETS}
    found = read_predictions(save_csv(tmp_path / "a.csv", logit=LOGITS, y=TARGETS, **columns))
    assert found.recognised["targets"] == "y"


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_csv_of_other_programs_is_read(tmp_path, delimiter, ending, mark):
    rows = [["file", "logit_0", "logit_1", "y"], ['"a, b"', "1.5", "-2e-3", "0"], ["c", " 0", "7", "1"], []]
    text = ending.join(delimiter.join(row) for row in rows)
    (tmp_path / "a.csv").write_bytes((mark + text).encode())
    found = read_predictions(tmp_path / "a.csv")
    assert found.values.tolist() == [[1.5, -0.002], [0.0, 7.0]]
    assert found.targets is not None and found.targets.tolist() == [0, 1]


def test_a_long_csv_is_read_whole_and_in_seconds(tmp_path):
    rows = 30_000  # several times what is read at once
    values = np.random.default_rng(2).normal(size=(rows, 4))
    found = read_predictions(save_csv(tmp_path / "a.csv", logit=values, y=np.arange(rows) % 4))
    assert np.array_equal(found.values, values)
    assert found.targets is not None and found.targets[-1] == (rows - 1) % 4


def test_npy_files_are_named_by_their_last_word(tmp_path):
    for name in ("net-v2.logits", "other_targets", "targets"):
        np.save(tmp_path / f"{name}.npy", LOGITS if "logits" in name else TARGETS[:2])
    assert "`targets` must be in" in complaint(tmp_path / "net-v2.logits.npy")
    np.save(tmp_path / "net-v2.labels.npy", TARGETS)
    found = read_predictions(tmp_path / "net-v2.logits.npy")
    assert found.recognised == {"logits": "logits", "targets": "labels"}
    assert found.targets is not None and found.targets.tolist() == TARGETS.tolist()


def test_an_npy_file_alone_is_a_ood_set(tmp_path):
    np.save(tmp_path / "probs.npy", PROBS)
    found = read_predictions(tmp_path / "probs.npy", labelled=False)
    assert (found.kind, found.targets) == ("probs", None)
    np.save(tmp_path / "out.npy", PROBS)
    assert "`logits` must be in" in complaint(tmp_path / "out.npy", labelled=False)


@pytest.mark.parametrize("targets", ["y_test.npy", "labels.npz", "t.csv"])
def test_targets_may_be_in_a_file_of_their_own(tmp_path, targets):
    path, place = save_npz(tmp_path / "a.npz", logits=LOGITS, y=TARGETS * 0), tmp_path / targets
    if place.suffix == ".npy":
        np.save(place, TARGETS)
    elif place.suffix == ".npz":
        np.savez(place, TARGETS)
    else:
        place.write_text("\n".join(["truth", *map(str, TARGETS)]))
    found = read_predictions(path, targets_file=place)
    assert found.targets is not None and found.targets.tolist() == TARGETS.tolist()
    assert found.recognised["targets"].endswith(f" in {place}")


@pytest.mark.parametrize("extension", ["npz", "npy", "parquet", "csv"])  # safetensors holds no text
def test_class_names_turn_text_into_ids(tmp_path, extension):
    names = ["ant", "bée", "<script>"]
    path = save(tmp_path, extension, logits=LOGITS, label=np.array([names[i] for i in TARGETS]))
    found = read_predictions(path, class_names=names)
    assert found.targets is not None and found.targets.tolist() == TARGETS.tolist()
    assert "class ids where no class names are given in `label`, got the text 'ant'" in complaint(path)
    assert "class names in `label`, got '<script>' in row 2" in complaint(
        path, class_names=["ant", "bée", "c"]
    )


def test_in_text_a_number_that_names_another_class_is_refused(tmp_path):
    path = save_csv(tmp_path / "a.csv", logit=LOGITS, y=TARGETS)
    said = complaint(path, class_names=["1", "2", "3"])
    assert "class ids that are not the names of other classes in `y`, got 1, the name of class 0" in said
    assert read_predictions(path, class_names=["0", "1", "2"]).targets is not None
    assert read_predictions(path, class_names=["7", "8", "9"]).targets is not None
    typed = save_npz(tmp_path / "a.npz", logits=LOGITS, y=TARGETS)
    assert read_predictions(typed, class_names=["1", "2", "3"]).targets is not None


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ">f4", "int8", "longdouble"])
def test_any_real_numbers_will_do(tmp_path, dtype):
    saved = LOGITS.astype(dtype)
    found = read_predictions(save_npz(tmp_path / "a.npz", logits=saved, y=TARGETS))
    assert np.array_equal(found.values.double(), saved.astype(float))


@pytest.mark.parametrize("dtype", ["uint8", "int32", ">i8", "float32", "uint64"])
@pytest.mark.parametrize("shape", [(ROWS,), (ROWS, 1)])
def test_targets_are_whole_numbers_of_any_type(tmp_path, dtype, shape):
    saved = TARGETS.astype(dtype).reshape(shape)
    found = read_predictions(save_npz(tmp_path / "a.npz", logits=LOGITS, y=saved))
    assert found.targets is not None and found.targets.tolist() == TARGETS.tolist()


def test_bfloat16_comes_from_safetensors(tmp_path):
    saved = torch.from_numpy(LOGITS).bfloat16()
    save_file({"logits": saved, "y": torch.from_numpy(TARGETS)}, tmp_path / "a.safetensors")
    found = read_predictions(tmp_path / "a.safetensors")
    assert torch.equal(found.values, saved)


@pytest.mark.parametrize("shape", [(4, 5), (4, 5, 3), (3, 4, 5), (1, 4, 5), (4, 5, 4)])
@pytest.mark.parametrize("extension", ["npz", "npy", "safetensors"])
def test_images_come_along(tmp_path, extension, shape):
    images = np.zeros((ROWS, *shape), dtype=np.float32)
    found = read_predictions(save(tmp_path, extension, logits=LOGITS, y=TARGETS, images=images))
    assert found.images is not None and found.images.shape == images.shape
    assert found.recognised["images"] == "images"


def test_a_table_with_a_column_called_image_has_no_images(tmp_path):
    path = save_csv(tmp_path / "a.csv", logit=LOGITS, y=TARGETS, image=np.array(["x.png"] * ROWS))
    assert read_predictions(path).images is None
    assert "images" in complaint(path, names=FieldNames(images="image"))
