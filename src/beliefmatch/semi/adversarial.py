"""Virtual adversarial training (Miyato et al. 2018): predictions should not change in the worst direction."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from beliefmatch.checks import fail, require_choice, require_finite_number, require_index
from beliefmatch.rows import work_dtype
from beliefmatch.semi.divergences import Divergence, Order, mean_of, named, ordered
from beliefmatch.semi.passes import (
    bare,
    drawn_seed,
    logits_of,
    parameter_dtype,
    require_batch,
    sees_autocast,
)
from beliefmatch.semi.settings import ORDERS

__all__ = ["adversarial_direction", "vat"]


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
