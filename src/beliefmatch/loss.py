r"""Belief matching: the negative ELBO of a Dirichlet belief, used like `torch.nn.CrossEntropyLoss`."""

import math
import warnings
from numbers import Real
from typing import Any, Literal

import torch
from torch import Tensor, nn

from beliefmatch import kernels
from beliefmatch.autograd import to_finite
from beliefmatch.checks import (
    describe,
    fail,
    is_inspectable,
    peek,
    require_choice,
    require_device,
    require_finite_number,
    require_floating,
    require_index,
    require_values,
)
from beliefmatch.kernels import traceable
from beliefmatch.rows import result_dtype, work_dtype
from beliefmatch.targets import Labels, from_counts, from_ids, is_ids, require_logits

__all__ = ["BeliefMatchingLoss", "Reduction", "belief_matching_loss"]

Reduction = Literal["mean", "sum", "none"]
REDUCTIONS = ("mean", "sum", "none")
DEFAULT_KL_WEIGHT = 0.01
NAME = "belief_matching_loss"


def belief_matching_loss(
    logits: Tensor,
    targets: Tensor,
    *,
    kl_weight: float | None = None,
    target_confidence: float | None = None,
    prior: float | Tensor = 1.0,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Negative evidence lower bound of a Dirichlet belief over class probabilities.

    .. math:: ℓ = \sum_k c_k\,(ψ(α_0) - ψ(α_k)) + λ\,\mathrm{KL}(\mathrm{Dir}(α)\,\|\,\mathrm{Dir}(β)),
              \qquad α = e^{\mathrm{logits}}

    Its minimum over free logits is the Bayes posterior α = β + c/λ. Predicted probabilities are
    `softmax(logits)`, the mean of the belief; `Belief(logits)` reads the rest.

    Args:
        logits: ln α, of shape (K,), (N, K) or (N, K, d1, ...). Computed in double for every type.
        targets: class ids (integers, the logits' shape without K), or counts c ≥ 0 (floating point, the
            logits' shape): one-hot, soft or mixed labels, or the votes of many annotators. More votes
            weaken the prior.
        kl_weight: λ ≥ 0, the weight of the prior; 0.01 if neither it nor `target_confidence` is given.
        target_confidence: instead of λ, the probability that the optimum gives to the label of one vote,
            between 1/K and 1; λ = (1 − p) / (β₀ (p − 1/K)). For an uneven prior, that of a class whose prior
            is the mean.
        prior: β > 0: a number, one a class (K,), or a tensor that broadcasts to the logits' shape with
            as many dimensions (one a sample, for instance from a teacher).
        weight: one a class, as in `CrossEntropyLoss`. For ids it multiplies the whole loss of a sample;
            for counts it multiplies the votes, and λ by their mean weight.
        ignore_index: class id whose samples count for nothing. Not for counts.
        reduction: "mean" (over the weights of the samples that are not ignored; for counts over the
            samples), "sum", or "none".

    Returns:
        A scalar, or for "none" one value a sample; float64 for float64 logits, else float32. Finite for
        finite logits (saturating at the largest finite value); NaN in a sample's logits gives NaN. As in
        torch, the mean of nothing is NaN.

    Differentiable in `logits`, in `targets` if they are counts, and in `prior` (but λ derived from
    `target_confidence` is a constant).

    Example:
        >>> import torch
        >>> from beliefmatch import belief_matching_loss
        >>> posterior = torch.tensor([[1.0, 1.0 + 1 / 0.01, 1.0]], dtype=torch.float64)
        >>> logits = posterior.log().requires_grad_()
        >>> loss = belief_matching_loss(logits, torch.tensor([1]), kl_weight=0.01)
        >>> loss.backward()
        >>> bool(logits.grad.abs().max() < 1e-16)  # the posterior is the optimum
        True

    Reference: Joo, Chung and Seo, "Being Bayesian about Categorical Probability", ICML 2020.
    """
    require_choice(NAME, "reduction", reduction, REDUCTIONS)
    ignore_index = require_index(NAME, "ignore_index", ignore_index)
    dim = require_logits(NAME, logits)
    beta = _prior(logits, prior, dim)
    if is_ids(NAME, logits, targets, dim):
        labels = from_ids(NAME, logits, targets, dim, weight, ignore_index)
    else:
        if ignore_index >= 0:
            remedy = "give the sample no votes (all counts 0) or leave it out"
            raise fail(NAME, f"`ignore_index` is for class ids, got counts; {remedy}.")
        labels = from_counts(NAME, logits, targets, dim, weight)
    strength = _strength(logits, prior, beta, dim, kl_weight, target_confidence, labels)
    if traceable.applies(targets, prior):
        rows = traceable.negative_elbo(logits, targets, ignore_index, beta, strength, dim)
    else:
        if labels.ignored is not None:
            logits = logits.masked_fill(labels.ignored, 0.0)  # so that nothing there can reach the sum
        rows = kernels.negative_elbo(logits, labels.counts, beta, strength, dim)
    return to_finite(_reduce(rows, labels.row_weight, dim, reduction), result_dtype(logits.dtype))


def _reduce(rows: Tensor, weight: Tensor | None, dim: int, reduction: Reduction) -> Tensor:
    if reduction == "mean":
        shares = torch.full_like(rows, 1 / max(rows.numel(), 1)) if weight is None else weight / weight.sum()
        mean = (rows * shares).sum()  # dividing first cannot overflow
        return mean if rows.numel() else mean * torch.nan
    weighted = rows if weight is None else rows * weight
    return weighted.sum() if reduction == "sum" else weighted.squeeze(dim)


def _prior(logits: Tensor, prior: float | Tensor, dim: int) -> Tensor:
    """β with the logits' number of dimensions, of class size K or 1."""
    if not isinstance(prior, Tensor):
        value = require_prior_number(NAME, prior)
        return torch.full((1,) * logits.dim(), value, dtype=work_dtype(logits.device), device=logits.device)
    require_floating(NAME, "prior", prior)
    require_device(NAME, "prior", prior, logits)
    if is_inspectable(prior):
        require_values(NAME, "prior", prior, prior.isfinite() & (prior > 0), "positive and finite")
    shape = tuple(logits.shape)
    if prior.dim() == 0:
        return prior.view((1,) * logits.dim())
    if tuple(prior.shape) == (shape[dim],):
        return prior.view(*[1] * dim, -1, *[1] * (logits.dim() - dim - 1))
    fits = zip(prior.shape, shape, strict=False)
    if prior.dim() == logits.dim() and all(own in (1, full) for own, full in fits):
        return prior
    expected = f"be a number, have shape ({shape[dim]},), or broadcast to `logits` {shape}"
    raise fail(NAME, f"`prior` must {expected}, got {tuple(prior.shape)}.")


def require_prior_number(function: str, prior: Any) -> float:
    """A prior that is one number, checked."""
    if isinstance(prior, bool) or not isinstance(prior, Real):
        raise fail(function, f"`prior` must be a number or a tensor, got {describe(prior)}.", TypeError)
    value = require_finite_number(function, "prior", prior)
    if value <= 0:
        raise fail(function, f"`prior` must be positive, got {value!r}.")
    return value


def _strength(
    logits: Tensor,
    prior: float | Tensor,
    beta: Tensor,
    dim: int,
    kl_weight: float | None,
    target_confidence: float | None,
    labels: Labels,
) -> Tensor:
    """λ as a tensor that broadcasts to one value a row."""
    classes = logits.shape[dim]
    mean_beta = beta.detach().to(work_dtype(logits.device)).mean(dim, keepdim=True)
    if target_confidence is not None:
        confidence = require_target_confidence(NAME, kl_weight, target_confidence, classes)
        strength = (1 - confidence) / (mean_beta * (confidence * classes - 1))
    else:
        value = require_kl_weight(NAME, kl_weight)
        strength = torch.zeros_like(mean_beta) + value  # an operation: another λ does not recompile
        if not isinstance(prior, Tensor):  # known without asking a device
            _warn_if_timid(value, prior, classes, labels, dim)
    return strength if labels.kl_scale is None else strength * labels.kl_scale


def require_kl_weight(function: str, kl_weight: float | None) -> float:
    """λ, checked; the default where it is None."""
    value = require_finite_number(
        function, "kl_weight", DEFAULT_KL_WEIGHT if kl_weight is None else kl_weight
    )
    if value < 0:
        raise fail(function, f"`kl_weight` must not be negative, got {value!r}.")
    return value


def require_target_confidence(
    function: str, kl_weight: float | None, target_confidence: Any, classes: float = math.inf
) -> float:
    """The target confidence, checked; its lower bound of chance only where the classes are known."""
    if kl_weight is not None:
        received = f"kl_weight={kl_weight!r} and target_confidence={target_confidence!r}"
        raise fail(function, f"give `kl_weight` or `target_confidence`, not both, got {received}.")
    value = require_finite_number(function, "target_confidence", target_confidence)
    if not 1 / classes < value < 1:
        bounds = f"above chance, {1 / classes:.4g}, and below 1 for K = {classes} classes"
        raise fail(function, f"`target_confidence` must be {bounds}, got {value!r}.")
    return value


def _warn_if_timid(kl_weight: float, prior: float, classes: int, labels: Labels, dim: int) -> None:
    """Warn when even the most voted sample is asked for a mean below one half."""
    needed = kl_weight * prior * (classes - 2)  # votes from which the target mean reaches one half
    if not needed > 1 or torch.compiler.is_compiling():
        return
    most_votes = 1.0 if labels.ignored is not None else _most_votes(labels.counts, dim)
    if most_votes is None or needed <= most_votes:
        return
    mean = (prior + 1 / kl_weight) / (classes * prior + 1 / kl_weight)
    remedy = (1 - 0.9) / (prior * (0.9 * classes - 1))
    warnings.warn(
        f"{NAME}: kl_weight={kl_weight:g} with K={classes} classes asks for a target mean of only "
        f"{mean:.3g}; target_confidence=0.9 would be kl_weight={remedy:.3g}.",
        stacklevel=4,
    )


def _most_votes(counts: Tensor, dim: int) -> float | None:
    """The largest number of votes of a sample, if there are any and they can be looked at."""
    return peek(counts.sum(dim).max()) if counts.numel() else None


class BeliefMatchingLoss(nn.Module):
    """`belief_matching_loss` as a module, to stand where `torch.nn.CrossEntropyLoss` stood.

    Takes the options of the function; a tensor `weight` or `prior` moves with the module.

    Example:
        >>> import torch
        >>> from beliefmatch import BeliefMatchingLoss
        >>> criterion = BeliefMatchingLoss(target_confidence=0.95)
        >>> logits = torch.zeros(4, 10, requires_grad=True)
        >>> criterion(logits, torch.tensor([1, 2, 3, 9])).backward()
        >>> logits.grad[0].argmin().item()
        1
    """

    weight: Tensor | None

    def __init__(
        self,
        *,
        kl_weight: float | None = None,
        target_confidence: float | None = None,
        prior: float | Tensor = 1.0,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__()
        name = type(self).__name__
        if target_confidence is None:
            kl_weight = require_kl_weight(name, kl_weight)
        else:
            require_target_confidence(name, kl_weight, target_confidence)
        require_choice(name, "reduction", reduction, REDUCTIONS)
        if weight is not None:
            require_floating(name, "weight", weight)
        self.kl_weight = kl_weight
        self.target_confidence = target_confidence
        self.ignore_index = require_index(name, "ignore_index", ignore_index)
        self.reduction: Reduction = reduction
        self.register_buffer("weight", weight)
        if isinstance(prior, Tensor):
            require_floating(name, "prior", prior)
            if isinstance(prior, nn.Parameter):
                self.register_parameter("prior", prior)
            else:
                self.register_buffer("prior", prior)
        else:
            self.prior = require_prior_number(name, prior)

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss of a batch; see `belief_matching_loss`."""
        return belief_matching_loss(
            logits,
            targets,
            kl_weight=self.kl_weight,
            target_confidence=self.target_confidence,
            prior=self.prior,
            weight=self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
        )

    def extra_repr(self) -> str:
        """λ or the target confidence, then the other options, tensors by type and shape."""
        name = "kl_weight" if self.target_confidence is None else "target_confidence"
        names = [name, "prior", "weight", "ignore_index", "reduction"]
        values = ((name, getattr(self, name)) for name in names)
        shown = ((name, describe(v) if isinstance(v, Tensor) else v) for name, v in values if v is not None)
        return ", ".join(f"{name}={value}" for name, value in shown)
