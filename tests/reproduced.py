"""Builders of the tests of reproductions."""

from pathlib import Path

import numpy as np

from beliefmatch.experiments.records import RunRecord
from beliefmatch.experiments.run_dir import RunDirectory
from beliefmatch.reproduce import runner_for
from beliefmatch.reproduce.config import ReproduceConfig
from beliefmatch.reproduce.record import ReproductionRecord


def runner(name: str, **options):
    """The runner of one reproduction."""
    return runner_for(name, ReproduceConfig(**options))


def command(name, out, *options, settings=(), scale="tiny"):
    """Arguments of `beliefmatch` that run one reproduction."""
    sets = [word for setting in settings for word in ("--set", setting)]
    return ["reproduce", name, "--scale", scale, "--jobs", "1", "--out", f"{out}", *options, *sets]


def record_of(out: Path, name: str, scale: str = "tiny") -> ReproductionRecord:
    """The record of one reproduction in an output directory."""
    return ReproductionRecord.from_json((out / scale / name / "reproduction.json").read_text("utf-8"))


def runs_of(out: Path) -> dict[str, RunRecord]:
    """The records of all trainings in an output directory, by fingerprint."""
    run_dirs = [path for path in (out / "runs").iterdir() if not (path / "adaptation.json").is_file()]
    return {path.name: RunDirectory(path).finished() for path in run_dirs}


def write_images(directory: Path, shape: tuple[int, ...], **counts: int) -> Path:
    """Files of random images by name, with other images at each call."""
    directory.mkdir(exist_ok=True)
    for name, count in counts.items():
        images = np.random.default_rng().integers(0, 256, (count, *shape), np.uint8)
        np.savez(directory / f"{name}.npz", images=images, labels=np.arange(count) % 10)
    return directory
