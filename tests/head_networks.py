"""Small classifiers whose last layer can be found."""

from collections import namedtuple
from types import SimpleNamespace

import torch
from torch import nn

from beliefmatch.adaptation.heads import call_model, evaluating, find_head, logits_of
from beliefmatch.adaptation.surgery import add_belief, with_head

N, WIDTH, K, NEW = 5, 6, 4, 3
IMAGES = torch.randn(N, 3, 4, 4, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """Convolution, batch norm, pooling, dropout, a hidden linear layer as wide as the logits, and a head."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, WIDTH, 3)
        self.norm = nn.BatchNorm2d(WIDTH)
        self.hidden = nn.Linear(WIDTH, K)
        self.back = nn.Linear(K, WIDTH)
        self.dropout = nn.Dropout(0.5)
        self.fc = nn.Linear(WIDTH, K)
        self.num_classes = K

    def features(self, x):
        return self.dropout(self.back(self.hidden(self.norm(self.conv(x)).relu().mean((2, 3))).relu()))

    def finish(self, logits):
        return logits

    def forward(self, x):
        return self.finish(self.fc(self.features(x)))


Named = namedtuple("Named", ["logits", "aux_logits"])


def finishing(finish):
    """A network that does something to its logits before it returns them."""
    net = Net()
    net.finish = finish
    return net


class OnMap(nn.Module):
    """A 1x1 convolution on a map, and what comes after it."""

    def __init__(self, after, bias=True):
        super().__init__()
        self.body = nn.Conv2d(3, WIDTH, 3)
        self.head = nn.Conv2d(WIDTH, K, 1, bias=bias)
        self.after = after

    def forward(self, x):
        return self.after(self.head(self.body(x).tanh()))


class TwoHeads(Net):
    def __init__(self, choice):
        super().__init__()
        self.second = nn.Linear(WIDTH, K)
        self.choice = choice

    def forward(self, x):
        features = self.features(x)
        both = {"fc": self.fc(features), "second": self.second(features)}
        return both[self.choice]


class Crops(Net):
    """One head, used twice, and the mean of both."""

    def forward(self, x):
        return (self.fc(self.features(x)) + self.fc(self.features(x.flip(-1)))) / 2


class Reading(Net):
    """A network that reads attributes of its head, and knows it by two names."""

    def __init__(self):
        super().__init__()
        self.also = self.fc

    def forward(self, x):
        assert isinstance(self.also, nn.Linear)
        return self.also(input=self.features(x).to(self.fc.weight.dtype))


class Pool(nn.Module):
    def __init__(self, *dims):
        super().__init__()
        self.dims = dims

    def forward(self, x):
        return x.mean(self.dims)


class ChannelsLast(nn.Module):
    def forward(self, x):
        return x.movedim(1, -1)


POOL = Pool(2, 3)
CLASSIFIERS = {
    "sequential": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(48, K), nn.ReLU(), nn.Linear(K, K)), "3"),
    "only a layer": (lambda: nn.Linear(4, K), ""),
    "residual": (Net, "fc"),
    "nested": (lambda: nn.Sequential(nn.Identity(), nn.Sequential(Net())), "1.0.fc"),
    "attributes read": (Reading, "fc"),
    "tuple": (lambda: finishing(lambda logits: (logits, logits * 2)), "fc"),
    "named tuple": (lambda: finishing(lambda logits: Named(logits, logits * 2)), "fc"),
    "list with a loss": (lambda: finishing(lambda logits: [logits.sum(), logits]), "fc"),
    "mapping": (lambda: finishing(lambda logits: {"hidden": logits * 3, "logits": logits}), "fc"),
    "mapping with out": (lambda: finishing(lambda logits: {"out": logits, "aux": logits * 3}), "fc"),
    "object": (lambda: finishing(lambda logits: SimpleNamespace(logits=logits)), "fc"),
    "reshaped": (lambda: finishing(lambda logits: logits[None].flatten().view(N, -1)), "fc"),
    "unit dimensions": (lambda: finishing(lambda logits: logits[:, :, None, None]), "fc"),
    "first of two": (lambda: TwoHeads("fc"), "fc"),
    "second of two": (lambda: TwoHeads("second"), "second"),
    "pooling, convolution": (
        lambda: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(3, K, 1), nn.Flatten()),
        "1",
    ),
    "convolution, mean": (lambda: OnMap(POOL), "head"),
    "convolution, one position": (lambda: OnMap(lambda logits: logits[:, :, 0, 1]), "head"),
    "no bias": (lambda: OnMap(POOL, bias=False), "head"),
    "channels last": (lambda: nn.Sequential(ChannelsLast(), nn.Linear(3, K), Pool(1, 2)), "1"),
    "used twice": (Crops, "fc"),
    "wired to its classes": (lambda: OnMap(lambda logits: POOL(logits.view(N, K, 2, 2))), "head"),
}
POOLED = {
    "convolution, mean": "network",
    "convolution, one position": "network",
    "no bias": "network",
    "channels last": "network",
    "used twice": "network",
    "wired to its classes": "mean",
}
"""The pooling of heads that are not given one vector for each example."""


def classifier(name):
    """A classifier of the table and a batch for it, the same at every call."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = CLASSIFIERS[name][0]().double()
    return model, IMAGES.double() if name != "only a layer" else IMAGES[:, 0, 0].double()


def logits(model, batch):
    with evaluating(model):
        return logits_of(call_model(model, batch))


def with_new_head(model, classes=NEW, weight=None, bias=None):
    head = find_head(model, IMAGES)
    weight = torch.zeros(classes, WIDTH) if weight is None else weight
    return add_belief(with_head(model, head, weight, bias))
