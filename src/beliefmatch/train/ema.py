"""An exponential moving average of a network's parameters."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

__all__ = ["MovingAverage", "foreach_copy"]


class MovingAverage:
    """An exponential moving average of a network's parameters.

    Step t moves it by 1 − min(decay, (1 + t)/(10 + t)) of the way to the new weights. Without the minimum the
    average would remember the initial weights for a long time. Buffers are not averaged: those of batch
    normalisation are moving averages already.
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        self.parameters = list(network.parameters())
        self.decay = decay
        self.average: Sequence[Tensor] = [parameter.detach().clone() for parameter in self.parameters]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Include the weights after a step, counted from 0."""
        decay = min(self.decay, (1 + step) / (10 + step))
        if self.parameters:
            torch.ops.aten._foreach_lerp_.Scalar(list(self.average), self.parameters, 1 - decay)

    def apply(self) -> None:
        """Replace the network's weights by the average."""
        foreach_copy(self.parameters, self.average)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Replace the network's weights by the average inside the block."""
        own = [parameter.detach().clone() for parameter in self.parameters]
        self.apply()
        try:
            yield
        finally:
            foreach_copy(self.parameters, own)


@torch.no_grad()
def foreach_copy(destinations: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy each source to its destination, all in one call."""
    if destinations:
        torch.ops.aten._foreach_copy_.default(list(destinations), list(sources))
