"""Linear heads fitted to their optimum: L-BFGS on all rows, many heads at once.

Every head minimises the mean loss of the rows plus half its weight decay times the squared norm of its
weights. Features are standardised first, so that one weight decay suits features of any scale; the result is
folded back into weights for the features as they are. Heads share the matrix products with the rows and
nothing else: a head fitted among others is the head fitted alone.

A head has converged when its objective is within `TOLERANCE` of its minimum. With weight decay w the
objective of softmax and label smoothing is strongly convex, so that it lies at most |g|² / 2w above its
minimum where the gradient is g. Belief matching is convex near its optimum, and there the same holds.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from beliefmatch.adaptation.adapt_config import TOLERANCE
from beliefmatch.adaptation.feature_rows import Features, labelled, ordered
from beliefmatch.adaptation.objectives import HeadLoss
from beliefmatch.adaptation.scoring import product

__all__ = ["MEMORY", "Design", "solve"]

MAX_ITERATIONS = 1000
MEMORY = 4 << 30
"""Bytes of features that are held; more are read in every pass."""
_PAIRS = 20  # steps and gradient differences from which the curvature is estimated
_BLOCK_LOGITS = 200_000  # computed at a time, so that they stay in the cache
_BLOCK_ROWS = 256  # at least: with fewer, reading and adding to the weights takes most of the time
_CONSTANT = 1e-6  # of its largest value: a feature of less deviation is constant
_FARTHEST = 10.0  # deviations from the mean
_MAX_BIAS_DECAY = (
    1e-3  # biases decay to their mean like weights to 0, but never so much as to lose base rates
)
_SUFFICIENT = 1e-4  # Armijo's constant
_ROUNDING = 5e-7  # of the objective: differences below are rounding
_HALVINGS = 30


class Design:
    """Features as the solver sees them: mean zero and deviation one in each column.

    Rows are held in memory where they fit, and read in every pass over them otherwise. Rows that belong to no
    class are left out. Columns whose largest value lies far from their mean, such as a pixel that is lit in
    one image of a thousand, are shrunk until it lies `_FARTHEST` from it: one row must not decide a weight.

    Args:
        features: Rows and targets.
        background: Rows of no class, which belief matching takes as rows without votes.
        classes: K, needed with `background`.
        memory: Bytes that the rows may take.
        row_weights: Weight of each row of `features` in mean and deviation; 1 by default.
    """

    def __init__(
        self,
        features: Features,
        background: Features | None = None,
        classes: int = 0,
        memory: int = MEMORY,
        row_weights: Tensor | None = None,
    ) -> None:
        self.features, self.indices, self.classes = features, labelled(features), classes
        self.width = features.width
        self.mean, self.scale = _moments(features, self.indices, row_weights)
        self.targets = features.targets[self.indices]
        self._rows = self._held(features, self.indices, memory)
        self._background: _Rows = []
        self.n_background = 0
        if background is not None:
            self.n_background = len(background)
            self._background = self._held(background, torch.arange(len(background)), memory)

    def __len__(self) -> int:
        return len(self.indices)

    def blocks(self, size: int, *, background: bool = False) -> Iterator[tuple[slice | None, Tensor, Tensor]]:
        """At most `size` rows at a time: their indices (None for background), values and targets."""
        at = 0
        for part in self._rows:
            for rows in part.split(size):
                here = slice(at, at + len(rows))
                yield here, rows, self.targets[here]
                at += len(rows)
        for part in self._background if background else ():
            for rows in part.split(size):
                yield None, rows, torch.zeros(1, self.classes, dtype=torch.float32).expand(len(rows), -1)

    def _held(self, features: Features, indices: Tensor, memory: int) -> "_Rows":
        if 4 * len(indices) * self.width > memory:
            return _Streamed(self, features, indices)
        held, at = torch.empty(len(indices), self.width, dtype=torch.float32), 0
        for rows, _ in ordered(features, indices):
            torch.mul(rows - self.mean, self.scale, out=held[at : at + len(rows)])
            at += len(rows)
        return [held]

    def to_raw(self, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Weights (H, K, F) and biases (H, K) for the features as they were."""
        raw = weight * self.scale
        return raw, bias - raw @ self.mean

    def to_standardized(self, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """The inverse of `to_raw`; weights of constant features go into the bias."""
        own = torch.where(self.scale > 0, weight / self.scale.clamp(min=1e-30), 0.0)
        return own, bias + weight @ self.mean


class _Streamed:
    """Standardised rows that are read again in every pass."""

    def __init__(self, design: Design, features: Features, indices: Tensor) -> None:
        self.design, self.features, self.indices = design, features, indices

    def __iter__(self) -> Iterator[Tensor]:
        for rows, _ in ordered(self.features, self.indices):
            yield rows.sub(self.design.mean).mul_(self.design.scale)


_Rows = list[Tensor] | _Streamed


def _moments(features: Features, indices: Tensor, row_weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """Mean of each column, and the factor that standardises it: 0 for a constant one, which no head uses."""
    total = torch.zeros(2, features.width, dtype=torch.float64)
    shift = next(ordered(features, indices[:1]))[0][0]  # so that no digits cancel in the squares
    low = high = shift
    weights = torch.ones(len(indices), 1, dtype=torch.float32)
    if row_weights is not None:
        weights = row_weights[indices, None]
    at = 0
    for rows, _ in ordered(features, indices):
        moved, own = (rows - shift).double(), weights[at : at + len(rows)]
        total += torch.stack([(own * moved).sum(0), (own * moved.square()).sum(0)])
        at += len(rows)
        low, high = torch.minimum(low, rows.amin(0)), torch.maximum(high, rows.amax(0))
    mean, square = total / weights.sum(dtype=torch.float64)
    deviation = (square - mean.square()).clamp(min=0).sqrt()
    mean = mean + shift
    is_constant = deviation <= _CONSTANT * torch.maximum(low.abs(), high.abs())
    farthest = torch.maximum(high - mean, mean - low)
    unit = torch.maximum(deviation, farthest / _FARTHEST).clamp(min=1e-300)
    return mean.float(), torch.where(is_constant, 0.0, 1 / unit).float()


class Solution(NamedTuple):
    """Fitted heads."""

    weight: Tensor
    """(H, K, F)."""
    bias: Tensor
    """(H, K)."""
    objective: Tensor
    """Mean loss and penalty of each head, (H,)."""
    gap: Tensor
    """Estimate of the objective's relative distance to its minimum, (H,); NaN for a head that diverged."""
    iterations: Tensor
    """(H,)."""
    converged: Tensor
    """(H,)."""


class _Point(NamedTuple):
    """Parameters (H, P) with objective (H,), gradient (H, P) and relative gap (H,)."""

    at: Tensor
    value: Tensor
    grad: Tensor
    gap: Tensor

    def take(self, heads: Tensor) -> "_Point":
        return _Point(*(one[heads] for one in self))


def solve(
    design: Design,
    loss: HeadLoss,
    weight_decay: Tensor,
    init: tuple[Tensor, Tensor],
    *,
    row_weights: Tensor | None = None,
    background: bool = False,
    tolerance: float = TOLERANCE,
    max_iterations: int = MAX_ITERATIONS,
    probe: tuple[int, Callable[[Tensor, Tensor], bool]] | None = None,
) -> Solution:
    """Minimise the objective of every head.

    Args:
        design: The features and targets.
        loss: The losses of the H heads.
        weight_decay: Of each head, (H,), positive.
        init: Weights (H, K, F) and biases (H, K) to start from.
        row_weights: How often each row counts for each head, (H, N); once by default.
        background: Whether rows of no class take part.
        tolerance: Relative distance to the minimum at which a head stops.
        max_iterations: Largest number of L-BFGS iterations.
        probe: After so many iterations the weights and biases of all heads are shown to a function, which
            ends the work by returning True.
    """
    problem = _Problem(design, loss, weight_decay, row_weights, background)
    point = problem.at(torch.cat([init[0].flatten(1), init[1]], 1), torch.arange(len(weight_decay)))
    done = _Point(*(one.clone() for one in point))
    iterations = torch.zeros(len(weight_decay), dtype=torch.int64)
    heads, memory = torch.arange(len(weight_decay)), _Curvature()
    is_at_rounding = torch.zeros(len(weight_decay), dtype=torch.bool)
    for iteration in range(max_iterations):
        active = point.gap > tolerance  # not where it is NaN
        if not bool(active.all()):
            kept = active.nonzero()[:, 0]
            heads, point = heads[kept], point.take(kept)
            memory.keep(kept)
        if not len(heads) or (
            probe is not None and iteration == probe[0] and probe[1](*problem.unpacked(done.at))
        ):
            break
        after = _line_search(problem, heads, point, memory.direction(point.grad))
        memory.add(after.at - point.at, after.grad - point.grad)
        is_stuck = after.at.eq(point.at).all(1)  # rounding is all that is left
        iterations[heads] += 1
        point = after
        _put(done, heads, point)
        is_at_rounding[heads] = is_stuck
        if bool(is_stuck.any()):
            kept = (~is_stuck).nonzero()[:, 0]
            heads, point = heads[kept], point.take(kept)
            memory.keep(kept)
    weight, bias = problem.unpacked(done.at)
    converged = (done.gap <= tolerance) | (is_at_rounding & (done.gap <= 10 * tolerance))
    return Solution(weight, bias, done.value, done.gap, iterations, converged)


def _put(done: _Point, heads: Tensor, point: _Point) -> None:
    for all_heads, some in zip(done, point, strict=True):
        all_heads[heads] = some


class _Problem:
    """The objectives of all heads as functions of their parameters, weights and biases end to end."""

    def __init__(
        self,
        design: Design,
        loss: HeadLoss,
        weight_decay: Tensor,
        row_weights: Tensor | None,
        background: bool,
    ) -> None:
        self.design, self.loss, self.row_weights, self.background = design, loss, row_weights, background
        self.weight_decay = weight_decay.to(torch.float64)
        self.bias_decay = self.weight_decay.clamp(max=_MAX_BIAS_DECAY)
        total = torch.tensor(len(design)) if row_weights is None else row_weights.sum(1)
        self.total = total.double().expand(len(weight_decay))

    def unpacked(self, at: Tensor) -> tuple[Tensor, Tensor]:
        """Weights (H, K, F) and biases (H, K)."""
        width = self.design.width
        classes = at.shape[1] // (width + 1)
        return at[:, : classes * width].view(len(at), classes, width), at[:, classes * width :]

    def at(self, at: Tensor, heads: Tensor) -> _Point:
        """The objectives of these heads at their parameters."""
        weight, bias = self.unpacked(at)
        value = torch.zeros(len(at), dtype=torch.float64)
        grad = torch.zeros_like(at)
        weight_grad, bias_grad = self.unpacked(grad)
        size = max(_BLOCK_ROWS, _BLOCK_LOGITS // bias.numel())
        product_grad = grad.new_zeros(bias.numel(), self.design.width)  # one matrix for all heads
        for some, rows, targets in self.design.blocks(size, background=self.background):
            loss, logit_grad = self.loss(product(weight, bias, rows), targets, heads)
            if self.row_weights is not None and some is not None:
                counted = self.row_weights[heads, some]
                loss, logit_grad = loss * counted, logit_grad * counted[:, None]
            value += loss.sum(1, dtype=torch.float64)
            bias_grad += logit_grad.sum(2)
            product_grad.addmm_(logit_grad.reshape(-1, len(rows)), rows)
        weight_grad.copy_(product_grad.view_as(weight))
        total, decay, bias_decay = self.total[heads], self.weight_decay[heads], self.bias_decay[heads]
        grad /= total[:, None].to(grad)
        weight_grad += decay[:, None, None].to(grad) * weight
        centred = bias - bias.mean(1, keepdim=True)
        bias_grad += bias_decay[:, None].to(grad) * centred
        value = value / total
        value += 0.5 * decay * weight.double().square().sum((1, 2))
        value += 0.5 * bias_decay * centred.double().square().sum(1)
        above = (
            weight_grad.double().square().sum((1, 2)) / decay
            + bias_grad.double().square().sum(1) / bias_decay
        )
        gap = above / (2 * value.abs().clamp(min=1e-300))
        return _Point(at, value, grad, torch.where(value.isfinite(), gap, torch.nan))


class _Curvature:
    """The last steps and gradient differences of every head, and the direction that they lead to."""

    def __init__(self) -> None:
        self.pairs: list[tuple[Tensor, Tensor, Tensor]] = []

    def add(self, step: Tensor, change: Tensor) -> None:
        product = (step * change).sum(1)
        is_convex = product > 1e-10 * step.norm(dim=1) * change.norm(dim=1)
        inverse = torch.where(is_convex, 1 / product, 0.0)  # a pair of inverse 0 changes nothing
        self.pairs = [*self.pairs[-_PAIRS + 1 :], (step, change, inverse)]

    def keep(self, heads: Tensor) -> None:
        self.pairs = [(step[heads], change[heads], inverse[heads]) for step, change, inverse in self.pairs]

    def direction(self, grad: Tensor) -> Tensor:
        """Minus the estimated inverse Hessian times the gradient (Nocedal's two loops)."""
        found, factors = grad.clone(), []
        for step, change, inverse in reversed(self.pairs):
            factor = inverse * (step * found).sum(1)
            found.sub_(factor[:, None] * change)
            factors.append(factor)
        found.mul_(self._scale(grad)[:, None])
        for (step, change, inverse), factor in zip(self.pairs, reversed(factors), strict=True):
            found.add_(step * (factor - inverse * (change * found).sum(1))[:, None])
        return -found

    def _scale(self, grad: Tensor) -> Tensor:
        """One over the latest curvature; before there is one, such that the first step has length one."""
        scale = 1 / grad.norm(dim=1).clamp(min=1.0)
        for _, change, inverse in self.pairs:
            latest = 1 / (inverse * change.square().sum(1))
            scale = torch.where(inverse > 0, latest, scale)
        return scale


def _line_search(problem: _Problem, heads: Tensor, point: _Point, direction: Tensor) -> _Point:
    """A point of lower objective along the direction of each head; only heads without one are tried again."""
    down = (direction * point.grad).sum(1).double()
    is_uphill = down >= 0  # by rounding
    direction = torch.where(is_uphill[:, None], -point.grad, direction)
    down = torch.where(is_uphill, -point.grad.double().square().sum(1), down)
    length = torch.ones_like(down)
    best, left = point, torch.arange(len(heads))
    for _ in range(_HALVINGS):
        tried = problem.at(point.at[left] + length[left, None].to(direction) * direction[left], heads[left])
        rise = tried.value - point.value[left]
        is_level = rise <= _ROUNDING * point.value[left].abs()
        # false where they are NaN; where the values differ by rounding, the gradient decides
        is_good = (rise <= _SUFFICIENT * length[left] * down[left]) | (
            is_level & (tried.gap < point.gap[left])
        )
        if bool(is_good.any()):
            best = _Point(*(one.clone() for one in best)) if best is point else best
            _put(best, left[is_good], tried.take(is_good.nonzero()[:, 0]))
        left, rise = left[~is_good], rise[~is_good]
        if not len(left):
            break
        now = length[left]
        parabola = -down[left] * now.square() / (2 * (rise - now * down[left]))
        shorter = torch.where(parabola.isfinite(), parabola, 0.1 * now)
        length[left] = torch.minimum(torch.maximum(shorter, 0.1 * now), 0.5 * now)
    return best
