"""`beliefmatch train` and `compare`, and the commands that take a run."""

import csv
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import typer
from PIL import Image

from beliefmatch._files import LEDGER
from beliefmatch.cli import app, main
from beliefmatch.cli.train import _settings
from beliefmatch.experiments.config import config_from
from beliefmatch.experiments.evaluation_record import EvaluationRecord
from beliefmatch.experiments.records import ComparisonRecord, RunRecord
from beliefmatch.experiments.yaml_files import read_yaml
from commands import MAIN, PRODUCTS, QUICK, python, refused

SHORT = ["--epochs", "2", "--limit", "200", "--ood", "noise", "--set", "training.warmup=[]"]
FEW_LABELS = [
    *("--epochs", "1", "--limit", "150", "--labels", "30", "--set", "training.warmup=[]"),
    *("--set", "ood=[]", "--set", "model.options.width=8", "--recipe", "semi-digits"),
]
VAT = ["--semi", "vat", "--semi-weight", "0.4"]


def table(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text("utf-8").splitlines()))


def record_of(out: Path) -> RunRecord:
    return RunRecord.from_json((out / "record.json").read_text("utf-8"))


def shown_config(arguments, tmp_path, capsys):
    """The configuration that a dry run prints, read back; and what was printed."""
    assert main([*arguments, "--dry-run", "--out", f"{tmp_path / 'nothing'}"]) == 0
    assert not (tmp_path / "nothing").exists()
    shown = capsys.readouterr().out
    (tmp_path / "shown.yaml").write_text(shown)
    return config_from(read_yaml(tmp_path / "shown.yaml")), shown


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("train") / "run"
    assert main(["train", *SHORT, "--kl-weight", "0.003", "--out", f"{out}"]) == 0
    return out


@pytest.fixture(scope="module")
def semi_run(tmp_path_factory):
    out = tmp_path_factory.mktemp("semi") / "vat"
    assert main(["train", *FEW_LABELS, *VAT, "--out", f"{out}"]) == 0
    return out


@pytest.fixture(scope="module")
def digits():
    from sklearn.datasets import load_digits

    return (load_digits().images * 15).astype(np.uint8)


def test_a_finished_run_is_shown_and_not_repeated(run, capsys):
    record = record_of(run)
    assert record.options == {"kl_weight": 0.003}
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()}
    line = ["train", *SHORT, "--kl-weight", "0.003", "--out", f"{run}"]
    assert main(line) == 0
    shown, err = capsys.readouterr()
    assert err == ""
    assert f"{100 * record.test.error:.2f}" in shown and "OOD set noise: AUROC" in shown
    assert shown.split()[-1] == f"{run}"
    assert main([*line, "--verbose"]) == 0
    assert "FPR95" not in shown and "FPR95" in capsys.readouterr().out
    after = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()}
    assert {path for path in after if path.name != ".lock" and after[path] != before[path]} == set()
    log = table(run / "network-0" / "log.csv")
    assert [row["epoch"] for row in log] == ["0", "1"]
    assert float(log[1]["validation_error"]) == record.curves[0]["validation_error"][1]


def test_options_change_settings_of_the_recipe_and_set_changes_them_last():
    line = (
        "--epochs 3 --batch-size 7 --learning-rate 0.5 --seed 5 --data svhn --data-dir d --limit 99 "
        "--labels 40 --semi pi --semi-weight 2 --prior-from r --prior-strength 3 --model wrn28_2 --ood noise "
        "--ood n=/x --ood-training o --precision 32 --accelerator cuda --devices 2 --nodes 1 "
        "--kl-weight auto --set training.batch_size=9"
    )
    commands = typer.main.get_command(app._application(["train"])).commands  # type: ignore[attr-defined]
    settings, kl_weight, notes = _settings(commands["train"].make_context("train", line.split()))
    expected = {
        "data": {"name": "svhn", "directory": "d", "limit": 99, "labels": 40},
        "training": {"epochs": 3, "batch_size": 9, "learning_rate": 0.5},
        "engine": {"precision": "32", "accelerator": "cuda", "devices": "2", "nodes": 1},
        "semi": {"kind": "pi", "weight": 2.0},
        "teacher": {"run": "r", "strength": 3.0},
    }
    for section, values in expected.items():
        assert {key: settings[section][key] for key in values} == values
    assert (settings["model"]["name"], settings["seed"], settings["ood_training"]) == ("wrn28_2", 5, "o")
    assert (list(settings["ood"]), kl_weight) == (["noise", "n=/x"], "auto")
    assert notes == ()


def test_the_configuration_of_a_run_is_a_recipe(run, tmp_path, capsys):
    config, shown = shown_config(["train", "--recipe", f"{run / 'config.yaml'}"], tmp_path, capsys)
    assert config == config_from(read_yaml(run / "config.yaml"))
    assert "# time about" in shown
    assert "# memory about" in shown


def test_another_configuration_does_not_overwrite_a_run(run, capsys):
    assert "`--out`" in refused(["train", *SHORT, "--kl-weight", "0.01", "--out", f"{run}"], capsys)


@pytest.mark.parametrize(
    ("command", "file", "content"),
    [
        ("train", "comparison.json", "{}"),
        ("train", LEDGER, "{}"),
        ("train", "record.json", '{"schema": "beliefmatch.adaptation/3"}'),
        ("compare", "config.yaml", "seed: 0"),
        ("compare", LEDGER, "{}"),
        ("adapt --features x.npz", "comparison.json", "{}"),
        ("adapt --features x.npz", LEDGER, "{}"),
    ],
)
def test_results_do_not_go_into_the_directory_of_others(command, file, content, tmp_path, capsys):
    (tmp_path / file).write_text(content)
    (tmp_path / "report.html").write_text("precious")
    for more in ([], ["--dry-run"]):
        assert "`--out`" in refused([*command.split(), "--out", f"{tmp_path}", *more], capsys)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([file, "report.html"])
    assert (tmp_path / "report.html").read_text() == "precious"


@pytest.mark.parametrize(
    ("line", "option"),
    [
        ("--recipe magic", "--recipe"),
        ("--recipe absent.yaml", "--recipe"),
        ("--recipe bad.yaml", "--recipe"),
        ("--data empty", "--data"),
        ("--ood absent", "--ood"),
    ],
)
def test_what_train_cannot_use_names_its_option(line, option, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.yaml").write_text("a: [")
    err = refused(["train", *line.split(), "--out", "new"], capsys)
    assert err.startswith(f"beliefmatch train: `{option}` ")
    assert not (tmp_path / "new").exists()


def test_predict_starts_without_what_only_training_needs(run, digits, tmp_path):
    Image.fromarray(digits[0]).save(tmp_path / "zero.png")
    line = ["predict", f"{run}", f"{tmp_path / 'zero.png'}", "--out", f"{tmp_path / 'p.csv'}"]
    done = python(
        f"import sys; from beliefmatch.cli import main\nassert main({line}) == 0\n"
        "print([name for name in ('lightning_fabric', 'transformers') if name in sys.modules])"
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_evaluate_takes_the_directory_of_a_run(run, tmp_path, capsys):
    assert main(["evaluate", f"{run}", "--resamples", "1000", "--out", f"{tmp_path}"]) == 0
    record = EvaluationRecord.from_json((tmp_path / "run.json").read_text("utf-8"))
    own = record_of(run)
    assert record.name == "run"
    assert record.scores["error"].value == pytest.approx(own.test.error)
    assert [ood.name for ood in record.ood] == ["noise"]
    assert record.class_names == own.class_names


def test_a_dry_run_of_compare_shows_every_configuration_and_writes_nothing(tmp_path, capsys):
    assert main([*QUICK, "--dry-run", "--out", f"{tmp_path / 'nothing'}"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("# configuration ") == 2 and "# 2 runs, 1 at a time" in shown
    assert list(tmp_path.iterdir()) == []


def test_compare_writes_all_files_and_ends_with_three_sentences_and_the_page(tmp_path, capsys):
    out = tmp_path / "new" / "directory"
    line = [*QUICK, "--out", f"{out}", "--kl-weight", "0.003", "--seed", "4"]
    assert main(line) == 0
    shown, err = capsys.readouterr()
    assert err == ""  # no progress bar without a terminal
    assert "\x1b" not in shown
    table, *sentences = shown.split("•")
    assert "belief matching (λ = 0.003)" in table and sum("───" in line for line in table.splitlines()) == 1
    assert len(sentences) == 3 and sentences[0].startswith(" One seed cannot rank two methods")
    assert sorted(path.name for path in out.iterdir()) == PRODUCTS
    assert shown.split()[-1] == f"{out / 'report.html'}"
    record = ComparisonRecord.from_json((out / "comparison.json").read_text("utf-8"))
    assert record.seeds == [4]
    assert record.methods[1].runs[0].options == {"kl_weight": 0.003}
    assert record.settings["command"][:2] == ["beliefmatch", "compare"]
    runs = [method.runs[0] for method in record.methods]
    words = " ".join(shown.split())
    errors = [100 * run.test.error for run in runs]
    assert f"{min(errors):.1f} % (" in words and f"to {max(errors):.1f} % (" in words
    areas = [100 * run.ood[0].auroc["entropy"] for run in runs]
    assert any(f"{area:.1f} %" in words for area in areas) and "softmax trains in " in words
    with pytest.MonkeyPatch.context() as patch:  # finished runs are not repeated
        patch.setattr("beliefmatch.experiments.run.fit", None)
        patch.setattr("beliefmatch.report.comparison.comparison_files", lambda *records: [])
        assert main([*line, "--verbose"]) == 0
    assert "Costs" not in shown and "Costs" in capsys.readouterr().out


def test_predictions_of_images_arrays_and_folders_agree(run, digits, tmp_path, capsys):
    folder = tmp_path / "images"
    folder.mkdir()
    for index, image in enumerate(digits[:12]):
        name = "=1+1" if index == 0 else f"A{index:02}"  # a spreadsheet would compute the first
        Image.fromarray(image).save(folder / f"{name}.png")
    np.savez(tmp_path / "images.npz", images=digits[:12])
    inputs = {"a.csv": folder, "b.json": tmp_path / "images.npz", "c.parquet": folder}
    for name, path in inputs.items():
        assert main(["predict", f"{run}", f"{path}", "--abstain", "0.5", "--out", f"{tmp_path / name}"]) == 0
    assert capsys.readouterr().out.count("12 images, ") == 3
    rows = table(tmp_path / "a.csv")
    assert not any(row["image"].startswith("=") for row in rows)
    content = json.loads((tmp_path / "b.json").read_text())
    for row, other in zip(rows, content["predictions"], strict=True):
        probs = [float(row[f"p_{name}"]) for name in content["classes"]]
        assert probs == pytest.approx(other["probs"], abs=1e-6)
        assert sum(probs) == pytest.approx(1)
        assert float(row["confidence"]) == max(probs)
        assert row["predicted"] == f"{np.argmax(probs)}" == row["class"]
        assert (row["abstained"] == "1") == (max(probs) < 0.5)
        assert float(row["entropy"]) == pytest.approx(-np.sum(np.multiply(probs, np.log(probs))))
        assert 0 < float(row["mutual_information"]) < float(row["entropy"])
    from pyarrow import parquet

    others = parquet.read_table(tmp_path / "c.parquet").to_pylist()
    expected = [float(row["confidence"]) for row in rows]
    assert [row["confidence"] for row in others] == pytest.approx(expected)


def test_a_risk_determines_the_threshold_on_validation_images(run, digits, tmp_path, capsys):
    np.savez(tmp_path / "images.npz", images=digits[:50])
    out = tmp_path / "a.csv"
    line = ["predict", f"{run}", f"{tmp_path / 'images.npz'}", "--risk", "0.6", "--out", f"{out}"]
    assert main([*line, "--verbose"]) == 0
    shown = capsys.readouterr().out
    assert "mean confidence" in shown
    threshold = float(shown.partition("confidence below ")[2].partition(")")[0])
    for row in table(out):
        assert (row["abstained"] == "1") == (float(row["confidence"]) < threshold)
    assert "`--risk`" in refused(
        ["predict", f"{run}", f"{tmp_path}", "--risk", "1e-9", "--out", f"{tmp_path / 'b.csv'}"], capsys
    )


@pytest.mark.parametrize(
    ("name", "content"), [("broken.png", b"not an image"), ("empty.npz", b""), ("text.txt", b"hello")]
)
def test_predict_names_a_file_that_is_no_image(run, tmp_path, capsys, name, content):
    (tmp_path / name).write_bytes(content)
    line = ["predict", f"{run}", f"{tmp_path / name}", "--out", f"{tmp_path / 'a.csv'}"]
    assert name in refused(line, capsys)
    assert not (tmp_path / "a.csv").exists()


def test_auto_chooses_lambda(tmp_path, capsys):
    line = ["train", *SHORT, "--kl-weight", "auto", "--out", f"{tmp_path}"]
    assert main(line) == 0
    (chosen,) = [trial for trial in record_of(tmp_path).search if trial.chosen]
    assert f"kl_weight = {chosen.value:g} was chosen" in capsys.readouterr().out
    assert main([*line, "--verbose"]) == 0
    assert re.search(rf"kl_weight +{chosen.value:g} .* chosen", capsys.readouterr().out)


def test_ctrl_c_saves_and_explains_how_to_continue(tmp_path):
    out = tmp_path / "run"
    line = ["train", "--epochs", "400", "--ood", "noise", "--out", f"{out}"]
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN, *line], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    log = out / "network-0" / "log.csv"
    while process.poll() is None and not (log.is_file() and log.read_text().count("\n") > 2):
        signal.sigtimedwait([], 0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "the same command continues from there" in err
    assert "Traceback" not in err
    assert list((out / "network-0").glob("step-*.safetensors"))
    assert not (out / "record.json").exists()


@pytest.mark.slow
def test_of_two_processes_one_prints(tmp_path):
    script = Path(sys.executable).with_name("beliefmatch")
    line = [str(script), "train", *SHORT, "--devices", "2", "--accelerator", "cpu", "--out", f"{tmp_path}"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("validation") == 1
    assert record_of(tmp_path).engine["processes"] == 2


def test_a_run_with_few_labels_records_its_consistency_loss(semi_run, capsys):
    record = record_of(semi_run)
    assert (record.config["semi"]["kind"], record.config["semi"]["weight"]) == ("vat", 0.4)
    assert record.config["data"]["labels"] == 30
    assert record.curves[0]["consistency"][0] > 0
    assert main(["train", *FEW_LABELS, *VAT, "--out", f"{semi_run}"]) == 0
    assert "belief matching with 30 labels and vat, seed 0" in capsys.readouterr().out


def test_a_run_can_be_the_teacher_of_another(semi_run, tmp_path, capsys):
    out = tmp_path / "student"
    prior = ["--prior-from", f"{semi_run}", "--prior-strength", "2"]
    assert main(["train", *FEW_LABELS, *prior, "--out", f"{out}"]) == 0
    record = record_of(out)
    assert record.config["teacher"]["strength"] == 2.0
    assert record.config["teacher"]["fingerprint"] == record_of(semi_run).fingerprint


@pytest.mark.parametrize(
    ("flag", "expected"), [([], "vat"), (["--semi", "none"], None), (["--semi", "pi"], "pi")]
)
def test_semi_changes_or_switches_off_the_loss_of_a_recipe(flag, expected, tmp_path, capsys):
    line = ["train", "--data", "digits", "--model", "digits", "--recipe", "semi-vat", "--labels", "50"]
    small = [
        "--set",
        "data.validation=0.2",
        "--set",
        "ood=[]",
        "--set",
        "data.limit=200",
        "--batch-size",
        "50",
    ]
    config, shown = shown_config([*line, *small, *flag], tmp_path, capsys)
    assert (config.semi.kind if config.semi else None) == expected and config.data.labels == 50
    assert "steps of one network 500,000, " in shown


def test_semi_supervised_methods_are_compared_in_one_table(tmp_path, capsys):
    methods = "softmax,softmax:semi=pi:semi_weight=0.5,belief_matching:semi=vat:semi_weight=0.1"
    out = tmp_path / "compared"
    options = ["--methods", methods, "--seeds", "1", "--jobs", "1", "--out", f"{out}"]
    assert main(["compare", *FEW_LABELS, *options]) == 0
    found = json.loads((out / "comparison.json").read_text("utf-8"))
    assert [method["label"] for method in found["methods"]] == [
        "softmax",
        "softmax (semi = pi, weight = 0.5, divergence = squared)",
        "belief matching (λ = 0.0003, semi = vat, weight = 0.1, divergence = categorical)",
    ]
    shown = " ".join(capsys.readouterr().out.split())
    assert "semi = pi" in shown and (out / "report.html").stat().st_size > 10_000
