"""Bins of like confidence."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from beliefmatch._validate import require_choice, require_values
from beliefmatch.metrics._inputs import answers, require_at_least_one

__all__ = ["ReliabilityBins", "Scheme", "bin_of", "bins_of", "reliability_bins", "share_ties"]

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
            same confidence that fall into two bins share their hits evenly, so that their order is moot.

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
    edges = torch.arange(n_bins + 1, dtype=torch.float64) / n_bins
    return _means(edges, index, confidence, correct)


def _by_mass(confidence: Tensor, correct: Tensor, n_bins: int) -> ReliabilityBins:
    confidence, order = confidence.sort()
    examples = len(confidence)
    ends = torch.arange(n_bins + 1) * examples // n_bins  # sizes differ by at most one
    index = torch.repeat_interleave(torch.arange(n_bins), ends.diff())
    inner = confidence[(ends[1:-1] - 1).clamp(min=0)] if n_bins > 1 else confidence[:0]
    edges = torch.cat([torch.zeros(1).double(), inner, torch.ones(1).double()])
    return _means(edges, index, confidence, share_ties(confidence, correct[order]))


def _means(edges: Tensor, index: Tensor, *columns: Tensor) -> ReliabilityBins:
    count = torch.bincount(index, minlength=len(edges) - 1)
    sums = (torch.zeros(len(count), dtype=torch.float64).index_add_(0, index, x) for x in columns)
    return ReliabilityBins(edges[:-1], edges[1:], count, *(total / count.double() for total in sums))


def bin_of(values: Tensor, n_bins: int) -> Tensor:
    """Index i of the bin (i/M, (i+1)/M] that holds each value; 0 for the value 0."""
    # bucketize counts the edges strictly below a value: bins are open below, closed above.
    edges = torch.arange(1, n_bins, dtype=torch.float64, device=values.device) / n_bins
    return torch.bucketize(values, edges)


def share_ties(keys: Tensor, values: Tensor) -> Tensor:
    """The values with those of equal key replaced by their mean; keys must be sorted."""
    _, index, count = torch.unique_consecutive(keys, return_inverse=True, return_counts=True)
    sums = torch.zeros(len(count), dtype=torch.float64).index_add_(0, index, values.double())
    return (sums / count)[index]
