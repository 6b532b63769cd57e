r"""The loss of class ids under a prior that is one number, written for a compiler to fuse.

One pass over a row finds its extent, one its sums, one its gradient. What is K-wide is in the type of the
logits (at least float32): two exponentials, one reciprocal, short polynomials, and selections instead of
branches. Per-row quantities are in double. The label is kept apart from the other classes, as
`rows` keeps the largest, so that what the others add up to is never a difference.

With the names of `elbo`, y the label, M = 1 + Kλβ and E = α/β − 1, the gradient of every other class is

.. math::
    \frac{∂ℓ}{∂z_k} = s_k(M t_0 - λr_0) + λ(r_k - βt_k) = s_k t_0 D + λβE_k t_k

where the second form serves rows near the optimum.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from beliefmatch import _special as special
from beliefmatch._autograd import Operation, apply, to_finite
from beliefmatch._coefficients import POLYNOMIALS
from beliefmatch._labels import from_ids
from beliefmatch._rows import result_dtype, work_dtype
from beliefmatch.kernels.reference import NAME, LossInputs, as_tensor, reduce

__all__ = ["gradient", "loss", "value"]

CLOSE = 0.5
"""Rows whose every logit is nearer than this to the optimum take the second form."""

MODERATE = 64.0
"""Below this largest logit, powers are relative to e^c with c as below: z − c loses no digit."""


class _Evidence(NamedTuple):
    """The numbers of the objective, in double, with as many dimensions as the logits."""

    prior: Tensor
    """β."""
    kl_weight: Tensor
    """λ."""
    label: Tensor
    """m_y = 1 + λβ."""
    rest: Tensor
    """Σ m over the other classes."""


class _Row(NamedTuple):
    """What there is one of in a row, in double, with the class dimension kept at size 1."""

    label: Tensor
    """z_y."""
    log_total: Tensor
    """ln α₀."""
    total: Tensor
    """α₀, as `power` is α."""
    share: Tensor
    """s_y."""
    rest: Tensor
    """1 − s_y, from a sum."""
    scale: Tensor
    """c ≤ 0. Poles are summed as e^(c − z), so that two infinities never meet."""
    farthest: Tensor
    """The largest |z − ln β| of the other classes."""
    close: Tensor
    """Whether the row is near its optimum."""


class _Classes(NamedTuple):
    """What there is one of in a class."""

    z: Tensor
    is_label: Tensor
    dim: int
    drift: Tensor
    """z − ln β, the distance from the optimum; 0 for the label."""
    power: Tensor
    """α, relative to a power of the row's."""
    w: Tensor
    """1/(1+α)."""
    pole: Tensor
    """λβe^c/α, in which λβ may bring 1/α back into the type's range."""

    def sum_others(self, elements: Tensor) -> Tensor:
        """Sum over all classes but the label."""
        others = torch.where(self.is_label, 0.0, elements).sum(self.dim, keepdim=True)
        return others.to(work_dtype(elements.device))


def loss(inputs: LossInputs) -> Tensor | None:
    """The loss, differentiable in the logits; None unless it is of class ids and the prior is one number."""
    logits, targets, weight, priors, _, options = inputs
    if not options.has_ids or priors is not None:
        return None
    dim, index = options.dim, options.ignore_index
    prior = as_tensor(options.prior, logits)
    kl_weight = torch.zeros_like(prior) + options.kl_weight  # an operation: another λ does not recompile
    labels = from_ids(NAME, logits, targets, dim, weight, index)
    ids = targets.long().unsqueeze(dim)
    ignored = ids == index
    rows = apply(_NEGATIVE_ELBO, dim, logits, ids.masked_fill(ignored, 0), ignored, prior, kl_weight)
    reduced = reduce(rows, labels.row_weight, dim, options.reduction)
    return to_finite(reduced, result_dtype(logits.dtype))


def value(logits: Tensor, ids: Tensor, ignored: Tensor, prior: Tensor, kl_weight: Tensor, dim: int) -> Tensor:
    """The loss ℓ ≥ 0 of each row; see `reference.negative_elbo`."""
    evidence = _evidence(logits, prior, kl_weight, dim)
    classes, row = _row_statistics(logits, ids, evidence, dim)
    count, beta = logits.shape[dim], evidence.prior
    psi_drop = _total_minus_label(row, special.digamma_next, special.digamma_next_grad)
    entropy_drop = _total_minus_label(row, special.lgamma_entropy, lambda z: -special.trigamma_excess(z))
    expectation = evidence.label * psi_drop + evidence.rest * special.digamma_next(row.log_total)
    normaliser = count * torch.lgamma(beta) - torch.lgamma(count * beta)
    divergence = entropy_drop + _others(classes, row, beta) + normaliser
    loss = expectation + evidence.kl_weight * divergence + _poles(classes, row, evidence)
    return loss.clamp(0.0, torch.finfo(result_dtype(logits.dtype)).max).masked_fill(ignored, 0.0)


def gradient(
    logits: Tensor, ids: Tensor, ignored: Tensor, prior: Tensor, kl_weight: Tensor, dim: int
) -> Tensor:
    """∂ℓ/∂logits, K-wide in the type of the logits, at least float32."""
    evidence = _evidence(logits, prior, kl_weight, dim)
    classes, row = _row_statistics(logits, ids, evidence, dim)
    excess = classes.drift * _polynomial(_coefficients("expm1", classes.z.dtype), classes.drift)
    deficit = -evidence.kl_weight * evidence.prior * classes.sum_others(excess)
    label = _gradient_label(row, evidence, deficit)
    others = _gradient_others(classes, row, evidence, excess, deficit)
    each = torch.where(classes.is_label, _stored(special.saturate(label, others.dtype)), others)
    return each.masked_fill(ignored, 0.0)


_NEGATIVE_ELBO = Operation(value, (gradient,))


def _evidence(logits: Tensor, prior: Tensor, kl_weight: Tensor, dim: int) -> _Evidence:
    beta, weight = (number.to(work_dtype(logits.device)) for number in (prior, kl_weight))
    each = weight * beta
    return _Evidence(beta, weight, 1 + each, (logits.shape[dim] - 1) * each)


def _row_statistics(logits: Tensor, ids: Tensor, evidence: _Evidence, dim: int) -> tuple[_Classes, _Row]:
    """The first pass, and the second as far as loss and gradient share it."""
    z = logits.to(result_dtype(logits.dtype))
    is_label = _class_numbers(z, dim) == ids.to(torch.int32)
    drift = _drift(z, is_label, evidence.prior)
    top = z.amax(dim, keepdim=True)
    top = top + (top - top)  # ∞ − ∞ is NaN
    scale = _stored(top.ceil().clamp(max=0.0))
    shift = _stored(torch.where(top < MODERATE, scale, top))
    classes = _Classes(z, is_label, dim, drift, (z - shift).exp(), *_w_and_pole(z, scale, evidence))
    rest = classes.sum_others(classes.power)
    farthest = drift.abs().amax(dim, keepdim=True)
    label, shift, scale = (x.to(rest.dtype) for x in (z.gather(dim, ids), shift, scale))
    limit = _limit(z.dtype)
    label, shift = label.clamp(-limit, limit), shift.clamp(-limit, limit)
    power = (label - shift).exp()
    total = rest + power
    log_optimum = (evidence.prior + 1 / evidence.kl_weight).log()
    close = (farthest < CLOSE) & ((label - log_optimum).abs() < CLOSE)
    return classes, _Row(
        label, shift + total.log(), total, power / total, rest / total, scale, farthest, close
    )


def _class_numbers(z: Tensor, dim: int) -> Tensor:
    """0 to K − 1 along `dim`."""
    numbers = _stored(torch.arange(z.shape[dim], dtype=torch.int32, device=z.device))
    return numbers.view(-1, *[1] * (z.dim() - dim - 1))


def _stored(x: Tensor) -> Tensor:
    """Itself, held in memory: a compiler would otherwise work it out again for every class."""
    return x.as_strided(x.shape, x.stride())


def _drift(z: Tensor, is_label: Tensor, prior: Tensor) -> Tensor:
    log_prior = prior.log()
    near = log_prior.to(z.dtype)
    return torch.where(is_label, 0.0, (z - near) - (log_prior - near).to(z.dtype))


def _w_and_pole(z: Tensor, scale: Tensor, evidence: _Evidence) -> tuple[Tensor, Tensor]:
    """1/(1+α), and λβe^c/α by two half steps."""
    root = (0.5 * (scale - z)).exp()
    unit = _stored((-scale).clamp(max=special.largest_exponent(z.dtype)).exp())
    each = special.saturate(evidence.kl_weight * evidence.prior, z.dtype)
    pole = torch.where(each > 0, (each * root) * root, 0.0)  # not 0·∞
    return 1 - (1 + root * root * unit).reciprocal(), pole


def _limit(dtype: torch.dtype) -> float:
    """As good as infinite for a logit, with headroom for sums."""
    return torch.finfo(dtype).max ** 0.9


def _coefficients(name: str, dtype: torch.dtype) -> tuple[float, ...]:
    return POLYNOMIALS[name, "float64" if dtype == torch.float64 else "float32"]


def _polynomial(coefficients: Sequence[float | Tensor], w: Tensor) -> Tensor:
    """Σ cₙ wⁿ by Estrin's scheme, whose operations wait less for one another than Horner's."""
    terms: list[Any] = list(coefficients)
    while len(terms) > 1:
        pairs = [low + high * w for low, high in zip(terms[::2], terms[1::2], strict=False)]
        terms = pairs + terms[2 * len(pairs) :]
        w = w * w
    return terms[0]


def _total_minus_label(
    row: _Row, function: Callable[[Tensor], Tensor], grad: Callable[[Tensor], Tensor]
) -> Tensor:
    """F(ln α₀) − F(z_y), from the derivative F′ where the two agree to most of their digits."""
    gap = -torch.log1p(-row.rest.clamp(max=0.5))
    difference = function(row.log_total) - function(row.label)
    return torch.where(gap < 1e-5, gap * grad(row.label + 0.5 * gap), difference)


def _others(classes: _Classes, row: _Row, prior: Tensor) -> Tensor:
    """−Σ (A(α_k) + βψ(1+α_k)) over the other classes."""
    z, w, dtype = classes.z, classes.w, classes.w.dtype
    beta, near = special.saturate(prior, dtype), prior.log().to(dtype)
    smaller = 0.5 - (w - 0.5).abs()
    log = smaller * _polynomial(_coefficients("logarithm", dtype), smaller)
    # ln(1+1/α) is this and max(−z, 0).
    linear = (0.5 - beta) * (z - near) + (0.5 * beta + 0.25) * (z - z.abs())
    total = classes.sum_others(linear - (beta + 0.5) * log + _remainders(w, prior))
    # Beyond all bounds other terms decide, and this might be ∞ − ∞.
    total = torch.where(row.farthest < _limit(dtype), total, 0.0)
    return total + (z.shape[classes.dim] - 1) * ((0.5 - prior) * near - special.HALF_LN_2PI)


def _poles(classes: _Classes, row: _Row, evidence: _Evidence) -> Tensor:
    """Σ m_k/α_k − M/α₀ ≥ 0."""
    label = special.exp_saturating(row.scale - row.label)
    label = label * (evidence.label * row.rest - evidence.rest * row.share)
    return (classes.sum_others(classes.pole) + label) * special.exp_saturating(-row.scale)


def _remainders(w: Tensor, prior: Tensor) -> Tensor:
    """(βw − (1−w)) G(w) − w M(w), as one polynomial."""
    g, m = _coefficients("digamma", w.dtype), _coefficients("lgamma", w.dtype)
    terms = zip((0.0, *g), (*g, 0.0), (0.0, *m), strict=True)
    coefficients = [(prior + 1) * before - own - lgamma for before, own, lgamma in terms]
    return _polynomial([coefficient.to(w.dtype) for coefficient in coefficients], w)


def _gradient_others(
    classes: _Classes, row: _Row, evidence: _Evidence, excess: Tensor, deficit: Tensor
) -> Tensor:
    """Both forms, times e^c until the end."""
    dtype, pole = classes.w.dtype, classes.pole
    r = _polynomial(_coefficients("trigamma_excess", dtype), classes.w)
    r_total = special.trigamma_excess(row.log_total)
    weight, unit = evidence.kl_weight, row.scale.exp()
    t_total = unit + r_total * (row.scale - row.log_total).exp()
    near = t_total * (evidence.label - weight * row.label.exp() + deficit)
    far = t_total * (evidence.label + evidence.rest) - weight * r_total * unit
    pull = torch.where(row.close, near, far) / row.total
    numbers = (pull, weight * unit, weight * evidence.prior * unit, (-0.5 * row.scale).exp())
    pull, bounded, flat, half = (_stored(special.saturate(number, dtype)) for number in numbers)
    own = torch.where(row.close, excess * (flat + r * pole), r * (bounded - pole) - flat)
    return (classes.power * pull + own) * half * half


def _gradient_label(row: _Row, evidence: _Evidence, deficit: Tensor) -> Tensor:
    """Both forms, from differences that survive when the label dominates."""
    rest, share, weight = row.rest, row.share, evidence.kl_weight
    r_total = special.trigamma_excess(row.log_total)
    r_drop = _total_minus_label(row, special.trigamma_excess, special.trigamma_excess_grad)
    pole = special.exp_saturating(-row.label)
    body = share * evidence.rest - evidence.label * rest + weight * (rest * r_total - r_drop)
    towards_target = evidence.rest * share * share - evidence.label * rest * (1 + share)
    far = body + (r_total * towards_target + evidence.label * r_drop) * pole
    t_total = 1 + r_total * share * pole
    drop = (r_drop - rest * r_total) * pole - rest * t_total
    near = share * t_total * deficit + (evidence.label - weight * row.label.exp()) * drop
    return torch.where(row.close, near, far)
