"""Implementations of the loss: the reference in tensor operations, and which one is in use."""

from dataclasses import dataclass

from torch import Tensor

from beliefmatch import autograd
from beliefmatch.kernels import reference

__all__ = ["KernelStatus", "negative_elbo", "status"]


@dataclass(frozen=True)
class KernelStatus:
    """Which implementation computes the loss, and why."""

    name: str
    reason: str


def status() -> KernelStatus:
    """The loss kernel in use."""
    return KernelStatus("reference", "plain tensor operations; the only kernel in this version")


def negative_elbo(logits: Tensor, counts: Tensor, prior: Tensor, kl_weight: Tensor, dim: int) -> Tensor:
    """The loss of each row, differentiable in all four tensors; see `reference.negative_elbo`."""
    return autograd.apply(reference.NEGATIVE_ELBO, dim, logits, counts, prior, kl_weight)
