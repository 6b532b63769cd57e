"""The network that is to be adapted, and images as it expects them."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

from msgspec.structs import replace
from torch import nn

from beliefmatch._utils import require_name
from beliefmatch._validate import fail
from beliefmatch.data.config import DataConfig
from beliefmatch.experiments.adapt_run_config import ImageAdaptConfig
from beliefmatch.experiments.build import settings_for, trained_network
from beliefmatch.experiments.run_dir import RunDirectory
from beliefmatch.models import MODELS
from beliefmatch.models.pretrained import declared_input

__all__ = ["NetworkAndSettings", "PreprocessingOrigin", "network_and_settings", "run_of"]

PreprocessingOrigin = Literal["options", "network", "run", "search"]


class NetworkAndSettings(NamedTuple):
    """A network with its weights, the settings of its data, and where their mean and std are from.

    With "search" they are those of the published weights that were replaced, or they are missing.
    """

    network: nn.Module
    settings: DataConfig
    origin: PreprocessingOrigin


def network_and_settings(config: ImageAdaptConfig) -> NetworkAndSettings:
    """Build the network with its weights; settings that were not given are those that it expects.

    The images of a run are its own unless others are given, divided as they were: those that it was
    validated on chose nothing in its network but when to look at it.
    """
    run = run_of(config)
    if run is None and Path(config.model).expanduser().is_dir():
        expected = "a network's name or the directory of a finished run, which has a config.yaml"
        raise fail("adapt", f"`model` must be {expected}, got the directory {config.model}.")
    if run is None and ":" not in config.model:
        other = ", timm:NAME, torchvision:NAME, hf:OWNER/NAME, package.module:factory or a finished run"
        require_name("adapt", "model", config.model, MODELS, other=other)
    if config.data is None and run is None:
        raise fail("adapt", "`data` must be given: a dataset's name, or a path to images.")
    found = trained_network(config.model, options=config.options, weights=config.weights)
    if config.data is None:
        assert run is not None
        return NetworkAndSettings(found.network, replace(run.config().data, augment="none"), "run")
    settings = settings_for(config.data, found.expected)
    origin: PreprocessingOrigin = "search"
    if config.data.mean is not None:
        origin = "options"
    elif run is not None:
        origin = "run"
    elif settings.mean is not None and (config.weights is None or declared_input(found.network) is not None):
        origin = "network"  # other weights may have been trained with another preprocessing
    return NetworkAndSettings(found.network, settings, origin)


def run_of(config: ImageAdaptConfig) -> RunDirectory | None:
    """The run that the network is of, if it is of one."""
    home = RunDirectory(Path(config.model).expanduser())
    return home if home.config_file.is_file() else None
