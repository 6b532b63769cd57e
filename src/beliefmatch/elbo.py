r"""The pieces of the negative ELBO and its gradient, exact at any logit.

With evidence m_k, M = Σm_k, α = e^z, s = softmax(z) and the functions of `special`,

.. math::
    \frac{∂ℓ}{∂z_k} = (M s_k - m_k) + λ(r_k - s_k r_0) + M s_k\frac{r_0}{α_0} - m_k\frac{r_k}{α_k}
                    = s_k t_0 D - d_k t_k, \qquad d = m - λα,\; D = \sum_k d_k

The first form serves everywhere but near the optimum: its bracket is the gradient of softmax cross-entropy
towards the smoothed target m/M, and the rest is bounded by λ for large α. Near the optimum α = m/λ the
terms of the second form vanish one by one, and it keeps its digits where the first would lose them. The
poles 1/α are summed apart, relative to a common scale e^−c, so that two infinities never meet.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from beliefmatch import special
from beliefmatch.rows import Rows, total_minus_top

__all__ = [
    "Drift",
    "Evidence",
    "digamma_drop",
    "gradient",
    "largest_exponent",
    "lgamma_drop",
    "poles",
]

CLOSE = 0.5
"""Rows whose every logit is nearer than this to the optimum take the second form."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """m = c + λβ: K-wide in the compute type, and split like the rows it belongs to."""

    each: Tensor
    top: Tensor
    rest: Tensor

    @property
    def total(self) -> Tensor:
        """M = Σm."""
        return self.top + self.rest


class Drift(NamedTuple):
    """δ = z − ln(m/λ), how far each logit is from the optimum: K-wide, and of the largest class."""

    each: Tensor
    top: Tensor


def gradient(rows: Rows, evidence: Evidence, drift: Drift, kl_weight: Tensor) -> Tensor:
    """∂ℓ/∂z, K-wide in the compute type, saturating at its largest finite value.

    A drift that is not finite marks a row that has no optimum (λ = 0).
    """
    is_close = drift.each.abs().amax(rows.dim, keepdim=True) < CLOSE
    close = _gradient_close(rows, evidence, Drift(*(d.clamp(-1, 1) for d in drift)))
    far = _gradient_each(rows, evidence, kl_weight), _gradient_top(rows, evidence, kl_weight)
    each, top = (torch.where(is_close, near, other) for near, other in zip(close, far, strict=True))
    return rows.with_top(special.saturate(each), top)


def _gradient_each(rows: Rows, evidence: Evidence, kl_weight: Tensor) -> Tensor:
    """The gradient of every class; accurate for all but a dominating one."""
    kind = rows.z.dtype
    share, r = rows.share, special.trigamma_excess(rows.z)
    total, r_total = evidence.total.to(kind), special.trigamma_excess(rows.log_total).to(kind)
    scale = _pole_scale(rows)
    pull = total * r_total * (scale - rows.log_total).exp().to(kind)
    poles = pull * share - r * _over_alpha(rows, evidence, scale)
    half = (-0.5 * scale).clamp(max=largest_exponent(kind)).exp().to(kind)
    body = (total * share - evidence.each) + kl_weight.to(kind) * (r - share * r_total)
    return body + (poles * half) * half


def _gradient_top(rows: Rows, evidence: Evidence, kl_weight: Tensor) -> Tensor:
    """The gradient of the largest class, from differences that survive when it dominates."""
    rest, share = rows.rest_share, 1 / (1 + rows.rest)
    r, r_total = special.trigamma_excess(rows.top), special.trigamma_excess(rows.log_total)
    bounded = kl_weight.to(share.dtype) * (r - r_total + rest * r_total)
    body = share * evidence.rest - evidence.top * rest + bounded
    towards_target = evidence.rest * share * share - evidence.top * rest * (1 + share)
    poles = r_total * towards_target + evidence.top * (r_total - r)
    return body + poles * special.exp_saturating(-rows.top)


def _gradient_close(rows: Rows, evidence: Evidence, drift: Drift) -> tuple[Tensor, Tensor]:
    """s_k t₀ D − d_k t_k with d = m − λα = −m (e^δ − 1): every term is of the order of the drift."""
    d, d_top = -evidence.each * drift.each.expm1(), -evidence.top * drift.top.expm1()
    d_rest = rows.sum_rest(d)
    t, t_total = special.trigamma_slope(rows.z), special.trigamma_slope(rows.log_total)
    each = rows.share * ((d_top + d_rest) * t_total).to(d.dtype) - d * t
    rest, share = rows.rest_share, 1 / (1 + rows.rest)
    r, r_total = special.trigamma_excess(rows.top), special.trigamma_excess(rows.log_total)
    # s t₀ − t of the largest class, without the ones that cancel in it
    slope_drop = (r_total - r - rest * r_total) * special.exp_saturating(-rows.top) - rest * t_total
    return each, share * t_total * d_rest + d_top * slope_drop


def digamma_drop(rows: Rows, weights: Tensor) -> Tensor:
    """Σ_k b_k (ψ(1+α₀) − ψ(1+α_k)): an expected log-likelihood without its poles."""
    total = special.digamma_next(rows.log_total)
    others = rows.dot_rest(weights, special.digamma_next(rows.z))
    top = total_minus_top(rows, special.digamma_next, special.digamma_next_slope)
    return rows.at_top(weights) * top + rows.sum_rest(weights) * total - others


def lgamma_drop(rows: Rows) -> Tensor:
    """A(α₀) − Σ A(α_k)."""
    # Where A's −z could matter below this, the poles have long saturated the loss.
    lowest = -2 * largest_exponent(rows.z.dtype)
    bounded = Rows(rows.z.clamp(min=lowest), rows.dim, rows.position, rows.top.clamp(min=lowest), rows.rest)
    top = total_minus_top(bounded, special.lgamma_entropy, lambda z: -special.trigamma_excess(z))
    return top - rows.sum_rest(special.lgamma_entropy(bounded.z))


def poles(rows: Rows, evidence: Evidence) -> Tensor:
    """Σ m_k/α_k − M/α₀ ≥ 0."""
    scale = _pole_scale(rows)
    rest = rows.rest_share
    others = rows.sum_rest(_over_alpha(rows, evidence, scale))
    top = (scale - rows.top).exp() * (evidence.top * rest - evidence.rest * (1 - rest))
    return (others + top) * (-scale).clamp(max=largest_exponent(scale.dtype)).exp()


def _over_alpha(rows: Rows, evidence: Evidence, scale: Tensor) -> Tensor:
    """m_k e^(c − z_k), by two half steps: a small m may bring a power out of range back into it."""
    half = special.exp_saturating(0.5 * (scale.to(rows.z.dtype) - rows.z))
    return (evidence.each * half) * half


def _pole_scale(rows: Rows) -> Tensor:
    """c ≤ 0, near the largest logit when all are negative: e^(c − z) then stays near 1 or above.

    A whole number, so that c − z is exact where it counts.
    """
    return rows.top.detach().ceil().clamp(max=0.0)


def largest_exponent(dtype: torch.dtype) -> float:
    """The largest x, with a little to spare, for which e^x is finite."""
    return math.log(torch.finfo(dtype).max) * 0.9999
