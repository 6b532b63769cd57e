r"""A teacher's belief as the input-dependent prior of a student (the paper's last paragraph).

The optimum of belief matching is α = β + c/λ: a vote adds 1/λ to a concentration. A teacher's belief can
therefore be given as votes, or as the prior that those votes lead to; both have the same gradient.
"""

import torch
from torch import Tensor

from beliefmatch import _special as special
from beliefmatch._labels import require_kl_weight, require_logits
from beliefmatch._rows import result_dtype, work_dtype
from beliefmatch._validate import fail, require_finite_number

__all__ = ["teacher_prior", "teacher_votes"]


def teacher_votes(logits: Tensor, *, strength: float = 1.0, temperature: float = 1.0) -> Tensor:
    """Counts for `belief_matching_loss`: `strength` votes in proportion to the teacher's mean.

    Args:
        logits: logits of the teacher, (K,), (N, K) or (N, K, ...), of a belief or of a softmax.
        strength: number of votes, not necessarily whole; a label counts 1.
        temperature: temperature of the mean softmax(logits/temperature). Below 1 it sharpens the mean towards
            a pseudo-label; above 1 it flattens it.

    Returns:
        Counts in the shape of the logits, without a gradient. Add the counts of labels to them.

    Example:
        >>> teacher_votes(torch.tensor([[0.0, 0.0]]), strength=3.0).tolist()
        [[1.5, 1.5]]
    """
    dim = require_logits("teacher_votes", logits)
    votes = _strength("teacher_votes", strength) * _mean("teacher_votes", logits, dim, temperature)
    return votes.to(result_dtype(logits.dtype))


def teacher_prior(
    logits: Tensor,
    *,
    strength: float | None = None,
    temperature: float = 1.0,
    kl_weight: float | None = None,
    base: float = 1.0,
) -> Tensor:
    """The prior β of each example for `belief_matching_loss`, from a teacher's logits.

    Args:
        logits: logits of the teacher, (K,), (N, K) or (N, K, ...).
        strength: number of votes that the teacher counts: β = base + strength · mean / λ. With 1 it counts as
            much as a label. If not given, the teacher's own belief is the prior, β = e^logits, its mean at
            the temperature; this needs a teacher with a belief, since softmax logits have no total.
        temperature: temperature of the teacher's mean, softmax(logits/temperature).
        kl_weight: λ of the student's loss, 0.01 if not given. Used with `strength` only.
        base: prior that the votes are added to. Used with `strength` only.

    Returns:
        β > 0 in the shape of the logits, without a gradient. Train unlabelled examples with counts of zero;
        their optimum is β.

    Example:
        >>> teacher_prior(torch.tensor([[0.0, 0.0]]), strength=3.0, kl_weight=0.5).tolist()
        [[4.0, 4.0]]
    """
    name = "teacher_prior"
    dim = require_logits(name, logits)
    mean, limits = _mean(name, logits, dim, temperature), torch.finfo(result_dtype(logits.dtype))
    if strength is None:
        total = special.exp_saturating(_work(logits).logsumexp(dim, keepdim=True))
        prior = total.clamp(max=limits.max) * mean  # the total saturates, and the mean does not change
    else:
        weight = require_kl_weight(name, kl_weight)
        if weight == 0:
            raise fail(name, "`kl_weight` must be positive for votes to have a prior, got 0.0.")
        if require_finite_number(name, "base", base) <= 0:
            raise fail(name, f"`base` must be positive, got {base!r}.")
        prior = base + min(_strength(name, strength) / weight, limits.max) * mean
    return prior.clamp(limits.tiny, limits.max).to(result_dtype(logits.dtype))


def _mean(function: str, logits: Tensor, dim: int, temperature: float) -> Tensor:
    if require_finite_number(function, "temperature", temperature) <= 0:
        raise fail(function, f"`temperature` must be positive, got {temperature!r}.")
    return (_work(logits) / temperature).softmax(dim)


def _work(logits: Tensor) -> Tensor:
    return logits.detach().to(work_dtype(logits.device))


def _strength(function: str, strength: float) -> float:
    if require_finite_number(function, "strength", strength) < 0:
        raise fail(function, f"`strength` must not be negative, got {strength!r}.")
    return strength
