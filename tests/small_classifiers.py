"""Classifiers small enough for brute force, with inputs and generators for them."""

import torch
from torch import nn

DOUBLE = torch.float64


def drawn(*shape, seed=0, dtype=DOUBLE):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE).to(dtype)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def built(make, seed=0, dtype=DOUBLE):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make().to(dtype)


def curved(inputs=6, classes=4, seed=0, dtype=DOUBLE):
    """Smooth, so that it has second derivatives everywhere."""
    return built(
        lambda: nn.Sequential(nn.Linear(inputs, 9), nn.Tanh(), nn.Linear(9, classes)), seed=seed, dtype=dtype
    )


def normalising(inputs=6, classes=4, seed=0, dtype=DOUBLE, dropout=0.0):
    def make():
        first, last = nn.Linear(inputs, 9), nn.Linear(9, classes)
        return nn.Sequential(first, nn.BatchNorm1d(9), nn.Tanh(), nn.Dropout(dropout), last)

    return built(make, seed=seed, dtype=dtype)


class Constant(nn.Module):
    """The same logits for all inputs, connected to them in the graph or not."""

    def __init__(self, connected):
        super().__init__()
        self.weight, self.connected = nn.Parameter(drawn(4)), connected

    def forward(self, x):
        logits = self.weight.expand(len(x), 4)
        return logits + 0 * x.flatten(1).sum(1, keepdim=True) if self.connected else logits
