"""Calibration: does a confidence of 0.8 come true in eight cases of ten?"""

from typing import Literal, NamedTuple

from torch import Tensor

from beliefmatch.metrics._inputs import require_at_least_one
from beliefmatch.metrics.bins import ReliabilityBins, Scheme, bins_of, reliability_bins
from beliefmatch.metrics.classwise import ClassBins, class_bins, classwise_calibration_error
from beliefmatch.metrics.outcomes import observe

__all__ = [
    "ClassBins",
    "Overconfidence",
    "ReliabilityBins",
    "adaptive_calibration_error",
    "calibration_error",
    "class_bins",
    "classwise_calibration_error",
    "debiased_calibration_error",
    "debiased_error_of",
    "expected_calibration_error",
    "maximum_calibration_error",
    "overconfidence",
    "overconfidence_of",
    "reliability_bins",
]


def expected_calibration_error(probs: Tensor, targets: Tensor, *, n_bins: int = 15) -> float:
    r"""Mean gap between confidence and accuracy over bins of like confidence, in [0, 1].

    .. math:: \mathrm{ECE} = \sum_{i<M} \frac{|G_i|}{N}
              \left|\mathrm{acc}(G_i) - \mathrm{conf}(G_i)\right|, \quad
              G_i = \{n : \hat p_n \in (i/M, (i+1)/M]\}

    with :math:`\hat p_n` the largest probability of example n; a confidence of 0 counts in
    :math:`G_0`. The estimate is biased upwards in small samples: a perfectly calibrated
    forecast scores above zero by chance, the more so the fewer examples a bin holds.

    Args:
        probs: class probabilities, shape (N, K).
        targets: class ids, shape (N,).
        n_bins: number M of bins of equal width; the paper's 15.

    >>> import torch
    >>> probs = torch.tensor([[0.75, 0.25], [0.75, 0.25], [0.75, 0.25], [1.0, 0.0]])
    >>> round(expected_calibration_error(probs, torch.tensor([0, 0, 1, 0])), 9)  # 3/4 · |2/3 - 3/4|
    0.0625
    """
    return calibration_error(_bins("expected_calibration_error", probs, targets, n_bins, "width"))


def maximum_calibration_error(probs: Tensor, targets: Tensor, *, n_bins: int = 15) -> float:
    """Largest gap between confidence and accuracy of a bin that is not empty, in [0, 1].

    The bins are those of `expected_calibration_error`. A bin of one example can decide it.
    """
    return calibration_error(_bins("maximum_calibration_error", probs, targets, n_bins, "width"), norm="max")


def adaptive_calibration_error(probs: Tensor, targets: Tensor, *, n_bins: int = 15) -> float:
    """Mean gap between confidence and accuracy over bins of equal size, in [0, 1].

    `expected_calibration_error` with bins of N/M examples in order of confidence, so that none is decided
    by few (Mukhoti et al. 2020; Nixon et al. 2019 average it over all classes instead). Tied confidences
    share their hits evenly.
    """
    return calibration_error(_bins("adaptive_calibration_error", probs, targets, n_bins, "mass"))


def debiased_calibration_error(probs: Tensor, targets: Tensor, *, n_bins: int = 15) -> float:
    r"""Root mean squared gap over bins of equal size, less what chance adds to it, in [0, 1].

    .. math:: \sqrt{\max\Big(0, \sum_i \frac{n_i}{N} \Big[(\bar p_i - \bar y_i)^2
              - \frac{\bar y_i (1 - \bar y_i)}{n_i - 1}\Big]\Big)}

    The estimator of Kumar, Liang and Ma (2019). Without the subtraction a calibrated forecast scores above
    zero by chance; with it the sum under the root is right on average. Being a root mean square it is no
    smaller than the mean gap of the same bins would be in a large sample.
    """
    return debiased_error_of(_bins("debiased_calibration_error", probs, targets, n_bins, "mass"))


class Overconfidence(NamedTuple):
    """How much surer than right, and where."""

    signed: float
    """Mean confidence less accuracy, in [−1, 1]; positive is overconfident."""
    over: float
    """Part of the calibration error from bins whose confidence exceeds their accuracy."""
    under: float
    """Part from bins whose accuracy exceeds their confidence."""


def overconfidence(probs: Tensor, targets: Tensor, *, n_bins: int = 15) -> Overconfidence:
    """Split the expected calibration error by sign: over + under is the ECE, over − under is `signed`.

    >>> import torch
    >>> overconfidence(torch.tensor([[0.75, 0.25], [0.5, 0.5]]), torch.tensor([1, 0]))
    Overconfidence(signed=0.125, over=0.375, under=0.25)
    """
    return overconfidence_of(_bins("overconfidence", probs, targets, n_bins, "width"))


def calibration_error(bins: ReliabilityBins, *, norm: Literal["mean", "max"] = "mean") -> float:
    """Mean gap of the bins, weighted by their size, or the largest gap of one that is not empty."""
    gap = bins.gap.abs()
    return (gap.max() if norm == "max" else (bins.weight * gap).sum()).item()


def debiased_error_of(bins: ReliabilityBins) -> float:
    """`debiased_calibration_error` of bins."""
    chance = bins.accuracy * (1 - bins.accuracy) / (bins.count - 1).clamp(min=1)
    squares = bins.gap.square() - chance.nan_to_num(nan=0.0)
    return (bins.weight * squares).sum().clamp(min=0).sqrt().item()


def overconfidence_of(bins: ReliabilityBins) -> Overconfidence:
    """`overconfidence` of bins."""
    gaps = bins.weight * bins.gap
    over, under = gaps.clamp(min=0).sum().item(), (-gaps).clamp(min=0).sum().item()
    return Overconfidence(over - under, over, under)


def _bins(function: str, probs: Tensor, targets: Tensor, n_bins: int, scheme: Scheme) -> ReliabilityBins:
    n_bins = require_at_least_one(function, "n_bins", n_bins)
    seen = observe(function, targets, probs=probs, entropy=False)
    return bins_of(seen.confidence, seen.correct.double(), n_bins, scheme)
