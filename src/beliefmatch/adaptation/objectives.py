"""Losses of many heads at once, and their grads by the logits.

Logits are laid out (H, K, B), a head's together and the examples of a class side by side: so comes the
product of all weights with a batch, so the kernel of belief matching reads fastest, and so the grads go into
the product with the features. Heads of like objective stand together and are computed by one call.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from beliefmatch import kernels
from beliefmatch.adaptation.candidates import Candidate
from beliefmatch.kernels.reference import LossInputs, Options
from beliefmatch.methods.base import Method

__all__ = ["Objectives", "in_order"]

Losses = Callable[[Tensor, Tensor, Tensor, float], Tensor]
"""From logits (H, K, B), targets and the share of the training that is over, the mean loss of each head (H,);
writes the grads to the third argument, shaped like the first."""

_IGNORED = -100  # no target is: OOD rows were left out


def in_order(candidates: Sequence[Candidate]) -> list[int]:
    """Places of the candidates, those of like objective together."""
    return sorted(range(len(candidates)), key=lambda place: (repr(_likeness(candidates[place])), place))


def _likeness(candidate: Candidate) -> tuple[Any, ...]:
    if candidate.kind == "belief_matching":
        return candidate.kind, candidate.kl_weight, candidate.prior
    if candidate.kind == "evidential":
        return candidate.kind, sorted(candidate.options.items())
    return ("cross_entropy",)


@dataclass(frozen=True)
class _Group:
    start: int
    stop: int
    losses: Losses


class Objectives:
    """The objectives of candidates that stand `in_order`.

    Args:
        candidates: the heads.
        classes: K.
    """

    def __init__(self, candidates: Sequence[Candidate], classes: int) -> None:
        self.groups: list[_Group] = []
        start = 0
        for _, like in groupby(candidates, key=_likeness):
            heads = [*like]
            self.groups.append(_Group(start, start + len(heads), _losses_of(heads, classes)))
            start += len(heads)

    def grads(self, logits: Tensor, targets: Tensor, out: Tensor, progress: float = 1.0) -> Tensor:
        """Write the grads of every head's mean loss to `out`; the mean losses (H,).

        Args:
            logits: (H, K, B).
            targets: class ids (B,), or counts (B, K).
            out: shaped like the logits.
            progress: share of the training that is over, for objectives that change on the way.
        """
        losses = [
            group.losses(logits[group.start : group.stop], targets, out[group.start : group.stop], progress)
            for group in self.groups
        ]
        return torch.cat(losses) if len(losses) > 1 else losses[0]


def _losses_of(heads: Sequence[Candidate], classes: int) -> Losses:
    first = heads[0]
    if first.kind == "belief_matching":
        return _belief_matching(first)
    if first.kind == "evidential":
        return _evidential(first.method)
    return _cross_entropy(torch.tensor([head.smoothing(classes) for head in heads]), classes)


def _belief_matching(candidate: Candidate) -> Losses:
    """By the kernels, without the checks of the public function: they were made once, not in every step."""
    beta, kl_weight = candidate.prior, candidate.kl_weight
    priors = torch.tensor(beta)[None, :, None] if isinstance(beta, tuple) else None
    number = 1.0 if isinstance(beta, tuple) else beta

    def losses(logits: Tensor, targets: Tensor, out: Tensor, progress: float) -> Tensor:
        heads, _, rows = logits.shape
        has_ids = targets.dim() == 1
        labels = targets.expand(heads, rows) if has_ids else targets.t().expand_as(logits)
        options = Options(number, kl_weight, 1, has_ids, _IGNORED, "none")
        leaf = logits.detach().requires_grad_()
        with torch.enable_grad():
            value = kernels.eager_loss(LossInputs(leaf, labels, None, priors, None, options))
        each = torch.full((), 1 / rows, dtype=value.dtype).expand_as(value)
        (grad,) = torch.autograd.grad(value, leaf, each)
        out.copy_(grad)
        return value.detach().mean(1)

    return losses


def _cross_entropy(smoothing: Tensor, classes: int) -> Losses:
    """Softmax and label smoothing: targets t mixed with the uniform distribution, grad Σt · p − t.

    Counts are labels of the shares of their votes; a row without votes counts for nothing.
    """
    kept = (1 - smoothing)[:, None]
    floor = (smoothing / classes)[:, None]

    def losses(logits: Tensor, targets: Tensor, out: Tensor, progress: float) -> Tensor:
        rows = logits.shape[2]
        logs = torch.log_softmax(logits, 1)
        torch.exp(logs, out=out)
        if targets.dim() == 1:
            place = targets.expand(len(logits), 1, rows)
            value = -(kept * logs.gather(1, place)[:, 0] + floor * logs.sum(1)).mean(1)
            out.sub_(floor[:, None])
            out.scatter_add_(1, place, -kept[:, None].expand(-1, 1, rows))
        else:
            votes = targets.sum(1)
            some = (votes > 0).to(logs.dtype)
            shares = (targets / votes.clamp(min=torch.finfo(votes.dtype).tiny)[:, None]).t().to(logs.dtype)
            goal = kept[:, None] * shares + floor[:, None] * some
            value = -(goal * logs).sum(1).mean(1)
            out.mul_(some).sub_(goal)
        out.div_(rows)
        return value

    return losses


def _evidential(method: Method) -> Losses:
    """By differentiation, one head after the other: the objective gives the mean of a batch."""

    def losses(logits: Tensor, targets: Tensor, out: Tensor, progress: float) -> Tensor:
        objective, values = method.objective_at(progress), []
        for head, room in zip(logits, out, strict=True):
            leaf = head.t().detach().requires_grad_()
            with torch.enable_grad():
                value = objective(leaf, targets)
            (grad,) = torch.autograd.grad(value, leaf)
            room.copy_(grad.t())
            values.append(value.detach())
        return torch.stack(values).to(logits.dtype)

    return losses
