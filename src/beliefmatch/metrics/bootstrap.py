"""Confidence intervals by the bootstrap: how far would a metric move with another draw of the examples?

A resample is a weight for each example, the number of times it was drawn. Metrics that are sums, or areas
under curves of sorted scores, are computed for many rows of weights at once.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from beliefmatch.checks import describe, fail
from beliefmatch.metrics._inputs import columns, require_at_least_one, require_share
from beliefmatch.metrics.outcomes import Outcomes
from beliefmatch.metrics.resampled import DetectionCurves, OutcomeSums

__all__ = ["Interval", "bootstrap", "bootstrap_detection", "bootstrap_outcomes", "enough_resamples"]

_BLOCK = 1 << 18  # weights at a time, 2 MB
_WORK = 50_000_000
_FEWEST = 200


class Interval(NamedTuple):
    """A metric, and the ends of its interval."""

    value: float
    low: float
    high: float


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
    groups: int = 15,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> dict[str, Interval]:
    """Intervals of the metrics that outcomes tell, all from the same draws.

    By name: error, top_k_error, nll, brier, mean_confidence, mean_entropy, overconfidence (signed), ece, mce,
    adaptive_ece, debiased_ece, aurc, excess_aurc. Of more than 50,000 examples fewer resamples are drawn,
    see `enough_resamples`.
    """
    level, resamples = _checked("bootstrap_outcomes", level, resamples)
    groups = require_at_least_one("bootstrap_outcomes", "groups", groups)
    sums = OutcomeSums(seen, require_at_least_one("bootstrap_outcomes", "top_k", top_k), groups)
    everyone = torch.arange(len(seen))
    draws = [sums(weights) for (weights,) in _weights([everyone], len(seen), resamples, seed)]
    return _intervals(sums(torch.ones(1, len(seen), dtype=torch.float64)), draws, level)


def bootstrap_detection(
    inside: Tensor,
    outside: Tensor,
    *,
    tpr: float = 0.95,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> dict[str, Interval]:
    """Intervals of auroc, aupr_outside, aupr_inside and fpr95, both sets drawn again each for itself."""
    level, resamples = _checked("bootstrap_detection", level, resamples)
    tpr = require_share("bootstrap_detection", "tpr", tpr)
    inside, outside = columns("bootstrap_detection", inside=inside, outside=outside)
    curves = DetectionCurves(inside, outside, tpr)
    draws = [curves(*weights) for weights in _weights(curves.places, curves.scores, resamples, seed)]
    whole = curves(*(torch.bincount(at, minlength=curves.scores)[None].double() for at in curves.places))
    return _intervals(whole, draws, level)


def enough_resamples(examples: int, resamples: int) -> int:
    """At most `resamples`, and fewer for many examples: 50 million weights in all, but at least 200 draws.

    The more examples, the narrower the interval, and the less it matters to know its ends to a hundredth of
    its width.
    """
    return min(resamples, max(_FEWEST, _WORK // examples))


def interval(value: float, draws: Tensor, level: float) -> Interval:
    """Efron's bias-corrected interval of a value and its resampled draws, widened to hold the value."""
    ordered = draws.sort().values
    below = (draws < value).double().mean() + (draws == value).double().mean() / 2
    most = 1 - 0.5 / len(draws)
    bias = torch.special.ndtri(below.clamp(1 - most, most))
    reach = torch.special.ndtri(torch.tensor(0.5 + level / 2, dtype=torch.float64))
    shares = torch.special.ndtr(torch.stack([2 * bias - reach, 2 * bias + reach]))
    low, high = ordered[(shares * (len(draws) - 1)).round().long()].tolist()
    return Interval(value, min(low, value), max(high, value))


def _intervals(whole: dict[str, Tensor], draws: list[dict[str, Tensor]], level: float) -> dict[str, Interval]:
    return {
        name: interval(value.item(), torch.cat([draw[name] for draw in draws]), level)
        for name, value in whole.items()
    }


def _weights(places: Sequence[Tensor], columns: int, resamples: int, seed: int) -> Iterator[list[Tensor]]:
    """For each set of examples, rows of how often each column was drawn, block by block.

    An example counts in the column that `places` says.
    """
    rng, most = np.random.default_rng(seed), max(columns, *(len(place) for place in places))
    left = enough_resamples(most, resamples)
    while left > 0:
        rows = min(left, max(1, _BLOCK // most))
        left -= rows
        yield [_draw(rng, rows, place.numpy(), columns) for place in places]


def _draw(rng: np.random.Generator, rows: int, place: npt.NDArray[np.int64], columns: int) -> Tensor:
    drawn = place[rng.integers(0, len(place), (rows, len(place)), dtype=np.int32)]
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
