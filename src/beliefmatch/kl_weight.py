"""λ chosen by cross-validated linear heads, in place of a grid of trainings.

λ sets the confidence that the optimum gives to a label: (1 + 1/λ) / (K + 1/λ) with prior 1. How much of it
the data bear depends on how far the classes can be told apart, and that shows in linear heads on the
features of a network, which take seconds to fit.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from numbers import Number
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from beliefmatch._labels import target_confidence_of
from beliefmatch._torch_state import fitting, ordinary
from beliefmatch._utils import short_repr
from beliefmatch._validate import describe, fail, require_finite_number, require_values
from beliefmatch.adaptation.adapt_config import AdaptConfig
from beliefmatch.adaptation.feature_rows import Features, require_labels
from beliefmatch.adaptation.fitted import FittedHead
from beliefmatch.adaptation.search import MAX_RISE, HeadSearch, strongest_prior

__all__ = ["KLWeightScore", "choose_kl_weight", "kl_weight_path"]

_NAME = "choose_kl_weight"
_MIN_ROWS = 10
_UNINFORMATIVE = 0.98  # of the NLL of the base rates: above, the features say nothing to a linear head


class KLWeightScore(NamedTuple):
    """A value of λ and how it does."""

    kl_weight: float
    target_confidence: float
    """Probability that the optimum gives to the label of one vote: (β + 1/λ) / (Kβ + 1/λ)."""
    nll: float
    """Mean negative log-likelihood of held-out rows."""


def choose_kl_weight(
    features: Any,
    targets: Any,
    *,
    kl_weights: Sequence[float] | None = None,
    prior: float = 1.0,
    max_rise: float = MAX_RISE,
) -> float:
    """Choose λ for your own training loop, without training the network once for each value.

    Linear belief matching heads are fitted to the features for a path of λ, with five-fold cross-validation.
    The result is the largest λ whose NLL is at most `max_rise` above the lowest: of values that predict
    equally well, the least confident one.

    Args:
        features: Rows (N, F), a tensor or array: inputs of the last layer or logits of a first network, on
            rows that it was not trained on. On its training rows the classes look easier than they are, and
            λ would be too small. Use the inputs of the network only if a linear model of them is nearly as
            good as the network; a warning is issued if it is no better than the base rates.
        targets: Class ids (N,), integers from 0 without a gap, or counts (N, K), floating point. Counts state
            the number of classes, so that a class may be without votes.
        kl_weights: Values of λ to choose from. By default a path that starts where λ hardly matters and ends
            where the NLL rises.
        prior: β of the prior.
        max_rise: Largest relative rise of the NLL above the lowest.

    Example:
        >>> import torch
        >>> from beliefmatch import choose_kl_weight
        >>> targets = torch.arange(300) % 3
        >>> features = torch.nn.functional.one_hot(targets, 3) + 0.5 * torch.randn(
        ...     300, 3, generator=torch.Generator().manual_seed(0)
        ... )
        >>> choose_kl_weight(features, targets)
        0.0032
    """
    with fitting():
        fitted = _fit(features, targets, kl_weights, prior, max_rise)
        lowest = min(map(fitted.nll, fitted.heads))
        base_rate_nll = _base_rate_nll(_as_tensor("targets", targets))
    if lowest > _UNINFORMATIVE * base_rate_nll:
        message = (
            f"{_NAME}: a linear head on `features` predicts no better than the base rates of the classes"
        )
        remedy = "λ says nothing about a network; give the hidden layer or the logits of a first one"
        warnings.warn(f"{message}, NLL {lowest:.4g}; {remedy}.", stacklevel=2)
    return strongest_prior(fitted.heads, fitted.nll, max_rise).candidate.kl_weight


def _base_rate_nll(targets: Tensor) -> float:
    """Entropy of the class shares: the NLL of a prediction that ignores the features."""
    votes = targets.double().sum(0) if targets.dim() == 2 else torch.bincount(targets.long()).double()
    shares = votes / votes.sum()
    return -torch.special.xlogy(shares, shares).sum().item()


def kl_weight_path(
    features: Any,
    targets: Any,
    *,
    kl_weights: Sequence[float] | None = None,
    prior: float = 1.0,
    max_rise: float = MAX_RISE,
) -> list[KLWeightScore]:
    """The values of λ that `choose_kl_weight` compares, ascending, with their NLL; same arguments.

    Where several weight decays were tried with a λ, its NLL is the lowest of theirs.
    """
    lowest: dict[float, float] = {}
    with fitting():
        fitted = _fit(features, targets, kl_weights, prior, max_rise)
        for head in fitted.heads:
            kl_weight = head.candidate.kl_weight
            lowest[kl_weight] = min(fitted.nll(head), lowest.get(kl_weight, math.inf))
    return [
        KLWeightScore(one, target_confidence_of(one, fitted.prior, fitted.classes), lowest[one])
        for one in sorted(lowest)
    ]


class _Fitted(NamedTuple):
    """Belief matching heads along λ."""

    heads: list[FittedHead]
    nll: Callable[[FittedHead], float]
    """NLL of the rows held out from a head."""
    prior: float
    classes: int


def _fit(
    features: Any, targets: Any, kl_weights: Sequence[float] | None, prior: float, max_rise: float
) -> _Fitted:
    """Check the arguments and fit heads along λ."""
    if require_finite_number(_NAME, "max_rise", max_rise) < 0:
        raise fail(_NAME, f"`max_rise` must not be negative, got {max_rise!r}.")
    beta = require_finite_number(_NAME, "prior", prior)
    if beta <= 0:
        raise fail(_NAME, f"`prior` must be positive, got {prior!r}.")
    if kl_weights is not None:
        if isinstance(kl_weights, str) or not isinstance(kl_weights, Iterable) or np.ndim(kl_weights) == 0:
            raise fail(
                _NAME, f"`kl_weights` must be a list of numbers, got {describe(kl_weights)}.", TypeError
            )
        given = [require_finite_number(_NAME, "kl_weights", one) for one in kl_weights]
        if not given or min(given) <= 0:
            raise fail(_NAME, f"`kl_weights` must be positive values of λ, got {list(kl_weights)!r}.")
        kl_weights = given
    rows = _features(features, targets)
    classes = (_classes_of_ids if rows.targets.dim() == 1 else _classes_of_counts)(rows.targets)
    require_labels(_NAME, "features", rows, classes, rows.width)
    search = HeadSearch(rows, None, classes, config=AdaptConfig(kl_weights=kl_weights), max_rise=max_rise)
    search.belief_matching(search.softmax(), beta)
    heads = [one for one in search.heads if one.candidate.kind == "belief_matching"]
    return _Fitted(heads, search.nll, beta, classes)


def _classes_of_ids(ids: Tensor) -> int:
    """Number of classes, each of which must have an example: λ depends on how many there are."""
    found = ids.unique()
    least, classes = int(found[0]), int(found[-1]) + 1
    if least < 0:
        raise fail(_NAME, f"`targets` must be class ids from 0, got {least}.")
    if len(found) < classes:
        absent = int((found != torch.arange(len(found))).nonzero()[0])
        fact = f"`targets` must have examples of all classes from 0 to {classes - 1}, got none of {absent}"
        remedy = "number the classes from 0 without a gap, or give counts (N, K)"
        raise fail(_NAME, f"{fact}; {remedy}.")
    if classes < 2:
        raise fail(_NAME, f"`targets` must have at least 2 classes, got {classes}.")
    return classes


def _classes_of_counts(counts: Tensor) -> int:
    """Number of classes. Counts state it, so that a class may be without votes."""
    require_values(_NAME, "targets", counts, counts.isfinite() & (counts >= 0), "finite counts, at least 0")
    if (voted := int(counts.any(0).sum())) < 2:
        raise fail(_NAME, f"`targets` must have votes for at least 2 classes, got votes for {voted}.")
    return counts.shape[1]


def _features(features: Any, targets: Any) -> Features:
    rows, labels = _as_tensor("features", features), _as_tensor("targets", targets)
    if rows.dim() != 2 or not rows.numel() or rows.is_complex() or rows.dtype == torch.bool:
        raise fail(_NAME, f"`features` must be numbers of shape (N, F), got {describe(rows)}.")
    is_ids = labels.dim() == 1 and not labels.is_floating_point() and labels.dtype != torch.bool
    is_counts = labels.dim() == 2 and labels.is_floating_point()
    if not (is_ids or is_counts) or len(labels) != len(rows):
        expected = f"class ids ({len(rows)},) as integers or counts ({len(rows)}, K) as floating point"
        raise fail(_NAME, f"`targets` must be {expected}, got {describe(labels)}.")
    if len(rows) < _MIN_ROWS:
        raise fail(_NAME, f"`features` must have at least {_MIN_ROWS} rows, got {len(rows)}.")
    rows = rows if rows.is_floating_point() else rows.float()
    values = rows.float().numpy() if rows.dtype == torch.bfloat16 else rows.numpy()
    return Features(values, labels.long() if is_ids else labels.float(), digest="")


def _as_tensor(name: str, value: Any) -> Tensor:
    if isinstance(value, Tensor):
        if value.layout != torch.strided or value.is_meta:
            received = f"a {value.layout}".replace("torch.", "") if not value.is_meta else "a meta"
            raise fail(_NAME, f"`{name}` must be dense and hold values, got {received} tensor.", TypeError)
        return ordinary(value.detach().cpu())
    if isinstance(value, np.ma.MaskedArray):
        raise fail(_NAME, f"`{name}` must be an array without a mask, got a masked one.", TypeError)
    try:
        array = np.array(value, order="C")  # a copy: frames give read-only arrays
    except (TypeError, ValueError) as error:
        raise fail(
            _NAME, f"`{name}` must be a tensor or an array, got {describe(value)}.", TypeError
        ) from error
    try:
        return torch.from_numpy(array)
    except TypeError as error:  # text and other objects
        others = (one for one in array.flat if not isinstance(one, Number))
        received = f"{type(value).__name__} with {short_repr(next(others, value))}"
        raise fail(_NAME, f"`{name}` must be numbers, got {received}.", TypeError) from error
