"""Confidence intervals by the bootstrap: how far would a metric move with another draw of the examples?

A resample is a weight for each example, the number of times it was drawn. Metrics that are sums, or areas
under curves of sorted scores, are computed for many rows of weights at once.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from beliefmatch._validate import describe, fail
from beliefmatch.metrics._inputs import columns, require_at_least_one, require_share
from beliefmatch.metrics.outcomes import Outcomes
from beliefmatch.metrics.resampled import DetectionCurves, OutcomeSums
from beliefmatch.resampling import bias_corrected, paired_difference

__all__ = [
    "Interval",
    "Resampled",
    "bootstrap",
    "bootstrap_detection",
    "bootstrap_differences",
    "bootstrap_outcomes",
    "enough_resamples",
    "intervals_of",
    "resample_outcomes",
]

_BLOCK = 1 << 18  # weights at a time, 2 MB
_WORK = 50_000_000
_FEWEST = 200


class Interval(NamedTuple):
    """A metric, and the ends of its interval."""

    value: float
    low: float
    high: float


class Resampled(NamedTuple):
    """Metrics by name, and what they would have been on other draws of the examples."""

    values: dict[str, float]
    draws: dict[str, Tensor]
    """Of each metric a column with one value a resample."""
    rows_sha256: str
    """Tells which rows were drawn: equal ones mean that the draws of two models are of the same examples."""


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
    return interval(float(statistic(*columns)), torch.tensor(draws, dtype=torch.float64), level)


def bootstrap_outcomes(
    seen: Outcomes,
    *,
    top_k: int = 5,
    n_bins: int = 15,
    resamples: int = 1000,
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
    resamples: int = 1000,
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


def _difference(one: Resampled, two: Resampled, key: str, level: float, examples: int) -> Interval:
    draws = one.draws[key].tolist(), two.draws[key].tolist()
    trials = examples if key in ("error", "top_k_error") else None
    return Interval(*paired_difference((one.values[key], two.values[key]), draws, level=level, trials=trials))


def resample_outcomes(
    seen: Outcomes,
    *,
    top_k: int = 5,
    n_bins: int = 15,
    resamples: int = 1000,
    seed: int = 0,
    function: str = "resample_outcomes",
) -> Resampled:
    """The metrics of `bootstrap_outcomes` on every draw.

    Which rows are drawn depends on `seed`, `resamples` and the number of examples alone.
    """
    n_bins = require_at_least_one(function, "n_bins", n_bins)
    sums = OutcomeSums(seen, require_at_least_one(function, "top_k", top_k), n_bins)
    rows, digest, draws = sums.order.double(), hashlib.sha256(), []
    for (weights,) in _weights([sums.column], len(seen), resamples, seed):
        digest.update((weights @ rows).numpy().astype("<i8").tobytes())  # the sum of each draw's rows
        draws.append(sums(weights))
    whole = sums(torch.ones(1, len(seen), dtype=torch.float64))
    columns = {name: torch.cat([draw[name] for draw in draws]) for name in whole}
    return Resampled({name: value.item() for name, value in whole.items()}, columns, digest.hexdigest())


def intervals_of(drawn: Resampled, level: float) -> dict[str, Interval]:
    """Each metric with its own interval."""
    return {name: interval(value, drawn.draws[name], level) for name, value in drawn.values.items()}


def bootstrap_detection(
    in_distribution: Tensor,
    ood: Tensor,
    *,
    tpr: float = 0.95,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> dict[str, Interval]:
    """Intervals of auroc, aupr_ood, aupr_id and fpr95, both sets drawn again each for itself."""
    level, resamples = _checked("bootstrap_detection", level, resamples)
    tpr = require_share("bootstrap_detection", "tpr", tpr)
    in_distribution, ood = columns("bootstrap_detection", in_distribution=in_distribution, ood=ood)
    curves = DetectionCurves(in_distribution, ood, tpr)
    draws = [curves(*weights) for weights in _weights(curves.columns, curves.scores, resamples, seed)]
    whole = curves(*(torch.bincount(at, minlength=curves.scores)[None].double() for at in curves.columns))
    return {
        name: interval(value.item(), torch.cat([draw[name] for draw in draws]), level)
        for name, value in whole.items()
    }


def enough_resamples(examples: int, resamples: int) -> int:
    """At most `resamples`, and fewer for many examples: 50 million weights in all, but at least 200 draws.

    The more examples, the narrower the interval, and the less it matters to know its ends to a hundredth of
    its width.
    """
    return min(resamples, max(_FEWEST, _WORK // examples))


def interval(value: float, draws: Tensor, level: float) -> Interval:
    """Efron's bias-corrected interval of a value and its resampled draws, widened to hold the value."""
    return Interval(value, *bias_corrected(value, draws.tolist(), level))


def _weights(column_of: Sequence[Tensor], columns: int, resamples: int, seed: int) -> Iterator[list[Tensor]]:
    """For each set of examples, rows of how often each column was drawn, block by block.

    `column_of` holds the column of each example, one tensor a set.
    """
    rng, most = np.random.default_rng(seed), max(columns, *(len(each) for each in column_of))
    left = enough_resamples(most, resamples)
    while left > 0:
        rows = min(left, max(1, _BLOCK // most))
        left -= rows
        yield [_draw(rng, rows, each.numpy(), columns) for each in column_of]


def _draw(rng: np.random.Generator, rows: int, column_of: npt.NDArray[np.int64], columns: int) -> Tensor:
    drawn = column_of[rng.integers(0, len(column_of), (rows, len(column_of)), dtype=np.int32)]
    drawn += columns * np.arange(rows)[:, None]
    counts = np.bincount(drawn.ravel(), minlength=rows * columns)
    return torch.from_numpy(counts.reshape(rows, columns)).double()


def _checked(function: str, level: float, resamples: int) -> tuple[float, int]:
    return require_share(function, "level", level), require_at_least_one(function, "resamples", resamples)


def _examples(columns: Sequence[Tensor]) -> int:
    sizes = {len(column) for column in columns if isinstance(column, Tensor) and column.ndim}
    if len(sizes) != 1 or 0 in sizes:
        received = ", ".join(describe(column) for column in columns) or "none"
        raise fail("bootstrap", f"`columns` must be tensors with as many rows each, got {received}.")
    return sizes.pop()
