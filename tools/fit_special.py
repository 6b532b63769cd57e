"""Fit the rational functions behind `beliefmatch.special` and write `_coefficients.py`.

With w = 1/(1+α) the gamma function and its derivatives at 1+α are elementary plus a small remainder:

    lnΓ(1+α) = (α+½) ln(1+α) − (1+α) + ½ ln 2π + w·M(w)
    ψ(1+α)   = ln(1+α) − w·G(w)
    ψ′(1+α)  = w + w²·R(w)

M, G and R are smooth on the whole of w ∈ [0, 1] (α from ∞ down to 0) and vary by a few per cent, so one
quotient of two short polynomials serves every α, without branches. The fit minimises the largest
relative error by Lawson's reweighting of a linearised least-squares problem, in 90 digits.

    python tools/fit_special.py            prints the errors and rewrites the coefficients
    python tools/fit_special.py --check    exits 1 if the file on disk is not what the fit gives
"""

import argparse
import sys
from pathlib import Path

import mpmath as mp

mp.mp.dps = 90
TARGET = Path(__file__).parents[1] / "src" / "beliefmatch" / "_coefficients.py"
DEGREES = {"float32": 4, "float64": 8}
DIGITS = {"float32": 10, "float64": 18}
HEADER = '''"""Coefficients of the remainders in `special`; written by tools/fit_special.py, not by hand.

Each pair is (numerator, denominator) of a polynomial in w = 1/(1+α), constant term first.
"""

__all__ = ["REMAINDERS"]

'''


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


FUNCTIONS = {
    "lgamma": (lgamma_remainder, mp.mpf(1) / 12),
    "digamma": (digamma_remainder, mp.mpf(1) / 2),
    "trigamma": (trigamma_remainder, mp.mpf(1) / 2),
}
"""Each with its limit at w = 0 (α → ∞), which the fit keeps exactly."""


def chebyshev_nodes(count):
    return [(1 - mp.cos(mp.pi * (2 * i + 1) / (2 * count))) / 2 for i in range(count)]


def solve_linearised(nodes, values, weights, denominator, degree, limit):
    """Least squares for P − f·Q with P(0) = limit, Q(0) = 1, weighted by the previous denominator."""
    rows = mp.matrix(len(nodes), 2 * degree)
    right = mp.matrix(len(nodes), 1)
    for i, (w, f) in enumerate(zip(nodes, values, strict=True)):
        scale = mp.sqrt(weights[i]) / (denominator[i] * f)
        for k in range(1, degree + 1):
            rows[i, k - 1] = scale * w**k
            rows[i, degree + k - 1] = -scale * f * w**k
        right[i] = scale * (f - limit)
    solution = list(mp.lu_solve(rows.T * rows, rows.T * right))
    return [limit, *solution[:degree]], [mp.mpf(1), *solution[degree:]]


def evaluate(numerator, denominator, w):
    return mp.polyval(numerator[::-1], w) / mp.polyval(denominator[::-1], w)


def fit(function, limit, degree, rounds=12):
    """The rational function of the given degree with the smallest relative error found."""
    nodes = chebyshev_nodes(10 * degree)
    values = [function(w) for w in nodes]
    weights, denominator_at = [mp.mpf(1)] * len(nodes), [mp.mpf(1)] * len(nodes)
    best = (mp.inf, [], [])
    for step in range(rounds):
        p, q = solve_linearised(nodes, values, weights, denominator_at, degree, limit)
        denominator_at = [mp.polyval(q[::-1], w) for w in nodes]
        errors = [abs(evaluate(p, q, w) / f - 1) for w, f in zip(nodes, values, strict=True)]
        if max(errors) < best[0]:
            best = (max(errors), p, q)
        if step >= 2:  # the denominator has settled: push the weights towards the worst points
            weights = [x * (e + max(errors) / 1000) for x, e in zip(weights, errors, strict=True)]
            mean = mp.fsum(weights) / len(weights)
            weights = [x / mean for x in weights]
    return best[1], best[2]


def render():
    """The text of `_coefficients.py`, and the largest relative error of each fit."""
    lines, errors = [HEADER + "REMAINDERS = {\n"], {}
    grid = chebyshev_nodes(997)
    for name, (function, limit) in FUNCTIONS.items():
        for dtype, degree in DEGREES.items():
            p, q = fit(function, limit, degree)
            p, q = ([mp.mpf(mp.nstr(c, DIGITS[dtype])) for c in side] for side in (p, q))
            errors[name, dtype] = max(abs(evaluate(p, q, w) / function(w) - 1) for w in grid)
            lines.append(f'    ("{name}", "{dtype}"): (\n')
            for side in (p, q):
                body = "".join(f"            {mp.nstr(c, DIGITS[dtype])},\n" for c in side)
                lines.append(f"        (\n{body}        ),\n")
            lines.append("    ),\n")
    return "".join([*lines, "}\n"]), errors


def main():
    parser = argparse.ArgumentParser(description="Fit the remainders of lnΓ, ψ and ψ′.")
    parser.add_argument("--check", action="store_true", help="compare with the file, write nothing")
    args = parser.parse_args()
    text, errors = render()
    for (name, dtype), error in errors.items():
        print(f"{name:9s} {dtype}  largest relative error {mp.nstr(error, 3)}")
    if args.check:
        sys.exit(0 if TARGET.read_text(encoding="utf-8") == text else "coefficients differ")
    TARGET.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
