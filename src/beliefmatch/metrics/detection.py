"""How well a score tells examples inside from those outside; higher always means more foreign.

Inside and outside are two sets of scores: of known and of foreign input, or, to find mistakes, of right and
of wrong predictions.
"""

from typing import Literal

import torch
from torch import Tensor

from beliefmatch._validate import require_choice
from beliefmatch.metrics._inputs import columns, require_share

__all__ = ["aupr", "auroc", "fpr_at_tpr", "needed", "roc"]

_POINTS = 500


def auroc(inside: Tensor, outside: Tensor) -> float:
    """Probability that a random outside example scores higher than a random inside one, in [0, 1].

    Equal scores count one half. This is the area under the ROC curve, whichever side is called positive.

    >>> import torch
    >>> auroc(torch.tensor([1.0, 2.0]), torch.tensor([2.0, 3.0]))  # one tie among four pairs
    0.875
    """
    inside, outside = columns("auroc", inside=inside, outside=outside)
    ordered = inside.sort().values
    below = torch.searchsorted(ordered, outside) + torch.searchsorted(ordered, outside, right=True)
    return below.sum().item() / (2 * len(inside) * len(outside))


def aupr(inside: Tensor, outside: Tensor, *, positive: Literal["outside", "inside"] = "outside") -> float:
    r"""Area under the precision-recall curve: average precision over the positive examples, in (0, 1].

    .. math:: \sum_t (R_t - R_{t-1}) P_t

    over the distinct scores t from the most to the least extreme, without interpolation. With `positive`
    "outside" the examples are called outside from the highest score down; with "inside", inside from the
    lowest up. A score that says nothing gets the share of the positive examples.
    """
    require_choice("aupr", "positive", positive, ("outside", "inside"))
    inside, outside = columns("aupr", inside=inside, outside=outside)
    if positive == "inside":
        inside, outside = -outside, -inside
    false, true = _flagged(inside, outside)
    gained = true.diff(prepend=true.new_zeros(1))
    return ((gained * true / (true + false)).sum() / len(outside)).item()


def fpr_at_tpr(inside: Tensor, outside: Tensor, *, tpr: float = 0.95) -> float:
    """Share of the outside examples that pass where `tpr` of the inside examples do, in [0, 1].

    The threshold is the smallest inside score at or below which lie at least `tpr` of the inside examples;
    what scores no higher passes. As in the literature on foreign input, the inside examples are the true
    positives here, and an outside example that passes is a false one; lower is better.
    """
    tpr = require_share("fpr_at_tpr", "tpr", tpr)
    inside, outside = columns("fpr_at_tpr", inside=inside, outside=outside)
    threshold = inside.sort().values[needed(tpr, len(inside)) - 1]
    return (outside <= threshold).double().mean().item()


def roc(inside: Tensor, outside: Tensor) -> tuple[Tensor, Tensor]:
    """Shares of inside and of outside examples flagged as foreign, from the highest threshold down.

    From (0, 0) to (1, 1), at most 500 points, evenly along the curve.
    """
    inside, outside = columns("roc", inside=inside, outside=outside)
    false, true = _flagged(inside, outside)
    start = torch.zeros(1, dtype=torch.float64)
    x, y = torch.cat([start, false / len(inside)]), torch.cat([start, true / len(outside)])
    if len(x) <= _POINTS:
        return x, y
    steps = torch.linspace(0, 2, _POINTS, dtype=torch.float64)
    kept = torch.searchsorted(x + y, steps).clamp(max=len(x) - 1).unique()
    return x[kept], y[kept]


def needed(share: float, examples: int) -> int:
    """How many of the examples make up the share; 0.95 of 20 are 19, though 0.95 · 20 > 19 in binary."""
    return max(1, int(torch.tensor(share * examples - 1e-9).ceil()))


def _flagged(inside: Tensor, outside: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers of inside and outside examples at or above each distinct score, from the highest down."""
    scores, order = torch.cat([inside, outside]).sort(descending=True)
    is_outside = (order >= len(inside)).double()
    last = torch.cat([scores[1:] != scores[:-1], torch.ones(1, dtype=torch.bool)])
    true = is_outside.cumsum(0)[last]
    total = torch.arange(1, len(scores) + 1, dtype=torch.float64)[last]
    return total - true, true
