"""A batch of log-concentrations, split into each row's largest class and the rest.

Most measures of a Dirichlet compare the total concentration α₀ with its largest member. When
one class dominates, the two agree to many digits and their difference is what counts; computed from
rounded totals it is noise. `Rows` keeps the largest class apart: the rest's share of the total is a sum
of small positive numbers. All of it is carried in double precision, whatever the type of the logits, so
that what one rounding of a float32 logit can change is the only error left.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Rows", "result_dtype", "split", "total_minus_top", "work_dtype"]


def result_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type of results: that of the logits, with half precision lifted to float32."""
    return dtype if dtype in (torch.float32, torch.float64) else torch.float32


def work_dtype(device: torch.device) -> torch.dtype:
    """The type that everything is computed in: double, except on devices that have none."""
    return torch.float32 if device.type == "mps" or _is_xpu_without_double(device) else torch.float64


def _is_xpu_without_double(device: torch.device) -> bool:
    return device.type == "xpu" and not torch.xpu.get_device_properties(device).has_fp64


@dataclass(frozen=True, eq=False)
class Rows:
    """Log-concentrations with the largest class of each row set apart. See `split`."""

    z: Tensor
    """Log-concentrations, K-wide."""
    dim: int
    position: Tensor
    """Where the largest class stands; like all row quantities, with `dim` kept at size 1."""
    top: Tensor
    """Its log-concentration z_*."""
    rest: Tensor
    """v = Σ e^(z_k − z_*) over the other classes."""

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
        """softmax(z)."""
        return (self.z - self.top).exp() / (1 + self.rest)

    def at_top(self, elements: Tensor) -> Tensor:
        """The largest class's entry of a tensor of class size K or 1."""
        if elements.shape[self.dim] == 1:
            return elements
        return elements.expand_as(self.z).gather(self.dim, self.position)

    def sum_rest(self, elements: Tensor) -> Tensor:
        """Sum over all classes but the largest of a tensor of class size K or 1."""
        if elements.shape[self.dim] == 1:
            return (self.z.shape[self.dim] - 1) * elements
        others = elements.expand_as(self.z).scatter(self.dim, self.position, 0.0)
        return others.sum(self.dim, keepdim=True)

    def with_top(self, elements: Tensor, top: Tensor) -> Tensor:
        """A K-wide tensor with the largest class's entry replaced."""
        return elements.scatter(self.dim, self.position, top)


def total_minus_top(
    rows: Rows, function: Callable[[Tensor], Tensor], grad: Callable[[Tensor], Tensor]
) -> Tensor:
    """F(ln α₀) − F(ln α_*), from the derivative F′ where the two agree to most of their digits."""
    gap = rows.rest.log1p()
    difference = function(rows.log_total) - function(rows.top)
    small = 1e-5 if gap.dtype == torch.float64 else 5e-3  # about the cube root of the smallest step
    return torch.where(gap < small, gap * grad(rows.top + 0.5 * gap), difference)


def split(logits: Tensor, dim: int, dtype: torch.dtype | None = None) -> Rows:
    """Set the largest class of each row apart. A NaN or +∞ in a row makes the whole row NaN.

    Everything is carried in `dtype`, by default `work_dtype`.
    """
    z = logits.to(dtype or work_dtype(logits.device))
    position = z.argmax(dim, keepdim=True)
    top = z.gather(dim, position)
    top = top + (top - top)  # ∞ − ∞ is NaN
    limit = torch.finfo(z.dtype).max ** 0.95  # headroom for sums
    z, top = z.clamp(-limit, limit), top.clamp(-limit, limit)
    others = (z - top).exp().scatter(dim, position, 0.0)
    return Rows(z, dim, position, top, others.sum(dim, keepdim=True))
