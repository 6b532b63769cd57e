r"""Belief matching: the negative ELBO of a Dirichlet belief, used like `torch.nn.CrossEntropyLoss`."""

import warnings
from typing import Any

from torch import Tensor, nn
from torch.compiler import is_compiling

from beliefmatch import kernels
from beliefmatch._labels import (
    is_ids,
    kl_weight_of,
    require_class_weight,
    require_kl_weight,
    require_logits,
    require_prior_number,
    require_prior_tensor,
    require_target_confidence,
    target_confidence_of,
)
from beliefmatch._rows import work_dtype
from beliefmatch._validate import (
    describe,
    fail,
    level_of_caller,
    peek,
    require_choice,
    require_floating,
    require_index,
)
from beliefmatch.kernels.reference import NAME, REDUCTIONS, LossInputs, Options, Reduction

__all__ = [
    "BeliefMatchingLoss",
    "LowTargetConfidence",
    "Reduction",
    "belief_matching_loss",
    "checked_inputs",
]


class LowTargetConfidence(UserWarning):
    """The optimum for one vote has a mean below one half: the prior outweighs the labels."""


_checked_calls: dict[tuple[Any, ...], tuple[kernels.CheckedCall, bool]] = {}
"""How to repeat the calls that have been checked, and whether each is warned of."""


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
    `softmax(logits)`, the mean of the belief. `Belief(logits)` has its other properties.

    Args:
        logits: ln α, of shape (K,), (N, K) or (N, K, d1, ...). Half precision is computed in
            float32 or better. Values of a whole row are computed in double if the device supports it.
        targets: class ids (integers, the logits' shape without K), or counts c ≥ 0 (floating point, the
            logits' shape): one-hot, soft or mixed labels, or the votes of many annotators. More votes
            weaken the prior.
        kl_weight: λ ≥ 0, the weight of the prior; 0.01 if neither it nor `target_confidence` is given.
        target_confidence: instead of λ, the probability that the optimum gives to the label of one vote,
            between 1/K and 1; λ = (1 − p) / (β₀ (p − 1/K)). For an uneven prior, that of a class whose prior
            is the mean.
        prior: β > 0: a number, a tensor (K,) with one value per class, or a tensor that broadcasts to the
            shape of the logits with as many dimensions (one prior per sample, for instance from a teacher).
        weight: one value per class, as in `CrossEntropyLoss`. For ids it multiplies the whole loss of a
            sample; for counts it multiplies the votes, and λ by their mean weight.
        ignore_index: class id whose samples are ignored. Not for counts.
        reduction: "mean" (over the weights of the samples that are not ignored; for counts over the
            samples), "sum", or "none".

    Returns:
        A scalar, or for "none" one value per sample; float64 for float64 logits, else float32. Finite for
        finite logits (saturating at the largest finite value); NaN in a sample's logits gives NaN. As in
        torch, the mean over no samples is NaN.

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
    # Training repeats one call: what depends on shapes, types and numbers alone is checked once.
    call = None
    is_plain = type(logits) is type(targets) is Tensor and type(prior) is float and weight is None
    if is_plain and not is_compiling():
        tensors = logits.shape, logits.dtype, targets.shape, targets.dtype
        numbers = kl_weight, target_confidence, prior, ignore_index, reduction
        call = *tensors, *numbers, type(kl_weight), type(target_confidence), type(ignore_index)
        try:
            known = _checked_calls.get(call)
        except TypeError:  # a list, or an array, where there should be a number
            call = known = None
        if known is not None:
            checked, is_warned_of = known
            value = kernels.loss_of_checked_call(checked, logits, targets)
            if value is not None:
                if is_warned_of:
                    _warn(NAME, checked.options, logits.shape[checked.options.dim])
                return value
    dim, numbers = require_logits(NAME, logits), (kl_weight, target_confidence)
    inputs = checked_inputs(NAME, logits, dim, targets, *numbers, prior, weight, ignore_index, reduction)
    is_low = target_confidence is None and _is_low_target_confidence(inputs)
    if call is not None and (inputs.options.has_ids or not is_low):  # counts decide by their values
        if len(_checked_calls) >= 1000:
            _checked_calls.clear()
        _checked_calls[call] = kernels.checked_call(inputs), is_low
    return kernels.loss(inputs)


def checked_inputs(
    function: str,
    logits: Tensor,
    dim: int,
    targets: Tensor,
    kl_weight: float | None,
    target_confidence: float | None,
    prior: float | Tensor,
    weight: Tensor | None,
    ignore_index: int,
    reduction: Reduction,
) -> LossInputs:
    """The arguments, checked but for the values of tensors.

    Args:
        function: The name that errors and warnings begin with.
        logits: Of which shape, type and device are looked at.
        dim: Their class dimension.
        targets: As for `belief_matching_loss`, like all that follow.
    """
    require_choice(function, "reduction", reduction, REDUCTIONS)
    ignore_index = require_index(function, "ignore_index", ignore_index)
    if not -(2**63) <= ignore_index < 2**63:
        raise fail(function, f"`ignore_index` must fit into 64 bits, got {ignore_index}.")
    has_ids = is_ids(function, logits, targets, dim)
    if not has_ids and ignore_index >= 0:
        remedy = "give the sample no votes (all counts 0) or leave it out"
        raise fail(function, f"`ignore_index` is for class ids, got counts; {remedy}.")
    if weight is not None:
        require_class_weight(function, weight, logits, dim)
    classes, priors, strengths = logits.shape[dim], None, None
    if isinstance(prior, Tensor):
        prior, priors = 1.0, require_prior_tensor(function, prior, logits, dim)
    else:
        prior = require_prior_number(function, prior)
    if target_confidence is None:
        weight_of_prior = require_kl_weight(function, kl_weight)
    else:
        confidence = require_target_confidence(function, kl_weight, target_confidence, classes)
        weight_of_prior = kl_weight_of(confidence, prior, classes)
        if priors is not None:
            mean = priors.detach().to(work_dtype(priors.device)).mean(dim, keepdim=True)
            strengths = kl_weight_of(confidence, mean, classes)
    options = Options(prior, weight_of_prior, dim, has_ids, ignore_index, reduction)
    inputs = LossInputs(logits, targets, weight, priors, strengths, options)
    if target_confidence is None and _is_low_target_confidence(inputs):
        _warn_of_low_target_confidence(function, inputs)
    return inputs


def _is_low_target_confidence(inputs: LossInputs) -> bool:
    """Whether the optimum for one vote has a mean below one half; False if the prior is a tensor."""
    options = inputs.options
    classes = inputs.logits.shape[options.dim]
    return inputs.priors is None and options.kl_weight * options.prior * (classes - 2) > 1


def _warn_of_low_target_confidence(function: str, inputs: LossInputs) -> None:
    """Warn of a low target confidence unless some sample has votes enough to reach one half."""
    if is_compiling():
        return
    options = inputs.options
    kl_weight, prior, classes = options.kl_weight, options.prior, inputs.logits.shape[options.dim]
    most_votes = 1.0 if options.has_ids else _most_votes(inputs.targets, options.dim)
    if most_votes is None or kl_weight * prior * (classes - 2) <= most_votes:
        return
    _warn(function, options, classes)


def _warn(function: str, options: Options, classes: int) -> None:
    kl_weight, prior = options.kl_weight, options.prior
    mean = target_confidence_of(kl_weight, prior, classes)
    remedy = kl_weight_of(0.9, prior, classes)
    warnings.warn(
        f"{function}: kl_weight={kl_weight:g} with K={classes} classes gives a target mean of only "
        f"{mean:.3g}; target_confidence=0.9 would be kl_weight={remedy:.3g}.",
        LowTargetConfidence,
        stacklevel=level_of_caller(),
    )


def _most_votes(counts: Tensor, dim: int) -> float | None:
    """The largest number of votes of a sample, if there are any and they can be looked at."""
    return peek(counts.sum(dim).max()) if counts.numel() else None


class BeliefMatchingLoss(nn.Module):
    """`belief_matching_loss` as a module, in place of `torch.nn.CrossEntropyLoss`.

    Takes the options of the function; a tensor `weight` or `prior` moves with the module. `activation`,
    `decodes` and `y_int` are what fastai looks for in a loss, so that its predictions are probabilities.

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
    y_int = True
    """Whether targets may be class ids: fastai's MixUp then mixes losses, which are linear in the labels."""

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

    def activation(self, logits: Tensor) -> Tensor:
        """Class probabilities, the mean of the belief, from logits."""
        return logits.softmax(_class_dim(logits))

    def decodes(self, probs: Tensor) -> Tensor:
        """Predicted class ids, from probabilities or logits."""
        return probs.argmax(_class_dim(probs))

    def extra_repr(self) -> str:
        """λ or the target confidence, then the other options, tensors by type and shape."""
        name = "kl_weight" if self.target_confidence is None else "target_confidence"
        names = [name, "prior", "weight", "ignore_index", "reduction"]
        values = ((name, getattr(self, name)) for name in names)
        shown = ((name, describe(v) if isinstance(v, Tensor) else v) for name, v in values if v is not None)
        return ", ".join(f"{name}={value}" for name, value in shown)


def _class_dim(values: Tensor) -> int:
    return min(values.dim() - 1, 1)
