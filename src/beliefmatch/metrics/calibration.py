"""Calibration: does a confidence of 0.8 come true in eight cases of ten?"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from beliefmatch._validate import require_choice, require_values
from beliefmatch.metrics._readings import (
    answers,
    below_top,
    best_of_logits,
    best_of_probs,
    check_layout,
    chunks,
    observe,
    only_given,
    require_at_least_one,
    row_sums,
)

__all__ = [
    "ClassBins",
    "Overconfidence",
    "ReliabilityBins",
    "adaptive_calibration_error",
    "bin_of",
    "bins_of",
    "calibration_error",
    "class_bins",
    "class_bins_of",
    "classwise_calibration_error",
    "debiased_calibration_error",
    "expected_calibration_error",
    "maximum_calibration_error",
    "overconfidence",
    "reliability_bins",
    "share_ties",
]

Scheme = Literal["width", "mass"]


@dataclass(frozen=True, eq=False)
class ReliabilityBins:
    """A reliability diagram of M bins (lower, upper]; columns of shape (M,), means NaN where empty."""

    lower: Tensor
    upper: Tensor
    count: Tensor
    """Number of examples, int64."""
    confidence: Tensor
    """Their mean confidence."""
    accuracy: Tensor
    """Share of them that were right."""

    @property
    def weight(self) -> Tensor:
        """Share of all examples."""
        return self.count.double() / self.count.sum()

    @property
    def gap(self) -> Tensor:
        """Mean confidence less accuracy: positive where overconfident, zero where empty."""
        return (self.confidence - self.accuracy).nan_to_num(nan=0.0)


def reliability_bins(
    confidence: Tensor, correct: Tensor, *, n_bins: int = 15, scheme: Scheme = "width"
) -> ReliabilityBins:
    """Bin predictions by confidence and compare confidence with accuracy in each bin.

    Args:
        confidence: probability of the predicted class, shape (N,), in [0, 1].
        correct: whether the predicted class came true, shape (N,).
        n_bins: number M of bins.
        scheme: "width" for the bins (i/M, (i+1)/M], a confidence of 0 counting in the first; "mass" for
            bins of N/M examples in order of confidence, sizes differing by at most one. Examples of the
            same confidence that fall into two bins share their hits evenly, so their order does not matter.

    >>> import torch
    >>> bins = reliability_bins(torch.tensor([0.5, 0.75, 1.0]), torch.tensor([True, False, True]), n_bins=4)
    >>> bins.count.tolist(), bins.accuracy.tolist()
    ([0, 1, 1, 1], [nan, 1.0, 0.0, 1.0])
    """
    name = "reliability_bins"
    n_bins = require_at_least_one(name, "n_bins", n_bins)
    require_choice(name, "scheme", scheme, ("width", "mass"))
    confidence, correct = answers(name, confidence, correct)
    within = (confidence >= 0) & (confidence <= 1)
    require_values(name, "confidence", confidence, within, "in [0, 1]")
    return bins_of(confidence, correct, n_bins, scheme)


def bins_of(confidence: Tensor, correct: Tensor, n_bins: int, scheme: Scheme) -> ReliabilityBins:
    """`reliability_bins` of columns of doubles that were checked."""
    return (_by_width if scheme == "width" else _by_mass)(confidence, correct, n_bins)


def _by_width(confidence: Tensor, correct: Tensor, n_bins: int) -> ReliabilityBins:
    index = bin_of(confidence, n_bins)
    edges = torch.arange(n_bins + 1, dtype=torch.float64, device=confidence.device) / n_bins
    return _means(edges, index, confidence, correct)


def _by_mass(confidence: Tensor, correct: Tensor, n_bins: int) -> ReliabilityBins:
    confidence, order = confidence.sort()
    examples = len(confidence)
    bins = torch.arange(n_bins + 1, device=confidence.device)
    ends = bins * examples // n_bins  # sizes differ by at most one
    index = torch.repeat_interleave(bins[:-1], ends.diff())
    inner = confidence[(ends[1:-1] - 1).clamp(min=0)] if n_bins > 1 else confidence[:0]
    edges = torch.cat([inner.new_zeros(1), inner, inner.new_ones(1)])
    return _means(edges, index, confidence, share_ties(confidence, correct[order]))


def _means(edges: Tensor, index: Tensor, *columns: Tensor) -> ReliabilityBins:
    count = torch.bincount(index, minlength=len(edges) - 1)
    sums = (edges.new_zeros(len(count)).index_add_(0, index, x) for x in columns)
    return ReliabilityBins(edges[:-1], edges[1:], count, *(total / count.double() for total in sums))


def bin_of(values: Tensor, n_bins: int) -> Tensor:
    """Index i of the bin (i/M, (i+1)/M] that holds each value; 0 for the value 0."""
    # bucketize counts the edges strictly below a value: bins are open below, closed above.
    edges = torch.arange(1, n_bins, dtype=torch.float64, device=values.device) / n_bins
    return torch.bucketize(values, edges)


def share_ties(keys: Tensor, values: Tensor) -> Tensor:
    """The values with those of equal key replaced by their mean; keys must be sorted."""
    _, index, count = torch.unique_consecutive(keys, return_inverse=True, return_counts=True)
    values = values.double()
    sums = values.new_zeros(len(count)).index_add_(0, index, values)
    return (sums / count)[index]


# Calibration errors of the predicted class


def expected_calibration_error(preds: Tensor, target: Tensor, *, n_bins: int = 15) -> float:
    r"""Mean gap between confidence and accuracy over bins of like confidence, in [0, 1].

    .. math:: \mathrm{ECE} = \sum_{i<M} \frac{|G_i|}{N}
              \left|\mathrm{acc}(G_i) - \mathrm{conf}(G_i)\right|, \quad
              G_i = \{n : \hat p_n \in (i/M, (i+1)/M]\}

    with :math:`\hat p_n` the largest probability of example n; a confidence of 0 counts in
    :math:`G_0`. The estimate is biased upwards in small samples: a perfectly calibrated
    forecast scores above zero by chance, the more so the fewer examples a bin holds.

    Args:
        preds: class probabilities, shape (N, K).
        target: class ids, shape (N,).
        n_bins: number M of bins of equal width; the paper's 15.

    >>> import torch
    >>> preds = torch.tensor([[0.75, 0.25], [0.75, 0.25], [0.75, 0.25], [1.0, 0.0]])
    >>> round(expected_calibration_error(preds, torch.tensor([0, 0, 1, 0])), 9)  # 3/4 · |2/3 - 3/4|
    0.0625
    """
    return calibration_error(_bins("expected_calibration_error", preds, target, n_bins, "width"))


def maximum_calibration_error(preds: Tensor, target: Tensor, *, n_bins: int = 15) -> float:
    """Largest gap between confidence and accuracy of a bin that is not empty, in [0, 1].

    The bins are those of `expected_calibration_error`. A bin of one example can decide it.
    """
    return calibration_error(_bins("maximum_calibration_error", preds, target, n_bins, "width"), norm="max")


def adaptive_calibration_error(preds: Tensor, target: Tensor, *, n_bins: int = 15) -> float:
    """Mean gap between confidence and accuracy over bins of equal size, in [0, 1].

    `expected_calibration_error` with bins of N/M examples in order of confidence, so that none is decided
    by few (Mukhoti et al. 2020; Nixon et al. 2019 average it over all classes instead). Tied confidences
    share their hits evenly.
    """
    return calibration_error(_bins("adaptive_calibration_error", preds, target, n_bins, "mass"))


def debiased_calibration_error(preds: Tensor, target: Tensor, *, n_bins: int = 15) -> float:
    r"""Root mean squared gap over bins of equal size, less what chance adds to it, in [0, 1].

    .. math:: \sqrt{\max\Big(0, \sum_i \frac{n_i}{N} \Big[(\bar p_i - \bar y_i)^2
              - \frac{\bar y_i (1 - \bar y_i)}{n_i - 1}\Big]\Big)}

    The estimator of Kumar, Liang and Ma (2019). Without the subtraction a calibrated forecast scores above
    zero by chance; with it the sum under the root is right on average. Being a root mean square it is no
    smaller than the mean gap of the same bins would be in a large sample.
    """
    bins = _bins("debiased_calibration_error", preds, target, n_bins, "mass")
    chance = bins.accuracy * (1 - bins.accuracy) / (bins.count - 1).clamp(min=1)
    squares = bins.gap.square() - chance.nan_to_num(nan=0.0)
    return (bins.weight * squares).sum().clamp(min=0).sqrt().item()


class Overconfidence(NamedTuple):
    """Mean confidence minus accuracy, and its parts in overconfident and underconfident bins."""

    signed: float
    """Mean confidence less accuracy, in [−1, 1]; positive is overconfident."""
    over: float
    """Part of the calibration error from bins whose confidence exceeds their accuracy."""
    under: float
    """Part from bins whose accuracy exceeds their confidence."""


def overconfidence(preds: Tensor, target: Tensor, *, n_bins: int = 15) -> Overconfidence:
    """Split the expected calibration error by sign: over + under is the ECE, over − under is `signed`.

    >>> import torch
    >>> overconfidence(torch.tensor([[0.75, 0.25], [0.5, 0.5]]), torch.tensor([1, 0]))
    Overconfidence(signed=0.125, over=0.375, under=0.25)
    """
    bins = _bins("overconfidence", preds, target, n_bins, "width")
    gaps = bins.weight * bins.gap
    over, under = gaps.clamp(min=0).sum().item(), (-gaps).clamp(min=0).sum().item()
    return Overconfidence(over - under, over, under)


def calibration_error(bins: ReliabilityBins, *, norm: Literal["mean", "max"] = "mean") -> float:
    """Mean gap of the bins, weighted by their size, or the largest gap of one that is not empty."""
    gap = bins.gap.abs()
    return (gap.max() if norm == "max" else (bins.weight * gap).sum()).item()


def _bins(function: str, preds: Tensor, target: Tensor, n_bins: int, scheme: Scheme) -> ReliabilityBins:
    n_bins = require_at_least_one(function, "n_bins", n_bins)
    seen = observe(function, "preds", preds, target, entropy=False)
    return bins_of(seen.confidence, seen.correct.double(), n_bins, scheme)


# Calibration of every class, not only of the predicted one


def classwise_calibration_error(preds: Tensor, target: Tensor, *, n_bins: int = 15) -> float:
    r"""Mean over the classes of the calibration error of their probability, in [0, 1].

    .. math:: \frac1K \sum_k \sum_{i<M} \frac{n_{ki}}{N} \left|\bar y_{ki} - \bar p_{ki}\right|

    Every class counts alike and every example counts in every class (Kull et al. 2019; Nixon et al. 2019
    call it static). With many classes it is small for any forecast: most probabilities are near zero, and
    rightly so.

    Args:
        preds: class probabilities, shape (N, K).
        target: class ids, shape (N,).
        n_bins: number M of bins of equal width, (i/M, (i+1)/M].

    >>> import torch
    >>> classwise_calibration_error(torch.tensor([[0.75, 0.25]] * 4), torch.tensor([0, 0, 1, 1]))
    0.25
    """
    bins = class_bins_of("classwise_calibration_error", "preds", preds, target, n_bins=n_bins)
    return bins.errors.mean().item()


@dataclass(frozen=True, eq=False)
class ClassBins:
    """Sums over the examples whose probability for class k lies in bin i; each of shape (K, M), float64."""

    count: Tensor
    """Number of examples."""
    probability: Tensor
    """Sum of their probabilities for the class."""
    hits: Tensor
    """Number of them in which the class came true."""

    @property
    def examples(self) -> int:
        """N."""
        return int(self.count[0].sum())

    @property
    def errors(self) -> Tensor:
        """Calibration error of each class, shape (K,)."""
        return (self.probability - self.hits).abs().sum(1) / self.examples

    @property
    def mean_probability(self) -> Tensor:
        """Of each class, shape (K,)."""
        return self.probability.sum(1) / self.examples


def class_bins(
    target: Tensor, *, probs: Tensor | None = None, logits: Tensor | None = None, n_bins: int = 15
) -> ClassBins:
    """Put the probability of every class of every example into bins (i/M, (i+1)/M], in one pass."""
    name, values = only_given("class_bins", probs=probs, logits=logits)
    return class_bins_of("class_bins", name, values, target, n_bins=n_bins)


def class_bins_of(function: str, name: str, values: Tensor, target: Tensor, *, n_bins: int) -> ClassBins:
    """`class_bins` of `values` that `function` calls `name`: logits if that is "logits", or probabilities."""
    n_bins = require_at_least_one(function, "n_bins", n_bins)
    check_layout(function, name, values, target)
    target = target.detach().to("cpu", torch.int64)
    sums = torch.zeros(3, values.shape[1] * n_bins, dtype=torch.float64, device="cpu")
    first = torch.arange(values.shape[1], device="cpu") * n_bins
    for span, rows, scratch in chunks(values):
        if name == "logits":
            _, top = best_of_logits(function, rows)
            rows = np.exp(below_top(rows, top, scratch), out=scratch[0])
            rows /= row_sums(rows)[:, None]
        else:
            best_of_probs(function, rows, name)
        _add(sums, first, torch.from_numpy(rows), target[span], n_bins)
    count, probability, hits = sums.view(3, -1, n_bins)
    count[:, 0] = len(values) - count[:, 1:].sum(1)
    return ClassBins(count, probability.clamp_(min=0), hits)


def _add(sums: Tensor, first: Tensor, probs: Tensor, target: Tensor, n_bins: int) -> None:
    """Add the examples to the sums of each class and bin.

    Nearly all probabilities are in the first bin: a row has fewer than M above 1/M. Only those are
    counted one by one; the first bin is what remains of the sum.
    """
    row, column = _above(probs, 1 / n_bins)
    high = probs[row, column].double()
    at = first[column] + bin_of(high, n_bins)
    sums[0].index_add_(0, at, torch.ones_like(high))
    sums[1].index_add_(0, at, high)
    sums[1].index_add_(0, first[column], -high)
    sums[1].index_add_(0, first, probs.sum(0).double())
    own = probs.gather(1, target[:, None])[:, 0].double()
    sums[2].index_add_(0, target * n_bins + bin_of(own, n_bins), torch.ones_like(own))


def _above(probs: Tensor, edge: float) -> tuple[Tensor, Tensor]:
    """Where the probabilities are above the edge, or on it."""
    values = probs.numpy()  # numpy finds them several times faster
    positions = torch.from_numpy(np.flatnonzero(values >= values.dtype.type(edge)))
    return positions // probs.shape[1], positions % probs.shape[1]
