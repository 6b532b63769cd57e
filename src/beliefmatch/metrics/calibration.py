"""Calibration: does a confidence of 0.8 come true in eight cases of ten?"""

import torch
from torch import Tensor

from beliefmatch.metrics._inputs import checked

__all__ = ["expected_calibration_error"]


def expected_calibration_error(probs: Tensor, targets: Tensor, *, groups: int = 15) -> float:
    r"""Mean gap between confidence and accuracy over groups of like confidence, in [0, 1].

    .. math:: \mathrm{ECE} = \sum_{i<M} \frac{|G_i|}{N}
              \left|\mathrm{acc}(G_i) - \mathrm{conf}(G_i)\right|, \quad
              G_i = \{n : \hat p_n \in (i/M, (i+1)/M]\}

    with :math:`\hat p_n` the largest probability of example n; a confidence of 0 counts in
    :math:`G_0`. The estimate is biased upwards in small samples: a perfectly calibrated
    forecast scores above zero by chance, the more so the fewer examples a group holds.

    Args:
        probs: class probabilities, shape (N, K).
        targets: class ids, shape (N,).
        groups: number M of groups of equal width; the paper's 15.

    >>> import torch
    >>> probs = torch.tensor([[0.75, 0.25], [0.75, 0.25], [0.75, 0.25], [1.0, 0.0]])
    >>> expected_calibration_error(probs, torch.tensor([0, 0, 1, 0]))  # 3/4 · |2/3 - 3/4|
    0.0625
    """
    if groups < 1:
        raise ValueError(f"expected_calibration_error: `groups` must be at least 1, got {groups}.")
    probs, targets = checked("expected_calibration_error", probs, targets)
    confidence, predicted = probs.max(1)
    # bucketize counts the edges strictly below a value: groups are open below, closed above.
    edges = torch.arange(1, groups, dtype=torch.float64) / groups
    gap = confidence - (predicted == targets).double()
    sums = torch.zeros(groups, dtype=torch.float64)
    sums.index_add_(0, torch.bucketize(confidence, edges), gap)
    return (sums.abs().sum() / len(gap)).item()
