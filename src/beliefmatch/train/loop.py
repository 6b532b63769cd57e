"""A plain training loop: seeded shuffling, warm-up, step decay, clipped gradients."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

__all__ = ["Schedule", "fit"]


@dataclass(frozen=True)
class Schedule:
    """How long and how fast to train; warm-up, decay and clipping are the paper's.

    Args:
        epochs: passes over the data.
        batch_size: examples in a step.
        learning_rate: Adam's rate between warm-up and decay.
        warmup: factors of the rate in the first epochs. A fresh network's concentrations may be
            small, where the gradient of belief matching is steep.
        decay_at: shares of the training after which the rate falls to a tenth.
        clip_norm: largest norm of the gradient over all parameters.
    """

    epochs: int
    batch_size: int = 64
    learning_rate: float = 3e-3
    warmup: tuple[float, ...] = (0.1, 0.2, 0.4, 0.6, 0.8)
    decay_at: tuple[float, ...] = (0.5, 0.75)
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"Schedule: `{name}` must be at least 1, got {getattr(self, name)}.")

    def rate(self, epoch: int) -> float:
        """Learning rate of an epoch, counted from 0."""
        warmup = self.warmup[epoch] if epoch < len(self.warmup) else 1.0
        decays = sum(epoch >= share * self.epochs for share in self.decay_at)
        return self.learning_rate * warmup * 0.1**decays


def fit(
    network: nn.Module,
    objective: Callable[[Tensor, Tensor], Tensor],
    inputs: Tensor,
    targets: Tensor,
    *,
    schedule: Schedule,
    seed: int,
    on_epoch: Callable[[int, float], None] | None = None,
) -> list[float]:
    """Train `network` in place and return the mean loss of each epoch.

    Args:
        network: maps a batch of inputs to logits.
        objective: ``loss(logits, targets)``, a scalar averaged over the batch.
        inputs: all training inputs, examples first.
        targets: as many targets.
        schedule: epochs and rates.
        seed: of the shuffling, which touches no global random state.
        on_epoch: called with the epoch, counted from 0, and its mean loss.
    """
    if len(inputs) != len(targets) or len(inputs) == 0:
        raise ValueError(
            "fit: `inputs` and `targets` must be equally many and at least one, "
            f"got {len(inputs)} and {len(targets)}."
        )
    optimizer = torch.optim.Adam(network.parameters())
    generator = torch.Generator().manual_seed(seed)
    losses = []
    for epoch in range(schedule.epochs):
        for group in optimizer.param_groups:
            group["lr"] = schedule.rate(epoch)
        batches = torch.randperm(len(inputs), generator=generator).split(schedule.batch_size)
        network.train()
        total = 0.0
        for batch in batches:
            loss = objective(network(inputs[batch]), targets[batch])
            _step(optimizer, network, loss, schedule.clip_norm)
            total += loss.item() * len(batch)
        losses.append(total / len(inputs))
        if not math.isfinite(losses[-1]):
            raise FloatingPointError(f"fit: the loss of epoch {epoch} is {losses[-1]}.")
        if on_epoch is not None:
            on_epoch(epoch, losses[-1])
    return losses


def _step(optimizer: torch.optim.Optimizer, network: nn.Module, loss: Tensor, clip_norm: float) -> None:
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(network.parameters(), clip_norm)
    optimizer.step()
