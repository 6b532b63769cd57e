r"""The loss in plain tensor operations: the definition that every other kernel must equal.

.. math::
    ℓ = \sum_k c_k(ψ_0 - ψ_k)
        + λ\Big[A_0 - \sum_k A_k + \sum_k β_k(ψ_0 - ψ_k) + \sum_k\lnΓ(β_k) - \lnΓ(β_0)\Big]

with ψ and A of `special` at the concentrations α = e^logits and their total; its gradient is that of
`elbo` for the evidence m = c + λβ.
"""

import torch
from torch import Tensor

from beliefmatch import autograd, elbo
from beliefmatch.dirichlet import expected_surprisal
from beliefmatch.rows import Rows, split

__all__ = ["NEGATIVE_ELBO", "gradient", "negative_elbo"]


def negative_elbo(logits: Tensor, counts: Tensor, prior: Tensor, kl_weight: Tensor, dim: int) -> Tensor:
    """The loss ℓ ≥ 0 of each row, in the row type, with `dim` kept at size 1.

    `counts` has the shape of `logits`; `prior` and `kl_weight` broadcast against it. Saturates at the
    largest finite value of the compute type.
    """
    rows = split(logits, dim)
    likelihood = elbo.digamma_drop(rows, counts)
    divergence = elbo.lgamma_drop(rows) + elbo.digamma_drop(rows, prior)
    divergence = divergence + _log_normaliser(rows, prior)
    poles = elbo.poles(rows, _evidence(rows, counts, prior, kl_weight))
    loss = likelihood + kl_weight.to(rows.top.dtype) * divergence + poles
    return loss.clamp(0.0, torch.finfo(rows.z.dtype).max)


def gradient(logits: Tensor, counts: Tensor, prior: Tensor, kl_weight: Tensor, dim: int) -> Tensor:
    """∂ℓ/∂logits, K-wide in the compute type, saturating at its largest finite value."""
    rows = split(logits, dim)
    evidence = _evidence(rows, counts, prior, kl_weight)
    return elbo.gradient(rows, evidence, _drift(rows, counts, prior, kl_weight), kl_weight)


def _evidence(rows: Rows, counts: Tensor, prior: Tensor, kl_weight: Tensor) -> elbo.Evidence:
    kind, wide = rows.z.dtype, rows.top.dtype
    each = counts.to(kind) + kl_weight.to(kind) * prior.to(kind)
    top = rows.at_top(counts) + kl_weight.to(wide) * rows.at_top(prior)
    return elbo.Evidence(each, top, rows.sum_rest(each))


def _drift(rows: Rows, counts: Tensor, prior: Tensor, kl_weight: Tensor) -> elbo.Drift:
    """δ = z − ln(β + c/λ); infinite at λ = 0, where there is no optimum."""
    kind, wide = rows.z.dtype, rows.top.dtype
    weight = torch.where(kl_weight > 0, kl_weight, 1.0)
    each = rows.z - (prior.to(kind) + counts.to(kind) / weight.to(kind)).log()
    target = rows.at_top(prior) + rows.at_top(counts) / weight.to(wide)
    each = each.masked_fill(kl_weight == 0, torch.inf)
    return elbo.Drift(each, rows.top - target.log())


def _log_normaliser(rows: Rows, prior: Tensor) -> Tensor:
    """Σ lnΓ(β_k) − lnΓ(β₀)."""
    beta = prior.to(rows.top.dtype)
    repeats = rows.z.shape[rows.dim] // beta.shape[rows.dim]
    total = repeats * beta.sum(rows.dim, keepdim=True)
    return repeats * torch.lgamma(beta).sum(rows.dim, keepdim=True) - torch.lgamma(total)


def _slope_by_counts(logits: Tensor, counts: Tensor, prior: Tensor, kl_weight: Tensor, dim: int) -> Tensor:
    """∂ℓ/∂c_k = ψ(α₀) − ψ(α_k)."""
    return expected_surprisal(logits, dim)


def _slope_by_prior(logits: Tensor, counts: Tensor, prior: Tensor, kl_weight: Tensor, dim: int) -> Tensor:
    """∂ℓ/∂β_k = λ [ψ(α₀) − ψ(α_k) − (ψ(β₀) − ψ(β_k))]."""
    log_prior = prior.to(kl_weight.dtype).expand_as(logits).log()
    return kl_weight * (expected_surprisal(logits, dim) - expected_surprisal(log_prior, dim))


def _slope_by_kl_weight(logits: Tensor, counts: Tensor, prior: Tensor, kl_weight: Tensor, dim: int) -> Tensor:
    """∂ℓ/∂λ = KL(Dir(α) ‖ Dir(β))."""
    nothing, one = torch.zeros_like(counts), torch.ones_like(kl_weight)
    return autograd.apply(NEGATIVE_ELBO, dim, logits, nothing, prior, one)


NEGATIVE_ELBO = autograd.Operation(
    negative_elbo, (gradient, _slope_by_counts, _slope_by_prior, _slope_by_kl_weight)
)
