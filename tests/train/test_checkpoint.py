"""Checkpoints are complete or do not exist, and the previous one is kept."""

import errno
import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from beliefmatch.train.checkpoint import Checkpoint, load_latest, save

TENSORS = {
    "weight": torch.arange(6.0).view(2, 3).t(),
    "half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "steps": torch.tensor(7),
}


def state(step):
    return Checkpoint(step, {name: tensor + step for name, tensor in TENSORS.items()}, {"epoch": step // 2})


def assert_is(checkpoint, step):
    assert checkpoint.step == step
    assert checkpoint.facts == {"epoch": step // 2}
    for name, tensor in state(step).tensors.items():
        assert (
            torch.equal(checkpoint.tensors[name], tensor) and checkpoint.tensors[name].dtype == tensor.dtype
        )


def test_the_last_two_are_kept_and_the_last_is_loaded(tmp_path):
    assert load_latest(tmp_path) is None and load_latest(tmp_path / "nowhere") is None
    for step in (1, 2, 10, 9):
        save(tmp_path / "new", state(step))
    names = [f"step-{step:09d}.{kind}" for step in (9, 10) for kind in ("json", "safetensors")]
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == names
    assert_is(load_latest(tmp_path / "new"), 10)


def damaged(path, how):
    content = path.read_bytes()
    if how == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "one bit":
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif how == "missing":
        path.unlink()
    else:
        path.write_text(json.dumps({"format": "other/9"}))


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        *(("safetensors", how) for how in ("truncated", "empty", "one bit", "missing")),
        *(("json", how) for how in ("truncated", "empty", "another format")),
    ],
)
def test_a_damaged_one_is_named_and_the_previous_one_is_loaded(tmp_path, kind, how):
    save(tmp_path, state(1))
    save(tmp_path, state(2))
    damaged(tmp_path / f"step-000000002.{kind}", how)
    with pytest.warns(UserWarning, match=r"step-000000002.json is not used .*"):
        assert_is(load_latest(tmp_path), 1)


@pytest.mark.parametrize("after", [0, 1, 2, 3])
def test_a_full_disk_leaves_the_previous_one(tmp_path, monkeypatch, after):
    save(tmp_path, state(1))
    calls = 0

    def full(*arguments):
        nonlocal calls
        calls += 1
        if calls > after:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real_replace(*arguments)

    real_replace = os.replace
    monkeypatch.setattr(os, "replace", full)
    if after < 2:
        with pytest.raises(OSError):
            save(tmp_path, state(2))
    else:
        save(tmp_path, state(2))
    assert_is(load_latest(tmp_path), 2 if after >= 2 else 1)
    assert not list(tmp_path.glob(".*"))  # no parts left


def test_a_kill_at_any_moment_leaves_a_complete_one(tmp_path):
    code = (
        "import os, sys, torch; from pathlib import Path\n"
        "from beliefmatch.train.checkpoint import Checkpoint, save\n"
        "directory, step = Path(sys.argv[1]), 0\n"
        "for name in '0123':\n"
        "    if process := os.fork():\n"
        "        print(process)\n"
        "        continue\n"
        "    os.close(1)\n"
        "    while step := step + 1:\n"
        "        tensors = {'w': torch.full((100000,), float(step))}\n"
        "        save(directory / name, Checkpoint(step, tensors, {'step': step}))\n"
    )
    started = subprocess.run([sys.executable, "-uc", code, str(tmp_path)], stdout=subprocess.PIPE, check=True)
    for name, process in zip("0123", map(int, started.stdout.split()), strict=True):
        end = time.monotonic() + 60
        while not list((tmp_path / name).glob("*.json")) and time.monotonic() < end:
            time.sleep(0.005)
        time.sleep(0.1)
        os.kill(process, signal.SIGKILL)
    time.sleep(0.1)
    for name in "0123":
        found = load_latest(tmp_path / name)
        assert found is not None and found.step == found.facts["step"] >= 1
        assert torch.equal(found.tensors["w"], torch.full((100000,), float(found.step)))
