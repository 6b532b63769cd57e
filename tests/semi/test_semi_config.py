"""The configuration of a consistency loss: defaults, ramp, choices, errors, and the calls it leads to."""

import math

import pytest
import torch

from beliefmatch.semi import Consistency, SemiConfig, pi_model, vat
from small_classifiers import curved, drawn, normalising, seeded


def test_defaults_are_the_papers():
    settings = SemiConfig(kind="vat")
    assert (settings.epsilon, settings.xi, settings.iterations, settings.order) == (6.0, 1e-6, 1, "paper")
    assert settings.ramp_up == 200_000 / 500_000
    assert settings.full_weight == 0.03
    assert SemiConfig(kind="pi").full_weight == 0.5
    assert SemiConfig(kind="pi", weight=1.0).full_weight == 1.0
    assert SemiConfig(kind="pi", weight=0.0).full_weight == 0.0


def test_weight_grows_as_in_the_paper_and_then_stays():
    settings = SemiConfig(kind="vat", weight=2.0, ramp_up=0.4)
    for step in range(0, 500_001, 20_000):
        x = min(1.0, step / 200_000)
        assert settings.weight_at(step / 500_000) == pytest.approx(2 * math.exp(-5 * (1 - x) ** 2), rel=1e-12)
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
def test_divergence_goes_with_the_method_unless_it_is_named(kind, has_belief, expected):
    settings = SemiConfig(kind=kind)
    assert settings.divergence_for(has_belief=has_belief) == expected
    assert settings.direction_for(has_belief=has_belief) == expected
    named = SemiConfig(kind=kind, divergence="squared", direction="categorical")
    assert named.divergence_for(has_belief=has_belief) == "squared"
    assert named.direction_for(has_belief=has_belief) == "categorical"


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


@pytest.mark.parametrize("has_belief", [True, False])
def test_vat_is_called_as_configured(has_belief):
    options = {"epsilon": 0.7, "xi": 1e-4, "iterations": 2, "order": "release", "direction": "squared"}
    settings, network, inputs = SemiConfig(kind="vat", **options), curved(), drawn(5, 6)
    consistency = Consistency(settings, has_belief=has_belief)
    divergence = "dirichlet" if has_belief else "categorical"
    expected = vat(network, inputs, divergence=divergence, generator=seeded(4), **options)
    assert consistency.loss(network, inputs, 4) == expected
    assert consistency(network, inputs, 4, 0.1) == settings.weight_at(0.1) * expected


@pytest.mark.parametrize("has_belief", [True, False])
def test_pi_model_is_called_as_configured(has_belief):
    settings = SemiConfig(kind="pi", order="release", target="stochastic")
    network, inputs, others = normalising(dropout=0.5).train(), drawn(5, 6), drawn(5, 6, seed=1)
    consistency = Consistency(settings, has_belief=has_belief)
    divergence = "dirichlet" if has_belief else "squared"
    options = {"divergence": divergence, "order": "release", "target": "stochastic"}
    for pair in ((inputs,), (inputs, others)):
        expected = pi_model(network, *pair, generator=seeded(4), **options)
        assert consistency(network, inputs, 4, 1.0, *pair[1:]) == 0.5 * expected


def test_no_pass_is_made_where_the_weight_is_zero():
    network = torch.nn.Module()  # cannot be called
    consistency = Consistency(SemiConfig(kind="vat", weight=0.0), has_belief=True)
    assert consistency(network, drawn(5, 6), seed=0, progress=1.0) == 0
