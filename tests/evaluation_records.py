"""Evaluations of models that never were: their predictions are drawn at random, the same on any machine."""

from functools import cache
from pathlib import Path

import numpy as np
import torch
from msgspec.structs import replace

from beliefmatch.data.predictions import Predictions
from beliefmatch.experiments.evaluate import evaluate
from beliefmatch.experiments.evaluate_config import EvaluateConfig

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=document.title="owned">',
    "$x^2$ %{x} <b>bold</b> &lt;i&gt;",
    "=cmd()",
    "🦊 fox | `tick`",
    "שלום עולם",
    "__proto__",
    "[red]a\nb[/red] \x1b[31m\u2028</style>",
)
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
CIRCUMSTANCES = {
    "versions": {"python": "3.11.2", "beliefmatch": "0.1.0", "torch": "2.13.0"},
    "hardware": {"processor": "a processor", "logical_cores": 8},
    "created": "2026-01-02T03:04:05+00:00",
    "wall_seconds": 1.25,
}


def predictions(values, targets, *, kind="logits", images=None, file="runs/model.npz"):
    tensors = (torch.from_numpy(np.asarray(array)) for array in (values, targets))
    return Predictions(Path(file), kind, *tensors, images, {kind: kind, "targets": "y"})


def evaluated(
    values, targets, *, kind="logits", images=None, name="m", class_names=None, ood=None, **settings
):
    """The record of these predictions, made at a fixed time on a fixed machine."""
    record = evaluate(
        predictions(values, targets, kind=kind, images=images),
        name=name,
        class_names=class_names,
        ood=ood,
        settings=EvaluateConfig(**{"resamples": 50, "risks": (0.001, 0.05, 0.1), **settings}),
    )
    return replace(record, **CIRCUMSTANCES)


def drawn(index, classes, examples, *, signal, seed):
    """Logits and targets: the same examples for every model, with noise of its own."""
    shared, own = np.random.default_rng(seed), np.random.default_rng([seed, index])
    targets = shared.integers(0, classes, examples)
    logits = shared.normal(size=(examples, classes)) + signal * np.eye(classes)[targets]
    return 3.0 / (1 + 0.6 * index) * (logits + 0.3 * own.normal(size=logits.shape)), targets


@cache
def model(
    name="softmax", *, index=0, classes=DIGITS, ood=("svhn", "noise"), examples=300, images=False, **settings
):
    """The record of a model that is less sure, and better calibrated, the higher its index."""
    pixels = torch.from_numpy(np.random.default_rng(1).random((examples, 8, 8))) if images else None
    sets = {
        title: predictions(*drawn(index, len(classes), 150, signal=0.4 + 0.5 * i, seed=8 + i), file=title)
        for i, title in enumerate(ood)
    }
    return evaluated(
        *drawn(index, len(classes), examples, signal=2.6, seed=7),
        images=pixels, name=name, class_names=classes, ood=sets, **settings,
    )  # fmt: skip


@cache
def three():
    """A usual comparison."""
    names = ("softmax", "label smoothing", "belief matching")
    return tuple(model(name, index=index, images=True) for index, name in enumerate(names))


@cache
def pair():
    """Two models, three classes and one OOD set: a page and tables short enough to be read."""
    options = {"classes": ("cat", "dog", "bird"), "ood": ("svhn",), "examples": 120, "n_bins": 4, "shown": 2}
    names = ("softmax", "belief matching")
    return tuple(model(name, index=2 * index, **options) for index, name in enumerate(names))


@cache
def hostile():
    """Names of models, classes and OOD sets that would like to be more than names."""
    classes = (*HOSTILE, "plain", "x" * 200)
    options = {"classes": classes, "ood": HOSTILE[1:3], "examples": 150, "images": True}
    return tuple(model(name, index=index, **options) for index, name in enumerate(HOSTILE))


def single_example():
    """One model, one example, rightly classified."""
    return model("alone", classes=("no", "yes"), ood=(), examples=1)
