"""A model's predictions and records that tests of evaluations share."""

from functools import cache
from pathlib import Path

import numpy as np
import torch
from scipy.special import softmax

from beliefmatch.data.predictions import Predictions
from beliefmatch.experiments.evaluate import evaluate
from beliefmatch.experiments.evaluate_config import EvaluateConfig
from beliefmatch.experiments.evaluation_record import EvaluationRecord

N, K, OOD = 400, 7, 250


QUICK = EvaluateConfig(resamples=50, risks=(0.3, 0.5), shown=5)


def arrays(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits, targets and OOD logits."""
    rng = np.random.default_rng(seed)
    targets = rng.integers(0, K, N)
    logits = rng.normal(size=(N, K)) * 2
    logits[np.arange(N), targets] += 3
    return logits, targets, rng.normal(size=(OOD, K))


LOGITS, TARGETS, OTHERS = arrays()


PROBS, OTHER_PROBS = softmax(LOGITS, 1), softmax(OTHERS, 1)


RIGHT = PROBS.argmax(1) == TARGETS


def predictions(values: np.ndarray, kind: str = "logits", targets=None, images=None) -> Predictions:
    return Predictions(
        path=Path("some/model.npz"),
        kind="logits" if kind == "logits" else "probs",
        values=torch.from_numpy(values),
        targets=None if targets is None else torch.from_numpy(targets),
        images=images,
        recognised={kind: kind},
    )


def gaps_of(confidence: np.ndarray, hits: np.ndarray, n_bins: int) -> list[tuple[int, float, float]]:
    """Count, mean confidence and share of hits of each group of equal width, one group at a time."""
    found = []
    for group in range(n_bins):
        in_distribution = (confidence > group / n_bins) & (confidence <= (group + 1) / n_bins)
        found += (
            [(in_distribution.sum(), confidence[in_distribution].mean(), hits[in_distribution].mean())]
            if in_distribution.any()
            else []
        )
    return found


@cache
def judged(kind: str) -> EvaluationRecord:
    """The record of the model, from its "logits" with images or from its "probs"."""
    if kind == "probs":
        given = predictions(PROBS, "probs", TARGETS)
        return evaluate(given, ood={"noise": predictions(OTHER_PROBS, "probs")}, settings=QUICK)
    images = torch.arange(N * 20, dtype=torch.uint8).reshape(N, 4, 5)
    given = predictions(LOGITS, targets=TARGETS, images=images)
    return evaluate(given, ood={"noise": predictions(OTHERS)}, settings=QUICK)
