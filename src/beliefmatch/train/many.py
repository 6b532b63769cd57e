"""Operations on many tensors in one call, as torch's own optimisers use them."""

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["copy_all", "move_all"]


@torch.no_grad()
def copy_all(to: Sequence[Tensor], of: Sequence[Tensor]) -> None:
    """Give each tensor the values of its counterpart."""
    if to:
        torch.ops.aten._foreach_copy_(list(to), list(of))


@torch.no_grad()
def move_all(tensors: Sequence[Tensor], towards: Sequence[Tensor], share: float) -> None:
    """Move each tensor by a share of the way towards its counterpart."""
    if tensors:
        torch.ops.aten._foreach_lerp_(list(tensors), list(towards), share)
