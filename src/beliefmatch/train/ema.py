"""A moving average of the weights, which is often better than the weights of any one step."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor, nn

from beliefmatch.train.many import copy_all, move_all

__all__ = ["MovingAverage"]


class MovingAverage:
    """An exponential moving average of a network's parameters.

    The first steps count for more, weight ← weight + (1 − min(decay, (1 + t)/(10 + t))) (now − weight) at
    step t, or the average would long remember where the training began. Buffers are not averaged: those of
    batch normalisation are moving averages already.
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        self.parameters = list(network.parameters())
        self.decay = decay
        self.average: Sequence[Tensor] = [parameter.detach().clone() for parameter in self.parameters]

    def update(self, step: int) -> None:
        """Take in the weights after a step, counted from 0."""
        decay = min(self.decay, (1 + step) / (10 + step))
        move_all(self.average, self.parameters, 1 - decay)

    def apply(self) -> None:
        """Make the average the network's weights."""
        copy_all(self.parameters, self.average)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Lend the average to the network, which gets its own weights back."""
        own = [parameter.detach().clone() for parameter in self.parameters]
        self.apply()
        try:
            yield
        finally:
            copy_all(self.parameters, own)
