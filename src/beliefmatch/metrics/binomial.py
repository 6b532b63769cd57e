"""Exact bounds of Clopper and Pearson on the rate behind a count of errors."""

import torch
from torch import Tensor

from beliefmatch._quadrature import beta_quantile

__all__ = ["binomial_interval", "upper_bound"]


def upper_bound(errors: Tensor, trials: Tensor, level: float, *, caller: str) -> Tensor:
    """The largest rate under which so few errors still have the probability `level`."""
    right = trials - errors
    bound = beta_quantile(errors + 1.0, right.clamp(min=1).double(), 1 - level, caller=caller)
    return torch.where(right > 0, bound, 1.0)


def binomial_interval(errors: int, trials: int, *, level: float = 0.95) -> tuple[float, float]:
    """An interval that holds the rate of errors with at least this probability, whatever the rate is.

    No bootstrap does: from no error in twenty it would conclude that there never is one.

    >>> low, high = binomial_interval(0, 20)
    >>> low, round(high, 4)
    (0.0, 0.1684)
    """
    caller, tail = "binomial_interval", (1 - level) / 2
    pair = torch.tensor(
        [errors, trials - errors], dtype=torch.float64
    )  # the lower is the upper of the others
    high, low = upper_bound(pair, torch.full_like(pair, trials), tail, caller=caller).tolist()
    return 1 - low, high
