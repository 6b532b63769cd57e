"""VAT's direction against brute force: eigenvectors of the Hessian, all angles of a plane, low precision."""

import math
from functools import partial

import pytest
import torch
from torch import nn

from beliefmatch.semi import DIVERGENCES, adversarial_direction
from small_classifiers import DOUBLE, Constant, built, curved, drawn, normalising, seeded

NAMES = list(DIVERGENCES)


def hessian(network, inputs, name):
    """The Hessian of the summed divergence with respect to all inputs of the batch."""
    clean = network(inputs).detach()

    def total(moved):
        return DIVERGENCES[name](clean, network(moved.view_as(inputs))).sum()

    return torch.autograd.functional.hessian(total, inputs.flatten())


def cosines(first, second):
    """The cosine of each pair of vectors; 0 where one is zero. torch's own clamps lengths at 1e-8."""
    pairs = (first.flatten(1).double(), second.flatten(1).double())
    units = [torch.nan_to_num(vectors / lengths(vectors)[:, None]) for vectors in pairs]
    return (units[0] * units[1]).sum(1)


def lengths(vectors):
    return torch.linalg.vector_norm(vectors.flatten(1), dim=1)


@pytest.mark.parametrize("name", NAMES)
def test_many_iterations_end_at_the_largest_eigenvector_of_the_hessian(name):
    network, inputs = curved(), drawn(5, 6)
    found = adversarial_direction(network, inputs, divergence=name, iterations=300, generator=seeded())
    for one, image in zip(found, inputs, strict=True):
        values, vectors = torch.linalg.eigh(hessian(network, image[None], name))
        assert values[-2] < 0.95 * values[-1]  # or the power method would need more iterations
        assert torch.dot(one, vectors[:, -1]).abs() > 1 - 1e-6


@pytest.mark.parametrize("order", ["paper", "release"])
@pytest.mark.parametrize("name", NAMES)
def test_one_iteration_is_the_hessian_times_the_random_direction(name, order):
    network, inputs = curved(), drawn(5, 6)
    search = partial(adversarial_direction, network, inputs, divergence=name, order=order)
    start, found = (search(iterations=count, generator=seeded(3)) for count in (0, 1))
    for first, one, image in zip(start, found, inputs, strict=True):
        expected = hessian(network, image[None], name) @ first
        torch.testing.assert_close(one, expected / expected.norm(), rtol=1e-4, atol=1e-4)


def test_examples_that_are_normalised_together_are_perturbed_together():
    network, inputs = normalising().train(), drawn(5, 6)
    found = adversarial_direction(network, inputs, generator=seeded(3))
    start = adversarial_direction(network, inputs, iterations=0, generator=seeded(3))
    expected = (hessian(network, inputs, "dirichlet") @ start.flatten()).view_as(inputs)
    assert cosines(found, expected).min() > 1 - 1e-6


@pytest.mark.parametrize("name", NAMES)
def test_no_other_direction_in_the_plane_increases_the_divergence_more(name):
    network, inputs, radius = curved(inputs=2), drawn(5, 2), 1e-3
    found = adversarial_direction(network, inputs, divergence=name, iterations=50, generator=seeded())
    clean = network(inputs)

    def increase(directions):
        return DIVERGENCES[name](clean, network(inputs + radius * directions))

    angles = torch.linspace(0, 2 * math.pi, 721, dtype=DOUBLE)
    around = torch.stack([increase(torch.stack([a.cos(), a.sin()]).expand(5, 2)) for a in angles])
    assert (increase(found) / around.amax(0)).min() > 0.998
    assert (around.amin(0) / around.amax(0)).max() < 0.9  # there was something to find


def test_categorical_and_dirichlet_directions_agree_for_sharp_beliefs_only():
    network, inputs = curved(), drawn(5, 6)

    def pair(log_precision):
        with torch.no_grad():
            network[2].bias += log_precision
        found = [
            adversarial_direction(network, inputs, divergence=name, iterations=200, generator=seeded())
            for name in ("categorical", "dirichlet")
        ]
        return cosines(*found).abs().min()

    assert pair(0.0) < 0.99
    assert pair(12.0) > 1 - 1e-6


@pytest.mark.parametrize("shape", [(3, 6), (3, 2, 3), (3, 1, 2, 3)])
def test_every_example_has_a_direction_of_unit_length(shape):
    network = nn.Sequential(nn.Flatten(), curved())
    for count in (0, 1, 3):
        found = adversarial_direction(network, drawn(*shape), iterations=count, generator=seeded())
        assert found.shape == shape
        torch.testing.assert_close(lengths(found), torch.ones(3, dtype=DOUBLE))


@pytest.mark.parametrize("connected", [True, False])
def test_random_direction_stays_where_nothing_changes(connected):
    inputs = drawn(3, 6)
    search = partial(adversarial_direction, Constant(connected), inputs)
    assert torch.equal(search(generator=seeded(2)), search(iterations=0, generator=seeded(2)))


def test_direction_of_an_example_does_not_depend_on_its_batch():
    network, inputs = curved(dtype=torch.float32), drawn(5, 6, dtype=torch.float32)
    search = partial(adversarial_direction, network, iterations=150)
    alone = [search(one[None], generator=seeded(seed)) for seed, one in enumerate(inputs)]
    assert cosines(search(inputs, generator=seeded()), torch.cat(alone)).abs().min() > 0.999


IMAGES = drawn(8, 3072, seed=5)  # of norm 55, like images of 32 × 32 pixels in three colours


def wide(dtype):
    def make():
        bend = nn.LeakyReLU(0.1)
        return nn.Sequential(nn.Linear(3072, 64), bend, nn.Linear(64, 64), bend, nn.Linear(64, 10))

    return built(make, seed=1, dtype=dtype)


def truth(name, start):
    """The Hessian times the random direction in float64, by forward and backward differentiation."""
    network = wide(DOUBLE)
    clean = network(IMAGES).detach()
    gradient = torch.func.grad(lambda x: DIVERGENCES[name](clean, network(x)).sum())
    return torch.autograd.functional.jvp(gradient, IMAGES, start.double())[1]


def naive(network, inputs, name, start, xi=1e-6):
    """The gradient at a fixed step, as VAT is usually written."""
    moved = (inputs + xi * start).requires_grad_()
    value = DIVERGENCES[name](network(inputs).detach(), network(moved)).sum()
    return torch.autograd.grad(value, moved)[0]


def random_and_found(network, inputs, **options):
    return (
        adversarial_direction(network, inputs, iterations=count, generator=seeded(), **options)
        for count in (0, 1)
    )


@pytest.mark.parametrize("name", NAMES)
def test_direction_survives_float32_where_a_fixed_step_does_not(name):
    network, inputs = wide(torch.float32), IMAGES.float()
    start, found = random_and_found(network, inputs, divergence=name)
    expected = truth(name, start)
    assert cosines(found, expected).min() > 0.9999
    assert cosines(naive(network, inputs, name, start), expected).mean() < 0.3
    # in float64 the same step is right
    assert cosines(naive(wide(DOUBLE), IMAGES, name, start.double()), expected).min() > 0.9999


class Rounded(nn.Module):
    """Rounds the inputs and outputs of every layer to half precision; matrix products sum in float32."""

    def __init__(self, kind, *, always=False):
        super().__init__()
        self.layers, self.kind, self.always, self.autocast = wide(torch.float32), kind, always, []

    def forward(self, x):
        self.autocast.append(torch.is_autocast_enabled("cpu"))
        if not (self.always or self.autocast[-1]):
            return self.layers(x)
        with torch.autocast("cpu", enabled=False):
            for layer in self.layers:
                x = layer(x.to(self.kind).float())
        return x.to(self.kind)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_direction_is_searched_without_autocast(kind):
    network, inputs = Rounded(kind), IMAGES.float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        start, found = random_and_found(network, inputs)
        by_hand = naive(network, inputs, "dirichlet", start)
    expected = truth("dirichlet", start)
    assert cosines(found, expected).min() > 0.9999
    assert cosines(by_hand, expected).mean() < 0.3


@pytest.mark.parametrize(("kind", "bar"), [(torch.bfloat16, 0.8), (torch.float16, 0.9)])
def test_direction_survives_networks_that_are_of_half_precision_throughout(kind, bar):
    network, inputs = Rounded(kind, always=True), IMAGES.to(kind)
    start, found = random_and_found(network, inputs)
    expected = truth("dirichlet", start)
    assert found.dtype == kind
    assert cosines(found, expected).mean() > bar
    assert cosines(naive(network, inputs, "dirichlet", start), expected).mean() < 0.3


@pytest.mark.parametrize("name", ["squared", "categorical"])
@pytest.mark.parametrize("gap", [20.0, 26.0, 34.0, 60.0])
def test_direction_of_confident_examples_is_exact(name, gap):
    """Their gradients are small, and the squares of the gradients underflow in float32."""
    layer, inputs = built(lambda: nn.Linear(20, 5), dtype=torch.float32), drawn(16, 20, dtype=torch.float32)
    with torch.no_grad():
        layer.bias[0] += gap
    pair = random_and_found(layer, inputs, divergence=name, epsilon=0.5)
    start, found = (vectors.double() for vectors in pair)
    with torch.no_grad():
        shares = layer.double()(inputs.double()).softmax(1)

        def fisher(v):  # (diag(p) − ppᵀ)v, relative to the leading class
            v = v - v[:, :1]
            return shares * (v - (shares * v).sum(1, keepdim=True))

        changed = fisher(start @ layer.weight.T)
        exact = (changed if name == "categorical" else fisher(changed)) @ layer.weight
    assert (cosines(found, exact) > 0.99).all()
