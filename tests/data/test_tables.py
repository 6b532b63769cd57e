"""Tables with a column of classes: their encoding, held against scikit-learn, and what is refused."""

import csv
import math

import numpy as np
import pytest
import torch

from beliefmatch.data import DataConfig, load, load_ood
from beliefmatch.data.config import is_table
from beliefmatch.data.formats import TableFile, open_table
from beliefmatch.data.table_encoding import MAX_CATEGORIES, Table, TableEncoding, fit_encoding
from beliefmatch.data.tables import TableSource, _read, read_rows

TOWNS = ("Bern", "Oslo", "Rome")


def write(path, columns, *, sep=","):
    """A .csv file of columns by name."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter=sep)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return path


def people(rows=60, *, seed=0):
    """A numeric column with gaps, a categorical one, and classes."""
    rng = np.random.default_rng(seed)
    ages = [f"{age:.3f}" if rng.random() > 0.2 else "" for age in rng.normal(40, 10, rows)]
    return {
        "age": ages,
        "town": [str(town) for town in rng.choice(TOWNS, rows)],
        "class": ["yes" if row % 3 else "no" for row in range(rows)],
    }


def data(path, **settings):
    return load(DataConfig(name=f"{path}", **settings))


# Encoding


def test_the_encoding_is_that_of_scikit_learn_fitted_on_the_training_rows():
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import MissingIndicator, SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    rng = np.random.default_rng(1)
    numbers = {"a": rng.normal(3, 2, 50), "b": rng.normal(-1, 9, 50)}
    numbers["b"][rng.random(50) < 0.3] = math.nan
    texts = {"town": [str(town) for town in rng.choice([*TOWNS, ""], 50)]}
    texts["town"][45] = "Atlantis"
    table, rows = Table(numbers, texts, rows=50), np.arange(40)
    encoding = fit_encoding(table, rows, target="class")
    values = np.stack([*numbers.values(), np.array(texts["town"], object)], 1)
    oracle = ColumnTransformer(
        [
            ("scaled", make_pipeline(SimpleImputer(strategy="median"), StandardScaler()), [0, 1]),
            ("missing", MissingIndicator(), [0, 1]),
            ("towns", OneHotEncoder(handle_unknown="ignore", sparse_output=False), [2]),
        ]
    ).fit(values[:40])
    np.testing.assert_allclose(encoding.encode(table), np.asarray(oracle.transform(values), float), atol=1e-6)
    assert encoding.unknown_values(table) == {"town": ("Atlantis", 1)}
    assert not encoding.encode(table)[45, 3:].any()


def test_an_encoding_survives_json_and_refuses_unknown_keys():
    table = Table({"a": np.array([1.0, math.nan, 3.0])}, {"b": ["x", "y", "x"]}, rows=3)
    encoding = fit_encoding(table, np.arange(3), target="class")
    kept = TableEncoding.from_json(encoding.to_json())
    assert kept == encoding and kept.input_names == ("a", "a is missing", "b=x", "b=y")
    np.testing.assert_array_equal(kept.encode(table), encoding.encode(table))
    with pytest.raises(ValueError, match="columns"):
        TableEncoding.from_json({**encoding.to_json(), "columns": []})


def test_rare_values_of_a_large_category_share_an_input():
    values = [f"v{index}" for index in range(100) for _ in range(2 + (index < 10))]
    table = Table({}, {"code": values}, rows=len(values))
    encoding = fit_encoding(table, np.arange(len(values)), target="class")
    (column,) = encoding.categorical
    assert len(column.values) == MAX_CATEGORIES - 1 and column.others
    assert {f"v{index}" for index in range(10)} <= set(column.values)
    encoded = encoding.encode(Table({}, {"code": ["v0", "unseen"]}, rows=2))
    assert encoded.sum(1).tolist() == [1, 1] and encoded[1, -1] == 1


def test_constant_empty_and_numbering_columns_are_left_out_with_their_reason():
    numbers = {
        "id": np.arange(7.0),
        "one": np.ones(7),
        "none": np.full(7, math.nan),
        "day": np.arange(7.0),
        "x": np.arange(7.0) ** 2,
    }
    table = Table(numbers, {"land": ["CH"] * 7, "note": [""] * 7}, rows=7)
    encoding = fit_encoding(table, np.arange(7), target="y")
    assert encoding.columns == ("day", "x")
    assert dict(encoding.dropped) == {
        "id": "numbers the rows",
        "one": "constant",
        "none": "empty",
        "land": "constant",
        "note": "empty",
    }


@pytest.mark.parametrize(
    ("cells", "word"),
    [
        ([f"user-{row}" for row in range(60)], "--drop"),
        ([f"{row},5" for row in range(60)], "decimal"),
        ([f"{row}.5" for row in range(59)] + ["12 kg"], "12 kg"),
        (["", *(f"{row}.5" for row in range(59)), "12 kg"], "12 kg"),
        ([f"the cat number {row} sat down" for row in range(60)], "adapt"),
    ],
    ids=["identifiers", "decimal commas", "one odd cell", "one odd cell and a gap", "sentences"],
)
def test_text_with_a_value_for_each_row_is_refused(cells, word):
    table = Table({"a": np.arange(60.0) ** 2}, {"odd": cells}, rows=60)
    with pytest.raises(ValueError, match=f"'odd'.*{word}"):
        fit_encoding(table, np.arange(60), target="y")


def test_infinite_and_overflowing_numbers_are_refused_by_row():
    table = Table({"a": np.array([0.0, 1.0, math.inf, 3.0])}, {}, rows=4)
    with pytest.raises(ValueError, match="'a', got inf in row 3"):
        fit_encoding(table, np.arange(4), target="y")
    encoding = fit_encoding(Table({"a": np.array([0.0, 1.0])}, {}, rows=2), np.arange(2), target="y")
    with pytest.raises(ValueError, match=r"'a'.*row 2"):
        encoding.encode(Table({"a": np.array([0.0, 1e300])}, {}, rows=2))


# Datasets


def test_a_table_is_split_by_class_and_encoded_by_its_training_rows(tmp_path):
    columns = people()
    found = data(write(tmp_path / "people.csv", columns))
    assert found.class_names == ("no", "yes") and found.facts["form"] == "table"
    assert found.facts["counts"] == {"train": 38, "validation": 10, "test": 12}
    assert found.train.shape == (5,) and found.facts["shape"] == [5]
    rows = found.role_rows["train"].rows
    ages = np.array([float(age or "nan") for age in columns["age"]])[rows]
    filled = np.where(np.isnan(ages), np.nanmedian(ages), ages)
    batch = next(found.train.batches([torch.arange(len(rows))]))
    np.testing.assert_allclose(batch.inputs[:, 0], (filled - filled.mean()) / filled.std(), atol=1e-5)
    np.testing.assert_array_equal(batch.inputs[:, 1], np.isnan(ages))
    assert [found.class_names[target] for target in batch.targets] == [columns["class"][row] for row in rows]


def test_separators_marks_and_formats_do_not_matter(tmp_path):
    columns = people()
    first = data(write(tmp_path / "a.csv", columns))
    others = [write(tmp_path / "b.csv", columns, sep=";"), write(tmp_path / "c.tsv", columns, sep="\t")]
    marked = {**columns, "age": [age or "NA" for age in columns["age"]]}
    (tmp_path / "d.csv").write_text(
        "\ufeff" + write(tmp_path / "e.csv", marked).read_text().replace("Bern", " Bern ")
    )
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    typed = {**columns, "age": [float(age) if age else None for age in columns["age"]]}
    parquet.write_table(arrow.table(typed), tmp_path / "f.parquet")
    for path in (*others, tmp_path / "d.csv", tmp_path / "f.parquet"):
        found = data(path)
        assert found.facts["digest"] == first.facts["digest"], path
        assert found.facts["table"] == first.facts["table"], path


def test_parts_of_a_directory_are_encoded_by_the_training_file(tmp_path):
    columns, other = people(60), people(30, seed=1)
    write(tmp_path / "train.csv", columns)
    write(tmp_path / "test.csv", {"extra": range(30), **dict(reversed(other.items()))})
    found = data(tmp_path)
    assert found.facts["counts"] == {"train": 48, "validation": 12, "test": 30}
    assert any("extra" in note for note in found.facts["notes"])
    assert [found.class_names[target] for target in found.test.targets] == other["class"]


def test_the_column_of_classes_is_named_or_recognised_and_that_is_said(tmp_path):
    columns = people()
    path = write(tmp_path / "a.csv", columns)
    assert any("class, recognised by its name" in note for note in data(path).facts["notes"])
    found = data(path, target="town", drop=["age"])
    assert found.class_names == TOWNS
    assert not any("recognised" in note for note in found.facts["notes"])
    assert any("age (by --drop)" in note for note in found.facts["notes"])
    numbered = write(tmp_path / "b.csv", {**columns, "class": [f"{row % 3}.0" for row in range(60)]})
    assert data(numbered).class_names == ("0", "1", "2")


def test_dates_are_categories_and_that_is_said(tmp_path):
    columns = people()
    days = {"iso": "2026-11-1{}", "german": "1{}.11.2026 08:15", "code": "2026-1{}", "one": "1{}"}
    dated = {name: [form.format(row % 4) for row in range(60)] for name, form in days.items()}
    notes = data(write(tmp_path / "a.csv", {**columns, **dated})).facts["notes"]
    assert [note.split(" holds dates")[0] for note in notes if "dates" in note] == ["iso", "german"]


@pytest.mark.parametrize(
    "setting",
    [
        {"augment": "crop"},
        {"corrupt": "skip"},
        {"size": 32},
        {"shift": 0},
        {"margin": 1.0},
        {"mean": (0.5,), "std": (0.5,)},
        {"directory": "."},
    ],
    ids=lambda setting: next(iter(setting)),
)
def test_settings_of_images_are_refused_for_a_table(tmp_path, setting):
    path = write(tmp_path / "a.csv", people())
    with pytest.raises(ValueError, match=f"`{next(iter(setting))}` must be given for images alone"):
        data(path, **setting)


@pytest.mark.parametrize(
    ("train", "test", "names"),
    [
        (("1.0", "2.0", "other"), ("1.0", "2.0"), ("1.0", "2.0", "other")),
        (("1.0", "2.0"), ("1", "2.00"), ("1", "2")),
        (("2", "10", "-1"), ("10.0", "-1.0"), ("-1", "2", "10")),
        (("01", "1", "2"), ("01", "1.0"), ("01", "1", "2")),
        (("9007199254740993", "9007199254740992"), ("9007199254740993.0",), None),
        (("1_0", "10"), ("1_0",), ("10", "1_0")),
        (("10.5", "2.5", "1.0"), ("1", "10.5"), ("1", "2.5", "10.5")),
        (("inf", "-nan", "2"), ("inf", "2.0"), ("-nan", "2", "inf")),
        (("nan_", "1e3", "1000"), ("1000", "1e3"), ("1000", "1e3", "nan_")),
    ],
)
def test_classes_are_compared_as_text_and_a_decimal_zero_is_dropped_in_all_parts(
    tmp_path, train, test, names
):
    def table(labels, rows):
        return {"x": [f"{row}.5" for row in range(rows)], "y": [labels[r % len(labels)] for r in range(rows)]}

    write(tmp_path / "train.csv", table(train, 60))
    write(tmp_path / "test.csv", table(test, 12))
    found = data(tmp_path)
    assert found.class_names == (names or tuple(sorted(train)))
    assert len(found.train) + len(found.validation) == 60
    of_test = [found.class_names[target] for target in found.test.targets]
    assert [name.removesuffix(".0") for name in of_test] == [
        test[row % len(test)].partition(".0")[0] for row in range(12)
    ]


def test_few_labels_leave_the_other_rows_unlabelled_and_noise_depends_on_the_seed(tmp_path):
    found = data(write(tmp_path / "a.csv", people()), labels=10, noise=0.5)
    assert len(found.train) == 10 and found.unlabelled is not None and len(found.unlabelled) == 28
    assert (found.unlabelled.targets == -1).all() and found.epoch_images == 38
    rows = [torch.arange(4)]
    plain, one, again, other = (
        next(found.train.batches(rows, seeds=seeds)).inputs for seeds in (None, [1], [1], [2])
    )
    assert torch.equal(one, again) and not torch.equal(one, other)
    assert 0.1 < (one - plain).std() < 1


def header_less(columns):
    return "".join(f"{row}.5,{row}.25,{row % 2}\n" for row in range(40))


HOSTILE = {
    "no target": ("a,b\n" + "1,2\n" * 9, {}, "`target`"),
    "wrong target": ("a,kind\n" + "1,2\n" * 9, {"target": "Kind"}, "'kind'"),
    "two targets": ("a,label,y\n" + "1,2,3\n" * 9, {}, "`target`"),
    "target with NaN": ("a,y\n" + "".join(f"{r},{r % 2}\n" for r in range(9)) + "3,NaN\n", {}, "row 10"),
    "target with a gap": ("a,y\n1,x\n2,\n3,z\n", {}, "row 2"),
    "one class": ("a,y\n" + "".join(f"{r},x\n" for r in range(40)), {}, "2 classes"),
    "regression": ("a,y\n" + "".join(f"{r},{r / 7}\n" for r in range(90)), {}, "regression"),
    "a class a row": ("a,y\n" + "".join(f"{r},c{r}\n" for r in range(90)), {}, "`target`"),
    "no heading": (header_less(None), {"target": "0.5"}, "first line"),
    "whole numbers for a heading": ("".join(f"{r},{r + 3},0\n" for r in range(9)), {}, "first line"),
    "one column": ("a|b|y\n1|2|3\n", {}, "separated by"),
    "empty": ("", {}, "first line"),
    "heading alone": ("a,y\n", {}, "rows"),
    "ragged": ("a,y\n1,0\n1,0,5\n", {}, "row 2"),
    "constant alone": ("a,y\n" + "".join(f"7,{r % 2}\n" for r in range(40)), {}, "constant"),
    "drops what is not there": (
        "a,y\n" + "".join(f"{r},{r % 2}\n" for r in range(40)),
        {"drop": ["b"]},
        "`drop`",
    ),
    "drops the target": ("a,y\n" + "".join(f"{r},{r % 2}\n" for r in range(40)), {"drop": ["y"]}, "`drop`"),
    "not text": ("a,y\n\xff\xfe,1\n".encode("latin-1"), {}, "UTF-8"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_tables_are_refused_in_one_line(tmp_path, case):
    content, settings, word = HOSTILE[case]
    path = tmp_path / "hostile.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=word) as error:
        data(path, **settings)
    assert "\n" not in f"{error.value}"


def test_settings_of_tables_are_refused_for_images_and_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match="`target`"):
        data("digits", target="y")
    with pytest.raises(ValueError, match="nothing at"):
        data(tmp_path / "nothing.csv")
    assert not is_table("digits") and not is_table(f"{tmp_path}")


def test_columns_of_other_types_are_refused_by_name(tmp_path):
    import datetime

    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    days = [datetime.date(2020, 1, 1 + row) for row in range(20)]
    table = arrow.table({"x": range(20), "day": days, "y": [row % 2 for row in range(20)]})
    parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"'day'.*--drop"):
        data(tmp_path / "a.parquet")
    assert data(tmp_path / "a.parquet", drop=["day"]).train.shape == (1,)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_text_columns_are_read_in_one_pass_and_those_that_begin_like_numbers_in_a_second(
    tmp_path, suffix, monkeypatch
):
    rows = 9000  # some chunks
    columns = {name: [f"{row}" for row in range(rows)] for name in ("number", "early", "late", "later")}
    columns |= {f"text {k}": [TOWNS[(row + k) % 3] for row in range(rows)] for k in range(5)}
    columns["early"][7], columns["late"][5000], columns["later"][8999] = "seven", "x", "y"
    path = tmp_path / f"a{suffix}"
    if suffix == ".csv":
        write(path, columns)
    else:
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.table(columns), path)
    passes, chunks = [], TableFile.chunks
    monkeypatch.setattr(TableFile, "chunks", lambda file, names: passes.append(names) or chunks(file, names))
    monkeypatch.setattr(TableFile, "cells", None)
    table = _read(open_table(path, caller="data"), list(columns), text=("text 0",))
    assert passes == [list(columns), ["late", "later"]]
    assert table.texts == {name: cells for name, cells in columns.items() if name != "number"}
    assert table.numbers["number"].tolist() == list(range(rows)) and table.columns() == tuple(columns)


# Rows to predict


@pytest.fixture
def encoding(tmp_path):
    return TableEncoding.from_json(data(write(tmp_path / "train.csv", people())).facts["table"])


def test_rows_to_predict_may_have_columns_in_any_order_and_more_of_them(tmp_path, encoding):
    new = {"age": ["30", "", "50"], "town": ["Rome", "Bern", "Oslo"]}
    names, source = read_rows(write(tmp_path / "new.csv", new), encoding)
    assert names == ["new.csv[0]", "new.csv[1]", "new.csv[2]"] and (source.targets == -1).all()
    other = write(tmp_path / "other.csv", {"town": new["town"], "class": ["no"] * 3, "age": new["age"]})
    assert torch.equal(read_rows(other, encoding)[1].inputs, source.inputs)
    more = write(tmp_path / "more.csv", {"weight": [1, 2, 3], **new})
    with pytest.warns(UserWarning, match="weight"):
        assert torch.equal(read_rows([more], encoding)[1].inputs, source.inputs)


def test_rows_to_predict_that_do_not_fit_are_refused_or_warned_of(tmp_path, encoding):
    with pytest.raises(ValueError, match="town"):
        read_rows(write(tmp_path / "a.csv", {"age": [1, 2]}), encoding)
    with pytest.raises(ValueError, match=r"'age'.*'old' in row 2"):
        read_rows(write(tmp_path / "b.csv", {"age": [1, "old"], "town": ["Rome"] * 2}), encoding)
    with pytest.warns(UserWarning, match="'Paris'"):
        _, source = read_rows(write(tmp_path / "c.csv", {"age": [1], "town": ["Paris"]}), encoding)
    assert not source.inputs[0, 2:].any()
    for path in (tmp_path / "none.csv", tmp_path / "image.png"):
        with pytest.raises(ValueError, match="paths"):
            read_rows(path, encoding)


def test_rows_of_no_class_come_from_another_table(tmp_path):
    like = data(write(tmp_path / "train.csv", people()))
    other = write(tmp_path / "other.csv", {"age": [200, 300], "town": ["Rome", "Bern"]})
    name, source = load_ood(f"giants={other}", like)
    assert name == "giants" and len(source) == 2 and (source.targets == -1).all()
    assert load_ood(f"{other}", like)[0] == "other"
    for text in ("noise", "svhn", "giants=", f"x={tmp_path / 'none.csv'}"):
        with pytest.raises(ValueError, match="`text`"):
            load_ood(text, like)


def test_inputs_and_targets_of_a_source_must_match():
    with pytest.raises(ValueError, match="`inputs`"):
        TableSource(torch.zeros(3, 2), [0, 1])
    with pytest.raises(ValueError, match="`inputs`"):
        TableSource(torch.zeros(3, 2, 2), [0, 1, 1])
    digests = {TableSource(torch.zeros(3, 2), targets).digest() for targets in ([0, 1, 1], [0, 1, 0], None)}
    assert len(digests) == 3
