"""Trained networks to go on with: those of our own runs, published ones and the user's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from torch import nn

from beliefmatch._validate import fail
from beliefmatch.data.config import DataConfig
from beliefmatch.data.preprocessing import Preprocessing
from beliefmatch.experiments.build import bare_network, method_of
from beliefmatch.experiments.run_dir import RunDirectory
from beliefmatch.models import ExpectedInput, build_seeded, preprocessing_of, pretrained_model
from beliefmatch.train.checkpoint import final_weights

__all__ = ["TrainedNetwork", "settings_for", "trained_member", "trained_network"]

_US = "trained_network"
_UNTRAINED = 0  # seed of what has no weights of its own


@dataclass(frozen=True, eq=False)
class TrainedNetwork:
    """A network with its weights, and what is known of its images and classes."""

    name: str
    network: nn.Module
    expected: ExpectedInput | None = None
    """Preprocessing that it was trained for."""
    class_names: tuple[str, ...] | None = None
    """By the ids of its logits; known of our own runs."""


def trained_network(
    name: str, *, options: Mapping[str, Any] | None = None, weights: str | Path | None = None
) -> TrainedNetwork:
    """A network by name.

    Args:
        name: the directory of a finished `beliefmatch train`, or what `beliefmatch.models.pretrained_model`
            takes: ``timm:NAME``, ``torchvision:NAME``, ``hf:OWNER/NAME``, ``package.module:factory``.
        options: of the network; a run has its own.
        weights: file of its weights, in place of those published; a run has its own.
    """
    if RunDirectory(Path(name).expanduser()).config_file.is_file():
        for what, given in (("options", options), ("weights", weights)):
            if given:
                raise fail(_US, f"`{what}` must not be given for {name}: a run has its own.")
        return _of_run(Path(name).expanduser())
    network = build_seeded(lambda: pretrained_model(name, options=options, weights=weights), _UNTRAINED)
    return TrainedNetwork(name, network, preprocessing_of(network))


def settings_for(settings: DataConfig, expected: ExpectedInput | None) -> DataConfig:
    """The same data as a network expects them: what the settings leave open is taken from it."""
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


def trained_member(run_dir: RunDirectory, member: int = 0, *, caller: str = _US) -> nn.Module:
    """One network of a finished run, with its weights."""
    config, facts = run_dir.config(), run_dir.read_model()
    method = method_of(config)
    network = bare_network(config, method, len(facts["class_names"]), facts["shape"][0], member)
    weights = final_weights(run_dir.network(member))
    if weights is None:
        raise fail(caller, f"`run` must hold finished networks; {run_dir.network(member)} has none.")
    network.load_state_dict(weights)
    return network


def _of_run(directory: Path) -> TrainedNetwork:
    run_dir = RunDirectory(directory)
    facts, members = run_dir.read_model(), method_of(run_dir.config()).members
    if members > 1:
        got = f"{directory}, an ensemble of {members}"
        raise fail(_US, f"`name` must be the run of one network, got {got}; train one of them alone.")
    how = Preprocessing.from_json(facts["preprocessing"])
    _, height, width = facts["shape"]
    size = height if height == width else None
    expected = ExpectedInput(how.mean, how.std, size, None if size is None else how.margin, "bilinear")
    network = trained_member(run_dir).eval()
    return TrainedNetwork(f"{directory}", network, expected, tuple(facts["class_names"]))
