"""Checkpoints that cannot execute code, are written completely or not at all, and are verified when read.

A checkpoint is two files: `step-000000012.safetensors` has the tensors, and `step-000000012.json` the rest
with the checksum of the tensors. The JSON file is written last, and a checkpoint without it does not count.
Both are written under another name and renamed. The previous checkpoint is kept in case the last one is
damaged.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from beliefmatch._environment import needs
from beliefmatch._files import EnvironmentFailure, atomic_write
from beliefmatch._utils import reason_of
from beliefmatch._validate import fail, warn
from beliefmatch.train.ema import MovingAverage
from beliefmatch.train.history import EpochSums, History

__all__ = [
    "Checkpoint",
    "Checkpointing",
    "TrainingState",
    "final_weights",
    "has_checkpoints",
    "load_latest",
    "read_checkpoint",
    "save",
    "write_checkpoint",
]

FORMAT = "beliefmatch.checkpoint/2"
KEPT = 2
_NAME = re.compile(r"step-(\d+)\.json")


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The state of a training after `step` steps: tensors, and the rest as JSON values."""

    step: int
    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class Checkpointing:
    """Where and how often a training writes checkpoints.

    Args:
        directory: directory for the checkpoints of this training alone.
        every_seconds: seconds between two checkpoints; None for none by time.
        every_epochs: epochs between two checkpoints; None for none by epochs.
        configuration: settings, as JSON values, that a checkpoint must agree with to be resumed. The training
            configuration, the seed, the shapes of the network and the number of examples are always checked.
    """

    directory: Path
    every_seconds: float | None = 120.0
    every_epochs: int | None = None
    configuration: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class TrainingState:
    """Everything that changes during a training."""

    network: nn.Module
    optimizer: torch.optim.Optimizer
    average: MovingAverage | None = None
    scaler: torch.amp.GradScaler | None = None
    epoch: int = 0
    batch: int = 0
    """Batches of the running epoch that are done."""
    step: int = 0
    """Batches since the beginning of the training."""
    finished: bool = False
    skipped_in_a_row: int = 0
    sums: EpochSums = field(default_factory=EpochSums)
    history: History = field(default_factory=History)

    def facts(self) -> dict[str, Any]:
        """What is not a tensor, as JSON values."""
        return {
            "position": {name: getattr(self, name) for name in _POSITION},
            "skipped_in_a_row": self.skipped_in_a_row,
            "sums": asdict(self.sums),
            "history": self.history.to_json(),
            "scaler": self.scaler and self.scaler.state_dict(),
        }

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """All tensors by name; only the weights if the training is finished."""
        for name, tensor in self.network.state_dict().items():
            yield f"network.{name}", tensor
        if self.finished:
            return
        for index, values in self.optimizer.state_dict()["state"].items():
            for name, value in values.items():
                yield f"optimizer.{index}.{name}", torch.as_tensor(value)
        for index, tensor in enumerate(self.average.average if self.average else ()):
            yield f"average.{index}", tensor

    def restore(self, checkpoint: Checkpoint) -> None:
        """Return to the state that a checkpoint holds."""
        facts, tensors = checkpoint.facts, checkpoint.tensors
        self.network.load_state_dict(_with_prefix("network", tensors))
        for name, value in facts["position"].items():
            setattr(self, name, value)
        self.skipped_in_a_row, self.sums = facts["skipped_in_a_row"], EpochSums(**facts["sums"])
        self.history = History.from_json(facts["history"])
        if self.finished:
            return
        parameters = list(self.network.parameters())
        state: dict[int, dict[str, Tensor]] = {}
        for key, tensor in _with_prefix("optimizer", tensors).items():
            index, name = key.split(".", 1)
            state.setdefault(int(index), {})[name] = _in_layout_of(parameters[int(index)], tensor)
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": state})
        if self.average is not None:
            for index, tensor in _with_prefix("average", tensors).items():
                self.average.average[int(index)].copy_(tensor)
        if self.scaler is not None and facts["scaler"]:
            self.scaler.load_state_dict(facts["scaler"])


_POSITION = ("epoch", "batch", "step", "finished")


def write_checkpoint(
    directory: Path, state: TrainingState, configuration: Mapping[str, Any], engine: Mapping[str, Any]
) -> None:
    """Write a checkpoint of a training; the error of a full disk says how to continue."""
    facts = {"configuration": dict(configuration), "engine": dict(engine), **state.facts()}
    step = state.step + state.finished  # the final checkpoint must not overwrite that of the last step
    try:
        save(directory, Checkpoint(step, dict(state.tensors()), facts))
    except OSError as error:
        is_resumed = has_checkpoints(directory)
        kept = "the previous one is complete" if is_resumed else "there is none to resume from"
        raise OSError(
            error.errno,
            f"fit: no checkpoint could be written ({error.strerror}); {kept}: "
            "free some disk space and run the same command again",
            str(directory),
        ) from error


def has_checkpoints(directory: Path) -> bool:
    """Whether a checkpoint was written in a directory or below it."""
    return any(_NAME.fullmatch(path.name) for path in directory.rglob("step-*.json"))


def read_checkpoint(
    directory: Path, configuration: Mapping[str, Any], engine: Mapping[str, Any]
) -> Checkpoint | None:
    """The last complete checkpoint, if any; EnvironmentFailure if it is one of another configuration."""
    checkpoint = load_latest(directory)
    if checkpoint is None:
        return None
    different = next(_differences(checkpoint.facts["configuration"], configuration), None)
    if different is not None:
        raise fail(
            "fit",
            f"`directory` must be new or contain the same training, got {directory}, where {different}; "
            "choose another directory or the previous settings.",
            EnvironmentFailure,
        )
    # The layout follows from the device and the network, which are compared; checkpoints of earlier versions
    # state "channels_last" for every network.
    comparable = {**checkpoint.facts["engine"], "layout": engine.get("layout")}
    changed = next(_differences(comparable, engine), None)
    if changed is not None and not checkpoint.facts["position"]["finished"]:
        warn("fit", f"the training in {directory} is resumed, but not bit for bit: {changed}.")
    return checkpoint


def final_weights(directory: Path) -> dict[str, Tensor] | None:
    """The state dict of the network of a finished training; None if there is no finished training."""
    checkpoint = load_latest(directory)
    if checkpoint is None or not checkpoint.facts["position"]["finished"]:
        return None
    return _with_prefix("network", checkpoint.tensors)


def save(directory: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint and remove all but the last `KEPT`; OSError if the disk is full."""
    with needs("safetensors", extra="files", caller="checkpoint"):
        from safetensors.torch import save as to_bytes

    directory.mkdir(parents=True, exist_ok=True)
    content = to_bytes({name: _owned_cpu_copy(tensor) for name, tensor in checkpoint.tensors.items()})
    facts = {
        "format": FORMAT,
        "step": checkpoint.step,
        "sha256": hashlib.sha256(content).hexdigest(),
        "facts": dict(checkpoint.facts),
    }
    tensors_path, facts_path = _paths(directory, checkpoint.step)
    atomic_write(tensors_path, content)
    atomic_write(facts_path, (json.dumps(facts, indent=1, allow_nan=False) + "\n").encode())
    for step in _steps(directory)[:-KEPT]:
        for path in reversed(_paths(directory, step)):  # the JSON file first, which makes it a checkpoint
            path.unlink(missing_ok=True)


def load_latest(directory: Path) -> Checkpoint | None:
    """The last complete checkpoint, or None; a warning names each that is damaged."""
    for step in reversed(_steps(directory)):
        try:
            return _load(directory, step)
        except (OSError, ValueError) as error:
            path = _paths(directory, step)[1]
            warn("fit", f"the checkpoint {path} is not used ({reason_of(error)}); trying the previous one.")
    return None


def _load(directory: Path, step: int) -> Checkpoint:
    with needs("safetensors", extra="files", caller="checkpoint"):
        from safetensors.torch import load

    tensors_path, facts_path = _paths(directory, step)
    facts = json.loads(facts_path.read_text("utf-8"))
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        raise ValueError(f"expected the format {FORMAT}")
    content = tensors_path.read_bytes()
    if hashlib.sha256(content).hexdigest() != facts.get("sha256"):
        raise ValueError(f"the checksum of {tensors_path.name} does not match")
    return Checkpoint(facts["step"], load(content), facts["facts"])


def _owned_cpu_copy(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def _paths(directory: Path, step: int) -> tuple[Path, Path]:
    name = f"step-{step:09d}"
    return directory / f"{name}.safetensors", directory / f"{name}.json"


def _steps(directory: Path) -> list[int]:
    if not directory.is_dir():
        return []
    matches = (_NAME.fullmatch(path.name) for path in directory.iterdir())
    return sorted(int(match[1]) for match in matches if match)


def _with_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    start = f"{prefix}."
    return {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}


def _in_layout_of(parameter: Tensor, tensor: Tensor) -> Tensor:
    """A tensor in the memory layout of its parameter, which is faster for the optimiser."""
    if tensor.shape != parameter.shape:
        return tensor
    return torch.empty_like(parameter, dtype=tensor.dtype).copy_(tensor)


def _differences(before: Mapping[str, Any], now: Mapping[str, Any], path: str = "") -> Iterator[str]:
    for name in sorted({*before, *now}):
        old, new = before.get(name), now.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _differences(old, new, f"{path}{name}.")
        elif old != new:
            yield f"{path}{name} was {old!r} and is now {new!r}"
