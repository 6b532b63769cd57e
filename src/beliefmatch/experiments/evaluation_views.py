"""Views of predictions for the report: densities, confusions, single examples."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from beliefmatch.experiments.evaluate_config import EvaluateConfig
from beliefmatch.experiments.evaluation_record import Bins, ClassScores, Confusion, Curve, Example, Number
from beliefmatch.experiments.thumbnails import thumbnail
from beliefmatch.metrics import ClassBins, Interval, Outcomes, ReliabilityBins

__all__ = ["class_scores", "confusion", "entropy_density", "examples", "numbers", "reliability", "thinned"]

MATRIX_CLASSES = 50
"""Up to so many classes, the confusions are a matrix."""
PAIRS = 50
"""Most frequent mistakes that are listed."""
POINTS = 500
"""Of a curve, at most."""
DENSITY_POINTS = 129
DENSITY_WIDTH = 0.02
"""Standard deviation of the kernel, as a share of ln K."""

_CELLS = 16 * (DENSITY_POINTS - 1)  # entropies are counted this finely before they are smoothed


def entropy_density(entropy: Tensor, classes: int) -> Curve:
    """Density of the predictive entropy on an even grid over [0, ln K].

    A Gaussian kernel of fixed width, so that models and sets compare; its parts outside are folded back at
    both ends, so that the area stays one.
    """
    top = math.log(classes)
    place = (entropy / top * _CELLS).long().clamp(0, _CELLS - 1)
    mass = torch.bincount(place, minlength=_CELLS).double() / len(entropy)
    middles = (torch.arange(_CELLS, dtype=torch.float64) + 0.5) / _CELLS
    grid = torch.linspace(0, 1, DENSITY_POINTS, dtype=torch.float64)
    kernel = torch.zeros(DENSITY_POINTS, _CELLS, dtype=torch.float64)
    for images in (middles, -middles, 2 - middles):
        kernel += torch.exp(-0.5 * ((grid[:, None] - images) / DENSITY_WIDTH).square())
    density = kernel @ mass / (DENSITY_WIDTH * math.sqrt(2 * math.pi) * top)
    return Curve((grid * top).tolist(), density.tolist())


def numbers(intervals: Mapping[str, Interval], settings: EvaluateConfig) -> dict[str, Number]:
    """Values with the ends of their intervals, or without, if none were requested or they are infinite."""
    return {key: _number(found, settings.resamples > 0) for key, found in intervals.items()}


def _number(found: Interval, has_ends: bool) -> Number:
    if not math.isfinite(found.value):
        return Number(None, why=f"not finite: {found.value}")
    if not has_ends or not all(map(math.isfinite, found)):
        return Number(found.value)
    return Number(found.value, found.low, found.high)


def thinned(x: Tensor, y: Tensor) -> Curve:
    """At most `POINTS` points, evenly along x, with both ends."""
    if len(x) > POINTS:
        kept = torch.linspace(0, len(x) - 1, POINTS, dtype=torch.float64).round().long()
        x, y = x[kept], y[kept]
    return Curve(x.tolist(), y.tolist())


def reliability(bins: ReliabilityBins) -> Bins:
    """The bins as plain numbers."""
    return Bins(
        lower=bins.lower.tolist(),
        upper=bins.upper.tolist(),
        count=bins.count.long().tolist(),
        confidence=_or_none(bins.confidence),
        accuracy=_or_none(bins.accuracy),
    )


def _or_none(values: Tensor) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values.tolist()]


def confusion(seen: Outcomes, classes: int) -> Confusion:
    """How often each class was taken for each other."""
    codes, counts = (seen.targets * classes + seen.predicted).unique(return_counts=True)
    pairs = torch.stack([codes // classes, codes % classes], 1)
    matrix = None
    if classes <= MATRIX_CLASSES:
        counted = torch.zeros(classes, classes, dtype=torch.int64)
        counted[pairs[:, 0], pairs[:, 1]] = counts
        matrix = counted.tolist()
    wrong = pairs[:, 0] != pairs[:, 1]
    pairs, counts = pairs[wrong], counts[wrong]
    order = counts.argsort(descending=True, stable=True)[:PAIRS]  # of equal counts the first classes
    listed = torch.cat([pairs[order], counts[order, None]], 1).tolist()
    return Confusion(matrix, listed)


def class_scores(seen: Outcomes, bins: ClassBins) -> list[ClassScores]:
    """Each class by itself."""
    classes = len(bins.count)
    came_true = torch.bincount(seen.targets, minlength=classes).tolist()
    predicted = torch.bincount(seen.predicted, minlength=classes).tolist()
    missed = torch.bincount(seen.targets[~seen.correct], minlength=classes).tolist()
    probability, errors = bins.mean_probability.tolist(), bins.errors.tolist()
    return [
        ClassScores(
            index=index,
            examples=came_true[index],
            predicted=predicted[index],
            error=missed[index] / came_true[index] if came_true[index] else None,
            mean_probability=probability[index],
            calibration_error=errors[index],
        )
        for index in range(classes)
    ]


def examples(
    seen: Outcomes, images: Tensor | None, score: Tensor, among: Tensor, count: int
) -> list[Example]:
    """Those of the rows `among` with the highest score; of equal scores the first."""
    chosen = among[score[among].argsort(descending=True, stable=True)[:count]]
    return [
        Example(
            index=row,
            target=int(seen.targets[row]),
            predicted=int(seen.predicted[row]),
            confidence=seen.confidence[row].item(),
            target_probability=math.exp(-seen.nll[row].item()),
            entropy=seen.entropy[row].item(),
            image=None if images is None else thumbnail(images[row]),
        )
        for row in chosen.tolist()
    ]
