"""Views of predictions for the report: densities, curves, confusions, classes, single examples."""

import base64
import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from beliefmatch._png import png_bytes
from beliefmatch.experiments.evaluation_record import (
    Bins,
    ClassScores,
    Confusion,
    Curve,
    Example,
    PredictionSets,
)
from beliefmatch.metrics import ClassBins, Outcomes, ReliabilityBins
from beliefmatch.metrics.conformal import (
    ConformalMethod,
    class_coverage,
    conformal_sets,
    conformal_threshold,
    mean_set_size,
    set_coverage,
)

__all__ = [
    "class_scores",
    "confusion",
    "entropy_density",
    "examples",
    "prediction_sets",
    "reliability",
    "thinned",
    "thumbnail",
]

MATRIX_CLASSES = 50
"""Largest number of classes for which the confusions are a matrix."""
PAIRS = 50
"""Number of the most frequent mistakes that are listed."""
POINTS = 500
"""Largest number of points of a curve."""
LONGEST_SIDE = 96
"""Pixels of a thumbnail; larger images are averaged down to it."""

_SET_NUMBERS = 2_000_000  # probabilities that prediction sets are made of
_LEAST_OF_CLASS = 10  # examples, for the coverage of a class
_DENSITY_POINTS = 129
_DENSITY_WIDTH = 0.02  # standard deviation of the kernel, as a share of ln K
_DENSITY_CELLS = 16 * (_DENSITY_POINTS - 1)  # entropies are counted this finely before they are smoothed
_CHANNELS = (1, 3, 4)  # grey, RGB, RGB with opacity


def entropy_density(entropy: Tensor, classes: int) -> Curve:
    """Density of the predictive entropy on an even grid over [0, ln K].

    A Gaussian kernel of fixed width, so that models and sets compare; its tails are folded back at both ends,
    so that the area stays one.
    """
    top = math.log(classes)
    cell = (entropy / top * _DENSITY_CELLS).long().clamp(0, _DENSITY_CELLS - 1)
    mass = torch.bincount(cell, minlength=_DENSITY_CELLS).double() / len(entropy)
    middles = (torch.arange(_DENSITY_CELLS, dtype=torch.float64) + 0.5) / _DENSITY_CELLS
    grid = torch.linspace(0, 1, _DENSITY_POINTS, dtype=torch.float64)
    kernel = torch.zeros(_DENSITY_POINTS, _DENSITY_CELLS, dtype=torch.float64)
    for mirrored in (middles, -middles, 2 - middles):
        kernel += torch.exp(-0.5 * ((grid[:, None] - mirrored) / _DENSITY_WIDTH).square())
    density = kernel @ mass / (_DENSITY_WIDTH * math.sqrt(2 * math.pi) * top)
    return Curve((grid * top).tolist(), density.tolist())


def prediction_sets(
    targets: Tensor,
    *,
    logits: Tensor | None = None,
    probs: Tensor | None = None,
    coverages: Sequence[float],
    seed: int,
) -> Iterator[PredictionSets]:
    """Conformal sets by every method, for each coverage that the number of examples allows.

    Of more than `_SET_NUMBERS` probabilities, evenly spaced rows are taken.
    """
    values = logits if probs is None else probs
    assert values is not None
    step = -(-values.numel() // _SET_NUMBERS)
    values, targets = values[::step].double(), targets[::step]
    probs = values.softmax(1) if probs is None else values
    chance = torch.Generator().manual_seed(seed)
    halves = torch.randperm(len(probs), generator=chance).tensor_split(2)
    u = torch.rand(len(probs), generator=chance, dtype=torch.float64)
    methods: tuple[ConformalMethod, ...] = ("lac", "aps", "raps")
    for wanted in coverages:
        if math.ceil((len(halves[1]) + 1) * wanted) > len(halves[1]):
            continue
        for method in methods:
            sets = torch.zeros(probs.shape, dtype=torch.bool)
            for fitted, scored in (halves, halves[::-1]):
                threshold = conformal_threshold(
                    probs[fitted], targets[fitted], alpha=1 - wanted, method=method, u=u[fitted]
                )
                sets[scored] = conformal_sets(probs[scored], threshold, method=method, u=u[scored])
            yield _prediction_sets(method, wanted, sets, targets)


def _prediction_sets(method: str, wanted: float, sets: Tensor, targets: Tensor) -> PredictionSets:
    often = torch.bincount(targets, minlength=sets.shape[1]) >= _LEAST_OF_CLASS
    shares = torch.where(often, class_coverage(sets, targets), torch.inf)
    worst = int(shares.argmin()) if bool(often.any()) else None
    return PredictionSets(
        method,
        wanted,
        set_coverage(sets, targets),
        mean_set_size(sets),
        worst,
        None if worst is None else shares[worst].item(),
    )


def thinned(x: Tensor, y: Tensor) -> Curve:
    """At most `POINTS` points, evenly along x, with both ends."""
    if len(x) > POINTS:
        kept = torch.linspace(0, len(x) - 1, POINTS, dtype=torch.float64).round().long()
        x, y = x[kept], y[kept]
    return Curve(x.tolist(), y.tolist())


def reliability(bins: ReliabilityBins) -> Bins:
    """The bins as plain numbers."""
    confidence, accuracy = (
        [None if math.isnan(mean) else mean for mean in means.tolist()]
        for means in (bins.confidence, bins.accuracy)
    )
    count = bins.count.long().tolist()
    return Bins(bins.lower.tolist(), bins.upper.tolist(), count, confidence, accuracy)


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
    """Scores of each class by itself."""
    rows = (seen.targets, seen.predicted, seen.targets[~seen.correct])
    counts = (torch.bincount(row, minlength=len(bins.count)).tolist() for row in rows)
    columns = zip(*counts, bins.mean_probability.tolist(), bins.errors.tolist(), strict=True)
    return [
        ClassScores(index, examples, predicted, missed / examples if examples else None, probability, error)
        for index, (examples, predicted, missed, probability, error) in enumerate(columns)
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


def thumbnail(image: Tensor) -> str:
    """One image (H, W), (H, W, C) or (C, H, W) as a PNG in base64.

    Bytes are shown as they are and other values in [0, 1] as shares of white. Values outside, as of
    normalised images, are stretched from the least to the largest of the image. Where both ends of the
    shape could be channels, the first are.
    """
    if image.ndim == 2:
        image = image[None]
    elif image.shape[0] not in _CHANNELS:
        image = image.permute(2, 0, 1)
    pixels = _unit(image)
    height, width = pixels.shape[1:]
    scale = LONGEST_SIDE / max(height, width)
    if scale < 1:
        size = (max(1, round(height * scale)), max(1, round(width * scale)))
        pixels = torch.nn.functional.interpolate(pixels[None], size, mode="area")[0]
    return base64.b64encode(png_bytes((255 * pixels).round().byte().permute(1, 2, 0).numpy())).decode("ascii")


def _unit(image: Tensor) -> Tensor:
    """Values in [0, 1] as float32."""
    if image.dtype == torch.uint8:
        return image.float() / 255
    pixels = image.double()
    finite = pixels[pixels.isfinite()]
    low, high = (finite.min().item(), finite.max().item()) if len(finite) else (0.0, 1.0)
    if low < 0 or high > 1:
        pixels = (pixels - low) / (high - low or 1.0)
    return pixels.nan_to_num(0.0, 1.0, 0.0).clamp(0, 1).float()
