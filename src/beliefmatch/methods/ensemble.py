"""Deep ensembles (Lakshminarayanan et al. 2017): networks trained from different seeds, averaged."""

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from beliefmatch._rows import work_dtype
from beliefmatch._validate import fail, require_index
from beliefmatch.belief import Belief
from beliefmatch.methods.base import Method, Prediction
from beliefmatch.methods.belief_matching import belief_matching
from beliefmatch.methods.cross_entropy import softmax
from beliefmatch.methods.mixture import mean_softmax

__all__ = ["EnsemblePredictor", "belief_ensemble", "combine", "ensemble"]


def ensemble(*, members: int = 5) -> Method:
    """Train with cross-entropy from several seeds; the probabilities are the mean of the members'."""
    return _ensemble(softmax(), members, {"members": members})


def belief_ensemble(*, kl_weight: float, members: int = 5) -> Method:
    """Train with belief matching from several seeds; the members' Dirichlets are combined (`combine`)."""
    return _ensemble(
        belief_matching(kl_weight=kl_weight), members, {"kl_weight": kl_weight, "members": members}
    )


def _ensemble(member: Method, members: int, options: dict[str, float]) -> Method:
    if require_index("ensemble", "members", members) < 1:
        raise fail("ensemble", f"`members` must be at least 1, got {members!r}.")
    return Method(
        objective=member.objective,
        predictor=partial(EnsemblePredictor, member),
        options=options,
        members=members,
        reads=member.reads,
        takes_counts=member.takes_counts,
    )


@dataclass(frozen=True, init=False)
class EnsemblePredictor:
    """The mean of the members' probabilities, and one belief that combines theirs if they have beliefs.

    Without beliefs, the prediction has the expected entropy and mutual information of the members.
    """

    networks: tuple[nn.Module, ...]
    member: Method

    def __init__(self, member: Method, *networks: nn.Module) -> None:
        object.__setattr__(self, "member", member)
        object.__setattr__(self, "networks", networks)

    def predict(self, x: Tensor) -> Prediction:
        """Predict the classes of a batch."""
        predictions = [self.member.predictor(network).predict(x) for network in self.networks]
        beliefs = [prediction.belief for prediction in predictions if prediction.belief is not None]
        if len(beliefs) == len(predictions):
            belief = combine(beliefs)
            return Prediction(probs=belief.probs, belief=belief)
        logits = [prediction.logits for prediction in predictions if prediction.logits is not None]
        return mean_softmax(torch.stack(logits))


def combine(beliefs: list[Belief]) -> Belief:
    r"""One Dirichlet with the mean and the total variance of an equal mixture of Dirichlets.

    Disagreement between members adds variance, so the result is less certain than its members. With means
    :math:`m_j` and precisions :math:`A_j` of the members, mean :math:`m` and variances :math:`v_k` of the
    mixture, :math:`α = α_0 m` with

    .. math:: α_0 = \frac{\sum_k m_k (1 - m_k)}{\sum_k v_k} - 1
              = \frac{\overline{G_j A_j / (A_j + 1)}}{\overline{G_j / (A_j + 1)} + D},
              \quad G_j = \sum_k m_{jk} (1 - m_{jk}), \quad D = \sum_k \overline{(m_{jk} - m_k)^2}

    where bars are means over the members. No term of the second form is negative, and each is computed as a
    logarithm: neither sure members nor members that contradict each other are lost to rounding. A class whose
    logit is −∞ for every member has it in the result too.
    """
    z = torch.stack([belief.log_alpha for belief in beliefs])
    is_excluded, dtype, z = z.isneginf(), z.dtype, _lifted(z.to(work_dtype(z.device)))
    log_means, log_precisions = z.log_softmax(-1), z.logsumexp(-1, keepdim=True)
    log_mean = _log_mean_exp(log_means)
    if z.shape[-1] == 1:  # a single class has no variance
        return Belief((log_mean + log_precisions.mean(0)).to(dtype))
    log_gini = _log_complements(log_means).add(log_means).logsumexp(-1, keepdim=True)
    log_within = _log_mean_exp(log_gini + functional.logsigmoid(-log_precisions))
    log_variance = torch.logaddexp(log_within, _log_variance_between(z, log_means))
    log_precision = _log_mean_exp(log_gini + functional.logsigmoid(log_precisions)) - log_variance
    return Belief((log_mean + log_precision).to(dtype).masked_fill(is_excluded.all(0), -torch.inf))


def _lifted(z: Tensor) -> Tensor:
    """Logits with a finite number for −∞, so far below all others that its α is nothing beside theirs.

    Differences of logits are then numbers. A member without any finite logit keeps its own.
    """
    lowest = z.masked_fill(~z.isfinite(), 0.0).amin((0, -1), keepdim=True)
    floor = (2 * lowest - 1e3).clamp(min=torch.finfo(z.dtype).min)
    return torch.where(z.isneginf() & (z.amax(-1, keepdim=True) > -torch.inf), floor, z)


def _log_mean_exp(values: Tensor) -> Tensor:
    return values.logsumexp(0) - math.log(len(values))


def _log_complements(log_probs: Tensor) -> Tensor:
    """ln(1 − p) of each class; for the largest of a row from the sum of all others."""
    top = log_probs.argmax(-1, keepdim=True)
    others = log_probs.scatter(-1, top, -torch.inf).logsumexp(-1, keepdim=True)
    return log_probs.exp().clamp(max=0.5).neg().log1p().scatter(-1, top, others)


def _log_variance_between(z: Tensor, log_means: Tensor) -> Tensor:
    """ln Σ_k of the variance over members of the means m_jk; −∞ where all members agree.

    Taken about the first member, from ratios of the means. The difference of its largest class, where means
    near one would cancel, is that of the other classes with the other sign.
    """
    top = z[0].argmax(-1, keepdim=True).expand_as(z[:, ..., :1])
    shift = z - z[0]
    shift = shift - shift.gather(-1, top)  # its largest class apart, so that a common shift is none
    is_close = shift.abs().amax(-1, keepdim=True) < 1
    growth = (log_means[0].exp() * shift.clamp(-1, 1).expm1()).sum(-1, keepdim=True)
    ratio = torch.where(is_close, shift - growth.log1p(), log_means - log_means[0])
    larger = torch.maximum(log_means, log_means[0]).scatter(-1, top, -torch.inf)
    scale = larger.amax((0, -1), keepdim=True)
    differences = ratio.sign() * (larger - scale).exp() * -(-ratio.abs()).expm1()
    differences = differences.scatter(-1, top, -differences.sum(-1, keepdim=True))
    variance = differences.var(0, correction=0).sum(-1, keepdim=True)
    return variance.log() + 2 * scale[0]
