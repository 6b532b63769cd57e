"""Calibration of every class's probability, not only of the predicted one's."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from beliefmatch.metrics._inputs import (
    check_layout,
    only_given,
    require_at_least_one,
)
from beliefmatch.metrics.bins import bin_of
from beliefmatch.metrics.readings import below_top, best_of_logits, best_of_probs, chunks, row_sums

__all__ = ["ClassBins", "class_bins", "classwise_calibration_error"]


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
    targets: Tensor,
    *,
    probs: Tensor | None = None,
    logits: Tensor | None = None,
    n_bins: int = 15,
    function: str = "class_bins",
) -> ClassBins:
    """Put the probability of every class of every example into bins (i/M, (i+1)/M], in one pass."""
    n_bins = require_at_least_one(function, "n_bins", n_bins)
    name, values = only_given(function, probs, logits)
    check_layout(function, name, values, targets)
    targets = targets.detach().to("cpu", torch.int64)
    sums = torch.zeros(3, values.shape[1] * n_bins, dtype=torch.float64)
    first = torch.arange(values.shape[1]) * n_bins
    for span, rows, scratch in chunks(values):
        if name == "logits":
            _, top = best_of_logits(function, rows)
            rows = np.exp(below_top(rows, top, scratch), out=scratch[0])
            rows /= row_sums(rows)[:, None]
        else:
            best_of_probs(function, rows)
        _add(sums, first, torch.from_numpy(rows), targets[span], n_bins)
    count, probability, hits = sums.view(3, -1, n_bins)
    count[:, 0] = len(values) - count[:, 1:].sum(1)
    return ClassBins(count, probability.clamp_(min=0), hits)


def _add(sums: Tensor, first: Tensor, probs: Tensor, targets: Tensor, n_bins: int) -> None:
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
    own = probs.gather(1, targets[:, None])[:, 0].double()
    sums[2].index_add_(0, targets * n_bins + bin_of(own, n_bins), torch.ones_like(own))


def _above(probs: Tensor, edge: float) -> tuple[Tensor, Tensor]:
    """Where the probabilities are above the edge, or on it."""
    values = probs.numpy()  # numpy finds them several times faster
    positions = torch.from_numpy(np.flatnonzero(values >= values.dtype.type(edge)))
    return positions // probs.shape[1], positions % probs.shape[1]


def classwise_calibration_error(probs: Tensor, targets: Tensor, *, n_bins: int = 15) -> float:
    r"""Mean over the classes of the calibration error of their probability, in [0, 1].

    .. math:: \frac1K \sum_k \sum_{i<M} \frac{n_{ki}}{N} \left|\bar y_{ki} - \bar p_{ki}\right|

    Every class counts alike and every example counts in every class (Kull et al. 2019; Nixon et al. 2019
    call it static). With many classes it is small for any forecast: most probabilities are near zero, and
    rightly so.

    Args:
        probs: class probabilities, shape (N, K).
        targets: class ids, shape (N,).
        n_bins: number M of bins of equal width, (i/M, (i+1)/M].

    >>> import torch
    >>> classwise_calibration_error(torch.tensor([[0.75, 0.25]] * 4), torch.tensor([0, 0, 1, 1]))
    0.25
    """
    bins = class_bins(targets, probs=probs, n_bins=n_bins, function="classwise_calibration_error")
    return bins.errors.mean().item()
