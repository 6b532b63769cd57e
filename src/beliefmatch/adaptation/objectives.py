"""Losses of many heads at once, with their gradients with respect to the logits.

Logits are laid out (H, K, B): the product of all weights with a block of rows comes out in this order, the
belief matching kernel reads it fastest, and the gradients enter the product with the features as they are.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from beliefmatch import kernels
from beliefmatch.adaptation.fitted import Candidate
from beliefmatch.kernels.reference import LossInputs, Options
from beliefmatch.methods.evidential import evidential_losses

__all__ = ["HeadLoss", "family", "loss_of"]

HeadLoss = Callable[[Tensor, Tensor, Tensor | slice], tuple[Tensor, Tensor]]
"""From logits (H, K, B), class ids (B,) or counts (B, K), and which heads of a family the logits belong to:
the loss of each row, (H, B), and its gradient with respect to the logits, (H, K, B)."""

_IGNORED = -100  # no target is: rows of no class were left out


def family(candidate: Candidate) -> str:
    """Candidates with the same text can be fitted together."""
    if candidate.kind == "belief_matching":
        return f"belief_matching {candidate.prior}"
    return "evidential" if candidate.kind == "evidential" else "cross_entropy"


def loss_of(candidates: Sequence[Candidate], classes: int, *, progress: float = 1.0) -> HeadLoss:
    """The loss of candidates of one family: belief matching with one prior, cross-entropy, or evidential.

    Args:
        candidates: The heads.
        classes: K.
        progress: Share of the training that is done, which evidential losses depend on.
    """
    first = candidates[0]
    if first.kind == "belief_matching":
        kl_weights = torch.tensor([one.kl_weight for one in candidates], dtype=torch.float32)
        return partial(_belief_matching, kl_weights, first.prior)
    if first.kind == "evidential":
        return partial(_evidential, partial(evidential_losses, progress=progress, **first.method.options))
    smoothing = torch.tensor([one.smoothing(classes) for one in candidates], dtype=torch.float32)
    exposure = torch.tensor([one.exposure for one in candidates], dtype=torch.float32)
    return partial(_cross_entropy, smoothing, exposure)


def _belief_matching(
    kl_weights: Tensor,
    prior: float | tuple[float, ...],
    logits: Tensor,
    targets: Tensor,
    heads: Tensor | slice,
) -> tuple[Tensor, Tensor]:
    """The belief matching loss, without the argument checks of the public function."""
    if isinstance(prior, tuple):
        number, priors = 1.0, torch.tensor(prior, dtype=torch.float32)[None, :, None]
    else:
        number, priors = prior, None
    has_ids = targets.dim() == 1
    labels = targets.expand(len(logits), -1) if has_ids else targets.t().expand_as(logits)
    kl_weights = kl_weights[heads]
    same = float(kl_weights[0]) if bool((kl_weights == kl_weights[0]).all()) else None
    options = Options(number, same or 0.0, 1, has_ids, _IGNORED, "none")
    tensor = None if same is not None else kl_weights[:, None, None].to(logits)
    return kernels.loss_and_grad(LossInputs(logits, labels, None, priors, tensor, options))


def _cross_entropy(
    smoothing: Tensor, exposure: Tensor, logits: Tensor, targets: Tensor, heads: Tensor | slice
) -> tuple[Tensor, Tensor]:
    """Softmax cross-entropy with label smoothing, 0 for none.

    Counts are labels in the proportion of their votes. A row without votes counts by `exposure`, with the
    uniform distribution as its label (outlier exposure, Hendrycks et al. 2019).
    """
    classes = logits.shape[1]
    kept, floor, exposure = (
        one[heads, None].to(logits) for one in (1 - smoothing, smoothing / classes, exposure)
    )
    logs = torch.log_softmax(logits, 1)
    if targets.dim() == 1:
        index = targets.expand(len(logits), 1, -1)
        loss = -kept * logs.gather(1, index)[:, 0]
        if bool(floor.any()):
            loss -= floor * logs.sum(1)
        grad = logs.exp_().sub_(floor[:, None])
        grad.scatter_add_(1, index, -kept[:, None].expand_as(index))
        return loss, grad
    votes = targets.sum(1)
    shares = (targets / votes.clamp(min=torch.finfo(votes.dtype).tiny)[:, None]).t().to(logs)
    has_votes = votes > 0
    uniform = torch.where(has_votes, floor, exposure / classes)
    goal = kept[:, None] * shares + uniform[:, None]
    loss = -(goal * logs).sum(1)
    total = torch.where(has_votes, torch.ones_like(exposure), exposure)
    return loss, logs.exp_().mul_(total[:, None]).sub_(goal)


def _evidential(
    row_losses: Callable[[Tensor, Tensor], Tensor], logits: Tensor, targets: Tensor, heads: Tensor | slice
) -> tuple[Tensor, Tensor]:
    """The evidential loss; its options are the same for all heads."""
    count, classes, rows = logits.shape
    leaf = logits.detach().requires_grad_()
    with torch.enable_grad():
        loss = row_losses(leaf.mT.reshape(-1, classes), targets.repeat(count)).view(count, rows)
    (grad,) = torch.autograd.grad(loss.sum(), leaf)
    return loss.detach(), grad
