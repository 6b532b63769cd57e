"""What a plan names: its method, data, networks and foreign sets."""

import os
from collections.abc import Mapping
from functools import lru_cache

import torch
from torch import Tensor, nn

from beliefmatch._utils import mixed
from beliefmatch._validate import describe, fail
from beliefmatch.data import load, load_foreign
from beliefmatch.data.settings import DataSettings
from beliefmatch.data.source import Dataset, Source
from beliefmatch.experiments.config import RunPlan
from beliefmatch.methods import build
from beliefmatch.methods.base import Method
from beliefmatch.models import build_model, fresh
from beliefmatch.train.config import EngineSettings
from beliefmatch.train.engine import Engine, processes_here

__all__ = [
    "bare_network",
    "dataset",
    "digests_of",
    "engine_for",
    "foreign_sets",
    "foreign_training",
    "is_first_process",
    "member_seed",
    "method_of",
    "network_of",
    "tried_network",
]


def method_of(plan: RunPlan) -> Method:
    """The plan's method with its options."""
    return build(plan.method.name, **plan.method.options)


@lru_cache(maxsize=2)
def dataset(settings: DataSettings) -> Dataset:
    """The data; those of the last plans are kept, because a grid asks for the same again and again."""
    return load(settings)


@lru_cache(maxsize=1)
def engine_for(settings: EngineSettings) -> Engine:
    """Where to train; the same for all runs of a process, because processes are launched but once."""
    return Engine(settings)


def is_first_process() -> bool:
    """Whether this process speaks for all, by what launchers leave in the environment; alone it does."""
    ranks = [os.environ[name] for name in ("RANK", "SLURM_PROCID") if name in os.environ]
    return all(rank == "0" for rank in ranks or [os.environ.get(n, "0") for n in ("LOCAL_RANK", "NODE_RANK")])


def member_seed(seed: int, member: int) -> int:
    """Of one network: the first of an ensemble is the one that a single network of that seed would be."""
    return mixed(seed, member)


def network_of(plan: RunPlan, method: Method, data: Dataset, member: int = 0) -> nn.Module:
    """An untrained network; methods that ask nothing special of it start from the same weights."""
    return bare_network(plan, method, len(data.class_names), data.train.shape[0], member)


def tried_network(plan: RunPlan, method: Method, data: Dataset) -> nn.Module:
    """`network_of`, tried on two made-up images: what does not fit, machine or network, is told in a line."""
    processes_here(plan.engine)
    if plan.engine.precision == "bf16":
        engine_for(plan.engine)  # has to set something before torch computes anything
    network, shape, expected = _built(plan, method, data), data.train.shape, (2, len(data.class_names))
    wanted = f"`model.name` must make logits of shape {expected} of float32 images of shape (2, *{shape})"
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise fail("plan", f"`model.name` must be a network with something to train, got {plan.model.name}.")
    try:
        with torch.no_grad():
            logits = network.eval()(torch.zeros(2, *shape))
    except Exception as error:  # the user's own code may raise anything
        told = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise fail("plan", f"{wanted}, but {plan.model.name} failed ({told}).") from error
    if not isinstance(logits, Tensor) or tuple(logits.shape) != expected:
        raise fail("plan", f"{wanted}, got {describe(logits)} of {plan.model.name}.")
    return network.train()


def _built(plan: RunPlan, method: Method, data: Dataset) -> nn.Module:
    try:
        return network_of(plan, method, data)
    except (RuntimeError, MemoryError, OverflowError, TypeError) as error:  # of sizes that no tensor can have
        if "`" in f"{error}":  # our own words
            raise
        told = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        options = ", ".join(f"{name}={value}" for name, value in plan.model.options.items()) or "none"
        raise fail(
            "plan",
            f"`model.options` must be such that {plan.model.name} can be built, got {options} ({told}).",
        ) from error


def bare_network(plan: RunPlan, method: Method, classes: int, channels: int, member: int = 0) -> nn.Module:
    """`network_of` without the data."""
    options = {**plan.model.options, **{key: value for key, value in method.model_options.items() if value}}
    return fresh(
        lambda: build_model(plan.model.name, num_classes=classes, channels=channels, **options),
        member_seed(plan.seed, member),
    )


def foreign_sets(plan: RunPlan, data: Dataset) -> dict[str, Source]:
    """The sets that belong to no class, by name."""
    found = [_foreign(text, plan, data) for text in plan.foreign]
    names = [name for name, _ in found]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise fail("plan", f"`foreign` must name each set once, got {twice[0]!r} more than once.")
    return dict(found)


def digests_of(sources: Mapping[str, Source]) -> dict[str, str]:
    """What tells the images of each set from others."""
    return {name: source.digest() for name, source in sources.items()}


def foreign_training(plan: RunPlan, method: Method, data: Dataset) -> Source | None:
    """Foreign examples to train on, for methods that do."""
    if method.foreign is None:
        return None
    if plan.foreign_training is None:
        raise fail(
            "plan",
            f"`foreign_training` must name a set for {plan.method.name} to train on, such as noise.",
        )
    return _foreign(plan.foreign_training, plan, data)[1]


def _foreign(text: str, plan: RunPlan, data: Dataset) -> tuple[str, Source]:
    settings = plan.data
    return load_foreign(
        text, data, directory=settings.directory, corrupt=settings.corrupt, workers=settings.workers
    )
