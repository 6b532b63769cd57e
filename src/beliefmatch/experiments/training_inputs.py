"""What networks learn from: labelled images, unlabelled ones, and the belief of a teacher.

A teacher is a finished run. Its belief about each training image counts as votes for the classes, next to the
vote of the label.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from msgspec.structs import replace
from torch import Tensor, nn

from beliefmatch._validate import fail
from beliefmatch.data.config import DataConfig
from beliefmatch.data.preprocessing import Preprocessing
from beliefmatch.data.sources import Batch, CountedSource, Dataset, MemorySource, Source, StreamedSource
from beliefmatch.experiments.config import RunConfig, TeacherConfig
from beliefmatch.experiments.predict import restore
from beliefmatch.experiments.records import RunRecord
from beliefmatch.experiments.run_dir import RunDirectory
from beliefmatch.methods.base import Method, Objective
from beliefmatch.semi.consistency import Consistency
from beliefmatch.semi.teacher import teacher_votes
from beliefmatch.train.aux_loss import AuxLoss, AuxLossFunction
from beliefmatch.train.engine import Engine
from beliefmatch.train.predict import predict_all

__all__ = [
    "Teacher",
    "TrainingInputs",
    "aux_loss",
    "check_training_inputs",
    "training_inputs",
    "with_seed",
    "with_teacher_fingerprint",
]


class TrainingInputs(NamedTuple):
    """The arguments of `fit` that say what is learnt from."""

    source: Source
    aux: AuxLoss | None
    epoch_examples: int | None


def training_inputs(config: RunConfig, method: Method, data: Dataset, engine: Engine) -> TrainingInputs:
    """Everything that the networks of a configuration learn from.

    An epoch is as long as a pass over all training images, however many of them are labelled, so that as many
    epochs are as many steps with and without unlabelled images.
    """
    is_pass = data.unlabelled is None and config.training.epoch_steps is None
    epoch_examples = None if is_pass else config.training.epoch_examples(data.epoch_images)
    source, found = data.train, aux_loss(config, method)
    teacher = None
    if config.teacher is not None:
        _require_counts(config, method)
        teacher = Teacher.of(config)
        teacher.require_fit(config.data, data)
        votes = teacher.votes(data.train, engine)
        votes[range(len(votes)), data.train.targets] += 1
        source = CountedSource(data.train, votes)
    if found is None or data.unlabelled is None:
        return TrainingInputs(source, None, epoch_examples)
    loss, views = found
    if teacher is not None:
        unlabelled, weight = (
            CountedSource(data.unlabelled, teacher.votes(data.unlabelled, engine)),
            teacher.settings.weight,
        )
        aux = AuxLoss("teacher", unlabelled, loss, lambda progress: weight, views=views)
    else:
        assert config.semi is not None
        semi = config.semi
        aux = AuxLoss(
            "consistency", data.unlabelled, loss, semi.weight_at, views=views, batch_size=semi.batch_size
        )
    return TrainingInputs(source, aux, epoch_examples)


def aux_loss(config: RunConfig, method: Method) -> tuple[AuxLossFunction, int] | None:
    """The auxiliary loss of a configuration and the number of views it takes, if it has one."""
    if config.semi is not None and config.semi.full_weight:
        loss = Consistency(config.semi, has_belief=_has_belief(config, method))
        return _ConsistencyLoss(loss), 2 if config.semi.kind == "pi" else 1
    if config.teacher is not None and config.teacher.weight and config.data.labels is not None:
        return _ObjectiveLoss(method.objective), 1
    return None


class _ConsistencyLoss(NamedTuple):
    """A consistency loss as the loop calls it."""

    consistency: Consistency

    def __call__(self, network: nn.Module, views: Sequence[Batch], seed: int) -> Tensor:
        others = views[1].inputs if len(views) > 1 else None
        return self.consistency.loss(network, views[0].inputs, seed, others)


class _ObjectiveLoss(NamedTuple):
    """The objective itself, on further examples."""

    objective: Objective

    def __call__(self, network: nn.Module, views: Sequence[Batch], seed: int) -> Tensor:
        return self.objective(network(views[0].inputs).float(), views[0].targets)


def check_training_inputs(config: RunConfig, method: Method, data: Dataset) -> None:
    """Refuse what a method cannot learn from."""
    if config.semi is not None:
        _has_belief(config, method)
        size = config.semi.batch_size
        if size is not None and data.unlabelled is not None and size > len(data.unlabelled):
            expected = f"at most the {len(data.unlabelled)} unlabelled images"
            raise fail("config", f"`semi.batch_size` must be {expected}, got {size}.")
        is_random = bool(config.data.noise)
        if "preprocessing" in data.facts:
            is_random |= Preprocessing.from_json(data.facts["preprocessing"]).augment != "none"
        dropout = {**config.model.options, **method.model_options}.get("dropout")
        is_random = is_random or dropout or ":" in config.model.name  # may be
        if config.semi.kind == "pi" and not is_random:
            remedy = "set data.augment, data.noise or model.options.dropout"
            raise fail("config", f"`semi` pi must have something left to chance, got nothing; {remedy}.")
    if config.teacher is not None:
        _require_counts(config, method)
        teacher = Teacher.of(config)
        teacher.require_fit(config.data, data)
        teacher.require_networks()


def _has_belief(config: RunConfig, method: Method) -> bool:
    if method.reads is None:
        expected = "one whose logits are read by softmax or as log-concentrations"
        raise fail("config", f"`method.name` must be {expected} for `semi`, got {config.method.name}.")
    return method.reads == "belief"


def _require_counts(config: RunConfig, method: Method) -> None:
    if not method.takes_counts:
        expected = "belief_matching, or softmax, label_smoothing or an ensemble, which learn from votes too,"
        raise fail("config", f"`method.name` must be {expected} for a teacher, got {config.method.name}.")


@dataclass(frozen=True, eq=False)
class Teacher:
    """A finished run, and how its belief is used."""

    settings: TeacherConfig
    directory: Path
    record: RunRecord

    @classmethod
    def of(cls, config: RunConfig) -> Teacher:
        """The teacher of a configuration.

        Raises:
            ValueError: there is no finished run, or another than that of the configuration's fingerprint.
        """
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
            expected = f"a run whose networks can be read, got {self.directory}: {error}"
            raise fail("teacher", f"`prior_from` must be {expected}") from error

    def require_fit(self, settings: DataConfig, data: Dataset) -> None:
        """Refuse a teacher of other classes or shapes, or that may have seen images held back here."""
        shape, own = list(data.train.shape), self.record.data
        if self.record.class_names != list(data.class_names) or own["shape"] != shape:
            expected = f"a run on {len(data.class_names)} classes and images of {shape} like the student's"
            found = f"{len(self.record.class_names)} classes and {own['shape']}"
            raise fail("teacher", f"`prior_from` must be {expected}, got {found} in {self.directory}.")
        before = self.record.config["data"]
        if not _is_same_data(before["name"], settings.name):
            return
        for name in ("split_seed", "validation"):
            if before[name] != getattr(settings, name):
                what = f"`data.{name}` {getattr(settings, name)} as the student"
                why = "or it may have seen images that the student is scored on"
                raise fail("teacher", f"`prior_from` must have {what}, {why}, got {before[name]}.")

    def votes(self, source: Source, engine: Engine) -> Tensor:
        """Votes for the classes of each image (N, K), as it looks without augmentation."""
        restored = restore(self.directory, engine=engine.config)
        preprocessing = restored.preprocessing
        if isinstance(source, MemorySource | StreamedSource) and preprocessing is not None:
            source = source.with_preprocessing(preprocessing)
        predictions = predict_all(engine, restored.predictor, source)
        logits = predictions.probs.log() if predictions.logits is None else predictions.logits
        votes = teacher_votes(logits, strength=self.settings.strength, temperature=self.settings.temperature)
        return votes.to(torch.float32)


def with_teacher_fingerprint(config: RunConfig, student: Path | None = None) -> RunConfig:
    """The configuration with its teacher's fingerprint, which identifies it wherever it is moved to.

    Args:
        config: configuration with a teacher or without.
        student: directory of the run. A finished run knows its teacher, which may be gone.
    """
    if config.teacher is None or config.teacher.fingerprint is not None:
        return config
    found = _remembered(config, student) or Teacher.of(config).record.fingerprint
    return replace(config, teacher=replace(config.teacher, fingerprint=found))


def with_seed(config: RunConfig, seed: int) -> RunConfig:
    """The configuration with another seed, and with the teacher of that seed where each has its own."""
    seeded = replace(config, seed=seed)
    if config.teacher is None or not config.teacher.has_seeds:
        return seeded
    return with_teacher_fingerprint(replace(seeded, teacher=replace(config.teacher, fingerprint=None)))


def _remembered(config: RunConfig, student: Path | None) -> str | None:
    """The fingerprint of a teacher that is not where it was when its student learnt from it."""
    if student is None or config.teacher is None or _directory(config).exists():
        return None
    run_dir = RunDirectory(student)
    if not (run_dir.record_file.is_file() and run_dir.config_file.is_file()):
        return None
    before = run_dir.config().teacher
    return before.fingerprint if before is not None and before.run == config.teacher.run else None


def _directory(config: RunConfig) -> Path:
    assert config.teacher is not None
    return Path(config.teacher.run_of(config.seed)).expanduser()


def _finished(directory: Path) -> RunRecord:
    run_dir = RunDirectory(directory)
    if not run_dir.record_file.is_file():
        expected = f"the directory of a finished run, got {directory}; train it to its end first"
        raise fail("teacher", f"`prior_from` must be {expected}.")
    try:
        return run_dir.finished()
    except ValueError as error:
        expected = f"a run whose record can be read, got {directory}: {error}"
        raise fail("teacher", f"`prior_from` must be {expected}") from error


def _is_same_data(one: str, other: str) -> bool:
    """Whether two names of data are one name, or paths to one place."""
    return one == other or (
        Path(other).exists() and Path(one).expanduser().resolve() == Path(other).resolve()
    )
