"""Configuration of a training and of the devices it runs on; importing it does not import torch."""

import math
from typing import Annotated, Literal

from msgspec import Meta

from beliefmatch._config import Config, Count, NonNegative
from beliefmatch._errors import fail

__all__ = ["EngineConfig", "TrainConfig"]


class TrainConfig(Config, frozen=True, kw_only=True):
    """Settings of a training; the defaults are those of the paper for CIFAR.

    Args:
        epochs: passes over the data.
        batch_size: examples in a step, over all processes together.
        optimizer: "sgd" with momentum, or "adam".
        learning_rate: learning rate between warm-up and decay.
        momentum: momentum of "sgd".
        weight_decay: weight of the L2 penalty, which is added to the gradient.
        warmup: factors of the learning rate in the first epochs. The concentrations of an untrained network
            may be small, where the gradient of belief matching is steep.
        schedule: "step" multiplies the rate by `decay_by` at each of `decay_at`; "cosine" decays to zero
            along half a wave; "one_cycle" rises over 0.3 of the training and decays to zero, without `warmup`
            (Smith and Topin 2018); "constant" does not change it.
        decay_at: increasing fractions of the training at which "step" decays.
        decay_by: factor at each of `decay_at`.
        clip_norm: largest norm of the gradient; None does not clip.
        clip_each: whether to clip the gradient of each parameter tensor by itself, as the authors' release
            does, rather than all together.
        ema: decay of an exponential moving average of the weights, which is evaluated in their place.
        validate_every: epochs between two validations; the first and last epoch are always validated.
        epoch_steps: steps of an epoch, for a training of an exact number of steps; examples repeat or wait
            for the next epoch accordingly. As many as a pass over the training examples takes if not given.
    """

    epochs: Count = 200
    batch_size: Count = 128
    optimizer: Literal["sgd", "adam"] = "sgd"
    learning_rate: NonNegative = 0.1
    momentum: NonNegative = 0.9
    weight_decay: NonNegative = 1e-4
    warmup: tuple[NonNegative, ...] = (0.1, 0.2, 0.4, 0.6, 0.8)
    schedule: Literal["step", "cosine", "one_cycle", "constant"] = "step"
    decay_at: tuple[Annotated[float, Meta(ge=0, le=1)], ...] = (0.5, 0.75)
    decay_by: NonNegative = 0.1
    clip_norm: NonNegative | None = 1.0
    clip_each: bool = False
    ema: Annotated[float, Meta(ge=0, lt=1)] | None = None
    validate_every: Count = 1
    epoch_steps: Count | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if list(self.decay_at) != sorted(set(self.decay_at)):
            raise fail("TrainConfig", f"`decay_at` must be increasing fractions, got {self.decay_at!r}.")

    def rate(self, epoch: float) -> float:
        """The learning rate after a number of epochs, which may have a fraction."""
        progress = epoch / self.epochs
        if self.schedule == "one_cycle":
            return self.learning_rate * _one_cycle(progress)
        warmup = self.warmup[int(epoch)] if epoch < len(self.warmup) else 1.0
        return self.learning_rate * warmup * self._decay(progress)

    def epoch_examples(self, examples: int) -> int:
        """Examples that an epoch takes, of so many training examples.

        >>> TrainConfig().epoch_examples(45000), TrainConfig(epoch_steps=1000).epoch_examples(45000)
        (45000, 128000)
        """
        return examples if self.epoch_steps is None else self.epoch_steps * self.batch_size

    def validates(self, epoch: int) -> bool:
        """Whether an epoch, counted from 0, is followed by a validation."""
        return epoch == 0 or (epoch + 1) % self.validate_every == 0 or epoch + 1 == self.epochs

    def _decay(self, progress: float) -> float:
        if self.schedule == "step":
            return self.decay_by ** sum(progress >= fraction for fraction in self.decay_at)
        return 0.5 * (1 + math.cos(math.pi * progress)) if self.schedule == "cosine" else 1.0


def _one_cycle(progress: float, peak: float = 0.3, lowest: float = 0.04) -> float:
    if progress < peak:
        return lowest + (1 - lowest) * 0.5 * (1 - math.cos(math.pi * progress / peak))
    return 0.5 * (1 + math.cos(math.pi * (progress - peak) / (1 - peak)))


class EngineConfig(Config, frozen=True, kw_only=True):
    """Devices, processes and precision of a training.

    Args:
        accelerator: "auto", "cpu", "cuda" or "mps", as lightning-fabric names them.
        devices: number of processes on each machine, one for each device; "auto" is one for each GPU, or one
            process on a CPU.
        nodes: number of machines.
        precision: "32"; "bf16" or "16" for mixed precision; "auto" is bf16 where the hardware is faster with
            it.
        compile: whether to compile the network with `torch.compile`.
        threads: CPU threads of each process; torch's default if not given.
    """

    accelerator: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    devices: str = "auto"
    nodes: Count = 1
    precision: Literal["auto", "32", "bf16", "16"] = "auto"
    compile: bool = False
    threads: Count | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.devices != "auto" and not (self.devices.isdigit() and int(self.devices) > 0):
            raise fail("EngineConfig", f"`devices` must be auto or a number above 0, got {self.devices!r}.")
