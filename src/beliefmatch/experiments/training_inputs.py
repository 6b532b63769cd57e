"""What a config has its networks learn from: labelled images, unlabelled ones, and a teacher's belief."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor, nn

from beliefmatch._validate import fail
from beliefmatch.data.preprocessing import Preprocessing
from beliefmatch.data.sources import Batch, CountedSource, Dataset, Source
from beliefmatch.experiments.config import RunConfig
from beliefmatch.experiments.teacher import Teacher
from beliefmatch.methods.base import Method, Objective
from beliefmatch.semi.consistency import Consistency
from beliefmatch.train.aux_loss import AuxLoss, AuxLossFunction
from beliefmatch.train.engine import Engine

__all__ = ["TrainingInputs", "aux_loss", "check_training_inputs", "training_inputs"]


class TrainingInputs(NamedTuple):
    """The arguments of `fit` that say what is learnt from."""

    source: Source
    aux: AuxLoss | None
    epoch_examples: int | None


def training_inputs(config: RunConfig, method: Method, data: Dataset, engine: Engine) -> TrainingInputs:
    """Everything to learn from, as the configuration says.

    An epoch is as long as a pass over all training images, however many of them are labelled, so that as many
    epochs are as many steps with and without unlabelled images.
    """
    epoch_examples = None if data.unlabelled is None else data.epoch_images
    if config.teacher is not None:
        source, aux = _taught(config, method, data, engine)
        return TrainingInputs(source, aux, epoch_examples)
    return TrainingInputs(data.train, _consistent(config, method, data), epoch_examples)


def check_training_inputs(config: RunConfig, method: Method, data: Dataset) -> None:
    """Refuse what a method cannot learn from."""
    if config.semi is not None:
        _has_belief(config, method)
        _require_chance(config, method, data)
        _require_size(config, data)
    if config.teacher is not None:
        _require_counts(config, method)
        teacher = Teacher.of(config)
        teacher.require_fit(config.data, data)
        teacher.require_networks()


def aux_loss(config: RunConfig, method: Method) -> tuple[AuxLossFunction, int] | None:
    """The auxiliary loss of a configuration and the number of views it takes, if it has one."""
    if config.semi is not None and config.semi.full_weight:
        loss = Consistency(config.semi, has_belief=_has_belief(config, method))
        return _ConsistencyLoss(loss), 2 if config.semi.kind == "pi" else 1
    if config.teacher is not None and config.teacher.weight and config.data.labels is not None:
        return _ObjectiveLoss(method.objective), 1
    return None


def _consistent(config: RunConfig, method: Method, data: Dataset) -> AuxLoss | None:
    """A loss of the unlabelled images alone."""
    found = aux_loss(config, method)
    if config.semi is None or data.unlabelled is None or found is None:
        return None
    loss, views = found
    size = config.semi.batch_size
    return AuxLoss("consistency", data.unlabelled, loss, config.semi.weight_at, views=views, batch_size=size)


def _taught(
    config: RunConfig, method: Method, data: Dataset, engine: Engine
) -> tuple[Source, AuxLoss | None]:
    """Labelled images with their label's vote beside the teacher's, unlabelled ones with these alone."""
    assert config.teacher is not None
    _require_counts(config, method)
    teacher, weight = Teacher.of(config), config.teacher.weight
    teacher.require_fit(config.data, data)
    votes = teacher.votes(data.train, engine)
    votes[range(len(votes)), data.train.targets] += 1
    source, found = CountedSource(data.train, votes), aux_loss(config, method)
    if data.unlabelled is None or found is None:
        return source, None
    unlabelled = CountedSource(data.unlabelled, teacher.votes(data.unlabelled, engine))
    return source, AuxLoss("teacher", unlabelled, found[0], lambda progress: weight, views=found[1])


def _has_belief(config: RunConfig, method: Method) -> bool:
    if method.reads is None:
        expected = "one whose logits are read by softmax or as log-concentrations"
        raise fail("config", f"`method.name` must be {expected} for `semi`, got {config.method.name}.")
    return method.reads == "belief"


def _require_chance(config: RunConfig, method: Method, data: Dataset) -> None:
    """Two predictions of an image differ by chance alone; networks from outside may have some of theirs."""
    if config.semi is None or config.semi.kind != "pi" or ":" in config.model.name:
        return
    how = Preprocessing.from_json(data.facts["preprocessing"])
    dropout = {**config.model.options, **method.model_options}.get("dropout")
    if how.augment == "none" and not how.noise and not dropout:
        remedy = "set data.augment, data.noise or model.options.dropout"
        raise fail("config", f"`semi` pi must have something left to chance, got nothing; {remedy}.")


def _require_size(config: RunConfig, data: Dataset) -> None:
    """A batch with images twice would be as many passes for nothing."""
    images = 0 if data.unlabelled is None else len(data.unlabelled)
    size = config.semi.batch_size if config.semi is not None else None
    if size is not None and data.unlabelled is not None and size > images:
        expected = f"at most the {images} unlabelled images"
        raise fail("config", f"`semi.batch_size` must be {expected}, got {size}.")


def _require_counts(config: RunConfig, method: Method) -> None:
    if not method.takes_counts:
        expected = "belief_matching, or softmax, label_smoothing or an ensemble, which learn from votes too,"
        raise fail("config", f"`method.name` must be {expected} for a teacher, got {config.method.name}.")


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
