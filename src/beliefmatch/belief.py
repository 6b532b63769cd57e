"""The Dirichlet that a classifier's logits stand for, and how far one Dirichlet is from another."""

import math
from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Dirichlet, Gamma

from beliefmatch import _special as special
from beliefmatch import dirichlet, kernels
from beliefmatch._belief_view import BeliefItem, belief_html
from beliefmatch._quadrature import beta_quantile, prob_of_being_best
from beliefmatch._rows import result_dtype, split
from beliefmatch._validate import (
    describe,
    fail,
    is_inspectable,
    naming_arguments,
    require_choice,
    require_device,
    require_finite_number,
    require_floating,
    require_index,
    require_values,
    warn,
)
from beliefmatch.votes import prob_of_majority

__all__ = ["AbstentionRule", "Belief", "Measure", "dirichlet_kl"]

Measure = Literal[
    "confidence",
    "precision",
    "entropy",
    "expected_entropy",
    "mutual_information",
    "differential_entropy",
]
_SURE_WHEN_HIGH = ("confidence", "precision")
_DELTA = 0.05
_SHOWN = 6  # items of a batch in a notebook


class Belief:
    r"""Dir(α) over the class probabilities p, with α = scale · e^logits.

    As in `torch.distributions`, the parameters and moments of the distribution and the prediction they
    imply are properties: `alpha`, `log_alpha`, `precision`, `log_precision`, `probs` (the mean), `variance`,
    `covariance`, `confidence`, `predictions`. Everything else is a method: measures in nats such as
    `entropy()`, probabilities computed by quadrature, and everything that takes an argument.

    All of them work on a batch, and drop the class dimension if they return one number per sample.
    `belief[3]`, `belief[:10]` and `belief[mask]` index the batch, never the classes; `len`, iteration, `cat`
    and `stack` do the same. Half-precision logits are converted to float32. `docs/uncertainty.md` explains
    what the numbers mean and what they do not: the spread of this Dirichlet is a score for OOD input. It does
    not say what more training data would change.

    Args:
        logits: ln α of any shape; the output of a network trained with `belief_matching_loss`. Not copied
            unless they are of half precision or `scale` is not 1.
        scale: factor on α. For a network trained with `kl_weight` λ and prior 1, `scale=λ` counts one label
            as one vote: the mean stays, the spread grows.
        dim: the class dimension (1 for segmentation logits (N, K, H, W)).

    Example:
        >>> import torch
        >>> from beliefmatch import Belief
        >>> belief = Belief(torch.tensor([[4.0, 0.0, 0.0], [0.1, 0.0, 0.2]]))
        >>> belief.predictions.tolist()
        [0, 2]
        >>> belief.abstain(0.8).tolist()
        [False, True]
        >>> len(belief), belief[1].predictions.item()
        (2, 2)
    """

    def __init__(self, logits: Tensor, *, scale: float = 1.0, dim: int = -1) -> None:
        require_floating("Belief", "logits", logits)
        dim = require_index("Belief", "dim", dim)
        if not -logits.dim() <= dim < logits.dim() or logits.shape[dim] == 0:
            shape = tuple(logits.shape)
            raise fail("Belief", f"`logits` must have classes along dim={dim}, got shape {shape}.")
        value = require_finite_number("Belief", "scale", scale)
        if value <= 0:
            raise fail("Belief", f"`scale` must be positive, got {value!r}.")
        log_alpha = logits.to(result_dtype(logits.dtype))
        self.log_alpha = log_alpha if value == 1 else log_alpha + math.log(value)
        self.dim = dim % logits.dim()

    def __repr__(self) -> str:
        shape = tuple(self.log_alpha.shape)
        return f"Belief(classes={self.num_classes}, shape={shape}, dim={self.dim})"

    def _repr_html_(self) -> str:
        """A picture for notebooks: the simplex for three classes, else the probabilities as bars."""
        if self.log_alpha.is_meta:  # there are no values to draw
            return f"<pre>{escape(repr(self))}</pre>"
        shape = tuple(self.batch_shape)
        rows = self.log_alpha.detach().movedim(self.dim, -1).reshape(math.prod(shape), self.num_classes)
        shown = Belief(rows[:_SHOWN]).cpu()
        columns = (
            shown.log_alpha,
            shown.probs,
            shown.variance.sqrt(),
            shown.log_precision,
            shown.mutual_information(),
        )
        items = [BeliefItem(*values) for values in zip(*(column.tolist() for column in columns), strict=True)]
        indices = [np.unravel_index(place, shape) if shape else () for place in range(len(items))]
        labels = [", ".join(f"{part}" for part in index) for index in indices]
        return belief_html(items, labels, batch_shape=shape, classes=self.num_classes)

    def __len__(self) -> int:
        """Size of the first batch dimension."""
        if not self.batch_shape:
            raise fail("Belief", "a single belief has no length, as it has no batch dimension.", TypeError)
        return self.batch_shape[0]

    def __bool__(self) -> bool:
        """True, also of an empty batch."""
        return True

    def __iter__(self) -> Iterator["Belief"]:
        """The beliefs along the first batch dimension."""
        return (self[place] for place in range(len(self)))

    def __getitem__(self, index: Any) -> "Belief":
        """The belief of some items: integers, slices, masks and tensors of indices over the batch dimensions.

        They mean what they mean for a tensor of the shape `batch_shape`. All classes stay, at their place
        among the batch dimensions that are left.
        """
        given = index if isinstance(index, tuple) else (index,)
        parts = [_as_index(part) for part in given]
        missing = len(self.batch_shape) - sum(map(_dims_taken, parts))
        if missing < 0 or parts.count(Ellipsis) > 1:
            fact = f"an index of {len(self.batch_shape)} batch dimensions {tuple(self.batch_shape)}"
            raise fail("Belief", f"`[]` must be given {fact}, got {describe(index)}.", IndexError)
        if Ellipsis not in parts:
            parts.append(Ellipsis)
        place = parts.index(Ellipsis)
        parts[place : place + 1] = [slice(None)] * missing
        try:
            chosen = self.log_alpha.movedim(self.dim, -1)[(*parts, slice(None))]
        except (IndexError, TypeError) as error:
            fact = f"an index of the batch dimensions {tuple(self.batch_shape)}"
            raise fail("Belief", f"`[]` must be given {fact}, got {describe(index)}.", IndexError) from error
        dim = min(_dims_left(parts, self.dim), chosen.dim() - 1)
        return Belief(chosen.movedim(-1, dim), dim=dim)

    def to(self, *args: Any, **kwargs: Any) -> "Belief":
        """This belief on another device or of another floating-point type; arguments as of `Tensor.to`."""
        return Belief(self.log_alpha.to(*args, **kwargs), dim=self.dim)

    def cpu(self) -> "Belief":
        """This belief on the CPU."""
        return self.to("cpu")

    def detach(self) -> "Belief":
        """This belief without its gradient."""
        return Belief(self.log_alpha.detach(), dim=self.dim)

    @staticmethod
    def cat(beliefs: Sequence["Belief"], dim: int = 0) -> "Belief":
        """Join beliefs along an existing batch dimension, as `torch.cat` does; the first gives the layout.

        Args:
            beliefs: Beliefs over the same number of classes, whose other batch dimensions agree.
            dim: Which batch dimension to join along; classes are not counted.
        """
        return _joined("Belief.cat", torch.cat, beliefs, dim, new=0)

    @staticmethod
    def stack(beliefs: Sequence["Belief"], dim: int = 0) -> "Belief":
        """Join beliefs along a new batch dimension, as `torch.stack` does; the first gives the layout.

        Args:
            beliefs: Beliefs over the same number of classes and of the same batch shape.
            dim: Place of the new dimension among the batch dimensions; classes are not counted.

        >>> import torch
        >>> Belief.stack([Belief(torch.zeros(3)), Belief(torch.ones(3))]).batch_shape
        torch.Size([2])
        """
        return _joined("Belief.stack", torch.stack, beliefs, dim, new=1)

    @property
    def num_classes(self) -> int:
        """K."""
        return self.log_alpha.shape[self.dim]

    @property
    def batch_shape(self) -> torch.Size:
        """Shape of the logits without the class dimension."""
        shape = tuple(self.log_alpha.shape)
        return torch.Size((*shape[: self.dim], *shape[self.dim + 1 :]))

    @property
    def probs(self) -> Tensor:
        """E[p] = α/α₀ = softmax(logits): the predicted probabilities. In [0, 1], they sum to one."""
        return self.log_alpha.softmax(self.dim)

    @property
    def alpha(self) -> Tensor:
        """α > 0, the concentrations, saturating at the smallest and the largest normal value."""
        return special.exp_saturating(self.log_alpha).clamp(min=torch.finfo(self.log_alpha.dtype).tiny)

    @property
    def log_precision(self) -> Tensor:
        """ln α₀; higher is more certain. Finite where `precision` saturates."""
        return self.log_alpha.logsumexp(self.dim)

    @property
    def precision(self) -> Tensor:
        """α₀ = Σα > 0, concentration of the belief about its mean; higher is more certain (saturates)."""
        return special.exp_saturating(self.log_precision)

    @property
    def variance(self) -> Tensor:
        """Var[p_k] = s_k(1 − s_k)/(α₀ + 1) of every class, s = E[p]; in [0, ¼]."""
        return kernels.measure(dirichlet.variance, self.log_alpha, self.dim)

    @property
    def covariance(self) -> Tensor:
        """Cov[p_j, p_k] = (s_j δ_jk − s_j s_k)/(α₀ + 1), with the two class dimensions last."""
        probs = self.probs.movedim(self.dim, -1)
        diagonal = self.variance.movedim(self.dim, -1)
        shrink = torch.sigmoid(-self.log_precision)[..., None, None]
        outer = -probs.unsqueeze(-1) * probs.unsqueeze(-2) * shrink
        return outer.diagonal_scatter(diagonal, dim1=-2, dim2=-1)

    @property
    def confidence(self) -> Tensor:
        """max E[p_k], in [1/K, 1]; higher is more certain."""
        return self.probs.amax(self.dim)

    @property
    def predictions(self) -> Tensor:
        """argmax E[p_k], the class to predict."""
        return self.log_alpha.argmax(self.dim)

    def entropy(self) -> Tensor:
        """H(E[p]) in nats, in [0, ln K]: total uncertainty about the label."""
        return kernels.measure(dirichlet.entropy, self.log_alpha, self.dim)

    def expected_entropy(self) -> Tensor:
        """E[H(p)], in [0, ln K]: the uncertainty that would remain if p were known."""
        return kernels.measure(dirichlet.expected_entropy, self.log_alpha, self.dim)

    def mutual_information(self) -> Tensor:
        """H(E[p]) − E[H(p)] ≥ 0, the Dirichlet spread: uncertainty about p; about (K−1)/(2α₀) for large α.

        Higher is less certain. A score for OOD input; it does not vanish with more training data.
        """
        return kernels.measure(dirichlet.mutual_information, self.log_alpha, self.dim)

    def differential_entropy(self) -> Tensor:
        """Entropy of the density Dir(α), at most −lnΓ(K), unbounded below; higher is less certain.

        A broad belief has the most; it also falls when all α shrink below 1 and the belief moves into the
        corners.
        """
        return kernels.measure(dirichlet.differential_entropy, self.log_alpha, self.dim)

    def credible_interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Equal-tailed interval that holds p_k with probability `level`, class by class.

        The marginal of p_k is Beta(α_k, α₀ − α_k). Needs scipy (`pip install "beliefmatch[stats]"`).

        Returns:
            Lower and upper ends, each of the logits' shape. Not differentiable.
        """
        value = require_finite_number("Belief.credible_interval", "level", level)
        if not 0 < value < 1:
            raise fail("Belief.credible_interval", f"`level` must be between 0 and 1, got {value!r}.")
        own, rest = dirichlet.own_and_rest(self.log_alpha.detach(), self.dim)
        ends = (beta_quantile(own, rest, q) for q in (0.5 - value / 2, 0.5 + value / 2))
        lower, upper = (end.to(self.log_alpha.dtype) for end in ends)
        return lower, upper

    def prob_of_being_best(self) -> Tensor:
        """P(p_k is the largest) of every class, by quadrature to 1e-6; sums to one.

        Not the same as `probs`: with a precise belief a small lead is a sure lead. Not differentiable.
        """
        best = prob_of_being_best(self.log_alpha.movedim(self.dim, -1))
        return best.movedim(-1, self.dim).to(self.log_alpha.dtype)

    def prob_of_majority(self, panel: int, votes: Tensor | None = None) -> Tensor:
        """P(class k has the most votes of a panel of `panel` people) of every class, exactly; sums to one.

        The panel is finite: unlike `prob_of_being_best`, votes that are known decide it when they are many
        enough, whatever the belief before them. Classes that tie share the decision equally.

        Args:
            panel: Number of votes when all have voted.
            votes: Votes known by now, whole numbers of the shape of the logits; none if not given. The belief
                is the one before them.

        Example:
            >>> import torch
            >>> belief = Belief(torch.zeros(3))
            >>> [round(p, 2) for p in belief.prob_of_majority(5, torch.tensor([2, 0, 0])).tolist()]
            [0.91, 0.04, 0.04]
        """
        name = "Belief.prob_of_majority"
        if isinstance(votes, Tensor) and votes.shape != self.log_alpha.shape:
            expected = f"the shape of the logits, {tuple(self.log_alpha.shape)}"
            raise fail(name, f"`votes` must have {expected}, got {tuple(votes.shape)}.")
        known = votes.movedim(self.dim, -1) if isinstance(votes, Tensor) else votes
        with naming_arguments(name, panel="panel", votes="votes"):
            found = prob_of_majority(self.log_alpha.movedim(self.dim, -1), panel, known)
        return found.movedim(-1, self.dim)

    def sample(self, n: int = 1) -> Tensor:
        """n draws of p, of shape (n, *logits.shape), from torch's global random generator.

        Drawn through logarithms of gamma variables, so that no draw is lost at small α.
        """
        n = require_index("Belief.sample", "n", n)
        if n < 1:
            raise fail("Belief.sample", f"`n` must be a positive integer, got {n!r}.")
        rows = split(self.log_alpha.detach(), self.dim)
        dim, top = self.dim + 1, rows.top.nan_to_num()
        z = rows.z.nan_to_num().expand(n, *rows.z.shape)
        limit = special.largest_exponent(z.dtype)
        # Gamma(α) = Gamma(1+α) · U^(1/α). Where e^z is near overflow, Gamma(1+α) = α in every digit.
        some = z.clamp(max=0.8 * limit)
        log_gamma = Gamma(1 + some.exp(), torch.ones_like(z), validate_args=False).sample().log()
        log_gamma = torch.where(z > some, z, log_gamma)
        # −ln(U)/α in units of 1/α of the largest class, less that of the class that wins at tiny α: its
        # difference to the others is kept where 1/α overflows.
        waits = torch.empty_like(z).exponential_() * (top - z).clamp(max=0.99 * limit).exp()
        delays = (waits - waits.amin(dim, keepdim=True)) * special.exp_saturating(-top)
        draws = (log_gamma - delays).softmax(dim).masked_fill(rows.top.isnan(), torch.nan)
        return draws.to(self.log_alpha.dtype)

    def log_prob(self, p: Tensor) -> Tensor:
        """ln Dir(p; α) of points on the simplex, which broadcast against the logits.

        Points that sum to one within 1e-3 are accepted and normalised.
        """
        name, dim = "Belief.log_prob", self.dim - self.log_alpha.dim()
        require_floating(name, "p", p)
        require_device(name, "p", p, self.log_alpha)
        try:
            torch.broadcast_shapes(p.shape, self.log_alpha.shape)
            fits = p.shape[dim] == self.num_classes
        except (RuntimeError, IndexError):
            fits = False
        if not fits:
            expected = f"{self.num_classes} classes along dim {dim} and broadcast to the logits"
            shape = tuple(self.log_alpha.shape)
            raise fail(name, f"`p` must have {expected} {shape}, got shape {tuple(p.shape)}.")
        if is_inspectable(p):
            require_values(name, "p", p, (p >= 0) | p.isnan(), "non-negative")
            total = p.sum(dim)
            require_values(name, "p", total, ~((total - 1).abs() > 1e-3), "probabilities that sum to one")
        return dirichlet.log_prob(self.log_alpha, p, dim)

    def kl(self, other: "Belief") -> Tensor:
        """KL(self ‖ other) ≥ 0 between the two Dirichlets; zero where they agree."""
        if not isinstance(other, Belief):
            raise fail("Belief.kl", f"`other` must be a Belief, got {describe(other)}.", TypeError)
        own = self.log_alpha.movedim(self.dim, -1)
        return dirichlet_kl(own, other.log_alpha.movedim(other.dim, -1))

    def update(self, counts: Tensor) -> "Belief":
        """Bayes' rule: the belief after seeing `counts` ≥ 0 votes for each class, Dir(α + counts)."""
        if not isinstance(counts, Tensor) or counts.dtype == torch.bool or counts.is_complex():
            expected = "a tensor of counts"
            raise fail("Belief.update", f"`counts` must be {expected}, got {describe(counts)}.", TypeError)
        shape = tuple(self.log_alpha.shape)
        if tuple(counts.shape) != shape:
            received = tuple(counts.shape)
            raise fail("Belief.update", f"`counts` must have shape {shape}, got {received}.")
        require_device("Belief.update", "counts", counts, self.log_alpha)
        if is_inspectable(counts):
            valid = counts.isfinite() & (counts >= 0)
            require_values("Belief.update", "counts", counts, valid, "finite and not negative")
        seen = counts.to(self.log_alpha.dtype)
        # Exact at 0, with its gradient.
        unseen = self.log_alpha + seen * special.exp_saturating(-self.log_alpha)
        updated = torch.logaddexp(self.log_alpha, torch.where(seen > 0, seen, 1.0).log())
        return Belief(torch.where(seen > 0, updated, unseen), dim=self.dim)

    def to_distribution(self) -> Dirichlet:
        """torch's Dirichlet with these concentrations, the class dimension moved last."""
        alpha = self.alpha
        if is_inspectable(alpha):
            require_values("Belief.to_distribution", "logits", alpha, ~alpha.isnan(), "free of NaN")
        return Dirichlet(alpha.movedim(self.dim, -1), validate_args=False)

    def abstain(
        self,
        threshold: float | None = None,
        *,
        measure: Measure = "confidence",
        risk: float | None = None,
        calibration: "tuple[Belief | Tensor, Tensor] | None" = None,
        delta: float | None = None,
    ) -> Tensor:
        """Predictions to withhold: True where the measure is on the uncertain side of a threshold.

        Below it for "confidence" and "precision", above it for the entropies and the mutual information.
        A measure that is NaN abstains. The threshold is given, or found on held-out data such that the error
        among the answers is at most `risk`, except with probability `delta` (`metrics.coverage_at_risk`).
        The guarantee is for inputs drawn like the held-out ones, if these chose nothing else. Where no
        threshold keeps the risk, all predictions abstain, with a warning.

        Args:
            threshold: Value of the measure; for "confidence" a probability from 0 to 1.
            measure: Measure of uncertainty.
            risk: Error rate that the answers must not exceed, in place of `threshold`.
            calibration: Held-out predictions and their class ids, with `risk`: a Belief, or logits with the
                classes along their last dimension.
            delta: Probability with which the guarantee of `risk` may fail, 0.05 by default.

        Example:
            >>> import torch
            >>> chance = torch.Generator().manual_seed(0)
            >>> targets = torch.randint(3, (2000,), generator=chance)
            >>> logits = torch.randn(2000, 3, generator=chance) + 3 * torch.eye(3)[targets]
            >>> new = Belief(torch.tensor([[5.0, 0.0, 0.0], [0.1, 0.0, 0.0]]))
            >>> new.abstain(risk=0.01, calibration=(logits, targets)).tolist()
            [False, True]
        """
        rule = AbstentionRule("Belief.abstain", threshold, measure, risk, calibration, delta)
        return rule.abstains(self, _given_calibration)

    def _sureness(self, measure: Measure) -> Tensor:
        """The measure, or its negative, such that higher is surer."""
        found = getattr(self, measure)
        return found if measure in _SURE_WHEN_HIGH else -found()


class AbstentionRule:
    """What `abstain` was asked for, checked: a threshold, or a risk with held-out data that find one.

    Args:
        function: Function that the user called, named in errors.
        threshold: See `Belief.abstain`, as for all others.
        measure: Measure of uncertainty.
        risk: Error rate that the answers must not exceed.
        calibration: A pair of held-out predictions, or inputs, and their class labels.
        delta: Probability with which the guarantee may fail.
    """

    def __init__(
        self, function: str, threshold: Any, measure: Measure, risk: Any, calibration: Any, delta: Any
    ) -> None:
        require_choice(function, "measure", measure, get_args(Measure))
        if (threshold is None) == (risk is None) or (risk is None) != (calibration is None):
            given = {"threshold": threshold, "risk": risk, "calibration": calibration}
            received = " and ".join(f"`{key}`" for key, one in given.items() if one is not None) or "nothing"
            raise fail(function, f"`threshold` must be given, or `risk` with `calibration`, got {received}.")
        if risk is None and delta is not None:
            raise fail(function, f"`delta` must not be given without `risk`, got {describe(delta)}.")
        self.function, self.calibration = function, calibration
        self.measure: Measure = measure
        self.threshold = None if threshold is None else _require_threshold(function, threshold, measure)
        self.risk = None if risk is None else require_finite_number(function, "risk", risk)
        self.delta = _DELTA if delta is None else delta
        if calibration is not None and not (isinstance(calibration, tuple | list) and len(calibration) == 2):
            expected = "a pair of held-out predictions, or inputs, and class labels"
            received = describe(calibration)
            raise fail(function, f"`calibration` must be {expected}, got {received}.", TypeError)

    def abstains(self, belief: Belief, held_out: Callable[[str, Any, Any], tuple[Belief, Tensor]]) -> Tensor:
        """Which predictions of a belief to withhold.

        Args:
            belief: Belief about new inputs.
            held_out: Called with the function and the two parts of `calibration`; returns the belief about
                the held-out inputs, and their class ids.
        """
        sureness = belief._sureness(self.measure)
        if self.threshold is not None:
            sign = 1 if self.measure in _SURE_WHEN_HIGH else -1
            return ~(sureness >= sign * self.threshold)
        found, targets = held_out(self.function, *self.calibration)
        if found.num_classes != belief.num_classes:
            expected = f"{belief.num_classes} classes"
            raise fail(self.function, f"`calibration` must have {expected}, got {found.num_classes}.")
        return ~(sureness >= self._least_sureness(found.detach(), targets))

    def _least_sureness(self, held_out: Belief, targets: Any) -> float:
        """Where answers begin such that the error among them is bounded; infinite where none may be given."""
        from beliefmatch.metrics.selective import coverage_at_risk

        name = self.function
        targets = _require_class_ids(name, targets, held_out)
        sureness = held_out._sureness(self.measure).flatten().cpu()
        correct = (held_out.predictions.cpu() == targets).flatten()
        arguments = {"confidence": "calibration", "correct": "calibration", "risk": "risk", "delta": "delta"}
        assert self.risk is not None
        with naming_arguments(name, **arguments):
            found = coverage_at_risk(sureness, correct, risk=self.risk, delta=self.delta)
        if math.isinf(found.threshold) and found.threshold > 0:
            fact = f"no threshold of {self.measure} keeps the error among answers at or below {self.risk:g}"
            warn(name, f"{fact} with {len(correct):,} calibration examples; all predictions abstain.")
        return found.threshold


def _require_threshold(function: str, threshold: Any, measure: Measure) -> float:
    value = require_finite_number(function, "threshold", threshold)
    if measure == "confidence" and not 0 <= value <= 1:
        hint = f"; write {value / 100:g} for {value:g} %" if 1 < value <= 100 else ""
        raise fail(function, f"`threshold` must be a probability from 0 to 1, got {value:g}{hint}.")
    return value


def _given_calibration(function: str, predictions: Any, targets: Any) -> tuple[Belief, Tensor]:
    """A Belief, or logits, and class ids as they are."""
    if isinstance(predictions, Belief):
        return predictions, targets
    with naming_arguments(function, logits="calibration"):
        return Belief(predictions), targets


def _require_class_ids(function: str, targets: Any, held_out: Belief) -> Tensor:
    """One class id for each held-out prediction, on the CPU."""
    if not isinstance(targets, Tensor) or targets.is_floating_point() or targets.dtype == torch.bool:
        expected = "a tensor of class ids as its second part"
        raise fail(function, f"`calibration` must have {expected}, got {describe(targets)}.", TypeError)
    if targets.shape != held_out.batch_shape:
        expected = f"class ids of shape {tuple(held_out.batch_shape)} as its second part"
        raise fail(function, f"`calibration` must have {expected}, got {tuple(targets.shape)}.")
    targets = targets.cpu()
    valid = (targets >= 0) & (targets < held_out.num_classes)
    expected = f"class ids from 0 to {held_out.num_classes - 1}"
    require_values(function, "calibration", targets, valid, expected)
    return targets


def _joined(name: str, join: Any, beliefs: Any, dim: int, *, new: int) -> Belief:
    """`torch.cat` or `torch.stack` over batch dimensions, of which the result has `new` more."""
    found = list(beliefs) if isinstance(beliefs, Sequence | Iterator) else []
    if not found or not all(isinstance(one, Belief) for one in found):
        received = describe(next((one for one in found if not isinstance(one, Belief)), beliefs))
        raise fail(name, f"`beliefs` must be a list of one Belief or more, got {received}.", TypeError)
    beliefs = found
    first, dim = beliefs[0], require_index(name, "dim", dim)
    sizes = sorted({one.num_classes for one in beliefs})
    if len(sizes) > 1:
        received = " and ".join(map(str, sizes))
        raise fail(name, f"`beliefs` must have the same number of classes, got {received}.")
    dims = len(first.batch_shape) + new
    if not -dims <= dim < dims:
        raise fail(name, f"`dim` must be one of {dims} batch dimensions, got {dim}.")
    dim %= dims
    try:
        joined = join([one.log_alpha.movedim(one.dim, -1) for one in beliefs], dim)
    except RuntimeError as error:
        shapes = " and ".join(map(str, dict.fromkeys(tuple(one.batch_shape) for one in beliefs)))
        fact = "`beliefs` must have batch shapes that fit together and be on one device"
        raise fail(name, f"{fact}, got {shapes}.") from error
    class_dim = first.dim + (new if dim <= first.dim else 0)
    return Belief(joined.movedim(-1, class_dim), dim=class_dim)


def _as_index(part: Any) -> Any:
    """Lists and arrays as tensors; everything else as it is."""
    if (
        isinstance(part, slice)
        and part.step is not None
        and (not isinstance(part.step, int) or part.step < 1)
    ):
        raise fail("Belief", f"`[]` must be given slices with a positive step, got {part}.", IndexError)
    if isinstance(part, list | np.ndarray):
        part = torch.as_tensor(part)
        part = part.long() if not part.numel() and part.dtype != torch.bool else part
    is_bool = isinstance(part, bool | np.bool_)
    if is_bool or (isinstance(part, Tensor) and part.dim() == 0 and part.dtype == torch.bool):
        raise fail("Belief", "`[]` must be given integers, slices, masks or tensors, got a bool.", IndexError)
    if isinstance(part, Tensor) and part.dtype == torch.uint8:
        return part.long()  # torch would take it for a mask
    return part


def _dims_taken(part: Any) -> int:
    """How many batch dimensions one part of an index is about."""
    if part is None or part is Ellipsis:
        return 0
    return part.dim() if isinstance(part, Tensor) and part.dtype == torch.bool else 1


def _dims_left(parts: Sequence[Any], dim: int) -> int:
    """How many dimensions of the indexed batch stand before the classes, which stood at `dim`."""
    taken, left, of_tensors = 0, 0, 0
    for part in parts:
        if taken >= dim:
            break
        taken += _dims_taken(part)
        if isinstance(part, Tensor):  # tensors are broadcast together; a mask counts as one of indices
            of_tensors = max(of_tensors, 1 if part.dtype == torch.bool else part.dim())
        else:
            left += part is None or isinstance(part, slice)
    return left + of_tensors


def dirichlet_kl(p_logits: Tensor, q_logits: Tensor, *, dim: int = -1) -> Tensor:
    r"""KL(Dir(e^p) ‖ Dir(e^q)) ≥ 0 of each row, zero where the two agree.

    .. math:: γ_0\,\mathrm{KL}_{cat}(γ/γ_0 \,\|\, α/α_0) + \sum_k E(γ_k, α_k) - E(γ_0, α_0)

    with α = e^p, γ = e^q and E(γ, α) = B(γ) − B(α) − (γ − α)B′(α), B(α) = lnΓ(α) − α ln α + α: the
    Bregman form of the divergence, its large part put as a divergence between the means. Differentiable
    in both arguments with closed-form gradients that keep their digits as the two approach each other.

    Args:
        p_logits: log-concentrations of the first Dirichlet.
        q_logits: log-concentrations of the second; the shapes broadcast.
        dim: the class dimension.

    Example:
        >>> import torch
        >>> from beliefmatch import dirichlet_kl
        >>> uniform, sharp = torch.zeros(3), torch.tensor([3.0, 0.0, 0.0])
        >>> round(dirichlet_kl(sharp, uniform).item(), 4)
        3.5001
    """
    name = "dirichlet_kl"
    require_floating(name, "p_logits", p_logits)
    require_floating(name, "q_logits", q_logits)
    if p_logits.device != q_logits.device:
        received = f"{p_logits.device} and {q_logits.device}"
        raise fail(name, f"`p_logits` and `q_logits` must be on one device, got {received}.")
    dim = require_index(name, "dim", dim)
    return kernels.divergence(*_broadcast_along_classes(name, p_logits, q_logits, dim))


def _broadcast_along_classes(
    name: str, p_logits: Tensor, q_logits: Tensor, dim: int
) -> tuple[Tensor, Tensor, int]:
    """Both in their common shape, and the class dimension counted from its front."""
    dims = max(p_logits.dim(), q_logits.dim())
    from_back = dim - dims if dim >= 0 else dim
    try:
        fits = from_back < 0 and p_logits.shape[from_back] == q_logits.shape[from_back] > 0
        if fits:
            return *torch.broadcast_tensors(p_logits, q_logits), dims + from_back
    except (RuntimeError, IndexError):
        pass
    received = f"{tuple(p_logits.shape)} and {tuple(q_logits.shape)} with dim={dim}"
    expected = "agree along the class dimension and broadcast elsewhere"
    raise fail(name, f"shapes of `p_logits` and `q_logits` must {expected}, got {received}.")
