"""Small adaptations from features alone, with their records and evaluations."""

import warnings
from dataclasses import replace
from functools import cache

import numpy as np
import torch

from beliefmatch.adaptation.adapt_config import AdaptConfig
from beliefmatch.adaptation.feature_rows import Features
from beliefmatch.adaptation.refit import refit
from beliefmatch.adaptation.result import BatchNormResult, FeatureSets
from beliefmatch.experiments.adapted_evaluation import score_adaptation
from beliefmatch.experiments.evaluate_config import EvaluateConfig

CLASSES, WIDTH = 3, 6
NAMES = ["cat", "dog", "<b>bird</b>"]
QUICK = EvaluateConfig(resamples=50)
CENTRES = torch.randn(CLASSES, WIDTH, generator=torch.Generator().manual_seed(7))


def rows(many, seed, *, ood=False, votes=False):
    """Clouds around three points, or around none of them."""
    rng = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, CLASSES, (many,), generator=rng)
    noise = torch.randn(many, WIDTH, generator=rng)
    points = (noise if ood else CENTRES[ids] + noise).numpy().astype(np.float32)
    targets = torch.full((many,), -1) if ood else ids
    if votes:
        likely = 0.2 + 5 * torch.nn.functional.one_hot(ids, CLASSES)
        targets = torch.poisson(likely, generator=rng)
    return Features(points, targets, f"{many}-{seed}")


def sets(*, test=True, ood=True, votes=False):
    return FeatureSets(
        rows(150, 0, votes=votes),
        rows(120, 1, votes=votes),
        rows(140, 2, votes=votes) if test else None,
        {"noise": rows(60, 3, ood=True), "|pipes| & more": rows(40, 4, ood=True)} if ood else {},
    )


def init():
    """A head that points at the centres, too loudly."""
    return 4 * CENTRES, -2 * CENTRES.square().sum(1)


@cache
def adaptation(kind="repair"):
    """One of "repair", "new", "votes" and "batchnorm" with trained layers.

    For "new" there are two seeds of the paper's protocol and no test rows.
    """
    controls = ("softmax", "label_smoothing", "evidential")
    config = {"kl_weights": (0.1, 0.01), "controls": controls, "risks": (0.3,)}
    if kind == "repair":
        return refit(sets(), classes=CLASSES, init=init(), adapt_config=AdaptConfig(labels="same", **config))
    if kind == "batchnorm":
        return _with_batchnorm(adaptation("repair"))
    if kind == "new":
        paper = {"protocol": "paper", "seeds": (3, 8), "epochs": 30, "batch_size": 32, "learning_rate": 0.1}
        return refit(
            sets(test=False), classes=CLASSES, adapt_config=AdaptConfig(labels="new", **config, **paper)
        )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "adapt: .* belong to no class")
        return refit(sets(votes=True), classes=CLASSES, adapt_config=AdaptConfig(labels="new", **config))


def with_background(choose):
    """A repair with rows of no class and heads fitted to resampled rows."""
    given = replace(sets(), background=rows(80, 9, ood=True))
    config = AdaptConfig(labels="same", kl_weights=(0.1, 0.01), heads=3, choose=choose)
    return refit(given, classes=CLASSES, init=init(), adapt_config=config)


def _with_batchnorm(made):
    """With a head and features of its own, as if BatchNorm layers had been trained."""
    head = replace(made.chosen, weight=made.chosen.weight + 0.5, iterations=2)
    given, scores = made.sets, made.chosen.validation
    features = _seen_anew(given.validation), _seen_anew(given.test)
    ood = {name: _seen_anew(one) for name, one in given.ood.items()}
    return replace(
        made, batchnorm=BatchNormResult(("one", "two"), scores, scores, 2, (), head, *features, ood)
    )


def _seen_anew(features):
    """The same examples through other layers."""
    return replace(features, rows=np.tanh(features.rows))


@cache
def _scored(kind):
    return score_adaptation(
        adaptation(kind),
        model_name="a <network>",
        class_names=NAMES,
        data_facts={"train": "clouds", "mean": (0.5, float("nan"))},
        command=["beliefmatch", "adapt", "--features", "my clouds.npz"],
        wall_seconds=12.5,
        settings=QUICK,
    )


def record(kind="repair"):
    return _scored(kind).record


def evaluations(kind="repair"):
    return _scored(kind).evaluations
