"""Build what a configuration or a finished run names: method, data, OOD sets, networks new and trained."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace
from torch import Tensor, nn

from beliefmatch._errors import ArgumentError, naming_arguments
from beliefmatch._utils import derive_seed, first_repeated, reason_of
from beliefmatch._validate import describe, fail
from beliefmatch.data import load, load_ood
from beliefmatch.data.config import DataConfig
from beliefmatch.data.preprocessing import Preprocessing
from beliefmatch.data.sources import Dataset, Source
from beliefmatch.experiments.config import RunConfig
from beliefmatch.experiments.run_dir import RunDirectory
from beliefmatch.methods import build
from beliefmatch.methods.base import Method
from beliefmatch.models import ExpectedInput, build_model, build_seeded, preprocessing_of, pretrained_model
from beliefmatch.train.checkpoint import final_weights
from beliefmatch.train.config import EngineConfig
from beliefmatch.train.engine import Engine, local_processes

__all__ = [
    "TrainedNetwork",
    "bare_network",
    "check_network",
    "dataset",
    "engine_for",
    "is_main_process",
    "keep_dataset",
    "member_seed",
    "method_of",
    "network_of",
    "ood_sets",
    "ood_training",
    "settings_for",
    "trained_member",
    "trained_network",
]


def method_of(config: RunConfig) -> Method:
    """The configuration's method with its options."""
    return build(config.method.name, **config.method.options)


_datasets: dict[DataConfig, Dataset] = {}


def dataset(settings: DataConfig) -> Dataset:
    """Load the data; the last two are kept, because the cells of a grid share them."""
    if settings not in _datasets:
        place = "name" if settings.directory is None else "directory"
        with naming_arguments("data", path="name", directory=place):
            keep_dataset(settings, load(settings))
    return _datasets[settings]


def keep_dataset(settings: DataConfig, data: Dataset) -> None:
    """Let `dataset` give these data, which were loaded elsewhere."""
    _datasets[settings] = data
    for oldest in list(_datasets)[:-2]:
        del _datasets[oldest]


@lru_cache(maxsize=1)
def engine_for(settings: EngineConfig) -> Engine:
    """Where to train; the same for all runs of a process, because processes are launched only once."""
    return Engine(settings)


def is_main_process() -> bool:
    """Whether this is the first process, by the variables that launchers set; true without a launcher."""
    ranks = [os.environ[name] for name in ("RANK", "SLURM_PROCID") if name in os.environ]
    return all(rank == "0" for rank in ranks or [os.environ.get(n, "0") for n in ("LOCAL_RANK", "NODE_RANK")])


def ood_sets(config: RunConfig, data: Dataset) -> dict[str, Source]:
    """The sets that belong to no class, by name."""
    found = [_ood(text, config, data, "ood") for text in config.ood]
    if (twice := first_repeated(name for name, _ in found)) is not None:
        raise fail("config", f"`ood` must name each set once, got {twice!r} more than once.")
    return dict(found)


def ood_training(config: RunConfig, method: Method, data: Dataset) -> Source | None:
    """OOD examples to train on, for methods that do."""
    if method.ood is None:
        return None
    if config.ood_training is None:
        raise fail(
            "config",
            f"`ood_training` must name a set for {config.method.name} to train on, such as noise.",
        )
    return _ood(config.ood_training, config, data, "ood_training")[1]


def _ood(text: str, config: RunConfig, data: Dataset, setting: str) -> tuple[str, Source]:
    settings = config.data
    form = {"directory": settings.directory, "corrupt": settings.corrupt, "workers": settings.workers}
    with naming_arguments("load_ood", text=setting, path=setting):
        return load_ood(text, data, **form)


# Untrained networks.


def member_seed(seed: int, member: int) -> int:
    """Seed of one network; the first member of an ensemble is the single network of the same seed."""
    return derive_seed(seed, member)


def bare_network(
    config: RunConfig, method: Method, classes: int, channels: int, member: int = 0
) -> nn.Module:
    """An untrained network; methods without demands on the network start from the same weights."""
    options = {**config.model.options, **{key: value for key, value in method.model_options.items() if value}}
    return build_seeded(
        lambda: build_model(config.model.name, num_classes=classes, channels=channels, **options),
        member_seed(config.seed, member),
    )


def network_of(config: RunConfig, method: Method, data: Dataset, member: int = 0) -> nn.Module:
    """`bare_network` for the classes and channels of the data."""
    return bare_network(config, method, len(data.class_names), data.train.shape[0], member)


def check_network(config: RunConfig, method: Method, data: Dataset) -> nn.Module:
    """`network_of`, checked on two black images, so that a mistake is found before the training."""
    local_processes(config.engine)
    if config.engine.precision == "bf16":
        engine_for(config.engine)  # has to set something before torch computes anything
    name, shape, expected = config.model.name, data.train.shape, (2, len(data.class_names))
    try:
        network = network_of(config, method, data)
    except ArgumentError:
        raise
    except (RuntimeError, MemoryError, OverflowError, TypeError) as error:  # of sizes that no tensor can have
        options = ", ".join(f"{key}={value}" for key, value in config.model.options.items()) or "none"
        wanted = f"`model.options` must be such that {name} can be built"
        reason = reason_of(error, typed=True, limit=200)
        raise fail("config", f"{wanted}, got {options} ({reason}).") from error
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise fail("config", f"`model.name` must be a network with something to train, got {name}.")
    what = "images" if len(shape) == 3 else "rows of a table"
    wanted = f"`model.name` must make logits of shape {expected} of float32 {what} of shape {(2, *shape)}"
    try:
        with torch.no_grad():
            logits = network.eval()(torch.zeros(2, *shape))
    except Exception as error:  # the user's own code may raise anything
        reason = reason_of(error, typed=True, limit=200)
        raise fail("config", f"{wanted}, but {name} failed ({reason}).") from error
    if not isinstance(logits, Tensor) or tuple(logits.shape) != expected:
        raise fail("config", f"{wanted}, got {describe(logits)} of {name}.")
    return network.train()


# Trained networks.


@dataclass(frozen=True, eq=False)
class TrainedNetwork:
    """A network with its weights, and what is known of its images and classes."""

    name: str
    network: nn.Module
    expected: ExpectedInput | None = None
    """Preprocessing that it was trained for."""
    class_names: tuple[str, ...] | None = None
    """By the ids of its logits; known for runs of this package."""


def trained_network(
    name: str, *, options: Mapping[str, Any] | None = None, weights: str | Path | None = None
) -> TrainedNetwork:
    """A network by name.

    Args:
        name: the directory of a finished `beliefmatch train`, or what `beliefmatch.models.pretrained_model`
            takes: ``timm:NAME``, ``torchvision:NAME``, ``hf:OWNER/NAME``, ``package.module:factory``.
        options: options of the network; a run has its own.
        weights: file of its weights, in place of those published; a run has its own.
    """
    directory = Path(name).expanduser()
    if RunDirectory(directory).config_file.is_file():
        for argument, given in (("options", options), ("weights", weights)):
            if given:
                raise fail(
                    "trained_network", f"`{argument}` must not be given for {name}: a run has its own."
                )
        return _network_of_run(directory)
    network = build_seeded(lambda: pretrained_model(name, options=options, weights=weights), 0)
    return TrainedNetwork(name, network, preprocessing_of(network))


def trained_member(run_dir: RunDirectory, member: int = 0, *, caller: str = "trained_network") -> nn.Module:
    """One network of a finished run, with its weights."""
    config, facts = run_dir.config(), run_dir.read_model()
    network = bare_network(config, method_of(config), len(facts["class_names"]), facts["shape"][0], member)
    weights = final_weights(run_dir.network(member))
    if weights is None:
        raise fail(caller, f"`run` must hold finished networks; {run_dir.network(member)} has none.")
    network.load_state_dict(weights)
    return network


def settings_for(settings: DataConfig, expected: ExpectedInput | None) -> DataConfig:
    """The data as a network expects them: what the settings leave open is taken from `expected`."""
    if expected is None:
        return settings
    changes: dict[str, Any] = {}
    if settings.mean is None and expected.mean is not None and expected.std is not None:
        changes |= {"mean": expected.mean, "std": expected.std}
    if settings.size is None and expected.size is not None:
        changes["size"] = expected.size
    if settings.margin is None and (settings.size or expected.size):
        changes["margin"] = expected.margin
    return replace(settings, **changes)


def _network_of_run(directory: Path) -> TrainedNetwork:
    run_dir = RunDirectory(directory)
    facts, members = run_dir.read_model(), method_of(run_dir.config()).members
    if members > 1:
        received = f"{directory}, an ensemble of {members}; train one of them alone"
        raise fail("trained_network", f"`name` must be the run of one network, got {received}.")
    if "table" in facts:
        received = f"{directory}, which was trained on a table"
        raise fail(
            "trained_network", f"`name` must be a run on images, got {received}; train it again instead."
        )
    how = Preprocessing.from_json(facts["preprocessing"])
    _, height, width = facts["shape"]
    size = height if height == width else None
    expected = ExpectedInput(how.mean, how.std, size, None if size is None else how.margin, "bilinear")
    return TrainedNetwork(
        f"{directory}", trained_member(run_dir).eval(), expected, tuple(facts["class_names"])
    )
