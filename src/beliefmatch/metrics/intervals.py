"""Confidence intervals: how far would a metric move with another draw of the examples?

Rates have the exact interval of Clopper and Pearson, areas under curves that of DeLong and its like, from the
placement of each example among the others. Everything else is a bootstrap: a resample is a weight for each
example, the number of times it was drawn, and all metrics are computed for many rows of weights at once.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from beliefmatch._quadrature import beta_quantile
from beliefmatch._validate import describe, fail, require_values
from beliefmatch.metrics._readings import Array, Outcomes, columns, require_at_least_one, require_share
from beliefmatch.metrics.calibration import bin_of, share_ties
from beliefmatch.metrics.ood import aupr, count_needed, fpr_at_tpr
from beliefmatch.resampling import bias_corrected, paired_difference

__all__ = [
    "DeLong",
    "DetectionArea",
    "Interval",
    "OutcomeSums",
    "area_difference",
    "aupr_interval",
    "auroc_difference",
    "auroc_interval",
    "binomial_interval",
    "bootstrap",
    "bootstrap_differences",
    "bootstrap_outcomes",
    "delong",
    "detection_area",
    "detection_intervals",
    "enough_resamples",
    "fpr_at_tpr_interval",
    "intervals_of",
    "resample_outcomes",
    "upper_bound",
]

_BLOCK = 1 << 20  # weights at a time, 8 MB
_WORK = 200_000_000
_FEWEST = 200
_RANK_DRAWS = 10_000  # of a false positive rate, each of which costs two random numbers
_TOP_BLOCKS, _BIN_BLOCKS, _BLOCKS = 64, 32, 512


class Interval(NamedTuple):
    """A metric, and the ends of its interval."""

    value: float
    low: float
    high: float


# Rates


def binomial_interval(errors: int, trials: int, *, level: float = 0.95) -> tuple[float, float]:
    """An interval that holds the rate of errors with at least this probability, whatever the rate is.

    No bootstrap does: from no error in twenty it would conclude that there never is one.

    >>> low, high = binomial_interval(0, 20)
    >>> low, round(high, 4)
    (0.0, 0.1684)
    """
    counts = torch.tensor([errors, trials - errors], dtype=torch.float64)
    bounds = upper_bound(counts, counts.sum(), (1 - level) / 2, caller="binomial_interval").tolist()
    return 1 - bounds[1], bounds[0]  # the lower end is the upper one of the other outcome


def upper_bound(errors: Tensor, trials: Tensor, level: float, *, caller: str) -> Tensor:
    """The largest rate under which so few errors still have the probability `level`."""
    right = trials - errors
    bound = beta_quantile(errors + 1.0, right.clamp(min=1).double(), 1 - level, caller=caller)
    return torch.where(right > 0, bound, 1.0)


# Areas under curves


class DeLong(NamedTuple):
    """Areas under the ROC curves of S scores of the same examples."""

    auroc: Tensor
    """Shape (S,)."""
    covariance: Tensor
    """Shape (S, S); NaN with a single example on either side, which has no variance."""


def delong(in_distribution: Tensor, ood: Tensor) -> DeLong:
    r"""AUROC of several scores and the covariance of these areas, of DeLong et al. (1988) in O(n log n).

    .. math:: \frac{S_{10}}{m} + \frac{S_{01}}{n}

    with the sample covariances of the placements: the share of the n in-distribution examples that an OOD
    example exceeds, and the share of the m OOD examples that exceed an in-distribution one; ties count one
    half. They come from sorted scores (Sun and Xu 2014).

    Args:
        in_distribution: scores of in-distribution examples, shape (n,) or (n, S).
        ood: scores of OOD examples, shape (m,) or (m, S); the columns are those of the same models.

    >>> import torch
    >>> found = delong(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([3.0, 5.0]))
    >>> round(found.auroc.item(), 6), round(found.covariance.item(), 6)  # 5/6, 1/18
    (0.833333, 0.055556)
    """
    area, *influences = _influence(*_score_rows("delong", in_distribution, ood))
    return DeLong(area, sum((rows @ rows.T for rows in influences), start=torch.zeros(())))


class DetectionArea(NamedTuple):
    """Area under the ROC curve of one score, and how much each example moves it."""

    auroc: float
    influence: Tensor
    """Shape (N,); the squares add up to DeLong's variance."""


def detection_area(scores: Tensor, is_ood: Tensor) -> DetectionArea:
    r"""AUROC of one score with the influence of each example, to be compared by `area_difference`.

    .. math:: \frac{V_i - A}{\sqrt{m (m - 1)}}

    for each of the m OOD examples, with :math:`V_i` its placement and A the area, and with the number of the
    others for these. NaN where there is a single example on its side.

    Args:
        scores: shape (N,), higher where more OOD.
        is_ood: booleans (N,); of wrong predictions, to detect mistakes.
    """
    if not isinstance(is_ood, Tensor) or is_ood.dtype != torch.bool:
        received = describe(is_ood)
        raise fail("detection_area", f"`is_ood` must be a tensor of booleans, got {received}.", TypeError)
    if not isinstance(scores, Tensor) or scores.ndim != 1 or scores.shape != is_ood.shape:
        expected = f"the shape {tuple(is_ood.shape)} of `is_ood`, with one dimension"
        raise fail("detection_area", f"`scores` must have {expected}, got {describe(scores)}.")
    if is_ood.all() or not is_ood.any():
        raise fail("detection_area", "`is_ood` must have examples of both sides, got one.")
    sides = _score_rows("detection_area", scores[~is_ood], scores[is_ood])
    area, of_known, of_ood = _influence(*sides)
    influence = torch.zeros(len(scores), dtype=torch.float64)
    is_ood = is_ood.cpu()
    influence[~is_ood], influence[is_ood] = of_known[0], of_ood[0]
    return DetectionArea(area.item(), influence)


def area_difference(first: DetectionArea, second: DetectionArea, *, level: float = 0.95) -> Interval:
    """How much larger one area is than another of the same examples, with a normal interval.

    Where both scores have the same examples on each side this is DeLong's paired interval. To detect the
    mistakes of two models each has its own: the influences then meet example by example all the same.
    [−1, 1] where there is a single example on one side.
    """
    level = require_share("area_difference", "level", level)
    if len(first.influence) != len(second.influence):
        expected = f"of the {len(first.influence)} examples of `first`"
        raise fail("area_difference", f"`second` must be {expected}, got {len(second.influence)}.")
    value = first.auroc - second.auroc
    reach = _reach(level) * (first.influence - second.influence).norm().item()
    if math.isnan(reach):
        return Interval(value, -1.0, 1.0)
    return Interval(value, max(-1.0, value - reach), min(1.0, value + reach))


def auroc_interval(in_distribution: Tensor, ood: Tensor, *, level: float = 0.95) -> Interval:
    """Interval of `auroc` from DeLong's variance, normal on the logit scale.

    The logit scale matters near 1, where plain normal intervals miss the truth too often; how often each does
    is in docs/metrics.md.

    Where all pairs are in order there is no variance; the interval is then the exact one of min(n, m) pairs
    that share no example. With a single example on one side it is [0, 1].
    """
    level = require_share("auroc_interval", "level", level)
    sides = columns("auroc_interval", in_distribution=in_distribution, ood=ood)
    found = delong(*sides)
    value, pairs = found.auroc.item(), min(map(len, sides))
    return _logit_interval(value, found.covariance.item(), level, trials=pairs)


def auroc_difference(in_distribution: Tensor, ood: Tensor, *, level: float = 0.95) -> Interval:
    """How much larger the AUROC of one score is than that of another on the same examples, with an interval.

    Normal, from DeLong's covariance: what both find hard cancels. [−1, 1] with a single example on one side.

    Args:
        in_distribution: scores of the same in-distribution examples, shape (n, 2): first and second model.
        ood: scores of the same OOD examples, shape (m, 2).
        level: probability that the interval should have.
    """
    level = require_share("auroc_difference", "level", level)
    known, other = _score_rows("auroc_difference", in_distribution, ood)
    if len(known) != 2:
        raise fail("auroc_difference", f"`in_distribution` must have shape (n, 2), got {len(known)} columns.")
    area, *sides = _influence(known, other)
    pair = zip(area.tolist(), torch.cat(sides, 1), strict=True)
    return area_difference(*(DetectionArea(*one) for one in pair), level=level)


def aupr_interval(
    in_distribution: Tensor, ood: Tensor, *, positive: str = "ood", level: float = 0.95
) -> Interval:
    r"""Interval of `aupr` from the influence of each example on it, normal on the logit scale.

    .. math:: \frac{\partial\,\mathrm{AP}}{\partial w_i} = \frac{1}{m} \Big[ P_i - \mathrm{AP}
              + \sum_{s_j \le s_i} \frac{F_j}{(T_j + F_j)^2} \Big], \qquad
              \frac{\partial\,\mathrm{AP}}{\partial v_i} = - \frac{1}{m} \sum_{s_j \le s_i}
              \frac{T_j}{(T_j + F_j)^2}

    for the weights w of the m positive and v of the other examples, with :math:`P_j = T_j / (T_j + F_j)` the
    precision at the score of positive j. The variance is the sum of the squares (the infinitesimal jackknife,
    Efron 1982). An area of 1 has the exact interval of m successes in m trials (Boyd, Eng and Page 2013), a
    single example on one side [0, 1].
    """
    level = require_share("aupr_interval", "level", level)
    value = aupr(in_distribution, ood, positive=positive)  # type: ignore[arg-type]
    known, other = columns("aupr_interval", in_distribution=in_distribution, ood=ood)
    negative, found = (known, other) if positive == "ood" else (-other, -known)
    negative, found = negative.sort().values, found.sort().values
    m, n = len(found), len(negative)
    true = m - torch.searchsorted(found, found).double()
    false = n - torch.searchsorted(negative, found).double()
    flagged = true + false
    lower = torch.searchsorted(found, found, right=True)
    of_positive = true / flagged + _cumulated(false / flagged.square())[lower]
    lower = torch.searchsorted(found, negative, right=True)
    of_negative = _cumulated(true / flagged.square())[lower]
    variance = _variance(of_positive) / m + _variance(of_negative) * n / m**2
    return _logit_interval(value, variance, level, trials=m)


def fpr_at_tpr_interval(
    in_distribution: Tensor, ood: Tensor, *, tpr: float = 0.95, level: float = 0.95, seed: int = 0
) -> Interval:
    """Interval of `fpr_at_tpr`: the bias-corrected bootstrap of 10,000 draws, without drawing the examples.

    The threshold of a resample is the k-th of n in-distribution scores. Its rank among the original scores is
    ⌈n U⌉ with U the k-th smallest of n uniform numbers, whose law is Beta(k, n − k + 1); the OOD examples
    that pass are then binomial. A rate of 0 or 1 is widened to Clopper and Pearson's interval.
    """
    level = require_share("fpr_at_tpr_interval", "level", level)
    value = fpr_at_tpr(in_distribution, ood, tpr=tpr)
    known, other = columns("fpr_at_tpr_interval", in_distribution=in_distribution, ood=ood)
    known, other = known.sort().values, other.sort().values
    n, m, rng = len(known), len(other), np.random.default_rng(seed)
    passing = torch.searchsorted(other, known, right=True).numpy()
    k = count_needed(tpr, n)
    rank = np.ceil(n * rng.beta(k, n - k + 1, _RANK_DRAWS)).astype(np.int64).clip(1, n)
    found = interval(value, rng.binomial(m, passing[rank - 1] / m) / m, level)
    if value not in (0.0, 1.0):
        return found
    low, high = binomial_interval(round(value * m), m, level=level)
    return Interval(value, min(found.low, low), max(found.high, high))


def detection_intervals(
    in_distribution: Tensor, ood: Tensor, *, tpr: float = 0.95, level: float = 0.95, seed: int = 0
) -> dict[str, Interval]:
    """Intervals of auroc, aupr_ood, aupr_id and fpr95; both sets are draws of their own."""
    sides = in_distribution, ood
    return {
        "auroc": auroc_interval(*sides, level=level),
        "aupr_ood": aupr_interval(*sides, level=level),
        "aupr_id": aupr_interval(*sides, positive="in_distribution", level=level),
        "fpr95": fpr_at_tpr_interval(*sides, tpr=tpr, level=level, seed=seed),
    }


def _logit_interval(value: float, variance: float, level: float, *, trials: int) -> Interval:
    """Normal on the logit scale; exact for `trials` if the value is 0 or 1; [0, 1] if `variance` is NaN."""
    if math.isnan(variance):
        return Interval(value, 0.0, 1.0)
    if value in (0.0, 1.0):
        return Interval(value, *binomial_interval(round(value * trials), trials, level=level))
    centre, reach = math.log(value / (1 - value)), _reach(level) * math.sqrt(variance) / (value * (1 - value))
    ends = torch.tensor([centre - reach, centre + reach], dtype=torch.float64).sigmoid().tolist()
    return Interval(value, min(ends[0], value), max(ends[1], value))


def _reach(level: float) -> float:
    return NormalDist().inv_cdf(0.5 + level / 2)


def _score_rows(function: str, in_distribution: Any, ood: Any) -> tuple[Tensor, Tensor]:
    """Scores as contiguous rows (S, n) and (S, m) of doubles."""
    rows = []
    for name, value in (("in_distribution", in_distribution), ("ood", ood)):
        if not isinstance(value, Tensor) or value.is_complex():
            raise fail(function, f"`{name}` must be a tensor of numbers, got {describe(value)}.", TypeError)
        if value.ndim not in (1, 2) or 0 in value.shape:
            shape = tuple(value.shape)
            raise fail(function, f"`{name}` must have shape (N,) or (N, S) with N, S >= 1, got {shape}.")
        double = value.detach().to("cpu", torch.float64).reshape(len(value), -1)
        require_values(function, name, double, ~double.isnan(), "free of NaN")
        rows.append(double.T.contiguous())
    if len(rows[0]) != len(rows[1]):
        expected = f"the {len(rows[0])} columns of `in_distribution`"
        raise fail(function, f"`ood` must have {expected}, got {len(rows[1])}.")
    return rows[0], rows[1]


def _influence(known: Tensor, other: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Areas (S,), and by how much each known (S, n) and each other example (S, m) moves them."""
    of_ood, of_known = _placement(known, other), 1 - _placement(other, known)
    area = of_ood.mean(1)
    return area, _moved(of_known), _moved(of_ood)


def _moved(placements: Tensor) -> Tensor:
    """Centred, and scaled so that the squares add up to the variance of the mean; NaN for a single one."""
    count = placements.shape[1]
    return (placements - placements.mean(1, keepdim=True)) / (math.sqrt(count * (count - 1)) or math.nan)


def _placement(others: Tensor, scores: Tensor) -> Tensor:
    """Share of `others` that lies below each score of the same row, ties counting one half."""
    ordered = others.sort(1).values
    below = torch.searchsorted(ordered, scores) + torch.searchsorted(ordered, scores, right=True)
    return below.double() / (2 * others.shape[1])


def _variance(values: Tensor) -> float:
    return values.var().item() if len(values) > 1 else math.nan


def _cumulated(values: Tensor) -> Tensor:
    """Sums of the first 0, 1, 2, ... values."""
    return torch.cat([values.new_zeros(1), values.cumsum(0)])


# The bootstrap


def bootstrap(
    statistic: Callable[..., float],
    columns: Sequence[Tensor],
    *,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Interval of any statistic of examples, by drawing them again with replacement.

    The interval is Efron's bias-corrected one (1981), widened to hold the value where it does not.

    Args:
        statistic: called with the columns, gives a number.
        columns: tensors with one row for each example.
        resamples: how many draws; each calls the statistic.
        level: probability that the interval should have.
        seed: of the draws.

    >>> import torch
    >>> bootstrap(lambda x: x.mean().item(), [torch.arange(10.0)], seed=0).value
    4.5
    """
    level, resamples = _checked("bootstrap", level, resamples)
    examples = _examples(columns)
    rng = np.random.default_rng(seed)
    draws = []
    for _ in range(resamples):
        rows = torch.from_numpy(rng.integers(0, examples, examples))
        draws.append(float(statistic(*(column[rows] for column in columns))))
    return interval(float(statistic(*columns)), np.array(draws), level)


class Resampled(NamedTuple):
    """Metrics by name, and what they would have been on other draws of the examples."""

    values: dict[str, float]
    draws: dict[str, Tensor]
    """Of each metric a column with one value a resample."""
    rows_sha256: str
    """Tells which rows were drawn: equal ones mean that the draws of two models are of the same examples."""


def bootstrap_outcomes(
    seen: Outcomes,
    *,
    top_k: int = 5,
    n_bins: int = 15,
    resamples: int = 4000,
    level: float = 0.95,
    seed: int = 0,
) -> dict[str, Interval]:
    """Intervals of the metrics of outcomes, all from the same draws.

    By name: error, top_k_error, nll, brier, mean_confidence, mean_entropy, overconfidence (signed), ece, mce,
    adaptive_ece, debiased_ece, aurc, excess_aurc. Of more than 50,000 examples fewer resamples are drawn,
    see `enough_resamples`.
    """
    level, resamples = _checked("bootstrap_outcomes", level, resamples)
    drawn = resample_outcomes(
        seen, top_k=top_k, n_bins=n_bins, resamples=resamples, seed=seed, function="bootstrap_outcomes"
    )
    return intervals_of(drawn, level)


def bootstrap_differences(
    first: Outcomes,
    second: Outcomes,
    *,
    top_k: int = 5,
    n_bins: int = 15,
    resamples: int = 4000,
    level: float = 0.95,
    seed: int = 0,
) -> dict[str, Interval]:
    """Intervals of how much larger the metrics of one model are than those of another on the same examples.

    Each draw takes the same rows of both, so that what is hard for both cancels. Metrics as in
    `bootstrap_outcomes`, without those that are infinite.
    """
    name = "bootstrap_differences"
    level, resamples = _checked(name, level, resamples)
    if not torch.equal(first.targets, second.targets):
        expected = "outcomes of the same examples, with the targets of `first`"
        raise fail(name, f"`second` must be {expected}, got {len(second)} with others.")
    one, two = (
        resample_outcomes(seen, top_k=top_k, n_bins=n_bins, resamples=resamples, seed=seed, function=name)
        for seen in (first, second)
    )
    return {
        key: _difference(one, two, key, level, len(first))
        for key in one.values
        if math.isfinite(one.values[key]) and math.isfinite(two.values[key])
    }


def resample_outcomes(
    seen: Outcomes,
    *,
    top_k: int = 5,
    n_bins: int = 15,
    resamples: int = 4000,
    seed: int = 0,
    function: str = "resample_outcomes",
) -> Resampled:
    """The metrics of `bootstrap_outcomes` on every draw.

    Which rows are drawn depends on `seed`, `resamples` and the number of examples alone.
    """
    n_bins = require_at_least_one(function, "n_bins", n_bins)
    top_k = require_at_least_one(function, "top_k", top_k)
    sums = OutcomeSums(seen, top_k, n_bins)
    digest, draws = hashlib.sha256(), []
    for weights in _weights(sums.order, resamples, seed):
        sum_of_rows = weights @ sums.order.double()
        digest.update(sum_of_rows.numpy().astype("<i8").tobytes())
        draws.append(sums(weights))
    once = torch.ones(1, len(seen), dtype=torch.float64)
    values, exact = sums(once), OutcomeSums(seen, top_k, n_bins, merge=False)(once)
    values |= {name: exact[name] for name in ("adaptive_ece", "debiased_ece", "aurc", "excess_aurc")}
    drawn = {name: torch.cat([draw[name] for draw in draws]) for name in values}
    return Resampled({name: value.item() for name, value in values.items()}, drawn, digest.hexdigest())


def intervals_of(drawn: Resampled, level: float) -> dict[str, Interval]:
    """Each metric with its own interval."""
    return {name: interval(value, drawn.draws[name].numpy(), level) for name, value in drawn.values.items()}


def enough_resamples(examples: int, resamples: int) -> int:
    """At most `resamples`, and fewer for many examples: 200 million weights in all, but at least 200 draws.

    The more examples, the narrower the interval, and the less it matters to know its ends to a hundredth of
    its width.
    """
    return min(resamples, max(_FEWEST, _WORK // examples))


def interval(value: float, draws: Array, level: float) -> Interval:
    """Efron's bias-corrected interval of a value and its resampled draws, widened to hold the value."""
    return Interval(value, *bias_corrected(value, draws.tolist(), level))


class OutcomeSums:
    """The metrics of `bootstrap_outcomes`, as functions of weights (R, N) of the examples in `order`.

    Examples are sorted by confidence and merged into blocks, within which right and wrong answers count as
    evenly mixed, as equal confidences always do. A block holds less than 1/64 of the examples above it, 1/32
    of its bin and 1/512 of all, so that up to 512 examples it is one confidence, and results are exact.
    Without `merge` they always are.
    """

    def __init__(self, seen: Outcomes, top_k: int, n_bins: int, *, merge: bool = True) -> None:
        self.n_bins = n_bins
        wrong = (~seen.correct).long()
        block = _blocks(seen.confidence, n_bins) if merge else seen.confidence.unique(return_inverse=True)[1]
        cell, self.order = (2 * block + wrong).sort(stable=True)
        """The example of each column of the weights."""
        starts = _starts(cell)
        self.cells = starts
        self.cell_is_wrong = cell[starts].double() % 2
        confidence = seen.confidence[self.order]
        self.cell_confidence = _summed(confidence[None], starts)[0] / cell.unique(return_counts=True)[1]
        self.blocks = _starts(cell[starts] // 2)
        self.by_confidence = _Ordered(seen, torch.cat([starts[self.blocks], torch.tensor([len(seen)])]))
        self.bins = _starts(bin_of(confidence, n_bins)[starts])
        self.means = {
            "error": wrong.double(),
            "top_k_error": (seen.rank >= top_k).double(),
            "nll": seen.nll,
            "brier": seen.brier,
            "mean_confidence": seen.confidence,
            "mean_entropy": seen.entropy,
        }
        features = torch.stack([column[self.order] for column in self.means.values()], 1)
        self.features = features.where(features.isfinite(), 0.0)
        self.infinite = features.isinf().double() if features.isinf().any() else None
        self.harmonic = _cumulated(1 / torch.arange(1, len(seen) + 1, dtype=torch.float64))

    def __call__(self, weights: Tensor) -> dict[str, Tensor]:
        """Every metric of every row of weights."""
        examples = weights.shape[1]
        means = weights @ self.features / examples
        if self.infinite is not None:
            means = means.masked_fill(weights @ self.infinite > 0, torch.inf)
        found = dict(zip(self.means, means.T, strict=True))
        drawn = _summed(weights, self.cells)
        wrong, confidence = drawn * self.cell_is_wrong, drawn * self.cell_confidence
        gaps = _summed(confidence - drawn + wrong, self.bins).abs()
        found["overconfidence"] = found["mean_confidence"] - 1 + found["error"]
        found["ece"] = gaps.sum(1) / examples
        found["mce"] = (gaps / _summed(drawn, self.bins)).nan_to_num(nan=0.0).amax(1)
        size, wrong, confidence = (_summed(each, self.blocks) for each in (drawn, wrong, confidence))
        return found | self._by_mass(size, wrong, confidence) | self._areas(size, wrong)

    def _by_mass(self, size: Tensor, wrong: Tensor, confidence: Tensor) -> dict[str, Tensor]:
        """Bins of equal size; a block that two bins share is split between them."""
        drawn = size.cumsum(1)
        examples = drawn[0, -1]
        ends = torch.arange(1, self.n_bins + 1) * int(examples) // self.n_bins
        at = torch.searchsorted(drawn, ends.double().expand(len(drawn), -1).contiguous())
        size = size.gather(1, at)
        behind = ((drawn.gather(1, at) - ends) / size).nan_to_num(nan=0.0)
        uneven = self.by_confidence.uneven(at, behind)
        errors, surety = (
            _steps(column.cumsum(1).gather(1, at) - column.gather(1, at) * behind - size * more)
            for column, more in zip((wrong, confidence), uneven, strict=True)
        )
        counts = ends.diff(prepend=ends.new_zeros(1)).double()
        gap = surety - counts + errors
        accuracy = 1 - errors / counts.clamp(min=1)
        chance = accuracy * (1 - accuracy) / (counts - 1).clamp(min=1)
        squares = (counts * ((gap / counts.clamp(min=1)).square() - chance)).sum(1) / examples
        return {
            "adaptive_ece": gap.abs().sum(1) / examples,
            "debiased_ece": squares.clamp(min=0).sqrt(),
        }

    def _areas(self, size: Tensor, wrong: Tensor) -> dict[str, Tensor]:
        """Risk-coverage from the surest down; within a block the mistakes come evenly.

        A block from k = a to b answers adds Σ (E_a + (k − a) s)/k = (E_a − a s)(H_b − H_a) + (b − a) s,
        with E_a the mistakes before it, s its share of mistakes and H the harmonic numbers.
        """
        end, mistakes = (column.flip(1).cumsum(1).flip(1) for column in (size, wrong))
        examples, total = int(end[0, 0]), mistakes[:, 0]
        share = wrong / size.clamp(min=1)
        start = end - size
        harmonic = self.harmonic[end.long()] - self.harmonic[start.long()]
        area = ((mistakes - wrong - start * share) * harmonic + wrong).sum(1) / examples
        right = examples - total
        least = total - right * (self.harmonic[examples] - self.harmonic[right.long()])
        return {"aurc": area, "excess_aurc": (area - least / examples).clamp(min=0)}


class _Ordered:
    """Mistakes and confidence in order of confidence: how unevenly a block is mixed that two bins share."""

    def __init__(self, seen: Outcomes, ends: Tensor) -> None:
        confidence, order = seen.confidence.sort()
        wrong = share_ties(confidence, (~seen.correct[order]).double())
        self.ends, self.totals = ends, [_cumulated(column) for column in (wrong, confidence)]

    def uneven(self, block: Tensor, share: Tensor) -> list[Tensor]:
        """What the last `share` of a block holds more than that share of it, divided by its examples."""
        first, last = self.ends[block], self.ends[block + 1]
        cut = last - share * (last - first)
        example = cut.floor().long().clamp(max=last - 1)
        return [
            (total[last] - total[example].lerp(total[example + 1], cut - example)) / (last - first)
            - share * (total[last] - total[first]) / (last - first)
            for total in self.totals
        ]


def _blocks(confidence: Tensor, n_bins: int) -> Tensor:
    """For each example the index of its block, from the least confident up.

    A block never divides equal confidences, and never holds those of two bins.
    """
    distinct, index, count = confidence.unique(return_inverse=True, return_counts=True)
    above = len(confidence) - count.cumsum(0).double()
    largest = max(1.0, len(confidence) / _BLOCKS)
    # The size grows with the number of examples above, from 1 to the largest; its reciprocal is integrated.
    growing = _TOP_BLOCKS * (above / _TOP_BLOCKS).clamp(1, largest).log()
    place = above.clamp(max=_TOP_BLOCKS) + growing + (above / largest - _TOP_BLOCKS).clamp(min=0)
    bins = bin_of(distinct, n_bins)
    of_bin = torch.bincount(bins, count.double(), minlength=n_bins)
    before = count.cumsum(0) - count - (of_bin.cumsum(0) - of_bin)[bins]  # examples of the same bin
    place_in_bin = before / (of_bin / _BIN_BLOCKS).clamp(min=1)[bins]
    changed = (place.floor().diff() != 0) | (bins.diff() != 0) | (place_in_bin.floor().diff() != 0)
    return torch.cat([index.new_zeros(1), changed.cumsum(0)])[index]


def _starts(keys: Tensor) -> Tensor:
    """Where each run of equal keys begins."""
    return torch.cat([keys.new_zeros(1), keys.diff().nonzero()[:, 0] + 1])


def _summed(columns: Tensor, starts: Tensor) -> Tensor:
    """Sums (R, S) of the columns (R, N) from each start to the next."""
    return torch.from_numpy(np.add.reduceat(columns.numpy(), starts.numpy(), axis=1))


def _steps(totals: Tensor) -> Tensor:
    """What cumulated sums grow by."""
    return totals.diff(prepend=torch.zeros_like(totals[:, :1]))


def _difference(one: Resampled, two: Resampled, key: str, level: float, examples: int) -> Interval:
    draws = one.draws[key].tolist(), two.draws[key].tolist()
    trials = examples if key in ("error", "top_k_error") else None
    return Interval(*paired_difference((one.values[key], two.values[key]), draws, level=level, trials=trials))


def _weights(order: Tensor, resamples: int, seed: int) -> Iterator[Tensor]:
    """Rows of how often each example of `order` was drawn, block by block.

    Numbers of draws that are Poisson, each by itself, are multinomial given their sum. So nearly all are read
    from a table by two random bytes, and the few that are missing to N are drawn one by one.
    """
    rng, examples, columns = np.random.default_rng(seed), len(order), order.numpy()
    table = _poisson_table(max(0.0, 1 - 6 / math.sqrt(examples)))
    left = enough_resamples(examples, resamples)
    while left > 0:
        rows = min(left, max(1, _BLOCK // examples))
        left -= rows
        drawn = table[np.frombuffer(rng.bytes(2 * rows * examples), dtype="<u2")].reshape(rows, examples)
        drawn[drawn.sum(1) > examples] = 0  # in one row of a thousand million; all is then drawn one by one
        missing = examples - drawn.sum(1, dtype=np.int64)
        places = np.repeat(examples * np.arange(rows), missing) + rng.integers(0, examples, missing.sum())
        np.add.at(drawn.reshape(-1), places, np.uint8(1))
        yield torch.from_numpy(drawn.take(columns, axis=1)).double()


def _poisson_table(mean: float) -> Array:
    """Of the 65536 pairs of bytes, as many for each number as its share of a Poisson distribution."""
    counts = torch.arange(20, dtype=torch.float64)
    log_probability = torch.xlogy(counts, torch.tensor(mean).double()) - mean - torch.lgamma(counts + 1)
    ends = (65536 * log_probability.exp().cumsum(0)).round().long().clamp(max=65536)
    ends[-1] = 65536
    return torch.repeat_interleave(ends.diff(prepend=ends.new_zeros(1))).to(torch.uint8).numpy()


def _checked(function: str, level: float, resamples: int) -> tuple[float, int]:
    return require_share(function, "level", level), require_at_least_one(function, "resamples", resamples)


def _examples(columns: Sequence[Tensor]) -> int:
    sizes = {len(column) for column in columns if isinstance(column, Tensor) and column.ndim}
    if len(sizes) != 1 or 0 in sizes:
        received = ", ".join(describe(column) for column in columns) or "none"
        raise fail("bootstrap", f"`columns` must be tensors with as many rows each, got {received}.")
    return sizes.pop()
