"""Small classifiers whose last layer is found, or cannot be."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from beliefmatch.adaptation.modes import evaluating
from beliefmatch.adaptation.outputs import logits_of

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


class Named(NamedTuple):
    logits: Tensor
    aux_logits: Tensor


@dataclass
class Output:
    logits: Tensor
    hidden: Tensor | None = None


def finishing(finish, base=Net):
    """A network that does something to its logits before it returns them."""
    net = base()
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


class Tokens(nn.Module):
    """A head on every token of which one for each example is returned, another one for each."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(9, WIDTH)
        self.score = nn.Linear(WIDTH, K, bias=False)

    def forward(self, ids):
        logits = self.score(self.embed(ids))
        return Output(logits[torch.arange(len(ids)), (ids > 0).sum(1) - 1])


class Crops(Net):
    """One head, used twice, and the mean of both."""

    def forward(self, x):
        return (self.fc(self.features(x)) + self.fc(self.features(x.flip(-1)))) / 2


def squeezed(map_of_logits):
    return map_of_logits.mean((2, 3))


PLAIN = {
    "sequential": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(48, K), nn.ReLU(), nn.Linear(K, K)), "3"),
    "only a layer": (lambda: nn.Linear(4, K), ""),
    "residual": (Net, "fc"),
    "nested": (lambda: nn.Sequential(nn.Identity(), nn.Sequential(Net())), "1.0.fc"),
    "data parallel": (lambda: nn.DataParallel(Net()), "module.fc"),
    "tuple": (lambda: finishing(lambda logits: (logits, logits * 2)), "fc"),
    "named tuple": (lambda: finishing(lambda logits: Named(logits, logits * 2)), "fc"),
    "list with a loss": (lambda: finishing(lambda logits: [logits.sum(), logits]), "fc"),
    "mapping": (lambda: finishing(lambda logits: {"hidden": logits * 3, "logits": logits}), "fc"),
    "mapping with out": (lambda: finishing(lambda logits: {"out": logits, "aux": logits * 3}), "fc"),
    "object": (lambda: finishing(Output), "fc"),
    "reshaped": (lambda: finishing(lambda logits: logits[None].flatten().view(N, -1)), "fc"),
    "unit dimensions": (lambda: finishing(lambda logits: logits[:, :, None, None]), "fc"),
    "first of two": (lambda: TwoHeads("fc"), "fc"),
    "second of two": (lambda: TwoHeads("second"), "second"),
    "no bias": (lambda: OnMap(squeezed, bias=False), "head"),
    "convolution, mean": (lambda: OnMap(squeezed), "head"),
    "convolution, pooling": (lambda: OnMap(nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())), "head"),
    "pooling, convolution": (
        lambda: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(3, K, 1), nn.Flatten()),
        "1",
    ),
    "channels last": (lambda: nn.Sequential(Permuted(), nn.Linear(3, K), Averaged()), "1"),
    "twice": (Crops, "fc"),
}


class Permuted(nn.Module):
    def forward(self, x):
        return x.movedim(1, -1)


class Averaged(nn.Module):
    def forward(self, x):
        return x.mean((1, 2))


def made(name):
    """A network and its batch, the same at every call."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = PLAIN[name][0]().double()
    return model, IMAGES.double() if name != "only a layer" else IMAGES[:, 0, 0].double()


def returned(model, batch):
    with evaluating(model):
        return logits_of(model(batch))
