"""Reproductions stopped, diverged, damaged, short of data or of disk: nothing lost, nothing mistaken."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch

from beliefmatch._errors import fail
from beliefmatch.cli import main
from beliefmatch.experiments import grid
from beliefmatch.experiments.build import dataset
from beliefmatch.experiments.config import config_from, fingerprint, overridden, recipe, with_method
from beliefmatch.experiments.grid import Cell, attempt_cells, run_cells
from beliefmatch.experiments.records import Diverged
from beliefmatch.experiments.run_dir import RunDirectory
from beliefmatch.reproduce.arms import EXPONENTS
from beliefmatch.reproduce.dataset_paths import MissingDataError
from commands import MAIN
from reproduced import command, record_of, write_images

OTHER_IMAGES = "`--out` must be new for other images"


@pytest.fixture
def few_reproductions(monkeypatch):
    """A function that leaves only some reproductions in `all`."""
    return lambda *names: monkeypatch.setattr("beliefmatch.cli.reproduce.REPRODUCTIONS", names)


def test_finished_runs_and_transfers_are_not_run_again(copied, monkeypatch, capsys):
    out = copied("figure-ood", "table3")
    monkeypatch.setattr(grid, "execute_run", None)
    monkeypatch.setattr("beliefmatch.reproduce.transfer.AdaptJob", None)
    for name in ("figure-ood", "table3"):
        before = record_of(out, name)
        assert main(command(name, out)) == 0
        after = record_of(out, name)
        assert (after.rows, after.drawings) == (before.rows, before.drawings)
        assert capsys.readouterr().out.split()[-1] == f"{out / 'tiny' / name / 'summary.md'}"
    assert main(command("figure-ood", out, "--verbose")) == 0
    shown = capsys.readouterr().out
    assert (
        "Differs from the paper:" in shown
        and f"{out / 'tiny' / 'figure-ood' / 'reproduction.json'}\n" in shown
    )


def test_a_stopped_reproduction_goes_on(tmp_path):
    """Killed after its first run, it ends with what it would have ended with."""
    line = command("figure-rotation", tmp_path)
    process = subprocess.Popen([sys.executable, "-c", MAIN, *line], stdout=subprocess.DEVNULL)
    limit = time.monotonic() + 120
    while not list(tmp_path.glob("runs/*/record.json")) and time.monotonic() < limit:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/record.json")}
    assert 0 < len(done) < 5
    assert main(line) == 0
    assert {path: path.stat().st_mtime_ns for path in done} == done
    assert len(list(tmp_path.glob("runs/*/record.json"))) == 5
    assert len(record_of(tmp_path, "figure-rotation").rows) == 15


def test_missing_data_leave_out_what_needs_them(tmp_path, few_reproductions, capsys):
    """At CPU scale the embedded digits can run without files."""
    few_reproductions("table1", "table2", "table3", "figure-rotation")
    few = ("training.epochs=1", "data.limit=64")
    options = ("--data-dir", f"{tmp_path}", "--seeds", "1")
    assert main(command("all", tmp_path / "out", *options, settings=few, scale="cpu")) == 0
    out, err = capsys.readouterr()
    left_out = [line.split(": ")[1] for line in err.splitlines() if line.startswith("left out: ")]
    assert left_out == ["table1", "table2", "table3"] and "imagenet-1k" in err
    text = (tmp_path / "out" / "cpu" / "summary.md").read_text("utf-8")
    assert "## figure-rotation: " in text and "CPU scale: 64 images, 1 epoch;" in text
    assert "- table1: beliefmatch reproduce: " in text
    assert out.split()[-1] == f"{tmp_path / 'out' / 'cpu' / 'summary.md'}"


@pytest.mark.parametrize(
    ("name", "file", "content", "words"),
    [
        ("figure-ood", "record.json", b"{", "record.json is damaged"),
        ("figure-ood", "record.json", b"\xff\xfe", "record.json is damaged"),
        ("figure-ood", "config.yaml", b"method: [", "config.yaml is damaged"),
        ("figure-ood", "predictions/test.npz", b"PK", "a finished run cannot be read"),
        ("figure-transfer", "adaptation.json", b"{", "is damaged"),
    ],
)
def test_a_damaged_run_is_reported_in_one_line(copied, capsys, name, file, content, words):
    out = copied(name)
    line, before = command(name, out), record_of(out, name)
    run_dir = out / "runs" / before.runs[0].fingerprint
    (run_dir / file).write_bytes(content)
    assert main(line) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert words in error and f"{run_dir}" in error and "Remove" in error
    if file == "record.json":
        assert main([*line, "--dry-run"]) == 2  # and is not counted as finished
        assert words in capsys.readouterr().err
    shutil.rmtree(run_dir)
    assert main(line) == 0
    assert [row.values for row in record_of(out, name).rows] == [row.values for row in before.rows]


def test_the_record_of_another_run_is_refused(copied, capsys):
    out = copied("figure-rotation")
    one, other = (run.fingerprint for run in record_of(out, "figure-rotation").runs[:2])
    shutil.copy(out / "runs" / other / "record.json", out / "runs" / one / "record.json")
    assert main(command("figure-rotation", out)) == 2
    assert "config.yaml" in capsys.readouterr().err


# Images that changed


def test_runs_of_other_images_are_refused_and_images_that_were_there_are_recorded(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setitem(EXPONENTS, "cpu", (-8, 0))
    parts = {"cifar10_train": 60, "cifar10_test": 60, "svhn_test": 60}
    one, other = (write_images(tmp_path / name, (8, 8, 3), **parts) for name in ("one", "other"))
    few = ("data.validation=20", "model.options.width=2", "data.augment=none", "training.epochs=1")
    line = command("figure-beta", tmp_path / "out", "--seeds", "1", settings=few, scale="cpu")
    assert main([*line, "--data-dir", f"{one}"]) == 0
    record = record_of(tmp_path / "out", "figure-beta", "cpu")
    assert record.scale_words == "CPU scale: 40 images, 1 epoch, width 2"
    assert {
        "OOD images: 60 of svhn instead of 26,032.",
        "Training images: 40 of cifar10 instead of 1,000.",
        "Test images: 60 of cifar10 instead of 10,000.",
    } <= set(record.differences)
    assert not any("compiled" in sentence for sentence in record.differences)
    runs = {run.fingerprint for run in record.runs}

    first = tmp_path / "out" / "runs" / record.runs[0].fingerprint / "record.json"
    content = json.loads(first.read_text("utf-8"))  # as if an earlier call had compiled one network
    content["config"]["engine"]["compile"] = content["engine"]["compiled"] = True
    first.write_text(json.dumps(content))
    assert main([*line, "--data-dir", f"{one}"]) == 0
    after = record_of(tmp_path / "out", "figure-beta", "cpu")
    assert any(f"1 of {len(runs)} runs were compiled" in sentence for sentence in after.differences)
    arms = [key for key, config in after.configs.items() if config["engine"]["compile"]]
    assert arms == [record.runs[0].arm]

    assert main([*line, "--data-dir", f"{other}"]) == 2
    assert OTHER_IMAGES in capsys.readouterr().err
    for name in runs:  # a divergence is of its images too
        run_dir = RunDirectory(tmp_path / "out" / "runs" / name)
        digest = run_dir.finished().data_digest
        run_dir.record_file.unlink()
        (run_dir.path / "diverged.json").write_text(Diverged(name, "it did", digest).to_json())
    assert main([*line, "--data-dir", f"{other}"]) == 2
    assert OTHER_IMAGES in capsys.readouterr().err
    shutil.move(one, tmp_path / "moved")
    assert main([*line, "--data-dir", f"{tmp_path / 'moved'}"]) == 0

    options = ("--seeds", "1", "--data-dir", f"{other}")  # images that are configured are no difference
    line = command("figure-beta", tmp_path / "new", *options, settings=("data.limit=20", *few), scale="cpu")
    assert main(line) == 0
    limited = record_of(tmp_path / "new", "figure-beta", "cpu")
    assert limited.scale_words == "CPU scale: 20 images, 1 epoch, width 2"
    assert "Training images: 20 of cifar10" not in "".join(limited.differences)


def test_a_transfer_to_other_images_is_refused(tmp_path, capsys):
    parts = {"cifar10_train": 600, "cifar10_test": 600}
    one, other = (write_images(tmp_path / name, (8, 8), **parts) for name in ("one", "other"))
    sets = ("model=beliefmatch.models.digits:DigitsNet", "data.size=8", "ood=[noise]", "epochs=2")
    sets += ("data.mean=[0]", "data.std=[1]")
    settings = [f"transfer.{setting}" for setting in sets]
    line = command("figure-transfer", tmp_path / "out", "--seeds", "1", settings=settings, scale="cpu")
    assert main([*line, "--data-dir", f"{one}"]) == 0
    capsys.readouterr()
    assert main([*line, "--data-dir", f"{other}"]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert OTHER_IMAGES in error
    shutil.move(one, tmp_path / "moved")
    assert main([*line, "--data-dir", f"{tmp_path / 'moved'}"]) == 0


def test_runs_with_other_ood_images_are_refused(tmp_path, capsys):
    for directory in ("one", "other"):
        write_images(tmp_path / directory, (8, 8), mine=9)
    few = ("training.epochs=1", "data.limit=20")
    for directory, code in (("one", 0), ("one", 0), ("other", 2)):
        ood = f"ood=['mine={tmp_path / directory / 'mine.npz'}']"
        assert main(command("table2", tmp_path / "out", settings=(*few, ood))) == code
    assert OTHER_IMAGES in capsys.readouterr().err
    written = (tmp_path / "out" / "tiny" / "table2" / "reproduction.json").read_text("utf-8")
    assert "OOD sets: mine instead of none." in written and f"{tmp_path}" not in written


# Failures at the end


@pytest.mark.parametrize(("kind", "code"), [(MissingDataError, 0), (ValueError, 2)])
def test_the_page_of_all_keeps_earlier_results(copied, few_reproductions, monkeypatch, capsys, kind, code):
    """Data that are gone do not take away the results that were read from them; another fault is an error."""

    def gone(runner):
        raise fail("reproduce", "`data_dir` must hold it.", kind)

    names = ("figure-rotation", "table3", "figure-transfer")
    out = copied(*names)
    few_reproductions(*names)
    monkeypatch.setattr("beliefmatch.reproduce.transfer.TransferRunner.check", gone)
    (out / "tiny" / "table3" / "reproduction.json").unlink()
    assert main(command("all", out)) == code
    text = (out / "tiny" / "summary.md").read_text("utf-8")
    assert "## figure-transfer: " in text and "## table3: " not in text
    reasons = {line.split(":")[0]: line for line in text.partition("## Not run")[2].splitlines() if line}
    assert set(reasons) == {"- table3", "- figure-transfer"}
    assert "of an earlier call" in reasons["- figure-transfer"]
    assert "of an earlier call" not in reasons["- table3"]
    assert ("table3, figure-transfer could not be run" in capsys.readouterr().err) == (code == 2)


def test_a_full_disk_at_the_end_loses_nothing(copied, monkeypatch, capsys):
    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    out = copied("figure-rotation")
    shutil.rmtree(out / "tiny")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert main(command("figure-rotation", out)) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert f"cannot write to {out / 'tiny' / 'figure-rotation'} (No space left on device)" in error
    assert not list((out / "tiny").rglob("*.json"))
    assert main(command("figure-rotation", out)) == 0


# Trainings that diverge: a result where the paper has one, an error elsewhere


def diverging_cell(path):
    mapping = overridden(recipe("digits"), ["training.epochs=1", "data.limit=50", "ood=[noise]"])
    config = config_from(with_method(mapping, "belief_matching", kl_weight=0.01))
    return Cell(config, path / "run", may_diverge=True)


def explode(*arguments, **options):
    raise FloatingPointError("fit: 20 steps in a row were not finite.")


def test_a_divergence_is_a_result_where_it_may_be(tmp_path, monkeypatch):
    monkeypatch.setattr(grid, "execute_run", explode)
    cell, news = diverging_cell(tmp_path), []
    digest = dataset(cell.config.data).facts["digest"]
    expected = Diverged(fingerprint(cell.config), "fit: 20 steps in a row were not finite.", digest)
    assert attempt_cells([cell]) == [expected]
    monkeypatch.setattr(grid, "execute_run", None)  # it is not tried again
    assert attempt_cells([cell], on_cell=lambda *arguments: news.append(arguments)) == [expected]
    assert news == [(0, 1.0, "finished before")]
    monkeypatch.setattr(grid, "execute_run", explode)
    with pytest.raises(FloatingPointError, match="20 steps in a row"):
        run_cells([cell])
    assert Diverged.from_json(expected.to_json()) == expected


def test_predictions_that_are_not_finite_are_a_divergence(tmp_path, monkeypatch):
    """Weights may be finite and the predictions not."""

    def forward(network, images):
        logits = network.layers(images)
        return logits if network.training else logits * torch.inf

    monkeypatch.setattr("beliefmatch.models.digits.DigitsNet.forward", forward)
    (ended,) = attempt_cells([diverging_cell(tmp_path)])
    assert isinstance(ended, Diverged)
    assert ended.message.startswith("The predictions of the network are not finite.")


def test_a_divergence_is_shown_in_table_and_figure(tmp_path, monkeypatch, capsys):
    """Of the sweep of priors the largest, alone, diverges."""
    execute = grid.execute_run

    def explode_at_large_priors(config, directory, **options):
        if config.method.options.get("prior", 1.0) > 1e6 and config.method.options["kl_weight"] == 0.01:
            explode()
        return execute(config, directory, **options)

    monkeypatch.setattr(grid, "execute_run", explode_at_large_priors)
    assert main(command("figure-beta", tmp_path, settings=("training.epochs=1", "data.limit=32"))) == 0
    record = record_of(tmp_path, "figure-beta")
    row = next(row for row in record.rows if row.label.startswith("β = e^16, λ = 0.01"))
    assert (row.values, row.train_seconds, row.note) == ([None], None, "1 of 1 diverged")
    (panel,) = record.drawings[0].panels
    alone, joint = panel.series[2:]
    assert (alone.label, alone.style) == ("seeds that diverged, β alone", "crosses")
    assert (alone.x, alone.y, joint.x) == ([16.0], [1.0], [])
    assert 16.0 not in panel.series[0].x
    shown = capsys.readouterr().out
    assert "diverged" in next(one for one in shown.splitlines() if "e^16, λ = 0.01" in one)
    assert "Training diverged in 1 of 6 runs." in shown
    (run,) = [run for run in record.runs if run.diverged]
    kept = json.loads((tmp_path / "runs" / run.fingerprint / "diverged.json").read_text())
    assert kept["message"] == run.diverged
