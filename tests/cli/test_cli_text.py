"""`beliefmatch adapt` and `predict` for sentences, from end to end with a tiny network."""

import csv
import io
import json
import shutil
import sys

import numpy as np
import pytest
import torch

from beliefmatch import Belief
from beliefmatch.cli import main
from beliefmatch.experiments.adapt_record import AdaptRecord
from beliefmatch.experiments.adapted_directory import adapted_network
from beliefmatch.models.text import text_model
from commands import files_below, refused
from outside_packages import imported
from tiny_text import save_modules, save_network, sentences, write_csv

pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of external packages are not ours

QUICK = ["--kl-weight", "0.01,0.001", "--controls", "softmax"]
OOD = [("quarks glow",), ("zebra",), ("my unknown words now",)] * 5


def record_of(directory) -> AdaptRecord:
    return AdaptRecord.from_json((directory / "record.json").read_text("utf-8"))


def table(path):
    return list(csv.DictReader(path.read_text("utf-8").splitlines()))


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    imported("transformers")
    workspace = tmp_path_factory.mktemp("text")
    save_network(workspace / "encoder")
    save_modules(workspace / "encoder")
    save_network(
        workspace / "classifier",
        "BertForSequenceClassification",
        id2label={0: "travel", 1: "Food", 2: "money"},
    )
    (workspace / "data").mkdir()
    for seed, (part, count) in enumerate({"train": 120, "validation": 60, "test": 60}.items()):
        write_csv(workspace / "data" / f"{part}.csv", sentences(count, seed=seed))
    write_csv(workspace / "ood.csv", OOD, columns=("text",))
    return workspace


@pytest.fixture(scope="module")
def line(workspace):
    data = ["--data", f"{workspace / 'data'}", "--ood", f"other={workspace / 'ood.csv'}"]
    return ["adapt", *data, "--cache-dir", f"{workspace / 'cache'}", *QUICK]


@pytest.fixture(scope="module")
def adapted(workspace, line):
    """An encoder with a head for three topics; the directory that it came from is gone."""
    original = shutil.copytree(workspace / "encoder", workspace / "original")
    out = workspace / "adapted"
    assert main([*line, "--model", f"hf:{original}", "--out", f"{out}"]) == 0
    shutil.rmtree(original)
    return out


def test_an_encoder_gets_a_head_for_the_classes_of_the_sentences(adapted):
    record = record_of(adapted)
    assert record.labels == "new" and record.class_names == ["food", "money", "travel"]
    assert record.data["counts"] == {"train": 120, "validation": 60, "test": 60}
    assert record.delivered("belief matching").scores.error < 0.1
    assert [one.name for one in record.delivered("belief matching").ood] == ["other"]
    assert not [name for name in files_below(adapted) if name.endswith((".bin", ".pt", ".pkl"))]


def test_the_network_of_the_directory_answers_as_the_stored_predictions(adapted, workspace):
    """Also in the order of the file, although features were computed by length."""
    found = adapted_network(adapted)
    stored = np.load(adapted / "predictions" / "test.npz", allow_pickle=False)
    texts = [row["text"] for row in table(workspace / "data" / "test.csv")]
    logits = [found.network.belief(found.tokenize([text])).log_alpha for text in texts]
    assert np.allclose(torch.cat(logits), stored["logits"], atol=1e-4)
    labels = [found.class_names[target] for target in stored["targets"]]
    assert labels == [row["intent"] for row in table(workspace / "data" / "test.csv")]


def test_features_are_kept_for_the_next_time(adapted, workspace, line, tmp_path, monkeypatch):
    monkeypatch.setattr("beliefmatch.adaptation.features._computed", lambda *_, **__: pytest.fail("computed"))
    assert main([*line, "--model", f"hf:{workspace / 'encoder'}", "--out", f"{tmp_path}"]) == 0
    assert record_of(tmp_path).scored == record_of(adapted).scored


def test_predict_answers_sentences_of_the_command_line(adapted, tmp_path, capsys):
    out = tmp_path / "answers.csv"
    given = ["i want pizza soup", "quarks glow [red]", "my bank card"]
    assert main(["predict", f"{adapted}", *given, "--abstain", "0.6", "--out", f"{out}"]) == 0
    shown = capsys.readouterr().out
    assert all(text in shown for text in given)
    rows = table(out)
    assert [row["text"] for row in rows] == given
    assert [rows[0]["class"], rows[2]["class"]] == ["food", "money"]
    threshold = float(shown.partition("mutual information above ")[2].partition(",")[0])
    assert f"{sum(row['none_of_these'] == '1' for row in rows)} none of these" in shown
    for row in rows:
        probs = [float(row[f"p_{name}"]) for name in ("food", "money", "travel")]
        assert sum(probs) == pytest.approx(1) and float(row["confidence"]) == max(probs)
        assert (row["abstained"] == "1") == (max(probs) < 0.6)
        assert (row["none_of_these"] == "1") == (float(row["mutual_information"]) > threshold)


@pytest.mark.parametrize("rate", [0.05, 0.3])
def test_none_of_these_refuses_the_stated_share_of_the_validation_sentences(
    adapted, workspace, tmp_path, rate
):
    out, data = tmp_path / "v.json", workspace / "data" / "validation.csv"
    line = ["predict", f"{adapted}", f"{data}", "--out", f"{out}"]
    assert main([*line, *([] if rate == 0.05 else ["--none-of-these", f"{rate}"])]) == 0
    rows = json.loads(out.read_text("utf-8"))["predictions"]
    assert [row["text"] for row in rows] == [row["text"] for row in table(data)]
    refused = {index for index, row in enumerate(rows) if row["none_of_these"]}
    stored = np.load(adapted / "predictions" / "validation.npz", allow_pickle=False)
    doubt = Belief(torch.from_numpy(stored["logits"]).double()).mutual_information()
    threshold = doubt.sort().values[-int(61 * rate)]
    # Single precision may move the sentences at the threshold itself.
    assert refused >= {index for index, one in enumerate(doubt.tolist()) if one > 1.001 * threshold}
    assert refused <= {index for index, one in enumerate(doubt.tolist()) if one > 0.999 * threshold}
    assert 0 < len(refused) <= int(61 * rate)


def test_predict_reads_files_and_standard_input(adapted, workspace, tmp_path, monkeypatch, capsys):
    (tmp_path / "new.txt").write_text("my bank card\n\ni want pizza soup\n", encoding="utf-8")
    write_csv(tmp_path / "new.csv", [("train ticket please",)], columns=("body",))
    monkeypatch.setattr(sys, "stdin", io.StringIO("more bread\n"))
    given = [f"{tmp_path / 'new.txt'}", f"{tmp_path / 'new.csv'}", "-", "--text-column", "body"]
    out = tmp_path / "answers.csv"
    assert main(["predict", f"{adapted}", *given, "--out", f"{out}"]) == 0
    assert [row["class"] for row in table(out)] == ["money", "food", "travel", "food"]
    many = ["predict", f"{adapted}", f"{workspace / 'data' / 'train.csv'}", "--verbose", "--out", f"{out}"]
    many.append("--overwrite")
    capsys.readouterr()
    assert main(many) == 0
    shown = capsys.readouterr().out
    assert "120 sentences" in shown and "mean confidence" in shown and "  answer " not in shown
    assert [row["text"] for row in table(out)] == [
        row["text"] for row in table(workspace / "data" / "train.csv")
    ]


def test_a_classifier_is_repaired_in_the_order_of_its_own_classes(workspace, line, tmp_path):
    out = tmp_path / "out"
    model = f"hf:{workspace / 'classifier'}"
    assert main([*line, "--model", model, "--labels", "same", "--out", f"{out}"]) == 0
    record = record_of(out)
    assert record.labels == "same" and record.class_names == ["travel", "food", "money"]
    untouched, rows = text_model(model), table(workspace / "data" / "test.csv")
    with torch.no_grad():
        logits = untouched.network(**untouched.tokenize([row["text"] for row in rows])).logits
    right = [
        record.class_names[best] == row["intent"] for best, row in zip(logits.argmax(1), rows, strict=True)
    ]
    assert record.delivered("untouched").scores.error == pytest.approx(1 - np.mean(right))
    assert record.delivered("belief matching").scores.error < 0.1
    assert main(["predict", f"{out}", "i want pizza soup", "--out", f"{tmp_path / 'a.csv'}"]) == 0
    assert table(tmp_path / "a.csv")[0]["class"] == "food"


def test_a_dry_run_lists_the_sentences_and_writes_nothing(workspace, tmp_path, capsys):
    given = ["--model", f"hf:{workspace / 'encoder'}", "--data", f"{workspace / 'data' / 'train.csv'}"]
    given += ["--background", f"{workspace / 'ood.csv'}", "--cache-dir", f"{tmp_path / 'cache'}"]
    assert main(["adapt", *given, "--out", f"{tmp_path / 'out'}", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "sentences: all 120, background 15\n" in shown
    assert "77 to fit on, 19 to choose on, 24 to report on" in shown and "at most 12 tokens" in shown
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("options", ["--choose best --kl-weight 10", "--heads 3"])
def test_a_softmax_head_and_bootstrap_heads_refuse_by_their_entropy(
    workspace, line, tmp_path, capsys, options
):
    model = ["--model", f"hf:{workspace / 'encoder'}", *options.split()]
    assert main([*line, *model, "--out", f"{tmp_path / 'out'}"]) == 0
    has_belief = json.loads((tmp_path / "out" / "model.json").read_text())["has_belief"]
    assert has_belief == ("--heads" in options)
    capsys.readouterr()
    assert main(["predict", f"{tmp_path / 'out'}", "more pizza", "--out", f"{tmp_path / 'a.csv'}"]) == 0
    assert "(entropy above " in capsys.readouterr().out
    assert (table(tmp_path / "a.csv")[0]["mutual_information"] != "") == has_belief


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--model hf:encoder --data data --text-column body", "`--text-column`"),
        ("--model hf:encoder --data data --label-column mood", "`--label-column`"),
        ("--model hf:encoder --data absent.csv", "absent.csv"),
        ("--model hf:encoder --data data --size 8", "`--size`"),
        ("--model hf:encoder --data data --compile", "`--compile`"),
        ("--model hf:encoder --data data --train-batchnorm", "`--train-batchnorm`"),
        ("--model hf:encoder --data data --labels same", "same"),
        ("--model hf:absent_model --data data", "hf:absent_model"),
        ("--model timm:resnet18 --data data", "hf:OWNER/NAME"),
        ("--model hf:encoder --data data --ood noise", "noise"),
        ("--model hf:encoder --data data --ood a=ood.csv --ood a=ood.csv", "`--ood`"),
    ],
)
def test_what_cannot_be_adapted_is_one_line(workspace, tmp_path, monkeypatch, capsys, line, words):
    monkeypatch.chdir(workspace)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    more = ["--cache-dir", f"{workspace / 'cache'}", *QUICK, "--out", f"{tmp_path / 'out'}"]
    assert words in refused(["adapt", *line.split(), *more], capsys)
    assert not (tmp_path / "out" / "record.json").exists()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("absent.csv", "absent.csv"),
        ("word --none-of-these 0.001", "`--none-of-these`"),
        ("word --none-of-these 1", "`--none-of-these`"),
        ("data/test.csv --text-column body", "`--text-column`"),
    ],
)
def test_what_cannot_be_predicted_is_one_line(
    adapted, workspace, tmp_path, monkeypatch, capsys, given, words
):
    monkeypatch.chdir(workspace)
    out = tmp_path / "a.csv"
    assert words in refused(["predict", f"{adapted}", *given.split(), "--out", f"{out}"], capsys)
    assert not out.exists()


@pytest.mark.parametrize("file", ["text/config.json", "text/tokenizer.json", "model.safetensors"])
def test_predict_names_what_is_missing_of_a_directory(adapted, tmp_path, capsys, file):
    copy = shutil.copytree(adapted, tmp_path / "copy")
    (copy / file).unlink()
    assert f"{copy}" in refused(["predict", f"{copy}", "word", "--out", f"{tmp_path / 'a.csv'}"], capsys)


def test_a_missing_transformers_package_is_one_line(tmp_path, monkeypatch, capsys):
    write_csv(tmp_path / "data.csv", sentences(9))
    monkeypatch.setitem(sys.modules, "transformers", None)
    line = ["adapt", "--model", "hf:owner/name", "--data", f"{tmp_path / 'data.csv'}"]
    assert "beliefmatch[huggingface]" in refused([*line, "--out", f"{tmp_path / 'out'}"], capsys)
