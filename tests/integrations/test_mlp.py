"""Perceptrons trained many at once: gradients, independence of each other, early stopping."""

import pytest
import torch

from beliefmatch import belief_matching_loss
from beliefmatch.adaptation.fitted import Candidate
from beliefmatch.mlp import NetworkTraining, Schedule, forward, initial_layers, train_networks

SCHEDULE = Schedule(max_epochs=12, learning_rate=0.02, batch_size=16, patience=3, tolerance=0.0)
SIZES = (4, 7, 5, 3)


def candidate(kl_weight: float, weight_decay: float = 0.02) -> Candidate:
    return Candidate("belief_matching", {"kl_weight": kl_weight, "prior": 1.5}, weight_decay=weight_decay)


@pytest.fixture
def data():
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(60, 4, generator=generator)
    targets = (rows[:, :3] + 0.5 * torch.randn(60, 3, generator=generator)).argmax(1)
    return rows, targets


def layers_of(candidates, seeds):
    return initial_layers(SIZES, candidates, torch.tensor([0.2, 0.3, 0.5]), seeds)


@pytest.mark.parametrize("has_counts", [False, True])
def test_the_gradient_is_that_of_autograd(data, has_counts):
    rows, targets = data
    if has_counts:
        targets = 2.0 * torch.nn.functional.one_hot(targets, 3)
    candidates = [candidate(0.01), candidate(0.3, 0.1)]
    layers, weights = (
        layers_of(candidates, [1, 2]),
        torch.rand(2, 60, generator=torch.Generator().manual_seed(3)),
    )
    training = NetworkTraining(layers, candidates, 1e-3)
    generator = torch.Generator().manual_seed(0)
    training.epoch(rows, targets, weights, batch_size=60, generator=generator)
    for number, one in enumerate(candidates):
        own = [(w[number].double().requires_grad_(), b[number].double().requires_grad_()) for w, b in layers]
        values = rows.double()
        for place, (weight, bias) in enumerate(own):
            values = (values.relu() if place else values) @ weight.t() + bias
        labels = targets.double() if has_counts else targets
        losses = belief_matching_loss(values, labels, kl_weight=one.kl_weight, prior=1.5, reduction="none")
        objective = (weights[number] * losses).sum() / weights[number].sum()
        objective = objective + sum(0.5 * one.weight_decay * weight.square().sum() for weight, _ in own)
        expected = torch.autograd.grad(objective, [tensor for layer in own for tensor in layer])
        found = training._flat.grad[number]
        torch.testing.assert_close(
            found.double(), torch.cat([part.flatten() for part in expected]), rtol=1e-3, atol=1e-6
        )


def test_a_network_among_others_is_the_network_alone(data):
    candidates = [candidate(0.01), candidate(0.1), candidate(1.0)]
    weights = (torch.arange(60) % 3 != torch.arange(3)[:, None]).float()
    together = train_networks(
        layers_of(candidates, [1, 2, 3]),
        *data,
        candidates,
        SCHEDULE,
        row_weights=weights,
        held_out=1 - weights,
    )
    for number, one in enumerate(candidates):
        own = weights[number : number + 1]
        alone = train_networks(
            layers_of([one], [number + 1]), *data, [one], SCHEDULE, row_weights=own, held_out=1 - own
        )
        assert alone.epochs[0] == together.epochs[number]
        for (weight, bias), (expected, expected_bias) in zip(together.layers, alone.layers, strict=True):
            torch.testing.assert_close(weight[number], expected[0], rtol=1e-3, atol=1e-4)
            torch.testing.assert_close(bias[number], expected_bias[0], rtol=1e-3, atol=1e-4)


def test_rows_of_weight_zero_teach_nothing(data):
    rows, targets = data
    weights = (torch.arange(60) < 30).float()[None]
    changed = torch.where(torch.arange(60) < 30, targets, (targets + 1) % 3)
    one = [candidate(0.01)]
    first, second = (
        train_networks(layers_of(one, [1]), rows, labels, one, SCHEDULE, row_weights=weights)
        for labels in (targets, changed)
    )
    assert torch.equal(first.layers[0][0], second.layers[0][0])
    assert first.epochs.tolist() == [12]
    assert first.nll.isnan().all()


def test_early_stopping_returns_the_network_whose_nll_it_reports(data):
    rows, targets = data
    held = (torch.arange(60) % 4 == 0).float()[None]
    one = [candidate(0.001, 0.0)]
    schedule = SCHEDULE._replace(max_epochs=200, learning_rate=0.05)
    found = train_networks(
        layers_of(one, [1]), rows, targets, one, schedule, row_weights=1 - held, held_out=held
    )
    is_held = held[0] > 0
    logits = forward(found.layers, rows[is_held])[0].t()
    assert found.nll.item() == pytest.approx(
        torch.nn.functional.cross_entropy(logits, targets[is_held]).item(), rel=1e-5
    )
    assert 0 < found.epochs.item() < 200 - schedule.patience


def test_the_first_belief_is_the_posterior_of_the_mean_counts():
    """Without looking at the features, α = β + c/λ; a linear model starts there exactly."""
    layers = initial_layers((4, 3), [candidate(0.1)], torch.tensor([0.2, 0.3, 0.5]), [0])
    alpha = forward(layers, torch.randn(2, 4))[0].t().exp()
    torch.testing.assert_close(alpha, torch.tensor([3.5, 4.5, 6.5]).expand(2, 3))
