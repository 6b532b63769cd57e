"""The loss and its gradient in Triton, in one launch; notation of docs/mathematics.md.

A program computes some rows, over blocks of their classes. Plain rows: in float32, one class, the label or
the largest, kept apart as in the native kernel, and differences of functions by divided differences. Rows
whose logits leave the range of float32 powers, or of whose terms little is left, are computed again in the
working type (double where the device has it), by the formulas of `elbo`.
"""

# pyright: reportGeneralTypeIssues=false, reportArgumentType=false
# Triton compiles these functions; to a type checker they never return.

from typing import Any, NamedTuple

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]

from beliefmatch.kernels.triton_math import (
    DIGAMMA,
    DIGAMMA_PART,
    ENTROPY_PART,
    EXCESS,
    HALF_LN_2PI,
    INFINITY,
    LGAMMA,
    bounded,
    digamma_grad,
    digamma_next,
    digamma_next_grad,
    divided_difference,
    exp_saturating,
    exponential,
    growth_of,
    largest_exponent,
    lgamma,
    lgamma_entropy,
    log_next,
    logarithm,
    polynomial,
    trigamma_excess,
    trigamma_excess_grad,
)
from beliefmatch.kernels.triton_rows import classes_from, largest_class, most, some_rows_of_program, total

PLAIN_RANGE = tl.constexpr(40.0)
"""Of |z|: α(1 + α) stays inside float32."""
KEPT_OF_LOSS = tl.constexpr(0.05)
KEPT_OF_GRADIENT = tl.constexpr(0.1)
"""The least part of their terms that may be left of a row's loss and of its largest gradient."""
CLOSE = tl.constexpr(0.5)
"""As in `elbo`."""
LARGEST_LOSS = tl.constexpr(torch.finfo(torch.float32).max)


class LossRows(NamedTuple):
    """What a program reads: pointers to its rows, of shape (rows, 1), and numbers of the same shape.

    Where the logits' counts, priors or class weights are None, the label and the number β are in their place.
    """

    exists: Any
    classes: Any
    logits: Any
    logits_stride: Any
    label: Any
    counts: Any
    counts_stride: Any
    class_weight: Any
    priors: Any
    priors_stride: Any
    prior: Any
    log_prior: Any
    log_prior_rest: Any
    """ln β to twice the digits of float32."""
    log_optimum: Any
    log_optimum_rest: Any
    """ln(β + 1/λ), as well."""
    kl_weight: Any
    log_normaliser: Any
    """Σ lnΓ(β) − lnΓ(β₀) of the number β."""


@triton.jit
def _logits_at(rows, k, other):
    mask = rows.exists & (k < rows.classes)
    return tl.load(rows.logits + k * rows.logits_stride, mask=mask, other=other)


@triton.jit
def _votes_at(rows, k, dtype: tl.constexpr):
    """c, class weights included."""
    mask = rows.exists & (k < rows.classes)
    if rows.counts is None:
        votes = (k == rows.label).to(dtype)
    else:
        votes = tl.load(rows.counts + k * rows.counts_stride, mask=mask, other=0.0).to(dtype)
        if rows.class_weight is not None:
            votes = votes * tl.load(rows.class_weight + k, mask=k < rows.classes, other=0.0).to(dtype)
    return votes


@triton.jit
def _prior_at(rows, k, dtype: tl.constexpr):
    """β."""
    mask = rows.exists & (k < rows.classes)
    if rows.priors is None:
        prior = rows.prior.to(dtype)
    else:
        prior = tl.load(rows.priors + k * rows.priors_stride, mask=mask, other=1.0).to(dtype)
    return prior


# Plain rows


class Block(NamedTuple):
    """Some classes of plain rows, in float32."""

    k: Any
    exists: Any
    z: Any
    votes: Any
    prior: Any
    alpha: Any
    beyond_prior: Any
    """α − β."""
    w: Any
    inverse: Any
    """1/α."""


class Sums(NamedTuple):
    """Of the classes that are not kept apart, and of the one that is its logit, votes, prior and place."""

    alpha: Any
    beyond_prior: Any
    votes: Any
    prior: Any
    data: Any
    """Σ c (1/α − ψ(1+α))."""
    divergence: Any
    """Σ β (1/α − ψ(1+α)) − A(α), without ½ ln 2π, and Σ lnΓ(β) of priors."""
    farthest: Any
    """The largest |z| of all classes; infinite for NaN."""
    z: Any
    own_votes: Any
    own_prior: Any
    place: Any


@triton.jit
def _block(rows, k, z, votes, prior, exists, UNIT_PRIOR: tl.constexpr):
    z = z.to(tl.float32)
    at = tl.minimum(tl.maximum(z, -PLAIN_RANGE), PLAIN_RANGE)  # rows beyond are computed again
    if rows.priors is not None:
        alpha, beyond_prior = exponential(at, 0.0)
        beyond_prior = alpha - prior
    elif UNIT_PRIOR:
        alpha, beyond_prior = exponential(at, 0.0)
    else:
        # z − ln β and what its rounding lost, which for a large z is much of a step of α
        level = at - rows.log_prior
        back = level - at
        lost = (at - (level - back)) - (rows.log_prior + back)
        alpha, beyond_prior = exponential(level, lost - rows.log_prior_rest)
        alpha, beyond_prior = alpha * prior, beyond_prior * prior
    both = 1 / (alpha * (1 + alpha))
    w = both * alpha
    return Block(k, exists, z, votes, prior, alpha, beyond_prior, w, both + w)


@triton.jit
def _load_block(rows, start, BLOCK: tl.constexpr, UNIT_PRIOR: tl.constexpr):
    k = classes_from(start, BLOCK)
    votes, prior = _votes_at(rows, k, tl.float32), _prior_at(rows, k, tl.float32)
    return _block(
        rows, k, _logits_at(rows, k, 0.0), votes, prior, rows.exists & (k < rows.classes), UNIT_PRIOR
    )


@triton.jit
def _no_sums(rows, dtype: tl.constexpr):
    nothing = tl.zeros_like(rows.kl_weight).to(dtype)
    place, lowest, own_votes = rows.label, nothing, nothing + 1
    if rows.counts is not None:
        lowest = nothing - INFINITY
    return Sums(
        nothing, nothing, nothing, nothing, nothing, nothing, nothing, lowest, own_votes, nothing, place
    )


@triton.jit
def _added(sums, rows, block, mask):
    """The sums with those of a block's classes in the mask."""
    log_of_next, g = logarithm(1 + block.alpha), polynomial(DIGAMMA, block.w)
    likelihood = block.w * g + block.inverse - log_of_next
    entropy = block.z - 0.5 * log_of_next - block.w * polynomial(LGAMMA, block.w) - (1 - block.w) * g
    divergence = block.prior * likelihood + entropy
    wide: tl.constexpr = sums.alpha.dtype
    votes, prior, data = sums.votes, sums.prior, sums.data
    if rows.priors is not None:
        divergence += _plain_lgamma(block.prior)
        prior += total(tl.where(mask, block.prior, 0.0)).to(wide)
    if rows.counts is not None:
        votes += total(tl.where(mask, block.votes, 0.0)).to(wide)
        data += total(tl.where(mask, block.votes * likelihood, 0.0)).to(wide)
    return Sums(
        sums.alpha + total(tl.where(mask, block.alpha, 0.0)).to(wide),
        sums.beyond_prior + total(tl.where(mask, block.beyond_prior, 0.0)).to(wide),
        votes,
        prior,
        data,
        sums.divergence + total(tl.where(mask, divergence, 0.0)).to(wide),
        sums.farthest,
        sums.z,
        sums.own_votes,
        sums.own_prior,
        sums.place,
    )


@triton.jit
def _with_apart(sums, farthest, z, votes, prior, place):
    wide: tl.constexpr = sums.alpha.dtype
    own = z.to(wide), votes.to(wide), prior.to(wide)
    return Sums(
        sums.alpha,
        sums.beyond_prior,
        sums.votes,
        sums.prior,
        sums.data,
        sums.divergence,
        farthest,
        *own,
        place,
    )


@triton.jit
def _add_block(sums, rows, block, is_only: tl.constexpr, UNIT_PRIOR: tl.constexpr):
    """Online: the class kept apart is the label, or the largest of all that have been seen."""
    wide: tl.constexpr = sums.alpha.dtype
    size = tl.where(block.z == block.z, tl.abs(block.z), INFINITY)
    farthest = tl.maximum(sums.farthest, most(tl.where(block.exists, size, 0.0)).to(wide))
    if rows.counts is None:
        is_own = block.k == rows.label
        z = sums.z + total(tl.where(is_own, block.z, 0.0)).to(wide)
        prior = sums.own_prior + total(tl.where(is_own, block.prior, 0.0)).to(wide)
        if rows.priors is None:
            prior = rows.prior.to(wide)
        votes, place = sums.own_votes, sums.place
    else:
        z, at = tl.max(tl.where(block.exists, block.z, -INFINITY), 1, return_indices=True, keep_dims=True)
        place = tl.min(block.k, 1, keep_dims=True) + at
        is_own = block.k == place
        votes = total(tl.where(is_own, block.votes, 0.0))
        prior = total(tl.where(is_own, block.prior, 0.0))
        if not is_only:  # of two candidates the smaller joins the others
            is_new = z > sums.z
            joins = sums.z > -INFINITY
            lesser_z = tl.where(joins, tl.where(is_new, sums.z, z), 0.0).to(tl.float32)
            lesser_votes = tl.where(is_new, sums.own_votes, votes).to(tl.float32)
            lesser_prior = tl.where(joins, tl.where(is_new, sums.own_prior, prior), 1.0).to(tl.float32)
            lesser = _block(rows, place, lesser_z, lesser_votes, lesser_prior, joins, UNIT_PRIOR)
            sums = _added(sums, rows, lesser, joins & rows.exists)
            z = tl.where(is_new, z, sums.z)
            votes = tl.where(is_new, votes, sums.own_votes)
            prior = tl.where(is_new, prior, sums.own_prior)
            place = tl.where(is_new, place, sums.place)
    sums = _added(sums, rows, block, block.exists & ~is_own)
    return _with_apart(sums, farthest, z, votes, prior, place)


@triton.jit
def _plain_lgamma(x):
    next = 1 + x
    stirling = (x + 0.5) * logarithm(next) - next + polynomial(LGAMMA, 1 / next) / next
    return (stirling - logarithm(x)) + HALF_LN_2PI


@triton.jit
def _plain_log_next(x):
    """ln(1 + x) for x ≥ 0."""
    next = 1 + x
    step = next - 1
    is_tiny = step == 0
    return tl.where(is_tiny, x, logarithm(next) * (x / tl.where(is_tiny, 1.0, step)))


class Finished(NamedTuple):
    """What there is one of in a plain row."""

    loss: Any
    pull: Any
    """(M t₀ − λ r₀)/α₀."""
    lead: Any
    """t₀ Σd/α₀ = pull − λ, from terms that vanish at the optimum."""
    apart: Any
    """∂ℓ/∂z of the class kept apart."""
    is_plain: Any


@triton.jit
def _finish(rows, sums):
    kl_weight, rest = rows.kl_weight.to(tl.float32), sums.alpha.to(tl.float32)
    z = tl.minimum(tl.maximum(sums.z.to(tl.float32), -PLAIN_RANGE), PLAIN_RANGE)
    votes, own_votes = sums.votes.to(tl.float32), sums.own_votes.to(tl.float32)
    prior, own_prior = sums.prior.to(tl.float32), sums.own_prior.to(tl.float32)
    others_count = tl.zeros_like(z) + (rows.classes - 1)
    log_normaliser = rows.log_normaliser.to(tl.float32)
    if rows.priors is None:
        prior = own_prior * others_count
    else:
        log_normaliser = _plain_lgamma(own_prior) - _plain_lgamma(own_prior + prior)
    m, mass = own_votes + kl_weight * own_prior, votes + kl_weight * prior

    alpha, _ = exponential(z, 0.0)
    inverse, w = 1 / alpha, 1 / (1 + alpha)
    ratio, alpha_total = rest * inverse, alpha + rest
    share, w_total = 1 / (1 + ratio), 1 / (1 + alpha_total)
    others, x = ratio * share, alpha * w
    # differences of functions of the total and of the class, without cancellation
    gap, next_gap, step = _plain_log_next(ratio), _plain_log_next(ratio * x), -w_total * x * ratio
    digamma_drop = next_gap - step * divided_difference(DIGAMMA_PART, w_total, w, 10)
    entropy_drop = 0.5 * next_gap - gap + step * divided_difference(ENTROPY_PART, w_total, w, 10)
    digamma_total = logarithm(1 + alpha_total) - polynomial(DIGAMMA_PART, w_total, 10)
    divergence = sums.divergence.to(tl.float32) - others_count * HALF_LN_2PI
    data = sums.data.to(tl.float32)
    loss = (data + kl_weight * (divergence + log_normaliser)) + mass * digamma_total
    loss += m * digamma_drop + (m * others - mass * share) * inverse
    loss = tl.maximum(loss + kl_weight * entropy_drop, 0.0)
    terms = tl.abs(data) + kl_weight * (tl.abs(divergence) + tl.abs(log_normaliser))
    terms += mass * tl.abs(digamma_total)
    if rows.priors is not None:  # the normaliser of each class is in the sum
        terms += kl_weight * prior * (1 + logarithm(1 + own_prior + prior))

    r_total, r_drop = polynomial(EXCESS, w_total), step * divided_difference(EXCESS, w_total, w)
    excess, own_excess = votes - kl_weight * sums.beyond_prior.to(tl.float32), m - kl_weight * alpha
    if (rows.counts is None) and (rows.priors is None):
        _, grown = exponential((z - rows.log_optimum) - rows.log_optimum_rest, 0.0)
        own_excess = tl.where(kl_weight > 0, -m * grown, m)
    t_total = 1 + r_total / alpha_total
    pull = ((m + mass) * t_total - kl_weight * r_total) / alpha_total
    lead = t_total * (own_excess + excess) / alpha_total
    # Two forms of one gradient; the one with the smaller terms has the smaller error.
    poles = r_total * (mass * share * share - m * others * (1 + share)) + m * r_drop
    far = share * mass - m * others + kl_weight * (others * r_total - r_drop) + poles * inverse
    far_size = (share * mass + m * others) * (1 + inverse)
    t_drop = (r_drop - others * r_total) * inverse - others * t_total
    towards, away = share * t_total * excess, own_excess * t_drop
    apart = tl.where(tl.abs(towards) + tl.abs(away) < far_size, towards + away, far)

    is_plain = (sums.farthest <= PLAIN_RANGE) & (loss >= terms * KEPT_OF_LOSS)
    return Finished(loss, pull, lead, apart, is_plain)


class Outputs(NamedTuple):
    """Where a program writes: pointers of shape (rows, 1), and what a row is multiplied by."""

    losses: Any
    grad: Any
    grad_stride: Any
    weight: Any
    """Of the row's loss, and of its gradient."""
    factor: Any
    limit: Any
    """The largest number of the gradient's type."""
    is_ignored: Any


@triton.jit
def _store_grad(rows, out, k, grad, mask):
    limited = tl.where(grad == grad, tl.minimum(tl.maximum(grad, -out.limit), out.limit), grad)
    scaled = tl.where(out.is_ignored, 0.0, limited * out.factor.to(grad.dtype)).to(tl.float32)
    tl.store(out.grad + k * out.grad_stride, scaled, mask=mask & rows.exists & (k < rows.classes))


@triton.jit
def _store_block(rows, out, block, place, done, mask):
    """Writes the gradients of a block; returns the largest of a row and of its terms."""
    lead, pull, kl_weight = done.lead, done.pull, rows.kl_weight.to(tl.float32)
    u = polynomial(EXCESS, block.w) * block.inverse
    near = block.prior * lead + block.beyond_prior * (pull + kl_weight * u)
    far = (block.alpha * pull + block.beyond_prior * (kl_weight * u)) - kl_weight * block.prior
    grad = tl.where(tl.abs(lead) < kl_weight, near, far)
    size = tl.zeros_like(grad)
    if rows.priors is not None:
        size += (block.alpha + block.prior) * (tl.abs(pull) + kl_weight * u)
    if rows.counts is not None:
        term = block.votes * (1 + u)
        grad -= term
        size += term
    grad = tl.where(block.k == place, done.apart, grad)
    _store_grad(rows, out, block.k, grad, mask)
    is_number = block.exists & (grad == grad)
    return most(tl.where(is_number, tl.abs(grad), 0.0)), most(tl.where(block.exists, size, 0.0))


# Rows in the working type throughout


class Split(NamedTuple):
    """As `_rows.Rows`, and what the loss and the gradients need beside it, of shape (rows, 1)."""

    top: Any
    place: Any
    is_number: Any
    rest: Any
    own: Any
    """m of the largest class."""
    mass: Any
    """m of the others."""
    digammas: Any
    entropies: Any
    poles: Any
    scale: Any
    """c, of the poles."""
    excess: Any
    """Σ −m (e^δ − 1) of the others."""
    own_excess: Any
    farthest: Any
    """The largest |δ|."""
    log_normaliser: Any


@triton.jit
def _drift(rows, z, votes, prior):
    """δ = z − ln(β + c/λ), infinite where there is no optimum."""
    is_regular = rows.kl_weight > 0
    optimum = prior + votes / tl.where(is_regular, rows.kl_weight, 1.0)
    return tl.where(is_regular, z - tl.log(optimum), INFINITY)


@triton.jit
def _grown(drift):
    return growth_of(tl.minimum(tl.maximum(drift, -1.0), 1.0))


@triton.jit
def _over_alpha(m, z, scale):
    """m e^(c − z), by two half steps: a small m may bring a power out of range back into it."""
    half = exp_saturating(0.5 * (scale - z))
    return (m * half) * half


@triton.jit
def split_rows(rows, BLOCK: tl.constexpr):
    """The rows in the working type, from two visits."""
    wide: tl.constexpr = rows.kl_weight.dtype
    at = rows.logits, rows.logits_stride, rows.exists, rows.classes
    top, place, is_number = largest_class(*at, BLOCK, wide)
    nothing = tl.zeros_like(top)
    scale, lowest = tl.minimum(tl.ceil(top), 0.0), -2 * largest_exponent(top)
    rest, own, mass, digammas, entropies, poles = nothing, nothing, nothing, nothing, nothing, nothing
    excess, own_excess, farthest, prior_total, gammas = nothing, nothing, nothing, nothing, nothing
    for start in range(0, rows.classes, BLOCK):
        k = classes_from(start, BLOCK)
        exists = rows.exists & (k < rows.classes)
        z = bounded(_logits_at(rows, k, 0.0).to(wide))
        votes, prior = _votes_at(rows, k, wide), _prior_at(rows, k, wide)
        m, is_own = votes + rows.kl_weight * prior, k == place
        drift = _drift(rows, z, votes, prior)
        d = -m * _grown(drift)
        farthest = tl.maximum(farthest, most(tl.where(exists, tl.abs(drift), 0.0)))
        own += total(tl.where(is_own, m, 0.0))
        own_excess += total(tl.where(is_own, d, 0.0))
        is_other = exists & (k != place)
        rest += total(tl.where(is_other, tl.exp(z - top), 0.0))
        mass += total(tl.where(is_other, m, 0.0))
        excess += total(tl.where(is_other, d, 0.0))
        digammas += total(tl.where(is_other, m * digamma_next(z), 0.0))
        entropies += total(tl.where(is_other, lgamma_entropy(tl.maximum(z, lowest)), 0.0))
        poles += total(tl.where(is_other, _over_alpha(m, z, scale), 0.0))
        if rows.priors is not None:
            prior_total += total(tl.where(exists, prior, 0.0))
            gammas += total(tl.where(exists, lgamma(prior), 0.0))
    log_normaliser = rows.log_normaliser
    if rows.priors is not None:
        log_normaliser = gammas - lgamma(tl.where(rows.exists, prior_total, 1.0))
    return Split(
        top,
        place,
        is_number,
        rest,
        own,
        mass,
        digammas,
        entropies,
        poles,
        scale,
        excess,
        own_excess,
        farthest,
        log_normaliser,
    )


@triton.jit
def exact_loss(rows, at):
    """ℓ of rows that have been split, as in `reference.negative_elbo`."""
    gap = log_next(at.rest)
    log_total, middle, alike = at.top + gap, at.top + 0.5 * gap, gap < 1e-5
    drop = digamma_next(log_total) - digamma_next(at.top)
    drop = tl.where(alike, gap * digamma_next_grad(middle), drop)
    expectation = at.own * drop + at.mass * digamma_next(log_total) - at.digammas
    rest = at.rest / (1 + at.rest)
    own_pole = tl.exp(at.scale - at.top) * (at.own * rest - at.mass * (1 - rest))
    expectation += (at.poles + own_pole) * exp_saturating(-at.scale)
    low = tl.maximum(at.top, -2 * largest_exponent(gap))
    entropy_drop = lgamma_entropy(low + gap) - lgamma_entropy(low)
    entropy_drop = tl.where(alike, -gap * trigamma_excess(low + 0.5 * gap), entropy_drop)
    return expectation + rows.kl_weight * (entropy_drop - at.entropies + at.log_normaliser)


class Common(NamedTuple):
    """What the gradients of a row have in common, of shape (rows, 1)."""

    evidence: Any
    """M."""
    r_total: Any
    t_total: Any
    pull: Any
    half: Any
    far: Any
    """∂ℓ/∂z of the largest class in the first form of `elbo`, and in the second."""
    close: Any
    is_close: Any


@triton.jit
def _common(rows, at):
    gap = log_next(at.rest)
    log_total, share = at.top + gap, 1 / (1 + at.rest)
    rest = at.rest * share
    r_total, t_total = trigamma_excess(log_total), digamma_grad(log_total)
    r_drop = r_total - trigamma_excess(at.top)
    r_drop = tl.where(gap < 1e-5, gap * trigamma_excess_grad(at.top + 0.5 * gap), r_drop)
    inverse, evidence = exp_saturating(-at.top), at.own + at.mass
    towards_target = at.mass * share * share - at.own * rest * (1 + share)
    poles = r_total * towards_target + at.own * r_drop
    far = share * at.mass - at.own * rest + rows.kl_weight * (rest * r_total - r_drop) + poles * inverse
    t_drop = (r_drop - rest * r_total) * inverse - rest * t_total
    close = share * t_total * at.excess + at.own_excess * t_drop
    pull, half = evidence * r_total * tl.exp(at.scale - log_total), exp_saturating(-0.5 * at.scale)
    return Common(evidence, r_total, t_total, pull, half, far, close, at.farthest < CLOSE)


@triton.jit
def _exact_grad(rows, at, common, k):
    """The two forms of `elbo.gradient`."""
    wide: tl.constexpr = rows.kl_weight.dtype
    z = bounded(_logits_at(rows, k, 0.0).to(wide))
    votes, prior = _votes_at(rows, k, wide), _prior_at(rows, k, wide)
    m, share, r = votes + rows.kl_weight * prior, tl.exp(z - at.top) / (1 + at.rest), trigamma_excess(z)
    poles = common.pull * share - r * _over_alpha(m, z, at.scale)
    body = (common.evidence * share - m) + rows.kl_weight * (r - share * common.r_total)
    far = body + (poles * common.half) * common.half
    d = -m * _grown(_drift(rows, z, votes, prior))
    close = share * ((at.own_excess + at.excess) * common.t_total) - d * (1 + r * exp_saturating(-z))
    grad, own = tl.where(common.is_close, close, far), tl.where(common.is_close, common.close, common.far)
    return tl.where(at.is_number, tl.where(k == at.place, own, grad), INFINITY - INFINITY)


# The launch


@triton.jit
def _mean_weight(counts, counts_stride, class_weight, exists, classes, nothing, BLOCK: tl.constexpr):
    """The mean class weight of a row's votes; 1 where there are none."""
    votes, weighted = nothing, nothing
    for start in range(0, classes, BLOCK):
        k = classes_from(start, BLOCK)
        some = tl.load(counts + k * counts_stride, mask=exists & (k < classes), other=0.0).to(nothing.dtype)
        votes += total(some)
        weighted += total(some * tl.load(class_weight + k, mask=k < classes, other=0.0).to(nothing.dtype))
    return tl.where(votes > 0, weighted / tl.where(votes > 0, votes, 1.0), 1.0)


class Call(NamedTuple):
    """The arguments of `loss_kernel` but for what is known when it is compiled."""

    logits: Any
    ids: Any
    counts: Any
    class_weight: Any
    priors: Any
    kl_weights: Any
    mean_scale: Any
    upstream: Any
    losses: Any
    grad: Any
    outer: Any
    classes: Any
    inner: Any
    logits_outer: Any
    logits_class: Any
    logits_inner: Any
    counts_outer: Any
    counts_class: Any
    counts_inner: Any
    priors_outer: Any
    priors_class: Any
    priors_inner: Any
    grad_outer: Any
    grad_class: Any
    grad_inner: Any
    upstream_stride: Any
    ignore_index: Any
    kl_weight: Any
    kl_weight_rest: Any
    prior: Any
    prior_rest: Any
    log_prior: Any
    log_prior_rest: Any
    log_optimum: Any
    log_optimum_rest: Any
    log_normaliser: Any
    log_normaliser_rest: Any
    scale: Any
    scale_rest: Any
    limit: Any


@triton.jit
def _open(
    call,
    lanes,
    HAS_INNER: tl.constexpr,
    ROWS: tl.constexpr,
    ALIGN: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """What a program reads and writes of the rows that have these numbers in it."""
    classes = call.classes * ALIGN
    i, j, exists = some_rows_of_program(lanes, call.outer, call.inner, HAS_INNER, ROWS)
    row = i * call.inner + j
    aligned = i * ALIGN
    nothing = tl.zeros_like(row).to(WIDE)
    counts, priors, grad = call.counts, call.priors, call.grad

    strength = nothing + call.kl_weight + call.kl_weight_rest
    if call.kl_weights is not None:
        strength = tl.load(call.kl_weights + row, mask=exists, other=1.0).to(WIDE)
    weight, label, is_ignored = nothing + call.scale + call.scale_rest, tl.zeros_like(row), exists & (row < 0)
    if call.mean_scale is not None:
        weight *= tl.load(call.mean_scale).to(WIDE)
    if call.ids is not None:
        label = tl.load(call.ids + row, mask=exists, other=0).to(tl.int64)
        is_ignored = label == call.ignore_index
        is_invalid = ((label < 0) | (label >= classes)) & (label != call.ignore_index)
        label = tl.where(is_ignored | is_invalid, 0, label)
        if call.class_weight is not None:
            weight *= tl.load(call.class_weight + label, mask=exists, other=0.0).to(WIDE)
        weight = tl.where(is_invalid, INFINITY - INFINITY, weight)
    factor = weight
    if call.upstream is not None:
        factor *= tl.load(call.upstream + row * call.upstream_stride, mask=exists, other=0.0).to(WIDE)
    if counts is not None:
        counts += aligned * call.counts_outer + j * call.counts_inner
        if call.class_weight is not None:
            strength *= _mean_weight(
                counts, call.counts_class, call.class_weight, exists, classes, nothing, BLOCK
            )
    if priors is not None:
        priors += aligned * call.priors_outer + j * call.priors_inner
    if grad is not None:
        grad += aligned * call.grad_outer + j * call.grad_inner
    rows = LossRows(
        exists,
        classes,
        call.logits + aligned * call.logits_outer + j * call.logits_inner,
        call.logits_class,
        label,
        counts,
        call.counts_class,
        call.class_weight,
        priors,
        call.priors_class,
        nothing + call.prior + call.prior_rest,
        call.log_prior,
        call.log_prior_rest,
        call.log_optimum,
        call.log_optimum_rest,
        strength,
        nothing + call.log_normaliser + call.log_normaliser_rest,
    )
    return rows, Outputs(call.losses + row, grad, call.grad_class, weight, factor, call.limit, is_ignored)


@triton.jit(noinline=True)
def _exact_row(
    call,
    lane,
    HAS_INNER: tl.constexpr,
    ROWS: tl.constexpr,
    ALIGN: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One row of a program in the working type; a function of its own, for its many registers."""
    rows, out = _open(call, tl.zeros((1, 1), tl.int64) + lane, HAS_INNER, ROWS, ALIGN, WIDE, BLOCK)
    at = split_rows(rows, BLOCK)
    loss = tl.minimum(tl.maximum(exact_loss(rows, at), 0.0), LARGEST_LOSS)
    loss = tl.where(at.is_number, loss, INFINITY - INFINITY)
    tl.store(out.losses, loss * out.weight, mask=rows.exists)
    if out.grad is not None:
        common = _common(rows, at)
        for start in range(0, rows.classes, BLOCK):
            k = classes_from(start, BLOCK)
            _store_grad(rows, out, k, _exact_grad(rows, at, common, k), rows.exists)


@triton.jit
def loss_kernel(
    logits,
    ids,
    counts,
    class_weight,
    priors,
    kl_weights,
    mean_scale,
    upstream,
    losses,
    grad,
    outer,
    classes,
    inner,
    logits_outer,
    logits_class,
    logits_inner,
    counts_outer,
    counts_class,
    counts_inner,
    priors_outer,
    priors_class,
    priors_inner,
    grad_outer,
    grad_class,
    grad_inner,
    upstream_stride,
    ignore_index,
    kl_weight,
    kl_weight_rest,
    prior,
    prior_rest,
    log_prior,
    log_prior_rest,
    log_optimum,
    log_optimum_rest,
    log_normaliser,
    log_normaliser_rest,
    scale,
    scale_rest,
    limit,
    HAS_INNER: tl.constexpr,
    ROWS: tl.constexpr,
    ALIGN: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    FITS: tl.constexpr,
    UNIT_PRIOR: tl.constexpr,
    EXACT_BLOCK: tl.constexpr,
):
    """Weighted losses, one a row in the working type, and gradients times the row's factor.

    Tensors are of shape (outer, classes, inner), with a stride for each; ids, KL weights and losses are
    contiguous. The classes and the outer strides come divided by ALIGN: then the compiler knows what they are
    multiples of. Numbers that are not exact in float32 come in two parts.
    """
    call = Call(
        logits,
        ids,
        counts,
        class_weight,
        priors,
        kl_weights,
        mean_scale,
        upstream,
        losses,
        grad,
        outer,
        classes,
        inner,
        logits_outer,
        logits_class,
        logits_inner,
        counts_outer,
        counts_class,
        counts_inner,
        priors_outer,
        priors_class,
        priors_inner,
        grad_outer,
        grad_class,
        grad_inner,
        upstream_stride,
        ignore_index,
        kl_weight,
        kl_weight_rest,
        prior,
        prior_rest,
        log_prior,
        log_prior_rest,
        log_optimum,
        log_optimum_rest,
        log_normaliser,
        log_normaliser_rest,
        scale,
        scale_rest,
        limit,
    )
    lanes = tl.arange(0, ROWS)[:, None].to(tl.int64)
    rows, out = _open(call, lanes, HAS_INNER, ROWS, ALIGN, WIDE, BLOCK)
    sums = _no_sums(rows, tl.float32 if FITS else WIDE)
    if FITS:
        block = _load_block(rows, 0, BLOCK, UNIT_PRIOR)
        sums = _add_block(sums, rows, block, True, UNIT_PRIOR)
    else:
        for start in range(0, rows.classes, BLOCK):
            sums = _add_block(sums, rows, _load_block(rows, start, BLOCK, UNIT_PRIOR), False, UNIT_PRIOR)
    done = _finish(rows, sums)
    is_plain = done.is_plain | out.is_ignored
    if grad is not None:
        if FITS:
            steepest, size = _store_block(rows, out, block, sums.place, done, is_plain)  # pyright: ignore[reportPossiblyUnboundVariable]
        else:
            steepest, size = tl.zeros_like(done.loss), tl.zeros_like(done.loss)
            for start in range(0, rows.classes, BLOCK):
                again = _load_block(rows, start, BLOCK, UNIT_PRIOR)
                some, its_size = _store_block(rows, out, again, sums.place, done, is_plain)
                steepest, size = tl.maximum(steepest, some), tl.maximum(size, its_size)
        if (counts is not None) or (priors is not None):
            is_plain = is_plain & ((steepest >= size * KEPT_OF_GRADIENT) | out.is_ignored)
    weighted = tl.where(out.is_ignored, 0.0, done.loss) * out.weight
    tl.store(out.losses, weighted, mask=rows.exists & is_plain)
    is_left = (rows.exists & ~is_plain).to(tl.int32)
    if tl.max(is_left) > 0:
        tl.debug_barrier()  # gradients that have been written are written again, by other threads
        for lane in range(ROWS):
            if tl.sum(tl.where(lanes == lane, is_left, 0)) > 0:
                _exact_row(call, lane, HAS_INNER, ROWS, ALIGN, WIDE, EXACT_BLOCK)


@triton.jit
def scale_kernel(grad, upstream, count, BLOCK: tl.constexpr):
    """Multiplies in place by one number, and touches nothing where that is one; zeros stay zeros."""
    factor = tl.load(upstream).to(tl.float32)
    if factor != 1:
        at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        some = tl.load(grad + at, mask=at < count, other=0.0)
        scaled = some.to(tl.float32) * factor
        tl.store(grad + at, tl.where(some == 0, 0.0, scaled), mask=at < count)


WIDE = {torch.float64: tl.float64, torch.float32: tl.float32}
"""Triton's names of the working types."""
