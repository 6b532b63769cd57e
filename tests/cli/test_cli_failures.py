"""Interrupts, full disks, closed streams, bugs: exit codes, messages, and files that stay complete."""

import errno
import os
import signal
import time
from pathlib import Path

import pytest

from beliefmatch._files import atomic_write, file_names, ready_directory
from beliefmatch.cli import main
from beliefmatch.cli.console import progress
from commands import MAIN, PRODUCTS, QUICK, fails_in_training, python, refused

NO_SPACE = os.strerror(errno.ENOSPC)

needs_dev_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (FloatingPointError("the loss of epoch 3 is nan."), "the loss of epoch 3 is nan."),
        (FileNotFoundError(errno.ENOENT, "gone", "weights"), "gone: weights"),
        (ValueError("a bug"), None),
    ],
)
def test_a_failure_of_the_training_is_one_line_and_a_bug_has_a_traceback(
    error, line, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("beliefmatch.experiments.run.fit", fails_in_training(error))
    command = [*QUICK, "--out", f"{tmp_path}"]
    if line is None:
        with pytest.raises(ValueError, match="a bug"):
            main(command)
    else:
        assert refused(command, capsys) == f"beliefmatch compare: {line}\n"


def test_an_interrupt_ends_with_130_and_writes_no_report(tmp_path, capsys, monkeypatch):
    def interrupted(*arguments, **options):
        signal.raise_signal(signal.SIGINT)
        time.sleep(10)  # older Pythons handle a signal a little later

    monkeypatch.setattr("beliefmatch.experiments.run.fit", interrupted)
    assert main([*QUICK, "--out", f"{tmp_path}"]) == 130
    state, ended = capsys.readouterr().err.splitlines()
    assert "nothing was trained" in state and ended == "beliefmatch: interrupted"
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_an_interrupt_while_the_command_loads_is_one_line(tmp_path):
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt")
    done = python(MAIN, PYTHONPATH=f"{tmp_path}")
    assert done.returncode == 130
    assert done.stderr == "beliefmatch: interrupted\n"


def test_the_command_handles_interrupts_before_it_loads_anything():
    done = python(
        "import sys, re, beliefmatch; before = set(sys.modules)\n"
        "import beliefmatch.cli; print(sorted(set(sys.modules) - before))"
    )
    assert done.stdout.strip() in ("['__future__', 'beliefmatch.cli']", "['beliefmatch.cli']")


def test_a_disk_that_fills_up_leaves_no_half_report_and_shows_the_numbers(tmp_path, capsys, monkeypatch):
    def full(directory, files, keep):
        raise OSError(errno.ENOSPC, NO_SPACE)

    monkeypatch.setattr("beliefmatch.cli.train.atomic_write_dir", full)
    monkeypatch.setattr("beliefmatch.report.comparison.comparison_files", lambda *records: [])
    assert main([*QUICK, "--out", f"{tmp_path}"]) == 2
    shown, err = capsys.readouterr()
    assert err.startswith(f"beliefmatch compare: cannot write to {tmp_path} ({NO_SPACE}); ")
    assert err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    assert "540 test images" in shown
    assert f"{tmp_path}" not in shown


def test_a_disk_that_fills_up_in_training_is_one_line(tmp_path, capsys, monkeypatch):
    def fsync(descriptor):
        raise OSError(errno.ENOSPC, NO_SPACE)

    monkeypatch.setattr("os.fsync", fsync)
    assert NO_SPACE in refused([*QUICK, "--out", f"{tmp_path}"], capsys)


def test_an_error_of_the_system_has_no_number(tmp_path, capsys):
    (tmp_path / "runs").write_text("a file")
    line = ["reproduce", "figure-rotation", "--scale", "tiny", "--jobs", "1", "--out", f"{tmp_path}"]
    err = refused(line, capsys)
    assert "Errno" not in err and f"{tmp_path / 'runs'}" in err


# Streams


@needs_dev_full
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", ["--help", "doctor --json"])
def test_output_that_cannot_be_written_is_one_line(arguments, unbuffered):
    done = python(MAIN, shell=f"{arguments} > /dev/full", PYTHONUNBUFFERED=unbuffered)
    assert done.returncode == 2
    assert done.stderr == f"beliefmatch: cannot write to standard output ({NO_SPACE}).\n"


def test_a_closed_stream_is_explained(tmp_path):
    done = python(MAIN, shell=f"{' '.join(QUICK)} --out {tmp_path} >&-")
    assert done.returncode == 2
    assert done.stderr == "beliefmatch: standard output is closed; send it to a file or to /dev/null.\n"
    mute = python(MAIN, shell="compare --epochs 0 2>&-")
    assert (mute.returncode, mute.stdout) == (2, "")


def test_a_closed_pipe_leaves_the_files_and_no_message(tmp_path):
    done = python(MAIN, shell=f"{' '.join(QUICK)} --out {tmp_path} | true")
    assert done.returncode == 141
    assert done.stderr == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == PRODUCTS


def test_progress_without_a_terminal_is_a_line_a_minute(capsys, monkeypatch):
    clock = iter([0.0, 30.0, 90.0, 100.0, 240.0])
    monkeypatch.setattr("beliefmatch.cli.console.time.monotonic", lambda: next(clock))
    with progress() as on_progress:
        for fraction in (0.1, 0.25, 0.3, 0.5):
            on_progress(fraction, f"softmax [seed {fraction}]")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "25 % after 2 min: softmax [seed 0.25]",
        "50 % after 4 min: softmax [seed 0.5]",
    ]


# Files


def test_a_file_is_replaced_completely_or_kept(tmp_path):
    path = tmp_path / "result"
    atomic_write(path, b"first")
    with pytest.raises(TypeError):
        atomic_write(path, "not bytes")
    assert path.read_bytes() == b"first"
    atomic_write(path, b"second")
    assert path.read_bytes() == b"second"
    assert list(tmp_path.iterdir()) == [path]


def test_content_is_on_the_disk_before_the_file_is_renamed(tmp_path, monkeypatch):
    path, seen = tmp_path / "result", []
    monkeypatch.setattr(
        "os.fsync", lambda descriptor: seen.append((os.fstat(descriptor).st_size, path.exists()))
    )
    atomic_write(path, b"12345")
    assert seen == [(5, False)]


def test_a_ready_directory_is_empty_and_a_full_disk_is_an_error(tmp_path, monkeypatch):
    class Full:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def write(self, content):
            raise OSError(errno.ENOSPC, NO_SPACE)

    made = ready_directory(f"{tmp_path / 'a' / 'b'}", caller="test")
    assert list(made.iterdir()) == []
    monkeypatch.setattr("tempfile.TemporaryFile", lambda **_: Full())
    with pytest.raises(ValueError, match=NO_SPACE):
        ready_directory(f"{tmp_path}", caller="test")


@pytest.mark.parametrize(
    ("names", "files"),
    [
        (["a", "A", "a_2"], ["a", "A_2", "a_2_2"]),
        (["s0/p", "../../etc/passwd", ".hidden"], ["s0_p", "etc_passwd", "hidden"]),
        (["<script>", "名前", "", "///"], ["script", "名前", "model", "model_2"]),
        (["x" * 300], ["x" * 80]),
    ],
)
def test_names_become_files_that_stay_in_their_directory(names, files):
    assert file_names(names) == files
