"""The special functions of a logit agree with sixty digits over the whole range."""

import subprocess
import sys
from pathlib import Path

import mpmath as mp
import pytest
import torch

from beliefmatch import _special as special

EXACT = {
    "digamma_next": lambda a, z: mp.psi(0, 1 + a),
    "digamma_next_grad": lambda a, z: a * mp.psi(1, 1 + a),
    "digamma_gap": lambda a, z: mp.psi(0, 1 + a) - z,
    "digamma_gap_grad": lambda a, z: a * mp.psi(1, 1 + a) - 1,
    "trigamma_excess": lambda a, z: a * a * mp.psi(1, a) - a,
    "digamma_grad": lambda a, z: a * mp.psi(1, a),
    "lgamma_entropy": lambda a, z: mp.loggamma(a) - a * mp.psi(0, a) + a,
    "lgamma_stirling": lambda a, z: mp.loggamma(a) - a * z + a,
    "lgamma_stirling_grad": lambda a, z: a * (mp.psi(0, a) - z),
}
SINGLE_SIGNED = ("digamma_gap", "digamma_gap_grad", "trigamma_excess", "digamma_grad")


def grid(dtype):
    generator = torch.Generator().manual_seed(0)
    return torch.linspace(-85, 85, 120, dtype=dtype) + torch.rand(120, generator=generator) * 1.4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", EXACT)
def test_matches_sixty_digits_to_a_few_units_in_the_last_place(name, dtype):
    z = grid(dtype)
    value = getattr(special, name)(z).tolist()
    eps = torch.finfo(dtype).eps
    with mp.workdps(150):
        for logit, got in zip(z.tolist(), value, strict=True):
            exact = EXACT[name](mp.exp(mp.mpf(logit)), mp.mpf(logit))
            scale = abs(exact) if name in SINGLE_SIGNED else max(abs(exact), 1)
            assert abs(mp.mpf(got) - exact) <= 4 * eps * scale, (logit, got, exact)


@pytest.mark.parametrize(
    ("function", "derivative"),
    [
        (special.digamma_next, special.digamma_next_grad),
        (special.digamma_gap, special.digamma_gap_grad),
        (special.trigamma_excess, special.trigamma_excess_grad),
        (special.lgamma_stirling, special.lgamma_stirling_grad),
        (special.lgamma_entropy, lambda z: -special.trigamma_excess(z)),
    ],
)
def test_automatic_derivative_is_the_closed_form(function, derivative):
    z = torch.linspace(-30, 30, 61, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(function(z).sum(), z)
    torch.testing.assert_close(gradient, derivative(z.detach()), rtol=1e-12, atol=1e-12)


def test_trigamma_excess_stays_between_one_half_and_one():
    for dtype in (torch.float32, torch.float64):
        r = special.trigamma_excess(torch.linspace(-800, 800, 4001, dtype=dtype))
        ulp = torch.finfo(dtype).eps
        assert r.max() <= 1 and r.min() >= 0.5 - ulp
        assert r[0] == 1 and r[-1] == 0.5
        assert (r.diff() <= 4 * ulp).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", EXACT)
def test_is_finite_at_the_ends_of_the_type_and_nan_for_nan(name, dtype):
    largest = torch.finfo(dtype).max
    z = torch.tensor([-largest, -1e6, 1e6, largest, float("nan")], dtype=dtype)
    value = getattr(special, name)(z)
    assert value[:-1].isfinite().all()
    assert value[-1].isnan()


@pytest.mark.slow
def test_coefficients_are_what_the_fit_gives():
    script = Path(__file__).parents[2] / "tools" / "fit_special.py"
    run = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("largest relative error") == 16
    assert run.stdout.count("largest absolute error") == 3
