"""How long, how fast and by which rule to train; the defaults are the paper's for CIFAR."""

import math
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
from torch import nn

from beliefmatch.checks import fail, require_choice

__all__ = ["Recipe", "clip", "optimizer"]

OPTIMIZERS = ("sgd", "adam")
SCHEDULES = ("step", "cosine", "one_cycle", "constant")


@dataclass(frozen=True)
class Recipe:
    """Settings of a training.

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
    """

    epochs: int = 200
    batch_size: int = 128
    optimizer: Literal["sgd", "adam"] = "sgd"
    learning_rate: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 1e-4
    warmup: tuple[float, ...] = (0.1, 0.2, 0.4, 0.6, 0.8)
    schedule: Literal["step", "cosine", "one_cycle", "constant"] = "step"
    decay_at: tuple[float, ...] = (0.5, 0.75)
    decay_by: float = 0.1
    clip_norm: float | None = 1.0
    clip_each: bool = False
    ema: float | None = None

    def __post_init__(self) -> None:
        require_choice("Recipe", "optimizer", self.optimizer, OPTIMIZERS)
        require_choice("Recipe", "schedule", self.schedule, SCHEDULES)
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise fail("Recipe", f"`{name}` must be at least 1, got {getattr(self, name)}.")
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, float) and not (math.isfinite(value) and value >= 0):
                raise fail("Recipe", f"`{field.name}` must be finite and not negative, got {value!r}.")
        if self.ema is not None and not self.ema < 1:
            raise fail("Recipe", f"`ema` must lie in [0, 1), got {self.ema!r}.")

    def rate(self, epoch: float) -> float:
        """The learning rate after so many epochs, whole or not."""
        progress = epoch / self.epochs
        if self.schedule == "one_cycle":
            return self.learning_rate * _one_cycle(progress)
        warmup = self.warmup[int(epoch)] if epoch < len(self.warmup) else 1.0
        return self.learning_rate * warmup * self._decay(progress)

    def _decay(self, progress: float) -> float:
        if self.schedule == "step":
            return self.decay_by ** sum(progress >= share for share in self.decay_at)
        return 0.5 * (1 + math.cos(math.pi * progress)) if self.schedule == "cosine" else 1.0


def _one_cycle(progress: float, peak: float = 0.3, lowest: float = 0.04) -> float:
    if progress < peak:
        return lowest + (1 - lowest) * 0.5 * (1 - math.cos(math.pi * progress / peak))
    return 0.5 * (1 + math.cos(math.pi * (progress - peak) / (1 - peak)))


def optimizer(recipe: Recipe, network: nn.Module) -> torch.optim.Optimizer:
    """The optimiser of a network's parameters; its rate is set before each step."""
    options: dict[str, Any] = {"lr": recipe.learning_rate, "weight_decay": recipe.weight_decay}
    if recipe.optimizer == "adam":
        return torch.optim.Adam(network.parameters(), **options)
    return torch.optim.SGD(network.parameters(), momentum=recipe.momentum, **options)


def clip(recipe: Recipe, network: nn.Module) -> torch.Tensor:
    """Clip the gradient by the recipe; the norm it had, infinite or NaN where one of its numbers is."""
    gradients = [p.grad for p in network.parameters() if p.grad is not None]
    norms = torch.stack(torch._foreach_norm(gradients)) if gradients else torch.zeros(1)
    total = norms.norm()
    if recipe.clip_norm is None:
        return total
    largest = norms if recipe.clip_each else total.expand_as(norms)
    factors = (recipe.clip_norm / (largest + 1e-6)).clamp(max=1.0)
    torch._foreach_mul_(gradients, list(factors.unbind()))
    return total
