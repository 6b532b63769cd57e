"""Configuration of a reproduction and of its transfers; importable without torch."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta
from msgspec.structs import replace

from beliefmatch._config import Config, NonEmpty, from_mapping, plain
from beliefmatch._errors import fail
from beliefmatch.data.config import DataConfig, name_of_set
from beliefmatch.experiments.config import canonical, parse_setting, settings_hash

__all__ = ["ReproduceConfig", "Scale", "TransferConfig", "transfer_config", "transfer_fingerprint"]

Scale = Literal["paper", "cpu", "tiny"]

_PREFIX, _FORM = "transfer.", "transfer.KEY=VALUE"
_INDIFFERENT = ("device", "compile", "batch")  # settings of a transfer that do not decide its result


class ReproduceConfig(Config, frozen=True, kw_only=True):
    """How to run a reproduction.

    Args:
        scale: The paper's protocol, a small version of it for two cores, or one of seconds.
        out: Output directory of all reproductions, which share the runs in it.
        data_dir: Directory with the datasets, each by its name; they come from the hub if not given.
        settings: `KEY=VALUE` over every configuration; those of transfers start with `transfer.`.
        seeds: Number of seeds; the default is that of the paper or of the scale.
        jobs: Runs at a time; the default depends on the number of cores.
        url: Where runs are kept, if not in `out`, which is then a copy without networks.
        on: Where runs are executed, as `workers_on` takes it.
    """

    scale: Scale = "paper"
    out: NonEmpty = "runs/reproduce"
    data_dir: NonEmpty | None = None
    settings: tuple[str, ...] = ()
    seeds: Annotated[int, Meta(ge=1, le=1000)] | None = None
    jobs: Annotated[int, Meta(ge=1, le=1024)] | None = None
    url: str | None = None
    on: str = "local"

    def settings_of(self, *, transfers: bool) -> list[str]:
        """Settings of transfers, or of training runs, without their prefix."""
        chosen = [one for one in self.settings if one.startswith(_PREFIX) == transfers]
        return [one.removeprefix(_PREFIX) for one in chosen]


class TransferConfig(Config, frozen=True, kw_only=True):
    """A transfer to one dataset; the heads of all methods and seeds are fitted to the same features.

    Args:
        data: Dataset to transfer to.
        model: Network as `beliefmatch adapt` takes it, with the weights of its name unless `weights` is set.
        options: Options of the network.
        weights: File with its weights.
        ood: Out-of-distribution sets.
        kl_weight: λ.
        epochs: Passes over the features.
        batch_size: Rows of a step.
        learning_rate: Learning rate of Adam.
        device: Device used to extract features.
        precision: Precision in which features are computed.
        compile: Whether torch compiles the network first.
        batch: Images of a forward pass.
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
    """Configuration with `KEY=VALUE` settings over it, such as "data.limit=500"; unknown keys are refused."""
    mapping = plain(config)
    for setting in settings:
        (*above, last), value = parse_setting(setting, _FORM)
        if above not in ([], ["data"], ["options"]):
            raise fail("config", f"a setting must be written {_FORM}, got {setting!r}.")
        section = mapping[above[0]] if above else mapping
        if not isinstance(section, dict):
            raise fail("config", f"`{above[0]}` must be a mapping for {setting!r}, got {section!r}.")
        section[last] = value
    return from_mapping(TransferConfig, mapping, caller="config")


def transfer_fingerprint(config: TransferConfig, seeds: Sequence[int]) -> str:
    """A short name of all that decides the result, wherever data and weights are on this machine."""
    run = Path(config.model).expanduser() / "record.json"  # where the network is that of a run
    portable = replace(
        config,
        model=_digest(f"{run}") if run.is_file() else config.model,
        weights=None if config.weights is None else _digest(config.weights),
        data=replace(config.data, directory=None, workers=0),
        ood=tuple(name_of_set(name) for name in config.ood),
    )
    kept = {key: value for key, value in plain(portable).items() if key not in _INDIFFERENT}
    # other numbers have the type of their field; only those of options may be written as 1 or as 1.0
    options = canonical(dict(config.options))
    return settings_hash({**kept, "options": options, "seeds": list(seeds), "kind": "transfer"})


def _digest(file: str) -> str:
    """Digest of the content of a file, so that other weights with the same name have another fingerprint."""
    if not Path(file).expanduser().is_file():
        return file
    state = hashlib.sha256()
    with Path(file).expanduser().open("rb") as opened:
        while block := opened.read(1 << 20):
            state.update(block)
    return state.hexdigest()
