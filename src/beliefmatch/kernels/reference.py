"""The definition of the loss in tensor operations, and the form in which every kernel receives a call."""

from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from beliefmatch import _autograd as autograd
from beliefmatch import elbo
from beliefmatch._labels import Labels, from_counts, from_ids
from beliefmatch._rows import Rows, result_dtype, split, work_dtype
from beliefmatch._validate import is_inspectable, require_values
from beliefmatch.dirichlet import expected_surprisal

__all__ = [
    "NAME",
    "REDUCTIONS",
    "LossInputs",
    "Options",
    "Reduction",
    "as_tensor",
    "gradient",
    "loss",
    "loss_and_grad",
    "loss_grad",
    "negative_elbo",
    "reduce",
]

NAME = "belief_matching_loss"
Reduction = Literal["mean", "sum", "none"]
REDUCTIONS = get_args(Reduction)


class Options(NamedTuple):
    """The arguments of a call that are not tensors."""

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


class LossInputs(NamedTuple):
    """One call of the loss, checked but for the values of its tensors."""

    logits: Tensor
    targets: Tensor
    weight: Tensor | None
    """One a class."""
    priors: Tensor | None
    """β where it is not one number: the logits' number of dimensions, broadcasting to their shape."""
    kl_weights: Tensor | None
    """λ where it is not one number: the logits' number of dimensions, of size 1 along the classes."""
    options: Options


def loss(inputs: LossInputs) -> Tensor:
    """The reduced loss, differentiable in logits, counts and prior; values are checked."""
    tensors, labels = _rows_of(inputs)
    rows = autograd.apply(_NEGATIVE_ELBO, inputs.options.dim, *tensors)
    return _reduced(rows, labels, inputs)


def loss_and_grad(inputs: LossInputs, upstream: Tensor | None) -> tuple[Tensor, Tensor]:
    """The loss and its gradient by the logits times `upstream`, outside of any graph."""
    dim, reduction = inputs.options.dim, inputs.options.reduction
    with torch.no_grad():
        tensors, labels = _rows_of(inputs)
        rows = negative_elbo(*tensors, dim)
        factor = torch.ones_like(rows) if labels.row_weight is None else labels.row_weight
        if reduction == "mean":
            factor = factor / (rows.numel() if labels.row_weight is None else labels.row_weight.sum())
        if upstream is not None:
            factor = factor * (upstream.unsqueeze(dim) if reduction == "none" else upstream)
        grad, *_ = autograd.pull(_NEGATIVE_ELBO, dim, tensors, factor, (True, False, False, False))
        assert grad is not None
        if labels.ignored is not None:
            grad = grad.masked_fill(labels.ignored, 0.0)
        return _reduced(rows, labels, inputs), grad


def _rows_of(inputs: LossInputs) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor], Labels]:
    """Logits, counts, prior and KL weight of a call, whose values are checked, and its labels."""
    logits, targets, weight, prior, kl_weight, options = inputs
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
    return (logits, labels.counts, prior, kl_weight), labels


def _reduced(rows: Tensor, labels: Labels, inputs: LossInputs) -> Tensor:
    reduced = reduce(rows, labels.row_weight, inputs.options.dim, inputs.options.reduction)
    finite = autograd.to_finite(reduced, result_dtype(inputs.logits.dtype))
    is_mean_of_nothing = inputs.options.reduction == "mean" and not rows.numel()
    return finite * torch.nan if is_mean_of_nothing else finite  # compilers cannot clamp a constant NaN


def loss_grad(inputs: LossInputs, upstream: Tensor) -> Tensor:
    """The gradient by the logits in operations that torch sees, to be differentiated or vectorised."""
    differentiable = torch.is_grad_enabled()
    with torch.enable_grad():
        logits = inputs.logits.view_as(inputs.logits)  # a view is without the caller's hooks, which run later
        value = loss(inputs._replace(logits=logits))
    (grad,) = torch.autograd.grad(value, logits, upstream, create_graph=differentiable)
    return grad


def as_tensor(number: float, logits: Tensor) -> Tensor:
    """The number in the working type, with the logits' number of dimensions."""
    shape = (1,) * logits.dim()
    return torch.full(shape, number, dtype=work_dtype(logits.device), device=logits.device)


def reduce(rows: Tensor, weight: Tensor | None, dim: int, reduction: Reduction) -> Tensor:
    """The losses of rows, which have `dim` at size 1, reduced."""
    if reduction == "mean":
        shares = torch.full_like(rows, 1 / max(rows.numel(), 1)) if weight is None else weight / weight.sum()
        return (rows * shares).sum()  # dividing first cannot overflow
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


def _grad_by_counts(logits: Tensor, counts: Tensor, prior: Tensor, kl_weight: Tensor, dim: int) -> Tensor:
    """∂ℓ/∂c_k = ψ(α₀) − ψ(α_k)."""
    return expected_surprisal(logits, dim)


def _grad_by_prior(logits: Tensor, counts: Tensor, prior: Tensor, kl_weight: Tensor, dim: int) -> Tensor:
    """∂ℓ/∂β_k = λ [ψ(α₀) − ψ(α_k) − (ψ(β₀) − ψ(β_k))]."""
    log_prior = prior.expand_as(logits).log()
    return kl_weight * (expected_surprisal(logits, dim) - expected_surprisal(log_prior, dim))


def _grad_by_kl_weight(logits: Tensor, counts: Tensor, prior: Tensor, kl_weight: Tensor, dim: int) -> Tensor:
    """∂ℓ/∂λ = KL(Dir(α) ‖ Dir(β))."""
    nothing, one = torch.zeros_like(counts), torch.ones_like(kl_weight)
    return autograd.apply(_NEGATIVE_ELBO, dim, logits, nothing, prior, one)


_NEGATIVE_ELBO = autograd.Operation(
    negative_elbo, (gradient, _grad_by_counts, _grad_by_prior, _grad_by_kl_weight)
)
