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

from dataclasses import dataclass

import torch
from torch import Tensor

from beliefmatch import _special as special
from beliefmatch._rows import Rows, total_minus_top

__all__ = [
    "Evidence",
    "digamma_drop",
    "gradient",
    "lgamma_drop",
    "poles",
]

CLOSE = 0.5
"""Rows whose every logit is nearer than this to the optimum take the second form."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """m = c + λβ: K-wide, and split like the rows it belongs to."""

    each: Tensor
    top: Tensor
    rest: Tensor

    @classmethod
    def of(cls, rows: Rows, each: Tensor) -> "Evidence":
        """Split K-wide evidence like the rows."""
        return cls(each, rows.at_top(each), rows.sum_rest(each))

    @property
    def total(self) -> Tensor:
        """M = Σm."""
        return self.top + self.rest


def gradient(rows: Rows, evidence: Evidence, drift: Tensor, kl_weight: Tensor) -> Tensor:
    """∂ℓ/∂z, K-wide, saturating at the largest finite value.

    `drift` is δ = z − ln(m/λ), how far each logit is from the optimum; infinite where there is none (λ = 0).
    """
    share, r = rows.share, special.trigamma_excess(rows.z)
    close = _gradient_close(rows, evidence, drift.clamp(-1, 1), share, r)
    far = _gradient_far(rows, evidence, kl_weight, share, r)
    is_close = drift.abs().amax(rows.dim, keepdim=True) < CLOSE
    return special.saturate(torch.where(is_close, close, far))


def _gradient_far(rows: Rows, evidence: Evidence, kl_weight: Tensor, share: Tensor, r: Tensor) -> Tensor:
    """The first form."""
    r_total = special.trigamma_excess(rows.log_total)
    scale = _pole_scale(rows)
    pull = evidence.total * r_total * (scale - rows.log_total).exp()
    poles = pull * share - r * _over_alpha(rows, evidence, scale)
    half = special.exp_saturating(-0.5 * scale)
    body = (evidence.total * share - evidence.each) + kl_weight * (r - share * r_total)
    return rows.with_top(body + (poles * half) * half, _gradient_top(rows, evidence, kl_weight))


def _gradient_top(rows: Rows, evidence: Evidence, kl_weight: Tensor) -> Tensor:
    """The first form for the largest class, from differences that survive when it dominates."""
    rest, share = rows.rest_share, 1 / (1 + rows.rest)
    r_total, r_drop = special.trigamma_excess(rows.log_total), _excess_drop(rows)
    bounded = kl_weight * (rest * r_total - r_drop)
    body = share * evidence.rest - evidence.top * rest + bounded
    towards_target = evidence.rest * share * share - evidence.top * rest * (1 + share)
    poles = r_total * towards_target + evidence.top * r_drop
    return body + poles * special.exp_saturating(-rows.top)


def _gradient_close(rows: Rows, evidence: Evidence, drift: Tensor, share: Tensor, r: Tensor) -> Tensor:
    """The second form, with d = m − λα = −m (e^δ − 1): every term is of the order of the drift."""
    d = -evidence.each * drift.expm1()
    d_top, d_rest = rows.at_top(d), rows.sum_rest(d)
    t, t_total = 1 + r * special.exp_saturating(-rows.z), special.digamma_grad(rows.log_total)
    each = share * ((d_top + d_rest) * t_total) - d * t
    rest, share_top = rows.rest_share, 1 / (1 + rows.rest)
    r_total, r_drop = special.trigamma_excess(rows.log_total), _excess_drop(rows)
    # s t₀ − t of the largest class, without the ones that cancel in it
    t_drop = (r_drop - rest * r_total) * special.exp_saturating(-rows.top) - rest * t_total
    return rows.with_top(each, share_top * t_total * d_rest + d_top * t_drop)


def _excess_drop(rows: Rows) -> Tensor:
    """r₀ − r of the largest class."""
    return total_minus_top(rows, special.trigamma_excess, special.trigamma_excess_grad)


def digamma_drop(rows: Rows, evidence: Evidence) -> Tensor:
    """Σ_k m_k (ψ(1+α₀) − ψ(1+α_k)): an expected log-likelihood without its poles."""
    others = rows.sum_rest(evidence.each * special.digamma_next(rows.z))
    top = total_minus_top(rows, special.digamma_next, special.digamma_next_grad)
    return evidence.top * top + evidence.rest * special.digamma_next(rows.log_total) - others


def lgamma_drop(rows: Rows) -> Tensor:
    """A(α₀) − Σ A(α_k)."""
    # Where A's −z could matter below this, the poles have long saturated the loss.
    lowest = -2 * special.largest_exponent(rows.z.dtype)
    bounded = Rows(rows.z.clamp(min=lowest), rows.dim, rows.position, rows.top.clamp(min=lowest), rows.rest)
    top = total_minus_top(bounded, special.lgamma_entropy, lambda z: -special.trigamma_excess(z))
    return top - rows.sum_rest(special.lgamma_entropy(bounded.z))


def poles(rows: Rows, evidence: Evidence) -> Tensor:
    """Σ m_k/α_k − M/α₀ ≥ 0."""
    scale = _pole_scale(rows)
    rest = rows.rest_share
    others = rows.sum_rest(_over_alpha(rows, evidence, scale))
    top = (scale - rows.top).exp() * (evidence.top * rest - evidence.rest * (1 - rest))
    return (others + top) * special.exp_saturating(-scale)


def _over_alpha(rows: Rows, evidence: Evidence, scale: Tensor) -> Tensor:
    """m_k e^(c − z_k), by two half steps: a small m may bring a power out of range back into it."""
    half = special.exp_saturating(0.5 * (scale - rows.z))
    return (evidence.each * half) * half


def _pole_scale(rows: Rows) -> Tensor:
    """c ≤ 0, near the largest logit when all are negative: e^(c − z) then stays near 1 or above.

    A whole number, so that c − z is exact where it counts.
    """
    return rows.top.detach().ceil().clamp(max=0.0)
