"""How well a score separates in-distribution from OOD examples; higher always means more OOD.

The two sets of scores are of in-distribution and of OOD input, or, to find mistakes, of right and
of wrong predictions.
"""

import math
from typing import Literal

import torch
from torch import Tensor

from beliefmatch._validate import require_choice
from beliefmatch.metrics._inputs import columns, require_share

__all__ = ["aupr", "auroc", "fpr_at_tpr", "mann_whitney", "needed", "roc"]

_POINTS = 500


def auroc(in_distribution: Tensor, ood: Tensor) -> float:
    """Probability that a random OOD example scores higher than a random in-distribution one, in [0, 1].

    Equal scores count one half. This is the area under the ROC curve, whichever side is called positive.

    >>> import torch
    >>> auroc(torch.tensor([1.0, 2.0]), torch.tensor([2.0, 3.0]))  # one tie among four pairs
    0.875
    """
    in_distribution, ood = columns("auroc", in_distribution=in_distribution, ood=ood)
    ordered = in_distribution.sort().values
    below = torch.searchsorted(ordered, ood) + torch.searchsorted(ordered, ood, right=True)
    return below.sum().item() / (2 * len(in_distribution) * len(ood))


def mann_whitney(in_distribution: Tensor, ood: Tensor) -> float:
    """One-sided p-value of the hypothesis that OOD examples do not score higher, by the Mann-Whitney test.

    The statistic is `auroc`; its distribution is taken as normal, with the variance corrected for ties.
    """
    in_distribution, ood = columns("mann_whitney", in_distribution=in_distribution, ood=ood)
    n, m = len(in_distribution), len(ood)
    _, ties = torch.cat([in_distribution, ood]).unique(return_counts=True)
    ties = ties.double()
    tied = ((ties**3 - ties).sum() / ((n + m) ** 3 - (n + m))).item()
    variance = (n + m + 1) / (12 * n * m) * (1 - tied)
    z = (auroc(in_distribution, ood) - 0.5) / math.sqrt(variance) if variance > 0 else 0.0
    return 0.5 * math.erfc(z / math.sqrt(2))


def aupr(
    in_distribution: Tensor, ood: Tensor, *, positive: Literal["ood", "in_distribution"] = "ood"
) -> float:
    r"""Area under the precision-recall curve: average precision over the positive examples, in (0, 1].

    .. math:: \sum_t (R_t - R_{t-1}) P_t

    over the distinct scores t from the most to the least extreme, without interpolation. With `positive`
    "ood" the examples are called OOD from the highest score down; with "in_distribution", the others from the
    lowest up. An uninformative score gets the share of the positive examples.
    """
    require_choice("aupr", "positive", positive, ("ood", "in_distribution"))
    in_distribution, ood = columns("aupr", in_distribution=in_distribution, ood=ood)
    if positive == "in_distribution":
        in_distribution, ood = -ood, -in_distribution
    false, true = _flagged(in_distribution, ood)
    gained = true.diff(prepend=true.new_zeros(1))
    return ((gained * true / (true + false)).sum() / len(ood)).item()


def fpr_at_tpr(in_distribution: Tensor, ood: Tensor, *, tpr: float = 0.95) -> float:
    """Share of the OOD examples that pass where `tpr` of the in-distribution examples do, in [0, 1].

    The threshold is the smallest in-distribution score at or below which lie at least `tpr` of them;
    what scores no higher passes. As in the literature on OOD input, the in-distribution examples are the true
    positives here, and an OOD example that passes is a false one; lower is better.
    """
    tpr = require_share("fpr_at_tpr", "tpr", tpr)
    in_distribution, ood = columns("fpr_at_tpr", in_distribution=in_distribution, ood=ood)
    threshold = in_distribution.sort().values[needed(tpr, len(in_distribution)) - 1]
    return (ood <= threshold).double().mean().item()


def roc(in_distribution: Tensor, ood: Tensor) -> tuple[Tensor, Tensor]:
    """Shares of in-distribution and of OOD examples flagged as OOD, from the highest threshold down.

    From (0, 0) to (1, 1), at most 500 points, evenly along the curve.
    """
    in_distribution, ood = columns("roc", in_distribution=in_distribution, ood=ood)
    false, true = _flagged(in_distribution, ood)
    start = torch.zeros(1, dtype=torch.float64)
    x, y = torch.cat([start, false / len(in_distribution)]), torch.cat([start, true / len(ood)])
    if len(x) <= _POINTS:
        return x, y
    steps = torch.linspace(0, 2, _POINTS, dtype=torch.float64)
    kept = torch.searchsorted(x + y, steps).clamp(max=len(x) - 1).unique()
    return x[kept], y[kept]


def needed(share: float, examples: int) -> int:
    """How many of the examples make up the share; 0.07 of 100 are 7, though 0.07 · 100 > 7 in binary."""
    return max(1, math.ceil(share * examples - 1e-9))


def _flagged(in_distribution: Tensor, ood: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers of in-distribution and OOD examples at or above each distinct score, from the highest down."""
    scores, order = torch.cat([in_distribution, ood]).sort(descending=True)
    is_ood = (order >= len(in_distribution)).double()
    last = torch.cat([scores[1:] != scores[:-1], torch.ones(1, dtype=torch.bool)])
    true = is_ood.cumsum(0)[last]
    total = torch.arange(1, len(scores) + 1, dtype=torch.float64)[last]
    return total - true, true
