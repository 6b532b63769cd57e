r"""The negative ELBO and its gradient in plain tensor operations: the definition every kernel must equal.

With m_k = c_k + λβ_k, M = Σm_k, α = e^z, s = softmax(z) and the functions of `special`,

.. math::
    ℓ &= \sum_k c_k(ψ_0 - ψ_k)
         + λ\Big[A_0 - \sum_k A_k + \sum_k β_k(ψ_0 - ψ_k) + \sum_k\lnΓ(β_k) - \lnΓ(β_0)\Big] \\
    \frac{∂ℓ}{∂z_k} &= (M s_k - m_k) + λ(r_k - s_k r_0) + M s_k\frac{r_0}{α_0} - m_k\frac{r_k}{α_k}

The first bracket of the gradient is that of softmax cross-entropy towards the smoothed target m/M; the
rest is bounded by λ for large α, and every term vanishes at the optimum α = m/λ. The poles 1/α are
summed apart, relative to a common scale e^−c, so that two infinities never meet.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from beliefmatch import special
from beliefmatch.rows import Rows, split

__all__ = ["gradient", "negative_elbo"]

CLOSE = 0.5
"""Rows whose every logit is nearer than this to the optimum take the factored gradient."""


class Evidence(NamedTuple):
    """m = c + λβ: K-wide in the compute type, and split like the rows it belongs to."""

    each: Tensor
    top: Tensor
    rest: Tensor

    @property
    def total(self) -> Tensor:
        """M = Σm."""
        return self.top + self.rest


def negative_elbo(
    logits: Tensor, counts: Tensor, prior: Tensor, kl_weight: Tensor, dim: int
) -> Tensor:
    """The loss ℓ ≥ 0 of each row, in the row type, with `dim` kept at size 1.

    `counts` has the shape of `logits`; `prior` and `kl_weight` broadcast against it. Saturates at the
    largest finite value of the compute type.
    """
    rows = split(logits, dim)
    likelihood = _digamma_drop(rows, counts)
    divergence = _lgamma_drop(rows) + _digamma_drop(rows, prior) + _log_normaliser(rows, prior)
    poles = _poles(rows, _evidence(rows, counts, prior, kl_weight))
    loss = likelihood + kl_weight.to(rows.top.dtype) * divergence + poles
    return loss.clamp(0.0, torch.finfo(rows.z.dtype).max)


def gradient(logits: Tensor, counts: Tensor, prior: Tensor, kl_weight: Tensor, dim: int) -> Tensor:
    """∂ℓ/∂logits, K-wide in the compute type, saturating at its largest finite value."""
    rows = split(logits, dim)
    evidence = _evidence(rows, counts, prior, kl_weight)
    far = _gradient_each(rows, evidence, kl_weight), _gradient_top(rows, evidence, kl_weight)
    drift, drift_top = _drift(rows, counts, prior, kl_weight)
    close = _gradient_close(rows, evidence, drift, drift_top)
    is_close = (drift.abs().amax(dim, keepdim=True) < CLOSE) & (kl_weight > 0)
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
    half = (-0.5 * scale).clamp(max=_largest_exponent(kind)).exp().to(kind)
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


def _drift(
    rows: Rows, counts: Tensor, prior: Tensor, kl_weight: Tensor
) -> tuple[Tensor, Tensor]:
    """δ = z − ln(β + c/λ), how far each logit is from the optimum: K-wide, and of the largest class.

    At λ = 0 there is no optimum; the value is then arbitrary but finite.
    """
    weight = torch.where(kl_weight > 0, kl_weight, 1.0)
    kind, wide = rows.z.dtype, rows.top.dtype
    each = rows.z - (prior.to(kind) + counts.to(kind) / weight.to(kind)).log()
    target = rows.at_top(prior) + rows.at_top(counts) / weight.to(wide)
    return each.clamp(-1, 1), (rows.top - target.log()).clamp(-1, 1)


def _gradient_close(
    rows: Rows, evidence: Evidence, drift: Tensor, drift_top: Tensor
) -> tuple[Tensor, Tensor]:
    """s_k t₀ D − d_k t_k with d = m − λα = −m (e^δ − 1), D = Σd: exact where the gradient vanishes.

    The same gradient, factored so that every term is proportional to the distance from the optimum.
    Far from it the terms would grow like λα and cancel.
    """
    d, d_top = -evidence.each * drift.expm1(), -evidence.top * drift_top.expm1()
    d_rest = rows.sum_rest(d)
    t, t_total = special.trigamma_slope(rows.z), special.trigamma_slope(rows.log_total)
    each = rows.share * ((d_top + d_rest) * t_total).to(d.dtype) - d * t
    rest, share = rows.rest_share, 1 / (1 + rows.rest)
    r, r_total = special.trigamma_excess(rows.top), special.trigamma_excess(rows.log_total)
    # s t₀ − t of the largest class, without the ones that cancel in it
    slope_drop = (r_total - r - rest * r_total) * special.exp_saturating(-rows.top) - rest * t_total
    return each, share * t_total * d_rest + d_top * slope_drop


def _evidence(rows: Rows, counts: Tensor, prior: Tensor, kl_weight: Tensor) -> Evidence:
    kind, wide = rows.z.dtype, rows.top.dtype
    each = counts.to(kind) + kl_weight.to(kind) * prior.to(kind)
    top = rows.at_top(counts) + kl_weight.to(wide) * rows.at_top(prior)
    return Evidence(each, top, rows.sum_rest(each))


def _digamma_drop(rows: Rows, weights: Tensor) -> Tensor:
    """Σ_k b_k (ψ(1+α₀) − ψ(1+α_k)): an expected log-likelihood without its poles."""
    total, top = special.digamma_next(rows.log_total), special.digamma_next(rows.top)
    others = rows.dot_rest(weights, special.digamma_next(rows.z))
    return rows.at_top(weights) * (total - top) + rows.sum_rest(weights) * total - others


def _lgamma_drop(rows: Rows) -> Tensor:
    """A(α₀) − Σ A(α_k)."""
    # Where A's −z could matter below this, the poles have long saturated the loss.
    lowest = -2 * _largest_exponent(rows.z.dtype)
    total, top, each = (
        special.lgamma_entropy(q.clamp(min=lowest)) for q in (rows.log_total, rows.top, rows.z)
    )
    return (total - top) - rows.sum_rest(each)


def _log_normaliser(rows: Rows, prior: Tensor) -> Tensor:
    """Σ lnΓ(β_k) − lnΓ(β₀)."""
    beta = prior.to(rows.top.dtype)
    repeats = rows.z.shape[rows.dim] // beta.shape[rows.dim]
    total = repeats * beta.sum(rows.dim, keepdim=True)
    return repeats * torch.lgamma(beta).sum(rows.dim, keepdim=True) - torch.lgamma(total)


def _poles(rows: Rows, evidence: Evidence) -> Tensor:
    """Σ m_k/α_k − M/α₀ ≥ 0."""
    scale = _pole_scale(rows)
    rest = rows.rest_share
    others = rows.sum_rest(_over_alpha(rows, evidence, scale))
    top = (scale - rows.top).exp() * (evidence.top * rest - evidence.rest * (1 - rest))
    return (others + top) * (-scale).clamp(max=_largest_exponent(scale.dtype)).exp()


def _over_alpha(rows: Rows, evidence: Evidence, scale: Tensor) -> Tensor:
    """m_k e^(c − z_k), by two half steps: a small m may bring a power out of range back into it."""
    half = special.exp_saturating(0.5 * (scale.to(rows.z.dtype) - rows.z))
    return (evidence.each * half) * half


def _pole_scale(rows: Rows) -> Tensor:
    """c ≤ 0, near the largest logit when all are negative: e^(c − z) then stays near 1 or above.

    A whole number, so that c − z is exact where it counts.
    """
    return rows.top.detach().ceil().clamp(max=0.0)


def _largest_exponent(dtype: torch.dtype) -> float:
    return math.log(torch.finfo(dtype).max) * 0.9999
