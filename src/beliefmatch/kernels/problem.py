"""One call of the loss, checked but for its values, in the form that every kernel takes."""

from typing import Literal, NamedTuple

from torch import Tensor

__all__ = ["NAME", "REDUCTIONS", "Options", "Problem", "Reduction"]

NAME = "belief_matching_loss"
Reduction = Literal["mean", "sum", "none"]
REDUCTIONS = ("mean", "sum", "none")


class Options(NamedTuple):
    """What is not a tensor."""

    prior: float
    """β where it is one number."""
    kl_weight: float
    """λ where it is one number."""
    dim: int
    """The class dimension: 0 for (K,), else 1."""
    has_ids: bool
    """The targets are class ids, of the logits' shape without K; else counts of the logits' shape."""
    ignore_index: int
    reduction: Reduction


class Problem(NamedTuple):
    """The loss of a batch, reduced; the values of tensors are not checked yet."""

    logits: Tensor
    targets: Tensor
    weight: Tensor | None
    """One a class."""
    priors: Tensor | None
    """β where it is not one number: the logits' number of dimensions, broadcasting to their shape."""
    kl_weights: Tensor | None
    """λ where it is not one number: the logits' number of dimensions, of size 1 along the classes."""
    options: Options
