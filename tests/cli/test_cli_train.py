"""Train, judge, predict: one run through all commands, and what they refuse."""

import csv
import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from beliefmatch.cli import main
from beliefmatch.experiments.config import config_from
from beliefmatch.experiments.evaluation_record import EvaluationRecord
from beliefmatch.experiments.records import RunRecord
from beliefmatch.experiments.yaml_files import read_yaml
from commands import MAIN

SHORT = ["--epochs", "2", "--limit", "200", "--ood", "noise", "--set", "training.warmup=[]"]


def refused(arguments, capsys) -> str:
    """The one line that a command ends with."""
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


def table(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text("utf-8").splitlines()))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("train") / "run"
    assert main(["train", *SHORT, "--kl-weight", "0.003", "--out", f"{out}"]) == 0
    return out


@pytest.fixture(scope="module")
def digits():
    from sklearn.datasets import load_digits

    return (load_digits().images * 15).astype(np.uint8)


def test_a_run_is_kept_shown_and_found_finished(run, capsys):
    record = RunRecord.from_json((run / "record.json").read_text("utf-8"))
    assert record.options == {"kl_weight": 0.003}
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()}
    assert main(["train", *SHORT, "--kl-weight", "0.003", "--out", f"{run}"]) == 0
    shown, err = capsys.readouterr()
    assert err == ""
    assert f"{100 * record.test.error:.2f}" in shown
    assert shown.split()[-1] == f"{run}"
    after = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()}
    assert {path for path in after if path.name != ".lock" and after[path] != before[path]} == set()
    log = table(run / "network-0" / "log.csv")
    assert [row["epoch"] for row in log] == ["0", "1"]
    assert float(log[1]["validation_error"]) == record.curves[0]["validation_error"][1]


def test_the_plan_is_a_recipe(run, tmp_path, capsys):
    assert (
        main(["train", "--recipe", f"{run / 'config.yaml'}", "--dry-run", "--out", f"{tmp_path / 'x'}"]) == 0
    )
    shown = capsys.readouterr().out
    (tmp_path / "shown.yaml").write_text(shown)
    assert config_from(read_yaml(tmp_path / "shown.yaml")) == config_from(read_yaml(run / "config.yaml"))
    assert "# time about" in shown
    assert "# memory about" in shown
    assert not (tmp_path / "x").exists()


def test_another_plan_does_not_overwrite_a_run(run, capsys):
    err = refused(["train", *SHORT, "--kl-weight", "0.01", "--out", f"{run}"], capsys)
    assert err.startswith("beliefmatch train: `--out` must be new, or hold a run of the same configuration")


def test_evaluate_takes_the_directory_of_a_run(run, tmp_path, capsys):
    assert main(["evaluate", f"{run}", "--resamples", "20", "--out", f"{tmp_path}"]) == 0
    record = EvaluationRecord.from_json((tmp_path / "run.json").read_text("utf-8"))
    kept = RunRecord.from_json((run / "record.json").read_text("utf-8"))
    assert record.name == "run"
    assert record.scores["error"].value == pytest.approx(kept.test.error)
    assert [ood.name for ood in record.ood] == ["noise"]
    assert record.class_names == kept.class_names


def test_a_directory_without_a_run_is_no_model(tmp_path, capsys):
    assert "must hold a finished run" in refused(["evaluate", f"{tmp_path}"], capsys)
    assert "must be the directory of a run" in refused(["predict", f"{tmp_path}", "x.png"], capsys)


def test_predictions_of_images_arrays_and_folders_agree(run, digits, tmp_path, capsys):
    folder = tmp_path / "images"
    folder.mkdir()
    for index, image in enumerate(digits[:12]):
        Image.fromarray(image).save(folder / f"{index:02}.png")
    np.savez(tmp_path / "images.npz", images=digits[:12])
    places = {"a.csv": folder, "b.json": tmp_path / "images.npz", "c.parquet": folder}
    for name, place in places.items():
        assert main(["predict", f"{run}", f"{place}", "--abstain", "0.5", "--out", f"{tmp_path / name}"]) == 0
    assert capsys.readouterr().out.count("12 images, ") == 3
    rows = table(tmp_path / "a.csv")
    content = json.loads((tmp_path / "b.json").read_text())
    for row, told in zip(rows, content["predictions"], strict=True):
        probs = [float(row[f"p_{name}"]) for name in content["classes"]]
        assert probs == pytest.approx(told["probs"], abs=1e-6)
        assert sum(probs) == pytest.approx(1)
        assert float(row["confidence"]) == max(probs)
        assert row["predicted"] == f"{np.argmax(probs)}" == row["class"]
        assert (row["abstained"] == "1") == (max(probs) < 0.5)
        assert float(row["entropy"]) == pytest.approx(-np.sum(np.multiply(probs, np.log(probs))))
        assert 0 < float(row["mutual_information"]) < float(row["entropy"])
    from pyarrow import parquet

    kept = parquet.read_table(tmp_path / "c.parquet").to_pylist()
    assert [row["confidence"] for row in kept] == pytest.approx([float(row["confidence"]) for row in rows])


def test_a_risk_sets_the_threshold_on_validation_images(run, digits, tmp_path, capsys):
    np.savez(tmp_path / "images.npz", images=digits[:50])
    out = tmp_path / "a.csv"
    assert main(["predict", f"{run}", f"{tmp_path / 'images.npz'}", "--risk", "0.6", "--out", f"{out}"]) == 0
    shown = capsys.readouterr().out
    least = float(shown.partition("confidence below ")[2].partition(")")[0])
    for row in table(out):
        assert (row["abstained"] == "1") == (float(row["confidence"]) < least)
    err = refused(["predict", f"{run}", f"{tmp_path}", "--risk", "1e-9", "--out", f"{out}"], capsys)
    assert "`--risk` must be one that the 359 validation images can promise" in err


def test_names_of_images_are_safe_for_a_spreadsheet(run, digits, tmp_path):
    Image.fromarray(digits[0]).save(tmp_path / "=1+1.png")
    out = tmp_path / "a.csv"
    assert main(["predict", f"{run}", f"{tmp_path / '=1+1.png'}", "--out", f"{out}"]) == 0
    (row,) = table(out)
    assert not row["image"].startswith("=")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("broken.png", b"not an image", "broken.png"),
        ("empty.npz", b"", "empty.npz"),
        ("text.txt", b"hello", "text.txt"),
    ],
)
def test_files_that_are_no_images_are_told(run, tmp_path, capsys, name, content, words):
    (tmp_path / name).write_bytes(content)
    err = refused(["predict", f"{run}", f"{tmp_path / name}", "--out", f"{tmp_path / 'a.csv'}"], capsys)
    assert words in err
    assert not (tmp_path / "a.csv").exists()


@pytest.mark.parametrize("command", ["train", "compare"])
def test_a_machine_that_is_not_this_one_is_refused_at_once(tmp_path, monkeypatch, capsys, command):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    out = ["--out", f"{tmp_path / 'out'}"]
    assert "`--accelerator` must be one of this" in refused([command, "--accelerator", "cuda", *out], capsys)
    told = refused([command, "--accelerator", "cpu", "--devices", "99", *out], capsys)
    assert "`--devices` must be at most 4, the logical cores of this machine, got 99." in told
    assert not (tmp_path / "out").exists()


def test_a_value_is_chosen_when_asked(tmp_path, capsys):
    assert main(["train", *SHORT, "--kl-weight", "auto", "--out", f"{tmp_path}"]) == 0
    shown = capsys.readouterr().out
    assert "* chosen" in shown
    record = RunRecord.from_json((tmp_path / "record.json").read_text("utf-8"))
    assert sum(trial.chosen for trial in record.search) == 1


def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path):
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
    assert "what was trained is saved; the same command goes on from there" in err
    assert "Traceback" not in err
    assert list((out / "network-0").glob("step-*.safetensors"))
    assert not (out / "record.json").exists()


@pytest.mark.slow
def test_of_two_processes_one_speaks(tmp_path):
    script = Path(sys.executable).with_name("beliefmatch")
    line = [str(script), "train", *SHORT, "--devices", "2", "--accelerator", "cpu", "--out", f"{tmp_path}"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("validation") == 1
    assert RunRecord.from_json((tmp_path / "record.json").read_text("utf-8")).engine["processes"] == 2
