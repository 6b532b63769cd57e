"""A batch of log-concentrations, split into each row's largest class and the rest.

Most of what a Dirichlet is asked for compares the total concentration α₀ with its largest member. When
one class dominates, the two agree to many digits and their difference is what counts; computed from
rounded totals it is noise. `Rows` keeps the largest class apart: the rest's share of the total is a sum
of small positive numbers, and quantities of one number a row are carried in double precision, which
costs nothing beside the K-wide work.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from beliefmatch.special import saturate

__all__ = ["Rows", "compute_dtype", "row_dtype", "split", "total_minus_top"]


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type that K-wide work is done in: half precision is lifted to float32."""
    return dtype if dtype in (torch.float32, torch.float64) else torch.float32


def row_dtype(device: torch.device) -> torch.dtype:
    """The type of one-number-a-row quantities: double, except on devices that have none."""
    return torch.float32 if device.type == "mps" else torch.float64


@dataclass(frozen=True, eq=False)
class Rows:
    """Log-concentrations with the largest class of each row set apart. See `split`."""

    z: Tensor
    """Log-concentrations, in the compute type."""
    dim: int
    position: Tensor
    """Where the largest class stands; like all row quantities, with `dim` kept at size 1."""
    top: Tensor
    """Its log-concentration z_*, in the row type."""
    rest: Tensor
    """v = Σ e^(z_k − z_*) over the other classes, in the row type."""

    @property
    def log_total(self) -> Tensor:
        """ln α₀."""
        return self.top + self.rest.log1p()

    @property
    def rest_share(self) -> Tensor:
        """1 − s_*, the share of all classes but the largest, never lost to rounding."""
        return self.rest / (1 + self.rest)

    @property
    def share(self) -> Tensor:
        """softmax(z), in the compute type."""
        total = (1 + self.rest).to(self.z.dtype)
        return (self.z - self.top.to(self.z.dtype)).exp() / total

    def at_top(self, elements: Tensor) -> Tensor:
        """The largest class's entry of a tensor of class size K or 1, in the row type."""
        if elements.shape[self.dim] == 1:
            return elements.to(self.top.dtype)
        return elements.expand_as(self.z).gather(self.dim, self.position).to(self.top.dtype)

    def sum_rest(self, elements: Tensor) -> Tensor:
        """Sum over all classes but the largest of a tensor of class size K or 1, in the row type."""
        if elements.shape[self.dim] == 1:
            return (self.z.shape[self.dim] - 1) * elements.to(self.top.dtype)
        others = elements.expand_as(self.z).scatter(self.dim, self.position, 0.0)
        return others.sum(self.dim, keepdim=True, dtype=self.top.dtype)

    def dot_rest(self, weights: Tensor, elements: Tensor) -> Tensor:
        """Sum of weights · elements over all classes but the largest, in the row type."""
        if weights.shape[self.dim] == 1:
            return weights.to(self.top.dtype) * self.sum_rest(elements)
        return self.sum_rest(weights.to(elements.dtype) * elements)

    def with_top(self, elements: Tensor, top: Tensor) -> Tensor:
        """A K-wide tensor with the largest class's entry replaced by its row-type value."""
        return elements.scatter(self.dim, self.position, saturate(top, elements.dtype))


def total_minus_top(
    rows: Rows, function: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor]
) -> Tensor:
    """F(ln α₀) − F(ln α_*), from the slope F′ where the two agree to most of their digits."""
    gap = rows.rest.log1p()
    difference = function(rows.log_total) - function(rows.top)
    return torch.where(gap < 1e-5, gap * slope(rows.top + 0.5 * gap), difference)


def split(logits: Tensor, dim: int) -> Rows:
    """Set the largest class of each row apart. A NaN or +∞ in a row makes the whole row NaN."""
    z = logits.to(compute_dtype(logits.dtype))
    wide = row_dtype(z.device)
    position = z.argmax(dim, keepdim=True)
    top = z.gather(dim, position)
    top = top + (top - top)  # ∞ − ∞ is NaN
    if z.dtype == wide:  # leave headroom for sums; narrower types have it in the row type
        limit = torch.finfo(wide).max ** 0.95
        z, top = z.clamp(-limit, limit), top.clamp(-limit, limit)
    others = (z - top).exp().scatter(dim, position, 0.0)
    return Rows(z, dim, position, top.to(wide), others.sum(dim, keepdim=True, dtype=wide))
