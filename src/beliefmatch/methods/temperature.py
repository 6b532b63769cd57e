"""Temperature scaling (Guo et al. 2017): softmax of logits divided by a fitted number.

Vector and matrix scaling are fitted here too; they have more numbers and want more validation examples.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from beliefmatch._rows import work_dtype
from beliefmatch._validate import (
    describe,
    fail,
    require_device,
    require_finite_number,
    require_floating,
    require_values,
)
from beliefmatch.methods.base import Method, Prediction, Predictor
from beliefmatch.methods.cross_entropy import read

__all__ = [
    "Scaling",
    "TemperaturePredictor",
    "fit_matrix_scaling",
    "fit_temperature",
    "fit_vector_scaling",
    "temperature",
]

_RIDGE = 1e-3  # of the mean squared distance to the temperature, so that classes without rows keep it
_STEPS, _ENOUGH = 20, 1e-7  # of Newton's method, and the relative fall of the objective that ends it
_MATRIX_STEPS, _FLAT, _MATRIX_ENOUGH = 300, 1e-5, 1e-9  # of L-BFGS: its gradient and its step at the end


def temperature() -> Method:
    """Train with cross-entropy, then divide the logits by the temperature with the lowest validation NLL."""
    return Method(
        objective=functional.cross_entropy,
        predictor=TemperaturePredictor,
        calibrate=_calibrate,
        reads="softmax",
    )


@dataclass(frozen=True)
class TemperaturePredictor:
    """The softmax of a network's logits divided by a temperature."""

    network: nn.Module
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not require_finite_number("temperature", "temperature", self.temperature) > 0:
            raise fail("temperature", f"`temperature` must be positive, got {self.temperature!r}.")

    def facts(self) -> dict[str, float]:
        """The fitted temperature."""
        return {"temperature": self.temperature}

    @torch.no_grad()
    def logits(self, x: Tensor) -> Tensor:
        """Logits of a batch before the division."""
        logits = self.network.eval()(x)
        return logits.to(work_dtype(logits.device))

    def predict(self, x: Tensor) -> Prediction:
        """Predict the classes of a batch."""
        return read(self.logits(x) / self.temperature)


def fit_temperature(logits: Tensor, targets: Tensor, *, init: float = 1.0) -> float:
    """The temperature that minimises the NLL, between e^−5 and e^5.

    The NLL is convex in s = 1/T, so its derivative, the mean of E[z] − z of the label, changes sign once.
    Newton's method finds where, and bisection wherever it would leave the interval known.
    Targets are class ids (N,), or counts (N, K), which are normalised to probabilities; `init` is a guess.
    """
    _require_examples("fit_temperature", logits, targets)
    if not require_finite_number("fit_temperature", "init", init) > 0:
        raise fail("fit_temperature", f"`init` must be positive, got {init!r}.")
    return _temperature(logits, targets, init)


def _temperature(logits: Tensor, targets: Tensor, init: float = 1.0) -> float:
    """`fit_temperature` of examples that have been checked."""
    if targets.dim() == 1:
        label = logits.gather(1, targets.long()[:, None])[:, 0]
    else:
        label = (_shares(targets, logits) * logits).sum(1)
    low, high = math.exp(-5), math.exp(5)
    scale = min(max(1 / init, low), high)
    for _ in range(100):
        probs = (logits * scale).softmax(1)
        expected = (probs * logits).sum(1)
        slope = (expected - label).mean().item()
        low, high = (low, scale) if slope > 0 else (scale, high)
        if high / low < 1 + 1e-10 or slope == 0:
            break
        curvature = ((probs * logits.square()).sum(1) - expected.square()).mean().item()
        step = slope / curvature if curvature > 0 else math.inf
        after = scale - step
        if not low < after < high:
            after = math.sqrt(low * high)
        if abs(after - scale) < 1e-9 * scale:
            break
        scale = after
    return 1 / scale


class Scaling(NamedTuple):
    """A linear map of logits z (N, K): z Wᵀ + b, and with a weight of one dimension z ⊙ w + b."""

    weight: Tensor
    """(K,), or (K, K)."""
    bias: Tensor
    """(K,)."""

    def __call__(self, logits: Tensor) -> Tensor:
        """The calibrated logits."""
        if self.weight.dim() == 1:
            return logits * self.weight + self.bias
        return logits @ self.weight.t() + self.bias


def fit_vector_scaling(logits: Tensor, targets: Tensor, *, init: Scaling | None = None) -> Scaling:
    r"""Vector scaling (Guo et al. 2017): a factor and a shift for each class, of the lowest NLL.

    .. math:: \min_{w, b} \mathrm{NLL}(z \odot w + b) + \frac{\rho}{2K} \sum_k [(T w_k - 1)^2 + b_k^2]

    with T the temperature and ρ = 0.001, so that classes without examples keep the temperature. Convex;
    found by Newton's method.

    Args:
        logits: (N, K).
        targets: class ids (N,), or counts (N, K), which are normalised to probabilities.
        init: a guess, such as the scaling of nearly the same examples.
    """
    _require_examples("fit_vector_scaling", logits, targets)
    logits, classes = logits.double(), logits.shape[1]
    _require_init("fit_vector_scaling", init, (classes,))
    goal = _shares(targets, logits)
    centre = 1 / _temperature(logits, targets)
    scale, shift = init or Scaling(logits.new_full((classes,), centre), logits.new_zeros(classes))
    pull = _RIDGE / classes

    def objective(scale: Tensor, shift: Tensor) -> Tensor:
        nll = -(goal * (logits * scale + shift).log_softmax(1)).sum(1).mean()
        away = (scale / centre - 1).square().sum() + shift.square().sum()
        return nll + pull * away / 2

    value = objective(scale, shift)
    for _ in range(_STEPS):
        probs = (logits * scale + shift).softmax(1)
        weighted = probs * logits
        rest = probs - goal
        scale_grad = (rest * logits).mean(0) + pull * (scale / centre - 1) / centre
        grad = torch.cat([scale_grad, rest.mean(0) + pull * shift])
        both = torch.cat([weighted, probs], 1)
        hessian = -both.t() @ both / len(logits)
        indices = torch.arange(classes, device=logits.device)
        hessian[indices, indices] += (weighted * logits).mean(0) + pull / centre**2
        hessian[indices, indices + classes] += weighted.mean(0)
        hessian[indices + classes, indices] += weighted.mean(0)
        hessian[indices + classes, indices + classes] += probs.mean(0) + pull
        step = torch.linalg.solve(hessian, grad)
        length = 1.0
        while length > 1e-4:
            tried = scale - length * step[:classes], shift - length * step[classes:]
            after = objective(*tried)
            if after <= value:
                break
            length /= 2
        else:
            break
        fall, value, (scale, shift) = value - after, after, tried
        if fall < _ENOUGH * value:
            break
    return Scaling(scale, shift)


def fit_matrix_scaling(
    logits: Tensor, targets: Tensor, *, regularisation: float = 0.1, init: Scaling | None = None
) -> Scaling:
    r"""Matrix scaling with off-diagonal and intercept regularisation (ODIR, Kull et al. 2019).

    .. math:: \min_{A, b} \mathrm{NLL}(z A^\top / T + b)
              + \lambda \Big[ \frac{\sum_{i \ne j} A_{ij}^2}{K (K - 1)} + \frac{\sum_k b_k^2}{K} \Big]
              + \frac{\rho}{2K} \sum_k (A_{kk} - 1)^2

    with T the temperature and ρ = 0.001; W = A/T. The larger λ, the nearer to a factor for each class. Of
    log-probabilities in place of logits the result is Dirichlet calibration. Convex; found by L-BFGS.

    Args:
        logits: (N, K).
        targets: class ids (N,), or counts (N, K), which are normalised to probabilities.
        regularisation: λ.
        init: a guess, such as the scaling of another λ.
    """
    if not require_finite_number("fit_matrix_scaling", "regularisation", regularisation) > 0:
        received = f"got {regularisation!r}"
        raise fail("fit_matrix_scaling", f"`regularisation` must be positive, {received}.")
    _require_examples("fit_matrix_scaling", logits, targets)
    logits, classes = logits.double(), logits.shape[1]
    _require_init("fit_matrix_scaling", init, (classes, classes))
    goal = _shares(targets, logits)
    centre = 1 / _temperature(logits, targets)
    scaled, one = logits * centre, torch.eye(classes, dtype=torch.float64, device=logits.device)
    rows = torch.cat([scaled, scaled.new_ones(len(scaled), 1)], 1)
    goal_layer = torch.cat([one, one.new_zeros(classes, 1)], 1)  # the last column is b
    pull = torch.full_like(goal_layer, 2 * regularisation / max(classes * (classes - 1), 1))
    pull[:, :-1].fill_diagonal_(_RIDGE / classes)
    pull[:, -1] = 2 * regularisation / classes
    layer = goal_layer
    if init is not None:
        layer = torch.cat([init.weight / centre, init.bias[:, None]], 1)
    probs = (rows @ layer.t()).softmax(1)
    # L-BFGS in units in which the diagonal of the Hessian is one
    unit = ((probs - probs.square()).t() @ rows.square() / len(rows) + pull).rsqrt()
    parameters = layer / unit
    optimizer = torch.optim.LBFGS(
        [parameters],
        max_iter=_MATRIX_STEPS,
        history_size=20,
        tolerance_grad=_FLAT,
        tolerance_change=_MATRIX_ENOUGH,
        line_search_fn="strong_wolfe",
    )

    def objective() -> float:
        layer = parameters * unit
        log_probs = (rows @ layer.t()).log_softmax(1)
        pulled = pull * (layer - goal_layer)
        parameters.grad = unit * ((log_probs.exp() - goal).t() @ rows / len(rows) + pulled)
        nll = -(goal * log_probs).sum(1).mean()
        return (nll + (pulled * (layer - goal_layer)).sum() / 2).item()

    optimizer.step(objective)
    layer = parameters * unit
    return Scaling(layer[:, :-1] * centre, layer[:, -1])


def _require_examples(function: str, logits: Tensor, targets: Tensor) -> None:
    """Logits (N, K) with a class id or votes for each row."""
    require_floating(function, "logits", logits)
    if logits.dim() != 2 or 0 in logits.shape:
        received = tuple(logits.shape)
        raise fail(function, f"`logits` must have shape (N, K) with N, K ≥ 1, got {received}.")
    require_values(function, "logits", logits, logits.isfinite(), "finite")
    (rows, classes), expected = logits.shape, "a tensor of class ids (N,) or of votes (N, K)"
    if not isinstance(targets, Tensor) or targets.is_complex():
        raise fail(function, f"`targets` must be {expected}, got {describe(targets)}.", TypeError)
    if tuple(targets.shape) not in ((rows,), (rows, classes)):
        shapes = f"({rows},) or ({rows}, {classes}) to match `logits`"
        raise fail(function, f"`targets` must have shape {shapes}, got {tuple(targets.shape)}.")
    require_device(function, "targets", targets, logits)
    if targets.dim() == 1:
        if targets.is_floating_point() or targets.dtype == torch.bool:
            expected = "class ids of an integer type, or votes (N, K)"
            raise fail(function, f"`targets` must be {expected}, got {describe(targets)}.", TypeError)
        within = (targets >= 0) & (targets < classes)
        require_values(function, "targets", targets, within, f"class ids from 0 to {classes - 1}")
        return
    require_values(function, "targets", targets, targets.isfinite() & (targets >= 0), "votes of at least 0")
    without = (targets.sum(1) <= 0).nonzero()
    if len(without):
        raise fail(function, f"`targets` must have votes in every row, got none in row {int(without[0])}.")


def _require_init(function: str, init: Scaling | None, shape: tuple[int, ...]) -> None:
    """The guess of a scaling whose weight has this shape."""
    if init is None:
        return
    if not isinstance(init, Scaling):
        raise fail(function, f"`init` must be a Scaling or None, got {describe(init)}.", TypeError)
    received = tuple(init.weight.shape), tuple(init.bias.shape)
    if received != (shape, shape[:1]):
        expected = f"a weight {shape} and a bias {shape[:1]}"
        raise fail(function, f"`init` must have {expected}, got {received[0]} and {received[1]}.")
    for values in init:
        require_values(function, "init", values, values.isfinite(), "finite")


def _shares(targets: Tensor, logits: Tensor) -> Tensor:
    """The probability of each class by the targets, as numbers of the type of the logits."""
    if targets.dim() == 1:
        return functional.one_hot(targets.long(), logits.shape[1]).to(logits.dtype)
    votes = targets.to(logits.dtype)
    return votes / votes.sum(1, keepdim=True)


def _calibrate(predictor: Predictor, batches: Iterable[tuple[Tensor, Tensor]]) -> Predictor:
    assert isinstance(predictor, TemperaturePredictor)
    pairs = [(predictor.logits(inputs), targets) for inputs, targets in batches]
    if not pairs:
        raise fail("temperature", "`batches` must contain validation examples, got none.")
    logits, targets = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    return replace(predictor, temperature=fit_temperature(logits, targets.to(logits.device)))
