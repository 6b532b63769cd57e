"""Consistency losses: VAT (Miyato et al. 2018) and the Pi-model (Laine and Aila 2017).

Both compare two predictions by a divergence of their logits. `Consistency` is the loss of a `SemiConfig`.
"""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
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
    draw_seed,
    logits_of,
    observe_autocast,
    parameter_dtype,
    require_batch,
    unwrap,
    without_dropout,
)

__all__ = [
    "DIVERGENCES",
    "Consistency",
    "Divergence",
    "Order",
    "adversarial_direction",
    "categorical_kl",
    "pi_model",
    "squared_distance",
    "vat",
]

Divergence = Callable[[Tensor, Tensor], Tensor]
"""``divergence(first, second)`` of logits with classes along dimension 1; one value for each row."""
Order = Literal["paper", "release"]
"""Order of the arguments: the target first, as in the paper, or second, as in the authors' release."""


@dataclass(frozen=True)
class Consistency:
    """The consistency loss of a configuration, with its weight.

    Args:
        config: settings of the loss and its weight.
        has_belief: whether the network's logits are log-concentrations, as in belief matching, rather than
            logits of a softmax. It decides what the divergence "auto" is.

    Example:
        >>> import torch
        >>> from beliefmatch.semi import Consistency, SemiConfig
        >>> consistency = Consistency(SemiConfig(kind="vat", epsilon=1.0), has_belief=True)
        >>> network, images = torch.nn.Linear(5, 3), torch.randn(8, 5)
        >>> bool(consistency(network, images, seed=1, progress=0.5) > 0)
        True
    """

    config: SemiConfig
    _: KW_ONLY
    has_belief: bool

    def __call__(
        self, model: nn.Module, inputs: Tensor, seed: int, progress: float, others: Tensor | None = None
    ) -> Tensor:
        """The weighted loss; the network does not run where the weight is zero.

        Args:
            model: network in training mode.
            inputs: unlabelled examples.
            seed: seed of all randomness; a different one for each step and process.
            progress: fraction of the training that is done.
            others: for "pi", the same examples augmented another time.
        """
        weight = self.config.weight_at(progress)
        if weight == 0:
            return torch.zeros((), device=inputs.device)
        return weight * self.loss(model, inputs, seed, others)

    def loss(self, model: nn.Module, inputs: Tensor, seed: int, others: Tensor | None = None) -> Tensor:
        """The unweighted loss, a mean over the examples."""
        config, generator = self.config, torch.Generator().manual_seed(seed)
        divergence = config.divergence_for(has_belief=self.has_belief)
        if config.kind == "pi":
            return pi_model(
                model,
                inputs,
                others,
                divergence=divergence,
                order=config.order,
                target=config.target,
                generator=generator,
            )
        return vat(
            model,
            inputs,
            divergence=divergence,
            epsilon=config.epsilon,
            xi=config.xi,
            iterations=config.iterations,
            order=config.order,
            direction=config.direction_for(has_belief=self.has_belief),
            generator=generator,
        )


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
    r"""Virtual adversarial training: the mean divergence of predictions under the worst small perturbation.

    .. math:: \mathrm{KL}(q_x \,\|\, q_{x + r}), \qquad
              r = \operatorname{argmax}_{\|r\| \le ε} \mathrm{KL}(q_x \,\|\, q_{x + r})

    with r of length ε found by `adversarial_direction`. No gradient flows through the prediction at x, nor
    through r.

    Args:
        model: classifier in training mode, possibly wrapped by DDP or Fabric. Its buffers, such as the
            averages of BatchNorm, are not changed; BatchNorm in training mode normalises each pass by its own
            batch. All passes use the same dropout masks, so that they evaluate one function.
        inputs: examples (N, ...); ε is a length in their units.
        divergence: "dirichlet" (belief matching in the paper), "categorical" (softmax in the paper),
            "squared", or a function of two tensors of logits with one value for each row.
        epsilon: ε, the Euclidean length of each example's perturbation.
        xi: smallest step of the finite difference; see `adversarial_direction`.
        iterations: iterations of the power method; with 0 the direction is random.
        order: "paper", KL(clean ‖ perturbed), or "release", KL(perturbed ‖ clean).
        direction: divergence to search the direction with, `divergence` if not given. The authors' release
            has "categorical" throughout.
        generator: generator of the first direction and of dropout; the global one if not given. If it is
            given, the state of the global one is not changed.

    Returns:
        A scalar, in float32 at least.

    Example:
        >>> network = torch.nn.Linear(5, 3)
        >>> loss = vat(network, torch.randn(8, 5), epsilon=1.0)
        >>> loss.backward()
    """
    measure = _resolve("vat", "divergence", divergence)
    search_measure = measure if direction is None else _resolve("vat", "direction", direction)
    search = _Search("vat", search_measure, order, epsilon, xi, iterations)
    search.require_valid(model, inputs)
    seeds = _Seeds(dropout=draw_seed(generator), direction=draw_seed(generator))
    with torch.no_grad(), observe_autocast(model, inputs.device) as autocast:
        target = logits_of("vat", model, inputs, seeds.dropout)
    unit = _find_direction(search, model, inputs, None if autocast else target, seeds)
    prediction = logits_of("vat", model, inputs + epsilon * unit, seeds.dropout)
    return _mean_divergence("vat", measure, order, target, prediction, len(inputs))


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

    with f̄ the target, through which no gradient flows. Without `others`, the loss of a network without
    stochastic parts is zero.

    Args:
        model: classifier in training mode. Its buffers, such as the averages of BatchNorm, are not changed;
            BatchNorm in training mode normalises each pass by its own batch.
        inputs: examples (N, ...) of any dtype that the network accepts, such as token ids.
        others: the same examples for the target, such as augmented another time; `inputs` if not given.
        divergence: "squared" (softmax in the paper), "dirichlet" (belief matching in the paper),
            "categorical", or a function of two tensors of logits with one value for each row.
        order: "paper", KL(target ‖ prediction), or "release", KL(prediction ‖ target).
        target: "still", without dropout, as in the paper, or "stochastic", with other dropout masks.
        generator: generator of the stochastic parts; the global one if not given. If it is given, the state
            of the global one is not changed.

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
    measure = _resolve("pi_model", "divergence", divergence)
    others = inputs if others is None else others
    if not isinstance(others, Tensor) or others.shape[:1] != inputs.shape[:1]:
        expected = f"the {len(inputs)} examples of `inputs`"
        raise fail("pi_model", f"`others` must have {expected}, got {describe(others)}.")
    first, second = draw_seed(generator), draw_seed(generator)
    prediction = logits_of("pi_model", model, inputs, first)
    with torch.no_grad(), without_dropout(model, target == "still"):
        target_logits = logits_of("pi_model", model, others, second)
    return _mean_divergence("pi_model", measure, order, target_logits, prediction, len(inputs))


# The search for the adversarial direction


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

    Near r = 0 the divergence is ½ rᵀH r, and its gradient at h·d is about h·H d. Each iteration replaces d,
    random at first, by that gradient at unit length, which turns it towards the largest eigenvector of H.

    The step h is ξ where the precision allows it, which for images is float64 only: for an image of norm 50,
    float32 resolves 3e-6. So h is at least √(machine epsilon) times the norm of the example, or times ε if
    that is larger, and at most ε, a compromise between rounding and curvature. The search computes in the
    dtype of the network's parameters, without autocast, and calls the unwrapped network, since there are no
    gradients of parameters to communicate.

    Args:
        model: as in `vat`; its parameters get no gradient.
        inputs: examples (N, ...).
        divergence: as in `vat`.
        epsilon: length of the perturbation along the direction.
        xi: ξ, the smallest step of the finite difference.
        iterations: iterations of the power method; with 0 the direction is random.
        order: as in `vat`; without effect in the limit of small steps.
        generator: as in `vat`.

    Returns:
        One unit vector for each example, in the shape and dtype of `inputs`. Where the divergence does not
        change, as for a constant network, it is the random one.
    """
    measure = _resolve("adversarial_direction", "divergence", divergence)
    search = _Search("adversarial_direction", measure, order, epsilon, xi, iterations)
    search.require_valid(model, inputs)
    seeds = _Seeds(dropout=draw_seed(generator), direction=draw_seed(generator))
    return _find_direction(search, model, inputs, None, seeds)


class _Search(NamedTuple):
    """The arguments of a search for the adversarial direction, and the function that they were passed to."""

    function: str
    measure: Divergence
    order: Order
    epsilon: float
    xi: float
    iterations: int

    def require_valid(self, model: nn.Module, inputs: Tensor) -> None:
        require_batch(self.function, model, inputs)
        require_choice(self.function, "order", self.order, ORDERS)
        for name, value in (("epsilon", self.epsilon), ("xi", self.xi)):
            if require_finite_number(self.function, name, value) <= 0:
                raise fail(self.function, f"`{name}` must be positive, got {value!r}.")
        if require_index(self.function, "iterations", self.iterations) < 0:
            raise fail(self.function, f"`iterations` must not be negative, got {self.iterations!r}.")


class _Seeds(NamedTuple):
    dropout: int
    direction: int


def _find_direction(
    search: _Search, model: nn.Module, inputs: Tensor, clean: Tensor | None, seeds: _Seeds
) -> Tensor:
    """The directions; `clean` are the logits at the inputs, if they were computed without autocast."""
    network, unit = unwrap(model), _random_unit(inputs, seeds.direction)
    if search.iterations == 0:
        return unit.to(inputs.dtype)
    with torch.enable_grad(), torch.autocast(inputs.device.type, enabled=False):
        x = inputs.detach()
        if clean is None:
            x = x.to(parameter_dtype(network, x.dtype))
            with torch.no_grad():
                clean = logits_of(search.function, network, x, seeds.dropout)
        step = _step_size(search, x, clean.dtype)
        for _ in range(search.iterations):
            moved = (x + step * unit).to(x.dtype).requires_grad_()
            logits = logits_of(search.function, network, moved, seeds.dropout)
            unit = _unit(_input_gradient(search, clean, logits, moved), otherwise=unit)
    return unit.to(inputs.dtype)


def _step_size(search: _Search, x: Tensor, logits_dtype: torch.dtype) -> Tensor:
    """h of each example, shaped to broadcast."""
    resolution = max(torch.finfo(dtype).eps for dtype in (x.dtype, logits_dtype))
    size = _norm(x).clamp(min=search.epsilon)
    return (resolution**0.5 * size).clamp(min=search.xi).clamp(max=search.epsilon)


def _input_gradient(search: _Search, clean: Tensor, logits: Tensor, moved: Tensor) -> Tensor:
    """The gradient of the divergence with respect to the moved inputs, up to a factor."""
    if not logits.requires_grad:
        return torch.zeros_like(moved)
    work = work_dtype(logits.device)
    z = logits.detach().to(work).requires_grad_()
    function, measure, order, *_ = search
    value = _mean_divergence(function, measure, order, clean.to(work), z, len(moved))
    (by_logits,) = torch.autograd.grad(value, z)
    largest = by_logits.abs().max().clamp(min=torch.finfo(work).tiny)
    by_logits = by_logits / largest  # so that a narrow dtype loses less
    (by_inputs,) = torch.autograd.grad(
        logits, moved, by_logits.to(logits.dtype), allow_unused=True, materialize_grads=True
    )
    return by_inputs


def _random_unit(inputs: Tensor, seed: int) -> Tensor:
    generator = torch.Generator(inputs.device).manual_seed(seed)
    dtype = torch.promote_types(inputs.dtype, torch.float32)
    noise = torch.randn(inputs.shape, generator=generator, device=inputs.device, dtype=dtype)
    return _unit(noise, otherwise=noise)


def _unit(vectors: Tensor, otherwise: Tensor) -> Tensor:
    """The vector of each example at unit length, or `otherwise` where it is zero or not finite.

    Vectors are divided by their largest component first, because the squares of small ones would underflow.
    """
    vectors = vectors.to(otherwise.dtype)
    largest = vectors.flatten(1).abs().amax(1).view(-1, *[1] * (vectors.dim() - 1))
    vectors = vectors / largest.clamp(min=torch.finfo(vectors.dtype).tiny)
    norm = _norm(vectors)
    return torch.where((norm > 0) & norm.isfinite(), vectors / norm, otherwise)


def _norm(vectors: Tensor) -> Tensor:
    """The Euclidean norm of each example, shaped to broadcast; float32 or wider."""
    dtype = torch.promote_types(vectors.dtype, torch.float32)
    norms = torch.linalg.vector_norm(vectors.flatten(1), dim=1, dtype=dtype)
    return norms.view(-1, *[1] * (vectors.dim() - 1))


# Divergences between two predictions

_LOWEST = -1e30  # replaces a logit of −∞, so that a class with probability zero does not give NaN


def categorical_kl(first: Tensor, second: Tensor) -> Tensor:
    r"""KL(softmax(first) ‖ softmax(second)) ≥ 0 of each row.

    .. math:: \sum_k p_k\,(e^{x_k} - 1 - x_k), \qquad x = \ln(q/p)

    which is Σ p ln(p/q), since p and q both sum to one, without a negative term: differences of nearly equal
    predictions keep their digits.

    >>> round(categorical_kl(torch.zeros(1, 2), torch.tensor([[0.0, 1e-6]])).item() * 8e12, 6)  # of δ²/8
    1.0
    """
    p, q, x = _probabilities("categorical_kl", first, second)
    near = x < 1
    y = torch.where(near, x, 0.0)
    terms = torch.where(near, p * (y.expm1() - y), q - p - p * x)
    return terms.sum(1).to(_result_dtype(first, second))


def squared_distance(first: Tensor, second: Tensor) -> Tensor:
    """Σ_k (p_k − q_k)² of the two softmax vectors of each row, in [0, 2]; the order does not matter."""
    p, q, x = _probabilities("squared_distance", first, second)
    return _difference(p, q, x).square().sum(1).to(_result_dtype(first, second))


def _dirichlet(first: Tensor, second: Tensor) -> Tensor:
    return dirichlet_kl(first, second, dim=1)


DIVERGENCES: dict[str, Divergence] = {
    "categorical": categorical_kl,
    "dirichlet": _dirichlet,
    "squared": squared_distance,
}
"""By name: KL between softmax vectors, KL between Dirichlets with α = e^logits, squared distance."""


def _resolve(function: str, argument: str, divergence: Divergence | str) -> Divergence:
    """The divergence of that name; a function is returned as it is."""
    if isinstance(divergence, str):
        require_choice(function, argument, divergence, tuple(DIVERGENCES))
        return DIVERGENCES[divergence]
    if not callable(divergence):
        expected = "the name of a divergence or a function"
        raise fail(function, f"`{argument}` must be {expected}, got {describe(divergence)}.", TypeError)
    return divergence


def _mean_divergence(
    function: str, measure: Divergence, order: Order, target: Tensor, prediction: Tensor, n_examples: int
) -> Tensor:
    """The mean divergence over examples; TypeError if the divergence does not return a value for each row."""
    values: Any = measure(target, prediction) if order == "paper" else measure(prediction, target)
    if not isinstance(values, Tensor) or values.shape[:1] != (n_examples,):
        expected = f"a value for each of {n_examples} rows"
        raise fail(function, f"`divergence` must return {expected}, got {describe(values)}.", TypeError)
    return (values / values.numel()).sum()  # the sum of saturated values would overflow


def _probabilities(function: str, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """p and q of each row, and ln(q/p)."""
    for name, logits in (("first", first), ("second", second)):
        require_floating(function, name, logits)
    if first.dim() < 2 or first.shape != second.shape:
        received = f"{tuple(first.shape)} and {tuple(second.shape)}"
        raise fail(function, f"`first` and `second` must both have one shape (N, K, ...), got {received}.")
    log_p, log_q = (
        logits.to(work_dtype(logits.device)).clamp(min=_LOWEST).log_softmax(1) for logits in (first, second)
    )
    p, q, x = log_p.exp(), log_q.exp(), log_q - log_p
    # For a class that leads by far, both logarithms are near zero and their difference is mostly rounding
    # error. Its probability changes by what the other classes lose, which is exact.
    leads = torch.zeros_like(p, dtype=torch.bool).scatter(1, p.argmax(1, keepdim=True), True)
    others = torch.where(leads, 0.0, _difference(p, q, x)).sum(1, keepdim=True)
    gained = -others / torch.where(leads, p, 1.0)
    is_small = leads & (gained.abs() < 0.5)
    return p, q, torch.where(is_small, torch.where(is_small, gained, 0.0).log1p(), x)


def _difference(p: Tensor, q: Tensor, x: Tensor) -> Tensor:
    """q − p, computed from x = ln(q/p) where they are close."""
    near = x < 1
    return torch.where(near, p * torch.where(near, x, 0.0).expm1(), q - p)


def _result_dtype(first: Tensor, second: Tensor) -> torch.dtype:
    return result_dtype(torch.promote_types(first.dtype, second.dtype))
