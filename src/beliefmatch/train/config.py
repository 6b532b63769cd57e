"""How long and how fast to train, by which rule and on what; read without torch."""

import math
from typing import Annotated, Literal

from msgspec import Meta

from beliefmatch._config import Config, Count, NonNegative

__all__ = ["EngineConfig", "TrainConfig"]


class TrainConfig(Config, frozen=True, kw_only=True):
    """Settings of a training; the defaults are the paper's for CIFAR.

    Args:
        epochs: passes over the data.
        batch_size: examples in a step, over all processes together.
        optimizer: "sgd" with momentum, or "adam".
        learning_rate: between warm-up and decay.
        momentum: of "sgd".
        weight_decay: as an L2 penalty, as both optimisers' papers have it.
        warmup: factors of the rate in the first epochs. A fresh network's concentrations may be small, where
            the gradient of belief matching is steep.
        schedule: "step", by `decay_by` at each of `decay_at`; "cosine", to zero along half a wave;
            "one_cycle", up over three tenths and down to zero (Smith and Topin 2018), without `warmup`;
            "constant".
        decay_at: shares of the training.
        decay_by: factor at each of them.
        clip_norm: largest norm of the gradient; None leaves it as it is.
        clip_each: each parameter tensor by itself, as the authors' release does, rather than all together.
        ema: decay of an exponential moving average of the weights, which then is what is evaluated.
        validate_every: epochs between two looks at the validation set; the first and last always have one.
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

    def __post_init__(self) -> None:
        super().__post_init__()
        if list(self.decay_at) != sorted(set(self.decay_at)):
            raise ValueError(
                f"TrainConfig: `decay_at` must be shares of the training, each above the one before, "
                f"got {self.decay_at!r}."
            )

    def rate(self, epoch: float) -> float:
        """The learning rate after so many epochs, whole or not."""
        progress = epoch / self.epochs
        if self.schedule == "one_cycle":
            return self.learning_rate * _one_cycle(progress)
        warmup = self.warmup[int(epoch)] if epoch < len(self.warmup) else 1.0
        return self.learning_rate * warmup * self._decay(progress)

    def validates(self, epoch: int) -> bool:
        """Whether the validation set is looked at after an epoch, counted from 0."""
        return epoch == 0 or (epoch + 1) % self.validate_every == 0 or epoch + 1 == self.epochs

    def _decay(self, progress: float) -> float:
        if self.schedule == "step":
            return self.decay_by ** sum(progress >= share for share in self.decay_at)
        return 0.5 * (1 + math.cos(math.pi * progress)) if self.schedule == "cosine" else 1.0


def _one_cycle(progress: float, peak: float = 0.3, lowest: float = 0.04) -> float:
    if progress < peak:
        return lowest + (1 - lowest) * 0.5 * (1 - math.cos(math.pi * progress / peak))
    return 0.5 * (1 + math.cos(math.pi * (progress - peak) / (1 - peak)))


class EngineConfig(Config, frozen=True, kw_only=True):
    """Devices, numbers and layout of a training.

    Args:
        accelerator: "auto", "cpu", "cuda" or "mps", as lightning-fabric names them.
        devices: processes on each machine, one a device; "auto" for all GPUs, one process on a CPU.
        nodes: machines.
        precision: "32"; "bf16" or "16" for mixed precision; "auto" for bf16 where the hardware has it.
        compile: have torch compile the network first.
        threads: of the CPU in each process; torch's own number if not given.
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
            raise ValueError(
                f"EngineConfig: `devices` must be auto or a number above 0, got {self.devices!r}."
            )
