"""Fit the functions behind `beliefmatch._special` and the fast kernels, and write `_coefficients.py`.

With w = 1/(1+α) the gamma function and its derivatives at 1+α are elementary plus a small remainder:

    lnΓ(1+α) = (α+½) ln(1+α) − (1+α) + ½ ln 2π + w·M(w)
    ψ(1+α)   = ln(1+α) − w·G(w)
    ψ′(1+α)  = w + w²·R(w)

M, G and R are smooth on the whole of w ∈ [0, 1] (α from ∞ down to 0) and vary by a few per cent, so one
quotient of two short polynomials serves every α, without branches. So does one longer polynomial, for
kernels that would rather not divide; these also take r(α) = α²ψ′(α) − α from one, and for x up to ½
e^x − 1. The fit minimises the largest relative error by Lawson's reweighting
of a linearised least-squares problem, in 90 digits.

    python tools/fit_special.py            prints the errors and rewrites the coefficients
    python tools/fit_special.py --check    exits 1 if the file on disk is not what the fit gives
"""

import argparse
import sys
from pathlib import Path

import mpmath as mp

mp.mp.dps = 90
PACKAGE = Path(__file__).parents[1] / "src" / "beliefmatch"
TARGET = PACKAGE / "_coefficients.py"
C_TARGET = PACKAGE / "kernels" / "cpp" / "coefficients.h"
RATIONAL_DEGREES = {"float32": (4, 4), "float64": (8, 8)}
POLYNOMIAL_DEGREES = {"float32": (8, 0), "float64": (22, 0)}
EXPM1_DEGREES = {"float32": (5, 0), "float64": (11, 0)}
A_LINE = 4
DIGITS = {"float32": 10, "float64": 18}
HEADER = '''"""Coefficients of the remainders in `special`; written by tools/fit_special.py, not by hand.

Polynomials in w = 1/(1+α), constant term first: `REMAINDERS` are pairs of numerator and denominator,
`POLYNOMIALS` the same functions without a division. There, "trigamma_excess" is α²ψ′(α) − α,
and "expm1" is (e^x − 1)/x for x from −½ to ½. `SHORT_POLYNOMIALS` are for float32 and few operations:
ln(1+α) − ψ(1+α), what A(α) has beside ½ ln(1+α) − z + ½ ln 2π, and α²ψ′(α) − α.
"""

__all__ = ["POLYNOMIALS", "REMAINDERS", "SHORT_POLYNOMIALS"]

# fmt: off
'''


C_HEADER = """// Remainders of lnΓ, ψ and ψ′ as polynomials in w = 1/(1+α), constant term first; those of e^x
// and ln(1+x) in x, beyond two terms of their series. Written by tools/fit_special.py, not by hand.
#pragma once

namespace beliefmatch {

"""
C_TYPES = {"float32": ("float", "F", "f"), "float64": ("double", "D", "")}


def lgamma_remainder(w):
    """M(w) = (lnΓ(1+α) − (α+½) ln(1+α) + (1+α) − ½ ln 2π) / w."""
    x = 1 / w
    return (mp.loggamma(x) - (x - mp.mpf(1) / 2) * mp.log(x) + x - mp.log(2 * mp.pi) / 2) * x


def digamma_remainder(w):
    """G(w) = (ln(1+α) − ψ(1+α)) / w."""
    x = 1 / w
    return (mp.log(x) - mp.psi(0, x)) * x


def trigamma_remainder(w):
    """R(w) = (ψ′(1+α) − w) / w²."""
    x = 1 / w
    return x * x * mp.psi(1, x) - x


def trigamma_excess(w):
    """r(α) = α²ψ′(α) − α = w + (1−w)² R(w)."""
    return w + (1 - w) ** 2 * trigamma_remainder(w)


def psi_remainder(w):
    """ln(1+α) − ψ(1+α)."""
    return w * digamma_remainder(w)


def entropy_remainder(w):
    """A(α) − ½ ln(1+α) + z − ½ ln 2π."""
    return w * lgamma_remainder(w) + (1 - w) * digamma_remainder(w)


def expm1(x):
    """(e^x − 1) / x."""
    return mp.expm1(x) / x


REMAINDERS = {
    "lgamma": (lgamma_remainder, mp.mpf(1) / 12, (0, 1)),
    "digamma": (digamma_remainder, mp.mpf(1) / 2, (0, 1)),
    "trigamma": (trigamma_remainder, mp.mpf(1) / 2, (0, 1)),
}
"""Each with its limit at 0 (α → ∞), which the fit keeps exactly, and its interval."""

POLYNOMIALS = {
    **REMAINDERS,
    "trigamma_excess": (trigamma_excess, mp.mpf(1) / 2, (0, 1)),
}
SHORT = {
    "psi_remainder": psi_remainder,
    "entropy_remainder": entropy_remainder,
    "trigamma_excess": trigamma_excess,
}
SHORT_LIMITS = {
    "psi_remainder": mp.mpf(0),
    "entropy_remainder": mp.mpf(1) / 2,
    "trigamma_excess": mp.mpf(1) / 2,
}
SHORT_DEGREE = 6
EXPM1 = {"expm1": (expm1, mp.mpf(1), (-mp.mpf(1) / 2, mp.mpf(1) / 2))}


def chebyshev_nodes(count, interval):
    low, high = interval
    middle, half = mp.mpf(low + high) / 2, mp.mpf(high - low) / 2
    return [middle - half * mp.cos(mp.pi * (2 * i + 1) / (2 * count)) for i in range(count)]


def solve_linearised(nodes, values, weights, denominator, degrees, limit):
    """Least squares for P − f·Q with P(0) = limit, Q(0) = 1, weighted by the previous denominator."""
    top, bottom = degrees
    rows = mp.matrix(len(nodes), top + bottom)
    right = mp.matrix(len(nodes), 1)
    for i, (w, f) in enumerate(zip(nodes, values, strict=True)):
        scale = mp.sqrt(weights[i]) / (denominator[i] * f)
        for k in range(1, top + 1):
            rows[i, k - 1] = scale * w**k
        for k in range(1, bottom + 1):
            rows[i, top + k - 1] = -scale * f * w**k
        right[i] = scale * (f - limit)
    solution = list(mp.lu_solve(rows.T * rows, rows.T * right))
    return [limit, *solution[:top]], [mp.mpf(1), *solution[top:]]


def evaluate(numerator, denominator, w):
    return mp.polyval(numerator[::-1], w) / mp.polyval(denominator[::-1], w)


def fit(function, limit, interval, degrees, rounds=12):
    """The rational function of the given degrees with the smallest relative error found."""
    nodes = chebyshev_nodes(10 * degrees[0], interval)
    values = [function(w) for w in nodes]
    weights, denominator_at = [mp.mpf(1)] * len(nodes), [mp.mpf(1)] * len(nodes)
    best = (mp.inf, [], [])
    for step in range(rounds):
        p, q = solve_linearised(nodes, values, weights, denominator_at, degrees, limit)
        denominator_at = [mp.polyval(q[::-1], w) for w in nodes]
        errors = [abs(evaluate(p, q, w) / f - 1) for w, f in zip(nodes, values, strict=True)]
        if max(errors) < best[0]:
            best = (max(errors), p, q)
        if step >= 2:  # the denominator has settled: push the weights towards the worst points
            weights = [x * (e + max(errors) / 1000) for x, e in zip(weights, errors, strict=True)]
            mean = mp.fsum(weights) / len(weights)
            weights = [x / mean for x in weights]
    return best[1], best[2]


def fit_absolutely(function, limit, degree, rounds=60):
    """The polynomial with P(0) = limit and the smallest absolute error found on [0, 1]."""
    nodes = chebyshev_nodes(10 * degree, (0, 1))
    values, weights, best = [function(w) for w in nodes], [mp.mpf(1)] * len(nodes), (mp.inf, [])
    for _ in range(rounds):
        roots = [mp.sqrt(weight) for weight in weights]
        rows = mp.matrix(
            [[root * w**k for k in range(1, degree + 1)] for root, w in zip(roots, nodes, strict=True)]
        )
        right = mp.matrix([root * (f - limit) for root, f in zip(roots, values, strict=True)])
        solution = [limit, *mp.lu_solve(rows.T * rows, rows.T * right)]
        errors = [abs(mp.polyval(solution[::-1], w) - f) for w, f in zip(nodes, values, strict=True)]
        if max(errors) < best[0]:
            best = (max(errors), solution)
        weights = [x * (e + max(errors) / 1000) for x, e in zip(weights, errors, strict=True)]
        mean = mp.fsum(weights) / len(weights)
        weights = [x / mean for x in weights]
    return best[1]


def rounded(coefficients, dtype):
    return [mp.mpf(mp.nstr(c, DIGITS[dtype])) for c in coefficients]


def listing(coefficients, dtype, indent):
    numbers = [f"{mp.nstr(c, DIGITS[dtype])}," for c in coefficients]
    lines = [" ".join(numbers[i : i + A_LINE]) for i in range(0, len(numbers), A_LINE)]
    return "(\n" + "".join(f"{indent}    {line}\n" for line in lines) + f"{indent})"


def fits(functions, degrees, errors):
    """Numerator and denominator for each function and type; fills in the largest relative errors."""
    for name, (function, limit, interval) in functions.items():
        grid = chebyshev_nodes(998, interval)
        exact = [function(w) for w in grid]
        for dtype, pair in degrees.items():
            p, q = (rounded(side, dtype) for side in fit(function, limit, interval, pair))
            worst = max(abs(evaluate(p, q, w) / f - 1) for w, f in zip(grid, exact, strict=True))
            errors[name, dtype, "rational" if pair[1] else "polynomial"] = worst
            yield f'("{name}", "{dtype}")', dtype, p, q


def render():
    """The text of `_coefficients.py` and of `coefficients.h`, and the largest relative error of each fit."""
    lines, c_lines, errors = [HEADER + "REMAINDERS = {\n"], [C_HEADER], {}
    for key, dtype, p, q in fits(REMAINDERS, RATIONAL_DEGREES, errors):
        sides = "".join(f"        {listing(side, dtype, ' ' * 8)},\n" for side in (p, q))
        lines.append(f"    {key}: (\n{sides}    ),\n")
    lines.append("}\n\nPOLYNOMIALS = {\n")
    polynomials = fits(POLYNOMIALS, POLYNOMIAL_DEGREES, errors)
    for key, dtype, p, _ in [*polynomials, *fits(EXPM1, EXPM1_DEGREES, errors)]:
        lines.append(f"    {key}: {listing(p, dtype, ' ' * 4)},\n")
        name = key.split('"')[1]
        if name in REMAINDERS:
            c_lines.append(c_array(name, dtype, p))
    lines.append("}\n\nSHORT_POLYNOMIALS = {\n")
    for name, function in SHORT.items():
        p = rounded(fit_absolutely(function, SHORT_LIMITS[name], SHORT_DEGREE), "float32")
        grid = chebyshev_nodes(998, (0, 1))
        errors[name, "float32", "short"] = max(abs(mp.polyval(p[::-1], w) - function(w)) for w in grid)
        lines.append(f'    "{name}": {listing(p, "float32", " " * 4)},\n')
    c_text = "".join([*c_lines, *c_arrays(), "\n} // namespace beliefmatch\n"])
    return "".join([*lines, "}\n"]), c_text, errors


def c_arrays():
    """Polynomials of the native kernel alone: shorter remainders, r whole, and two tails of series."""
    for name, (function, limit, interval) in REMAINDERS.items():
        yield c_array(f"short_{name}", "float64", fit(function, limit, interval, (12, 0))[0])
    yield c_array("excess", "float32", fit(trigamma_excess, mp.mpf(1) / 2, (0, 1), (9, 0))[0])
    half_ln2, root = mp.log(2) / 2, mp.sqrt(2)
    yield c_array("exponential", "float32", tail(mp.expm1, (-half_ln2, half_ln2), 5))
    yield c_array("logarithm", "float32", tail(mp.log1p, (1 / root - 1, root - 1), 8))


def tail(function, interval, count):
    """q with function(f) = f + f² q(f): interpolated at Chebyshev nodes."""
    nodes = [f if abs(f) > 1e-20 else mp.mpf(10) ** -20 for f in chebyshev_nodes(count, interval)]
    powers = mp.matrix([[f**k for k in range(count)] for f in nodes])
    return list(mp.lu_solve(powers, mp.matrix([(function(f) - f) / f**2 for f in nodes])))


def c_array(name, dtype, coefficients):
    """One constant array: LGAMMA_F for the float32 polynomial of "lgamma", and so on."""
    kind, letter, suffix = C_TYPES[dtype]
    values = ",\n".join(f"    {mp.nstr(c, DIGITS[dtype])}{suffix}" for c in coefficients)
    return f"constexpr {kind} {name.upper()}_{letter}[] = {{\n{values}}};\n"


def main():
    parser = argparse.ArgumentParser(description="Fit the remainders of lnΓ, ψ and ψ′.")
    parser.add_argument("--check", action="store_true", help="compare with the file, write nothing")
    args = parser.parse_args()
    text, c_text, errors = render()
    for (name, dtype, form), error in errors.items():
        kind = "absolute" if form == "short" else "relative"
        print(f"{name:17s} {dtype} {form:10s}  largest {kind} error {mp.nstr(error, 3)}")
    if args.check:
        same = TARGET.read_text(encoding="utf-8") == text and C_TARGET.read_text(encoding="utf-8") == c_text
        sys.exit(0 if same else "coefficients differ")
    TARGET.write_text(text, encoding="utf-8")
    C_TARGET.write_text(c_text, encoding="utf-8")


if __name__ == "__main__":
    main()
