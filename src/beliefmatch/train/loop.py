"""A training as it runs: epochs of steps, each seeded by its place, saved and told of on the way."""

import hashlib
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from beliefmatch._utils import derive_seed
from beliefmatch._validate import fail
from beliefmatch.data.source import Batch, Source
from beliefmatch.train.aux_loss import Extra, ExtraPart
from beliefmatch.train.checkpoint import Saving, State, finite, plain, read
from beliefmatch.train.ema import MovingAverage
from beliefmatch.train.engine import Engine
from beliefmatch.train.history import History, Log, Progress, Sums
from beliefmatch.train.interrupt import Interrupted, Request, listening
from beliefmatch.train.sampler import Endless, Order, Repeated, share
from beliefmatch.train.step import Beside, Objective, Stepper, TrainConfig, Tried, joined, seeded

__all__ = ["Saving", "Training", "fit"]

_AUGMENT, _STEP, _OOD, _OOD_AUGMENT = 11, 12, 13, 14  # what a seed is for


class _Part(NamedTuple):
    """What this process computes of a batch of so many images."""

    batch: Batch
    ood: Batch | None
    extra: ExtraPart | None
    weight: float
    images: int


@dataclass
class Training:
    """The arguments of `fit`, and what it has made of them."""

    engine: Engine
    source: Source
    recipe: TrainConfig
    objective_at: Callable[[float], Objective]
    seed: int
    ood: Callable[[Tensor], Tensor] | None
    ood_source: Source | None
    extra: Extra | None
    saving: Saving | None
    log: Log | None
    on_progress: Callable[[Progress], None] | None
    validate: Callable[[nn.Module], Mapping[str, float]] | None
    order: Order
    request: Request
    state: State
    saved_at: float = field(default_factory=time.monotonic)

    def run(self) -> History:
        """Go on from the last checkpoint to the end."""
        self._restore()
        state = self.state
        if self.log is not None:
            self.log.begin(state.history)
        while state.place.epoch < self.recipe.epochs:
            self._epoch()
        if not state.place.finished:
            self.engine.share_buffers(state.stepper.network)
            if state.average is not None:
                state.average.apply()
            state.place.finished = True
            self._save()
        state.stepper.plain.zero_grad(set_to_none=True)
        state.stepper.network.eval()
        return state.history

    def _epoch(self) -> None:
        state = self.state
        state.stepper.wrapped.train()
        clock = time.perf_counter()
        with closing(self._parts()) as parts:
            for part in parts:
                due = self._step(part)
                state.sums.seen += part.images
                state.sums.seconds += time.perf_counter() - clock
                if self.on_progress is not None:
                    self.on_progress(self._progress())
                if due:
                    self._save()
                clock = time.perf_counter()
        self._end_epoch()

    def _parts(self) -> Generator[_Part]:
        """This process's parts of the batches of the epoch that are left."""
        place, rank, world, device = self.state.place, self.engine.rank, self.engine.world, self.engine.device
        first = place.batch
        whole = self.order.epoch(place.epoch)[first:]
        shares = [share(batch, rank, world) for batch in whole]
        seeds = [derive_seed(self.seed, _AUGMENT, place.epoch, first + at, rank) for at in range(len(whole))]
        batches = self.source.batches([mine.indices for mine in shares], seeds=seeds, device=device)
        ood = self._ood_batches([len(batch) for batch in whole])
        extra = self._extra_parts(len(whole))
        for all_of_it, mine in zip(whole, shares, strict=True):
            yield _Part(next(batches), next(ood, None), next(extra, None), mine.weight, len(all_of_it))

    def _extra_parts(self, steps: int) -> Iterator[ExtraPart]:
        if self.extra is None:
            return iter(())
        first, usual = self.state.place.step, self.recipe.batch_size
        return self.extra.parts(self.engine, first=first, steps=steps, usual=usual, seed=self.seed)

    def _ood_batches(self, sizes: list[int]) -> Iterator[Batch]:
        """As many OOD examples for each batch as it has others."""
        if self.ood_source is None:
            return iter(())
        place, rank, world = self.state.place, self.engine.rank, self.engine.world
        row = Endless(len(self.ood_source), derive_seed(self.seed, _OOD))
        first = place.epoch * self.order.examples + place.batch * self.order.batch_size
        parts = [share(batch, rank, world).indices for batch in row.batches(sizes, first)]
        seeds = [derive_seed(self.seed, _OOD_AUGMENT, place.step + at, rank) for at in range(len(sizes))]
        return self.ood_source.batches(parts, seeds=seeds, device=self.engine.device)

    def _step(self, part: _Part) -> bool:
        """Try a step and take it if all processes can; whether a checkpoint is due."""
        state, place, world = self.state, self.state.place, self.engine.world
        epochs_done = place.epoch + place.batch / self.order.batches
        progress = epochs_done / self.recipe.epochs
        seeded(self.engine.device, derive_seed(self.seed, _STEP, place.epoch, place.batch, self.engine.rank))
        mine = state.stepper.try_out(
            joined(part.batch, part.ood),
            self._loss(part, self.objective_at(progress)),
            weight=part.weight,
            rate=self.recipe.rate(epochs_done),
            beside=self._beside(part, progress),
        )
        bad = not state.guard.is_finite(mine.loss, mine.norm)
        losses = [mine.loss / world, (mine.beside or 0.0) / world]
        loss, extra, bad, stop, due = self.engine.total([*losses, bad, self.request.made, self._is_due()])
        tried = Tried(loss, mine.norm, None if mine.beside is None else extra)
        if bad:
            self._leave(tried)
        else:
            self._take(tried, part.images)
        place.batch, place.step = place.batch + 1, place.step + 1
        if stop:
            self._interrupt()
        return bool(due)

    def _loss(self, part: _Part, objective: Objective) -> Callable[[Tensor], Tensor]:
        own = len(part.batch.targets)

        def loss(logits: Tensor) -> Tensor:
            in_distribution = objective(logits[:own], part.batch.targets)
            return in_distribution if self.ood is None else in_distribution + self.ood(logits[own:])

        return loss

    def _beside(self, part: _Part, progress: float) -> Beside | None:
        """The further loss of this step; none where it has no weight."""
        if self.extra is None or part.extra is None:
            return None
        weight = self.extra.weight(progress)
        loss = self.extra.of(part.extra, self.state.place.step, self.seed, self.engine.rank)
        return Beside(loss, weight, part.extra.weight) if weight else None

    def _take(self, tried: Tried, images: int) -> None:
        state = self.state
        state.stepper.take()
        if state.average is not None:
            state.average.update(state.place.step)
        state.guard.passed()
        state.sums.take(tried.loss, tried.norm, images, tried.beside)

    def _leave(self, tried: Tried) -> None:
        if not self.state.stepper.leave():
            self.state.sums.skipped += 1
            self.state.guard.skipped(tried.loss, tried.norm)

    def _end_epoch(self) -> None:
        state, place = self.state, self.state.place
        state.guard.epoch_ended(place.epoch, self.order.batches, state.sums.skipped)
        rate = self.recipe.rate(place.epoch + (self.order.batches - 1) / self.order.batches)
        name = None if self.extra is None else self.extra.name
        ended = state.sums.epoch(place.epoch, rate, self._validated(), extra=name)
        state.history.epochs.append(ended)
        if self.log is not None:
            self.log.add(ended)
        place.epoch, place.batch, state.sums = place.epoch + 1, 0, Sums()
        if self.saving and self.saving.epochs and place.epoch % self.saving.epochs == 0:
            self._save()

    def _validated(self) -> Mapping[str, float | None]:
        if self.validate is None:
            return {}
        if not self.recipe.validates(self.state.place.epoch):
            return dict.fromkeys(self.state.history.epochs[0].validation)
        network, average = self.state.stepper.network.eval(), self.state.average
        self.engine.share_buffers(network)
        with average.applied() if average is not None else nullcontext(), torch.no_grad():
            return finite(self.validate(network))

    def _progress(self) -> Progress:
        place, sums = self.state.place, self.state.sums
        speed = sums.seen / sums.seconds
        left = (self.recipe.epochs - place.epoch) * self.order.examples - sums.seen
        return Progress(
            epoch=place.epoch,
            epochs=self.recipe.epochs,
            step=place.step,
            steps=self.recipe.epochs * self.order.batches,
            images_per_second=speed,
            seconds_left=left / speed,
            loss=sums.mean_loss if sums.mean_loss is not None else float("nan"),
        )

    def _configuration(self) -> dict[str, Any]:
        """What a checkpoint must have been made with."""
        shapes = [(name, *value.shape) for name, value in self.state.stepper.network.state_dict().items()]
        return plain(
            {
                "recipe": asdict(self.recipe),
                "seed": self.seed,
                "examples": len(self.source),
                "ood_examples": len(self.ood_source) if self.ood_source is not None else None,
                "extra_examples": len(self.extra.source) if self.extra is not None else None,
                "epoch_examples": self.order.examples if self.order.examples != len(self.source) else None,
                "network": hashlib.sha256(repr(shapes).encode()).hexdigest()[:16],
                **(self.saving.configuration if self.saving else {}),
            }
        )

    def _is_due(self) -> bool:
        """By the first process's clock, which decides for all."""
        if self.saving is None or self.saving.seconds is None or not self.engine.is_first:
            return False
        return time.monotonic() - self.saved_at >= self.saving.seconds

    def _save(self) -> None:
        if self.saving is not None:
            directory, configuration = self.saving.directory, self._configuration()
            self.engine.once(lambda: self.state.save(directory, configuration))
            self.saved_at = time.monotonic()

    def _restore(self) -> None:
        if self.saving is None:
            return
        directory, configuration = self.saving.directory, self._configuration()
        checkpoint = self.engine.once(lambda: read(directory, configuration, self.engine.describe()))
        if checkpoint is not None:
            self.state.restore(checkpoint)

    def _interrupt(self) -> None:
        self._save()
        where = self.saving.directory if self.saving else None
        raise Interrupted(
            f"interrupted after step {self.state.place.step} of {self.recipe.epochs * self.order.batches}, "
            f"saved in {where}: run the same command again to go on."
        )


def fit(
    engine: Engine,
    network: nn.Module,
    source: Source,
    recipe: TrainConfig,
    *,
    objective_at: Callable[[float], Objective],
    seed: int,
    ood: Callable[[Tensor], Tensor] | None = None,
    ood_source: Source | None = None,
    extra: Extra | None = None,
    epoch_examples: int | None = None,
    saving: Saving | None = None,
    log: Log | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    validate: Callable[[nn.Module], Mapping[str, float]] | None = None,
) -> History:
    """Train a network in place; it is left in eval mode, with averaged weights if the recipe says so.

    With `saving`, a training that was killed is taken up where it last saved, and ends with the weights that
    it would have had, bit for bit on a CPU with as many processes and threads. One that is finished is only
    loaded. Ctrl-C and SIGTERM save after the step that is running and raise `Interrupted`.

    Args:
        engine: where to train.
        network: maps a batch of inputs to logits.
        source: the examples.
        recipe: how long, how fast and by which rule.
        objective_at: ``loss(logits, targets)``, a mean over the batch, after a share of the training.
        seed: of order, augmentation and dropout. The caller's random state is left alone.
        OOD: a loss of the logits of OOD examples, added to the objective.
        ood_source: these examples; each step takes as many of them as of the others.
        extra: a further loss, of the network itself on examples of their own.
        epoch_examples: an epoch is as long as one pass over so many, in which the examples come again and
            again; as many as there are if not given.
        saving: where to keep checkpoints; none are written if not given.
        log: told of every epoch.
        on_progress: called after every step, in the first process.
        validate: numbers for the history, from the network after each epoch; called in all processes.
    """
    if len(source) == 0:
        raise fail("fit", "`source` must hold at least one example, got none.")
    if (ood is None) != (ood_source is None):
        raise fail("fit", "`ood` and `ood_source` must be given together, got one of them.")
    devices = [engine.device] if engine.device.type == "cuda" else []
    with engine.running(), torch.random.fork_rng(devices), listening(saving is not None) as request:
        stepper = Stepper(engine, network, recipe)
        average = MovingAverage(stepper.network, recipe.ema) if recipe.ema is not None else None
        order = _order(len(source), recipe.batch_size, seed, epoch_examples)
        training = Training(
            engine=engine,
            source=source,
            recipe=recipe,
            objective_at=objective_at,
            seed=seed,
            ood=ood,
            ood_source=ood_source,
            extra=extra,
            saving=saving,
            log=log if engine.is_first else None,
            on_progress=on_progress if engine.is_first else None,
            validate=validate,
            order=order,
            request=request,
            state=State(stepper, average),
        )
        return training.run()


def _order(examples: int, batch_size: int, seed: int, epoch_examples: int | None) -> Order:
    if epoch_examples is None:
        return Order(examples, batch_size, seed)
    return Repeated(epoch_examples, batch_size, seed, few=examples)
