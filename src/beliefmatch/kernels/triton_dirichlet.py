"""Measures of a Dirichlet, and the divergence between two with its gradients, in Triton.

The formulas of `dirichlet`, in the working type throughout.
"""

# pyright: reportGeneralTypeIssues=false, reportArgumentType=false
# Triton compiles these functions; to a type checker they never return.

from typing import Any, NamedTuple

import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]

from beliefmatch.kernels.triton_loss import LARGEST_LOSS, LossRows, exact_loss, split_rows
from beliefmatch.kernels.triton_math import (
    INFINITY,
    bounded,
    digamma_gap,
    digamma_gap_grad,
    digamma_next,
    digamma_next_grad,
    growth_of,
    largest_exponent,
    lgamma_stirling,
    lgamma_stirling_grad,
    log_next,
    trigamma_excess,
)
from beliefmatch.kernels.triton_rows import classes_from, largest_class, most, rows_of_program, total

ENTROPY, EXPECTED_ENTROPY, MUTUAL_INFORMATION, DIFFERENTIAL_ENTROPY = map(tl.constexpr, range(4))


@triton.jit
def _store_value(values, value, exists):
    """Saturating; NaN stays NaN."""
    limited = tl.minimum(tl.maximum(value, -LARGEST_LOSS), LARGEST_LOSS)
    tl.store(values, tl.where(value == value, limited, value), mask=exists)


@triton.jit
def _entropies(
    logits, stride, exists, classes, MEASURE: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr
):
    """A measure that is an expectation under the mean, from sums over all classes but the largest."""
    top, place, is_number = largest_class(logits, stride, exists, classes, BLOCK, WIDE)
    nothing = tl.zeros_like(top)
    rest, distances, digammas, gaps = nothing, nothing, nothing, nothing
    for start in range(0, classes, BLOCK):
        k = classes_from(start, BLOCK)
        is_other = exists & (k < classes) & (k != place)
        z = bounded(tl.load(logits + k * stride, mask=is_other, other=0.0).to(WIDE))
        power = tl.where(is_other, tl.exp(tl.minimum(z - top, 0.0)), 0.0)
        rest += total(power)
        if MEASURE != EXPECTED_ENTROPY:
            distances += total(power * (z - top))
        if MEASURE != ENTROPY:
            digammas += total(power * digamma_next(z))
        if MEASURE == MUTUAL_INFORMATION:
            gaps += total(power * digamma_gap(z))
    share, gap = 1 / (1 + rest), log_next(rest)
    log_total, middle, alike = top + gap, top + 0.5 * gap, gap < 1e-5
    entropy = gap - distances * share
    drop = digamma_next(log_total) - digamma_next(top)
    drop = tl.where(alike, gap * digamma_next_grad(middle), drop)
    expected = tl.maximum(share * (drop + rest * digamma_next(log_total) - digammas), 0.0)
    value = expected if MEASURE == EXPECTED_ENTROPY else entropy
    if MEASURE == MUTUAL_INFORMATION:
        drop = digamma_gap(log_total) - digamma_gap(top)
        drop = tl.where(alike, gap * digamma_gap_grad(middle), drop)
        spread = share * (gaps - rest * digamma_gap(top)) - drop
        # below a total of one the entropy is the larger by far
        value = tl.maximum(tl.where(log_total > 0, spread, entropy - expected), 0.0)
    return tl.where(is_number, value, INFINITY - INFINITY)


@triton.jit
def _differential_entropy(logits, stride, exists, classes, label, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    """Minus the divergence from the uniform Dirichlet without its constant: a loss without votes."""
    one = tl.zeros_like(label).to(WIDE) + 1
    numbers = one, 0.0, 0.0, 0.0, 0.0, one, one - 1
    rows = LossRows(exists, classes, logits, stride, label, None, 0, None, None, 0, *numbers)
    at = split_rows(rows, BLOCK)
    return tl.where(at.is_number, -exact_loss(rows, at), INFINITY - INFINITY)


@triton.jit
def measure_kernel(
    logits,
    values,
    outer,
    classes,
    inner,
    logits_outer,
    logits_class,
    logits_inner,
    MEASURE: tl.constexpr,
    HAS_INNER: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
):
    """A measure, one a row. Logits are of shape (outer, classes, inner), with a stride for each."""
    i, j, exists = rows_of_program(outer, inner, HAS_INNER, ROWS)
    logits += i * logits_outer + j * logits_inner
    if MEASURE == DIFFERENTIAL_ENTROPY:
        no_label = tl.zeros_like(i) - 1
        value = _differential_entropy(logits, logits_class, exists, classes, no_label, BLOCK, WIDE)
    else:
        value = _entropies(logits, logits_class, exists, classes, MEASURE, BLOCK, WIDE)
    _store_value(values + i * inner + j, value, exists)


# The divergence of γ = e^q from α = e^p


class Pair(NamedTuple):
    """What a program reads of both, as pointers and as numbers of shape (rows, 1); see `dirichlet._Pair`."""

    exists: Any
    classes: Any
    p: Any
    p_stride: Any
    q: Any
    q_stride: Any
    p_top: Any
    q_top: Any
    p_rest: Any
    q_rest: Any
    p_total: Any
    """ln α₀."""
    q_total: Any
    at_top: Any
    """δ of p's largest class."""
    shift: Any
    """δ₀ − that."""
    is_exact: Any
    """Whether differences are counted from p's largest class."""
    delta_total: Any
    """δ₀."""
    farthest: Any
    """The largest δ."""
    is_number: Any


@triton.jit
def _limited(z):
    """z, so that its power and sums of such powers are finite."""
    return bounded(tl.minimum(z, 0.9 * largest_exponent(z)))


@triton.jit
def _logits_at(row, stride, exists, classes, k, WIDE: tl.constexpr):
    return _limited(tl.load(row + k * stride, mask=exists & (k < classes), other=0.0).to(WIDE))


@triton.jit
def _growth(delta):
    """e^δ − 1, far enough below the largest value that sums stay finite."""
    return growth_of(tl.minimum(delta, 0.95 * largest_exponent(delta)))


@triton.jit
def _pair(exists, classes, p, p_stride, q, q_stride, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    p_top, place, p_is_number = largest_class(p, p_stride, exists, classes, BLOCK, WIDE)
    q_top, q_place, q_is_number = largest_class(q, q_stride, exists, classes, BLOCK, WIDE)
    p_top, q_top = _limited(p_top), _limited(q_top)
    at_top = _logits_at(q, q_stride, exists, classes, place, WIDE) - p_top
    nothing = tl.zeros_like(p_top)
    p_rest, q_rest, moved, widest, highest = nothing, nothing, nothing, nothing, nothing - INFINITY
    for start in range(0, classes, BLOCK):
        k = classes_from(start, BLOCK)
        is_class = exists & (k < classes)
        at_p = _logits_at(p, p_stride, exists, classes, k, WIDE)
        at_q = _logits_at(q, q_stride, exists, classes, k, WIDE)
        power, variation = tl.exp(at_p - p_top), (at_q - at_p) - at_top
        p_rest += total(tl.where(is_class & (k != place), power, 0.0))
        q_rest += total(tl.where(is_class & (k != q_place), tl.exp(at_q - q_top), 0.0))
        grown = growth_of(tl.minimum(tl.maximum(variation, -50.0), 30.0))
        moved += total(tl.where(is_class, power * grown, 0.0))
        widest = tl.maximum(widest, most(tl.where(is_class, tl.abs(variation), 0.0)))
        highest = tl.maximum(highest, most(tl.where(is_class, variation, -INFINITY)))
    p_total, q_total = p_top + log_next(p_rest), q_top + log_next(q_rest)
    shift = log_next(moved / (1 + p_rest))
    is_exact = (widest < 0.5) | ((p_rest < 1) & (highest < 30))
    delta_total = tl.where(is_exact, at_top + shift, q_total - p_total)
    is_number = p_is_number & q_is_number
    tops = p_top, q_top, p_rest, q_rest, p_total, q_total
    return Pair(
        exists,
        classes,
        p,
        p_stride,
        q,
        q_stride,
        *tops,
        at_top,
        shift,
        is_exact,
        delta_total,
        at_top + highest,
        is_number,
    )


class Classes(NamedTuple):
    """Some classes of a pair: logits, shares of the totals, δ and x = δ − δ₀."""

    k: Any
    exists: Any
    p: Any
    q: Any
    p_share: Any
    q_share: Any
    delta: Any
    x: Any


@triton.jit
def _classes(pair, start, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    k = classes_from(start, BLOCK)
    p = _logits_at(pair.p, pair.p_stride, pair.exists, pair.classes, k, WIDE)
    q = _logits_at(pair.q, pair.q_stride, pair.exists, pair.classes, k, WIDE)
    delta = q - p
    x = tl.where(pair.is_exact, (delta - pair.at_top) - pair.shift, delta - (pair.q_total - pair.p_total))
    p_share, q_share = tl.exp(p - pair.p_top) / (1 + pair.p_rest), tl.exp(q - pair.q_top) / (1 + pair.q_rest)
    return Classes(k, pair.exists & (k < pair.classes), p, q, p_share, q_share, delta, x)


@triton.jit
def _mean_terms(at):
    """q ln(q/p) − q + p ≥ 0 of the means."""
    small = tl.abs(at.x) < 0.02
    y = tl.where(small, at.x, 0.0)
    series = y * y * (1 / 2 + y * (1 / 3 + y * (1 / 8 + y * (1 / 30 + y * (1 / 144 + y * (1 / 840))))))
    large = tl.where(at.q_share > 0, at.q_share * at.x, 0.0) - at.q_share + at.p_share
    return tl.where(small, at.p_share * series, large)


@triton.jit
def _bregman(z_alpha, z_gamma, delta):
    """E(γ, α), about ½ r(α) δ² for small δ."""
    drop = lgamma_stirling(z_gamma) - lgamma_stirling(z_alpha)
    return drop - _growth(delta) * lgamma_stirling_grad(z_alpha)


@triton.jit
def _divergence(pair, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    means, spread = tl.zeros_like(pair.p_top), -_bregman(pair.p_total, pair.q_total, pair.delta_total)
    for start in range(0, pair.classes, BLOCK):
        at = _classes(pair, start, BLOCK, WIDE)
        means += total(tl.where(at.exists, _mean_terms(at), 0.0))
        spread += total(tl.where(at.exists, _bregman(at.p, at.q, at.delta), 0.0))
    value = tl.exp(pair.q_total) * means + spread
    is_beyond = pair.farthest > 0.99 * largest_exponent(value)  # e^δ out of range: so is the pole γ/α
    value = tl.maximum(tl.where(is_beyond, INFINITY, value), 0.0)
    return tl.where(pair.is_number, value, INFINITY - INFINITY)


@triton.jit
def _grad_by_p(pair, at):
    """γ_k (e^−x − 1) − r(α_k)(e^δ − 1) + (α_k/α₀) r(α₀)(e^δ₀ − 1)."""
    x = tl.minimum(tl.maximum(at.x, -1.0), 1.0)
    means = tl.where(
        tl.abs(at.x) < 1, tl.exp(at.q) * growth_of(-x), tl.exp(pair.q_total) * (at.p_share - at.q_share)
    )
    each = trigamma_excess(at.p) * _growth(at.delta)
    return means - each + at.p_share * (trigamma_excess(pair.p_total) * _growth(pair.delta_total))


@triton.jit
def _grad_by_q(pair, at):
    """γ_k [x_k + (ψ(γ_k) − ln γ_k) − (ψ(α_k) − ln α_k) − the same of the totals]."""
    each = _stirling_step(at.p, at.q, at.delta)
    common = _stirling_step(pair.p_total, pair.q_total, pair.delta_total)
    return tl.exp(at.q) * at.x + each - at.q_share * common


@triton.jit
def _stirling_step(z_alpha, z_gamma, delta):
    before = lgamma_stirling_grad(z_alpha)
    return lgamma_stirling_grad(z_gamma) - before - _growth(delta) * before


@triton.jit
def _store_grad(row, stride, pair, at, grad, upstream, limit):
    limited = tl.where(grad == grad, tl.minimum(tl.maximum(grad, -limit), limit), grad)
    scaled = tl.where(pair.is_number, limited, INFINITY - INFINITY) * upstream
    tl.store(row + at.k * stride, scaled.to(tl.float32), mask=at.exists)


@triton.jit
def divergence_kernel(
    p,
    q,
    values,
    upstream,
    by_p,
    by_q,
    outer,
    classes,
    inner,
    p_outer,
    p_class,
    p_inner,
    q_outer,
    q_class,
    q_inner,
    by_p_outer,
    by_p_class,
    by_p_inner,
    by_q_outer,
    by_q_class,
    by_q_inner,
    p_limit,
    q_limit,
    HAS_INNER: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
):
    """The divergence, one a row, or its gradients times the upstream gradient of the row.

    Tensors are of shape (outer, classes, inner), with a stride for each.
    """
    i, j, exists = rows_of_program(outer, inner, HAS_INNER, ROWS)
    row = i * inner + j
    p += i * p_outer + j * p_inner
    q += i * q_outer + j * q_inner
    pair = _pair(exists, classes, p, p_class, q, q_class, BLOCK, WIDE)
    if values is not None:
        _store_value(values + row, _divergence(pair, BLOCK, WIDE), exists)
    else:
        factor = tl.load(upstream + row, mask=exists, other=0.0).to(WIDE)
        for start in range(0, classes, BLOCK):
            at = _classes(pair, start, BLOCK, WIDE)
            if by_p is not None:
                to = by_p + i * by_p_outer + j * by_p_inner
                _store_grad(to, by_p_class, pair, at, _grad_by_p(pair, at), factor, p_limit)
            if by_q is not None:
                to = by_q + i * by_q_outer + j * by_q_inner
                _store_grad(to, by_q_class, pair, at, _grad_by_q(pair, at), factor, q_limit)
