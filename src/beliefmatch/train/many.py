"""Operations on many tensors in one call, as torch's own optimisers use them."""

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["copy_all", "move_all", "norms", "scale_all"]


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
