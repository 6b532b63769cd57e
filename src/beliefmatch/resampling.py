"""Bootstrap intervals from the draws of a metric: of one model, and of the difference of two.

Imports nothing but the standard library, because reports do without torch.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from statistics import NormalDist

__all__ = ["bias_corrected", "fewest_that_differ", "paired_difference"]

_NORMAL = NormalDist()
_DIGITS = 12  # of a difference: 0.3 − 0.2 must tie with 0.1


def bias_corrected(value: float, draws: Sequence[float], level: float) -> tuple[float, float]:
    """Efron's (1981) bias-corrected interval of a value and its draws, widened to hold the value.

    >>> bias_corrected(50.0, [float(draw) for draw in range(101)], 0.9)
    (5.0, 95.0)
    """
    ordered, count = sorted(draws), len(draws)
    below = (bisect_left(ordered, value) + bisect_right(ordered, value)) / 2
    least = 0.5 / count
    bias = _NORMAL.inv_cdf(min(max(below / count, least), 1 - least))
    reach = _NORMAL.inv_cdf(0.5 + level / 2)
    low, high = (ordered[round(_NORMAL.cdf(2 * bias + side) * (count - 1))] for side in (-reach, reach))
    return min(low, value), max(high, value)


def paired_difference(
    values: tuple[float, float],
    draws: tuple[Sequence[float], Sequence[float]],
    *,
    level: float,
    trials: int | None = None,
) -> tuple[float, float, float]:
    """First less second, with the ends of its interval; draw i of both is of the same rows.

    Args:
        values: the metric of two models on the same examples.
        draws: the metric on examples drawn again, of both models from the same draws.
        level: of the interval.
        trials: the number of examples, where the metric is a share of them. A bootstrap of few mistakes is
            too sure of them; the interval is then widened to hold 0 where no exact sign test could reject it.
    """
    value, *differences = (
        round(first - second, _DIGITS)
        for first, second in zip((values[0], *draws[0]), (values[1], *draws[1]), strict=True)
    )
    low, high = bias_corrected(value, differences, level)
    if trials is not None and round(abs(value) * trials) < fewest_that_differ(level):
        low, high = min(low, 0.0), max(high, 0.0)
    return value, low, high


def fewest_that_differ(level: float) -> int:
    """Number of examples that one model alone must get right for two error rates to differ.

    So many heads in a row have a probability below 1 − level, counting both sides.

    >>> fewest_that_differ(0.95)
    6
    """
    return math.ceil(1 - math.log2(1 - level))
