"""Checkpoints that cannot execute code, cannot be half there, and say when they are broken.

A checkpoint is two files: tensors in `step-000012.safetensors`, and in `step-000012.json` the rest with the
tensors' checksum. The second is written last, so that a checkpoint without it never was one. Both are written
beside their place and moved into it. The one before is kept: if the last turns out broken, it serves.
"""

import hashlib
import json
import math
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from beliefmatch._environment import needs
from beliefmatch._files import EnvironmentFailure, atomic_write
from beliefmatch._validate import fail, level_of_caller
from beliefmatch.train.ema import MovingAverage
from beliefmatch.train.history import History, Sums
from beliefmatch.train.step import Guard, Stepper

__all__ = [
    "Checkpoint",
    "Place",
    "Saving",
    "State",
    "final_weights",
    "finite",
    "load_latest",
    "plain",
    "read",
    "save",
]

FORMAT = "beliefmatch.checkpoint/1"
KEPT = 2
_NAME = re.compile(r"step-(\d+)\.json")


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A state of a training, after so many steps."""

    step: int
    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any]
    """What is not a tensor, as JSON can hold it."""


def save(directory: Path, checkpoint: Checkpoint, *, kept: int = KEPT) -> Path:
    """Write a checkpoint and remove all but the last `kept`. OSError where the disk does not take it."""
    with needs("safetensors", extra="files", caller="checkpoint"):
        from safetensors.torch import save as to_bytes

    directory.mkdir(parents=True, exist_ok=True)
    content = to_bytes({name: _own(tensor) for name, tensor in checkpoint.tensors.items()})
    facts = {
        "format": FORMAT,
        "step": checkpoint.step,
        "sha256": hashlib.sha256(content).hexdigest(),
        "facts": dict(checkpoint.facts),
    }
    tensors, said = _paths(directory, checkpoint.step)
    atomic_write(tensors, content)
    atomic_write(said, (json.dumps(facts, indent=1, allow_nan=False) + "\n").encode())
    for step in _steps(directory)[:-kept]:
        for path in reversed(_paths(directory, step)):  # the half that makes it one first
            path.unlink(missing_ok=True)
    return said


def load_latest(directory: Path) -> Checkpoint | None:
    """The last checkpoint that is whole; a warning names those that are not. None if there is none."""
    for step in reversed(_steps(directory)):
        try:
            return _load(directory, step)
        except (OSError, ValueError) as error:
            warnings.warn(
                f"checkpoint: {_paths(directory, step)[1]} is not used ({error}); trying the one before.",
                stacklevel=2,
            )
    return None


def _load(directory: Path, step: int) -> Checkpoint:
    with needs("safetensors", extra="files", caller="checkpoint"):
        from safetensors.torch import load

    tensors, said = _paths(directory, step)
    facts = json.loads(said.read_text("utf-8"))
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        raise ValueError(f"expected {FORMAT}")
    content = tensors.read_bytes()
    if hashlib.sha256(content).hexdigest() != facts.get("sha256"):
        raise ValueError(f"the checksum of {tensors.name} is another")
    return Checkpoint(facts["step"], load(content), facts["facts"])


def _own(tensor: Tensor) -> Tensor:
    """On the CPU, contiguous, its memory shared with nobody."""
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def _paths(directory: Path, step: int) -> tuple[Path, Path]:
    name = f"step-{step:09d}"
    return directory / f"{name}.safetensors", directory / f"{name}.json"


def _steps(directory: Path) -> list[int]:
    if not directory.is_dir():
        return []
    found = (_NAME.fullmatch(path.name) for path in directory.iterdir())
    return sorted(int(match[1]) for match in found if match)


@dataclass(frozen=True)
class Saving:
    """Where a training keeps its checkpoints, and how often it writes one.

    Args:
        directory: of the checkpoints of this training alone.
        seconds: between two; None for none by time.
        epochs: between two; None for none by epochs.
        configuration: settings, as JSON can hold them, without which a checkpoint is not this training's. The
            recipe, the seed, the shapes of the network and the number of examples are always among them.
    """

    directory: Path
    seconds: float | None = 120.0
    epochs: int | None = None
    configuration: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Place:
    """How far a training is: whole epochs, and batches of the one that is running."""

    epoch: int = 0
    batch: int = 0
    step: int = 0
    """Batches since the beginning."""
    finished: bool = False


@dataclass
class State:
    """All that changes during a training."""

    stepper: Stepper
    average: MovingAverage | None
    place: Place = field(default_factory=Place)
    sums: Sums = field(default_factory=Sums)
    guard: Guard = field(default_factory=Guard)
    history: History = field(default_factory=History)

    def save(self, directory: Path, configuration: Mapping[str, Any]) -> None:
        """Write a checkpoint; the error of a full disk says that nothing is lost."""
        facts = {
            "configuration": dict(configuration),
            "engine": self.stepper.engine.describe(),
            "place": asdict(self.place),
            "sums": asdict(self.sums),
            "skipped_in_a_row": self.guard.in_a_row,
            "history": self.history.plain(),
            "scaler": self.stepper.engine.scaler and self.stepper.engine.scaler.state_dict(),
        }
        step = self.place.step + self.place.finished  # a name of its own: the one before stays whole
        try:
            save(directory, Checkpoint(step, dict(self._tensors()), facts))
        except OSError as error:
            remedy = "the checkpoint before is whole: make room and run the same command again"
            raise OSError(
                error.errno,
                f"fit: no checkpoint could be written ({error.strerror}); {remedy}",
                str(directory),
            ) from error

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self.stepper.network.state_dict().items():
            yield f"network.{name}", tensor
        if self.place.finished:
            return  # the weights are all that is wanted of it
        for index, values in self.stepper.plain.state_dict()["state"].items():
            for name, value in values.items():
                yield f"optimizer.{index}.{name}", torch.as_tensor(value)
        for index, tensor in enumerate(self.average.average if self.average else ()):
            yield f"average.{index}", tensor

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go back to where a checkpoint was written."""
        facts, tensors = checkpoint.facts, checkpoint.tensors
        self.stepper.network.load_state_dict(_below("network", tensors))
        self.place, self.sums = Place(**facts["place"]), Sums(**facts["sums"])
        self.guard.in_a_row = facts["skipped_in_a_row"]
        self.history = History.of(facts["history"])
        if self.place.finished:
            return
        self._restore_optimizer(_below("optimizer", tensors))
        for name, tensor in _below("average", tensors).items() if self.average else ():
            self.average.average[int(name)].copy_(tensor)  # type: ignore[union-attr]
        if self.stepper.engine.scaler is not None and facts["scaler"]:
            self.stepper.engine.scaler.load_state_dict(facts["scaler"])

    def _restore_optimizer(self, tensors: Mapping[str, Tensor]) -> None:
        parameters = list(self.stepper.network.parameters())
        state: dict[int, dict[str, Tensor]] = {}
        for key, tensor in tensors.items():
            index, name = key.split(".", 1)
            state.setdefault(int(index), {})[name] = _laid_out(tensor, parameters[int(index)])
        whole = self.stepper.plain.state_dict()
        self.stepper.plain.load_state_dict({**whole, "state": state})


def read(directory: Path, configuration: Mapping[str, Any], engine: Mapping[str, Any]) -> Checkpoint | None:
    """The last whole checkpoint, if there is one. ValueError if it belongs to another configuration."""
    checkpoint = load_latest(directory)
    if checkpoint is None:
        return None
    different = list(_differences(checkpoint.facts["configuration"], configuration))
    if different:
        raise fail(
            "fit",
            f"`directory` must be new or hold the same training, got {directory}, "
            f"where {different[0]}; choose another directory or the settings of before.",
            EnvironmentFailure,
        )
    changed = list(_differences(checkpoint.facts["engine"], engine))
    if changed and not checkpoint.facts["place"]["finished"]:
        warnings.warn(
            f"fit: the training in {directory} goes on, but not bit for bit as it would have: {changed[0]}.",
            stacklevel=level_of_caller(),
        )
    return checkpoint


def final_weights(directory: Path) -> dict[str, Tensor] | None:
    """The state dict that a finished training has left; None if there is none that is finished."""
    checkpoint = load_latest(directory)
    if checkpoint is None or not checkpoint.facts["place"]["finished"]:
        return None
    return _below("network", checkpoint.tensors)


def plain(value: Any) -> Any:
    """As JSON gives it back: lists for tuples, None for numbers that are not finite."""
    return json.loads(json.dumps(value), parse_constant=lambda _: None)


def finite(numbers: Mapping[str, float]) -> dict[str, float | None]:
    """Numbers as JSON can hold them."""
    return {name: float(value) if math.isfinite(value) else None for name, value in numbers.items()}


def _below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    start = f"{prefix}."
    return {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}


def _laid_out(tensor: Tensor, parameter: Tensor) -> Tensor:
    """In the memory layout of its parameter, where it has its shape: the optimiser is faster so."""
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
