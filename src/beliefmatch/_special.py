r"""The gamma function and its derivatives as functions of z = ln α, finite and accurate at every z.

With w = 1/(1+α) = sigmoid(−z) and x = 1 − w,

.. math::
    \ln\Gamma(1+α) &= (α+\tfrac12)\ln(1+α) - (1+α) + \tfrac12\ln 2π + w M(w) \\
    ψ(1+α) &= \ln(1+α) - w G(w), \qquad ψ'(1+α) = w + w^2 R(w)

where M, G and R vary by a few per cent over all α > 0; `tools/fit_special.py` fits them by one rational
function each. Every function below is a short combination of those three with `sigmoid` and
`logsigmoid`, so no term needs `e^z` where it would overflow and no two large terms cancel.
They are plain tensor operations: differentiable any number of times, traceable, batchable.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from beliefmatch._coefficients import POLYNOMIALS, REMAINDERS

__all__ = [
    "digamma_gap",
    "digamma_gap_grad",
    "digamma_grad",
    "digamma_next",
    "digamma_next_grad",
    "exp_saturating",
    "largest_exponent",
    "lgamma_entropy",
    "lgamma_stirling",
    "lgamma_stirling_grad",
    "saturate",
    "trigamma_excess",
    "trigamma_excess_grad",
]

HALF_LN_2PI = 0.5 * math.log(2 * math.pi)


def _polynomial(coefficients: tuple[float, ...], w: Tensor) -> Tensor:
    value = torch.full_like(w, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        value = value * w + coefficient
    return value


def _kind(w: Tensor) -> str:
    return "float64" if w.dtype == torch.float64 else "float32"


def _remainder(name: str, w: Tensor) -> Tensor:
    numerator, denominator = REMAINDERS[name, _kind(w)]
    return _polynomial(numerator, w) / _polynomial(denominator, w)


def softplus(z: Tensor) -> Tensor:
    """ln(1+α). Unlike torch's softplus it keeps e^−z at large z (torch drops it from z = 20 on)."""
    return -F.logsigmoid(-z)


def saturate(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """x in the given type (its own by default), with infinities at the largest finite value."""
    dtype = dtype or x.dtype
    limit = torch.finfo(dtype).max
    return x.clamp(-limit, limit).to(dtype)


def largest_exponent(dtype: torch.dtype) -> float:
    """The largest x, with a little to spare, for which e^x is finite."""
    return math.log(torch.finfo(dtype).max) * 0.9999


def exp_saturating(z: Tensor) -> Tensor:
    """e^z, stopping at the largest finite value instead of infinity. NaN stays NaN."""
    limit = largest_exponent(z.dtype)
    return torch.where(z > limit, torch.finfo(z.dtype).max, z.clamp(max=limit).exp())


def digamma_next(z: Tensor) -> Tensor:
    """ψ(1+α): the digamma function of α without its pole; −γ at z → −∞, z at z → ∞."""
    w = torch.sigmoid(-z)
    return softplus(z) - w * _remainder("digamma", w)


def digamma_gap(z: Tensor) -> Tensor:
    """ψ(1+α) − ln α > 0: falls from −z − γ at z → −∞ to 1/(2α) at z → ∞, with full relative precision."""
    w = torch.sigmoid(-z)
    return softplus(-z) - w * _remainder("digamma", w)


def digamma_next_grad(z: Tensor) -> Tensor:
    """dψ(1+α)/dz = αψ′(1+α): from 0 at z → −∞ to 1 at z → ∞."""
    w, x = torch.sigmoid(-z), torch.sigmoid(z)
    return x * (1 + w * _remainder("trigamma", w))


def digamma_gap_grad(z: Tensor) -> Tensor:
    """d(ψ(1+α) − ln α)/dz: from −1 at z → −∞ to 0 at z → ∞, with full relative precision."""
    w, x = torch.sigmoid(-z), torch.sigmoid(z)
    return -w * (1 - x * _remainder("trigamma", w))


def trigamma_excess(z: Tensor) -> Tensor:
    """r(α) = α²ψ′(α) − α: bounded, from 1 at z → −∞ down to ½ at z → ∞."""
    w = torch.sigmoid(-z)
    x = torch.sigmoid(z)
    return w + x * x * _remainder("trigamma", w)


def trigamma_excess_grad(z: Tensor) -> Tensor:
    """dr/dz < 0, vanishing at both ends: for differences of r at neighbouring points."""
    w = torch.sigmoid(-z)
    coefficients = POLYNOMIALS["trigamma_excess", _kind(w)]
    by_w = tuple(n * c for n, c in enumerate(coefficients))[1:]
    return -w * torch.sigmoid(z) * _polynomial(by_w, w)


def digamma_grad(z: Tensor) -> Tensor:
    """t(α) = αψ′(α) = dψ(e^z)/dz: 1 at z → ∞, 1/α at z → −∞ (saturating)."""
    return 1 + trigamma_excess(z) * exp_saturating(-z)


def lgamma_entropy(z: Tensor) -> Tensor:
    """A(α) = lnΓ(α) − αψ(α) + α: 1 − z at z → −∞, −z/2 + ½ ln 2π + ½ at z → ∞. dA/dz = −r."""
    w = torch.sigmoid(-z)
    x = torch.sigmoid(z)
    bounded = HALF_LN_2PI + w * _remainder("lgamma", w) + x * _remainder("digamma", w)
    return 0.5 * softplus(z) - z + bounded


def lgamma_stirling(z: Tensor) -> Tensor:
    """B(α) = lnΓ(α) − α ln α + α: −z at z → −∞, −z/2 + ½ ln 2π at z → ∞."""
    w = torch.sigmoid(-z)
    bounded = (HALF_LN_2PI - 1) + w * _remainder("lgamma", w) + _log_growth(z)
    return 0.5 * softplus(z) - z + bounded


def lgamma_stirling_grad(z: Tensor) -> Tensor:
    """dB/dz = α (ψ(α) − ln α): from −1 at z → −∞ to −½ at z → ∞."""
    w, x = torch.sigmoid(-z), torch.sigmoid(z)
    return _log_growth(z) - 1 - x * _remainder("digamma", w)


def _log_growth(z: Tensor) -> Tensor:
    """α ln(1 + 1/α), from 0 to 1. Beyond z = 40 it is 1 to double precision, and e^z may overflow."""
    z = z.clamp(max=40.0)
    return z.exp() * softplus(-z)
