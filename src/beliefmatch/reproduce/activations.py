"""Activations before the last layer, on the plane through three classes' templates (Müller et al. 2019)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from pathlib import Path

import torch
from torch import Tensor, nn

from beliefmatch._errors import fail
from beliefmatch.data.config import DataConfig
from beliefmatch.data.sources import Source
from beliefmatch.experiments.build import dataset
from beliefmatch.experiments.predict import restore
from beliefmatch.methods.base import NetworkPredictor
from beliefmatch.train.engine import Inference

__all__ = [
    "PARTS",
    "Activations",
    "activations_of_run",
    "class_ids",
    "last_layer",
    "penultimate",
    "plane",
    "project",
]

PARTS = ("train", "test")
_BATCH = 512
_CLASSES = {"beaver": 4, "dolphin": 30, "otter": 55}
"""The paper's three classes and their ids in CIFAR-100."""


@dataclass(frozen=True, eq=False)
class Activations:
    """Examples of some classes before the last layer.

    Args:
        points: Coordinates on the plane, (N, 2).
        targets: Class ids (N,).
        extent: Range of the points along the longer axis.
        tightness: Root mean square distance to the mean of the own class, over the mean distance between the
            means; None where the means coincide.
    """

    points: Tensor
    targets: Tensor
    extent: float
    tightness: float | None


@lru_cache(maxsize=16)
def activations_of_run(directory: Path, data_config: DataConfig) -> dict[str, Activations]:
    """Activations of the paper's classes in a finished run, by the part of the data."""
    data, restored = dataset(data_config), restore(directory)
    assert isinstance(restored.predictor, NetworkPredictor)  # the only kind that the figure has
    network, classes = restored.predictor.network, class_ids(data.class_names)
    basis = plane(last_layer(network).weight.detach().cpu()[classes])
    return {
        part: project(*penultimate(network, getattr(data, part), classes, restored.engine), basis)
        for part in PARTS
    }


def class_ids(names: Sequence[str]) -> list[int]:
    """Ids of the paper's classes by name, else by their place in CIFAR-100, else the first three."""
    if set(_CLASSES) <= set(names):
        return [list(names).index(name) for name in _CLASSES]
    return list(_CLASSES.values()) if len(names) == 100 else [0, 1, 2]


def last_layer(network: nn.Module) -> nn.Linear:
    """The linear layer that makes the logits; its rows are the templates of the classes."""
    layers = [module for module in network.modules() if isinstance(module, nn.Linear)]
    if not layers:
        raise fail("reproduce", "`model` must end in a linear layer, got none.")
    return layers[-1]


def plane(templates: Tensor) -> Tensor:
    """An orthonormal basis (F, 2) of the plane through three templates (3, F).

    The first axis points from the first template to the second, and the third lies on the positive side.
    """
    sides = (templates[1:] - templates[0]).double().T
    basis, scale = torch.linalg.qr(sides)
    return basis * torch.where(scale.diagonal() < 0, -1.0, 1.0)


def penultimate(
    network: nn.Module, source: Source, classes: Sequence[int], engine: Inference
) -> tuple[Tensor, Tensor]:
    """Inputs of the last layer for the examples of some classes (N, F), and their class ids (N,)."""
    rows = torch.isin(source.targets, torch.tensor(classes)).nonzero()[:, 0]
    kept: list[Tensor] = []
    handle = last_layer(network).register_forward_hook(
        lambda _, inputs, __: kept.append(inputs[0].double().cpu())
    )
    try:
        with engine.running(), torch.no_grad(), engine.autocast():
            for batch in source.batches(rows.split(_BATCH), device=engine.device):
                network.eval()(batch.inputs)
    finally:
        handle.remove()
    return torch.cat(kept), source.targets[rows]


def project(features: Tensor, targets: Tensor, basis: Tensor) -> Activations:
    """Features on a plane; their tightness is that in the whole space."""
    points = features @ basis
    extent = (points.max(0).values - points.min(0).values).max().item()
    means = torch.stack([features[targets == one].mean(0) for one in targets.unique()])
    own = means[torch.searchsorted(targets.unique(), targets)]
    within = (features - own).square().sum(1).mean().sqrt()
    apart = torch.stack([(a - b).norm() for a, b in combinations(means, 2)]).mean()
    return Activations(points, targets, extent, (within / apart).item() if apart > 0 else None)
