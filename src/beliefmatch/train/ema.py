"""Operations on many tensors in one call, as torch's own optimisers use them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

__all__ = ["MovingAverage", "copy_all", "move_all", "norms", "scale_all"]


@torch.no_grad()
def copy_all(to: Sequence[Tensor], of: Sequence[Tensor]) -> None:
    """Give each tensor the values of its counterpart."""
    if to:
        torch.ops.aten._foreach_copy_.default(list(to), list(of))


@torch.no_grad()
def move_all(tensors: Sequence[Tensor], towards: Sequence[Tensor], share: float) -> None:
    """Move each tensor by a share of the way towards its counterpart."""
    if tensors:
        torch.ops.aten._foreach_lerp_.Scalar(list(tensors), list(towards), share)


def norms(tensors: Sequence[Tensor]) -> Tensor:
    """The Euclidean norm of each tensor."""
    return torch.stack(torch.ops.aten._foreach_norm.Scalar(list(tensors)))


@torch.no_grad()
def scale_all(tensors: Sequence[Tensor], factors: Tensor) -> None:
    """Multiply each tensor by its factor."""
    torch.ops.aten._foreach_mul_.List(list(tensors), list(factors.unbind()))


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
