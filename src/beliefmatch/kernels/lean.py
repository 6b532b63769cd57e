r"""The loss in few tensor operations: for devices without a kernel of their own, and for `torch.compile`.

What is as wide as the classes is in the type of the logits, at least float32; what there is one of in a row
is in double where the device has it. One class y of each row is kept apart, the label or, for counts, the
largest, so that what the others add up to is never a difference. With the names of `elbo`, γ = c/λ,
μ = β + γ, M = Σμ and e = β/α − 1, the gradient of every other class is

.. math::
    \frac{1}{λ}\frac{∂ℓ}{∂z_k} = s_k P - β_k - r_k e_k - γ_k t_k
    = β_k\frac{t_0 D}{α_0} - e_k(s_k P + r_k) - γ_k t_k, \qquad P = M t_0 - r_0, \quad D = \sum_j(μ_j - α_j)

where the second form serves rows near the prior, and that of y, with ρ = 1 − s_y,

.. math::
    \frac{1}{λ}\frac{∂ℓ}{∂z_y} = t_0 B - \Bigl(\frac{μ_y}{α_y} - 1\Bigr)(ρr_0 - r_0 + r_y), \qquad
    B = M s_y - μ_y = \sum_{k≠y}(μ_k - α_k) - ρD

The gradient is made together with the loss, and multiplied by the upstream gradient in the backward pass.

Loss and gradient saturate at the largest number of float32. For class ids that also happens where β/α alone
is larger, although λβ/α may be smaller: for β = 1 where a logit is below −88.7. Counts have no such range.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active  # pyright: ignore[reportAttributeAccessIssue]
from torch.autograd import Function
from torch.nn import functional as F

from beliefmatch import _special as special
from beliefmatch._coefficients import POLYNOMIALS, SHORT_POLYNOMIALS
from beliefmatch._labels import from_counts, ids_and_weights
from beliefmatch._rows import result_dtype, work_dtype
from beliefmatch._validate import is_inspectable, require_values
from beliefmatch.kernels import reference
from beliefmatch.kernels.native import PLAIN_TYPES, is_transformed
from beliefmatch.kernels.reference import NAME, LossInputs, Options

__all__ = ["loss", "loss_and_grad"]

SMALLEST_KL_WEIGHT = 1e-10
"""A smaller λ is for the reference: everything here is in units of λ."""
LARGEST_PRIOR = 1e30
"""A larger β that is one number is for the reference: float32 does not hold what is made of it."""
LOGITS_AT_ONCE = {"cpu": 1 << 17}
"""Logits of a chunk of rows, by device: on a CPU what stays in its cache."""
MANY_LOGITS = 1 << 24
"""The same for other devices."""
_LOWEST_TOP = 60.0
"""Rows whose largest logit is below its negative are lifted to it."""

_LOG_STEPS = 2.0**17
_POLE_SCALE = 2.0**-40
"""What e is multiplied by for counts: where float32 holds λ/α, it then holds e too."""

_Function = TypeVar("_Function", bound=Callable[..., Any])

_Number = Tensor | float
"""One for all rows, or a tensor with the logits' number of dimensions."""


def _constant_when_compiled(function: _Function) -> _Function:
    """`torch.compiler.assume_constant_result`, which would import torch's compiler with this module."""
    function._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]
    return function


class _Rows(NamedTuple):
    """Some rows of a call. Tensors have the logits' number of dimensions."""

    logits: Tensor
    apart: Tensor
    """Class y, of size 1 along the classes."""
    votes: Tensor | None
    """c of all classes; None for class ids."""
    prior: _Number
    """β; a tensor broadcasts to the logits."""
    kl_weight: _Number
    """λ; a tensor is of size 1 along the classes."""

    def chunk(self, first: int, last: int) -> "_Rows":
        """Rows from `first` to before `last`, along the first dimension."""

        def part(x: Any) -> Any:
            return x[first:last] if isinstance(x, Tensor) and len(x) == len(self.logits) else x

        return _Rows(*map(part, self))


def loss(inputs: LossInputs) -> Tensor | None:
    """The loss, differentiable in the logits; None for what it leaves to the reference."""
    if not _is_supported(inputs):
        return None
    rows, row_weight, valid = _rows_of(inputs)
    options = inputs.options
    if torch.compiler.is_compiling() and not rows.logits.requires_grad:  # as in `_autograd.apply`
        values, _ = _loss_and_gradient(rows, options.dim, False)
        return _reduce(values, row_weight, valid, options, result_dtype(rows.logits.dtype))[0]
    value: Any = _Loss.apply(*rows, row_weight, valid, options)
    return value


def loss_and_grad(inputs: LossInputs, upstream: Tensor | None) -> tuple[Tensor, Tensor] | None:
    """The loss and its gradient by the logits times `upstream`, outside of any graph."""
    if not _is_supported(inputs):
        return None
    rows, row_weight, valid = _rows_of(inputs)
    logits, options = rows.logits, inputs.options
    values, gradient = _in_chunks(rows, options.dim, True)
    value, scale = _reduce(values, row_weight, valid, options, result_dtype(logits.dtype))
    assert gradient is not None
    return value, _scaled(gradient, scale.to(gradient.dtype), upstream, valid, options).to(logits.dtype)


def _rows_of(inputs: LossInputs) -> tuple[_Rows, Tensor | None, Tensor | None]:
    """The rows of a call, the weight of each and whether it counts; None where all have 1, or all count."""
    logits, targets, weight, priors, kl_weights, options = inputs
    dim, kind = options.dim, result_dtype(logits.dtype)
    prior: _Number = options.prior
    kl_weight: _Number = options.kl_weight
    if kl_weights is not None:
        kl_weight = kl_weights.clamp(min=SMALLEST_KL_WEIGHT)
    elif torch.compiler.is_compiling():  # by an operation, so that another number does not compile again
        zero = logits.new_zeros((1,) * logits.dim(), dtype=work_dtype(logits.device))
        kl_weight = zero + kl_weight
        prior = 1.0 if prior == 1 else (zero + prior).to(kind)
    if priors is not None:
        # Its logarithm wants more digits than float32 has, unless there is a prior for every logit.
        prior = priors.to(work_dtype(logits.device) if priors.numel() <= logits.shape[dim] else kind)
        if is_inspectable(priors):
            require_values(NAME, "prior", priors, priors.isfinite() & (priors > 0), "positive and finite")
    votes = row_weight = None
    if options.has_ids:
        apart, row_weight, valid = ids_and_weights(NAME, logits, targets, dim, weight, options.ignore_index)
    else:
        labels = from_counts(NAME, logits, targets, dim, weight)
        apart, row_weight, valid = logits.argmax(dim, keepdim=True), labels.kl_scale, None
        votes = labels.counts.to(kind)
        if row_weight is not None:  # ℓ(c; κλ) = κ ℓ(c/κ; λ)
            votes = votes / row_weight.to(kind).clamp(min=torch.finfo(kind).tiny)
    return _Rows(logits, apart, votes, prior, kl_weight), row_weight, valid


def _is_supported(inputs: LossInputs) -> bool:
    """Whether only the logits are differentiated, and by no transform, which would have to see inside."""
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs[1:5]):
        return False
    are_plain = all(x is None or type(x) in PLAIN_TYPES for x in inputs[:5])  # else with their own operations
    if torch.compiler.is_compiling():
        if _are_functorch_transforms_active():
            return False
    elif is_transformed() or not are_plain:
        return False
    logits, options = inputs.logits, inputs.options
    if logits.dtype == torch.float64 and not torch.compiler.is_compiling():
        return False  # the reference is more accurate
    is_strong = inputs.kl_weights is not None or options.kl_weight >= SMALLEST_KL_WEIGHT
    has_small_prior = inputs.priors is not None or options.prior <= LARGEST_PRIOR
    return is_strong and has_small_prior and logits.shape[options.dim] > 1 and logits.numel() > 0


class _Loss(Function):
    """Keeps the gradient that was made together with the loss; second derivatives are the reference's."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        apart: Tensor,
        votes: Tensor | None,
        prior: _Number,
        kl_weight: _Number,
        row_weight: Tensor | None,
        valid: Tensor | None,
        options: Options,
    ) -> Tensor:
        rows = _Rows(logits, apart, votes, prior, kl_weight)
        values, gradient = _in_chunks(rows, options.dim, ctx.needs_input_grad[0])
        value, scale = _reduce(values, row_weight, valid, options, result_dtype(logits.dtype))
        ctx.options, ctx.prior, ctx.kl_weight = options, prior, kl_weight
        kept = (x if isinstance(x, Tensor) else None for x in (prior, kl_weight))
        ctx.save_for_backward(logits, apart, votes, *kept, valid, scale, gradient)
        return value

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        logits, apart, votes, prior, kl_weight, valid, scale, gradient = ctx.saved_tensors
        (upstream,), options = grad_outputs, ctx.options
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            prior = torch.full_like(scale, ctx.prior) if prior is None else prior
            kl_weight = torch.full_like(scale, ctx.kl_weight) if kl_weight is None else kl_weight
            one = torch.zeros_like(logits).scatter(options.dim, apart, 1.0)
            counts = one if votes is None else votes
            counted = logits if valid is None else logits.masked_fill(~valid, 0.0)
            exact = reference.gradient(counted, counts, prior, kl_weight, options.dim)
            gradient = special.saturate(exact, logits.dtype)
        else:
            scale = scale.to(gradient.dtype)
        return _scaled(gradient, scale, upstream, valid, options).to(logits.dtype), *[None] * 7


def _scaled(
    gradient: Tensor, scale: Tensor, upstream: Tensor | None, valid: Tensor | None, options: Options
) -> Tensor:
    """The gradient of each row times its scale and upstream gradient."""
    factor = scale
    if upstream is not None:
        factor = scale * (upstream.unsqueeze(options.dim) if options.reduction == "none" else upstream)
    if valid is not None:  # zero even if all rows are ignored, or if the factor overflows
        factor = torch.where(valid, factor, _constant((0.0,), factor))
    return gradient * factor


def _reduce(
    values: Tensor, row_weight: Tensor | None, valid: Tensor | None, options: Options, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The loss, and what the gradient of each row is multiplied by: NaN where its loss is NaN."""
    if valid is not None:
        values = torch.where(valid, values, _constant((0.0,), values))
    scale = torch.ones_like(values) if row_weight is None else row_weight
    scale = torch.add(scale, values, alpha=0)
    if options.reduction == "mean":
        weight_of_rows = None if row_weight is None or not options.has_ids else row_weight.sum()
        scale = scale / (values.numel() if weight_of_rows is None else weight_of_rows)
    if options.reduction == "none":
        reduced = (values * scale).squeeze(options.dim)
    else:
        reduced = torch.dot(values.flatten(), scale.expand_as(values).flatten())
    return reduced.to(dtype) if options.reduction == "mean" else special.saturate(reduced, dtype), scale


def _in_chunks(rows: _Rows, dim: int, wants_gradient: bool) -> tuple[Tensor, Tensor | None]:
    """The losses and gradients of all rows, a chunk of them at a time where they are many."""
    logits = rows.logits
    at_once = LOGITS_AT_ONCE.get(logits.device.type, MANY_LOGITS)
    if torch.compiler.is_compiling() or dim == 0 or logits.numel() <= 2 * at_once:
        return _loss_and_gradient(rows, dim, wants_gradient)
    values = torch.empty_like(rows.apart, dtype=work_dtype(logits.device))
    gradient = torch.empty_like(logits, dtype=result_dtype(logits.dtype)) if wants_gradient else None
    step = max(1, at_once * len(logits) // logits.numel())
    for first in range(0, len(logits), step):
        some = slice(first, first + step)
        values[some], made = _loss_and_gradient(rows.chunk(first, first + step), dim, wants_gradient)
        if gradient is not None and made is not None:
            gradient[some] = made
    return values, gradient


def _loss_and_gradient(rows: _Rows, dim: int, wants_gradient: bool) -> tuple[Tensor, Tensor | None]:
    """The loss of each row in the working type, and the gradient in the type of the result."""
    z = rows.logits.to(result_dtype(rows.logits.dtype))
    prior, y, votes = rows.prior, rows.apart, rows.votes

    def total(x: Tensor) -> Tensor:
        return x.sum(dim, keepdim=True)

    # Far below zero, loss and gradient go like 1/α: such rows are lifted, and their results multiplied.
    highest = z.amax(dim, keepdim=True)
    top = highest.clamp(min=-_LOWEST_TOP)
    lift = highest - top
    n = _stored(lift) - z
    own = n.gather(dim, y)
    own_prior = prior.expand_as(z).gather(dim, y) if isinstance(prior, Tensor) else prior
    log_prior = own_prior.log().to(z.dtype) if isinstance(own_prior, Tensor) else math.log(own_prior)
    n.scatter_(dim, y, -log_prior)  # as if α were β: its e is 0
    own_votes = None if votes is None else votes.gather(dim, y)
    votes = None if votes is None else votes.scatter(dim, y, 0.0)
    body, r = _body_and_excess(n, prior, votes, total, wants_gradient)
    powers = (z - _stored(highest)).exp_().scatter_(dim, y, 0.0)
    poles_of_votes = None if votes is None else _times_exp(votes, n)
    has_scalar_prior = votes is None and not isinstance(prior, Tensor)
    uncentred = None if has_scalar_prior else total(n)
    n, left = _add_log(n, prior)
    n_sum = total(n) if uncentred is None else uncentred
    e = _scale_expm1(n, left) if votes is None else _scale_small_expm1(n, left)
    sums = [own, top, lift, total(powers), total(e * powers), total(e), n_sum, *body]
    if votes is not None and own_votes is not None and poles_of_votes is not None:
        sums += [own_votes, total(votes), total(poles_of_votes)]
    numbers = torch.stack(sums).to(work_dtype(z.device))
    row = _row_of(numbers, prior, own_prior, rows.kl_weight, z, dim)
    values, pulls = _finish(row, rows.kl_weight, wants_gradient)
    limit = torch.finfo(z.dtype).max
    # What is not a number is beyond all numbers, unless it comes from a logit that is none.
    # So is a row of −∞ alone, whose lift is infinite.
    values = torch.add(values.nan_to_num_(limit, limit, limit).clamp_(0.0, limit), numbers[2], alpha=0)
    if pulls is None:
        return values, None
    terms = None
    if votes is not None and poles_of_votes is not None:
        terms = torch.addcmul(votes, poles_of_votes, r).div_(_stored(lift.exp()))  # ct
        far, near, base, unit, apart = pulls
        pulls = [far * _POLE_SCALE, near, base * _POLE_SCALE, unit * _POLE_SCALE, apart]
    far, near, base, unit, apart = _in_type(pulls, z.dtype)
    base = base * _as_wide(prior, z) if isinstance(prior, Tensor) or prior != 1 else base
    gradient = torch.addcmul(base, powers, far, value=-1)
    gradient.addcmul_(e, r.addcmul_(powers, near, value=-1), value=-1).div_(unit)
    if terms is not None:
        gradient.sub_(terms)
    gradient.scatter_(dim, y, apart).nan_to_num_(0.0, limit, -limit)
    if rows.logits.dtype != z.dtype:
        limit = torch.finfo(rows.logits.dtype).max
        gradient.clamp_(-limit, limit)
    return values, gradient


def _body_and_excess(
    n: Tensor, prior: _Number, votes: Tensor | None, total: Callable[[Tensor], Tensor], wants_excess: bool
) -> tuple[list[Tensor], Tensor]:
    """Parts of −Σ (μψ(1+α) + A) over all classes, see `_row_of`, and r of each class; n = −z."""
    w, softplus = n.sigmoid(), F.softplus(n, threshold=50.0)
    w_squared = w.square()
    parts = [total(softplus)]
    psi, entropy, excess = _short_polynomials(n.dtype)
    if votes is None and not isinstance(prior, Tensor):
        del softplus
        _, _, *high = _scalar_prior_polynomial(prior, n.dtype)
        parts += [total(w), total(_polynomial(high, w, w_squared).mul_(w_squared))]
    else:
        minus_psi = softplus.neg_().add_(n).add_(_polynomial(psi, w, w_squared))
        parts += [total(minus_psi * _as_wide(prior, n)), total(_polynomial(entropy, w, w_squared))]
        if votes is not None:
            parts.append(total(minus_psi.mul_(votes)))
        del softplus, minus_psi
    return parts, _polynomial(excess, w, w_squared) if wants_excess else w


class _Row(NamedTuple):
    """What is known of a row after a walk over its classes, in the working type; sums leave out y."""

    n: Tensor
    """−z_y."""
    top: Tensor
    """The largest logit."""
    lift: Tensor
    """Minus what all logits were lifted by."""
    powers: Tensor
    """Σ e^(z − top)."""
    excess: Tensor
    """Σ (β − α)e^−top."""
    body: Tensor
    """Σ (μ/α − μψ(1+α) − A) + Σ lnΓ(β) − lnΓ(β₀), the last two over all classes."""
    own: _Number
    """μ_y."""
    mass: _Number
    """Σ μ."""
    votes: _Number
    """Σ γ."""


def _row_of(
    numbers: Tensor, prior: _Number, own_prior: _Number, kl_weight: _Number, z: Tensor, dim: int
) -> _Row:
    """The row from its sums: y, which counted in the body as if its α were β, is taken out again."""
    n, top, lift, powers, excess, poles, n_sum, softplus_sum, weighted, entropies, *left = numbers.unbind()
    classes = z.shape[dim]
    prior_mass, log_normaliser = _mass_and_normaliser(prior, own_prior, z, dim)
    own_votes, votes = 1 / kl_weight, 0.0  # γ
    if left:
        excess, poles = excess / _POLE_SCALE, poles / _POLE_SCALE
    constant = _at_prior(own_prior, z.dtype) + log_normaliser + (classes - 1) * (1 - special.HALF_LN_2PI)
    if not isinstance(prior, Tensor) and not left:
        body = _scalar_prior_body(numbers[5:10], prior, constant, classes, z.dtype)
    else:
        body = weighted + poles + constant - entropies - 0.5 * (n_sum + softplus_sum)
    if left:
        minus_psi, own_votes, votes, poles_of_votes = left
        body = body + (minus_psi + poles_of_votes) / kl_weight
        own_votes, votes = own_votes / kl_weight, votes / kl_weight
    return _Row(n, top, lift, powers, excess, body, own_prior + own_votes, prior_mass + votes, votes)


def _scalar_prior_body(
    numbers: Tensor, prior: float, constant: Any, classes: int, dtype: torch.dtype
) -> Tensor:
    """The body for class ids and a prior that is one number, whose polynomials were merged into one.

    `numbers` are Σe, Σn with n about −ln β, Σ softplus(n), Σw, and Σ of the polynomial from w² on.
    """
    base, slope, *_ = _scalar_prior_polynomial(prior, dtype)
    constant = constant + classes * (base + (0.5 - prior) * _log_parts(prior)[0])
    factors = 1.0, prior - 0.5, -prior - 0.5, slope, 1.0
    if torch.compiler.is_compiling():  # products of matrices would not be fused
        return sum((x * factor for x, factor in zip(numbers, factors, strict=True)), constant)
    constant, factors = _constant((constant,), numbers), _constant(factors, numbers)
    return torch.addmv(constant, numbers.flatten(1).t(), factors).view_as(numbers[0])


def _mass_and_normaliser(prior: _Number, own_prior: _Number, z: Tensor, dim: int) -> tuple[Any, Any]:
    """Σ β without y, and Σ lnΓ(β) − lnΓ(β₀)."""
    classes, work = z.shape[dim], work_dtype(z.device)
    if not isinstance(prior, Tensor):
        others, whole = (classes - 1) * prior, classes * prior
        if torch.compiler.is_compiling():  # the number of classes may be one that is not known yet
            return others, classes * math.lgamma(prior) - z.new_full((1,), whole, dtype=work).lgamma()
        return others, classes * math.lgamma(prior) - math.lgamma(whole)
    repeats = classes // prior.shape[dim]
    total, gammas = (repeats * x.sum(dim, keepdim=True).to(work) for x in (prior, prior.lgamma()))
    return total - own_prior, gammas - total.lgamma()


@_constant_when_compiled
def _scalar_prior_polynomial(prior: float, dtype: torch.dtype) -> tuple[float, ...]:
    """What −(βψ(1+α) + A) has beside logarithms."""
    psi, entropy, _ = _short_polynomials(dtype)
    return tuple(prior * a - b for a, b in zip(psi, entropy, strict=True))


def _at_prior(prior: _Number, dtype: torch.dtype) -> Any:
    """βψ(1+β) + A(β) − ½ ln 2π, by the polynomials that serve all classes."""
    if not isinstance(prior, Tensor):
        return _at_number(prior, dtype)
    return _body_at(prior, prior.log(), prior.log1p(), dtype)


@_constant_when_compiled
def _at_number(prior: float, dtype: torch.dtype) -> float:
    return _body_at(prior, math.log(prior), math.log1p(prior), dtype)


def _body_at(prior: Any, log: Any, log_next: Any, dtype: torch.dtype) -> Any:
    psi, entropy, _ = _short_polynomials(dtype)
    w = 1 / (1 + prior)
    return prior * (log_next - _horner(psi, w)) + 0.5 * log_next - log + _horner(entropy, w)


def _finish(row: _Row, kl_weight: _Number, wants_gradient: bool) -> tuple[Tensor, list[Tensor] | None]:
    """The loss, and what the gradient of every class needs of its row; in units of λ but for the loss."""
    n, top, lift, powers, excess, body, own, mass, votes = row
    all_mass = own + mass
    minus_log_total = n - F.softplus(powers.log().add_(top).add_(n), threshold=50.0)
    points = torch.stack([n, minus_log_total, lift, top, top + minus_log_total], -1)
    inverse, inverse_total, lift, highest, scale = points.exp().unbind(-1)
    functions = _row_functions(points[..., :2])
    rest = powers * scale
    far_balance = _plus(mass, -all_mass, rest)
    value = _add_functions(body, functions, own, all_mass).addcmul_(far_balance, inverse, value=-1)
    unit = lift / kl_weight
    value = value / unit
    if not wants_gradient:
        return value, None

    own_r, r = functions[..., 2].unbind(-1)
    t = _plus(1.0, r, inverse_total)
    minus_pull = _plus(r, -all_mass, t) * scale
    own_ratio = _plus(-1.0, own, inverse)
    others_excess = excess * highest
    if isinstance(votes, Tensor):
        others_excess = others_excess + votes
    all_excess = torch.addcdiv(others_excess, own_ratio, inverse)
    is_near = all_excess.abs() < 0.5 * all_mass
    lead = t * all_excess * inverse_total
    balance = torch.where(is_near, torch.addcmul(others_excess, rest, all_excess, value=-1), far_balance)
    apart = (t * balance).addcmul_(own_ratio, (own_r - r).addcmul_(rest, r), value=-1)
    far = minus_pull.masked_fill(is_near, 0.0)
    base = torch.where(is_near, lead, _constant((-1.0,), lead))
    return value, [far, minus_pull - far, base, unit, apart / unit]


def _add_functions(body: Tensor, functions: Tensor, own: _Number, all_mass: _Number) -> Tensor:
    """body + Mψ(1+α₀) + A(α₀) − μ_yψ(1+α_y) − A(α_y)."""
    if not isinstance(own, Tensor) and not isinstance(all_mass, Tensor):
        factors = _constant((own, -1.0, 0.0, -all_mass, 1.0, 0.0), body)
        return torch.addmv(body.flatten(), functions.view(-1, 6), factors).view_as(body)
    minus_psi, entropy = functions[..., 0], functions[..., 1]
    body = body + (entropy[..., 1] - entropy[..., 0])
    return _plus(_plus(body, -all_mass, minus_psi[..., 1]), own, minus_psi[..., 0])


def _plus(x: _Number, factor: _Number, y: Tensor) -> Tensor:
    """x + factor·y, in one operation where it can be."""
    if isinstance(factor, Tensor):
        return torch.addcmul(x if isinstance(x, Tensor) else _constant((x,), y), factor, y)
    return torch.add(x, y, alpha=factor) if isinstance(x, Tensor) else torch.rsub(y, x, alpha=-factor)


_constants: dict[Any, Tensor] = {}


def _constant(numbers: tuple[Any, ...], like: Tensor) -> Tensor:
    """The numbers in the type and on the device of a tensor: copied there once."""
    if torch.compiler.is_compiling() or type(like) is not Tensor:  # of a FakeTensorMode, which wants its own
        return torch.tensor(numbers, dtype=like.dtype, device=like.device)
    key = numbers, like.dtype, like.device
    found = _constants.get(key)
    if found is None:
        found = torch.tensor(numbers, dtype=like.dtype, device=like.device)
        if type(found) is Tensor:  # not one without values
            if len(_constants) >= 1000:
                _constants.clear()
            _constants[key] = found
    return found


# Polynomials in w = 1/(1+α).


def _entropy_polynomial(g: Sequence[float], m: Sequence[float]) -> tuple[float, ...]:
    """wM + (1−w)G."""
    terms = zip((*g, 0.0), (0.0, *g), (0.0, *m), strict=True)
    return tuple(own - before + lgamma for own, before, lgamma in terms)


@_constant_when_compiled
def _whole_polynomials(dtype: torch.dtype) -> tuple[tuple[float, ...], ...]:
    """ln(1+α) − ψ(1+α), what A has beside ½ ln(1+α) − z + ½ ln 2π, and r."""
    kind = "float64" if dtype == torch.float64 else "float32"
    g, m, r = (POLYNOMIALS[name, kind] for name in ("digamma", "lgamma", "trigamma_excess"))
    return (0.0, *g), _entropy_polynomial(g, m), (*r, 0.0)


@_constant_when_compiled
def _short_polynomials(dtype: torch.dtype) -> tuple[tuple[float, ...], ...]:
    """The same, as short as the type allows."""
    if dtype == torch.float64:
        return _whole_polynomials(dtype)
    return tuple(
        SHORT_POLYNOMIALS[name] for name in ("psi_remainder", "entropy_remainder", "trigamma_excess")
    )


def _polynomial(coefficients: Sequence[float], w: Tensor, w_squared: Tensor) -> Tensor:
    """Σ cₙwⁿ, two powers at a time."""
    terms = list(coefficients)
    value = None if len(terms) % 2 == 0 else terms.pop()
    for low, high in reversed(list(zip(terms[::2], terms[1::2], strict=True))):
        pair = torch.rsub(w, low, alpha=-high)  # low + high·w, in one operation
        if value is None:
            value = pair
        elif isinstance(value, Tensor):
            value = pair.addcmul_(value, w_squared)
        else:
            value = pair.add_(w_squared, alpha=value)
    assert isinstance(value, Tensor)
    return value


def _row_functions(n: Tensor) -> Tensor:
    """−ψ(1+α), A − ½ ln 2π and r along a new last dimension, by one product of matrices; n = −z."""
    polynomials = _whole_polynomials(n.dtype)
    if torch.compiler.is_compiling():  # products of matrices would not be fused
        log_w = F.logsigmoid(n)
        psi, entropy, r = (_horner(polynomial, log_w.exp()) for polynomial in polynomials)
        return torch.stack([psi + log_w, entropy + n - 0.5 * log_w, r], -1)
    # what ln w, −z and the powers of w are multiplied by
    columns = tuple(zip((1.0, -0.5, 0.0), (0.0, 1.0, 0.0), *zip(*polynomials, strict=True), strict=True))
    exponents = tuple(float(power) for power in range(len(polynomials[0])))
    n = n.unsqueeze(-1)
    log_w = F.logsigmoid(n)
    parts = torch.cat([log_w, n, log_w.exp().pow(_constant(exponents, n))], -1)
    return (parts.flatten(0, -2) @ _constant(columns, n).t()).view(*n.shape[:-1], 3)


def _horner(coefficients: Sequence[float], w: Any) -> Any:
    value = 0.0
    for coefficient in reversed(coefficients):
        value = value * w + coefficient
    return value


def _as_wide(number: _Number, like: Tensor) -> _Number:
    """A tensor in the type of what is as wide as the classes; a number as it is."""
    return number.to(like.dtype) if isinstance(number, Tensor) else number


def _log_parts(prior: float) -> tuple[float, float]:
    """ln β, split so that adding the first part to a logit rounds little, however large that is."""
    log = math.log(prior)
    first = round(log * _LOG_STEPS) / _LOG_STEPS
    return first, log - first


def _add_log(n: Tensor, prior: _Number) -> tuple[Tensor, _Number]:
    """n + ln β in place of n, and what it lacks; see `_log_parts`."""
    if isinstance(prior, Tensor):
        log = prior.log()
        first = (log * _LOG_STEPS).round_().div_(_LOG_STEPS)
        return n.add_(first.to(n.dtype)), (log - first).to(n.dtype)
    first, left = _log_parts(prior)
    return (n.add_(first) if first else n), left


def _scale_expm1(x: Tensor, left: _Number) -> Tensor:
    """e^(x + left) − 1, in place of x where it can be; `left` is small."""
    x = _compiled_expm1(x) if torch.compiler.is_compiling() else x.expm1_()
    if isinstance(left, Tensor):
        return torch.addcmul(left, x, left + 1)
    return torch.rsub(x, left, alpha=-1 - left) if left else x


def _scale_small_expm1(x: Tensor, left: _Number) -> Tensor:
    """`_scale_expm1` times `_POLE_SCALE`, as s(s + 2) with s = e^(x/2) − 1, which overflows later."""
    x = x.mul_(0.5)
    x = _compiled_expm1(x) if torch.compiler.is_compiling() else x.expm1_()
    x = torch.rsub(x, 2 * _POLE_SCALE, alpha=-_POLE_SCALE).mul_(x)
    if isinstance(left, Tensor):
        return torch.addcmul(left * _POLE_SCALE, x, left + 1)
    return torch.rsub(x, left * _POLE_SCALE, alpha=-1 - left) if left else x


def _times_exp(factor: Tensor, x: Tensor) -> Tensor:
    """factor · e^x, which is 0 where `factor` is 0, however large x is."""
    root = (0.5 * x).clamp_(max=0.99 * math.log(torch.finfo(x.dtype).max)).exp_()
    return (factor * root).mul_(root)


def _compiled_expm1(x: Tensor) -> Tensor:
    """e^x − 1, which a compiler would take literally, also near zero."""
    kind = "float64" if x.dtype == torch.float64 else "float32"
    near = x.clamp(-0.5, 0.5)
    near = near * _horner(_coefficients("expm1", kind), near)
    return torch.where(x.abs() < 0.5, near, x.exp() - 1)


@_constant_when_compiled
def _coefficients(name: str, kind: str) -> tuple[float, ...]:
    return POLYNOMIALS[name, kind]


def _in_type(rows: Sequence[Tensor], dtype: torch.dtype) -> Sequence[Tensor]:
    """Numbers of rows in the type of what is as wide as the classes."""
    if torch.compiler.is_compiling():
        return [_stored(x.to(dtype)) for x in rows]
    return torch.stack(rows).to(dtype).unbind()  # pyright: ignore[reportArgumentType]


def _stored(x: Tensor) -> Tensor:
    """Itself, held in memory: a compiler would otherwise work it out again for every class."""
    return x.as_strided(x.shape, x.stride()) if torch.compiler.is_compiling() else x
