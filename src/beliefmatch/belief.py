"""The Dirichlet that a classifier's logits stand for, and how far one Dirichlet is from another."""

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.distributions import Dirichlet, Gamma

from beliefmatch import _special as special
from beliefmatch import dirichlet, kernels
from beliefmatch._quadrature import beta_quantile, prob_of_being_best
from beliefmatch._rows import result_dtype, split
from beliefmatch._validate import (
    describe,
    fail,
    is_inspectable,
    require_choice,
    require_finite_number,
    require_floating,
    require_index,
    require_values,
)

__all__ = ["Belief", "Measure", "dirichlet_kl"]

Measure = Literal[
    "confidence",
    "precision",
    "entropy",
    "expected_entropy",
    "mutual_information",
    "differential_entropy",
]


class Belief:
    r"""Dir(α) over the class probabilities p, with α = scale · e^logits.

    As in `torch.distributions`, the parameters and moments of the distribution and the prediction they
    imply are properties: `alpha`, `log_alpha`, `precision`, `log_precision`, `probs` (the mean), `variance`,
    `covariance`, `confidence`, `predictions`. Everything else is a method: measures in nats such as
    `entropy()`, probabilities found by quadrature, and whatever takes an argument.

    All of them work on a batch and drop the class dimension where they return one number a sample.
    Half-precision logits are lifted to float32. `docs/uncertainty.md` explains what the numbers mean and
    what they do not: the spread of this Dirichlet is a score for OOD input, not a posterior over what more
    data would teach.

    Args:
        logits: ln α of any shape; the output of a network trained with `belief_matching_loss`. Not copied
            unless they are of half precision or `scale` is not 1.
        scale: factor on α. A network trained with `kl_weight` λ and prior 1 holds a belief on the scale
            of the data at `scale=λ`: the mean stays, the spread grows.
        dim: the class dimension (1 for segmentation logits (N, K, H, W)).

    Example:
        >>> import torch
        >>> from beliefmatch import Belief
        >>> belief = Belief(torch.tensor([[4.0, 0.0, 0.0], [0.1, 0.0, 0.2]]))
        >>> belief.predictions.tolist()
        [0, 2]
        >>> belief.abstain(0.8).tolist()
        [False, True]
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

    @property
    def num_classes(self) -> int:
        """K."""
        return self.log_alpha.shape[self.dim]

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
        """ln α₀; higher is surer. Finite where `precision` saturates."""
        return self.log_alpha.logsumexp(self.dim)

    @property
    def precision(self) -> Tensor:
        """α₀ = Σα > 0, how concentrated the belief is about its mean; higher is surer (saturates)."""
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
        """max E[p_k], in [1/K, 1]; higher is surer."""
        return self.probs.amax(self.dim)

    @property
    def predictions(self) -> Tensor:
        """argmax E[p_k], the class to predict."""
        return self.log_alpha.argmax(self.dim)

    def entropy(self) -> Tensor:
        """H(E[p]) in nats, in [0, ln K]: total doubt about the label; higher is more doubtful."""
        return kernels.measure(dirichlet.entropy, self.log_alpha, self.dim)

    def expected_entropy(self) -> Tensor:
        """E[H(p)], in [0, ln K]: doubt that would remain if p were known; higher is more doubtful."""
        return kernels.measure(dirichlet.expected_entropy, self.log_alpha, self.dim)

    def mutual_information(self) -> Tensor:
        """H(E[p]) − E[H(p)] ≥ 0, the Dirichlet spread: doubt about p itself, about (K−1)/(2α₀) for large α.

        Higher is more doubtful. A score for OOD input; it does not vanish with more training data.
        """
        return kernels.measure(dirichlet.mutual_information, self.log_alpha, self.dim)

    def differential_entropy(self) -> Tensor:
        """Entropy of the density Dir(α), at most −lnΓ(K), unbounded below; higher is more doubtful.

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

    def sample(self, n: int = 1) -> Tensor:
        """n draws of p, of shape (n, *logits.shape), from torch's global random generator.

        Drawn through logarithms of gamma variables, so that no draw is lost at small α.
        """
        n = require_index("Belief.sample", "n", n)
        if n < 1:
            raise fail("Belief.sample", f"`n` must be a positive integer, got {n!r}.")
        rows = split(self.log_alpha.detach(), self.dim)
        z = rows.z.nan_to_num().clamp(-600.0, 600.0).expand(n, *rows.z.shape)
        # Gamma(α) = Gamma(1+α) · U^(1/α)
        log_gamma = Gamma(1 + z.exp(), torch.ones_like(z), validate_args=False).sample().log()
        log_draw = log_gamma - torch.empty_like(z).exponential_() * (-z).exp()
        draws = log_draw.softmax(self.dim + 1).masked_fill(rows.top.isnan(), torch.nan)
        return draws.to(self.log_alpha.dtype)

    def log_prob(self, p: Tensor) -> Tensor:
        """ln Dir(p; α) of points on the simplex, which broadcast against the logits.

        Points that sum to one within 1e-3 are accepted and normalised.
        """
        name, dim = "Belief.log_prob", self.dim - self.log_alpha.dim()
        require_floating(name, "p", p)
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

    def abstain(self, threshold: float, *, measure: Measure = "confidence") -> Tensor:
        """Which predictions not to make: True where the measure is on the doubtful side of `threshold`.

        Below it for "confidence" and "precision", above it for the entropies and the mutual information.
        A measure that is NaN abstains.
        """
        require_choice("Belief.abstain", "measure", measure, tuple(_SURE_WHEN))
        value = require_finite_number("Belief.abstain", "threshold", threshold)
        return ~_SURE_WHEN[measure](self, value)


_SURE_WHEN: dict[str, Callable[[Belief, float], Any]] = {
    "confidence": lambda belief, at_least: belief.confidence >= at_least,
    "precision": lambda belief, at_least: belief.precision >= at_least,
    "entropy": lambda belief, at_most: belief.entropy() <= at_most,
    "expected_entropy": lambda belief, at_most: belief.expected_entropy() <= at_most,
    "mutual_information": lambda belief, at_most: belief.mutual_information() <= at_most,
    "differential_entropy": lambda belief, at_most: belief.differential_entropy() <= at_most,
}


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
