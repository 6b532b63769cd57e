"""One call of the loss, checked but for its values, in the form that every kernel takes."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from beliefmatch.rows import work_dtype

__all__ = ["NAME", "REDUCTIONS", "Problem", "Reduction", "as_tensor"]

NAME = "belief_matching_loss"
Reduction = Literal["mean", "sum", "none"]
REDUCTIONS = ("mean", "sum", "none")


class Problem(NamedTuple):
    """Σ_rows of w ℓ(logits, targets; κλ, β), reduced; values of tensors are not checked yet."""

    logits: Tensor
    targets: Tensor
    prior: float | Tensor
    """β; a tensor has the logits' number of dimensions and broadcasts to their shape."""
    kl_weight: float | Tensor
    """λ; a tensor has the logits' number of dimensions and size 1 along the classes."""
    weight: Tensor | None
    """One a class."""
    dim: int
    """The class dimension: 0 for (K,), else 1."""
    has_ids: bool
    """The targets are class ids, of the logits' shape without K; else counts of the logits' shape."""
    ignore_index: int
    reduction: Reduction

    @property
    def classes(self) -> int:
        """K."""
        return self.logits.shape[self.dim]


def as_tensor(value: float | Tensor, logits: Tensor) -> Tensor:
    """A number as a tensor with the logits' number of dimensions, in the working type."""
    if isinstance(value, Tensor):
        return value
    return torch.full((1,) * logits.dim(), value, dtype=work_dtype(logits.device), device=logits.device)
