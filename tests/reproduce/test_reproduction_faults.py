"""Reproductions stopped, diverged, damaged, short of data or of disk: nothing lost, nothing mistaken."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from beliefmatch.cli import main
from beliefmatch.experiments import grid
from beliefmatch.experiments.build import dataset
from beliefmatch.experiments.config import config_from, fingerprint, overridden, recipe, with_method
from beliefmatch.experiments.grid import Cell, attempt_cells, run_cells
from beliefmatch.experiments.records import Diverged
from beliefmatch.experiments.run_dir import RunDirectory
from beliefmatch.reproduce import REPRODUCTIONS
from beliefmatch.reproduce.dataset_paths import MissingDataError
from beliefmatch.reproduce.record import ReproductionRecord
from commands import MAIN
from reproduced import record_of


@pytest.fixture
def own_copy(everything, tmp_path):
    """All reproductions, to be written to and damaged."""
    return shutil.copytree(everything, tmp_path / "own")


def command(name, out, *options, settings=(), scale="tiny"):
    sets = [word for setting in settings for word in ("--set", setting)]
    return ["reproduce", name, "--scale", scale, "--jobs", "1", "--out", f"{out}", *options, *sets]


def write_images(directory, shape, **counts):
    """Random images by the name of their file; other ones at each call."""
    directory.mkdir(exist_ok=True)
    for name, count in counts.items():
        images = np.random.default_rng().integers(0, 256, (count, *shape), np.uint8)
        np.savez(directory / f"{name}.npz", images=images, labels=np.arange(count) % 10)


def read(out, name="figure-beta"):
    text = (out / "cpu" / name / "reproduction.json").read_text("utf-8")
    return ReproductionRecord.from_json(text)


def test_finished_runs_and_transfers_are_not_run_again(own_copy, monkeypatch, capsys):
    monkeypatch.setattr(grid, "execute_run", None)
    monkeypatch.setattr("beliefmatch.reproduce.transfer.Adapting", None)
    for name in ("figure-ood", "table3"):
        before = record_of(own_copy, name)
        assert main(command(name, own_copy)) == 0
        after = record_of(own_copy, name)
        assert (after.rows, after.drawings) == (before.rows, before.drawings)
        if name == "figure-ood":
            last = own_copy / "tiny" / "figure-ood" / "summary.md"
            assert capsys.readouterr().out.split()[-1] == f"{last}"


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


def test_missing_data_leave_out_what_needs_them(tmp_path, capsys):
    """Of all at CPU scale only the embedded digits can run."""
    few = ("training.epochs=1", "training.batch_size=16")
    options = ("--data-dir", f"{tmp_path}", "--seeds", "1")
    assert main(command("all", tmp_path / "out", *options, settings=few, scale="cpu")) == 0
    out, err = capsys.readouterr()
    left_out = [line for line in err.splitlines() if line.startswith("left out: ")]
    assert len(left_out) == len(REPRODUCTIONS) - 1
    assert any(line.startswith("left out: table2: ") and "imagenet-1k" in line for line in left_out)
    text = (tmp_path / "out" / "cpu" / "summary.md").read_text("utf-8")
    assert "## figure-rotation: " in text
    assert "- table1: beliefmatch reproduce: " in text
    assert "CPU scale: 898 images, 1 epoch;" in text and "figure-rotation" in out


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("record.json", b"{", "record.json is damaged"),
        ("record.json", b"\xff\xfe", "record.json is damaged"),
        ("config.yaml", b"method: [", "config.yaml is damaged"),
        ("predictions/test.npz", b"PK", "a finished run cannot be read"),
    ],
)
def test_a_damaged_run_is_reported_in_one_line(everything, tmp_path, capsys, file, content, words):
    shutil.copytree(everything / "runs", tmp_path / "runs")
    before = record_of(everything, "figure-reliability")
    run_dir = tmp_path / "runs" / before.runs[0].fingerprint
    (run_dir / file).write_bytes(content)
    capsys.readouterr()
    line = command("figure-reliability", tmp_path)
    assert main(line) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert words in error and "Remove" in error
    if file == "record.json":
        assert main([*line, "--dry-run"]) == 2  # and is not counted as finished
        assert words in capsys.readouterr().err
    shutil.rmtree(run_dir)
    assert main(line) == 0
    after = record_of(tmp_path, "figure-reliability")
    assert [row.values for row in after.rows] == [row.values for row in before.rows]


def test_the_record_of_another_run_is_refused(everything, tmp_path, capsys):
    shutil.copytree(everything / "runs", tmp_path / "runs")
    one, other = (run.fingerprint for run in record_of(everything, "figure-rotation").runs[:2])
    shutil.copy(tmp_path / "runs" / other / "record.json", tmp_path / "runs" / one / "record.json")
    assert main(command("figure-rotation", tmp_path)) == 2
    assert "config.yaml" in capsys.readouterr().err


def test_runs_of_other_images_are_refused_and_images_that_were_there_are_recorded(tmp_path, capsys):
    for directory in ("one", "other"):
        write_images(tmp_path / directory, (8, 8, 3), cifar10_train=60, cifar10_test=60, svhn_test=60)
    few = ("data.validation=20", "model.options.width=2", "data.augment=none", "training.epochs=1")
    line = command("figure-beta", tmp_path / "out", "--seeds", "1", settings=few, scale="cpu")
    line.append("--data-dir")
    assert main([*line, f"{tmp_path / 'one'}"]) == 0
    record = read(tmp_path / "out")
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
    assert main([*line, f"{tmp_path / 'one'}"]) == 0
    after = read(tmp_path / "out")
    compiled = (
        f"Networks of 1 of {len(runs)} runs were compiled (`engine.compile`), which changes last digits."
    )
    assert compiled in after.differences
    arms = [key for key, config in after.configs.items() if config["engine"]["compile"]]
    assert arms == [record.runs[0].arm]

    capsys.readouterr()
    assert main([*line, f"{tmp_path / 'other'}"]) == 2
    assert "`--out` must be new for other images" in capsys.readouterr().err
    for name in runs:  # a divergence is of its images too
        run_dir = RunDirectory(tmp_path / "out" / "runs" / name)
        digest = run_dir.finished().data_digest
        run_dir.record_file.unlink()
        (run_dir.path / "diverged.json").write_text(Diverged(name, "it did", digest).to_json())
    assert main([*line, f"{tmp_path / 'other'}"]) == 2
    assert "`--out` must be new for other images" in capsys.readouterr().err
    shutil.move(tmp_path / "one", tmp_path / "moved")
    assert main([*line, f"{tmp_path / 'moved'}"]) == 0


def test_images_that_were_asked_for_are_no_difference(tmp_path):
    write_images(tmp_path / "data", (8, 8, 3), cifar10_train=60, cifar10_test=60, svhn_test=60)
    few = ("data.limit=20", "data.validation=20", "model.options.width=2", "data.augment=none")
    settings = (*few, "training.epochs=1", "training.batch_size=8")
    options = ("--seeds", "1", "--data-dir", f"{tmp_path / 'data'}")
    assert main(command("figure-beta", tmp_path / "out", *options, settings=settings, scale="cpu")) == 0
    assert read(tmp_path / "out").scale_words == "CPU scale: 20 images, 1 epoch, width 2"
    assert "Training images: 20 of cifar10" not in "".join(read(tmp_path / "out").differences)


def test_a_transfer_to_other_images_is_refused(tmp_path, capsys):
    for directory in ("one", "other"):
        write_images(tmp_path / directory, (8, 8), cifar10_train=600, cifar10_test=600)
    sets = ("model=beliefmatch.models.digits:DigitsNet", "data.size=8", "ood=[noise]", "epochs=2")
    settings = [f"transfer.{one}" for one in sets]
    line = command("figure-transfer", tmp_path / "out", "--seeds", "1", settings=settings, scale="cpu")
    assert main([*line, "--data-dir", f"{tmp_path / 'one'}"]) == 0
    capsys.readouterr()
    assert main([*line, "--data-dir", f"{tmp_path / 'other'}"]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert "`--out` must be new for other images" in error
    shutil.move(tmp_path / "one", tmp_path / "moved")
    assert main([*line, "--data-dir", f"{tmp_path / 'moved'}"]) == 0


def test_runs_with_other_ood_images_are_refused(tmp_path, capsys):
    for directory in ("one", "other"):
        write_images(tmp_path / directory, (8, 8), mine=9)
    few = ("training.epochs=1", "data.limit=20")
    for directory, code in (("one", 0), ("one", 0), ("other", 2)):
        ood = f"ood=['mine={tmp_path / directory / 'mine.npz'}']"
        assert main(command("table2", tmp_path / "out", settings=(*few, ood))) == code
    assert "was made of other ones than mine" in capsys.readouterr().err
    written = (tmp_path / "out" / "tiny" / "table2" / "reproduction.json").read_text("utf-8")
    assert "OOD sets: mine instead of none." in written and f"{tmp_path}" not in written


@pytest.mark.parametrize(("kind", "code"), [(MissingDataError, 0), (ValueError, 2)])
def test_the_page_of_all_keeps_what_was_run_before(own_copy, monkeypatch, capsys, kind, code):
    """Data that are gone do not take away the results that were read from them; another fault is an error."""

    def gone(runs):
        raise kind("reproduce: `data_dir` must hold it.")

    monkeypatch.setattr("beliefmatch.reproduce.transfer.TransferRunner.check", gone)
    (own_copy / "tiny" / "table3" / "reproduction.json").unlink()
    assert main(command("all", own_copy)) == code
    text = (own_copy / "tiny" / "summary.md").read_text("utf-8")
    assert "## figure-transfer: " in text and "## table3: " not in text
    reasons = {line.split(":")[0]: line for line in text.partition("## Not run")[2].splitlines() if line}
    assert set(reasons) == {"- table3", "- figure-transfer"}
    assert "of an earlier call" in reasons["- figure-transfer"]
    assert "of an earlier call" not in reasons["- table3"]
    failed = "beliefmatch reproduce: table3, figure-transfer could not be run; see above why."
    assert (failed in capsys.readouterr().err) == (code == 2)


def test_a_full_disk_at_the_end_loses_nothing(everything, tmp_path, monkeypatch, capsys):
    shutil.copytree(everything / "runs", tmp_path / "runs")

    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert main(command("figure-rotation", tmp_path)) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert f"cannot write to {tmp_path / 'tiny' / 'figure-rotation'} (No space left on device)" in error
    assert not list((tmp_path / "tiny").rglob("*.json"))
    assert main(command("figure-rotation", tmp_path)) == 0


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
    assert ended.message.startswith("run: the predictions of the network are not finite.")


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
    assert "diverged" in next(one for one in capsys.readouterr().out.splitlines() if "e^16, λ = 0.01" in one)
    (run,) = [run for run in record.runs if run.diverged]
    kept = json.loads((tmp_path / "runs" / run.fingerprint / "diverged.json").read_text())
    assert kept["message"] == run.diverged
