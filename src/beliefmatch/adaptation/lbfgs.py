"""L-BFGS on all rows: for convex objectives the optimum itself, one head after the other.

Loss and grad are summed over blocks of rows, so that what is held does not grow with their number.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from beliefmatch._utils import OnProgress
from beliefmatch.adaptation.candidates import Candidate
from beliefmatch.adaptation.fitted import Point
from beliefmatch.adaptation.head_init import Init
from beliefmatch.adaptation.objectives import Objectives
from beliefmatch.adaptation.reading import Batches, ordered
from beliefmatch.adaptation.scoring import Evaluator, product
from beliefmatch.adaptation.settings import HeadConfig
from beliefmatch.adaptation.stopping import Track

__all__ = ["run"]

SLICE = 10
"""Iterations between two looks at the validation rows."""
_MEMORY = 10  # pairs of steps and grads that the curvature is read from, where there is room
_GRAD_TOLERANCE = 1e-7
_CHANGE = 1e-12
NOT_CONVEX = "not convex: L-BFGS ends where the grad vanishes, which need not be the optimum"


def run(
    candidates: Sequence[Candidate],
    stacks: Init,
    batches: Batches,
    settings: HeadConfig,
    evaluator: Evaluator | None,
    tell: OnProgress,
) -> list[Track]:
    """Fit each head from its first weights; one track for each candidate."""
    tracks = []
    for place, candidate in enumerate(candidates):
        tell(place / len(candidates), candidate.name)
        tracks.append(_Head(candidate, stacks[0][place], stacks[1][place], batches, settings).run(evaluator))
    tell(1.0, "trained")
    return tracks


class _Head:
    """One head in training."""

    def __init__(
        self, candidate: Candidate, weight: Tensor, bias: Tensor, batches: Batches, settings: HeadConfig
    ) -> None:
        self.candidate, self.batches, self.settings = candidate, batches, settings
        self.objectives = Objectives([candidate], len(bias))
        self.weight, self.bias = nn.Parameter(weight.clone()), nn.Parameter(bias.clone())
        pairs = settings.memory // (8 * (weight.numel() + len(bias)))
        self.optimizer = torch.optim.LBFGS(
            [self.weight, self.bias],
            max_iter=SLICE,
            history_size=int(min(_MEMORY, max(2, pairs))),
            tolerance_grad=_GRAD_TOLERANCE,
            tolerance_change=_CHANGE,
            line_search_fn="strong_wolfe",
        )

    def run(self, evaluator: Evaluator | None) -> Track:
        """Iterate until the grad vanishes, patience ends, or as often as there may be epochs."""
        track, done = Track(), 0
        if self.candidate.kind not in ("softmax", "label_smoothing"):
            track.notes.append(NOT_CONVEX)
        while done < self.settings.epochs:
            wanted = min(SLICE, self.settings.epochs - done)
            self.optimizer.param_groups[0]["max_iter"] = wanted
            self.optimizer.step(self._loss_and_grad)
            total = int(self.optimizer.state[self.weight].get("n_iter", done))
            taken, done = total - done, total
            loss = self._loss_and_grad().item()
            if not math.isfinite(loss):
                track.diverged_at = done
                break
            self._look(track, done, loss, evaluator)
            patience = self.settings.patience if evaluator else None
            if taken < wanted or track.is_over(patience):
                break
        return track

    def _look(self, track: Track, done: int, loss: float, evaluator: Evaluator | None) -> None:
        weight, bias = self.weight.detach(), self.bias.detach()
        nll, error = None, None
        if evaluator is not None:
            nll, error = (one.item() for one in evaluator.watch([self.candidate], weight[None], bias[None]))
        value = nll if self.settings.monitor == "nll" else error
        track.add(Point(done, loss, nll, error), value, weight, bias)

    @torch.no_grad()
    def _loss_and_grad(self) -> Tensor:
        """The mean loss over all rows; its grads are left in the parameters."""
        weight, bias, decay = self.weight, self.bias, self.settings.weight_decay
        weight_grad, bias_grad = decay * weight, torch.zeros_like(bias)
        total, many = 0.5 * decay * weight.double().square().sum(), len(self.batches.places)
        for rows, targets in ordered(self.batches.features, self.batches.places):
            logits = product(weight[None], bias[None], rows)
            grads, share = torch.empty_like(logits), len(rows) / many
            total += share * self.objectives.grads(logits, targets, grads).double()[0]
            weight_grad.addmm_(grads[0], rows, alpha=share)
            bias_grad += share * grads[0].sum(1)
        self.weight.grad, self.bias.grad = weight_grad, bias_grad
        return total
