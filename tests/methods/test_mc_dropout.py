"""MC dropout in front of the last layer runs the earlier layers once, with the same result."""

import pytest
import torch
from torch import nn

from beliefmatch.methods import mc_dropout
from beliefmatch.methods.mc_dropout import DropoutPredictor, Suffix, suffix_after
from beliefmatch.models import build_model, build_seeded

SAMPLES = 20
EXAMINED = 2 + 3
"""Examples of the two batches that show the layout of a network."""


class Two(nn.Module):
    """A body that counts its rows, dropout, and a head."""

    def __init__(self):
        super().__init__()
        self.body, self.dropout, self.head = nn.Linear(4, 6), nn.Dropout(0.4), nn.Linear(6, 3)
        self.rows = 0
        self.body.register_forward_hook(self._count)

    def _count(self, _module, _args, output):
        self.rows += len(output)

    def forward(self, x):
        return self.head(self.dropout(self.body(x).relu()))


class ByName(Two):
    def forward(self, x):
        return self.head(input=self.dropout(input=self.body(x).relu()))


class ScaledAfterwards(Two):
    def forward(self, x):
        return 2 * super().forward(x)


class Residual(Two):
    def forward(self, x):
        return super().forward(x) + x[:, :3]


class Wrapped(Two):
    """The dropout and the head in a module of their own, as many of timm's networks have it."""

    def __init__(self):
        super().__init__()
        self.tail = nn.Sequential(nn.Dropout(0.4), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
        del self.dropout, self.head

    def forward(self, x):
        return self.tail(self.body(x).relu())


class TwiceThrough(Two):
    def forward(self, x):
        return self.head(self.dropout(self.dropout(self.body(x).relu())))


class Hooked(Two):
    """A hook that changes the input of the head, and would change it twice."""

    def __init__(self):
        super().__init__()
        self.head.register_forward_pre_hook(lambda _, args: (args[0] + 1,))


def general(network, x, **options):
    """Probabilities by full passes of the network."""
    predictor = DropoutPredictor(network, samples=SAMPLES, **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mc_dropout, "suffix_after", lambda network, dropout, x: Suffix(network, x))
        return predictor.predict(x).probs


def quick(network, x, **options):
    return DropoutPredictor(network, samples=SAMPLES, **options).predict(x).probs


@pytest.mark.parametrize("make", [Two, Wrapped, ByName, ScaledAfterwards, Residual, TwiceThrough, Hooked])
@pytest.mark.parametrize("at_once", [1, 30, 4096])
def test_full_passes_and_passes_of_the_suffix_agree(make, at_once):
    network, x = build_seeded(make, 1), torch.rand(5, 4, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(quick(network, x, at_once=at_once), general(network, x, at_once=at_once))


@pytest.mark.parametrize(
    ("make", "passes"), [(Two, 1), (Wrapped, 1), (ByName, SAMPLES + 1), (Residual, SAMPLES + 1)]
)
def test_the_layers_before_dropout_run_once_where_that_is_certain(make, passes):
    network, x = build_seeded(make, 1), torch.rand(5, 4)
    quick(network, x)
    assert network.rows == EXAMINED + passes * len(x)


@pytest.mark.parametrize(
    ("name", "in_blocks", "passes"),
    [("digits", False, 1), ("preact_resnet18", False, 1), ("wrn28_2", False, 1), ("digits", True, SAMPLES)],
)
def test_our_networks_run_once_unless_all_layers_have_dropout(name, in_blocks, passes):
    options = {"num_classes": 3, "channels": 1, "width": 2, "dropout": 0.5, "dropout_in_blocks": in_blocks}
    network = build_seeded(lambda: build_model(name, **options), 0)
    x, rows = torch.rand(4, 1, 8, 8), []
    first = next(module for module in network.modules() if isinstance(module, nn.Conv2d))
    first.register_forward_hook(lambda module, args, output: rows.append(len(output)))
    received = quick(network, x)
    assert sum(rows) == EXAMINED + passes * 4
    torch.testing.assert_close(received, general(network, x))


def test_hooks_are_removed():
    network = build_seeded(Two, 1).eval()
    hooks = {name: len(module._forward_hooks) for name, module in network.named_modules()}
    with torch.no_grad():
        suffix = suffix_after(network, network.dropout, torch.rand(5, 4))
    assert suffix.module is network.head and suffix.starts_with_dropout and suffix.inputs.shape == (5, 6)
    with pytest.raises(RuntimeError):
        quick(network, torch.rand(5, 99))
    assert {name: len(module._forward_hooks) for name, module in network.named_modules()} == hooks


def test_large_inputs_have_fewer_masks_in_a_pass(monkeypatch):
    monkeypatch.setattr(mc_dropout, "NUMBERS_AT_ONCE", 6 * 10)
    network, x, rows = build_seeded(Two, 1), torch.rand(5, 4), []
    network.head.register_forward_hook(lambda module, args, output: rows.append(len(output)))
    quick(network, x)
    assert max(rows) == 10
    assert sum(rows) == EXAMINED + 5 * (SAMPLES + 2)  # observed, verified, then two masks at a time


def test_no_examples_give_no_predictions():
    assert quick(build_seeded(Two, 1), torch.rand(0, 4)).shape == (0, 3)
