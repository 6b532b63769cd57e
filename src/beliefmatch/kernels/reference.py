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
from beliefmatch.checks import is_inspectable, require_values
from beliefmatch.dirichlet import expected_surprisal
from beliefmatch.kernels.problem import NAME, Problem, Reduction
from beliefmatch.rows import Rows, result_dtype, split, work_dtype
from beliefmatch.targets import from_counts, from_ids

__all__ = ["as_tensor", "gradient", "loss", "negative_elbo", "reduce"]


def loss(problem: Problem) -> Tensor:
    """The reduced loss, differentiable in logits, counts and prior; values are checked."""
    logits, targets, weight, prior, kl_weight, options = problem
    dim = options.dim
    prior = as_tensor(options.prior, logits) if prior is None else prior
    kl_weight = as_tensor(options.kl_weight, logits) if kl_weight is None else kl_weight
    if is_inspectable(prior):
        require_values(NAME, "prior", prior, prior.isfinite() & (prior > 0), "positive and finite")
    if options.has_ids:
        labels = from_ids(NAME, logits, targets, dim, weight, options.ignore_index)
    else:
        labels = from_counts(NAME, logits, targets, dim, weight)
    if labels.ignored is not None:
        logits = logits.masked_fill(labels.ignored, 0.0)  # so that nothing there can reach the sum
    if labels.kl_scale is not None:
        kl_weight = kl_weight * labels.kl_scale
    rows = autograd.apply(_NEGATIVE_ELBO, dim, logits, labels.counts, prior, kl_weight)
    reduced = reduce(rows, labels.row_weight, dim, options.reduction)
    return autograd.to_finite(reduced, result_dtype(logits.dtype))


def as_tensor(number: float, logits: Tensor) -> Tensor:
    """The number in the working type, with the logits' number of dimensions."""
    shape = (1,) * logits.dim()
    return torch.full(shape, number, dtype=work_dtype(logits.device), device=logits.device)


def reduce(rows: Tensor, weight: Tensor | None, dim: int, reduction: Reduction) -> Tensor:
    """The losses of rows, with `dim` at size 1, as `reduction` wants them."""
    if reduction == "mean":
        shares = torch.full_like(rows, 1 / max(rows.numel(), 1)) if weight is None else weight / weight.sum()
        mean = (rows * shares).sum()  # dividing first cannot overflow
        return mean if rows.numel() else mean * torch.nan
    weighted = rows if weight is None else rows * weight
    return weighted.sum() if reduction == "sum" else weighted.squeeze(dim)


def negative_elbo(logits: Tensor, counts: Tensor, prior: Tensor, kl_weight: Tensor, dim: int) -> Tensor:
    """The loss ℓ ≥ 0 of each row, in the working type, with `dim` kept at size 1.

    `counts` has the shape of `logits`; `prior` and `kl_weight` broadcast against it. Saturates at the
    largest finite value of the type of the result.
    """
    rows = split(logits, dim)
    c, beta, weight = (x.to(rows.z.dtype) for x in (counts, prior, kl_weight))
    evidence = elbo.Evidence.of(rows, c + weight * beta)
    expectation = elbo.digamma_drop(rows, evidence) + elbo.poles(rows, evidence)
    loss = expectation + weight * (elbo.lgamma_drop(rows) + _log_normaliser(rows, beta))
    return loss.clamp(0.0, torch.finfo(result_dtype(logits.dtype)).max)


def gradient(logits: Tensor, counts: Tensor, prior: Tensor, kl_weight: Tensor, dim: int) -> Tensor:
    """∂ℓ/∂logits, K-wide in the working type."""
    rows = split(logits, dim)
    c, beta, weight = (x.to(rows.z.dtype) for x in (counts, prior, kl_weight))
    evidence = elbo.Evidence.of(rows, c + weight * beta)
    optimum = beta + c / torch.where(weight > 0, weight, 1.0)
    drift = (rows.z - optimum.log()).masked_fill(weight == 0, torch.inf)
    return elbo.gradient(rows, evidence, drift, weight)


def _log_normaliser(rows: Rows, prior: Tensor) -> Tensor:
    """Σ lnΓ(β_k) − lnΓ(β₀)."""
    repeats = rows.z.shape[rows.dim] // prior.shape[rows.dim]
    total = repeats * prior.sum(rows.dim, keepdim=True)
    return repeats * torch.lgamma(prior).sum(rows.dim, keepdim=True) - torch.lgamma(total)


def _slope_by_counts(logits: Tensor, counts: Tensor, prior: Tensor, kl_weight: Tensor, dim: int) -> Tensor:
    """∂ℓ/∂c_k = ψ(α₀) − ψ(α_k)."""
    return expected_surprisal(logits, dim)


def _slope_by_prior(logits: Tensor, counts: Tensor, prior: Tensor, kl_weight: Tensor, dim: int) -> Tensor:
    """∂ℓ/∂β_k = λ [ψ(α₀) − ψ(α_k) − (ψ(β₀) − ψ(β_k))]."""
    log_prior = prior.expand_as(logits).log()
    return kl_weight * (expected_surprisal(logits, dim) - expected_surprisal(log_prior, dim))


def _slope_by_kl_weight(logits: Tensor, counts: Tensor, prior: Tensor, kl_weight: Tensor, dim: int) -> Tensor:
    """∂ℓ/∂λ = KL(Dir(α) ‖ Dir(β))."""
    nothing, one = torch.zeros_like(counts), torch.ones_like(kl_weight)
    return autograd.apply(_NEGATIVE_ELBO, dim, logits, nothing, prior, one)


_NEGATIVE_ELBO = autograd.Operation(
    negative_elbo, (gradient, _slope_by_counts, _slope_by_prior, _slope_by_kl_weight)
)
