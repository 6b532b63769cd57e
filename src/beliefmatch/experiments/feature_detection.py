"""OOD detection by distances between features, which need no head: referees of the scores of heads."""

from collections.abc import Iterator

import torch
from torch import Tensor

from beliefmatch.adaptation.feature_rows import Features, ordered
from beliefmatch.adaptation.result import FeatureSets
from beliefmatch.adaptation.scoring import scorable
from beliefmatch.experiments.adapt_record import FeatureDetection
from beliefmatch.experiments.evaluate import number_with_interval
from beliefmatch.experiments.evaluate_config import EvaluateConfig
from beliefmatch.metrics import (
    auroc_interval,
    fpr_at_tpr_interval,
    knn_distance,
    mahalanobis_distance,
)
from beliefmatch.metrics.ood import vary_within_classes

__all__ = ["feature_detections"]

_EXAMPLES = 4000  # of each set whose distances are measured
_PRODUCTS = 8_192_000_000  # of distances to neighbours of one set: 4000 x 4000 examples of 512 features
_COVARIANCE = 2_500_000_000  # products of a covariance: 9500 rows of 512 features
_ROWS_PER_FEATURE = 2  # of a covariance, at least
_ROWS_PER_NEIGHBOUR = 100  # of the training: the 40th nearest of 4000


def feature_detections(
    sets: FeatureSets, scored: Features, settings: EvaluateConfig
) -> list[FeatureDetection]:
    """AUROC and FPR95 of every OOD set by Mahalanobis and by k-nearest-neighbour distance.

    Evenly spaced rows are taken of large sets, so that 50,000 rows of 512 features cost seconds. The
    covariance is shrunk as Ledoit and Wolf (2004) say. The k-nearest-neighbour
    distance is that to the k-th nearest training row, with k 1 % of the rows.
    """
    if not sets.ood:
        return []
    known = _rows(scored, scorable(scored), _EXAMPLES)[0]
    others = {name: _rows(one, torch.arange(len(one)), _EXAMPLES)[0] for name, one in sets.ood.items()}
    return [
        FeatureDetection(
            ood=name,
            score=score,
            auroc=number_with_interval(auroc_interval(*sides, level=settings.level), settings),
            fpr95=number_with_interval(
                fpr_at_tpr_interval(*sides, level=settings.level, seed=settings.seed), settings
            ),
            train_rows=train_rows,
            examples=len(sides[0]),
            ood_examples=len(sides[1]),
            neighbour=neighbour,
        )
        for score, distances, train_rows, neighbour in _distances(sets.train, [known, *others.values()])
        for name, sides in zip(others, ((distances[0], one) for one in distances[1:]), strict=True)
    ]


def _distances(
    train: Features, queries: list[Tensor]
) -> Iterator[tuple[str, tuple[Tensor, ...], int, int | None]]:
    """A score, its values for each of the queries, how many training rows it used, and which neighbour."""
    sizes, every, width = [len(one) for one in queries], torch.cat(queries), train.width
    labelled = scorable(train)
    rows, targets = _rows(train, labelled, max(_ROWS_PER_FEATURE * width, _COVARIANCE // width**2))
    classes = targets if targets.dim() == 1 else targets.argmax(1)
    if vary_within_classes(rows, classes):
        far = mahalanobis_distance(every, rows, classes, shrinkage="ledoit_wolf")
        yield "mahalanobis_distance", far.split(sizes), len(rows), None
    rows, _ = _rows(train, labelled, max(_ROWS_PER_NEIGHBOUR, _PRODUCTS // (max(sizes) * width)))
    rows = rows[rows.norm(dim=1) > 0]
    if len(rows) and bool((every.norm(dim=1) > 0).all()):  # a row of zeros has no direction
        neighbour = -(-len(rows) // _ROWS_PER_NEIGHBOUR)
        yield "knn_distance", knn_distance(every, rows, k=neighbour).split(sizes), len(rows), neighbour


def _rows(features: Features, indices: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """At most so many of these rows, evenly spaced, and their targets."""
    chosen = indices[:: max(1, -(-len(indices) // most))]
    rows, targets = zip(*ordered(features, chosen), strict=True)
    return torch.cat(rows), torch.cat(targets)
