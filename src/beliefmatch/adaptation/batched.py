"""All candidates at once: heads of one batched linear layer, trained in the same pass over the features.

Heads share nothing but the batches, so each becomes what it would have become alone. The rows keep the scale
that the network gives them, because the head has to fit into the network: features whose sizes differ by
orders of magnitude make Adam's equal steps unequal in effect, and L-BFGS slow; more epochs help, or a
normalising layer before the head.
"""

from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor

from beliefmatch._utils import OnProgress
from beliefmatch._validate import require_choice
from beliefmatch.adaptation import lbfgs
from beliefmatch.adaptation.adam import Adam
from beliefmatch.adaptation.candidates import Candidate
from beliefmatch.adaptation.fitted import FittedHead, Point
from beliefmatch.adaptation.head_init import Init, initial_weights, require_init
from beliefmatch.adaptation.objectives import Objectives, in_order
from beliefmatch.adaptation.reading import Batches, require_labels
from beliefmatch.adaptation.scoring import Evaluator, product
from beliefmatch.adaptation.settings import HeadConfig, known_classes, require_candidates
from beliefmatch.adaptation.stopping import Track
from beliefmatch.adaptation.types import Features

__all__ = ["BATCH_SIZE", "MEMORY", "fit_heads", "heads_together", "paper_rate"]

BATCH_SIZE = 256
MEMORY = 2 << 30
_COPIES = 5  # of a head's weights: themselves, grads, two moments, the best
_LOGITS = 6  # of a batch's logits: themselves, grads, and what losses need on the way


def fit_heads(
    features: Features,
    candidates: Sequence[Candidate],
    *,
    validation: Features | None = None,
    classes: int | None = None,
    epochs: int = 100,
    batch_size: int = BATCH_SIZE,
    learning_rate: float | None = None,
    weight_decay: float = 0.0,
    init: Init | None = None,
    patience: int | None = 10,
    monitor: Literal["nll", "error"] = "nll",
    optimizer: Literal["adam", "lbfgs"] = "adam",
    order_seed: int = 0,
    memory: int = MEMORY,
    on_progress: OnProgress | None = None,
) -> list[FittedHead]:
    """Fit every candidate; the heads in the order of the candidates, the same for the same arguments.

    Args:
        features: to train on. Rows of no class (−1) are left out. Counts are votes for belief matching, and
            soft labels in their proportion for softmax and label smoothing; evidential heads need class ids.
        candidates: the heads.
        validation: rows that neither the heads nor the network have seen. Each head keeps the weights of its
            best epoch by them. Without any, all train to the end.
        classes: K; known where there is a `init` or where targets are counts.
        epochs: passes over the features, or iterations of L-BFGS.
        batch_size: rows of a step. The paper's is 64; an epoch of 256 costs less than half of that.
        learning_rate: of Adam; `paper_rate(batch_size)` if not given, the paper's 3e-4 at its 64.
        weight_decay: times half the sum of squares of a head's weights is added to its loss.
        init: weight and bias that all heads start from, for the repair of an existing head; those of belief
            matching scaled and shifted to fit their λ (`initial_weights`). Otherwise each seed draws its own.
        patience: a head stops when as many epochs have brought no better validation value; None for never.
        monitor: the validation value, "nll" or "error".
        optimizer: "adam", or "lbfgs" with all rows in every step: for softmax and label smoothing, which are
            convex, it comes to the optimum; belief matching is not convex, and may end away from it.
        order_seed: of the batches, which are the same for all heads.
        memory: bytes that rows may take, and again those that heads may: rows beyond it are streamed from
            where they are mapped, heads beyond it wait for the next pass (`heads_together`).
        on_progress: Called with (fraction, description).
    """
    rate = paper_rate(batch_size) if learning_rate is None else learning_rate
    settings = HeadConfig(
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=rate,
        weight_decay=weight_decay,
        patience=patience,
        monitor=monitor,
        order_seed=order_seed,
        memory=memory,
    )
    require_choice("fit_heads", "optimizer", optimizer, ("adam", "lbfgs"))
    init = None if init is None else require_init("fit_heads", init)
    classes = known_classes(features, init, classes)
    require_candidates(candidates, features, init, classes)
    width = features.rows.shape[-1] if init is None else init[0].shape[1]
    require_labels("fit_heads", "features", features, classes, width)
    if validation is not None:
        require_labels("fit_heads", "validation", validation, classes, width)
    evaluator = None if validation is None else Evaluator(validation)
    batches = Batches(features, batch_size, order_seed, memory)
    fitted: dict[int, FittedHead] = {}
    passes = [*_passes(candidates, classes, width, settings)]
    for number, places in enumerate(passes):
        heads = [candidates[place] for place in places]
        stacks = initial_weights(heads, init, classes, width, features)
        run = lbfgs.run if optimizer == "lbfgs" else _run
        tell = _telling(on_progress, number, len(passes), len(heads))
        tracks = run(heads, stacks, batches, settings, evaluator, tell)
        fitted |= zip(places, _results(heads, tracks, stacks, evaluator), strict=True)
    return [fitted[place] for place in range(len(candidates))]


def paper_rate(batch_size: int) -> float:
    """3e-4 for batches of 64, and in proportion for others, so that an epoch goes as far in fewer steps.

    Measured on the features of a CIFAR-10 ResNet-20 (8,000 rows, 60 epochs, fresh heads, λ = 0.001): NLL on
    test images .270, .271 and .272 for batches of 64, 256 and 512. At 3e-4 the larger ones had not arrived:
    .325 and .432.
    """
    return 3e-4 * batch_size / 64


def heads_together(classes: int, width: int, batch_size: int = BATCH_SIZE, memory: int = MEMORY) -> int:
    """Heads of K classes and F features that are trained in one pass within these bytes; at least one."""
    each = 4 * (_COPIES * classes * (width + 1) + _LOGITS * classes * batch_size)
    return max(1, memory // each)


def _passes(
    candidates: Sequence[Candidate], classes: int, width: int, settings: HeadConfig
) -> Iterator[list[int]]:
    """Places of the candidates, those that are trained together."""
    places = in_order(candidates)
    most = heads_together(classes, width, settings.batch_size, settings.memory)
    passes = -(-len(places) // most)
    for number in range(passes):  # of nearly equal size
        yield places[len(places) * number // passes : len(places) * (number + 1) // passes]


def _telling(on_progress: OnProgress | None, number: int, passes: int, heads: int) -> OnProgress:
    of = f", pass {number + 1} of {passes}" if passes > 1 else ""

    def tell(share: float, doing: str) -> None:
        if on_progress is not None:
            on_progress((number + share) / passes, f"{heads} heads{of}: {doing}")

    return tell


def _run(
    candidates: Sequence[Candidate],
    stacks: Init,
    batches: Batches,
    settings: HeadConfig,
    evaluator: Evaluator | None,
    tell: OnProgress,
) -> list[Track]:
    return _Fit(candidates, stacks, batches, settings, evaluator).run(tell)


class _Fit:
    """Heads in training; those that are done leave the stacks."""

    def __init__(
        self,
        candidates: Sequence[Candidate],
        stacks: Init,
        batches: Batches,
        settings: HeadConfig,
        evaluator: Evaluator | None,
    ) -> None:
        self.candidates, self.classes, self.batches = [*candidates], stacks[1].shape[1], batches
        self.settings, self.evaluator = settings, evaluator
        self.all_tracks = [Track() for _ in candidates]
        self.tracks = self.all_tracks[:]
        weight, bias = (stack.clone() for stack in stacks)
        rates = {"learning_rate": settings.learning_rate, "weight_decay": settings.weight_decay}
        self.adam = Adam(weight, bias, **rates)
        self._arrange()

    def _arrange(self) -> None:
        self.objectives = Objectives(self.candidates, self.classes)
        self.weight_grad = torch.empty_like(self.adam.weight)
        self.sums = torch.zeros(len(self.candidates), dtype=torch.float64)

    def run(self, tell: OnProgress) -> list[Track]:
        """Train until all are done; one track for each candidate."""
        for epoch in range(self.settings.epochs):
            self._train(epoch)
            self._end(epoch + 1)
            tell((epoch + 1) / self.settings.epochs, f"epoch {epoch + 1}, {len(self.tracks)} in training")
            if not self.tracks:
                break
        tell(1.0, "trained")
        return self.all_tracks

    def _train(self, epoch: int) -> None:
        steps, epochs = self.batches.sampler.n_batches, self.settings.epochs
        self.sums.zero_()
        for number, (rows, targets) in enumerate(self.batches.epoch(epoch)):
            if not self.candidates:
                return
            self._step(rows, targets, (epoch + number / steps) / epochs, epoch)

    def _step(self, rows: Tensor, targets: Tensor, progress: float, epoch: int) -> None:
        logits = product(self.adam.weight, self.adam.bias, rows)
        grads = torch.empty_like(logits)
        losses = self.objectives.grads(logits, targets, grads, progress)
        finite = losses.isfinite()
        if not bool(finite.all()):
            for place in (~finite).nonzero()[:, 0].tolist():
                self.tracks[place].diverged_at = epoch + 1
            grads, losses = grads[finite], losses[finite]
            self._keep(finite.nonzero()[:, 0])
            if not self.candidates:
                return
        self.sums += losses.double() * len(rows)
        torch.mm(grads.view(-1, len(rows)), rows, out=self.weight_grad.view(-1, rows.shape[1]))
        self.adam.step(self.weight_grad, grads.sum(2))

    def _end(self, epoch: int) -> None:
        """Evaluator every head and let go of those that are done."""
        if not self.candidates:
            return
        weight, bias = self.adam.weight, self.adam.bias
        seen = None if self.evaluator is None else self.evaluator.watch(self.candidates, weight, bias)
        losses = (self.sums / len(self.batches.places)).tolist()
        for place, track in enumerate(self.tracks):
            nll, error = (None, None) if seen is None else (seen[0][place].item(), seen[1][place].item())
            value = nll if self.settings.monitor == "nll" else error
            track.add(Point(epoch, losses[place], nll, error), value, weight[place], bias[place])
        patience = self.settings.patience if self.evaluator else None
        left = [place for place, track in enumerate(self.tracks) if not track.is_over(patience)]
        if len(left) < len(self.tracks):
            self._keep(torch.tensor(left, dtype=torch.int64))

    def _keep(self, places: Tensor) -> None:
        chosen, sums = places.tolist(), self.sums[places]
        self.candidates = [self.candidates[place] for place in chosen]
        self.tracks = [self.tracks[place] for place in chosen]
        self.adam.keep(places)
        self._arrange()
        self.sums = sums


def _results(
    candidates: Sequence[Candidate], tracks: Sequence[Track], stacks: Init, evaluator: Evaluator | None
) -> Iterator[FittedHead]:
    """What became of each; a head that never had a good epoch has the weights it started from."""
    for candidate, track, *first in zip(candidates, tracks, *stacks, strict=True):
        weight, bias = (track.weight, track.bias) if track.weight is not None else first
        assert weight is not None and bias is not None
        scores = evaluator.scores([candidate], weight[None], bias[None])[0] if evaluator else None
        notes = [*track.notes]
        if track.diverged_at is not None:
            notes.append(f"diverged in epoch {track.diverged_at}: its loss was not finite; try a lower rate")
        yield FittedHead(
            candidate,
            weight,
            bias,
            track.epoch,
            scores,
            tuple(track.curve),
            track.diverged_at is not None,
            tuple(notes),
        )
