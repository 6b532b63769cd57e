"""A short training with everything that could make two runs differ: normalisation, dropout, momentum."""

import hashlib

import torch
from torch import nn
from torch.nn import functional

from beliefmatch.data.sources import Batch
from beliefmatch.train.config import EngineConfig, TrainConfig
from beliefmatch.train.engine import Engine
from beliefmatch.train.loop import fit


class Examples:
    """Images in memory, augmented with noise if seeds are given."""

    shape = (3, 6, 6)

    def __init__(self, many, seed=0):
        self.images = torch.randn(many, *self.shape, generator=torch.Generator().manual_seed(seed))
        self.targets = self.images[:, :, 0, 0].argmax(1)
        self.seen = []

    def __len__(self):
        return len(self.images)

    def batches(self, indices, *, seeds=None, device="cpu"):
        for at, chosen in enumerate(indices):
            self.seen.append(chosen)
            images = self.images[chosen]
            if seeds is not None:
                noise = torch.Generator().manual_seed(seeds[at])
                images = images + 0.1 * torch.randn(images.shape, generator=noise)
            yield Batch(images.to(device), self.targets[chosen].to(device))


class Exactly(Examples):
    """Images that are not augmented."""

    def batches(self, indices, *, seeds=None, device="cpu"):
        return super().batches(indices, device=device)


def normalised_network(seed=0, width=16):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Flatten(),
            nn.Linear(width * 36, 3),
        )


def plain_network(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3))


def agreement(network, views, seed):
    """The squared distance between the logits of two views: an auxiliary loss with two passes."""
    first, second = (network(view.inputs) for view in views)
    return (first - second).square().sum(1).mean()


def cross_entropy_at(progress):
    return functional.cross_entropy


CONFIG = TrainConfig(epochs=3, batch_size=8, learning_rate=0.1, ema=0.9)


def engine(precision="32", **settings):
    return Engine(EngineConfig(accelerator="cpu", precision=precision, threads=1, **settings))


def train(network, *, on=None, config=CONFIG, source=None, seed=0, **options):
    options.setdefault("objective_at", cross_entropy_at)
    return fit(
        on or engine(), network, Examples(45) if source is None else source, config, seed=seed, **options
    )


def digest(network):
    """A digest of all weights and buffers."""
    together = hashlib.sha256()
    for name, tensor in network.state_dict().items():
        together.update(name.encode() + tensor.contiguous().numpy().tobytes())
    return together.hexdigest()
