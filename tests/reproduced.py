"""Every reproduction at its scale of seconds, run once for all the tests that read it."""

import fcntl
from pathlib import Path

from beliefmatch.cli import main
from beliefmatch.experiments.records import RunRecord
from beliefmatch.experiments.run_dir import RunDirectory
from beliefmatch.reproduce import runner_for
from beliefmatch.reproduce.config import ReproduceConfig
from beliefmatch.reproduce.record import ReproductionRecord


def runner(name: str, **options):
    """The runner of one reproduction."""
    return runner_for(name, ReproduceConfig(**options))


def all_reproduced(place: Path) -> Path:
    """Where `reproduce all` has written; the first to ask runs it, others wait. Nobody writes there again."""
    place.mkdir(parents=True, exist_ok=True)
    out, done = place / "out", place / "done"
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            assert main(["reproduce", "all", "--scale", "tiny", "--jobs", "1", "--out", f"{out}"]) == 0
            done.touch()
    return out


def record_of(out: Path, name: str) -> ReproductionRecord:
    """What one reproduction came to."""
    return ReproductionRecord.from_json((out / "tiny" / name / "reproduction.json").read_text("utf-8"))


def runs_of(out: Path) -> dict[str, RunRecord]:
    """The trainings of all of them, by fingerprint."""
    run_dirs = [path for path in (out / "runs").iterdir() if not (path / "adaptation.json").is_file()]
    return {path.name: RunDirectory(path).finished() for path in run_dirs}
