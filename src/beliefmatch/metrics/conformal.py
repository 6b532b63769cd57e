r"""Conformal prediction: sets of classes that hold the true one with a probability fixed beforehand.

A score says how badly a class fits a prediction. `conformal_threshold` takes the ⌈(n + 1)(1 − α)⌉-th smallest
score of n calibration targets; the set of a new prediction holds every class whose score is no larger. If
calibration and new examples are exchangeable, the set holds the target with a probability of at least 1 − α,
and of at most 1 − α + 1/(n + 1) if scores do not tie (Vovk et al. 2005; Lei et al. 2018).

The guarantee is over the draw of calibration set and example, and for all examples together:
`class_coverage` shows classes for which it does not hold.
"""

import math
from typing import Literal

import torch
from torch import Tensor

from beliefmatch._validate import describe, fail, require_choice
from beliefmatch.metrics._readings import (
    best_of_probs,
    check_layout,
    check_rows,
    columns,
    require_at_least_one,
    require_share,
)

__all__ = [
    "ConformalMethod",
    "class_coverage",
    "conformal_sets",
    "conformal_threshold",
    "mean_set_size",
    "set_coverage",
]

ConformalMethod = Literal["lac", "aps", "raps"]
_METHODS = ("lac", "aps", "raps")


def conformal_threshold(
    preds: Tensor,
    target: Tensor,
    *,
    alpha: float = 0.1,
    method: ConformalMethod = "lac",
    u: Tensor | None = None,
    penalty: float = 0.01,
    k_reg: int = 5,
) -> float:
    r"""The score that the sets of `conformal_sets` may reach, from calibration examples.

    .. math:: \hat q = s_{(\lceil (n+1)(1-\alpha) \rceil)}

    the order statistic of the n scores of the targets, infinite where that rank exceeds n. The scores of
    class k, with :math:`\pi_k` its rank from 1 by falling probability:

    - "lac", or THR: :math:`1 - p_k` (Sadinle, Lei and Wasserman 2019): the smallest sets on average.
    - "aps": :math:`\sum_{j: \pi_j < \pi_k} p_j + u\,p_k` (Romano, Sesia and Candès 2020): sets that are
      larger where the prediction is uncertain.
    - "raps": "aps" plus :math:`\lambda \max(0, \pi_k - k_{reg})` (Angelopoulos et al. 2021): without its long
      tail of improbable classes.

    Args:
        preds: class probabilities of calibration examples, shape (n, K).
        target: their class ids, shape (n,).
        alpha: probability that a set may miss the target.
        method: the score, "lac", "aps" or "raps".
        u: uniform random numbers in [0, 1], shape (n,), which make the coverage of "aps" and "raps" exact;
            without them u is 1, and sets are larger than needed.
        penalty: λ of "raps".
        k_reg: number of classes that "raps" does not penalise.

    >>> import torch
    >>> preds = torch.tensor([[0.75, 0.25], [0.5, 0.5], [0.25, 0.75], [0.875, 0.125]])
    >>> conformal_threshold(preds, torch.tensor([0, 1, 0, 0]), alpha=0.4)  # ⌈5 · 0.6⌉ = third of four
    0.5
    """
    name = "conformal_threshold"
    alpha = require_share(name, "alpha", alpha)
    check_layout(name, "preds", preds, target)
    scores = _scores(name, preds, method, u, penalty, k_reg)
    own = scores.gather(1, target.detach().to("cpu", torch.int64)[:, None])[:, 0]
    rank = math.ceil((len(own) + 1) * (1 - alpha) - 1e-9)  # 0.9 · 10 is 9, though 1 − 0.1 rounds up in binary
    return own.sort().values[rank - 1].item() if rank <= len(own) else math.inf


def conformal_sets(
    preds: Tensor,
    threshold: float,
    *,
    method: ConformalMethod = "lac",
    u: Tensor | None = None,
    penalty: float = 0.01,
    k_reg: int = 5,
) -> Tensor:
    """Which classes are in the set of each prediction: bool, shape (N, K).

    A set may be empty: "lac" finds no class that fits, or the random numbers of "aps" leave none.

    Args:
        preds: class probabilities, shape (N, K).
        threshold: of `conformal_threshold`, with the same method and options.
        method: the score, "lac", "aps" or "raps".
        u: uniform random numbers in [0, 1], shape (N,), if there were some for the threshold.
        penalty: λ of "raps".
        k_reg: number of classes that "raps" does not penalise.

    >>> import torch
    >>> conformal_sets(torch.tensor([[0.75, 0.25], [0.5, 0.5]]), 0.5).tolist()
    [[True, False], [True, True]]
    """
    name = "conformal_sets"
    if math.isnan(threshold):
        raise fail(name, "`threshold` must be a number, got nan.")
    check_rows(name, "preds", preds)
    return _scores(name, preds, method, u, penalty, k_reg) <= threshold


def set_coverage(sets: Tensor, target: Tensor) -> float:
    """Share of the sets that hold the target, in [0, 1].

    >>> import torch
    >>> set_coverage(torch.tensor([[True, False], [True, True]]), torch.tensor([1, 1]))
    0.5
    """
    return _held("set_coverage", sets, target).mean().item()


def mean_set_size(sets: Tensor) -> float:
    """Mean number of classes in a set, in [0, K].

    >>> import torch
    >>> mean_set_size(torch.tensor([[True, False], [True, True]]))
    1.5
    """
    _check_sets("mean_set_size", sets)
    return sets.sum(1).double().mean().item()


def class_coverage(sets: Tensor, target: Tensor) -> Tensor:
    """Share of the sets that hold the target, for each class, shape (K,); NaN for a class without examples.

    >>> import torch
    >>> class_coverage(torch.tensor([[True, False], [True, True]]), torch.tensor([1, 1])).tolist()
    [nan, 0.5]
    """
    held = _held("class_coverage", sets, target)
    label = target.detach().to("cpu", torch.int64)
    hits = torch.zeros(sets.shape[1], dtype=torch.float64).index_add_(0, label, held)
    return hits / torch.bincount(label, minlength=sets.shape[1])


def _scores(
    function: str, preds: Tensor, method: ConformalMethod, u: Tensor | None, penalty: float, k_reg: int
) -> Tensor:
    """How badly each class fits each prediction, shape (N, K)."""
    require_choice(function, "method", method, _METHODS)
    probs = preds.detach().to("cpu", torch.float64)
    best_of_probs(function, probs.numpy(), "preds")
    if method == "lac":
        return 1 - probs
    share = torch.ones(len(probs), dtype=torch.float64) if u is None else _uniform(function, u, len(probs))
    ordered, order = probs.sort(dim=1, descending=True, stable=True)
    scores = ordered.cumsum(1) - ordered + share[:, None] * ordered
    if method == "raps":
        if not 0 <= penalty < math.inf:
            raise fail(function, f"`penalty` must be at least 0 and finite, got {penalty!r}.")
        rank = torch.arange(1, probs.shape[1] + 1, dtype=torch.float64)
        scores = scores + penalty * (rank - require_at_least_one(function, "k_reg", k_reg)).clamp(min=0)
    return torch.empty_like(scores).scatter_(1, order, scores)


def _uniform(function: str, u: Tensor, examples: int) -> Tensor:
    (column,) = columns(function, u=u)
    if len(column) != examples or not ((column >= 0) & (column <= 1)).all():
        expected = f"{examples} numbers in [0, 1], one for each row of `preds`"
        raise fail(function, f"`u` must be {expected}, got {describe(u)}.")
    return column


def _held(function: str, sets: Tensor, target: Tensor) -> Tensor:
    """Whether each set holds its target, 0 or 1."""
    _check_sets(function, sets)
    held = sets.detach().to("cpu", torch.float64)
    check_layout(function, "sets", held, target)
    return held.gather(1, target.detach().to("cpu", torch.int64)[:, None])[:, 0]


def _check_sets(function: str, sets: Tensor) -> None:
    if not isinstance(sets, Tensor) or sets.dtype != torch.bool or sets.ndim != 2 or 0 in sets.shape:
        expected = "a bool tensor of shape (N, K) with N, K >= 1"
        raise fail(function, f"`sets` must be {expected}, got {describe(sets)}.", TypeError)
