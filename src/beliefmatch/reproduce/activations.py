"""Activations before the last layer, on the plane through three classes' templates (Müller et al. 2019)."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor, nn

from beliefmatch.data.sources import Source
from beliefmatch.train.engine import Engine

__all__ = ["Seen", "last_layer", "penultimate", "plane", "seen"]

_BATCH = 512


@dataclass(frozen=True, eq=False)
class Seen:
    """Examples of some classes before the last layer.

    Args:
        points: on the plane, (N, 2).
        targets: class ids (N,).
        extent: of the points along the longer axis, from the lowest to the highest.
        tightness: root mean square distance to the own class's mean, over the mean distance between means;
            None where the means are all the same.
    """

    points: Tensor
    targets: Tensor
    extent: float
    tightness: float | None


def last_layer(network: nn.Module) -> nn.Linear:
    """The linear layer that makes the logits; its rows are the templates of the classes."""
    layers = [module for module in network.modules() if isinstance(module, nn.Linear)]
    if not layers:
        raise ValueError("reproduce: `model` must end in a linear layer, got none.")
    return layers[-1]


def plane(templates: Tensor) -> Tensor:
    """An orthonormal basis (F, 2) of the plane through three templates (3, F).

    The first axis points from the first template to the second, and the third lies on the positive side.
    """
    sides = (templates[1:] - templates[0]).double().T
    basis, scale = torch.linalg.qr(sides)
    return basis * torch.where(scale.diagonal() < 0, -1.0, 1.0)


def penultimate(
    network: nn.Module, source: Source, classes: Sequence[int], engine: Engine
) -> tuple[Tensor, Tensor]:
    """What the last layer is given for the examples of some classes: (N, F), and their ids (N,)."""
    rows = torch.isin(source.targets, torch.tensor(classes)).nonzero()[:, 0]
    kept: list[Tensor] = []
    handle = last_layer(network).register_forward_hook(
        lambda _, given, __: kept.append(given[0].double().cpu())
    )
    try:
        with engine.running(), torch.no_grad(), engine.autocast():
            for batch in source.batches(rows.split(_BATCH), device=engine.device):
                network.eval()(batch.inputs)
    finally:
        handle.remove()
    return torch.cat(kept), source.targets[rows]


def seen(features: Tensor, targets: Tensor, basis: Tensor) -> Seen:
    """Features on a plane, and how tight they lie in the whole of their space."""
    points = features @ basis
    extent = (points.max(0).values - points.min(0).values).max().item()
    means = torch.stack([features[targets == one].mean(0) for one in targets.unique()])
    own = means[torch.searchsorted(targets.unique(), targets)]
    within = (features - own).square().sum(1).mean().sqrt()
    apart = torch.stack([(a - b).norm() for a, b in combinations(means, 2)]).mean()
    return Seen(points, targets, extent, (within / apart).item() if apart > 0 else None)
