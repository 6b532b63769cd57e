"""The training loop: rates, clipping, seeds, and that it learns."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from beliefmatch.train.loop import Schedule, fit

INPUTS = torch.randn(50, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
TARGETS = INPUTS[:, :3].argmax(1)


def linear() -> nn.Linear:
    network = nn.Linear(4, 3, dtype=torch.float64)
    nn.init.zeros_(network.weight)
    nn.init.zeros_(network.bias)
    return network


def test_rates_follow_the_paper():
    schedule = Schedule(epochs=200, learning_rate=0.1)
    rates = [schedule.rate(epoch) for epoch in (0, 1, 2, 3, 4, 5, 99, 100, 149, 150, 199)]
    expected = [0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001]
    assert rates == pytest.approx(expected)


def test_training_learns_a_separable_problem():
    network = linear()
    schedule = Schedule(epochs=60, batch_size=7, learning_rate=0.1)
    losses = fit(network, functional.cross_entropy, INPUTS, TARGETS, schedule=schedule, seed=0)
    assert losses[0] == pytest.approx(math.log(3), rel=0.05)
    assert losses[-1] < 0.2 * losses[0]
    assert (network(INPUTS).argmax(1) == TARGETS).double().mean() > 0.95


def test_the_seed_decides_the_order_and_the_global_state_stays():
    schedule = Schedule(epochs=2, batch_size=8)
    networks = [linear() for _ in range(3)]
    before = torch.get_rng_state()
    for network, seed in zip(networks, (0, 0, 1), strict=True):
        fit(network, functional.cross_entropy, INPUTS, TARGETS, schedule=schedule, seed=seed)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(networks[0].weight, networks[1].weight)
    assert not torch.equal(networks[0].weight, networks[2].weight)


def test_each_example_is_seen_once_an_epoch():
    seen = []

    def objective(logits, targets):
        seen.extend(targets.tolist())
        return logits.sum() * 0

    schedule = Schedule(epochs=3, batch_size=8)
    fit(linear(), objective, INPUTS, torch.arange(50), schedule=schedule, seed=0)
    epochs = [seen[start : start + 50] for start in (0, 50, 100)]
    assert all(sorted(epoch) == list(range(50)) for epoch in epochs)
    assert epochs[0] != epochs[1]


def test_gradients_are_clipped_over_all_parameters_together():
    norms = []
    network = linear()

    def steep(logits, targets):
        gradients = [parameter.grad for parameter in network.parameters()]
        if gradients[0] is not None:
            norms.append(torch.cat([gradient.flatten() for gradient in gradients]).norm().item())
        return 1e6 * functional.cross_entropy(logits, targets)

    fit(network, steep, INPUTS, TARGETS, schedule=Schedule(epochs=1, batch_size=10), seed=0)
    assert norms == pytest.approx([1.0] * 4)


def test_epochs_are_announced_with_their_mean_loss():
    heard = []
    losses = fit(
        linear(),
        functional.cross_entropy,
        INPUTS,
        TARGETS,
        schedule=Schedule(epochs=3, batch_size=16),
        seed=0,
        on_epoch=lambda epoch, loss: heard.append((epoch, loss)),
    )
    assert heard == list(enumerate(losses))


def test_an_epochs_loss_is_the_mean_over_examples_not_batches():
    schedule = Schedule(epochs=1, batch_size=32, learning_rate=0.0)
    network = nn.Linear(4, 3, dtype=torch.float64)
    (loss,) = fit(network, functional.cross_entropy, INPUTS, TARGETS, schedule=schedule, seed=0)
    assert loss == pytest.approx(functional.cross_entropy(network(INPUTS), TARGETS).item())


def test_a_loss_that_is_not_a_number_stops_the_training():
    def broken(logits, targets):
        return logits.sum() * math.nan

    with pytest.raises(FloatingPointError, match="fit: the loss of epoch 0 is nan"):
        fit(linear(), broken, INPUTS, TARGETS, schedule=Schedule(epochs=5), seed=0)


def test_impossible_settings_are_refused():
    with pytest.raises(ValueError, match="`epochs` must be at least 1, got 0"):
        Schedule(epochs=0)
    with pytest.raises(ValueError, match="`batch_size` must be at least 1, got -2"):
        Schedule(epochs=1, batch_size=-2)
    with pytest.raises(ValueError, match=r"equally many .* got 50 and 49"):
        fit(linear(), functional.cross_entropy, INPUTS, TARGETS[1:], schedule=Schedule(1), seed=0)
