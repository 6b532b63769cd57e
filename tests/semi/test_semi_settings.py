"""The settings of a consistency loss and what they are made into: defaults, ramp, choices, bad input."""

import math
import subprocess
import sys

import pytest
import torch

import beliefmatch.semi
from beliefmatch.semi import Consistency, SemiConfig, pi_model, vat
from small_classifiers import curved, drawn, normalising, seeded


def test_settings_are_read_without_torch():
    code = "import sys; from beliefmatch.semi import SemiConfig; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr


def test_every_public_name_can_be_had():
    assert dir(beliefmatch.semi) == sorted(beliefmatch.semi.__all__)
    for name in beliefmatch.semi.__all__:
        assert getattr(beliefmatch.semi, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        beliefmatch.semi.nonsense  # noqa: B018


def test_defaults_are_the_papers():
    settings = SemiConfig("vat")
    assert (settings.epsilon, settings.xi, settings.iterations, settings.order) == (6.0, 1e-6, 1, "paper")
    assert settings.ramp_up == 200_000 / 500_000
    assert settings.full_weight == 0.03
    assert SemiConfig("pi").full_weight == 0.5
    assert SemiConfig("pi", weight=1.0).full_weight == 1.0
    assert SemiConfig("pi", weight=0.0).full_weight == 0.0


def test_weight_grows_as_in_the_paper_and_then_stays():
    settings = SemiConfig("vat", weight=2.0, ramp_up=0.4)
    for step in range(0, 500_001, 20_000):
        x = min(1.0, step / 200_000)
        assert settings.weight_at(step / 500_000) == pytest.approx(2 * math.exp(-5 * (1 - x) ** 2), rel=1e-12)
    assert SemiConfig("vat", weight=2.0, ramp_up=0.0).weight_at(0.0) == 2.0


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
    settings = SemiConfig(kind)
    assert settings.divergence_for(has_belief=has_belief) == expected
    assert settings.direction_for(has_belief=has_belief) == expected
    named = SemiConfig(kind, divergence="squared", direction="categorical")
    assert named.divergence_for(has_belief=has_belief) == "squared"
    assert named.direction_for(has_belief=has_belief) == "categorical"


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"kind": "mixmatch"}, "semi: `kind` must be one of vat, pi, got 'mixmatch'"),
        ({"weight": -0.1}, "semi: `weight` must be finite and not negative, got -0.1"),
        ({"weight": math.nan}, "semi: `weight` must be finite and not negative, got nan"),
        ({"ramp_up": 1.5}, "semi: `ramp_up` must be a share from 0 to 1, got 1.5"),
        ({"ramp_up": math.nan}, "semi: `ramp_up` must be a share"),
        ({"divergence": "kl"}, "semi: `divergence` must be one of auto, categorical, dirichlet, squared"),
        ({"direction": "kl"}, "semi: `direction` must be one of auto"),
        ({"order": "reverse"}, "semi: `order` must be one of paper, release"),
        ({"target": "eval"}, "semi: `target` must be one of still, stochastic"),
        ({"epsilon": 0.0}, "semi: `epsilon` must be finite and positive, got 0.0"),
        ({"xi": math.inf}, "semi: `xi` must be finite and positive, got inf"),
        ({"iterations": -1}, "semi: `iterations` must be a whole number from 0, got -1"),
        ({"iterations": 1.0}, "semi: `iterations` must be a whole number from 0, got 1.0"),
    ],
)
def test_what_is_wrong_is_named(options, complaint):
    with pytest.raises(ValueError, match=complaint):
        SemiConfig(**options)


@pytest.mark.parametrize("has_belief", [True, False])
def test_vat_is_called_as_the_settings_say(has_belief):
    settings = SemiConfig("vat", epsilon=0.7, xi=1e-4, iterations=2, order="release", direction="squared")
    network, inputs = curved(), drawn(5, 6)
    consistency = Consistency(settings, has_belief=has_belief)
    expected = vat(
        network,
        inputs,
        divergence="dirichlet" if has_belief else "categorical",
        epsilon=0.7,
        xi=1e-4,
        iterations=2,
        order="release",
        direction="squared",
        generator=seeded(4),
    )
    assert consistency.loss(network, inputs, 4) == expected
    assert consistency(network, inputs, 4, 0.1) == settings.weight_at(0.1) * expected


@pytest.mark.parametrize("has_belief", [True, False])
def test_pi_model_is_called_as_the_settings_say(has_belief):
    settings = SemiConfig("pi", order="release", target="stochastic")
    network, inputs, others = normalising(dropout=0.5).train(), drawn(5, 6), drawn(5, 6, seed=1)
    consistency = Consistency(settings, has_belief=has_belief)
    divergence = "dirichlet" if has_belief else "squared"
    options = {"divergence": divergence, "order": "release", "target": "stochastic"}
    for pair in ((inputs,), (inputs, others)):
        expected = pi_model(network, *pair, generator=seeded(4), **options)
        assert consistency(network, inputs, 4, 1.0, *pair[1:]) == 0.5 * expected


def test_no_pass_is_made_where_the_weight_is_zero():
    network = torch.nn.Module()  # cannot be called
    consistency = Consistency(SemiConfig("vat", weight=0.0), has_belief=True)
    assert consistency(network, drawn(5, 6), seed=0, progress=1.0) == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"weight": "1"},
        {"weight": True},
        {"epsilon": "6"},
        {"ramp_up": "a"},
        {"batch_size": 1.5},
        {"batch_size": True},
    ],
)
def test_what_is_no_number_is_refused(wrong):
    (name,) = wrong
    with pytest.raises(ValueError, match=f"semi: `{name}` must be"):
        SemiConfig(**wrong)
