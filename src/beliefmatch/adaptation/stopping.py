"""When to stop each head, and which of its epochs was the best."""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from beliefmatch.adaptation.fitted import Point

__all__ = ["Track"]


@dataclass
class Track:
    """What is known of one head on its way; the best epoch is the first of the lowest validation value."""

    best: float = math.inf
    epoch: int = 0
    """Of the weights that are kept."""
    weight: Tensor | None = None
    bias: Tensor | None = None
    curve: list[Point] = field(default_factory=list)
    diverged_at: int | None = None
    notes: list[str] = field(default_factory=list)

    def add(self, point: Point, value: float | None, weight: Tensor, bias: Tensor) -> None:
        """Note an epoch; copy the weights if it is the best yet. Without a value the last is best."""
        self.curve.append(point)
        is_better = value is None or value < self.best or (self.weight is None and not math.isnan(value))
        if is_better and bool(torch.isfinite(weight).all()):
            self.best = math.inf if value is None else value
            self.epoch = point.epoch
            self.weight, self.bias = _copied(self.weight, weight), _copied(self.bias, bias)

    def is_over(self, patience: int | None) -> bool:
        """Whether the last `patience` epochs have brought nothing better."""
        return patience is not None and bool(self.curve) and self.curve[-1].epoch - self.epoch >= patience


def _copied(room: Tensor | None, values: Tensor) -> Tensor:
    return values.clone() if room is None else room.copy_(values)
