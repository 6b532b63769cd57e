"""The configuration of a consistency loss: defaults, ramp, choices, errors, and the loss itself."""

import math

import pytest
import torch

from beliefmatch.semi import Consistency, SemiConfig, pi_model, vat
from small_classifiers import drawn, normalising, seeded


def test_defaults_are_the_papers():
    config = SemiConfig(kind="vat")
    assert (config.epsilon, config.xi, config.iterations, config.order) == (6.0, 1e-6, 1, "paper")
    assert config.ramp_up == 200_000 / 500_000
    assert config.full_weight == 0.03
    assert SemiConfig(kind="pi").full_weight == 0.5
    assert SemiConfig(kind="pi", weight=1.0).full_weight == 1.0
    assert SemiConfig(kind="pi", weight=0.0).full_weight == 0.0


def test_weight_grows_as_in_the_paper_and_then_is_constant():
    config = SemiConfig(kind="vat", weight=2.0, ramp_up=0.4)
    for step in range(0, 500_001, 20_000):
        x = min(1.0, step / 200_000)
        assert config.weight_at(step / 500_000) == pytest.approx(2 * math.exp(-5 * (1 - x) ** 2), rel=1e-12)
    assert SemiConfig(kind="vat", weight=2.0, ramp_up=0.0).weight_at(0.0) == 2.0


@pytest.mark.parametrize(
    ("kind", "has_belief", "expected"),
    [
        ("vat", False, "categorical"),
        ("vat", True, "dirichlet"),
        ("pi", False, "squared"),
        ("pi", True, "dirichlet"),
    ],
)
def test_divergence_depends_on_the_method_unless_it_is_given(kind, has_belief, expected):
    config = SemiConfig(kind=kind)
    assert config.divergence_for(has_belief=has_belief) == expected
    assert config.direction_for(has_belief=has_belief) == expected
    given = SemiConfig(kind=kind, divergence="squared", direction="categorical")
    assert given.divergence_for(has_belief=has_belief) == "squared"
    assert given.direction_for(has_belief=has_belief) == "categorical"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kind", "mixmatch"), ("weight", -0.1), ("weight", math.nan), ("weight", True), ("weight", "much"),
        ("ramp_up", 1.5), ("ramp_up", math.nan), ("divergence", "kl"), ("direction", "kl"),
        ("order", "reverse"), ("target", "eval"), ("epsilon", 0.0), ("xi", math.inf), ("iterations", -1),
        ("iterations", 1.5), ("batch_size", 0), ("batch_size", True),
    ],
)  # fmt: skip
def test_impossible_settings_are_refused(name, value):
    with pytest.raises(ValueError, match=f"SemiConfig: `{name}` must be "):
        SemiConfig(**{name: value})


@pytest.mark.parametrize(
    ("kind", "has_belief", "divergence"),
    [
        ("vat", True, "dirichlet"),
        ("vat", False, "categorical"),
        ("pi", True, "dirichlet"),
        ("pi", False, "squared"),
    ],
)
def test_the_loss_is_called_as_configured(kind, has_belief, divergence):
    network, inputs, others = normalising(dropout=0.5).train(), drawn(5, 6), drawn(5, 6, seed=1)
    options = {"order": "release", "target": "stochastic"}
    if kind == "vat":
        options = {"epsilon": 0.7, "xi": 1e-4, "iterations": 2, "order": "release", "direction": "squared"}
    config = SemiConfig(kind=kind, **options)
    consistency = Consistency(config, has_belief=has_belief)
    for views in [(inputs,)] if kind == "vat" else [(inputs,), (inputs, others)]:
        function = {"vat": vat, "pi": pi_model}[kind]
        expected = function(network, *views, divergence=divergence, generator=seeded(4), **options)
        assert consistency.loss(network, inputs, 4, *views[1:]) == expected
        assert consistency(network, inputs, 4, 0.1, *views[1:]) == config.weight_at(0.1) * expected


def test_the_network_does_not_run_where_the_weight_is_zero():
    network = torch.nn.Module()  # cannot be called
    consistency = Consistency(SemiConfig(kind="vat", weight=0.0), has_belief=True)
    assert consistency(network, drawn(5, 6), seed=0, progress=1.0) == 0
