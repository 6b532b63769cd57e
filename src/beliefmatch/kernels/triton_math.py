"""Functions of one logit z = ln α in Triton: those of `_special` in the working type, and a few in float32.

Triton has neither log1p nor expm1 nor gamma functions, and its float32 exponential and logarithm are
approximate on a device and exact in the interpreter. What is written here in additions and multiplications
is the same on both. w = 1/(1+α) throughout, x = 1 − w; G, M, R and r are those of docs/mathematics.md.
"""

# pyright: reportGeneralTypeIssues=false, reportArgumentType=false
# Triton compiles these functions; to a type checker they never return.

import math

import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]

from beliefmatch._coefficients import POLYNOMIALS, REMAINDERS


def _times_w(coefficients: tuple[float, ...]) -> tuple[float, ...]:
    return (0.0, *coefficients)


def _derivative(coefficients: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(n * c for n, c in enumerate(coefficients))[1:]


def _entropy_part(lgamma: tuple[float, ...], digamma: tuple[float, ...]) -> tuple[float, ...]:
    """w M + (1 − w) G."""
    own = *digamma, 0.0
    return tuple(g + m - h for g, m, h in zip(own, _times_w(lgamma), _times_w(digamma), strict=True))


# Functions of Triton see no other globals than these.
HALF_LN_2PI = tl.constexpr(0.5 * math.log(2 * math.pi))
INFINITY = tl.constexpr(math.inf)
(_M, _OVER_M), (_G, _OVER_G), (_R, _OVER_R) = (
    map(tl.constexpr, REMAINDERS[name, "float64"]) for name in ("lgamma", "digamma", "trigamma")
)
_EXCESS_BY_W = tl.constexpr(_derivative(POLYNOMIALS["trigamma_excess", "float64"]))
LGAMMA, DIGAMMA, EXCESS = (
    tl.constexpr(POLYNOMIALS[name, "float32"]) for name in ("lgamma", "digamma", "trigamma_excess")
)
"""M, G and r, of nine coefficients each."""
DIGAMMA_PART = tl.constexpr(_times_w(POLYNOMIALS["digamma", "float32"]))
ENTROPY_PART = tl.constexpr(
    _entropy_part(POLYNOMIALS["lgamma", "float32"], POLYNOMIALS["digamma", "float32"])
)
"""wG and wM + (1−w)G, of ten."""
_GROWTH = tl.constexpr(POLYNOMIALS["expm1", "float32"])
_INVERSE_ODD = tl.constexpr(tuple(1 / n for n in range(1, 12, 2)))
# ln 2 in two parts, of which the first times any exponent is exact
_LN2_HIGH, _LN2_LOW, _LOG2_E = (
    tl.constexpr(0.693359375),
    tl.constexpr(-2.12194440e-4),
    tl.constexpr(math.log2(math.e)),
)


@triton.jit
def polynomial(coefficients: tl.constexpr, w, count: tl.constexpr = 9):
    """Constant term first."""
    value = tl.zeros_like(w) + coefficients[count - 1]
    for i in tl.static_range(count - 1):
        value = value * w + coefficients[count - 2 - i]
    return value


@triton.jit
def divided_difference(coefficients: tl.constexpr, a, b, count: tl.constexpr = 9):
    """(P(a) − P(b)) / (a − b), without the difference."""
    slope, value = tl.zeros_like(a), tl.zeros_like(a)
    for i in tl.static_range(count):
        slope = slope * a + value
        value = value * b + coefficients[count - 1 - i]
    return slope


@triton.jit
def exponential(x, lost):
    """e^(x + lost) and that minus one, both to the digits of float32, for |x| < 87 and a tiny `lost`."""
    n = tl.floor(x * _LOG2_E + 0.5)
    r = ((x - n * _LN2_HIGH) - n * _LN2_LOW) + lost
    scale = ((n.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)
    growth = scale * (r * polynomial(_GROWTH, r, 6))
    return scale + growth, (scale - 1) + growth


@triton.jit
def logarithm(x):
    """ln x to the digits of float32, for normal x."""
    shifted = x.to(tl.int32, bitcast=True) - 0x3F3504F3  # of √½
    n = (shifted >> 23).to(tl.float32)
    mantissa = ((shifted & 0x007FFFFF) + 0x3F3504F3).to(tl.float32, bitcast=True)
    s = (mantissa - 1) / (mantissa + 1)
    return n * _LN2_HIGH + (2 * s * polynomial(_INVERSE_ODD, s * s, 6) + n * _LN2_LOW)


@triton.jit
def log_next(x):
    """ln(1 + x) for finite x > −1, to all its digits."""
    next = 1 + x
    step = next - 1
    is_tiny = step == 0
    return tl.where(is_tiny, x, tl.log(next) * (x / tl.where(is_tiny, 1.0, step)))


@triton.jit
def growth_of(x):
    """e^x − 1, to all its digits."""
    power = tl.exp(x)
    logarithm_of = tl.log(power)
    is_usual = (power != 1) & (power > 0)
    grown = (power - 1) * (x / tl.where(is_usual, logarithm_of, 1.0))
    return tl.where(is_usual, grown, tl.where(power > 0, x, -1.0))


@triton.jit
def largest(x):
    """The largest finite number of x's type, with a little to spare."""
    number = tl.zeros_like(x)
    if x.dtype == tl.float64:
        number += 1.797e308
    else:
        number += 3.402e38
    return number


@triton.jit
def largest_exponent(x):
    """About the largest exponent whose power is finite."""
    number = tl.zeros_like(x)
    if x.dtype == tl.float64:
        number += 709.7
    else:
        number += 88.7
    return number


@triton.jit
def bounded(z):
    """z, with headroom for sums."""
    if z.dtype == tl.float64:
        limited = tl.minimum(tl.maximum(z, -1e292), 1e292)
    else:
        limited = tl.minimum(tl.maximum(z, -4e36), 4e36)
    return limited


@triton.jit
def sigmoid(z):
    """x = α/(1+α)."""
    return 1 / (1 + tl.exp(-z))


@triton.jit
def softplus(z):
    """ln(1+α)."""
    return tl.maximum(z, 0.0) + log_next(tl.exp(-tl.abs(z)))


@triton.jit
def exp_saturating(z):
    """e^z, stopping at the largest finite value."""
    limit = largest_exponent(z)
    return tl.where(z > limit, largest(z), tl.exp(tl.minimum(z, limit)))


@triton.jit
def _remainder(numerator: tl.constexpr, denominator: tl.constexpr, w):
    return polynomial(numerator, w) / polynomial(denominator, w)


@triton.jit
def digamma_next(z):
    """ψ(1+α)."""
    w = sigmoid(-z)
    return softplus(z) - w * _remainder(_G, _OVER_G, w)


@triton.jit
def digamma_next_grad(z):
    """dψ(1+α)/dz."""
    w = sigmoid(-z)
    return sigmoid(z) * (1 + w * _remainder(_R, _OVER_R, w))


@triton.jit
def digamma_gap(z):
    """ψ(1+α) − ln α."""
    w = sigmoid(-z)
    return softplus(-z) - w * _remainder(_G, _OVER_G, w)


@triton.jit
def digamma_gap_grad(z):
    """d(ψ(1+α) − ln α)/dz."""
    w = sigmoid(-z)
    return -w * (1 - sigmoid(z) * _remainder(_R, _OVER_R, w))


@triton.jit
def trigamma_excess(z):
    """r(α) = α²ψ′(α) − α."""
    w, x = sigmoid(-z), sigmoid(z)
    return w + x * x * _remainder(_R, _OVER_R, w)


@triton.jit
def trigamma_excess_grad(z):
    """dr/dz."""
    w = sigmoid(-z)
    return -w * sigmoid(z) * polynomial(_EXCESS_BY_W, w, 22)


@triton.jit
def digamma_grad(z):
    """t(α) = αψ′(α)."""
    return 1 + trigamma_excess(z) * exp_saturating(-z)


@triton.jit
def lgamma_entropy(z):
    """A(α) = lnΓ(α) − αψ(α) + α."""
    w = sigmoid(-z)
    bounded = w * _remainder(_M, _OVER_M, w) + sigmoid(z) * _remainder(_G, _OVER_G, w) + HALF_LN_2PI
    return 0.5 * softplus(z) - z + bounded


@triton.jit
def lgamma(x):
    """lnΓ(x) for x > 0."""
    next = 1 + x
    w = 1 / next
    stirling = (x + 0.5) * tl.log(next) - next + (w * _remainder(_M, _OVER_M, w) + HALF_LN_2PI)
    return stirling - tl.log(x)


@triton.jit
def lgamma_stirling(z):
    """B(α) = lnΓ(α) − α ln α + α."""
    w = sigmoid(-z)
    bounded = w * _remainder(_M, _OVER_M, w) + _log_growth(z) + (HALF_LN_2PI - 1)
    return 0.5 * softplus(z) - z + bounded


@triton.jit
def lgamma_stirling_grad(z):
    """dB/dz."""
    w = sigmoid(-z)
    return _log_growth(z) - 1 - sigmoid(z) * _remainder(_G, _OVER_G, w)


@triton.jit
def _log_growth(z):
    """α ln(1 + 1/α), from 0 to 1; beyond z = 40 it is 1, and e^z may overflow."""
    z = tl.minimum(z, 40.0)
    return tl.exp(z) * softplus(-z)
