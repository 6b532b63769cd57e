"""The network that is to be adapted, and images as it expects them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from beliefmatch.checks import fail
from beliefmatch.data.settings import DataSettings
from beliefmatch.experiments.adapt_plan import ImagePlan
from beliefmatch.experiments.predicting import Restored, restore
from beliefmatch.experiments.run_directory import RunDirectory
from beliefmatch.methods.base import NetworkPredictor
from beliefmatch.models import pretrained_model
from beliefmatch.models.expecting import preprocessing_of

__all__ = ["network_and_settings"]


def network_and_settings(plan: ImagePlan) -> tuple[nn.Module, DataSettings]:
    """Build the network with its weights; settings that were not given are those that it expects."""
    if Path(plan.model).is_dir():
        return _of_run(plan)
    if plan.data is None:
        raise fail("adapt", "`data` must be given: a dataset's name, or a path to images.")
    network = pretrained_model(plan.model, options=plan.options, weights=plan.weights)
    expected = preprocessing_of(network)
    wanted = {} if expected is None else {name: getattr(expected, name) for name in _OF_NETWORKS}
    return network, _filled(plan.data, wanted)


_OF_NETWORKS = ("mean", "std", "size", "margin")


def _filled(settings: DataSettings, wanted: dict[str, Any]) -> DataSettings:
    """With what the network wants where nothing else was said; a size of one's own has its own margin."""
    if settings.size is not None:
        wanted = {**wanted, "size": None, "margin": None}
    given = {name: value for name, value in wanted.items() if getattr(settings, name) is None}
    return replace(settings, **{name: value for name, value in given.items() if value is not None})


def _of_run(plan: ImagePlan) -> tuple[nn.Module, DataSettings]:
    """The network of a finished run, and its own images unless others are given."""
    for name in ("weights", "options"):
        if getattr(plan, name):
            raise fail("adapt", f"`{name}` must not be given with the directory of a run, which has its own.")
    run = restore(Path(plan.model))
    if not isinstance(run.predictor, NetworkPredictor):
        expected = "the run of one network whose logits are read as they are"
        method = RunDirectory(Path(plan.model)).plan().method.name
        raise fail("adapt", f"`model` must be {expected}, got one of {method}.")
    own = replace(run.plan.data, augment="none")
    return run.predictor.network, own if plan.data is None else _filled(plan.data, _expected_by(run))


def _expected_by(run: Restored) -> dict[str, Any]:
    how, (_, height, width) = run.preprocessing, run.shape
    size = height if height == width else None
    return {"mean": how.mean, "std": how.std, "size": size, "margin": how.margin}
