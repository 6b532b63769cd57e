"""Public names, learning rates, optimisers and clipping."""

import subprocess
import sys
from importlib import import_module
from itertools import pairwise

import pytest
import torch
from torch import nn

from beliefmatch.train.config import TrainConfig
from beliefmatch.train.loop import clip_gradients, make_optimizer


@pytest.mark.parametrize(("package", "config"), [("train", "TrainConfig"), ("semi", "SemiConfig")])
def test_public_names_are_loaded_on_first_use_and_configurations_without_torch(package, config):
    module = import_module(f"beliefmatch.{package}")
    assert dir(module) == sorted(module.__all__)
    for name in module.__all__:
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        module.nonsense  # noqa: B018
    code = f"import sys; from beliefmatch.{package} import {config}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr


def test_rates_follow_the_paper():
    rates = [TrainConfig().rate(epoch) for epoch in (0, 1, 2, 3, 4, 5, 99.9, 100, 149, 150, 199)]
    assert rates == pytest.approx([0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001])


def test_the_cosine_ends_at_zero_and_is_half_way_at_half():
    config = TrainConfig(schedule="cosine", warmup=())
    assert config.rate(0) == 0.1
    assert config.rate(100) == pytest.approx(0.05)
    assert config.rate(200) == pytest.approx(0, abs=1e-12)


def test_one_cycle_rises_and_falls_to_zero():
    config = TrainConfig(schedule="one_cycle", epochs=100)
    rates = [config.rate(epoch) for epoch in range(101)]
    assert rates[0] == pytest.approx(0.004) and rates[30] == pytest.approx(0.1)
    assert rates[100] == pytest.approx(0, abs=1e-12)
    assert all(a < b for a, b in pairwise(rates[:31]))
    assert all(a > b for a, b in pairwise(rates[30:]))


def with_gradients():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    network(10 * torch.randn(5, 3)).square().sum().backward()
    return network


@pytest.mark.parametrize("norm", [0.5, 1.0, 1e9])
def test_clipping_all_together_is_torchs(norm):
    ours, torchs = with_gradients(), with_gradients()
    expected = nn.utils.clip_grad_norm_(torchs.parameters(), norm)
    torch.testing.assert_close(clip_gradients(TrainConfig(clip_norm=norm), ours), expected)
    for one, other in zip(ours.parameters(), torchs.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_clipping_each_is_torchs_for_every_tensor_alone():
    ours, torchs = with_gradients(), with_gradients()
    clip_gradients(TrainConfig(clip_each=True), ours)
    for one, other in zip(ours.parameters(), torchs.parameters(), strict=True):
        nn.utils.clip_grad_norm_([other], 1.0)
        torch.testing.assert_close(one.grad, other.grad)


def test_a_gradient_that_is_not_finite_is_told_by_its_norm():
    network = with_gradients()
    network[0].weight.grad[0, 0] = float("nan")
    assert clip_gradients(TrainConfig(), network).isnan()


def test_weight_decay_and_momentum_reach_the_optimiser():
    network = nn.Linear(2, 2)
    sgd = make_optimizer(TrainConfig(momentum=0.8, weight_decay=0.3), network)
    assert isinstance(sgd, torch.optim.SGD)
    assert (sgd.defaults["momentum"], sgd.defaults["weight_decay"]) == (0.8, 0.3)
    assert isinstance(make_optimizer(TrainConfig(optimizer="adam"), network), torch.optim.Adam)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epochs", 0), ("optimizer", "lion"), ("schedule", "linear"), ("learning_rate", float("nan")),
        ("clip_norm", -1.0), ("validate_every", 0), ("decay_at", (0.75, 0.5)), ("decay_at", (0.5, 0.5)),
        ("decay_at", (100.0, 150.0)), ("ema", 1.0),
    ],
)  # fmt: skip
def test_impossible_settings_are_refused(name, value):
    with pytest.raises(ValueError, match=rf"TrainConfig: `{name}(\.\d)?` must be "):
        TrainConfig(**{name: value})
