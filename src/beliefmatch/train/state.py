"""A training as a checkpoint holds it: weights, optimiser, average, scale, history and place."""

import json
import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from beliefmatch.checks import fail, level_of_caller
from beliefmatch.files import OutsideError
from beliefmatch.train.checkpoint import Checkpoint, load_latest, save
from beliefmatch.train.ema import MovingAverage
from beliefmatch.train.guard import Guard
from beliefmatch.train.history import History, Sums
from beliefmatch.train.step import Stepper

__all__ = ["Place", "Saving", "State", "final_weights", "finite", "plain", "read"]


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
            OutsideError,
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
