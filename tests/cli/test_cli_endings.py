"""When the world gives way: interrupts, full disks, closed streams."""

import errno
import os
import signal
import time
from pathlib import Path

import pytest

from beliefmatch._files import atomic_write, ready_directory
from beliefmatch.cli import main
from beliefmatch.cli.console import progress
from commands import MAIN, PRODUCTS, QUICK, fails_in_training, python, refused

NO_SPACE = os.strerror(errno.ENOSPC)

needs_dev_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")


def test_an_interrupt_ends_with_130_and_leaves_no_report(tmp_path, capsys, monkeypatch):
    def interrupted(*arguments, **options):
        signal.raise_signal(signal.SIGINT)
        time.sleep(10)  # older Pythons answer a signal only a little later: let it be here

    monkeypatch.setattr("beliefmatch.experiments.run.fit", interrupted)
    assert main([*QUICK, "--out", f"{tmp_path}"]) == 130
    saved, ended = capsys.readouterr().err.splitlines()
    assert "saved" in saved and ended == "beliefmatch: interrupted"
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_an_interrupt_while_the_command_loads_is_one_line(tmp_path):
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt")
    done = python(MAIN, PYTHONPATH=f"{tmp_path}")
    assert done.returncode == 130
    assert done.stderr == "beliefmatch: interrupted\n"


def test_the_command_answers_interrupts_before_it_loads_anything():
    done = python(
        "import sys, re, beliefmatch; before = set(sys.modules)\n"
        "import beliefmatch.cli; print(sorted(set(sys.modules) - before))"
    )
    assert done.stdout.strip() in ("['__future__', 'beliefmatch.cli']", "['beliefmatch.cli']")


def test_a_disk_that_fills_up_leaves_no_half_report_and_shows_the_numbers(tmp_path, capsys, monkeypatch):
    def full(directory, files, keep):
        raise OSError(errno.ENOSPC, NO_SPACE)

    monkeypatch.setattr("beliefmatch.cli.train.atomic_write_dir", full)
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


def test_a_full_disk_is_noticed_before_training(tmp_path):
    class Full:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def write(self, content):
            raise OSError(errno.ENOSPC, NO_SPACE)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tempfile.TemporaryFile", lambda **_: Full())
        with pytest.raises(ValueError, match=NO_SPACE):
            ready_directory(f"{tmp_path}", caller="test")


@needs_dev_full
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", ["--help", "--version", "doctor --json"])
def test_output_that_cannot_be_written_is_one_line(arguments, unbuffered):
    done = python(MAIN, shell=f"{arguments} > /dev/full", PYTHONUNBUFFERED=unbuffered)
    assert done.returncode == 2
    assert done.stderr == f"beliefmatch: cannot write to standard output ({NO_SPACE}).\n"


def test_a_closed_stream_is_explained(tmp_path):
    done = python(MAIN, shell=f"{' '.join(QUICK)} --out {tmp_path} >&-")
    assert done.returncode == 2
    assert done.stderr == ("beliefmatch: standard output is closed; send it to a file or to /dev/null.\n")
    mute = python(MAIN, shell="compare --epochs 0 2>&-")
    assert (mute.returncode, mute.stdout) == (2, "")


def test_a_reader_that_goes_away_leaves_the_files_and_no_message(tmp_path):
    done = python(MAIN, shell=f"{' '.join(QUICK)} --out {tmp_path} | true")
    assert done.returncode == 141
    assert done.stderr == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == PRODUCTS


def test_an_error_about_a_file_is_not_blamed_on_the_output(tmp_path, capsys, monkeypatch):
    broken = fails_in_training(FileNotFoundError(errno.ENOENT, "gone", "weights"))
    monkeypatch.setattr("beliefmatch.experiments.run.fit", broken)
    assert refused([*QUICK, "--out", f"{tmp_path}"], capsys) == "beliefmatch compare: gone: weights\n"


def test_a_file_is_replaced_whole_or_kept(tmp_path):
    path = tmp_path / "result"
    atomic_write(path, b"first")
    with pytest.raises(TypeError):
        atomic_write(path, "not bytes")
    assert path.read_bytes() == b"first"
    atomic_write(path, b"second")
    assert path.read_bytes() == b"second"
    assert list(tmp_path.iterdir()) == [path]


def test_content_is_on_the_disk_before_it_takes_the_name(tmp_path, monkeypatch):
    path, seen = tmp_path / "result", []
    monkeypatch.setattr(
        "os.fsync", lambda descriptor: seen.append((os.fstat(descriptor).st_size, path.exists()))
    )
    atomic_write(path, b"12345")
    assert seen == [(5, False)]


def test_a_ready_directory_is_left_empty(tmp_path):
    made = ready_directory(f"{tmp_path / 'a' / 'b'}", caller="test")
    assert list(made.iterdir()) == []


def test_long_work_without_a_terminal_prints_a_line_a_minute(capsys, monkeypatch):
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


def test_an_error_of_the_system_has_no_number(tmp_path, capsys):
    (tmp_path / "runs").write_text("a file")
    line = ["reproduce", "figure-rotation", "--scale", "tiny", "--jobs", "1", "--out", f"{tmp_path}"]
    err = refused(line, capsys)
    assert "Errno" not in err and f"{tmp_path / 'runs'}" in err
