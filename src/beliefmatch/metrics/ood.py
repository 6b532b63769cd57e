"""Out-of-distribution detection: scores for which higher always means more OOD, and how well they separate.

The two sets of scores are of in-distribution and of OOD input, or, to find mistakes, of right and of wrong
predictions.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import torch
from torch import Tensor

from beliefmatch import dirichlet, kernels
from beliefmatch._validate import describe, fail, require_choice, require_floating, require_values
from beliefmatch.kernels import LogitsReading, ProbsReading
from beliefmatch.metrics._readings import (
    best_of_logits,
    check_rows,
    columns,
    only_given,
    read_logits,
    read_probs,
    require_at_least_one,
    require_share,
)

__all__ = [
    "SCORES",
    "Score",
    "aupr",
    "auroc",
    "count_needed",
    "energy",
    "fpr_at_tpr",
    "knn_distance",
    "mahalanobis_distance",
    "max_logit",
    "roc",
    "vary_within_classes",
]

_POINTS = 500
_BLOCK = 1 << 22  # distances at a time, 32 MB
_REGULAR = 1e-6  # shrinkage from which on a covariance that is not zero is regular


# How well a score separates


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
    threshold = in_distribution.sort().values[count_needed(tpr, len(in_distribution)) - 1]
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


def count_needed(share: float, examples: int) -> int:
    """How many of the examples make up the share; 0.07 of 100 are 7, though 0.07 · 100 > 7 in binary.

    In whole numbers, after taking off what the share may be above the decimal number that it stands for.
    """
    return max(1, math.ceil((Fraction(share) - Fraction(1, 2**51)) * examples))


def _flagged(in_distribution: Tensor, ood: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers of in-distribution and OOD examples at or above each distinct score, from the highest down."""
    scores, order = torch.cat([in_distribution, ood]).sort(descending=True)
    is_ood = (order >= len(in_distribution)).double()
    last = torch.cat([scores[1:] != scores[:-1], torch.ones(1, dtype=torch.bool)])
    true = is_ood.cumsum(0)[last]
    total = torch.arange(1, len(scores) + 1, dtype=torch.float64)[last]
    return total - true, true


# Scores of predictions

_OfRows = Callable[[str, Tensor], Tensor]
"""From the name of the caller and its probabilities or logits, which are checked, one number a row."""


@dataclass(frozen=True)
class Score:
    """A number for each prediction, from its probabilities or from its logits."""

    name: str
    meaning: str
    of_logits: _OfRows
    of_probs: _OfRows | None = None
    """None where it cannot be computed from probabilities."""

    @property
    def needs_logits(self) -> bool:
        """Whether it cannot be computed from probabilities."""
        return self.of_probs is None

    def __call__(self, *, probs: Tensor | None = None, logits: Tensor | None = None) -> Tensor:
        """The score of each row of (N, K), float64 on the CPU."""
        function = f"SCORES[{self.name!r}]"
        name, values = only_given(function, probs=probs, logits=logits)
        check_rows(function, name, values)
        of = self.of_logits if name == "logits" else self.of_probs
        if of is None:
            fact = "needs `logits`, because probabilities do not show how much evidence they rest on"
            raise fail(function, f"{fact}; got `probs`.", TypeError)
        return of(function, values)


def _logits(function: str, logits: Tensor) -> LogitsReading:
    return read_logits(function, logits, _any_class(logits), entropy=False)


def _probs(function: str, probs: Tensor, *, entropy: bool) -> ProbsReading:
    return read_probs(function, probs, _any_class(probs), entropy=entropy)


def _any_class(values: Tensor) -> Tensor:
    """Targets, of which scores know nothing."""
    return torch.zeros(len(values), dtype=torch.int64, device="cpu")


def _doubt_of_logits(function: str, logits: Tensor) -> Tensor:
    rest = _logits(function, logits).rest
    return rest / (1 + rest)  # 1 − max p, with its digits where that is nearly 0


def _doubt_of_probs(function: str, probs: Tensor) -> Tensor:
    return 1 - _probs(function, probs, entropy=False).top


def _entropy_of_probs(function: str, probs: Tensor) -> Tensor:
    return _probs(function, probs, entropy=True).entropy


def _measure(measure: Callable[[Tensor, int], Tensor]) -> _OfRows:
    def of_logits(function: str, logits: Tensor) -> Tensor:
        parts = []
        for _, rows in kernels.blocks(logits):
            best_of_logits(function, rows.numpy())
            parts.append(kernels.measure(measure, rows, 1).double())  # as in `Belief`
        return torch.cat(parts)

    return of_logits


def _negative_log_precision(function: str, logits: Tensor) -> Tensor:
    seen = _logits(function, logits)
    return -(seen.top + seen.rest.log1p())


def _negative_largest(function: str, logits: Tensor) -> Tensor:
    return -_logits(function, logits).top


SCORES: dict[str, Score] = {
    score.name: score
    for score in (
        Score("entropy", "entropy of the probabilities", _measure(dirichlet.entropy), _entropy_of_probs),
        Score("confidence", "1 − largest probability", _doubt_of_logits, _doubt_of_probs),
        Score(
            "mutual_information",
            "mutual information of label and belief",
            _measure(dirichlet.mutual_information),
        ),
        Score("differential_entropy", "entropy of the density", _measure(dirichlet.differential_entropy)),
        Score("precision", "−ln α₀", _negative_log_precision),
        Score("energy", "−logsumexp of the logits", _negative_log_precision),
        Score("max_logit", "negative of the largest logit", _negative_largest),
    )
}
"""By name. Under the reading of logits as ln α, "precision" and "energy" are the same number."""


# Scores of logits and features


def energy(logits: Tensor) -> Tensor:
    r"""−logsumexp of each row of logits (N, K): Liu et al. (2020) at temperature 1; float64, shape (N,).

    >>> import torch
    >>> energy(torch.zeros(1, 4)).item() == -torch.tensor(4.0).double().log().item()
    True
    """
    check_rows("energy", "logits", logits)
    return _negative_log_precision("energy", logits)


def max_logit(logits: Tensor) -> Tensor:
    """Negative of the largest logit of each row (N, K) (Hendrycks et al. 2022); float64, shape (N,).

    >>> import torch
    >>> max_logit(torch.tensor([[1.0, 3.0], [0.0, -2.0]])).tolist()
    [-3.0, -0.0]
    """
    check_rows("max_logit", "logits", logits)
    return _negative_largest("max_logit", logits)


def mahalanobis_distance(
    features: Tensor,
    train_features: Tensor,
    train_target: Tensor,
    *,
    shrinkage: float | Literal["ledoit_wolf"] = 0.0,
) -> Tensor:
    r"""Squared Mahalanobis distance to the nearest class mean (Lee et al. 2018), higher where more OOD.

    .. math:: \min_c (x - \mu_c)^\top \Sigma^{+} (x - \mu_c), \qquad
              \Sigma = (1 - \rho) S + \rho \frac{\mathrm{tr} S}{D} I

    with S the covariance of the training features about the mean of their class, divided by their number, and
    the pseudo-inverse where it is singular.

    Args:
        features: shape (N, D).
        train_features: features of training examples, shape (M, D).
        train_target: their class ids, shape (M,).
        shrinkage: ρ in [0, 1]; above 0 with fewer examples than a few times D. "ledoit_wolf" estimates it
            (Ledoit and Wolf 2004).

    Returns:
        float64, shape (N,).

    >>> import torch
    >>> train = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0], [2.0, 2.0]])
    >>> mahalanobis_distance(torch.tensor([[1.0, 1.0], [4.0, 1.0]]), train, torch.zeros(4).long()).tolist()
    [0.0, 9.0]
    """
    name = "mahalanobis_distance"
    if shrinkage != "ledoit_wolf" and (isinstance(shrinkage, str) or not 0 <= shrinkage <= 1):
        raise fail(name, f"`shrinkage` must be in [0, 1] or 'ledoit_wolf', got {shrinkage!r}.")
    x, train = _feature_rows(name, features, train_features)
    if not isinstance(train_target, Tensor) or train_target.is_floating_point():
        expected = "a tensor of class ids"
        raise fail(name, f"`train_target` must be {expected}, got {describe(train_target)}.", TypeError)
    if train_target.shape != train.shape[:1]:
        received = tuple(train_target.shape)
        raise fail(name, f"`train_target` must have shape ({len(train)},), got {received}.")
    if not vary_within_classes(train, train_target.cpu()):
        expected = "differ within a class: it takes at least two different examples of one"
        raise fail(name, f"`train_features` must {expected}, got {describe(train_features)} that do not.")
    _, label, count = train_target.cpu().unique(return_inverse=True, return_counts=True)
    means = train.new_zeros(len(count), train.shape[1]).index_add_(0, label, train) / count[:, None]
    centred = train - means[label]
    covariance = centred.T @ centred / len(train)
    even = covariance.diagonal().mean() * torch.eye(len(covariance), dtype=torch.float64)
    if isinstance(shrinkage, str):
        shrinkage = _ledoit_wolf(centred, covariance)
    whitened = _whitened(torch.cat([x, means]), (1 - shrinkage) * covariance + shrinkage * even, shrinkage)
    return _nearest(whitened[: len(x)], whitened[len(x) :], 1).square()


def vary_within_classes(features: Tensor, target: Tensor) -> bool:
    """Whether any class has two different rows; else the covariance about the means is zero."""
    order = target.argsort()
    rows, ids = features[order], target[order]
    return bool(((ids[1:] == ids[:-1]) & (rows[1:] != rows[:-1]).any(1)).any())


def _whitened(rows: Tensor, covariance: Tensor, shrinkage: float) -> Tensor:
    """Rows whose Euclidean distances are the Mahalanobis distances of these."""
    if shrinkage > _REGULAR:
        root = torch.linalg.cholesky(covariance)
        return torch.linalg.solve_triangular(root, rows.T, upper=False).T.contiguous()
    variance, axes = torch.linalg.eigh(covariance)
    kept = variance > variance.max() * len(variance) * torch.finfo(torch.float64).eps
    return rows @ (axes[:, kept] / variance[kept].sqrt())


def _ledoit_wolf(centred: Tensor, covariance: Tensor) -> float:
    """The ρ of least expected squared distance to the true covariance, of Ledoit and Wolf (2004)."""
    squared = covariance.square().sum()
    noise = (centred.square().sum(1).square().mean() - squared) / len(centred)
    spread = squared - covariance.trace().square() / len(covariance)
    return (noise / spread).clamp(0, 1).item() if spread > 0 else 0.0


def knn_distance(features: Tensor, train_features: Tensor, *, k: int = 50) -> Tensor:
    """Distance to the k-th nearest training example between features of length one (Sun et al. 2022).

    Args:
        features: shape (N, D), without rows of zeros.
        train_features: features of training examples, shape (M, D) with M ≥ k.
        k: which neighbour; 50 for CIFAR-10, 200 for CIFAR-100 and 1000 for ImageNet in the paper.

    Returns:
        Higher where more OOD, in [0, 2]; float64, shape (N,).

    >>> import torch
    >>> train = torch.tensor([[1.0, 0.0], [0.0, 3.0]])
    >>> [round(one, 6) for one in knn_distance(torch.tensor([[2.0, 0.0], [-1.0, 0.0]]), train, k=1).tolist()]
    [0.0, 1.414214]
    """
    k = require_at_least_one("knn_distance", "k", k)
    rows = _feature_rows("knn_distance", features, train_features)
    if k > len(rows[1]):
        expected = f"at most the {len(rows[1])} rows of `train_features`"
        raise fail("knn_distance", f"`k` must be {expected}, got {k}.")
    lengths = [x.norm(dim=1, keepdim=True) for x in rows]
    for name, length in zip(("features", "train_features"), lengths, strict=True):
        require_values("knn_distance", name, length, length > 0, "rows other than zero")
    x, train = (x / length for x, length in zip(rows, lengths, strict=True))
    return _nearest(x, train, k)


def _feature_rows(function: str, features: Any, train_features: Any) -> tuple[Tensor, Tensor]:
    """Both as finite doubles on the CPU, with as many columns."""
    rows = []
    for name, values in (("features", features), ("train_features", train_features)):
        require_floating(function, name, values)
        check_rows(function, name, values)
        double = values.detach().to("cpu", torch.float64)
        require_values(function, name, double, double.isfinite(), "finite")
        rows.append(double)
    if rows[0].shape[1] != rows[1].shape[1]:
        expected = f"the {rows[0].shape[1]} columns of `features`"
        raise fail(function, f"`train_features` must have {expected}, got {rows[1].shape[1]}.")
    return rows[0], rows[1]


def _nearest(x: Tensor, others: Tensor, k: int) -> Tensor:
    """Euclidean distance of each row to its k-th nearest of the others.

    A product of matrices finds the neighbour; the distance to it is computed from the difference, since the
    product leaves 1e-8 of a distance of 0.
    """
    squares, found = others.square().sum(1), []
    for rows in x.split(max(1, _BLOCK // len(others))):
        place = torch.addmm(squares, rows, others.T, alpha=-2).kthvalue(k, 1).indices
        found.append((rows - others[place]).norm(dim=1))
    return torch.cat(found)
