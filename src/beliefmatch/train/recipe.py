"""What a recipe does to a network: its optimiser, and its clipping of the gradient."""

from typing import Any

import torch
from torch import nn

from beliefmatch.train.many import norms, scale_all
from beliefmatch.train.settings import Recipe

__all__ = ["Recipe", "clip", "optimizer"]


def optimizer(recipe: Recipe, network: nn.Module) -> torch.optim.Optimizer:
    """The optimiser of a network's parameters; its rate is set before each step."""
    options: dict[str, Any] = {"lr": recipe.learning_rate, "weight_decay": recipe.weight_decay}
    if recipe.optimizer == "adam":
        return torch.optim.Adam(network.parameters(), **options)
    return torch.optim.SGD(network.parameters(), momentum=recipe.momentum, **options)


def clip(recipe: Recipe, network: nn.Module) -> torch.Tensor:
    """Clip the gradient by the recipe; the norm it had, infinite or NaN where one of its numbers is."""
    gradients = [p.grad for p in network.parameters() if p.grad is not None]
    each = norms(gradients) if gradients else torch.zeros(1)
    total = each.norm()
    if recipe.clip_norm is None:
        return total
    largest = each if recipe.clip_each else total.expand_as(each)
    factors = (recipe.clip_norm / (largest + 1e-6)).clamp(max=1.0)
    scale_all(gradients, factors)
    return total
