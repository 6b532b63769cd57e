"""Build what a configuration names: its method, data, networks and OOD sets."""

import os
from collections.abc import Mapping
from functools import lru_cache

import torch
from torch import Tensor, nn

from beliefmatch._utils import derive_seed
from beliefmatch._validate import describe, fail
from beliefmatch.data import load, load_ood
from beliefmatch.data.config import DataConfig
from beliefmatch.data.sources import Dataset, Source
from beliefmatch.experiments.config import RunConfig
from beliefmatch.methods import build
from beliefmatch.methods.base import Method
from beliefmatch.models import build_model, build_seeded
from beliefmatch.train.config import EngineConfig
from beliefmatch.train.engine import Engine, local_processes

__all__ = [
    "bare_network",
    "dataset",
    "digests_of",
    "engine_for",
    "is_main_process",
    "member_seed",
    "method_of",
    "network_of",
    "ood_sets",
    "ood_training",
    "tried_network",
]


def method_of(config: RunConfig) -> Method:
    """The configuration's method with its options."""
    return build(config.method.name, **config.method.options)


@lru_cache(maxsize=2)
def dataset(settings: DataConfig) -> Dataset:
    """Load the data; the last two are cached, because the cells of a grid share them."""
    return load(settings)


@lru_cache(maxsize=1)
def engine_for(settings: EngineConfig) -> Engine:
    """Where to train; the same for all runs of a process, because processes are launched but once."""
    return Engine(settings)


def is_main_process() -> bool:
    """Whether this is the first process, by the variables that launchers set; true without a launcher."""
    ranks = [os.environ[name] for name in ("RANK", "SLURM_PROCID") if name in os.environ]
    return all(rank == "0" for rank in ranks or [os.environ.get(n, "0") for n in ("LOCAL_RANK", "NODE_RANK")])


def member_seed(seed: int, member: int) -> int:
    """Of one network: the first of an ensemble is the one that a single network of that seed would be."""
    return derive_seed(seed, member)


def network_of(config: RunConfig, method: Method, data: Dataset, member: int = 0) -> nn.Module:
    """An untrained network; methods that ask nothing special of it start from the same weights."""
    return bare_network(config, method, len(data.class_names), data.train.shape[0], member)


def tried_network(config: RunConfig, method: Method, data: Dataset) -> nn.Module:
    """`network_of`, tried on two random images, so that a mistake is found before the training."""
    local_processes(config.engine)
    if config.engine.precision == "bf16":
        engine_for(config.engine)  # has to set something before torch computes anything
    network, shape, expected = _built(config, method, data), data.train.shape, (2, len(data.class_names))
    wanted = f"`model.name` must make logits of shape {expected} of float32 images of shape (2, *{shape})"
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise fail(
            "config", f"`model.name` must be a network with something to train, got {config.model.name}."
        )
    try:
        with torch.no_grad():
            logits = network.eval()(torch.zeros(2, *shape))
    except Exception as error:  # the user's own code may raise anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise fail("config", f"{wanted}, but {config.model.name} failed ({reason}).") from error
    if not isinstance(logits, Tensor) or tuple(logits.shape) != expected:
        raise fail("config", f"{wanted}, got {describe(logits)} of {config.model.name}.")
    return network.train()


def _built(config: RunConfig, method: Method, data: Dataset) -> nn.Module:
    try:
        return network_of(config, method, data)
    except (RuntimeError, MemoryError, OverflowError, TypeError) as error:  # of sizes that no tensor can have
        if "`" in f"{error}":  # our own words
            raise
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        options = ", ".join(f"{name}={value}" for name, value in config.model.options.items()) or "none"
        raise fail(
            "config",
            f"`model.options` must be such that {config.model.name} can be built, got {options} ({reason}).",
        ) from error


def bare_network(
    config: RunConfig, method: Method, classes: int, channels: int, member: int = 0
) -> nn.Module:
    """`network_of` without the data."""
    options = {**config.model.options, **{key: value for key, value in method.model_options.items() if value}}
    return build_seeded(
        lambda: build_model(config.model.name, num_classes=classes, channels=channels, **options),
        member_seed(config.seed, member),
    )


def ood_sets(config: RunConfig, data: Dataset) -> dict[str, Source]:
    """The sets that belong to no class, by name."""
    found = [_ood(text, config, data) for text in config.ood]
    names = [name for name, _ in found]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise fail("config", f"`ood` must name each set once, got {twice[0]!r} more than once.")
    return dict(found)


def digests_of(sources: Mapping[str, Source]) -> dict[str, str]:
    """What tells the images of each set from others."""
    return {name: source.digest() for name, source in sources.items()}


def ood_training(config: RunConfig, method: Method, data: Dataset) -> Source | None:
    """OOD examples to train on, for methods that do."""
    if method.ood is None:
        return None
    if config.ood_training is None:
        raise fail(
            "config",
            f"`ood_training` must name a set for {config.method.name} to train on, such as noise.",
        )
    return _ood(config.ood_training, config, data)[1]


def _ood(text: str, config: RunConfig, data: Dataset) -> tuple[str, Source]:
    settings = config.data
    return load_ood(
        text, data, directory=settings.directory, corrupt=settings.corrupt, workers=settings.workers
    )
