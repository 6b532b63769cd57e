r"""Votes of several annotators for one item: how likely they are, and which class a panel will choose.

The votes of an item are drawn from class probabilities p, which are unknown and follow Dir(α), α = e^logits.
One after the other they have the Pólya (Dirichlet-multinomial) likelihood, with z = ln α and z₀ = ln Σα:

.. math::
    \ln p(c \mid α) = \sum_k c_k \ln\frac{α_k}{α_0} + \sum_k R(z_k, c_k) - R(z_0, n), \qquad
    R(z, n) = \sum_{j=1}^{n-1} \ln(1 + j e^{-z})

No difference of lnΓ is taken, which would lose all digits for large α; every term is a softplus of ln j − z.

Every function here refuses logits that are not finite, on devices where looking at them costs nothing;
elsewhere they give NaN. A class that is impossible has a very small logit, such as −1000.
"""

import math
import warnings
from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from beliefmatch._errors import ArgumentWarning
from beliefmatch._rows import result_dtype, work_dtype
from beliefmatch._validate import (
    describe,
    fail,
    level_of_caller,
    naming_arguments,
    peek,
    require_choice,
    require_device,
    require_floating,
    require_index,
    require_values,
)

__all__ = [
    "UnboundedScale",
    "expected_gain",
    "fit_class_prior",
    "fit_scale",
    "prob_of_majority",
    "require_votes",
    "votes_log_likelihood",
]

LARGEST_LOG_SCALE = math.log(1e6)
"""A fitted scale lies between 1e-6 and 1e6."""
_LEAST_LOG_PROB = -30.0
"""Of a class in a belief of one precision, so that a probability of zero stays possible."""
_LOG_TEMPERATURES = (-2.0, 4.0, 7)
"""First, last and number of the coarse grid, which holds 0."""
_EXACT_TERMS = 16
"""Votes of one class up to which R is summed term by term; beyond them Stirling's series is exact."""
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188)
_NUMBERS_AT_ONCE = 1 << 22
_DIRECT_TERMS = 48
"""Length of a polynomial up to which products are summed term by term; longer ones by Fourier transforms."""
_CLASSES_IN_TURN = 32
"""Number of classes up to which each follows the other in the recursion for a majority."""
_CLASSES_ALONE, _GROUPS = 24, 8
"""Classes whose vote is followed up one by one in an expected gain, and groups of the others."""
_NEGLIGIBLE = 1e-14
"""Probability of a next vote below which it is not followed up."""
_MOST_STEPS = 2000
"""To the mean of a class prior; a few suffice far from α₀ = 1."""


class UnboundedScale(ArgumentWarning):
    """The likelihood has no maximum within the range of scales; the end of the range is returned."""


def votes_log_likelihood(
    logits: Tensor,
    counts: Tensor,
    *,
    ordered: bool = True,
    reduction: Literal["mean", "sum", "none"] = "mean",
) -> Tensor:
    r"""Log-likelihood of the votes of each item under Dir(e^logits), exact at any concentration.

    .. math:: \ln\frac{Γ(α_0)}{Γ(α_0 + n)} + \sum_k \ln\frac{Γ(α_k + c_k)}{Γ(α_k)}

    A score for beliefs that are to predict votes one after another, and differentiable in the logits for
    those who want it as a loss: unlike the evidence lower bound it sees how votes scatter between items.

    Args:
        logits: ln α, of shape (N, K) or (K,), finite.
        counts: Votes for each class, whole numbers of the shape of the logits, of any number type.
        ordered: Whether the votes have the order in which they came. If False, the logarithm of the number
            of their orders is added, which does not depend on the logits; a single item then has the value
            of `scipy.stats.dirichlet_multinomial.logpmf`.
        reduction: "mean" and "sum" are over the items, "none" gives one value for each.

    Returns:
        Nats; float64 for float64 logits, else float32. An item without votes has 0.

    Example:
        >>> import torch
        >>> from beliefmatch import votes_log_likelihood
        >>> uniform = torch.zeros(1, 3, dtype=torch.float64)  # each class has the concentration 1
        >>> votes = torch.tensor([[2, 0, 0]])
        >>> round(votes_log_likelihood(uniform, votes).exp().item(), 12)  # 1/3 · 2/4
        0.166666666667
    """
    name = "votes_log_likelihood"
    require_choice(name, "reduction", reduction, ("mean", "sum", "none"))
    votes = require_votes(name, logits, counts)
    z = logits.to(work_dtype(logits.device))
    total = votes.sum(-1)
    seen = votes > 0
    mean_part = torch.where(seen, votes * z.log_softmax(-1), 0.0).sum(-1)
    value = mean_part + _log_reinforcement(z, votes).sum(-1) - _log_reinforcement(z.logsumexp(-1), total)
    if not ordered:
        value = value + torch.lgamma(total + 1) - torch.lgamma(votes + 1).sum(-1)
    value = value if reduction == "none" else value.mean() if reduction == "mean" else value.sum()
    return value.to(result_dtype(logits.dtype))


def fit_scale(logits: Tensor, counts: Tensor, *, max_votes: int = 5) -> float:
    """Fit a factor on α = e^logits by maximum likelihood of the votes of each item.

    The factor is for `Belief(logits, scale=s)`. It fits the precision of the belief to data, as temperature
    scaling fits the probabilities. The means do not change.

    Args:
        logits: ln α of validation items, of shape (N, K): items that the network was not trained on.
        counts: Votes for each class, whole numbers of the shape of the logits.
        max_votes: Number of votes of an item that count. An item with more votes counts as the average over
            all choices of that many votes, so that items with many votes do not outweigh the others, and the
            scale fits the first votes best.

    Returns:
        The scale s, between 1e-6 and 1e6. The ends of this range are returned with an `UnboundedScale`
        warning: votes of an item that always agree are likeliest under α → 0, votes that scatter as
        independent draws from the means do under α → ∞.

    Example:
        >>> import torch
        >>> from beliefmatch import fit_scale
        >>> _ = torch.manual_seed(0)
        >>> p = torch.distributions.Dirichlet(torch.tensor([2.0, 1.0, 1.0])).sample((4000,))
        >>> counts = torch.distributions.Multinomial(5, p).sample()
        >>> logits = torch.tensor([8.0, 4.0, 4.0]).log().expand(4000, 3)  # too sure by a factor of 4
        >>> round(fit_scale(logits, counts), 2)
        0.24
    """
    return fitted_scale(logits, counts, max_votes=max_votes).scale


class FittedScale(NamedTuple):
    """A scale, and what it is worth."""

    scale: float
    gain: float
    """Nats an item by which its votes are likelier than independent draws from the means, of items with two
    votes or more. It compares precisions of the same means."""


def fitted_scale(logits: Tensor, counts: Tensor, *, max_votes: int = 5) -> FittedScale:
    """`fit_scale`, with the likelihood that it reaches."""
    name = "fit_scale"
    z, votes, most = _scattered(name, logits, counts, max_votes)
    several = votes.sum(1) >= 2
    objective = _ScaleObjective(z[several], votes[several], most)
    best = _maximise(objective, -LARGEST_LOG_SCALE, LARGEST_LOG_SCALE)
    _warn_of_end(name, best)
    return FittedScale(math.exp(best), objective.value(best) / int(several.sum()))


class FittedBelief(NamedTuple):
    """A scale and a temperature, and what they are worth together."""

    scale: float
    temperature: float
    gain: float
    """Nats an item by which its votes are likelier than independent draws from softmax(logits)."""


def fitted_belief(logits: Tensor, counts: Tensor, *, one_precision: bool, max_votes: int = 5) -> FittedBelief:
    """Scale and temperature under which the votes are likeliest, with α of `tempered` times the scale.

    `fit_scale` keeps the means as they are; those of a network that is too sure need a temperature too. One
    nat is charged for a ln T of √2, as by a standard normal prior of ln T, so that T stays 1 where the votes
    do not tell it. Items with one vote count for the temperature.

    Args:
        logits: ln α of validation items, of shape (N, K).
        counts: Votes for each class, as in `fit_scale`.
        one_precision: Whether all items have the same precision, or that of their logits times one scale.
        max_votes: Number of votes of an item that count, as in `fit_scale`.
    """
    name = "fit_scale"
    z, votes, most = _scattered(name, logits, counts, max_votes)
    voted = votes.sum(1) > 0
    objective = _TemperedObjective(z[voted], votes[voted], most, one_precision)
    temperature = math.exp(_best_log_temperature(objective))
    several = votes.sum(1) >= 2
    at_temperature = tempered(z[several], temperature, one_precision)
    best = _maximise(
        _ScaleObjective(at_temperature, votes[several], most), -LARGEST_LOG_SCALE, LARGEST_LOG_SCALE
    )
    _warn_of_end(name, best)
    likelihood = objective.value(z.new_tensor([math.log(temperature), best])).item()
    return FittedBelief(
        math.exp(best), temperature, (likelihood - objective.of_independent_draws) / int(voted.sum())
    )


def tempered(logits: Tensor, temperature: float | Tensor, one_precision: bool) -> Tensor:
    """ln α up to one scale: softmax(logits/T) of equal precision, or e^(logits/T) of the logits' own."""
    if not one_precision:
        return logits / temperature
    log_probs = logits.log_softmax(-1).clamp(min=_LEAST_LOG_PROB)
    return (log_probs / temperature).log_softmax(-1).clamp(min=_LEAST_LOG_PROB)


def log_likelihood_of_draws(logits: Tensor, counts: Tensor, max_votes: int) -> float:
    """Σ of `votes_log_likelihood`, with `max_votes` votes of an item at most, as in `fit_scale`."""
    votes = require_votes("fit_scale", logits, counts)
    voted = votes.sum(1) > 0
    most = _at_most_present(max_votes, votes)
    objective = _TemperedObjective(logits[voted], votes[voted], most, one_precision=False)
    return objective.value(logits.new_zeros(2)).item()


def _scattered(name: str, logits: Tensor, counts: Tensor, max_votes: int) -> tuple[Tensor, Tensor, int]:
    """Logits and votes in the working type, and the number of votes that count, all fit for a scale."""
    most = _require_scatter(name, max_votes)
    votes = require_votes(name, logits, counts)
    if logits.dim() != 2:
        raise fail(name, f"`logits` must have shape (N, K), got {tuple(logits.shape)}.")
    if peek((votes.sum(1) >= 2).any()) is False:
        raise fail(name, "`counts` must have items with two votes or more: one vote has no scatter.")
    return logits.detach().to(work_dtype(logits.device)), votes, _at_most_present(most, votes)


def _require_scatter(function: str, max_votes: int) -> int:
    if (most := require_index(function, "max_votes", max_votes)) < 2:
        raise fail(function, f"`max_votes` must be at least 2, got {most}: one vote has no scatter.")
    return most


def _at_most_present(max_votes: int, votes: Tensor) -> int:
    """`max_votes`, or the most votes that an item has, at least 2: all terms beyond them are zero."""
    largest = votes.sum(1).max().item() if len(votes) else 0
    return max(2, int(min(max_votes, largest)))  # in this order `max_votes` if the largest is NaN


def _warn_of_end(function: str, log_scale: float) -> None:
    if abs(log_scale) == LARGEST_LOG_SCALE:
        fact = "the likelihood has no maximum within the range of scales"
        message = f"{fact}; the end of the range, {math.exp(log_scale):.0e}, is returned."
        warnings.warn(UnboundedScale(function, message), stacklevel=level_of_caller())


def fit_class_prior(counts: Tensor, *, max_votes: int = 5) -> Tensor:
    """Fit one Dirichlet to the votes of all items by maximum likelihood; returns ln α of shape (K,).

    It is the belief about an item if there is no model. Half a vote for each class is added, so that a class
    without votes stays possible.

    Args:
        counts: Votes for each class, whole numbers of shape (N, K).
        max_votes: Number of votes of an item that count, as in `fit_scale`.

    Returns:
        ln α. Its precision α₀ = Σα lies between 1e-6 and 1e6, whose ends are returned with an
        `UnboundedScale` warning and the likeliest mean at that precision. If no item has two votes or more,
        α₀ is 1.

    Example:
        >>> import torch
        >>> from beliefmatch.votes import fit_class_prior
        >>> _ = torch.manual_seed(0)
        >>> p = torch.distributions.Dirichlet(torch.tensor([4.0, 2.0, 2.0])).sample((20_000,))
        >>> counts = torch.distributions.Multinomial(5, p).sample()
        >>> round(fit_class_prior(counts).softmax(0)[0].item(), 1)
        0.5
    """
    name = "fit_class_prior"
    most = _require_scatter(name, max_votes)
    if not isinstance(counts, Tensor) or counts.dim() != 2:
        raise fail(name, f"`counts` must be a tensor of shape (N, K), got {describe(counts)}.")
    votes = require_votes(name, torch.zeros_like(counts, dtype=work_dtype(counts.device)), counts)
    objective = _PriorObjective(votes, _at_most_present(most, votes))
    if peek((votes.sum(1) >= 2).any()) is False:
        return objective.log_mean(0.0)
    best = _maximise(objective, -LARGEST_LOG_SCALE, LARGEST_LOG_SCALE)
    _warn_of_end(name, best)
    return best + objective.log_mean(best)


def prob_of_majority(logits: Tensor, panel: int, votes: Tensor | None = None) -> Tensor:
    r"""P(class k has the most votes of a panel of `panel` people), for votes of whom some are known.

    The votes that are still to come follow the Pólya distribution with concentrations α + votes. The
    probability is exact: for each number of votes f of the winner, a recursion over the classes adds up all
    ways to give every other class fewer than f votes or, in a tie, f. More than half of the panel is a tail
    of a beta-binomial distribution. The cost grows with the square of the panel (times its logarithm) for
    each class; the error is below 1e-12. Of more than 32 classes, those that are unlikely to have a vote are
    multiplied together at once, which is exact too.

    Args:
        logits: ln α, of shape (..., K), finite.
        panel: Number of votes when all have voted.
        votes: Votes known by now, whole numbers of the shape of the logits; none if not given.

    Returns:
        Probabilities of the shape of the logits, which sum to one. Classes that tie share the panel's
        decision equally, as if it were drawn by lot. Not differentiable.
    """
    name = "prob_of_majority"
    if (size := require_index(name, "panel", panel)) < 1:
        raise fail(name, f"`panel` must be at least 1, got {size}.")
    require_floating(name, "logits", logits)
    known = require_votes(name, logits, torch.zeros_like(logits) if votes is None else votes, "votes")
    require_values(name, "votes", known.sum(-1), known.sum(-1) <= size, f"at most `panel` ({size}) an item")
    if not logits.numel():
        return logits.detach().to(result_dtype(logits.dtype))
    z = logits.detach().to(work_dtype(logits.device)).reshape(-1, logits.shape[-1])
    cast = known.reshape(z.shape)
    found = F.one_hot(cast.argmax(1), z.shape[1]).to(z.dtype)
    is_decided = (lead(cast) > size - cast.sum(1)) & z.isfinite().all(1)
    is_open = (~is_decided).nonzero().flatten()
    tied = min(size, z.shape[1]) // 2 + 1
    rows = max(1, _NUMBERS_AT_ONCE // ((size + 1) * z.shape[1] * tied))
    for part in is_open.split(rows) if len(is_open) else ():
        found[part] = _majority(z[part], cast[part], size)
    return found.view_as(logits).to(result_dtype(logits.dtype))


def lead(votes: Tensor) -> Tensor:
    """Votes by which the first class is ahead of the second; of a single class, all of them and one more."""
    if votes.shape[1] < 2:
        return votes[:, 0] + 1
    first, second = votes.topk(2).values.unbind(1)
    return first - second


def expected_gain(logits: Tensor, panel: int, votes: Tensor) -> Tensor:
    r"""Expected information gain of one more vote about the majority of the panel, in nats, for each item.

    .. math:: H(M \mid \text{votes}) - \sum_y p(y \mid \text{votes})\,H(M \mid \text{votes} + y) ≥ 0

    with M the class of `prob_of_majority`. An item whose panel is complete has 0. To ask about the items of
    the largest gain first is the greedy way to learn most with each vote.

    Exact for up to 32 classes. Of more, the classes with votes and the likeliest ones, 24 in all, are exact;
    the others, of probability r, are eight groups of similar probability, each with the entropy after a vote
    for its middle class. That changes the gain by at most r ln K, and by nothing where the others are alike.

    Args:
        logits: ln α, of shape (N, K).
        panel: Number of votes when all have voted.
        votes: Votes known by now, whole numbers of shape (N, K).

    Returns:
        Shape (N,), at least 0. Not differentiable.
    """
    name = "expected_gain"
    known = require_votes(name, logits, votes, "votes")
    if logits.dim() != 2:
        raise fail(name, f"`logits` must have shape (N, K), got {tuple(logits.shape)}.")
    logits = logits.detach()
    with naming_arguments(name):
        now = _entropy(prob_of_majority(logits, panel, known))
    gain = torch.zeros_like(now)
    is_open = known.sum(-1) < panel
    z, cast = logits[is_open], known[is_open]
    predictive = _with_votes(z.to(cast.dtype), cast).softmax(-1)
    later = torch.zeros_like(now[is_open])
    order = (predictive + (cast > 0)).argsort(dim=-1, descending=True, stable=True)
    for ranks in _next_votes(logits.shape[-1]):
        group = order[:, ranks.start : ranks.stop]
        weight = predictive.gather(1, group).sum(1)
        rows = (weight > _NEGLIGIBLE).nonzero().flatten()
        if not len(rows):
            continue
        with_one_more = cast[rows]
        with_one_more[torch.arange(len(rows)), group[rows, len(ranks) // 2]] += 1
        after = _entropy(prob_of_majority(z[rows], panel, with_one_more))
        later[rows] += (weight[rows] * after).to(later.dtype)
    gain[is_open] = (now[is_open] - later).clamp(min=0.0).to(gain.dtype)
    return gain


def _next_votes(classes: int) -> list[range]:
    """Ranks of the classes of the next vote that are taken together; the likeliest ones stand alone."""
    if classes <= _CLASSES_ALONE + _GROUPS:
        return [range(k, k + 1) for k in range(classes)]
    ends = np.linspace(_CLASSES_ALONE, classes, _GROUPS + 1).astype(int).tolist()
    return [*(range(k, k + 1) for k in range(_CLASSES_ALONE)), *map(range, ends[:-1], ends[1:])]


def require_votes(function: str, logits: Tensor, counts: Tensor, name: str = "counts") -> Tensor:
    """The votes in the working type: whole numbers, not negative, of the shape of the logits, all finite."""
    require_floating(function, "logits", logits)
    if logits.dim() == 0 or logits.shape[-1] == 0:
        raise fail(function, f"`logits` must have shape (..., K) with K ≥ 1, got {tuple(logits.shape)}.")
    if not isinstance(counts, Tensor) or counts.dtype == torch.bool or counts.is_complex():
        expected = "a tensor of whole numbers"
        raise fail(function, f"`{name}` must be {expected}, got {describe(counts)}.", TypeError)
    require_device(function, name, counts, logits)
    if counts.shape != logits.shape:
        expected = f"the shape of `logits`, {tuple(logits.shape)}"
        raise fail(function, f"`{name}` must have {expected}, got {tuple(counts.shape)}.")
    votes = counts.detach().to(work_dtype(logits.device))
    is_whole = votes.isfinite() & (votes >= 0) & (votes == votes.round())
    require_values(function, name, votes, is_whole, "whole numbers that are not negative")
    require_values(function, "logits", logits.detach(), logits.detach().isfinite(), "finite")
    return votes


# The Pólya likelihood


def _log_reinforcement(z: Tensor, n: Tensor) -> Tensor:
    """R(z, n) = Σ_{j<n} ln(1 + j e^{-z}): what votes that came before add to those of the same class."""
    shape, z, n = z.shape, z.flatten(), n.flatten()
    value = torch.zeros_like(z)
    most = int(n.max()) if n.numel() else 0
    for j in range(1, min(most, _EXACT_TERMS)):
        at = (n > j).nonzero().flatten()
        value = value.index_add(0, at, _softplus(math.log(j) - z[at]))
    if most > _EXACT_TERMS:
        at = (n > _EXACT_TERMS).nonzero().flatten()
        value = value.index_add(0, at, _log_reinforcement_tail(z[at], n[at] - _EXACT_TERMS))
    return value.view(shape)


def _softplus(x: Tensor) -> Tensor:
    """ln(1 + e^x). By default torch takes x itself from 20 on, an error of 2e-9 for each vote."""
    return F.softplus(x, threshold=40.0)


def _log_reinforcement_tail(z: Tensor, m: Tensor) -> Tensor:
    """lnΓ(a + m) − lnΓ(a) − m z with a = 16 + e^z, by Stirling's series, of which m z is taken out first."""
    a = _EXACT_TERMS + z.clamp(max=80.0).exp()  # beyond, what the series adds is below 1e-30
    main = (a + m - 0.5) * torch.log1p(m / a) - m
    return m * _softplus(math.log(_EXACT_TERMS) - z) + main + _stirling(a + m) - _stirling(a)


def _stirling(x: Tensor) -> Tensor:
    """lnΓ(x) − (x − ½) ln x + x − ½ ln 2π for x ≥ 16, to 1e-16."""
    square = 1 / (x * x)
    value = torch.zeros_like(x)
    for coefficient in reversed(_STIRLING):
        value = value * square + coefficient
    return value / x


# The scale


class _ScaleObjective:
    """Log-likelihood of the votes as a function of ln s, up to a constant, with its derivatives.

    Σ_items Σ_j [Σ_k P(c_k > j) ln(1 + j/(s α_k)) − ln(1 + j/(s α₀))], where c are `most` of the votes, drawn
    without replacement. Only terms that differ from zero are kept.
    """

    def __init__(self, z: Tensor, votes: Tensor, most: int) -> None:
        totals = votes.sum(1)
        drawn = totals.clamp(max=most)
        of_classes = z, votes, totals[:, None].expand_as(votes), drawn[:, None].expand_as(votes)
        z_seen, c_seen, n_seen, m_seen = (x[votes >= 2] for x in of_classes)
        log_total, positions, weights = z.logsumexp(1), [], []
        for j, weight in _probs_more_than(range(1, most), c_seen, n_seen, m_seen):
            is_drawn = drawn > j
            positions += [math.log(j) - z_seen[weight > 0], math.log(j) - log_total[is_drawn]]
            weights += [weight[weight > 0], -torch.ones_like(log_total[is_drawn])]
        self.positions, self.weights = torch.cat(positions), torch.cat(weights)

    def value(self, log_scale: float) -> float:
        return (self.weights * _softplus(self.positions - log_scale)).sum().item()

    def slope(self, log_scale: float) -> float:
        return -(self.weights * torch.sigmoid(self.positions - log_scale)).sum().item()


class _TemperedObjective:
    """Log-likelihood of the votes, with a normal prior of ln T, as a function of (ln T, ln s).

    Beside the terms of `_ScaleObjective` it has those of the means, which the temperature changes.
    """

    def __init__(self, z: Tensor, votes: Tensor, most: int, one_precision: bool) -> None:
        self.z, self.one_precision = z, one_precision
        totals = votes.sum(1)
        drawn = totals.clamp(max=most)
        self.item, self.label = votes.nonzero(as_tuple=True)
        c, n, m = votes[self.item, self.label], totals[self.item], drawn[self.item]
        self.times = c * m / n
        places, of_items, log_j, weights = [], [], [], []
        for j, weight in _probs_more_than(range(1, most), c, n, m):
            place, of_item = (weight > 0).nonzero().flatten(), (drawn > j).nonzero().flatten()
            places.append(place)
            of_items.append(of_item)
            log_j.append((math.log(j), len(place), len(of_item)))
            weights.append(weight[place])
        self.places, self.of_items, self.weights = (torch.cat(x) for x in (places, of_items, weights))
        repeated = (torch.cat([z.new_full((row[i],), row[0]) for row in log_j]) for i in (1, 2))
        self.log_j_of_classes, self.log_j_of_totals = repeated
        log_probs = z.log_softmax(1).clamp(min=_LEAST_LOG_PROB)
        self.of_independent_draws = (self.times * log_probs[self.item, self.label]).sum().item()

    def value(self, parameters: Tensor) -> Tensor:
        """Differentiable; without the prior."""
        log_temperature, log_scale = parameters
        log_alpha = tempered(self.z, log_temperature.exp(), self.one_precision)
        total, seen = log_alpha.logsumexp(1), log_alpha[self.item, self.label]
        means = (self.times * (seen - total[self.item])).sum()
        of_classes = _softplus(self.log_j_of_classes - seen[self.places] - log_scale)
        of_totals = _softplus(self.log_j_of_totals - total[self.of_items] - log_scale)
        return means + (self.weights * of_classes).sum() - of_totals.sum()

    def loss(self, parameters: Tensor) -> Tensor:
        """Of an item."""
        return (0.5 * parameters[0].square() - self.value(parameters)) / len(self.z)


class _PriorObjective:
    """Log-likelihood of the votes under Dir(e^t m) of all items, at the likeliest mean m for each t.

    Σ_k n_k ln m_k + Σ_j [Σ_k w_jk ln(1 + j/(e^t m_k)) − w_j ln(1 + j/e^t)], with w_jk the number of items
    that have more than j votes for k, in expectation over `most` of their votes, and n_k = Σ_j w_jk.
    """

    def __init__(self, votes: Tensor, most: int) -> None:
        totals = votes.sum(1)
        drawn = totals.clamp(max=most)
        item, label = votes.nonzero(as_tuple=True)  # most classes have no vote of an item
        seen = votes[item, label], totals[item], drawn[item]
        self.times = votes.new_zeros(most, votes.shape[1])
        self.times[0] += 0.5
        for j, weight in _probs_more_than(range(most), *seen):
            self.times[j].index_add_(0, label, weight)
        self.of_totals = torch.stack([(drawn > j).sum() for j in range(1, most)]).to(votes.dtype)
        self.log_j = torch.arange(1, most, dtype=votes.dtype, device=votes.device).log()
        self._log_mean = (self.times[0] / self.times[0].sum()).log()

    def log_mean(self, t: float) -> Tensor:
        """ln m that maximises Σ w_jk ln(e^t m_k + j), concave in m: a fixed point, which each step nears."""
        for _ in range(_MOST_STEPS):
            before, z = self._log_mean, t + self._log_mean
            seen = torch.sigmoid(z - self.log_j[:, None])  # α_k / (α_k + j)
            mean = self.times[0] + (self.times[1:] * seen).sum(0)
            self._log_mean = (mean / mean.sum()).log()
            if (self._log_mean - before).abs().max() < 1e-10:
                break
        return self._log_mean

    def value(self, log_scale: float) -> float:
        log_mean = self.log_mean(log_scale)
        of_classes = self.times[1:] * _softplus(self.log_j[:, None] - log_mean - log_scale)
        of_totals = self.of_totals * _softplus(self.log_j - log_scale)
        return ((self.times.sum(0) * log_mean).sum() + of_classes.sum() - of_totals.sum()).item()

    def slope(self, log_scale: float) -> float:
        log_mean = self.log_mean(log_scale)  # its own derivative adds nothing: it is the best
        of_classes = self.times[1:] * torch.sigmoid(self.log_j[:, None] - log_mean - log_scale)
        return -(of_classes.sum() - (self.of_totals * torch.sigmoid(self.log_j - log_scale)).sum()).item()


def _probs_more_than(levels: range, c: Tensor, n: Tensor, m: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Each level j with P(X > j), of X drawn by chance from c of n, m draws without replacement."""
    at_most, of_all = torch.zeros_like(c), _log_choose(n, m)
    for j in range(levels.stop):
        possible = (j <= c) & (j <= m) & (m - j <= n - c)
        one = _log_choose(c, j) + _log_choose(n - c, m - j) - of_all
        at_most = at_most + torch.where(possible, one.exp(), 0.0)
        if j in levels:
            yield j, torch.where(torch.minimum(c, m) > j, (1 - at_most).clamp(0.0, 1.0), 0.0)


def _log_choose(n: Tensor, k: Tensor | int) -> Tensor:
    k = torch.as_tensor(k, dtype=n.dtype, device=n.device)
    rest = n - k
    inside = torch.lgamma(n + 1) - torch.lgamma(k.clamp(min=0) + 1) - torch.lgamma(rest.clamp(min=0) + 1)
    return torch.where((k >= 0) & (rest >= 0), inside, -torch.inf)


def _maximise(objective: _ScaleObjective | _PriorObjective, low: float, high: float) -> float:
    """The best of a coarse grid, refined by bisecting the slope; an end where the slope points outwards."""
    grid = torch.linspace(low, high, 29).tolist()
    best = max(range(len(grid)), key=lambda i: objective.value(grid[i]))
    left, right = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    if objective.slope(left) <= 0 and best == 0:
        return low
    if objective.slope(right) >= 0 and best == len(grid) - 1:
        return high
    for _ in range(50):
        middle = 0.5 * (left + right)
        left, right = (middle, right) if objective.slope(middle) > 0 else (left, middle)
    return 0.5 * (left + right)


def _best_log_temperature(objective: _TemperedObjective) -> float:
    """ln T of the best of a coarse grid with the scale, refined together with it by LBFGS."""
    scales = torch.linspace(-LARGEST_LOG_SCALE, LARGEST_LOG_SCALE, 15).tolist()
    grid = [
        objective.z.new_tensor([t, u]) for t in torch.linspace(*_LOG_TEMPERATURES).tolist() for u in scales
    ]
    start = min(grid, key=lambda one: objective.loss(one).item())
    found = start.clone().requires_grad_()
    optimizer = torch.optim.LBFGS(
        [found], max_iter=60, tolerance_grad=1e-9, tolerance_change=1e-12, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        with torch.enable_grad():
            loss = objective.loss(found)
            (found.grad,) = torch.autograd.grad(loss, found)
        return loss.detach()

    optimizer.step(closure)
    improved = objective.loss(found.detach()) <= objective.loss(start)  # false if it is NaN
    return (found if improved else start)[0].item()


# The panel


def _with_votes(z: Tensor, votes: Tensor) -> Tensor:
    """ln(α + votes)."""
    return torch.where(votes > 0, torch.logaddexp(z, votes.log()), z)


def _majority(z: Tensor, votes: Tensor, panel: int) -> Tensor:
    """`prob_of_majority` of rows: levels that no other class can reach, and the recursion for the others."""
    left = panel - votes.sum(1)
    most = int(left.max())
    log_alpha = _with_votes(z, votes)
    rising, total = _log_rising(log_alpha, most), _log_rising(log_alpha.logsumexp(1), most)
    found = _wins_beyond(panel // 2, log_alpha, rising, total, votes, left)
    weights = _weights(log_alpha, rising, total, left)
    leading = votes.amax(1)
    for level in range(max(1, -(-panel // z.shape[1])), panel // 2 + 1):
        rows = ((leading <= level) & (leading + left >= level)).nonzero().flatten()
        if len(rows):
            found[rows] += _wins_at(level, weights[rows], votes[rows], left[rows], panel // level)
    found = found.clamp(min=0.0)
    return found / found.sum(1, keepdim=True)  # is one but for rounding


def _log_rising(log_a: Tensor, most: int) -> Tensor:
    """ln[a (a + 1) ... (a + r − 1) / r!] for r = 0 ... most, in a last dimension."""
    j = torch.arange(most, dtype=log_a.dtype, device=log_a.device)
    factors = torch.logaddexp(log_a[..., None], j.log()) - (j + 1).log()
    return F.pad(factors.cumsum(-1), (1, 0))


def _wins_beyond(
    level: int, log_alpha: Tensor, rising: Tensor, total: Tensor, votes: Tensor, left: Tensor
) -> Tensor:
    """P(class k has more votes than `level`, half of the panel): a tail of its beta-binomial distribution."""
    largest = log_alpha.amax(1, keepdim=True)
    shares = (log_alpha - largest).exp()
    others = _exclusive_cumsum(shares) + _exclusive_cumsum(shares.flip(1)).flip(1)
    item, label = (votes + left[:, None] > level).nonzero(as_tuple=True)  # no other class can have as many
    of_others = _log_rising(others[item, label].log() + largest[item, 0], rising.shape[-1] - 1)
    r = torch.arange(rising.shape[-1], device=votes.device)
    rest = (left[item, None] - r).long()
    possible = (rest >= 0) & (r > (level - votes[item, label])[:, None])
    log_total = total.gather(1, left.long()[:, None])[item]
    wins = rising[item, label] + of_others.gather(1, rest.clamp(min=0)) - log_total
    found = torch.zeros_like(log_alpha)
    found[item, label] = torch.where(possible, wins.exp(), 0.0).sum(-1)
    return found


def _exclusive_cumsum(x: Tensor) -> Tensor:
    return F.pad(x, (1, 0))[:, :-1].cumsum(1)


def _weights(log_alpha: Tensor, rising: Tensor, total: Tensor, left: Tensor) -> Tensor:
    """Weights of r = 0 ... votes for each class, shape (N, K, r), whose products over all classes sum to one.

    They are those of `_log_rising` times x^r, with x such that as many votes as are left are the likeliest
    sum, and times (1 − x)^α, which makes them negative binomial probabilities. Where α₀ ≤ 1 there is no such
    x; there it gives no votes and all votes the same weight. Either way no product of weights of some
    classes is much larger than one, so that the recursion loses no digits and stays within range.
    """
    log_total, n = log_alpha.logsumexp(1), left.clamp(min=1.0)
    at_left = total.gather(1, left.long()[:, None])[:, 0]
    is_peaked = log_total > 0
    log_x = n.log() - torch.logaddexp(log_total.clamp(min=0.0), (n - 1).log())
    log_x = torch.where(is_peaked, log_x, -at_left / n)
    log_decay = torch.where(log_x < -18, log_x, (-torch.log1p(-log_x.clamp(max=-1e-15).exp())).log())
    zero_votes = torch.where(is_peaked[:, None], -(log_alpha + log_decay[:, None]).exp(), 0.0)
    r = torch.arange(rising.shape[-1], dtype=log_alpha.dtype, device=log_alpha.device)
    scaled = rising + r * log_x[:, None, None] + zero_votes[..., None]
    log_sum = at_left + left * log_x + zero_votes.sum(1)
    scaled[:, 0] -= log_sum[:, None]
    return torch.where(r <= left[:, None, None], scaled, -math.inf).exp()


def _wins_at(level: int, weights: Tensor, votes: Tensor, left: Tensor, ties: int) -> Tensor:
    """Weight of all outcomes in which class k has `level` votes and no class more, shared among those tied.

    With the polynomial Π (A_l + y B_l) over the other classes, of weight A_l below the level and B_l at it,
    the share of class k is the integral over y from 0 to 1: y^t becomes 1/(t + 1). Gauss-Legendre nodes give
    it exactly. A state has the shape (N, votes given, nodes).
    """
    _, classes, sizes = weights.shape
    if classes > _CLASSES_IN_TURN and sizes <= _DIRECT_TERMS:
        return _wins_at_of_many(level, weights, votes, left, ties)
    return _wins_at_in_turn(level, weights, votes, left, _gauss_legendre(ties, votes))[0]


def _wins_at_of_many(level: int, weights: Tensor, votes: Tensor, left: Tensor, ties: int) -> Tensor:
    """`_wins_at` of many classes, of which most are unlikely to have a vote.

    Their product Q is taken in halves. The product of all classes but one is Q divided by the polynomial of
    that class, as a power series. Its terms after the first sum to half of the first at most, so that the
    division loses no digits. The other classes, and those with votes, follow one after the other.
    """
    y, node_weights = nodes = _gauss_legendre(ties, votes)
    some = torch.zeros_like(votes)
    for r in range(1, weights.shape[-1]):
        some += weights[..., r]
    is_likely = (votes > 0) | (2 * some > weights[..., 0])
    in_turn = int(is_likely.sum(1).max())
    if 2 * in_turn > weights.shape[1]:
        return _wins_at_in_turn(level, weights, votes, left, nodes)[0]
    order = is_likely.byte().argsort(dim=1, descending=True, stable=True)
    likely, others = order[:, :in_turn], order[:, in_turn:]
    sizes = weights.shape[-1]
    # of a class without votes: each number of votes, with y at the level; then of all these classes
    terms = [weights[..., r].gather(1, others)[..., None] for r in range(min(sizes, level + 1))]
    factors = [term * y if r == level else term.expand(*others.shape, len(y)) for r, term in enumerate(terms)]
    product = torch.stack(_product_of_classes(factors, sizes), 1)
    of_likely = weights.gather(1, likely[..., None].expand(-1, -1, sizes))
    found = torch.zeros_like(votes)
    wins, product = _wins_at_in_turn(level, of_likely, votes.gather(1, likely), left, nodes, product)
    found.scatter_(1, likely, wins)
    if level < sizes:
        rest = (left - level).long()
        quotients = list[Tensor]()
        without = torch.zeros_like(factors[0])
        for j in range(int(rest.max()) + 1):
            quotient = product[:, j, None]
            for r in range(1, min(j, len(factors) - 1) + 1):
                quotient = quotient - factors[r] * quotients[j - r]
            quotients.append(quotient / factors[0])
            without = torch.where((rest == j)[:, None, None], quotients[j], without)
        found.scatter_(1, others, terms[level][..., 0] * (without @ node_weights))
    return found


def _product_of_classes(factors: list[Tensor], sizes: int) -> list[Tensor]:
    """Coefficients (N, nodes) of the product of all classes, from those of each class (N, K, nodes)."""
    while (classes := factors[0].shape[1]) > 1:
        half = classes // 2
        one, other = ([x[:, part] for x in factors] for part in (slice(half), slice(half, 2 * half)))
        odd = [x[:, 2 * half :] for x in factors]
        product = []
        for j in range(min(sizes, len(one) + len(other) - 1)):
            pairs = [(i, j - i) for i in range(len(one)) if 0 <= j - i < len(other)]
            coefficient = sum(one[i] * other[k] for i, k in pairs)
            assert isinstance(coefficient, Tensor)
            remaining = odd[j] if j < len(odd) else torch.zeros_like(odd[0])
            product.append(torch.cat([coefficient, remaining], 1))
        factors = product
    zero = torch.zeros_like(factors[0][:, 0])
    return [factors[r][:, 0] if r < len(factors) else zero for r in range(sizes)]


def _wins_at_in_turn(
    level: int,
    weights: Tensor,
    votes: Tensor,
    left: Tensor,
    nodes: tuple[Tensor, Tensor],
    first: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`_wins_at`, one class after the other, and the product of all if that of further classes is `first`."""
    _, classes, sizes = weights.shape
    y, node_weights = nodes
    r = torch.arange(sizes, device=votes.device)
    more = level - votes  # votes that lift a class to the level
    reach = weights * (r == more[..., None])
    factors = (weights * (r < more[..., None]))[..., None] + reach[..., None] * y
    before = [_start(votes, sizes, len(y)) if first is None else first]
    for k in range(classes - (first is None)):  # without further classes, the product of all is not needed
        before.append(_multiply(before[-1], factors[:, k], level))
    after = _start(votes, sizes, len(y))
    found = torch.zeros_like(votes)
    for k in reversed(range(classes)):
        rest = (left - more[:, k])[:, None] - r  # votes for the classes after k
        picked = after.gather(1, rest.clamp(0, sizes - 1).long()[..., None].expand_as(after))
        others = (before[k] * picked * (rest >= 0)[..., None]).sum(1) @ node_weights
        found[:, k] = reach[:, k].sum(1) * others
        after = _multiply(after, factors[:, k], level)
    return found, before[-1]


def _gauss_legendre(ties: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes and weights on [0, 1], exact for the polynomial of the other tied classes, of degree ties − 1."""
    nodes, weights = np.polynomial.legendre.leggauss(max(1, -(-ties // 2)))
    return like.new_tensor((nodes + 1) / 2), like.new_tensor(weights / 2)


def _start(like: Tensor, sizes: int, nodes: int) -> Tensor:
    """Before the first class: no vote is given."""
    state = like.new_zeros(len(like), sizes, nodes)
    state[:, 0] = 1
    return state


def _multiply(state: Tensor, factor: Tensor, degree: int) -> Tensor:
    """The product of two polynomials in the votes given, of which no more than there are left."""
    sizes = state.shape[1]
    terms = min(sizes, degree + 1)
    if terms > _DIRECT_TERMS:
        length = 1 << (sizes + terms - 2).bit_length()
        spectrum = torch.fft.rfft(state, length, 1) * torch.fft.rfft(factor[:, :terms], length, 1)
        return torch.fft.irfft(spectrum, length, 1)[:, :sizes]
    product = state * factor[:, :1]
    for r in range(1, terms):
        product[:, r:] += state[:, : sizes - r] * factor[:, r, None]
    return product


def _entropy(probs: Tensor) -> Tensor:
    return torch.special.entr(probs).sum(-1)
