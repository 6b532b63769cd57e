"""A finished run that teaches: what it believes of each training image, as votes for the classes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from beliefmatch.checks import fail
from beliefmatch.data.memory import MemorySource
from beliefmatch.data.settings import DataSettings
from beliefmatch.data.source import Dataset, Source
from beliefmatch.data.streamed import StreamedSource
from beliefmatch.experiments.plan import RunPlan, TeacherPlan
from beliefmatch.experiments.predicting import restore
from beliefmatch.experiments.run_directory import RunDirectory
from beliefmatch.experiments.run_record import RunRecord
from beliefmatch.semi.teacher import teacher_votes
from beliefmatch.train.engine import Engine
from beliefmatch.train.evaluate import predict_all

__all__ = ["Teacher", "with_known_teacher", "with_seed"]

_HELD_BACK = ("split_seed", "validation")


def with_known_teacher(plan: RunPlan) -> RunPlan:
    """The plan with its teacher's fingerprint, by which it is known wherever it is moved to."""
    if plan.teacher is None or plan.teacher.fingerprint is not None:
        return plan
    found = Teacher.of(plan).record.fingerprint
    return replace(plan, teacher=replace(plan.teacher, fingerprint=found))


def with_seed(plan: RunPlan, seed: int) -> RunPlan:
    """The plan with another seed, and with the teacher of that seed where each has its own."""
    seeded = replace(plan, seed=seed)
    if plan.teacher is None or not plan.teacher.has_seeds:
        return seeded
    return with_known_teacher(replace(seeded, teacher=replace(plan.teacher, fingerprint=None)))


@dataclass(frozen=True, eq=False)
class Teacher:
    """A finished run and what is asked of it."""

    settings: TeacherPlan
    directory: Path
    record: RunRecord

    @classmethod
    def of(cls, plan: RunPlan) -> Teacher:
        """A plan's teacher; a ValueError if there is no finished run, or another than the plan knows."""
        settings = plan.teacher
        assert settings is not None
        directory = Path(settings.run_of(plan.seed)).expanduser()
        record = RunDirectory(directory).finished()
        if settings.fingerprint not in (None, record.fingerprint):
            expected = f"the run of plan {settings.fingerprint}"
            raise fail("teacher", f"`run` must be {expected}, got {directory} of plan {record.fingerprint}.")
        return cls(settings, directory, record)

    def require_fit(self, settings: DataSettings, data: Dataset) -> None:
        """It must know the same classes and shape, and no image that is held back from its student."""
        shape, own = list(data.train.shape), self.record.data
        if self.record.class_names != list(data.class_names) or own["shape"] != shape:
            expected = f"a run on {len(data.class_names)} classes and images of {shape} like the student's"
            found = f"{len(self.record.class_names)} classes and {own['shape']}"
            raise fail("teacher", f"`run` must be {expected}, got {found} in {self.directory}.")
        before = self.record.plan["data"]
        if before["name"] != settings.name:
            return
        for name in _HELD_BACK:
            if before[name] != getattr(settings, name):
                what = f"`data.{name}` {getattr(settings, name)} as the student"
                why = "or it may have seen images that the student is judged by"
                raise fail("teacher", f"`run` must have {what}, {why}, got {before[name]}.")

    def votes(self, source: Source, engine: Engine) -> Tensor:
        """Votes for the classes of each image (N, K), as it looks without augmentation."""
        restored = restore(self.directory, engine=engine.settings)
        if isinstance(source, MemorySource | StreamedSource):
            source = source.seen_through(restored.preprocessing)
        said = predict_all(engine, restored.predictor, source)
        logits = said.probs.log() if said.logits is None else said.logits
        return teacher_votes(
            logits, strength=self.settings.strength, temperature=self.settings.temperature
        ).to(torch.float32)
