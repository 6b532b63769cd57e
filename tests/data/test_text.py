"""Labelled sentences: files and the hub, their split, errors of users, and tokenised batches."""

import csv
import io
import json
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from beliefmatch.data.config import TextConfig, is_text
from beliefmatch.data.text import TextSource, load_ood_text, load_text, read_sentences
from refusals import refusal

WORDS = ["alpha", "beta", "gamma"]
ROWS = [(f"sentence {row} about {WORDS[row % 3]}", WORDS[row % 3]) for row in range(60)]


def write(path, rows, columns=("text", "label")):
    """A table in the format of the file's ending."""
    kind = path.suffix
    if kind == ".jsonl":
        lines = [json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False) for row in rows]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    elif kind == ".parquet":
        names = zip(columns, zip(*rows, strict=True), strict=True)
        pq.write_table(pa.table({name: list(values) for name, values in names}), path)
    else:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, delimiter="\t" if kind == ".tsv" else ",")
            writer.writerows([columns, *rows])
    return path


def load(path, **options):
    return load_text(TextConfig(name=f"{path}", **options))


@pytest.mark.parametrize("kind", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_every_format_gives_the_same_sentences_classes_and_split(tmp_path, kind):
    rows = [*ROWS, ('ünïcode, with a "quote"\tand a tab', "beta")]
    reference = load(write(tmp_path / "reference.jsonl", rows))
    found = load(write(tmp_path / f"data{kind}", rows, columns=("Utterance", "Intent")))
    assert found.class_names == ("alpha", "beta", "gamma")
    assert found.texts["all"] == [text for text, _ in rows]
    assert [found.class_names[target] for target in found.targets["all"]] == [label for _, label in rows]
    assert found.facts["digest"] == reference.facts["digest"]
    sizes = {role: len(rows) for role, (_, rows) in found.role_rows.items()}
    assert sizes == {"train": 39, "validation": 10, "test": 12} == found.facts["counts"]
    everything = np.concatenate([rows for _, rows in found.role_rows.values()])
    assert sorted(everything) == list(range(61))


def test_a_directory_has_one_file_for_each_part(tmp_path):
    for name, rows in (("train", ROWS[:30]), ("val", ROWS[30:45]), ("test", ROWS[45:])):
        write(tmp_path / f"{name}.csv", rows)
    found = load(tmp_path)
    assert {part: len(texts) for part, texts in found.texts.items()} == {
        "train": 30,
        "validation": 15,
        "test": 15,
    }
    assert found.facts["divided_by_us"] == []
    halved = load_text(TextConfig(name=f"{tmp_path}"), validation_from="test")
    assert [len(halved.role_rows[role].rows) for role in ("train", "validation", "test")] == [30, 7, 8]
    (tmp_path / "val.csv").unlink()
    assert load(tmp_path, validation=6).facts["counts"] == {"train": 24, "validation": 6, "test": 15}
    assert load(tmp_path, limit=9).facts["counts"]["train"] == 9


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        ([10, 9, 2] * 20, ("2", "9", "10")),
        (["10", "9", "2"] * 20, ("2", "9", "10")),
        (["b", "10", "2"] * 20, ("10", "2", "b")),
        ([1.0, 0.0, 2.0] * 20, ("0", "1", "2")),
        ([True, False] * 30, ("False", "True")),
    ],
)
def test_labels_are_names_in_the_order_of_numbers_or_of_the_alphabet(tmp_path, labels, names):
    rows = [(text, label) for (text, _), label in zip(ROWS, labels, strict=True)]
    assert load(write(tmp_path / "data.jsonl", rows)).class_names == names


def test_class_ids_follow_a_classifier_with_the_same_classes(tmp_path):
    config = TextConfig(name=f"{write(tmp_path / 'data.csv', ROWS)}")
    same = load_text(config, class_order=["GAMMA", "alpha", "Beta"])
    assert same.class_names == ("gamma", "alpha", "beta")
    assert same.targets["all"][:3].tolist() == [1, 2, 0]
    for other in (["gamma", "alpha"], ["gamma", "alpha", "beta", "delta"], ["a", "b", "c"]):
        assert load_text(config, class_order=other).class_names == ("alpha", "beta", "gamma")


def test_parquet_of_hugging_face_names_its_classes(tmp_path):
    features = {"label": {"names": ["z", "y", "x"], "_type": "ClassLabel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    table = pa.table({"text": [text for text, _ in ROWS], "label": [0, 1, 2] * 20})
    pq.write_table(table.replace_schema_metadata(metadata), tmp_path / "data.parquet")
    found = load(tmp_path / "data.parquet")
    assert found.class_names == ("z", "y", "x")
    assert found.targets["all"].tolist() == [0, 1, 2] * 20


def test_the_hub_gives_its_splits_and_class_names(monkeypatch):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {"query": datasets.Value("string"), "intent": datasets.ClassLabel(names=["z", "y", "x"])}
    )
    columns = {"query": [text for text, _ in ROWS], "intent": [0, 1, 2] * 20}
    table = datasets.Dataset.from_dict(columns, features=features)
    splits = {"train": table, "test": table.select(range(9)), "unsupervised": table}
    calls = []
    monkeypatch.setattr(datasets, "load_dataset", lambda *given, **options: calls.append(given) or splits)
    found = load("hf:owner/name:plus")
    assert calls == [("owner/name", "plus")]
    assert found.class_names == ("z", "y", "x") and found.facts["counts"]["test"] == 9
    assert load_ood_text("other=hf:owner/name") == ("other", columns["query"][:9])
    assert "`label_column`" in refusal(load, "hf:owner/name", label_column="mood")
    del splits["train"], splits["test"]
    assert "unsupervised" in refusal(load, "hf:owner/name")


GOOD = [*ROWS[:12]]
REFUSED = {
    "missing text column": (GOOD, ("body", "label"), {}, ("`text_column`", "body, label")),
    "missing label column": (GOOD, ("text", "mood"), {}, ("`label_column`", "text, mood")),
    "named column": (GOOD, ("text", "label"), {"text_column": "body"}, ("`text_column`", "text, label")),
    "named label": (GOOD, ("text", "label"), {"label_column": "mood"}, ("`label_column`", "text, label")),
    "two text columns": (GOOD, ("text", "query"), {}, ("`text_column`", "text and query")),
    "same heading": (GOOD, ("text", "text"), {}, ("two columns named 'text'",)),
    "empty text": ([*GOOD, ("  ", "beta")], ("text", "label"), {}, ("row 13",)),
    "empty label": ([*GOOD, ("word", "")], ("text", "label"), {}, ("row 13",)),
    "one class": ([("word", "beta")] * 9, ("text", "label"), {}, ("2 classes", "beta")),
    "a rare class": ([*GOOD, ("word", "rare")], ("text", "label"), {"limit": 3}, ("rare",)),
    "no rows": ([], ("text", "label"), {}, ("none",)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_with_a_file_is_one_line(tmp_path, name):
    rows, columns, options, expected = REFUSED[name]
    message = refusal(load, write(tmp_path / "data.csv", rows, columns), **options)
    assert message.startswith("data: ")
    assert all(part in message for part in expected), message


@pytest.mark.parametrize(
    ("file", "content", "expected"),
    [
        ("a.csv", "text,label\ncaf\xe9,x\n".encode("latin-1"), "UTF-8"),
        ("a.jsonl", b'{"text": "a", "label": 1}\n[1]\n', "line 2"),
        ("a.jsonl", b'{"text": "a", "label": 1}\n{"text": 3, "label": 1}\n', "row 2"),
        ("a.jsonl", b'{"text": "a", "label": 1}\n{"text": "b"}\n', "row 2"),
        ("a.jsonl", b'{"text": "a", "label": [1]}\n', "row 1"),
        ("a.jsonl", b'{"text": "a", "label": 0.5}\n', "row 1"),
        ("a.jsonl", b"{text: a}\n", "a.jsonl"),
        ("a.csv", b"text,label\na,b,c\n", "row 1 has 3 cells"),
        ("a.csv", b"", "`text_column`"),
        ("a.parquet", b"PAR1", "a.parquet"),
        ("a.xlsx", b"", ".parquet"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_line(tmp_path, file, content, expected):
    (tmp_path / file).write_bytes(content)
    assert expected in refusal(load, tmp_path / file)


def test_a_label_of_the_test_part_that_nothing_was_trained_on_is_named(tmp_path):
    write(tmp_path / "train.csv", GOOD)
    write(tmp_path / "test.csv", [*GOOD, ("who knows", "oos")])
    message = refusal(load, tmp_path)
    assert "'oos' in row 13 of the test part" in message and "--ood" in message
    assert "nothing at" in refusal(load, tmp_path / "absent.csv")
    (tmp_path / "empty").mkdir()
    assert "none in" in refusal(load, tmp_path / "empty")
    (tmp_path / "train.csv").unlink()
    (tmp_path / "test.csv").rename(tmp_path / "validation.csv")
    assert "train part" in refusal(load, tmp_path)


@pytest.mark.parametrize("kind", [".txt", ".csv", ".jsonl", ".parquet"])
def test_ood_sentences_need_no_labels(tmp_path, kind):
    texts = [text for text, _ in ROWS[:5]]
    path = tmp_path / f"other{kind}"
    if kind == ".txt":
        path.write_text("\ufeff" + "\n\n".join(texts), encoding="utf-8")
    else:
        write(path, [[text] for text in texts], columns=("text",))
    assert load_ood_text(f"{path}") == ("other", texts)
    assert load_ood_text(f"wiki={path}") == ("wiki", texts)
    assert read_sentences([f"{path}", "one more"]) == [*texts, "one more"]
    for wrong in (f"={path}", "wiki=", f"{tmp_path / 'absent'}{kind}", "noise"):
        assert refusal(load_ood_text, wrong).startswith("data: ")


def test_sentences_to_predict_come_from_arguments_files_and_standard_input(tmp_path, monkeypatch):
    write(tmp_path / "new.csv", [("from a file",)], columns=("body",))
    monkeypatch.setattr(sys, "stdin", io.StringIO("from a pipe\n\n  and more \n"))
    given = ["a sentence", f"{tmp_path / 'new.csv'}", "-", "what is in intents.csv and why.txt"]
    assert read_sentences(given, text_column="body") == [
        "a sentence",
        "from a file",
        "from a pipe",
        "and more",
        "what is in intents.csv and why.txt",
    ]
    assert read_sentences(["x" * 5000]) == ["x" * 5000]
    assert "absent.csv" in refusal(read_sentences, ["absent.csv"])
    for broken in ("", "  ", "a\udcff"):  # an empty sentence, and bytes that are no text
        assert "`inputs` must be" in refusal(read_sentences, ["one", broken])
    assert "`inputs`" in refusal(read_sentences, [" "])


def test_text_is_told_from_images_by_endings_and_columns(tmp_path):
    assert is_text("hf:owner/name") and is_text("absent.csv") and is_text("absent.jsonl")
    assert not is_text("cifar10") and not is_text("absent/") and not is_text("absent.parquet")
    assert is_text(f"{write(tmp_path / 'a.parquet', GOOD)}")
    assert not is_text(f"{write(tmp_path / 'b.parquet', GOOD, columns=('image', 'label'))}")
    assert not is_text(f"{write(tmp_path / 'c.parquet', GOOD, columns=('caption', 'label'))}")
    (tmp_path / "texts").mkdir()
    write(tmp_path / "texts" / "train.csv", GOOD)
    assert is_text(f"{tmp_path / 'texts'}")
    (tmp_path / "texts" / "cats").mkdir()  # a folder of images with a table of their origin
    assert not is_text(f"{tmp_path / 'texts'}")


def tokenize(texts):
    """One token for each character, padded with zeros."""
    width = max(map(len, texts))
    ids = torch.tensor([[ord(char) for char in text.ljust(width, "\0")] for text in texts])
    return {"input_ids": ids, "attention_mask": (ids > 0).long()}


def test_a_source_pads_each_batch_to_its_longest_sentence():
    texts = ["bb", "a", "dddd", "ccc", "ee"]
    source = TextSource(texts, [0, 1, 2, 0, 1], tokenize=tokenize)
    order = source.longest_first()
    assert order.tolist() == [2, 3, 0, 4, 1]
    by_length = source.subset(order)
    batches = list(by_length.batches(torch.arange(5).split(2)))
    assert [tuple(batch.inputs["input_ids"].shape) for batch in batches] == [(2, 4), (2, 2), (1, 1)]
    read = ["".join(map(chr, row[row > 0])) for batch in batches for row in batch.inputs["input_ids"]]
    assert [read[rank] for rank in np.argsort(order)] == texts
    assert torch.cat([batch.targets for batch in batches]).tolist() == [2, 0, 0, 1, 1]
    assert TextSource(texts, tokenize=tokenize).targets.tolist() == [-1] * 5
    digests = {source.digest(), by_length.digest(), TextSource(texts, tokenize=tokenize).digest()}
    assert len(digests) == 3
    assert (
        TextSource(["ab", "c"], tokenize=tokenize).digest()
        != TextSource(["a", "bc"], tokenize=tokenize).digest()
    )
