r"""How far apart two predictions are, one value a row of logits.

All are zero where the two agree, and keep their digits near there: consistency is a matter of small
differences, and VAT's search looks at nothing else.
"""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from beliefmatch.checks import describe, fail, require_choice, require_floating
from beliefmatch.divergence import dirichlet_kl
from beliefmatch.rows import result_dtype, work_dtype

__all__ = [
    "DIVERGENCES",
    "Divergence",
    "Order",
    "categorical_kl",
    "mean_of",
    "named",
    "ordered",
    "squared_distance",
]

Divergence = Callable[[Tensor, Tensor], Tensor]
"""``measure(first, second)`` of two tensors of logits of one shape, with classes along dimension 1."""

Order = Literal["paper", "release"]
"""Of the two arguments: the target first, as in the paper, or second, as in the authors' release."""

_LOWEST = -1e30  # a logit of −∞ is a class without any share, not NaN


def categorical_kl(first: Tensor, second: Tensor) -> Tensor:
    r"""KL(softmax(first) ‖ softmax(second)) ≥ 0 of each row.

    .. math:: \sum_k p_k\,(e^{x_k} - 1 - x_k), \qquad x = \ln(q/p)

    which is Σ p ln(p/q), since p and q both sum to one, without a negative term.

    >>> round(categorical_kl(torch.zeros(1, 2), torch.tensor([[0.0, 1e-6]])).item() * 8e12, 6)  # of δ²/8
    1.0
    """
    p, q, x = _shares("categorical_kl", first, second)
    near = x < 1
    y = torch.where(near, x, 0.0)
    terms = torch.where(near, p * (y.expm1() - y), q - p - p * x)
    return terms.sum(1).to(_kind(first, second))


def squared_distance(first: Tensor, second: Tensor) -> Tensor:
    """Σ_k (p_k − q_k)² of the two softmax vectors of each row, in [0, 2]; the order does not matter."""
    p, q, x = _shares("squared_distance", first, second)
    return _difference(p, q, x).square().sum(1).to(_kind(first, second))


def _shares(function: str, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """p and q of the rows, and ln(q/p)."""
    for name, logits in (("first", first), ("second", second)):
        require_floating(function, name, logits)
    if first.dim() < 2 or first.shape != second.shape:
        received = f"{tuple(first.shape)} and {tuple(second.shape)}"
        raise fail(function, f"`first` and `second` must both have one shape (N, K, ...), got {received}.")
    log_p, log_q = (_lifted(logits).clamp(min=_LOWEST).log_softmax(1) for logits in (first, second))
    p, q, x = log_p.exp(), log_q.exp(), log_q - log_p
    return p, q, _with_exact_leader(p, q, x)


def _with_exact_leader(p: Tensor, q: Tensor, x: Tensor) -> Tensor:
    """ln(q/p) whose value for the leading class comes from what the others lose.

    Its two logarithms are near zero and their difference is mostly rounding where it leads by far.
    """
    leads = torch.zeros_like(p, dtype=torch.bool).scatter(1, p.argmax(1, keepdim=True), True)
    others = torch.where(leads, 0.0, _difference(p, q, x)).sum(1, keepdim=True)
    gained = -others / torch.where(leads, p, 1.0)
    is_small = leads & (gained.abs() < 0.5)
    return torch.where(is_small, torch.where(is_small, gained, 0.0).log1p(), x)


def _difference(p: Tensor, q: Tensor, x: Tensor) -> Tensor:
    """q − p, from their ratio where they are close."""
    near = x < 1
    return torch.where(near, p * torch.where(near, x, 0.0).expm1(), q - p)


def _dirichlet(first: Tensor, second: Tensor) -> Tensor:
    return dirichlet_kl(first, second, dim=1)


DIVERGENCES: dict[str, Divergence] = {
    "categorical": categorical_kl,
    "dirichlet": _dirichlet,
    "squared": squared_distance,
}
"""By name: KL between softmax vectors, KL between Dirichlets with α = e^logits, squared distance."""


def named(function: str, argument: str, divergence: Divergence | str) -> Divergence:
    """The divergence of a name; a function is one already."""
    if isinstance(divergence, str):
        require_choice(function, argument, divergence, tuple(DIVERGENCES))
        return DIVERGENCES[divergence]
    if not callable(divergence):
        expected = "the name of a divergence or a function"
        raise fail(function, f"`{argument}` must be {expected}, got {describe(divergence)}.", TypeError)
    return divergence


def mean_of(function: str, values: Any, inputs: Tensor) -> Tensor:
    """The mean over the examples of what a divergence says of each; a TypeError if it said something else."""
    if not isinstance(values, Tensor) or values.shape[:1] != inputs.shape[:1]:
        expected = f"a value for each of {len(inputs)} rows"
        raise fail(function, f"`divergence` must give {expected}, got {describe(values)}.", TypeError)
    return (values / values.numel()).sum()  # a sum of saturated values would overflow


def ordered(measure: Divergence, order: Order, target: Tensor, prediction: Tensor) -> Tensor:
    """The divergence between a target and a prediction, in the order of the paper or of the release."""
    return measure(target, prediction) if order == "paper" else measure(prediction, target)


def _lifted(logits: Tensor) -> Tensor:
    return logits.to(work_dtype(logits.device))


def _kind(first: Tensor, second: Tensor) -> torch.dtype:
    return result_dtype(torch.promote_types(first.dtype, second.dtype))
