"""Features of a few classes, a head that knows them, and a quick configuration for refits."""

import warnings
from functools import cache

import numpy as np
import torch

from beliefmatch.adaptation.adapt_config import AdaptConfig
from beliefmatch.adaptation.feature_rows import Features
from beliefmatch.adaptation.fitted import FittedHead
from beliefmatch.adaptation.refit import refit
from beliefmatch.adaptation.result import FeatureSets
from beliefmatch.adaptation.search import HeadSearch

CLASSES, WIDTH = 4, 7


def features(many: int = 90, seed: int = 0, *, classes: int = CLASSES, width: int = WIDTH) -> Features:
    """Rows that a linear head can tell apart, not without error."""
    weight = np.random.default_rng(99).normal(size=(classes, width))
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(many, width)).astype(np.float32)
    noisy = rows @ weight.T + 1.5 * rng.normal(size=(many, classes))
    return Features(rows, torch.from_numpy(noisy.argmax(1)), f"{seed}")


def votes(many: int = 90, seed: int = 0) -> Features:
    """The same with some votes for other classes, in a few rows none at all."""
    one = features(many, seed)
    counts = np.random.default_rng(seed + 1).poisson(0.4, size=(many, CLASSES)).astype(np.float32)
    counts[np.arange(many), one.targets.numpy()] += 3
    counts[::17] = 0
    return Features(one.rows, torch.from_numpy(counts), "votes")


def assert_same(one: FittedHead, other: FittedHead) -> None:
    """Equal to rounding."""
    torch.testing.assert_close(one.weight, other.weight, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(one.bias, other.bias, rtol=1e-3, atol=1e-4)


SETS = FeatureSets(features(200), features(150, 5), features(60, 6), {"noise": features(30, 7)})
FEW = AdaptConfig(kl_weights=(0.03, 0.003), weight_decays=(0.01,), risks=(0.4,))


def quiet(*args, **options):
    """The same whatever it warns of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return refit(*args, **options)


@cache
def knowing_head() -> tuple[torch.Tensor, torch.Tensor]:
    """Weight and bias of a head that knows the classes."""
    data = features(300, 11)
    head = HeadSearch(data, data, CLASSES, config=AdaptConfig(weight_decays=(1e-3,))).softmax()
    return head.weight, head.bias
