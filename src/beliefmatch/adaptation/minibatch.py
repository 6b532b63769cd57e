"""The paper's training of a head: Adam on minibatches of the features as they are, without weight decay.

Its learning rate is 3e-4 at batches of 64 for 100 epochs. On features of other scales than the paper's that
is often not enough, so the default is the solver of `beliefmatch.adaptation.solver`; this one is there to
compare with the paper. Heads share the batches and nothing else.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from beliefmatch._utils import OnProgress, derive_seed
from beliefmatch._validate import fail
from beliefmatch.adaptation.candidates import Candidate
from beliefmatch.adaptation.fitted import FittedHead, Init, Point
from beliefmatch.adaptation.objectives import Evidential, family, loss_of
from beliefmatch.adaptation.scoring import Evaluator, product
from beliefmatch.adaptation.types import Features, labelled, ordered
from beliefmatch.train.sampler import EpochSampler

__all__ = ["fit_by_adam"]

_MOST_BYTES = 8 << 30
_FRESH = 5  # what a seed is for


def fit_by_adam(
    train: Features,
    validation: Features,
    candidates: Sequence[Candidate],
    classes: int,
    *,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    init: Init | None = None,
    on_progress: OnProgress | None = None,
) -> list[FittedHead]:
    """Train every candidate; each keeps the weights of its first epoch with the lowest validation error.

    A head whose best epoch is the last one has not converged, and neither has one whose loss became infinite.

    Args:
        train: Features to train on.
        validation: Features that choose the epoch.
        candidates: The heads; those of one seed see the same batches.
        classes: K.
        epochs: Passes over the features.
        batch_size: Rows of a step.
        learning_rate: Of Adam.
        init: Weight and bias that all heads start from; otherwise each seed draws its own.
        on_progress: Called with (fraction, description).
    """
    if 4 * len(train) * train.width > _MOST_BYTES:
        fact = f"`protocol` must be default for features of more than {_MOST_BYTES >> 30} GiB, got paper"
        raise fail("adapt", f"{fact}.")
    groups: dict[tuple[str, int], list[int]] = {}
    for place, one in enumerate(candidates):
        groups.setdefault((family(one), one.seed), []).append(place)
    evaluator = Evaluator(validation)
    rows = torch.cat([some for some, _ in ordered(train, labelled(train))])
    targets = train.targets[labelled(train)]
    fitted: dict[int, FittedHead] = {}
    for number, places in enumerate(groups.values()):

        def tell(epoch: int, number: int = number) -> None:
            if on_progress is not None:
                fraction = (number + epoch / epochs) / len(groups)
                on_progress(fraction, f"training heads: epoch {epoch} of {epochs}")

        some = [candidates[place] for place in places]
        training = _AdamTraining(some, classes, rows, targets, evaluator, init, batch_size, learning_rate)
        for epoch in range(1, epochs + 1):
            training.epoch(epoch, epochs)
            tell(epoch)
        fitted |= zip(places, training.heads(epochs), strict=True)
    return [fitted[place] for place in range(len(candidates))]


class _AdamTraining:
    """Heads of one family and seed in training."""

    def __init__(
        self,
        candidates: Sequence[Candidate],
        classes: int,
        rows: Tensor,
        targets: Tensor,
        evaluator: Evaluator,
        init: Init | None,
        batch_size: int,
        learning_rate: float,
    ) -> None:
        self.candidates, self.classes, self.rows, self.targets = candidates, classes, rows, targets
        self.evaluator = evaluator
        weight, bias = init or _drawn(candidates[0].seed, classes, rows.shape[1])
        many = len(candidates)
        self.weight = nn.Parameter(weight.expand(many, -1, -1).clone())
        self.bias = nn.Parameter(bias.expand(many, -1).clone())
        self.optimizer = torch.optim.Adam([self.weight, self.bias], lr=learning_rate, fused=True)
        seed = 0 if init is None else candidates[0].seed  # fresh heads differ by their first weights
        self.sampler = EpochSampler(len(rows), batch_size, seed)
        self.loss = loss_of(candidates, classes)
        self.curves: list[list[Point]] = [[] for _ in candidates]
        self.least = [math.inf] * many
        self.best = [(weight, bias, 0)] * many

    def epoch(self, epoch: int, epochs: int) -> None:
        """Train on all batches once, and note the validation scores."""
        total = torch.zeros(len(self.candidates), dtype=torch.float64)
        weight, bias = self.weight.detach(), self.bias.detach()
        if isinstance(self.loss, Evidential):
            self.loss = Evidential(self.candidates[0].method, progress=(epoch - 1) / epochs)
        for chosen in self.sampler.batches(epoch - 1):
            rows = self.rows[chosen]
            loss, grad = self.loss(product(weight, bias, rows), self.targets[chosen])
            total += loss.sum(1, dtype=torch.float64)
            grad = grad / len(rows)
            self.weight.grad = (grad.reshape(-1, len(rows)) @ rows).view_as(weight)
            self.bias.grad = grad.sum(2)
            self.optimizer.step()
        scores = self.evaluator.scores(self.candidates, weight, bias)
        for place, (loss, one) in enumerate(zip((total / len(self.rows)).tolist(), scores, strict=True)):
            self.curves[place].append(Point(epoch, loss, one.nll, one.error))
            if math.isfinite(loss) and one.error < self.least[place]:
                self.least[place] = one.error
                self.best[place] = weight[place].clone(), bias[place].clone(), epoch

    def heads(self, epochs: int) -> list[FittedHead]:
        """Each head at its best epoch."""
        weight = torch.stack([weight for weight, _, _ in self.best])
        bias = torch.stack([bias for _, bias, _ in self.best])
        scores = self.evaluator.scores(self.candidates, weight, bias)
        found = []
        for place, candidate in enumerate(self.candidates):
            epoch, is_finite = self.best[place][2], math.isfinite(self.curves[place][-1].loss)
            notes = () if is_finite else ("its loss was not finite",)
            found.append(
                FittedHead(
                    candidate,
                    weight[place],
                    bias[place],
                    validation=scores[place],
                    converged=is_finite and 0 < epoch < epochs,
                    iterations=epoch,
                    curve=tuple(self.curves[place]),
                    notes=notes,
                )
            )
        return found


def _drawn(seed: int, classes: int, width: int) -> Init:
    """Weights as `torch.nn.Linear` draws them."""
    generator = torch.Generator().manual_seed(derive_seed(seed, _FRESH))
    limit = 1 / math.sqrt(width)
    return (
        torch.empty(classes, width).uniform_(-limit, limit, generator=generator),
        torch.empty(classes).uniform_(-limit, limit, generator=generator),
    )
