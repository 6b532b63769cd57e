"""Scores of predictions against the class that came true: error, likelihood, Brier score and its parts."""

from typing import NamedTuple

from torch import Tensor

from beliefmatch.metrics._readings import observe, require_at_least_one
from beliefmatch.metrics.calibration import ClassBins, class_bins_of

__all__ = ["BrierParts", "brier", "brier_parts", "brier_parts_of", "error", "nll", "top_k_error"]


def error(preds: Tensor, target: Tensor) -> float:
    r"""Share of examples whose most probable class is not the target, in [0, 1].

    Args:
        preds: class probabilities, shape (N, K); of tied classes the first counts.
        target: class ids, shape (N,).

    >>> import torch
    >>> error(torch.tensor([[0.9, 0.1], [0.4, 0.6], [0.7, 0.3]]), torch.tensor([0, 0, 0]))
    0.3333333333333333
    """
    seen = observe("error", "preds", preds, target, entropy=False)
    return (~seen.correct).double().mean().item()


def top_k_error(preds: Tensor, target: Tensor, *, k: int = 5) -> float:
    r"""Share of examples whose target is not among the k most probable classes, in [0, 1].

    Args:
        preds: class probabilities, shape (N, K); of tied classes the first come first.
        target: class ids, shape (N,).
        k: how many classes may be named; with k ≥ K the error is zero.

    >>> import torch
    >>> top_k_error(torch.tensor([[0.5, 0.3, 0.2], [0.2, 0.5, 0.3]]), torch.tensor([1, 0]), k=2)
    0.5
    """
    k = require_at_least_one("top_k_error", "k", k)
    seen = observe("top_k_error", "preds", preds, target, entropy=False)
    return (seen.rank >= k).double().mean().item()


def nll(preds: Tensor, target: Tensor) -> float:
    r"""Mean negative log-likelihood :math:`-\frac1N\sum_i \ln p_i(y_i)` in nats, in [0, ∞].

    A proper score: no forecast does better in expectation than the true probabilities.
    It is infinite where a class came true that was given probability zero.

    Args:
        preds: class probabilities, shape (N, K).
        target: class ids, shape (N,).

    >>> import torch
    >>> round(nll(torch.tensor([[0.5, 0.5], [0.25, 0.75]]), torch.tensor([0, 1])), 4)
    0.4904
    """
    return observe("nll", "preds", preds, target, entropy=False).nll.mean().item()


def brier(preds: Tensor, target: Tensor) -> float:
    r"""Mean squared distance of the probabilities from the outcome, in [0, 2].

    .. math:: \frac1N \sum_i \sum_k (p_{ik} - 1\{y_i = k\})^2

    Brier's own form, summed over all classes: with two classes it is twice what is often given.
    A proper score, like `nll`, but one that stays finite.

    Args:
        preds: class probabilities, shape (N, K).
        target: class ids, shape (N,).

    >>> import torch
    >>> brier(torch.tensor([[0.5, 0.5], [0.0, 1.0]]), torch.tensor([0, 1]))
    0.25
    """
    return observe("brier", "preds", preds, target, entropy=False).brier.mean().item()


class BrierParts(NamedTuple):
    """Brier score = reliability − resolution + uncertainty + remainder."""

    reliability: float
    """How far the probabilities of a bin are from how often it came true; 0 is best."""
    resolution: float
    """How much the bins differ in how often they come true; higher is better."""
    uncertainty: float
    """The score of the class frequencies alone; no property of the model."""
    remainder: float
    """What differs inside the bins, and would be zero if each held one probability only."""


def brier_parts(preds: Tensor, target: Tensor, *, n_bins: int = 15) -> BrierParts:
    r"""Murphy's (1973) three parts of the Brier score, and what binning leaves over.

    Each class is a forecast of its own, yes or no, its probabilities put into the bins
    :math:`(i/M, (i+1)/M]`; the parts are summed over the classes.

    .. math:: \frac1N\sum_{k,i} n_{ki} (\bar p_{ki} - \bar y_{ki})^2
              - \frac1N\sum_{k,i} n_{ki} (\bar y_{ki} - \bar y_k)^2
              + \sum_k \bar y_k (1 - \bar y_k) + \mathrm{remainder}

    The remainder is Stephenson, Coelho and Jolliffe's (2008) variance within the bins less twice
    the covariance with the outcome.

    Args:
        preds: class probabilities, shape (N, K).
        target: class ids, shape (N,).
        n_bins: number M of bins of equal width.

    >>> import torch
    >>> preds = torch.tensor([[0.75, 0.25]] * 4)
    >>> brier_parts(preds, torch.tensor([0, 0, 0, 1]))
    BrierParts(reliability=0.0, resolution=0.0, uncertainty=0.375, remainder=0.0)
    """
    bins = class_bins_of("brier_parts", "preds", preds, target, n_bins=n_bins)
    return brier_parts_of(bins, brier(preds, target))


def brier_parts_of(bins: ClassBins, score: float) -> BrierParts:
    """The parts of a Brier `score` from the bins of its classes."""
    examples = bins.count[0].sum()
    filled = bins.count.clamp(min=1)
    reliability = ((bins.probability - bins.hits).square() / filled).sum() / examples
    frequency = bins.hits.sum(1, keepdim=True) / examples
    resolution = (bins.count * (bins.hits / filled - frequency).square()).sum() / examples
    uncertainty = (frequency * (1 - frequency)).sum()
    remainder = score - reliability + resolution - uncertainty
    return BrierParts(*(part.item() for part in (reliability, resolution, uncertainty, remainder)))
