"""Exact statistics of counts: bounds of Clopper and Pearson on a rate, and tests that need no scipy."""

import torch
from torch import Tensor

from beliefmatch._quadrature import beta_quantile

__all__ = ["binomial_interval", "binomial_tail", "fisher_exact", "sign_test", "upper_bound"]


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


def binomial_tail(successes: int, trials: int, rate: float) -> float:
    """Probability of at least so many successes in independent trials of this rate.

    >>> round(binomial_tail(9, 10, 0.5), 6)
    0.010742
    """
    counts = torch.arange(successes, trials + 1, dtype=torch.float64)
    others = trials - counts
    log_rate, log_other = (torch.tensor(one, dtype=torch.float64) for one in (rate, 1 - rate))
    likelihood = torch.xlogy(counts, log_rate) + torch.xlogy(others, log_other)
    return min(1.0, (_log_choose(trials, counts) + likelihood).exp().sum().item())


def sign_test(wins: int, losses: int) -> float:
    """Exact two-sided p-value of the hypothesis that wins and losses are equally probable.

    >>> sign_test(5, 0), sign_test(0, 0)
    (0.0625, 1.0)
    """
    return min(1.0, 2 * binomial_tail(max(wins, losses), wins + losses, 0.5))


def fisher_exact(successes: int, trials: int, other_successes: int, other_trials: int) -> float:
    """One-sided p-value of the hypothesis that the first rate is not the higher one, by Fisher's exact test.

    >>> round(fisher_exact(5, 5, 0, 5), 6)
    0.003968
    """
    total, total_successes = trials + other_trials, successes + other_successes
    counts = torch.arange(successes, min(trials, total_successes) + 1, dtype=torch.float64)
    log_probability = _log_choose(trials, counts) + _log_choose(other_trials, total_successes - counts)
    normaliser = _log_choose(total, torch.tensor(float(total_successes), dtype=torch.float64))
    return min(1.0, (log_probability - normaliser).exp().sum().item())


def _log_choose(n: int, k: Tensor) -> Tensor:
    total = torch.tensor(n + 1.0, dtype=torch.float64)
    return torch.lgamma(total) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)
