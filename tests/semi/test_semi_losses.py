"""VAT and the Pi-model: values by hand, invariances, gradients, limits, bad arguments."""

import math
from functools import partial

import pytest
import torch
from torch import nn

from beliefmatch.semi import DIVERGENCES, adversarial_direction, pi_model, vat
from small_classifiers import Constant, curved, drawn, normalising, seeded

NAMES = list(DIVERGENCES)
LOSSES = {"vat": partial(vat, epsilon=0.7), "pi_model": pi_model}


def gradients(loss, network):
    return torch.autograd.grad(loss, list(network.parameters()))


@pytest.mark.parametrize(
    ("name", "order", "direction"),
    [
        *((name, "paper", None) for name in NAMES),
        ("dirichlet", "release", "categorical"),
        ("dirichlet", "release", None),
    ],
)
def test_vat_is_the_divergence_between_the_clean_and_the_perturbed_prediction(name, order, direction):
    network, inputs = curved(), drawn(5, 6)
    search = {"divergence": direction or name, "order": order, "epsilon": 0.7, "generator": seeded(3)}
    moved = network(inputs + 0.7 * adversarial_direction(network, inputs, **search))
    clean = network(inputs).detach()
    expected = DIVERGENCES[name](*((clean, moved) if order == "paper" else (moved, clean))).mean()
    options = {"divergence": name, "order": order, "direction": direction, "generator": seeded(3)}
    loss = vat(network, inputs, epsilon=0.7, **options)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradients(loss, network), gradients(expected, network))


@pytest.mark.parametrize("order", ["paper", "release"])
@pytest.mark.parametrize("name", NAMES)
def test_pi_model_compares_with_and_without_dropout(name, order):
    network, inputs = nn.Sequential(nn.Dropout(0.5), curved()), drawn(5, 6)
    target = network.eval()(inputs).detach()
    network.train()
    loss = pi_model(network, inputs, divergence=name, order=order, generator=seeded(3))
    # the first of two seeds is the prediction's
    seed = int(torch.randint(2**62, (), generator=seeded(3)))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        prediction = network(inputs)
    pair = (target, prediction) if order == "paper" else (prediction, target)
    expected = DIVERGENCES[name](*pair).mean()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradients(loss, network), gradients(expected, network))


def test_pi_model_with_two_draws_of_dropout_is_larger_on_average():
    network, inputs = nn.Sequential(nn.Dropout(0.5), curved()), drawn(50, 6)
    mean = {
        target: sum(
            pi_model(network, inputs, divergence="squared", target=target, generator=seeded(seed))
            for seed in range(20)
        )
        for target in ("still", "stochastic")
    }
    assert mean["stochastic"] > 1.1 * mean["still"]


def test_pi_model_compares_two_views():
    network, inputs, others = curved(), drawn(5, 6), drawn(5, 6, seed=1)
    expected = DIVERGENCES["dirichlet"](network(others).detach(), network(inputs)).mean()
    loss = pi_model(network, inputs, others)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradients(loss, network), gradients(expected, network))
    assert pi_model(network, inputs) == 0  # nothing stochastic, one view


@pytest.mark.parametrize("connected", [True, False])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("loss", LOSSES)
def test_constant_network_is_consistent(loss, name, connected):
    network = Constant(connected)
    value = LOSSES[loss](network, drawn(5, 6), divergence=name, generator=seeded())
    assert value == 0
    assert gradients(value, network)[0].abs().max() < 1e-15


@pytest.mark.parametrize(("loss", "passes"), [("vat", [False, True, True]), ("pi_model", [True, False])])
def test_target_has_no_gradient(loss, passes):
    network, kept = nn.Sequential(nn.Dropout(0.1), curved()), []
    network.register_forward_hook(lambda *called: kept.append(called[-1].requires_grad))
    LOSSES[loss](network, drawn(5, 6), generator=seeded()).backward()
    assert kept == passes  # VAT: target, search, prediction
    assert all(parameter.grad is not None for parameter in network.parameters())


def test_parameters_get_no_gradient_from_the_search():
    network, inputs = curved(), drawn(5, 6).requires_grad_()
    unit = adversarial_direction(network, inputs, iterations=3)
    assert not unit.requires_grad and inputs.grad is None
    assert all(parameter.grad is None for parameter in network.parameters())


def test_vat_can_be_computed_without_gradients():
    network, inputs = curved(), drawn(5, 6)
    with torch.no_grad():
        value = vat(network, inputs, epsilon=0.7, generator=seeded())
    assert not value.requires_grad
    assert value == vat(network, inputs, epsilon=0.7, generator=seeded())


def test_vat_grows_with_the_square_of_a_small_radius():
    network, inputs = curved(), drawn(5, 6)
    small, twice = (vat(network, inputs, epsilon=e, generator=seeded()) for e in (1e-3, 2e-3))
    assert (twice / small).item() == pytest.approx(4, rel=1e-2)


@pytest.mark.parametrize("name", NAMES)
def test_the_order_of_classes_does_not_matter(name):
    network, inputs = curved(), drawn(5, 6)
    before = vat(network, inputs, divergence=name, epsilon=0.7, generator=seeded())
    shuffled = torch.tensor([2, 0, 3, 1])
    with torch.no_grad():
        network[2].weight[:], network[2].bias[:] = network[2].weight[shuffled], network[2].bias[shuffled]
    torch.testing.assert_close(
        vat(network, inputs, divergence=name, epsilon=0.7, generator=seeded()), before, rtol=1e-5, atol=0
    )


def test_the_order_of_examples_does_not_matter():
    """Many iterations, so that the random start does not matter."""
    network, inputs = curved(), drawn(5, 6)
    options = {"iterations": 200, "epsilon": 1e-2}
    ahead = vat(network, inputs, generator=seeded(1), **options)
    back = vat(network, inputs.flip(0), generator=seeded(2), **options)
    torch.testing.assert_close(ahead, back, rtol=2e-2, atol=0)


def test_the_generator_determines_the_loss():
    network, inputs = normalising(dropout=0.5).train(), drawn(5, 6)
    for loss in LOSSES.values():
        first, again, other = (loss(network, inputs, generator=seeded(seed)) for seed in (1, 1, 2))
        assert first == again != other
        generator = seeded(1)
        assert loss(network, inputs, generator=generator) != loss(network, inputs, generator=generator)


def test_dense_predictions_are_averaged_over_examples_and_positions():
    network, inputs = nn.Conv2d(2, 3, 1).double(), drawn(4, 2, 5, 5)
    expected = DIVERGENCES["dirichlet"](network(2 * inputs).detach(), network(inputs))
    assert expected.shape == (4, 5, 5)
    torch.testing.assert_close(pi_model(network, inputs, 2 * inputs), expected.mean())
    assert vat(network, inputs, generator=seeded()) > 0


def test_divergence_may_be_a_function():
    network, inputs = curved(), drawn(5, 6)

    def absolute(first, second):
        return (first - second).square().sum(1)

    unit = adversarial_direction(network, inputs, divergence=absolute, epsilon=0.1, generator=seeded())
    expected = (network(inputs) - network(inputs + 0.1 * unit)).square().sum(1).mean()
    loss = vat(network, inputs, divergence=absolute, epsilon=0.1, generator=seeded())
    torch.testing.assert_close(loss, expected)


WRONG = {
    "vat": [
        ("epsilon", 0.0),
        ("epsilon", math.nan),
        ("xi", -1e-6),
        ("iterations", -1),
        ("iterations", 1.5),
        ("order", "reverse"),
        ("divergence", "kl"),
        ("direction", "kl"),
        ("model", lambda x: x),
        ("model", nn.Flatten(0)),
        ("inputs", [1.0]),
        ("inputs", torch.zeros(3, 4, dtype=torch.long)),
        ("inputs", torch.zeros(3)),
    ],
    "pi_model": [
        ("others", drawn(4, 6)),
        ("others", 3),
        ("target", "eval"),
        ("order", "reverse"),
        ("divergence", None),
        ("divergence", lambda first, second: 3.0),
        ("divergence", lambda first, second: (first - second).sum()),
        ("model", None),
    ],
}


@pytest.mark.parametrize(
    ("loss", "argument", "value"), [(loss, *wrong) for loss, each in WRONG.items() for wrong in each]
)
def test_wrong_arguments_are_refused_by_name(loss, argument, value):
    given = {"model": curved(), "inputs": drawn(5, 6), argument: value}
    with pytest.raises((ValueError, TypeError), match=f"{loss}: `{argument}` must"):
        {"vat": vat, "pi_model": pi_model}[loss](**given)
