"""The config of one transfer: a trained network, a set, and how last layers are fitted; without torch."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from msgspec.structs import replace

from beliefmatch._config import Config, from_mapping, plain
from beliefmatch.data.config import DataConfig
from beliefmatch.experiments.yaml_files import yaml_value

__all__ = ["TransferConfig", "transfer_config", "transfer_fingerprint"]

_INDIFFERENT = ("device", "compile", "batch")


class TransferConfig(Config, frozen=True, kw_only=True):
    """One set; softmax and belief matching heads with every seed are fitted to the same features.

    Args:
        data: to transfer to.
        model: as `beliefmatch adapt` takes it; with the weights that come with the name unless `weights`.
        options: of the network.
        weights: a file of them.
        OOD: sets that belong to no class.
        kl_weight: λ.
        epochs: passes over the features.
        batch_size: rows of a step.
        learning_rate: of Adam.
        device: that computes features.
        precision: that they are computed in.
        compile: have torch compile the network first.
        batch: images that are computed at a time.
    """

    data: DataConfig
    model: str = "timm:resnet50.tv_in1k"
    options: Mapping[str, Any] = {}
    weights: str | None = None
    ood: tuple[str, ...] = ()
    kl_weight: float = 0.01
    epochs: int = 100
    batch_size: int = 64
    learning_rate: float = 3e-4
    device: str = "cpu"
    precision: Literal["auto", "32", "bf16"] = "auto"
    compile: bool = False
    batch: int = 32


def transfer_config(config: TransferConfig, settings: Sequence[str]) -> TransferConfig:
    """A config with single settings over it, such as "model=timm:resnet18" or "data.limit=500"; strict."""
    mapping = plain(config)
    for setting in settings:
        key, equals, text = setting.partition("=")
        *above, last = key.strip().split(".")
        if not equals or not last or above not in ([], ["data"], ["options"]):
            raise ValueError(f"config: a setting must be written transfer.KEY=VALUE, got {setting!r}.")
        section = mapping[above[0]] if above else mapping
        if not isinstance(section, dict):
            raise ValueError(f"config: `{above[0]}` must be a mapping for {setting!r}, got {section!r}.")
        section[last] = yaml_value(text.strip(), caller="config")
    return from_mapping(TransferConfig, mapping, caller="config")


def transfer_fingerprint(config: TransferConfig, seeds: Sequence[int]) -> str:
    """A short name of all that decides the result, the same wherever data and weights lie."""
    ood = tuple(name.partition("=")[0] for name in config.ood)
    run = Path(config.model).expanduser() / "record.json"  # where the network is that of a run
    model = f"{_content(f'{run}')}" if run.is_file() else config.model
    same = replace(config, model=model, weights=_content(config.weights))
    settings = plain(replace(same, data=replace(config.data, directory=None, workers=0), ood=ood))
    kept = {key: value for key, value in settings.items() if key not in _INDIFFERENT}
    text = json.dumps({**kept, "seeds": list(seeds), "kind": "transfer"}, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _content(weights: str | None) -> str | None:
    """Of a file what it holds, so that other weights of the same name are others."""
    if weights is None or not Path(weights).expanduser().is_file():
        return weights
    state = hashlib.sha256()
    with Path(weights).expanduser().open("rb") as file:
        while block := file.read(1 << 20):
            state.update(block)
    return state.hexdigest()
