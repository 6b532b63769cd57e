"""A tiny network and tiny data, for tests of features."""

import torch
from torch import nn

from beliefmatch.adaptation import sizes

ROWS, CLASSES, FEATURES, SHARD = 83, 3, 5, 16


class Counted(nn.Module):
    """Counts the rows that pass, without showing it in its state."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self._seen = [0]

    def forward(self, inputs):
        self._seen[0] += len(inputs)
        return self.inner(inputs)

    @property
    def seen(self):
        return self._seen[0]


def network(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = [nn.Conv2d(2, FEATURES, 3), nn.BatchNorm2d(FEATURES), nn.Tanh()]
        return Counted(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.5)))


def data(rows=ROWS, seed=1):
    rng = torch.Generator().manual_seed(seed)
    inputs = torch.randn(rows, 2, 4, 4, generator=rng)
    return inputs, torch.randint(0, CLASSES, (rows,), generator=rng)


def direct(model, inputs):
    """The features by a plain call, in double precision."""
    twin = network().double()
    twin.load_state_dict({name: value.double() for name, value in model.state_dict().items()})
    with torch.no_grad():
        return twin.eval()(inputs.double())


def use_small_shards():
    sizes._SHARD_ROWS = SHARD
