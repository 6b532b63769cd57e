"""Metrics of probabilities and targets, each with an independent implementation and its streaming class."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss, top_k_accuracy_score

from beliefmatch import metrics

__all__ = ["CLASSES", "METRICS", "N_BINS", "K", "MetricCase"]

K, N_BINS, CLASSES = 2, 6, 5  # of the top-k error; of bins; of the predictions that streams are given


class MetricCase(NamedTuple):
    """One metric."""

    metric: Callable[..., Any]
    """Of probabilities and targets: a number, or a tuple of numbers."""
    oracle: Callable[[np.ndarray, np.ndarray], Any]
    """The same by scikit-learn, or by a plain loop."""
    stream: Callable[[], Any] | None = None
    """Makes the streaming class."""


def hits(probs: np.ndarray, targets: np.ndarray) -> np.ndarray:
    return (probs.argmax(1) == targets).astype(float)


def by_width(confidence: np.ndarray) -> Iterator[np.ndarray]:
    """Positions of the members of each bin (i/M, (i+1)/M] that is not empty."""
    for i in range(N_BINS):
        inside = (confidence > i / N_BINS) & (confidence <= (i + 1) / N_BINS) | ((i == 0) & (confidence == 0))
        if inside.any():
            yield np.flatnonzero(inside)


def by_mass(confidence: np.ndarray) -> Iterator[np.ndarray]:
    """Positions of the members of each bin of equal size that is not empty; no ties."""
    order = confidence.argsort()
    for start, end in pairwise(i * len(order) // N_BINS for i in range(N_BINS + 1)):
        if end > start:
            yield order[start:end]


def gaps(binning: Callable, confidence: np.ndarray, correct: np.ndarray) -> np.ndarray:
    """Share of the examples, confidence − accuracy, and what chance adds to its square, of each bin."""
    rows = []
    for members in binning(confidence):
        accuracy, size = correct[members].mean(), len(members)
        chance = accuracy * (1 - accuracy) / max(size - 1, 1)
        rows.append((size / len(correct), confidence[members].mean() - accuracy, chance))
    return np.array(rows).T


def mean_gap(binning: Callable, confidence: np.ndarray, correct: np.ndarray) -> float:
    weight, gap, _ = gaps(binning, confidence, correct)
    return (weight * abs(gap)).sum()


def debiased(probs: np.ndarray, targets: np.ndarray) -> float:
    weight, gap, chance = gaps(by_mass, probs.max(1), hits(probs, targets))
    return max(0.0, (weight * (gap**2 - chance)).sum()) ** 0.5


def over_and_under(probs: np.ndarray, targets: np.ndarray) -> tuple[float, ...]:
    weight, gap, _ = gaps(by_width, probs.max(1), hits(probs, targets))
    over, under = (weight * gap.clip(0)).sum(), (weight * (-gap).clip(0)).sum()
    return (probs.max(1) - hits(probs, targets)).mean(), over, under


def classwise(probs: np.ndarray, targets: np.ndarray) -> float:
    return np.mean([mean_gap(by_width, p, (targets == k).astype(float)) for k, p in enumerate(probs.T)])


def brier_parts(probs: np.ndarray, targets: np.ndarray) -> tuple[float, ...]:
    """Murphy's parts class by class and bin by bin, the remainder by its own formula."""
    reliability = resolution = uncertainty = remainder = 0.0
    for k, p in enumerate(probs.T):
        y = (targets == k).astype(float)
        uncertainty += y.mean() * (1 - y.mean())
        for members in by_width(p):
            pi, yi, share = p[members], y[members], len(members) / len(p)
            reliability += share * (pi.mean() - yi.mean()) ** 2
            resolution += share * (yi.mean() - y.mean()) ** 2
            remainder += share * (pi.var() - 2 * ((pi - pi.mean()) * (yi - yi.mean())).mean())
    return reliability, resolution, uncertainty, remainder


def area_under_risk(probs: np.ndarray, targets: np.ndarray) -> float:
    wrong = 1 - hits(probs, targets)[(-probs.max(1)).argsort()]
    return np.mean([wrong[:k].mean() for k in range(1, len(wrong) + 1)])


def all_classes(probs: np.ndarray) -> np.ndarray:
    return np.arange(probs.shape[1])


METRICS = {
    "error": MetricCase(
        metrics.error, lambda p, y: 1 - accuracy_score(y, p.argmax(1)), lambda: metrics.Error()
    ),
    "top_k_error": MetricCase(
        partial(metrics.top_k_error, k=K),
        lambda p, y: 1 - top_k_accuracy_score(y, p, k=K, labels=all_classes(p)),
        lambda: metrics.TopKError(k=K),
    ),
    "nll": MetricCase(metrics.nll, lambda p, y: log_loss(y, p, labels=all_classes(p)), lambda: metrics.NLL()),
    "brier": MetricCase(
        metrics.brier,
        lambda p, y: brier_score_loss(y, p, labels=all_classes(p)),
        lambda: metrics.Brier(),
    ),
    "brier_parts": MetricCase(partial(metrics.brier_parts, n_bins=N_BINS), brier_parts),
    "ece": MetricCase(
        partial(metrics.expected_calibration_error, n_bins=N_BINS),
        lambda p, y: mean_gap(by_width, p.max(1), hits(p, y)),
        lambda: metrics.ExpectedCalibrationError(n_bins=N_BINS),
    ),
    "mce": MetricCase(
        partial(metrics.maximum_calibration_error, n_bins=N_BINS),
        lambda p, y: abs(gaps(by_width, p.max(1), hits(p, y))[1]).max(),
        lambda: metrics.MaximumCalibrationError(n_bins=N_BINS),
    ),
    "adaptive_ece": MetricCase(
        partial(metrics.adaptive_calibration_error, n_bins=N_BINS),
        lambda p, y: mean_gap(by_mass, p.max(1), hits(p, y)),
    ),
    "debiased_ece": MetricCase(partial(metrics.debiased_calibration_error, n_bins=N_BINS), debiased),
    "overconfidence": MetricCase(partial(metrics.overconfidence, n_bins=N_BINS), over_and_under),
    "classwise_ece": MetricCase(
        partial(metrics.classwise_calibration_error, n_bins=N_BINS),
        classwise,
        lambda: metrics.ClasswiseCalibrationError(CLASSES, n_bins=N_BINS),
    ),
    "aurc": MetricCase(
        lambda p, y: metrics.aurc(p.amax(1), p.argmax(1) == y), area_under_risk, lambda: metrics.AURC()
    ),
}
