"""A finished run as a teacher: its belief about each training image, as votes for the classes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from msgspec.structs import replace
from torch import Tensor

from beliefmatch._validate import fail
from beliefmatch.data.config import DataConfig
from beliefmatch.data.sources import Dataset, MemorySource, Source, StreamedSource
from beliefmatch.experiments.config import RunConfig, TeacherConfig
from beliefmatch.experiments.predict import restore
from beliefmatch.experiments.records import RunRecord
from beliefmatch.experiments.run_dir import RunDirectory
from beliefmatch.semi.teacher import teacher_votes
from beliefmatch.train.engine import Engine
from beliefmatch.train.predict import predict_all

__all__ = ["Teacher", "is_same", "with_known_teacher", "with_seed"]

_HELD_BACK = ("split_seed", "validation")


def with_known_teacher(config: RunConfig, student: Path | None = None) -> RunConfig:
    """The configuration with its teacher's fingerprint, by which it is known wherever it is moved to.

    Args:
        configuration: with a teacher or without.
        student: directory of the run. A finished run knows its teacher, which may be gone.
    """
    if config.teacher is None or config.teacher.fingerprint is not None:
        return config
    found = _remembered(config, student) or Teacher.of(config).record.fingerprint
    return replace(config, teacher=replace(config.teacher, fingerprint=found))


def _remembered(config: RunConfig, student: Path | None) -> str | None:
    """The fingerprint of a teacher that is not where it was when its student learnt from it."""
    if student is None or config.teacher is None or _directory(config).exists():
        return None
    run_dir = RunDirectory(student)
    before = (
        run_dir.config().teacher if run_dir.record_file.is_file() and run_dir.config_file.is_file() else None
    )
    return before.fingerprint if before is not None and before.run == config.teacher.run else None


def _directory(config: RunConfig) -> Path:
    assert config.teacher is not None
    return Path(config.teacher.run_of(config.seed)).expanduser()


def with_seed(config: RunConfig, seed: int) -> RunConfig:
    """The configuration with another seed, and with the teacher of that seed where each has its own."""
    seeded = replace(config, seed=seed)
    if config.teacher is None or not config.teacher.has_seeds:
        return seeded
    return with_known_teacher(replace(seeded, teacher=replace(config.teacher, fingerprint=None)))


@dataclass(frozen=True, eq=False)
class Teacher:
    """A finished run, and how its belief is used."""

    settings: TeacherConfig
    directory: Path
    record: RunRecord

    @classmethod
    def of(cls, config: RunConfig) -> Teacher:
        """A config's teacher; a ValueError if there is no finished run, or another than the config knows."""
        settings, directory = config.teacher, _directory(config)
        assert settings is not None
        record = _finished(directory)
        if settings.fingerprint not in (None, record.fingerprint):
            expected = f"the run of configuration {settings.fingerprint}"
            found = f"{directory} of configuration {record.fingerprint}"
            raise fail("teacher", f"`prior_from` must be {expected}, got {found}.")
        return cls(settings, directory, record)

    def require_networks(self) -> None:
        """Refuse a teacher whose networks cannot be read, before the training begins."""
        try:
            restore(self.directory)
        except (ValueError, OSError) as error:
            expected = "a run whose networks can be read"
            raise fail(
                "teacher", f"`prior_from` must be {expected}, got {self.directory}: {error}"
            ) from error

    def require_fit(self, settings: DataConfig, data: Dataset) -> None:
        """It must know the same classes and shape, and no image that is held back from its student."""
        shape, own = list(data.train.shape), self.record.data
        if self.record.class_names != list(data.class_names) or own["shape"] != shape:
            expected = f"a run on {len(data.class_names)} classes and images of {shape} like the student's"
            found = f"{len(self.record.class_names)} classes and {own['shape']}"
            raise fail("teacher", f"`prior_from` must be {expected}, got {found} in {self.directory}.")
        before = self.record.config["data"]
        if not is_same(before["name"], settings.name):
            return
        for name in _HELD_BACK:
            if before[name] != getattr(settings, name):
                what = f"`data.{name}` {getattr(settings, name)} as the student"
                why = "or it may have seen images that the student is judged by"
                raise fail("teacher", f"`prior_from` must have {what}, {why}, got {before[name]}.")

    def votes(self, source: Source, engine: Engine) -> Tensor:
        """Votes for the classes of each image (N, K), as it looks without augmentation."""
        restored = restore(self.directory, engine=engine.config)
        if isinstance(source, MemorySource | StreamedSource):
            source = source.with_preprocessing(restored.preprocessing)
        predictions = predict_all(engine, restored.predictor, source)
        logits = predictions.probs.log() if predictions.logits is None else predictions.logits
        return teacher_votes(
            logits, strength=self.settings.strength, temperature=self.settings.temperature
        ).to(torch.float32)


def _finished(directory: Path) -> RunRecord:
    run_dir = RunDirectory(directory)
    if not run_dir.record_file.is_file():
        remedy = "train it to its end first"
        raise fail(
            "teacher", f"`prior_from` must be the directory of a finished run, got {directory}; {remedy}."
        )
    try:
        return run_dir.finished()
    except ValueError as error:
        expected = f"a run whose record can be read, got {directory}: {error}"
        raise fail("teacher", f"`prior_from` must be {expected}") from error


def is_same(one: str, other: str) -> bool:
    """Whether two names of data are one name, or paths to one place."""
    return one == other or (
        Path(other).exists() and Path(one).expanduser().resolve() == Path(other).resolve()
    )
