r"""Measures of a Dirichlet and the divergence between two, as functions of z = ln α along the classes `dim`.

s = α/α₀ is the mean. Functions of one number a row drop `dim`; all are differentiable. Values are in float64
for float64 input and in float32 otherwise, and saturate at the largest finite value. They are computed in
double where the device has it, unless a measure is given another `dtype`.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from beliefmatch import _autograd as autograd
from beliefmatch import _special as special
from beliefmatch import elbo
from beliefmatch._rows import Rows, result_dtype, split, total_minus_top, work_dtype

__all__ = [
    "DIVERGENCE",
    "categorical_kl_terms",
    "differential_entropy",
    "divergence",
    "entropy",
    "expected_entropy",
    "expected_surprisal",
    "log_prob",
    "mutual_information",
    "own_and_rest",
    "variance",
]


def expected_surprisal(logits: Tensor, dim: int = -1) -> Tensor:
    """−E[ln p_k] = ψ(α₀) − ψ(α_k) > 0 of every class, in the working type."""
    rows = split(logits, dim)
    each = special.digamma_next(rows.log_total) - special.digamma_next(rows.z)
    each = each + special.exp_saturating(-rows.z) * (1 - rows.share)
    top = total_minus_top(rows, special.digamma_next, special.digamma_next_grad)
    top = top + special.exp_saturating(-rows.top) * rows.rest_share
    return special.saturate(rows.with_top(each, top))


def entropy(logits: Tensor, dim: int = -1, *, dtype: torch.dtype | None = None) -> Tensor:
    """H(s) = −Σ s_k ln s_k, the entropy of the mean."""
    return _row_value(_entropy(split(logits, dim, dtype)), logits, dim)


def expected_entropy(logits: Tensor, dim: int = -1, *, dtype: torch.dtype | None = None) -> Tensor:
    """E[H(p)] = Σ s_k (ψ(1+α₀) − ψ(1+α_k)), the mean entropy of the probabilities believed in."""
    return _row_value(_expected_entropy(split(logits, dim, dtype)).clamp(min=0.0), logits, dim)


def _entropy(rows: Rows) -> Tensor:
    log_share = (rows.z - rows.log_total).clamp(min=_lowest(rows))
    return rows.rest.log1p() / (1 + rows.rest) - rows.sum_rest(rows.share * log_share)


def _expected_entropy(rows: Rows) -> Tensor:
    each = special.digamma_next(rows.log_total) - special.digamma_next(rows.z)
    top = total_minus_top(rows, special.digamma_next, special.digamma_next_grad)
    return top / (1 + rows.rest) + rows.sum_rest(rows.share * each)


def mutual_information(logits: Tensor, dim: int = -1, *, dtype: torch.dtype | None = None) -> Tensor:
    """H(s) − E[H(p)] = Σ s_k g(α_k) − g(α₀) with g(α) = ψ(1+α) − ln α, about (K−1)/(2α₀) for large α.

    Written with g, which falls to zero, nothing large cancels for α₀ > 1; below, H is the larger by far.
    """
    rows = split(logits, dim, dtype)
    each, top = (special.digamma_gap(z.clamp(min=_lowest(rows))) for z in (rows.z, rows.top))
    drop = total_minus_top(rows, special.digamma_gap, special.digamma_gap_grad)
    spread = rows.sum_rest(rows.share * each) - drop - rows.rest_share * top
    spread = torch.where(rows.log_total > 0, spread, _entropy(rows) - _expected_entropy(rows))
    return _row_value(spread.clamp(min=0.0), logits, dim)


def differential_entropy(logits: Tensor, dim: int = -1, *, dtype: torch.dtype | None = None) -> Tensor:
    """−E[ln Dir(p; α)], at most −lnΓ(K), which the uniform Dirichlet (all α = 1) reaches."""
    rows = split(logits, dim, dtype)
    ones = elbo.Evidence.of(rows, torch.ones_like(rows.z))
    drop = elbo.lgamma_drop(rows) + elbo.digamma_drop(rows, ones) + elbo.poles(rows, ones)
    return _row_value(-drop, logits, dim)


def variance(logits: Tensor, dim: int = -1, *, dtype: torch.dtype | None = None) -> Tensor:
    """Var[p_k] = s_k(1 − s_k)/(α₀ + 1) of every class."""
    rows = split(logits, dim, dtype)
    each = rows.share * (1 - rows.share)
    top = rows.rest_share / (1 + rows.rest)
    spread = rows.with_top(each, top) * torch.sigmoid(-rows.log_total)
    return spread.to(result_dtype(logits.dtype))


def log_prob(logits: Tensor, p: Tensor, dim: int = -1) -> Tensor:
    """ln Dir(p; α) = B(α₀) − ΣB(α_k) − α₀ KL(s ‖ p) − Σ ln p_k, with p normalised first.

    The divergence of the mean from p replaces Σ α_k ln p_k, whose size would drown the rest.
    """
    wide = work_dtype(logits.device)
    kind = result_dtype(torch.promote_types(logits.dtype, p.dtype))
    z, p = torch.broadcast_tensors(logits.to(wide), p.to(wide))
    dim = dim % z.dim()
    rows, p = split(z, dim), p / p.sum(dim, keepdim=True)
    positive = p > 0
    log_p = torch.where(positive, p, 1.0).log()
    terms = categorical_kl_terms(p, rows.share, rows.z - rows.log_total - log_p)
    # On the boundary p_k = 0 the density is infinite for α_k < 1, zero for α_k > 1.
    at_zero = torch.where(rows.z == 0, 0.0, -rows.z.sign() * torch.inf)
    each = torch.where(positive, -log_p, at_zero) - special.lgamma_stirling(rows.z)
    weight = special.exp_saturating(rows.log_total)
    value = special.lgamma_stirling(rows.log_total) - weight * terms.sum(dim, keepdim=True)
    return (value + each.sum(dim, keepdim=True)).squeeze(dim).to(kind)


def own_and_rest(logits: Tensor, dim: int = -1) -> tuple[Tensor, Tensor]:
    """α_k and α₀ − α_k of every class, in the working type: the parameters of its Beta marginal."""
    rows = split(logits, dim)
    own = special.exp_saturating(rows.z)
    rest = special.exp_saturating(rows.log_total) * (1 - rows.share)
    return own, rows.with_top(rest, special.exp_saturating(rows.top) * rows.rest)


def _row_value(value: Tensor, logits: Tensor, dim: int) -> Tensor:
    return special.saturate(value, result_dtype(logits.dtype)).squeeze(dim)


def _lowest(rows: Rows) -> float:
    """Far below any logit whose share is not zero: keeps 0 · ∞ out of expectations."""
    return -(torch.finfo(rows.z.dtype).max ** 0.5)


def divergence(p_logits: Tensor, q_logits: Tensor, dim: int) -> Tensor:
    """KL(Dir(e^p) ‖ Dir(e^q)) of each row of two tensors of one shape; see `beliefmatch.dirichlet_kl`."""
    kind = result_dtype(torch.promote_types(p_logits.dtype, q_logits.dtype))
    return autograd.to_finite(autograd.apply(DIVERGENCE, dim, p_logits, q_logits).squeeze(dim), kind)


class _Pair(NamedTuple):
    """α = e^p and γ = e^q in the working type, with the differences of their logarithms."""

    p: Rows
    q: Rows
    delta: Tensor
    """δ_k = ln(γ_k/α_k)."""
    delta_total: Tensor
    """δ₀ = ln(γ₀/α₀)."""
    x: Tensor
    """δ_k − δ₀ = ln of the ratio of the means."""


def _pair(p_logits: Tensor, q_logits: Tensor, dim: int) -> _Pair:
    work = work_dtype(p_logits.device)
    highest = 0.9 * special.largest_exponent(work)  # keeps γ and its sums finite
    p, q = (split(logits.to(work).clamp(max=highest), dim) for logits in (p_logits, q_logits))
    delta, delta_total = q.z - p.z, q.log_total - p.log_total
    # δ₀ as the mean of e^δ under α/α₀, counted from the largest class: exact where all δ are alike or that
    # class dominates, and the difference of two totals would be rounding.
    at_top = p.at_top(delta)
    variation = delta - at_top
    shift = (p.share * variation.clamp(-50, 30).expm1()).sum(dim, keepdim=True).log1p()
    alike = variation.abs().amax(dim, keepdim=True) < 0.5
    dominated = (p.rest_share < 0.5) & (variation.amax(dim, keepdim=True) < 30)
    exact = alike | dominated
    x = torch.where(exact, variation - shift, delta - delta_total)
    return _Pair(p, q, delta, torch.where(exact, at_top + shift, delta_total), x)


def _kl_value(p_logits: Tensor, q_logits: Tensor, dim: int) -> Tensor:
    p, q, delta, delta_total, x = _pair(p_logits, q_logits, dim)
    means = categorical_kl_terms(p.share, q.share, x).sum(dim, keepdim=True)
    spread = _bregman(p.z, q.z, delta).sum(dim, keepdim=True)
    spread = spread - _bregman(p.log_total, q.log_total, delta_total)
    # e^δ out of range: so is the pole γ/α of the divergence
    beyond = delta.amax(dim, keepdim=True) > 0.99 * special.largest_exponent(delta.dtype)
    value = torch.where(beyond, torch.inf, q.log_total.exp() * means + spread)
    return special.saturate(value.clamp(min=0.0))


def _bregman(z_alpha: Tensor, z_gamma: Tensor, delta: Tensor) -> Tensor:
    """E(γ, α) ≥ 0, about ½ r(α) δ² for small δ = ln(γ/α)."""
    drop = special.lgamma_stirling(z_gamma) - special.lgamma_stirling(z_alpha)
    return drop - _growth(delta) * special.lgamma_stirling_grad(z_alpha)


def categorical_kl_terms(p: Tensor, q: Tensor, x: Tensor) -> Tensor:
    """q ln(q/p) − q + p ≥ 0 for x = ln(q/p): its sum is KL(q ‖ p), and no term is negative."""
    small = x.abs() < 0.02
    y = torch.where(small, x, 0.0)
    series = y * y * (1 / 2 + y * (1 / 3 + y * (1 / 8 + y * (1 / 30 + y * (1 / 144 + y / 840)))))
    large = torch.where(q > 0, q * torch.where(q > 0, x, 0.0), 0.0) - q + p
    return torch.where(small, p * series, large)


def _kl_grad_by_p(p_logits: Tensor, q_logits: Tensor, dim: int) -> Tensor:
    """γ_k (e^−x − 1) − r(α_k)(e^δ − 1) + (α_k/α₀) r(α₀)(e^δ₀ − 1)."""
    p, q, delta, delta_total, x = _pair(p_logits, q_logits, dim)
    small = x.abs() < 1
    towards = q.log_total.exp() * (p.share - q.share)
    means = torch.where(small, q.z.exp() * x.clamp(-1, 1).neg().expm1(), towards)
    each = special.trigamma_excess(p.z) * _growth(delta)
    total = special.trigamma_excess(p.log_total) * _growth(delta_total)
    return special.saturate(means - each + p.share * total)


def _kl_grad_by_q(p_logits: Tensor, q_logits: Tensor, dim: int) -> Tensor:
    """γ_k [x_k + (ψ(γ_k) − ln γ_k) − (ψ(α_k) − ln α_k) − the same of the totals]."""
    p, q, delta, delta_total, x = _pair(p_logits, q_logits, dim)
    grad = special.lgamma_stirling_grad
    each = grad(q.z) - grad(p.z) - _growth(delta) * grad(p.z)
    total = grad(q.log_total) - grad(p.log_total) - _growth(delta_total) * grad(p.log_total)
    return special.saturate(q.z.exp() * x + each - q.share * total)


def _growth(delta: Tensor) -> Tensor:
    """e^δ − 1, far enough below the largest value that sums stay finite."""
    return delta.clamp(max=0.95 * special.largest_exponent(delta.dtype)).expm1()


DIVERGENCE = autograd.Operation(_kl_value, (_kl_grad_by_p, _kl_grad_by_q))
