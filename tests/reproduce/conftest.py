"""Every reproduction at its tiny scale, run once for all tests that read it."""

import fcntl
import shutil

import pytest

from beliefmatch.cli import main
from reproduced import command, runner


@pytest.fixture(scope="session")
def everything(tmp_path_factory, worker_id):
    """The output directory of `reproduce all`, one for all worker processes. To be read, not written."""
    own = tmp_path_factory.getbasetemp()
    directory = (own if worker_id == "master" else own.parent) / "reproduced"
    directory.mkdir(exist_ok=True)
    out, done = directory / "out", directory / "done"
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            assert main(command("all", out)) == 0
            done.touch()
    return out


@pytest.fixture
def copied(everything, tmp_path):
    """A function that copies finished reproductions with their runs, to be written to and damaged."""

    def copy(*names):
        out = tmp_path / "own"
        for name in names:
            shutil.copytree(everything / "tiny" / name, out / "tiny" / name)
            for run in runner(name, scale="tiny", out=f"{everything}").costs():  # trials of a search too
                shutil.copytree(everything / "runs" / run, out / "runs" / run, dirs_exist_ok=True)
        return out

    return copy
