"""Public names, learning rates, optimisers and clipping."""

import subprocess
import sys
from importlib import import_module

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


@pytest.mark.parametrize(
    ("options", "rates"),
    [
        (
            {},  # the paper's
            {
                0: 0.01,
                1: 0.02,
                2: 0.04,
                3: 0.06,
                4: 0.08,
                5: 0.1,
                99.9: 0.1,
                100: 0.01,
                149: 0.01,
                150: 0.001,
            },
        ),
        ({"schedule": "cosine", "warmup": ()}, {0: 0.1, 50: 0.0853553, 100: 0.05, 200: 0.0}),
        ({"schedule": "one_cycle"}, {0: 0.004, 30: 0.052, 60: 0.1, 130: 0.05, 200: 0.0}),
        ({"schedule": "constant"}, {0: 0.01, 5: 0.1, 200: 0.1}),
    ],
)
def test_rates_follow_the_schedule(options, rates):
    config = TrainConfig(**options)
    assert [config.rate(epoch) for epoch in rates] == pytest.approx([*rates.values()], rel=1e-5, abs=1e-12)


def with_gradients():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    network(10 * torch.randn(5, 3)).square().sum().backward()
    return network


@pytest.mark.parametrize("clip_each", [False, True])
@pytest.mark.parametrize("norm", [0.5, 1.0, 1e9])
def test_clipping_agrees_with_torch(norm, clip_each):
    ours, theirs = with_gradients(), with_gradients()
    groups = [[p] for p in theirs.parameters()] if clip_each else [[*theirs.parameters()]]
    norms = [nn.utils.clip_grad_norm_(group, norm) for group in groups]
    found = clip_gradients(TrainConfig(clip_norm=norm, clip_each=clip_each), ours)
    torch.testing.assert_close(found, torch.stack(norms).norm())
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
    ours[0].weight.grad[0, 0] = torch.nan
    assert clip_gradients(TrainConfig(), ours).isnan()


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
