"""Reproductions stopped, damaged, short of data or of disk: nothing lost, nothing taken for another."""

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

from beliefmatch.cli import main
from beliefmatch.experiments import grid
from beliefmatch.experiments.records import Diverged
from beliefmatch.experiments.run_dir import RunDirectory
from beliefmatch.reproduce import REPRODUCTIONS
from beliefmatch.reproduce.places import MissingDataError
from beliefmatch.reproduce.record import ReproductionRecord
from commands import MAIN
from reproduced import record_of


@pytest.fixture
def own_copy(everything, tmp_path):
    """What was reproduced, to be written to and damaged."""
    return shutil.copytree(everything, tmp_path / "own")


def test_a_transfer_that_is_kept_is_not_made_again(own_copy, monkeypatch):
    monkeypatch.setattr("beliefmatch.reproduce.transferring.Adapting", None)
    before = record_of(own_copy, "table3")
    assert main(["reproduce", "table3", "--scale", "tiny", "--out", f"{own_copy}"]) == 0
    assert record_of(own_copy, "table3").rows == before.rows


def test_the_same_command_trains_nothing_again(own_copy, monkeypatch, capsys):
    monkeypatch.setattr(grid, "execute", None)
    before = record_of(own_copy, "figure-ood")
    assert main(["reproduce", "figure-ood", "--scale", "tiny", "--jobs", "1", "--out", f"{own_copy}"]) == 0
    shown = capsys.readouterr().out
    assert shown.split()[-1] == f"{own_copy / 'tiny' / 'figure-ood' / 'figures' / 'entropy.png'}"
    after = record_of(own_copy, "figure-ood")
    assert after.rows == before.rows
    assert after.drawings == before.drawings


def test_a_stopped_reproduction_is_taken_up(tmp_path):
    """Killed after its first run, it ends with what it would have ended with."""
    line = ["reproduce", "figure-rotation", "--scale", "tiny", "--jobs", "1", "--out", f"{tmp_path}"]
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
    line = ["reproduce", "all", "--scale", "cpu", "--data-dir", f"{tmp_path}", "--jobs", "1", "--seeds", "1"]
    settings = [
        "--set",
        "training.epochs=1",
        "--set",
        "training.batch_size=16",
        "--out",
        f"{tmp_path / 'out'}",
    ]
    assert main([*line, *settings]) == 0
    out, err = capsys.readouterr()
    told = [one for one in err.splitlines() if one.startswith("left out: ")]
    assert len(told) == len(REPRODUCTIONS) - 1
    assert any(one.startswith("left out: table2: ") and "imagenet-1k" in one for one in told)
    text = (tmp_path / "out" / "cpu" / "summary.md").read_text("utf-8")
    assert "## figure-rotation: " in text
    assert "- table1: beliefmatch reproduce: " in text
    assert "CPU scale: 898 images, 1 epoch;" in out


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("record.json", b"{", "record.json is damaged"),
        ("record.json", b"\xff\xfe", "record.json is damaged"),
        ("config.yaml", b"method: [", "config.yaml is damaged"),
        ("predictions/test.npz", b"PK", "a finished run cannot be read"),
    ],
)
def test_a_damaged_run_is_told_in_one_line(everything, tmp_path, capsys, file, content, words):
    shutil.copytree(everything / "runs", tmp_path / "runs")
    name = record_of(everything, "figure-reliability").runs[0].fingerprint
    (tmp_path / "runs" / name / file).write_bytes(content)
    capsys.readouterr()
    line = ["reproduce", "figure-reliability", "--scale", "tiny", "--jobs", "1", "--out", f"{tmp_path}"]
    assert main(line) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert words in told and "Remove" in told
    if file == "record.json":
        assert main([*line, "--dry-run"]) == 2  # and is not counted as finished
        assert words in capsys.readouterr().err
    shutil.rmtree(tmp_path / "runs" / name)
    assert main(line) == 0
    same = record_of(tmp_path, "figure-reliability")
    assert [row.values for row in same.rows] == [
        row.values for row in record_of(everything, "figure-reliability").rows
    ]


def test_the_record_of_another_run_is_refused(everything, tmp_path, capsys):
    shutil.copytree(everything / "runs", tmp_path / "runs")
    one, other = (run.fingerprint for run in record_of(everything, "figure-rotation").runs[:2])
    shutil.copy(tmp_path / "runs" / other / "record.json", tmp_path / "runs" / one / "record.json")
    capsys.readouterr()
    assert main(["reproduce", "figure-rotation", "--scale", "tiny", "--out", f"{tmp_path}"]) == 2
    assert "must be of the run whose config.yaml lies beside it" in capsys.readouterr().err


def test_runs_of_other_images_are_not_taken_for_these(tmp_path, capsys):
    chance = np.random.default_rng(0)
    for place in ("one", "other"):
        (tmp_path / place).mkdir()
        for name in ("cifar10_train", "cifar10_test", "svhn_test"):
            images = chance.integers(0, 256, (60, 8, 8, 3), np.uint8)
            np.savez(tmp_path / place / f"{name}.npz", images=images, labels=np.arange(len(images)) % 10)
    few = ["data.limit=20", "data.validation=20", "model.options.width=2", "data.augment=none"]
    sets = [word for one in (*few, "training.epochs=1", "training.batch_size=8") for word in ("--set", one)]
    line = ["reproduce", "figure-beta", "--scale", "cpu", "--seeds", "1", "--jobs", "1", *sets]
    line += ["--out", f"{tmp_path / 'out'}", "--data-dir"]
    assert main([*line, f"{tmp_path / 'one'}"]) == 0
    record = ReproductionRecord.from_json(
        (tmp_path / "out" / "cpu" / "figure-beta" / "reproduction.json").read_text("utf-8")
    )
    assert "OOD images: 60 of svhn instead of 26,032." in record.differences
    assert "Training images: 20 of cifar10" not in "".join(record.differences)  # as it was asked for
    assert "Test images: 60 of cifar10, where 10,000 were meant." in record.differences
    assert record.scale_words == "CPU scale: 20 images, 1 epoch, width 2"
    capsys.readouterr()
    assert main([*line, f"{tmp_path / 'other'}"]) == 2
    assert "`--out` must be new for other images" in capsys.readouterr().err
    for name in {run.fingerprint for run in record.runs}:  # a divergence is of its images too
        place = tmp_path / "out" / "runs" / name
        digest = RunDirectory(place).finished().data_digest
        (place / "record.json").unlink()
        (place / "diverged.json").write_text(Diverged(name, "it did", digest).to_json())
    assert main([*line, f"{tmp_path / 'other'}"]) == 2
    assert "`--out` must be new for other images" in capsys.readouterr().err
    shutil.move(tmp_path / "one", tmp_path / "moved")
    assert main([*line, f"{tmp_path / 'moved'}"]) == 0


def test_a_transfer_to_other_images_is_not_taken_for_this_one(tmp_path, capsys):
    chance = np.random.default_rng(0)
    for place in ("one", "other"):
        (tmp_path / place).mkdir()
        for name in ("cifar10_train", "cifar10_test"):
            images = chance.integers(0, 256, (600, 8, 8), np.uint8)
            np.savez(tmp_path / place / f"{name}.npz", images=images, labels=np.arange(len(images)) % 10)
    sets = ["model=beliefmatch.models.digits:DigitsNet", "data.size=8", "ood=[noise]", "epochs=2"]
    line = ["reproduce", "figure-transfer", "--scale", "cpu", "--seeds", "1"]
    line += [word for one in sets for word in ("--set", f"transfer.{one}")]
    line += ["--out", f"{tmp_path / 'out'}", "--data-dir"]
    assert main([*line, f"{tmp_path / 'one'}"]) == 0
    capsys.readouterr()
    assert main([*line, f"{tmp_path / 'other'}"]) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert "`--out` must be new for other images" in told
    shutil.move(tmp_path / "one", tmp_path / "moved")
    assert main([*line, f"{tmp_path / 'moved'}"]) == 0


@pytest.mark.parametrize(("kind", "code"), [(MissingDataError, 0), (ValueError, 2)])
def test_a_page_of_all_keeps_what_was_run_before(everything, tmp_path, monkeypatch, capsys, kind, code):
    """Data that are gone do not take away the results that were read of them; another fault is told too."""
    shutil.copytree(everything, tmp_path / "out")

    def gone(work):
        raise kind("reproduce: `data_dir` must hold it.")

    monkeypatch.setattr("beliefmatch.reproduce.transferring.Transferring.check", gone)
    (tmp_path / "out" / "tiny" / "table3" / "reproduction.json").unlink()
    line = ["reproduce", "all", "--scale", "tiny", "--jobs", "1", "--out", f"{tmp_path / 'out'}"]
    assert main(line) == code
    text = (tmp_path / "out" / "tiny" / "summary.md").read_text("utf-8")
    assert "## figure-transfer: " in text and "## table3: " not in text
    told = {line.split(":")[0]: line for line in text.partition("## Not run")[2].splitlines() if line}
    assert set(told) == {"- table3", "- figure-transfer"}
    assert "of an earlier call" in told["- figure-transfer"]
    assert "of an earlier call" not in told["- table3"]
    failed = "beliefmatch reproduce: table3, figure-transfer could not be run; see above why."
    assert (failed in capsys.readouterr().err) == (code == 2)


def test_a_full_disk_at_the_end_loses_nothing(everything, tmp_path, monkeypatch, capsys):
    shutil.copytree(everything / "runs", tmp_path / "runs")

    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    line = ["reproduce", "figure-rotation", "--scale", "tiny", "--out", f"{tmp_path}"]
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert main(line) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert f"cannot write to {tmp_path / 'tiny' / 'figure-rotation'} (No space left on device)" in told
    assert not list((tmp_path / "tiny").rglob("*.json"))
    assert main(line) == 0


def test_runs_beside_other_ood_images_are_not_taken_for_these(tmp_path, capsys):
    chance = np.random.default_rng(0)
    for place in ("one", "other"):
        (tmp_path / place).mkdir()
        images = chance.integers(0, 256, (9, 8, 8), np.uint8)
        np.savez(tmp_path / place / "mine.npz", images=images)
    few = ["training.epochs=1", "data.limit=20"]
    line = ["reproduce", "table2", "--scale", "tiny", "--jobs", "1", "--out", f"{tmp_path / 'out'}"]
    line += [word for one in few for word in ("--set", one)]
    for place, code in (("one", 0), ("one", 0), ("other", 2)):
        ood = f"ood=['mine={tmp_path / place / 'mine.npz'}']"
        assert main([*line, "--set", ood]) == code
    assert "was made of other ones than mine" in capsys.readouterr().err
    written = (tmp_path / "out" / "tiny" / "table2" / "reproduction.json").read_text("utf-8")
    assert "OOD sets: mine instead of none." in written and f"{tmp_path}" not in written


def test_the_record_tells_what_was_there_and_how_it_was_run(tmp_path):
    """Fewer images than were asked for stand in the caption, compiled networks below it."""
    chance = np.random.default_rng(0)
    for name, count in (("cifar10_train", 60), ("cifar10_test", 60), ("svhn_test", 20)):
        images = chance.integers(0, 256, (count, 8, 8, 3), np.uint8)
        np.savez(tmp_path / f"{name}.npz", images=images, labels=np.arange(count) % 10)
    few = ["data.validation=20", "model.options.width=2", "training.epochs=1", "data.augment=none"]
    line = ["reproduce", "figure-beta", "--scale", "cpu", "--seeds", "1", "--jobs", "1"]
    line += [word for one in few for word in ("--set", one)]
    line += ["--out", f"{tmp_path / 'out'}", "--data-dir", f"{tmp_path}"]
    assert main(line) == 0

    def record():
        place = tmp_path / "out" / "cpu" / "figure-beta" / "reproduction.json"
        return ReproductionRecord.from_json(place.read_text("utf-8"))

    before = record()
    assert before.scale_words == "CPU scale: 40 images, 1 epoch, width 2"
    assert "Training images: 40 of cifar10, where 1,000 were meant." in before.differences
    assert not any("compiled" in sentence for sentence in before.differences)
    for run in {run.fingerprint for run in before.runs if run.arm == before.runs[0].arm}:
        file = tmp_path / "out" / "runs" / run / "record.json"
        content = json.loads(file.read_text("utf-8"))
        content["config"]["engine"]["compile"] = content["engine"]["compiled"] = True
        file.write_text(json.dumps(content))
    assert main(line) == 0
    after, runs = record(), len({run.fingerprint for run in before.runs})
    told = f"Networks of 1 of {runs} runs were compiled (`engine.compile`), which changes last digits."
    assert told in after.differences
    assert [config["engine"]["compile"] for config in after.configs.values()].count(True) == 1
    assert after.configs[before.runs[0].arm]["engine"]["compile"] is True
