r"""How far apart two predictions are, one value a row of logits.

All are zero where the two agree, and keep their digits near there: consistency is a matter of small
differences, and VAT's search looks at nothing else.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from beliefmatch._rows import result_dtype, work_dtype
from beliefmatch._validate import (
    describe,
    fail,
    require_choice,
    require_finite_number,
    require_floating,
    require_index,
)
from beliefmatch.belief import dirichlet_kl
from beliefmatch.semi.config import ORDERS, TARGETS, SemiConfig
from beliefmatch.semi.passes import (
    bare,
    drawn_seed,
    logits_of,
    parameter_dtype,
    require_batch,
    sees_autocast,
    still,
)

__all__ = [
    "DIVERGENCES",
    "Consistency",
    "Divergence",
    "Order",
    "adversarial_direction",
    "categorical_kl",
    "consistency_of",
    "mean_of",
    "named",
    "ordered",
    "pi_model",
    "squared_distance",
    "vat",
]

Divergence = Callable[[Tensor, Tensor], Tensor]
"""``measure(first, second)`` of two tensors of logits of one shape, with classes along dimension 1."""

Order = Literal["paper", "release"]
"""Of the two arguments: the target first, as in the paper, or second, as in the authors' release."""

_LOWEST = -1e30  # a logit of −∞ is a class without any share, not NaN


def categorical_kl(first: Tensor, second: Tensor) -> Tensor:
    r"""KL(softmax(first) ‖ softmax(second)) ≥ 0 of each row.

    .. math:: \sum_k p_k\,(e^{x_k} - 1 - x_k), \qquad x = \ln(q/p)

    which is Σ p ln(p/q), since p and q both sum to one, without a negative term.

    >>> round(categorical_kl(torch.zeros(1, 2), torch.tensor([[0.0, 1e-6]])).item() * 8e12, 6)  # of δ²/8
    1.0
    """
    p, q, x = _shares("categorical_kl", first, second)
    near = x < 1
    y = torch.where(near, x, 0.0)
    terms = torch.where(near, p * (y.expm1() - y), q - p - p * x)
    return terms.sum(1).to(_kind(first, second))


def squared_distance(first: Tensor, second: Tensor) -> Tensor:
    """Σ_k (p_k − q_k)² of the two softmax vectors of each row, in [0, 2]; the order does not matter."""
    p, q, x = _shares("squared_distance", first, second)
    return _difference(p, q, x).square().sum(1).to(_kind(first, second))


def _shares(function: str, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """p and q of the rows, and ln(q/p)."""
    for name, logits in (("first", first), ("second", second)):
        require_floating(function, name, logits)
    if first.dim() < 2 or first.shape != second.shape:
        received = f"{tuple(first.shape)} and {tuple(second.shape)}"
        raise fail(function, f"`first` and `second` must both have one shape (N, K, ...), got {received}.")
    log_p, log_q = (_lifted(logits).clamp(min=_LOWEST).log_softmax(1) for logits in (first, second))
    p, q, x = log_p.exp(), log_q.exp(), log_q - log_p
    return p, q, _with_exact_leader(p, q, x)


def _with_exact_leader(p: Tensor, q: Tensor, x: Tensor) -> Tensor:
    """ln(q/p) whose value for the leading class comes from what the others lose.

    Its two logarithms are near zero and their difference is mostly rounding where it leads by far.
    """
    leads = torch.zeros_like(p, dtype=torch.bool).scatter(1, p.argmax(1, keepdim=True), True)
    others = torch.where(leads, 0.0, _difference(p, q, x)).sum(1, keepdim=True)
    gained = -others / torch.where(leads, p, 1.0)
    is_small = leads & (gained.abs() < 0.5)
    return torch.where(is_small, torch.where(is_small, gained, 0.0).log1p(), x)


def _difference(p: Tensor, q: Tensor, x: Tensor) -> Tensor:
    """q − p, from their ratio where they are close."""
    near = x < 1
    return torch.where(near, p * torch.where(near, x, 0.0).expm1(), q - p)


def _dirichlet(first: Tensor, second: Tensor) -> Tensor:
    return dirichlet_kl(first, second, dim=1)


DIVERGENCES: dict[str, Divergence] = {
    "categorical": categorical_kl,
    "dirichlet": _dirichlet,
    "squared": squared_distance,
}
"""By name: KL between softmax vectors, KL between Dirichlets with α = e^logits, squared distance."""


def named(function: str, argument: str, divergence: Divergence | str) -> Divergence:
    """The divergence of a name; a function is one already."""
    if isinstance(divergence, str):
        require_choice(function, argument, divergence, tuple(DIVERGENCES))
        return DIVERGENCES[divergence]
    if not callable(divergence):
        expected = "the name of a divergence or a function"
        raise fail(function, f"`{argument}` must be {expected}, got {describe(divergence)}.", TypeError)
    return divergence


def mean_of(function: str, values: Any, inputs: Tensor) -> Tensor:
    """The mean over the examples of what a divergence says of each; a TypeError if it said something else."""
    if not isinstance(values, Tensor) or values.shape[:1] != inputs.shape[:1]:
        expected = f"a value for each of {len(inputs)} rows"
        raise fail(function, f"`divergence` must give {expected}, got {describe(values)}.", TypeError)
    return (values / values.numel()).sum()  # a sum of saturated values would overflow


def ordered(measure: Divergence, order: Order, target: Tensor, prediction: Tensor) -> Tensor:
    """The divergence between a target and a prediction, in the order of the paper or of the release."""
    return measure(target, prediction) if order == "paper" else measure(prediction, target)


def _lifted(logits: Tensor) -> Tensor:
    return logits.to(work_dtype(logits.device))


def _kind(first: Tensor, second: Tensor) -> torch.dtype:
    return result_dtype(torch.promote_types(first.dtype, second.dtype))


def vat(
    model: nn.Module,
    inputs: Tensor,
    *,
    divergence: Divergence | str = "dirichlet",
    epsilon: float = 6.0,
    xi: float = 1e-6,
    iterations: int = 1,
    order: Order = "paper",
    direction: Divergence | str | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""The mean divergence between predictions at examples and at their worst neighbours.

    .. math:: \mathrm{KL}(q_x \,\|\, q_{x + r}), \qquad
              r = \operatorname{argmax}_{\|r\| \le ε} \mathrm{KL}(q_x \,\|\, q_{x + r})

    with r of length ε found by `adversarial_direction`. No gradient flows through the prediction at x, nor
    through r.

    Args:
        model: a classifier in the mode it is trained in, possibly wrapped by DDP or Fabric. Its buffers, such
            as the averages of BatchNorm, are left as they are; BatchNorm in training mode normalises each
            pass by the pass's own batch. Dropout drops the same in all passes, so that what is measured is
            the change of one function.
        inputs: examples (N, ...); ε is a length in their units.
        divergence: "dirichlet" (belief matching in the paper), "categorical" (softmax in the paper),
            "squared", or a function of two tensors of logits with one value a row.
        epsilon: ε, the Euclidean length of each example's perturbation.
        xi: the smallest step of the finite difference; see `adversarial_direction`.
        iterations: of the power method; with 0 the direction is random.
        order: "paper", KL(clean ‖ perturbed), or "release", KL(perturbed ‖ clean).
        direction: the divergence that the direction is searched with, the same as `divergence` if not given.
            The authors' release has "categorical" throughout.
        generator: of the first direction and of dropout; the global one, as ever, if not given. The state
            of the global one is left alone if it is.

    Returns:
        A scalar, in float32 at least.

    Example:
        >>> network = torch.nn.Linear(5, 3)
        >>> loss = vat(network, torch.randn(8, 5), epsilon=1.0)
        >>> loss.backward()
    """
    measure = named("vat", "divergence", divergence)
    searched_with = measure if direction is None else named("vat", "direction", direction)
    search = _checked("vat", model, inputs, searched_with, epsilon, xi, iterations, order)
    seeds = _Seeds(drawn_seed(generator), drawn_seed(generator))
    with torch.no_grad(), sees_autocast(model, inputs.device) as seen:
        target = logits_of("vat", model, inputs, seeds.dropout)
    unit = _searched(search, model, inputs, None if seen else target, seeds)
    prediction = logits_of("vat", model, inputs + search.epsilon * unit, seeds.dropout)
    return mean_of("vat", ordered(measure, order, target, prediction), inputs)


def adversarial_direction(
    model: nn.Module,
    inputs: Tensor,
    *,
    divergence: Divergence | str = "dirichlet",
    epsilon: float = 6.0,
    xi: float = 1e-6,
    iterations: int = 1,
    order: Order = "paper",
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""Unit vectors along which predictions change the most, by the power method.

    Near r = 0 the divergence is ½ rᵀH r, and its gradient at h·d is about h·H d. From a random d on, d is
    replaced by that gradient, brought to unit length, which turns it towards the largest eigenvector of H.

    The step h is ξ where the numbers can carry it, which for images are float64 only: of an image of norm
    50, float32 keeps no more than 3e-6. So h is at least √(machine epsilon) times the norm of the example,
    or times ε if that is larger, and at most ε, a compromise between rounding and curvature. The search
    computes in the type of the network's parameters, without autocast, and calls the network inside of
    wrappers, since there are no gradients of parameters to send.

    Args:
        model: as in `vat`; its parameters get no gradient.
        inputs: examples (N, ...).
        divergence: as in `vat`.
        epsilon: the length that the direction is for.
        xi: ξ, the smallest step of the finite difference.
        iterations: of the power method; with 0 the direction is random.
        order: as in `vat`; of no influence in the limit of small steps.
        generator: as in `vat`.

    Returns:
        As many vectors as examples, in the shape and type of `inputs`. Where the divergence does not change,
        as for a constant network, the random vector stays.
    """
    function = "adversarial_direction"
    measure = named(function, "divergence", divergence)
    search = _checked(function, model, inputs, measure, epsilon, xi, iterations, order)
    seeds = _Seeds(drawn_seed(generator), drawn_seed(generator))
    return _searched(search, model, inputs, None, seeds)


class _Search(NamedTuple):
    """What is searched for, and how; checked."""

    function: str
    measure: Divergence
    order: Order
    epsilon: float
    xi: float
    iterations: int


class _Seeds(NamedTuple):
    """Of the layers' chance, and of the first direction."""

    dropout: int
    direction: int


def _checked(
    function: str,
    model: nn.Module,
    inputs: Tensor,
    measure: Divergence,
    epsilon: float,
    xi: float,
    iterations: int,
    order: Order,
) -> _Search:
    require_batch(function, model, inputs)
    require_choice(function, "order", order, ORDERS)
    for name, value in (("epsilon", epsilon), ("xi", xi)):
        if require_finite_number(function, name, value) <= 0:
            raise fail(function, f"`{name}` must be positive, got {value!r}.")
    if require_index(function, "iterations", iterations) < 0:
        raise fail(function, f"`iterations` must not be negative, got {iterations!r}.")
    return _Search(function, measure, order, epsilon, xi, iterations)


def _searched(
    search: _Search, model: nn.Module, inputs: Tensor, clean: Tensor | None, seeds: _Seeds
) -> Tensor:
    """The directions; `clean` are the logits at the inputs, if computed as the search computes."""
    network, unit = bare(model), _random_unit(inputs, seeds.direction)
    if search.iterations == 0:
        return unit.to(inputs.dtype)
    with torch.enable_grad(), torch.autocast(inputs.device.type, enabled=False):
        x = inputs.detach()
        if clean is None:
            x = x.to(parameter_dtype(network, x.dtype))
            with torch.no_grad():
                clean = logits_of(search.function, network, x, seeds.dropout)
        step = _step(search, x, clean.dtype)
        for _ in range(search.iterations):
            moved = (x + step * unit).to(x.dtype).requires_grad_()
            logits = logits_of(search.function, network, moved, seeds.dropout)
            unit = _unit(_slope(search, clean, logits, moved), otherwise=unit)
    return unit.to(inputs.dtype)


def _step(search: _Search, x: Tensor, computed_in: torch.dtype) -> Tensor:
    """h of each example, shaped to broadcast."""
    coarseness = max(torch.finfo(dtype).eps for dtype in (x.dtype, computed_in))
    size = _norm(x).clamp(min=search.epsilon)
    return (coarseness**0.5 * size).clamp(min=search.xi).clamp(max=search.epsilon)


def _slope(search: _Search, clean: Tensor, logits: Tensor, moved: Tensor) -> Tensor:
    """The gradient of the divergence by the moved inputs, up to a factor."""
    if not logits.requires_grad:
        return torch.zeros_like(moved)
    work = work_dtype(logits.device)
    z = logits.detach().to(work).requires_grad_()
    values = mean_of(search.function, ordered(search.measure, search.order, clean.to(work), z), moved)
    (by_logits,) = torch.autograd.grad(values, z)
    largest = by_logits.abs().max().clamp(min=torch.finfo(work).tiny)
    by_logits = by_logits / largest  # a narrow type loses less
    (by_inputs,) = torch.autograd.grad(
        logits, moved, by_logits.to(logits.dtype), allow_unused=True, materialize_grads=True
    )
    return by_inputs


def _random_unit(inputs: Tensor, seed: int) -> Tensor:
    generator = torch.Generator(inputs.device).manual_seed(seed)
    kind = torch.promote_types(inputs.dtype, torch.float32)
    noise = torch.randn(inputs.shape, generator=generator, device=inputs.device, dtype=kind)
    return _unit(noise, otherwise=noise)


def _unit(vectors: Tensor, otherwise: Tensor) -> Tensor:
    """Each example's vector at unit length, or another where it has none.

    Its largest component is made 1 first: the squares of small ones would vanish.
    """
    vectors = vectors.to(otherwise.dtype)
    vectors = vectors / _largest(vectors).clamp(min=torch.finfo(vectors.dtype).tiny)
    norm = _norm(vectors)
    return torch.where((norm > 0) & norm.isfinite(), vectors / norm, otherwise)


def _largest(vectors: Tensor) -> Tensor:
    """Of each example's components, shaped to broadcast."""
    return vectors.flatten(1).abs().amax(1).view(-1, *[1] * (vectors.dim() - 1))


def _norm(vectors: Tensor) -> Tensor:
    """The Euclidean length of each example, shaped to broadcast; in float32 at least."""
    kind = torch.promote_types(vectors.dtype, torch.float32)
    lengths = torch.linalg.vector_norm(vectors.flatten(1), dim=1, dtype=kind)
    return lengths.view(-1, *[1] * (vectors.dim() - 1))


def pi_model(
    model: nn.Module,
    inputs: Tensor,
    others: Tensor | None = None,
    *,
    divergence: Divergence | str = "dirichlet",
    order: Order = "paper",
    target: Literal["still", "stochastic"] = "still",
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""The mean divergence between the predictions of a network with and without its stochastic parts.

    .. math:: \|φ(\bar f(x)) - φ(f(x))\|^2 \quad\text{or}\quad \mathrm{KL}(\bar q \,\|\, q)

    with f̄ the target, which no gradient flows through. Without `others`, a network that has no stochastic
    parts agrees with itself, and the loss is zero.

    Args:
        model: a classifier in the mode it is trained in. Its buffers, such as the averages of BatchNorm, are
            left as they are; BatchNorm in training mode normalises each pass by the pass's own batch.
        inputs: examples to predict, (N, ...), of any type that the network takes, such as token ids.
        others: the same examples for the target, for instance augmented another time; `inputs` if not given.
        divergence: "squared" (softmax in the paper), "dirichlet" (belief matching in the paper),
            "categorical", or a function of two tensors of logits with one value a row.
        order: "paper", KL(target ‖ prediction), or "release", KL(prediction ‖ target).
        target: "still", with dropout and its like switched off, as in the paper, or "stochastic", with a
            draw of its own.
        generator: of the stochastic parts; the global one, as ever, if not given. The state of the global
            one is left alone if it is.

    Returns:
        A scalar, in float32 at least.

    Example:
        >>> network = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(5, 3))
        >>> loss = pi_model(network, torch.randn(8, 5), divergence="squared")
        >>> loss.backward()
    """
    require_batch("pi_model", model, inputs, floating=False)
    require_choice("pi_model", "order", order, ORDERS)
    require_choice("pi_model", "target", target, TARGETS)
    measure = named("pi_model", "divergence", divergence)
    others = inputs if others is None else others
    if not isinstance(others, Tensor) or others.shape[:1] != inputs.shape[:1]:
        expected = f"the {len(inputs)} examples of `inputs`"
        raise fail("pi_model", f"`others` must have {expected}, got {describe(others)}.")
    first, second = drawn_seed(generator), drawn_seed(generator)
    prediction = logits_of("pi_model", model, inputs, first)
    with torch.no_grad(), still(model, target == "still"):
        aim = logits_of("pi_model", model, others, second)
    return mean_of("pi_model", ordered(measure, order, aim, prediction), inputs)


@dataclass(frozen=True)
class Consistency:
    """A consistency loss of unlabelled examples with a weight that grows.

    Example:
        >>> import torch
        >>> from beliefmatch.semi import SemiConfig, consistency_of
        >>> consistency = consistency_of(SemiConfig("vat", epsilon=1.0), has_belief=True)
        >>> network, images = torch.nn.Linear(5, 3), torch.randn(8, 5)
        >>> bool(consistency(network, images, seed=1, progress=0.5) > 0)
        True
    """

    settings: SemiConfig
    has_belief: bool

    def __call__(
        self, model: nn.Module, inputs: Tensor, seed: int, progress: float, others: Tensor | None = None
    ) -> Tensor:
        """The loss times its weight after a share of the training; no pass is made where that is zero.

        Args:
            model: in the mode it is trained in.
            inputs: unlabelled examples.
            seed: of all chance; another one for each step and process.
            progress: the share of the training that is done.
            others: of "pi", the same examples augmented another time.
        """
        weight = self.settings.weight_at(progress)
        if weight == 0:
            return torch.zeros((), device=inputs.device)
        return weight * self.loss(model, inputs, seed, others)

    def loss(self, model: nn.Module, inputs: Tensor, seed: int, others: Tensor | None = None) -> Tensor:
        """The loss without its weight, a mean over the examples."""
        settings, generator = self.settings, torch.Generator().manual_seed(seed)
        divergence = settings.divergence_for(has_belief=self.has_belief)
        if settings.kind == "pi":
            return pi_model(
                model,
                inputs,
                others,
                divergence=divergence,
                order=settings.order,
                target=settings.target,
                generator=generator,
            )
        return vat(
            model,
            inputs,
            divergence=divergence,
            epsilon=settings.epsilon,
            xi=settings.xi,
            iterations=settings.iterations,
            order=settings.order,
            direction=settings.direction_for(has_belief=self.has_belief),
            generator=generator,
        )


def consistency_of(settings: SemiConfig, *, has_belief: bool) -> Consistency:
    """The consistency loss of some settings.

    Args:
        settings: of the loss and its weight.
        has_belief: whether the network's logits are log-concentrations, as in belief matching, rather than
            known up to a constant, as in softmax. Decides what the divergence "auto" is.
    """
    return Consistency(settings, has_belief)
