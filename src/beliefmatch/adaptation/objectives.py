"""Losses of many heads at once, with their gradients with respect to the logits.

Logits are laid out (H, K, B): the product of all weights with a block of rows comes out in this order, the
belief matching kernel reads it fastest, and the gradients enter the product with the features as they are.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from beliefmatch import kernels
from beliefmatch.adaptation.candidates import Candidate
from beliefmatch.kernels.reference import LossInputs, Options
from beliefmatch.methods.base import Method

__all__ = ["BeliefMatching", "CrossEntropy", "Evidential", "HeadLoss", "LossAndGrad", "family", "loss_of"]

_IGNORED = -100  # no target is: rows of no class were left out


class LossAndGrad(NamedTuple):
    """The loss of each row, (H, B), and its gradient with respect to the logits, (H, K, B)."""

    loss: Tensor
    grad: Tensor


class HeadLoss(Protocol):
    """The losses of a family of heads, which differ in their options alone."""

    def __call__(self, logits: Tensor, targets: Tensor, heads: Tensor | slice = slice(None)) -> LossAndGrad:
        """The losses of these heads.

        Args:
            logits: (H, K, B).
            targets: Class ids (B,), or counts (B, K).
            heads: Which heads of the family the logits belong to.
        """
        ...


def family(candidate: Candidate) -> str:
    """Candidates with the same text can be fitted together."""
    if candidate.kind == "belief_matching":
        return f"belief_matching {candidate.prior}"
    return "evidential" if candidate.kind == "evidential" else "cross_entropy"


def loss_of(candidates: Sequence[Candidate], classes: int) -> HeadLoss:
    """The loss of candidates of one family: belief matching with one prior, cross-entropy, or evidential."""
    first = candidates[0]
    if first.kind == "belief_matching":
        return BeliefMatching(torch.tensor([one.kl_weight for one in candidates]), first.prior)
    if first.kind == "evidential":
        return Evidential(first.method)
    smoothing = torch.tensor([one.smoothing(classes) for one in candidates])
    return CrossEntropy(smoothing, classes, torch.tensor([one.exposure for one in candidates]))


class BeliefMatching:
    """The belief matching loss, without the argument checks of the public function.

    Args:
        kl_weights: λ of each head, (H,).
        prior: β, one number or one for each class.
    """

    def __init__(self, kl_weights: Tensor, prior: float | Sequence[float] = 1.0) -> None:
        self.kl_weights = kl_weights
        self.number = prior if isinstance(prior, int | float) else 1.0
        self.priors = None if isinstance(prior, int | float) else torch.tensor(prior)[None, :, None]

    def __call__(self, logits: Tensor, targets: Tensor, heads: Tensor | slice = slice(None)) -> LossAndGrad:
        """The loss of each row, and its gradient."""
        has_ids = targets.dim() == 1
        labels = targets.expand(len(logits), -1) if has_ids else targets.t().expand_as(logits)
        kl_weights = self.kl_weights[heads]
        same = float(kl_weights[0]) if bool((kl_weights == kl_weights[0]).all()) else None
        options = Options(self.number, same or 0.0, 1, has_ids, _IGNORED, "none")
        tensor = None if same is not None else kl_weights[:, None, None].to(logits)
        leaf = logits.detach().requires_grad_()
        with torch.enable_grad():
            loss = kernels.eager_loss(LossInputs(leaf, labels, None, self.priors, tensor, options))
        (grad,) = torch.autograd.grad(loss, leaf, torch.ones_like(loss))
        return LossAndGrad(loss.detach(), grad)


class CrossEntropy:
    """Softmax cross-entropy with label smoothing, 0 for none.

    Counts are labels in the proportion of their votes. A row without votes counts by `exposure`, with the
    uniform distribution as its label (outlier exposure, Hendrycks et al. 2019).

    Args:
        smoothing: ε of each head, (H,).
        classes: K.
        exposure: Weight of rows without votes, (H,); 0 by default.
    """

    def __init__(self, smoothing: Tensor, classes: int, exposure: Tensor | None = None) -> None:
        self.kept, self.floor = 1 - smoothing, smoothing / classes
        self.exposure = torch.zeros_like(smoothing) if exposure is None else exposure
        self.classes = classes

    def __call__(self, logits: Tensor, targets: Tensor, heads: Tensor | slice = slice(None)) -> LossAndGrad:
        """The loss of each row, and its gradient."""
        kept, floor, exposure = (
            one[heads, None].to(logits) for one in (self.kept, self.floor, self.exposure)
        )
        logs = torch.log_softmax(logits, 1)
        if targets.dim() == 1:
            place = targets.expand(len(logits), 1, -1)
            loss = -kept * logs.gather(1, place)[:, 0]
            if bool(floor.any()):
                loss -= floor * logs.sum(1)
            grad = logs.exp_().sub_(floor[:, None])
            grad.scatter_add_(1, place, -kept[:, None].expand_as(place))
            return LossAndGrad(loss, grad)
        votes = targets.sum(1)
        shares = (targets / votes.clamp(min=torch.finfo(votes.dtype).tiny)[:, None]).t().to(logs)
        has_votes = votes > 0
        uniform = torch.where(has_votes, floor, exposure / self.classes)
        goal = kept[:, None] * shares + uniform[:, None]
        loss = -(goal * logs).sum(1)
        total = torch.where(has_votes, torch.ones_like(exposure), exposure)
        return LossAndGrad(loss, logs.exp_().mul_(total[:, None]).sub_(goal))


class Evidential:
    """The loss of an evidential method, differentiated one head after the other."""

    def __init__(self, method: Method, progress: float = 1.0) -> None:
        self.objective = method.objective_at(progress)

    def __call__(self, logits: Tensor, targets: Tensor, heads: Tensor | slice = slice(None)) -> LossAndGrad:
        """The mean loss for each row, and its gradient times the number of rows."""
        grad, losses = torch.empty_like(logits), []
        rows = logits.shape[2]
        for one, out in zip(logits, grad, strict=True):
            leaf = one.t().detach().requires_grad_()
            with torch.enable_grad():
                mean = self.objective(leaf, targets)
            out.copy_(torch.autograd.grad(mean, leaf)[0].t()).mul_(rows)
            losses.append(mean.detach().expand(rows))
        return LossAndGrad(torch.stack(losses).to(logits), grad)
