"""The training loop: epochs of steps whose randomness depends on the seed and the position alone."""

import hashlib
import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from beliefmatch._config import plain
from beliefmatch._utils import derive_seed
from beliefmatch._validate import fail
from beliefmatch.data.sources import Batch, Source
from beliefmatch.methods.base import Objective
from beliefmatch.train.aux_loss import AuxBatch, AuxLoss
from beliefmatch.train.checkpoint import (
    Checkpointing,
    TrainingState,
    read_checkpoint,
    write_checkpoint,
)
from beliefmatch.train.config import TrainConfig
from beliefmatch.train.ema import MovingAverage, foreach_copy
from beliefmatch.train.engine import Engine
from beliefmatch.train.history import EpochSums, History, Log, Progress
from beliefmatch.train.interrupt import Interrupted, StopRequest, catch_signals
from beliefmatch.train.sampler import CyclicSampler, EpochSampler, RepeatingSampler, shard

__all__ = ["NOT_FINITE_ADVICE", "clip_gradients", "fit", "make_optimizer"]

NOT_FINITE_ADVICE = (
    "Try a lower `learning_rate`, a longer `warmup`, a smaller `clip_norm`, `precision` 32, "
    "or for belief matching a larger `kl_weight`."
)
_MAX_SKIPPED_IN_A_ROW = 20
_AUGMENT, _DROPOUT, _OOD, _OOD_AUGMENT = 11, 12, 13, 14  # purposes of derived seeds


def fit(
    engine: Engine,
    network: nn.Module,
    source: Source,
    config: TrainConfig,
    *,
    objective_at: Callable[[float], Objective],
    seed: int,
    ood: Callable[[Tensor], Tensor] | None = None,
    ood_source: Source | None = None,
    aux: AuxLoss | None = None,
    epoch_examples: int | None = None,
    checkpointing: Checkpointing | None = None,
    log: Log | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    validate: Callable[[nn.Module], Mapping[str, float]] | None = None,
) -> History:
    """Train a network in place; it is left in eval mode, with averaged weights if `config` has `ema`.

    With `checkpointing`, a training that was killed resumes from its last checkpoint and ends with the
    weights of an undisturbed training, bit for bit on a CPU with the same number of processes and threads.
    A finished training is only loaded. Ctrl-C and SIGTERM write a checkpoint after the running step and
    raise `Interrupted`. Steps whose loss or gradient is not finite are skipped; FloatingPointError if they
    persist.

    Args:
        engine: devices and precision to train with.
        network: maps a batch of inputs to logits.
        source: training examples.
        config: length, optimiser and learning rate of the training.
        objective_at: gives ``loss(logits, targets)``, a mean over the batch, for the fraction of the training
            that is done.
        seed: seed of order, augmentation and dropout. The caller's random state is not changed.
        ood: loss of the logits of OOD examples, added to the objective.
        ood_source: OOD examples; each step takes as many of them as of the training examples.
        aux: auxiliary loss of the network on examples of its own.
        epoch_examples: length of an epoch in examples, which repeat; the number of examples if not given.
        checkpointing: where and how often to write checkpoints; none are written if not given.
        log: receives every epoch.
        on_progress: called after every step, in the main process.
        validate: gives numbers for the history from the network after an epoch; called in all processes.
    """
    if len(source) == 0:
        raise fail("fit", "`source` must contain at least one example, got none.")
    if (ood is None) != (ood_source is None):
        raise fail("fit", "`ood` and `ood_source` must be given together, got one of them.")
    devices = [engine.device] if engine.device.type == "cuda" else []
    with engine.running(), torch.random.fork_rng(devices), catch_signals(checkpointing is not None) as stop:
        training = _Training(
            engine=engine,
            network=engine.prepare(network),
            source=source,
            config=config,
            objective_at=objective_at,
            seed=seed,
            ood=ood,
            ood_source=ood_source,
            aux=aux,
            epoch_examples=epoch_examples,
            checkpointing=checkpointing,
            log=log if engine.is_main_process else None,
            on_progress=on_progress if engine.is_main_process else None,
            validate=validate,
            stop=stop,
        )
        return training.run()


class _StepBatch(NamedTuple):
    """What one process computes in one step, out of a batch of `size` examples over all processes."""

    examples: Batch
    ood: Batch | None
    aux: AuxBatch | None
    weight: float
    size: int


@dataclass
class _Training:
    """The arguments of `fit` and the state of the training."""

    engine: Engine
    network: nn.Module
    source: Source
    config: TrainConfig
    objective_at: Callable[[float], Objective]
    seed: int
    ood: Callable[[Tensor], Tensor] | None
    ood_source: Source | None
    aux: AuxLoss | None
    epoch_examples: int | None
    checkpointing: Checkpointing | None
    log: Log | None
    on_progress: Callable[[Progress], None] | None
    validate: Callable[[nn.Module], Mapping[str, float]] | None
    stop: StopRequest
    saved_at: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        engine, config = self.engine, self.config
        self.sampler = EpochSampler(len(self.source), config.batch_size, self.seed)
        if self.epoch_examples is not None:
            length = self.epoch_examples
            self.sampler = RepeatingSampler(length, config.batch_size, self.seed, len(self.source))
        optimizer = make_optimizer(config, self.network)
        self.wrapped, self.wrapped_optimizer = engine.setup(self.network, optimizer)
        self.average = MovingAverage(self.network, config.ema) if config.ema is not None else None
        self.state = TrainingState(self.network, optimizer, self.average, engine.scaler)
        self.buffers = list(self.network.buffers())
        self.buffers_before = [buffer.clone() for buffer in self.buffers]

    def run(self) -> History:
        """Train from the last checkpoint, if there is one, to the end; close the log in any case."""
        self._restore()
        try:
            if self.log is not None:
                self.log.begin(self.state.history)
            self._run_epochs()
        finally:
            if self.log is not None:
                self.log.close()
        self._finish()
        return self.state.history

    def _run_epochs(self) -> None:
        state = self.state
        while state.epoch < self.config.epochs:
            self.wrapped.train()
            started, cpu_started = time.perf_counter(), time.process_time()
            with closing(self._batches()) as batches:
                for batch in batches:
                    interrupted, save_is_due = self._step(batch)
                    state.sums.seen += batch.size
                    state.sums.seconds += time.perf_counter() - started
                    state.sums.cpu_seconds += time.process_time() - cpu_started
                    if self.on_progress is not None:
                        self.on_progress(self._progress())
                    if interrupted or save_is_due:
                        self._save()
                    if interrupted:
                        raise self._interrupted()
                    started, cpu_started = time.perf_counter(), time.process_time()
            self._end_epoch()

    def _finish(self) -> None:
        """Apply the averaged weights, write the final checkpoint, and leave the network in eval mode."""
        state = self.state
        if not state.finished:
            self.engine.broadcast_buffers(self.network)
            if self.average is not None:
                self.average.apply()
            state.finished = True
            self._save()
        state.optimizer.zero_grad(set_to_none=True)
        self.network.eval()

    def _step(self, batch: _StepBatch) -> tuple[bool, bool]:
        """Take a step if it is finite in all processes; whether to stop, and whether to save."""
        state, engine, world_size = self.state, self.engine, self.engine.world_size
        epochs_done = state.epoch + state.batch / self.sampler.n_batches
        progress = epochs_done / self.config.epochs
        _seed_dropout(engine.device, derive_seed(self.seed, _DROPOUT, state.epoch, state.batch, engine.rank))
        for group in state.optimizer.param_groups:
            group["lr"] = self.config.rate(epochs_done)
        state.optimizer.zero_grad(set_to_none=True)
        foreach_copy(self.buffers_before, self.buffers)

        loss, aux = self._losses(batch, progress)
        engine.fabric.backward(loss)
        if engine.scaler is not None:
            engine.scaler.unscale_(state.optimizer)
        gradient_norm = clip_gradients(self.config, self.network)

        tensors = [gradient_norm, loss] if aux is None else [gradient_norm, loss, aux]
        numbers = torch.stack([each.detach().to(gradient_norm) for each in tensors])
        norm, own_loss, *own_aux = numbers.tolist()  # the only wait for the device
        not_finite = not (math.isfinite(own_loss) and math.isfinite(norm))
        means = [own_loss / world_size, sum(own_aux) / world_size]
        mean_loss, mean_aux, not_finite, interrupted, save_is_due = engine.sum_over_processes(
            [*means, not_finite, self.stop.received, self._save_is_due()]
        )
        if not_finite:
            self._skip_step(mean_loss, norm)
        else:
            self.wrapped_optimizer.step()
            if self.average is not None:
                self.average.update(state.step)
            state.skipped_in_a_row = 0
            state.sums.add(mean_loss, norm, batch.size, mean_aux if own_aux else None)
        state.batch, state.step = state.batch + 1, state.step + 1
        return bool(interrupted), bool(save_is_due)

    def _losses(self, batch: _StepBatch, progress: float) -> tuple[Tensor, Tensor | None]:
        """The loss to minimise, and the unweighted auxiliary loss in it, if any; float32 or wider.

        Training and OOD examples share a forward pass, so that batch normalisation treats them alike.
        """
        inputs, targets = batch.examples
        logits = self.wrapped(inputs if batch.ood is None else torch.cat([inputs, batch.ood.inputs]))
        logits = _at_least_float32(logits)
        loss = self.objective_at(progress)(logits[: len(targets)], targets)
        if self.ood is not None:
            loss = loss + self.ood(logits[len(targets) :])
        loss = batch.weight * loss
        aux_weight = self.aux.weight(progress) if self.aux is not None else 0.0
        if self.aux is None or batch.aux is None or not aux_weight:
            return loss, None
        # The auxiliary loss may run the network several times, so it gets the network without its wrapper:
        # each pass through DistributedDataParallel would overwrite the buffers, which earlier passes still
        # need. Gradients are averaged over processes all the same, when they are accumulated.
        with self.engine.autocast():
            aux = _at_least_float32(self.aux.loss(self.network, batch.aux.views, batch.aux.seed))
        aux = batch.aux.weight * aux
        return loss + aux_weight * aux, aux

    def _skip_step(self, loss: float, gradient_norm: float) -> None:
        """Undo what the forward pass changed; FloatingPointError after too many skipped steps in a row."""
        state, scaler = self.state, self.engine.scaler
        foreach_copy(self.buffers, self.buffers_before)
        if scaler is not None:
            can_scale_down = scaler.get_scale() > 1
            scaler.update()
            if can_scale_down:
                return  # float16 overflows until its loss scale is small enough; that is no failure
        state.sums.skipped += 1
        state.skipped_in_a_row += 1
        if state.skipped_in_a_row >= _MAX_SKIPPED_IN_A_ROW:
            raise FloatingPointError(
                f"{state.skipped_in_a_row} steps in a row were not finite (the last: loss {loss:.4g}, "
                f"gradient norm {gradient_norm:.4g}). {NOT_FINITE_ADVICE}"
            )

    def _end_epoch(self) -> None:
        """Validate, add the epoch to the history and the log, and write a checkpoint if one is due."""
        state, n_batches = self.state, self.sampler.n_batches
        if state.sums.skipped > n_batches / 2:
            skipped = f"{state.sums.skipped} of the {n_batches} steps of epoch {state.epoch + 1}"
            raise FloatingPointError(f"{skipped} were not finite. {NOT_FINITE_ADVICE}")
        epoch = state.sums.epoch(
            state.epoch,
            rate=self.config.rate(state.epoch + (n_batches - 1) / n_batches),
            validation=self._validation(),
            aux_name=None if self.aux is None else self.aux.name,
        )
        state.history.epochs.append(epoch)
        if self.log is not None:
            self.log.add(epoch)
        state.epoch, state.batch, state.sums = state.epoch + 1, 0, EpochSums()
        every = self.checkpointing.every_epochs if self.checkpointing else None
        if every and state.epoch % every == 0:
            self._save()

    def _validation(self) -> Mapping[str, float | None]:
        """Validation numbers of the averaged weights; None for each where this epoch is not validated."""
        if self.validate is None:
            return {}
        if not self.config.validates(self.state.epoch):
            return dict.fromkeys(self.state.history.epochs[0].validation)
        self.network.eval()
        self.engine.broadcast_buffers(self.network)
        with self.average.applied() if self.average is not None else nullcontext(), torch.no_grad():
            numbers = self.validate(self.network)
        return {name: float(value) if math.isfinite(value) else None for name, value in numbers.items()}

    def _batches(self) -> Generator[_StepBatch]:
        """This process's shards of the remaining batches of the epoch, augmented."""
        state, engine = self.state, self.engine
        batches = self.sampler.batches(state.epoch)[state.batch :]
        sizes = [len(batch) for batch in batches]
        shards = [shard(batch, engine.rank, engine.world_size) for batch in batches]
        seeds = [
            derive_seed(self.seed, _AUGMENT, state.epoch, number, engine.rank)
            for number in range(state.batch, state.batch + len(batches))
        ]
        indices = [own.indices for own in shards]
        examples = self.source.batches(indices, seeds=seeds, device=engine.device)
        ood, aux = self._ood_batches(sizes), self._aux_batches(len(sizes))
        for own, size in zip(shards, sizes, strict=True):
            yield _StepBatch(next(examples), next(ood, None), next(aux, None), own.weight, size)

    def _ood_batches(self, sizes: list[int]) -> Iterator[Batch]:
        """As many OOD examples for each batch as it has training examples."""
        if self.ood_source is None:
            return iter(())
        state, engine, sampler = self.state, self.engine, self.sampler
        cycle = CyclicSampler(len(self.ood_source), derive_seed(self.seed, _OOD))
        first = state.epoch * sampler.n_examples + state.batch * sampler.batch_size
        batches = cycle.batches(sizes, first)
        indices = [shard(batch, engine.rank, engine.world_size).indices for batch in batches]
        steps = range(state.step, state.step + len(sizes))
        seeds = [derive_seed(self.seed, _OOD_AUGMENT, step, engine.rank) for step in steps]
        return self.ood_source.batches(indices, seeds=seeds, device=engine.device)

    def _aux_batches(self, n_steps: int) -> Iterator[AuxBatch]:
        if self.aux is None:
            return iter(())
        return self.aux.batches(
            self.engine,
            first_step=self.state.step,
            n_steps=n_steps,
            batch_size=self.config.batch_size,
            seed=self.seed,
        )

    def _progress(self) -> Progress:
        state, sums = self.state, self.state.sums
        speed = sums.seen / sums.seconds
        left = (self.config.epochs - state.epoch) * self.sampler.n_examples - sums.seen
        return Progress(
            epoch=state.epoch,
            epochs=self.config.epochs,
            step=state.step,
            steps=self.config.epochs * self.sampler.n_batches,
            images_per_second=speed,
            seconds_left=left / speed,
            loss=sums.mean_loss if sums.mean_loss is not None else float("nan"),
        )

    def _configuration(self) -> dict[str, Any]:
        """What a checkpoint must agree with to be one of this training."""
        shapes = [(name, *value.shape) for name, value in self.network.state_dict().items()]
        return plain(
            {
                "config": self.config,
                "seed": self.seed,
                "examples": len(self.source),
                "ood_examples": len(self.ood_source) if self.ood_source is not None else None,
                "aux_examples": len(self.aux.source) if self.aux is not None else None,
                "epoch_examples": self.epoch_examples if self.epoch_examples != len(self.source) else None,
                "network": hashlib.sha256(repr(shapes).encode()).hexdigest()[:16],
                **(self.checkpointing.configuration if self.checkpointing else {}),
            }
        )

    def _restore(self) -> None:
        if self.checkpointing is None:
            return
        directory, configuration = self.checkpointing.directory, self._configuration()
        checkpoint = self.engine.on_main_process(
            lambda: read_checkpoint(directory, configuration, self.engine.describe(self.network))
        )
        if checkpoint is not None:
            self.state.restore(checkpoint)

    def _save(self) -> None:
        if self.checkpointing is None:
            return
        directory, configuration = self.checkpointing.directory, self._configuration()
        self.engine.on_main_process(
            lambda: write_checkpoint(directory, self.state, configuration, self.engine.describe(self.network))
        )
        self.saved_at = time.monotonic()

    def _save_is_due(self) -> bool:
        """By the clock of the main process, which decides for all."""
        every = self.checkpointing.every_seconds if self.checkpointing else None
        if every is None or not self.engine.is_main_process:
            return False
        return time.monotonic() - self.saved_at >= every

    def _interrupted(self) -> Interrupted:
        directory = self.checkpointing.directory if self.checkpointing else None
        return Interrupted(
            f"interrupted after step {self.state.step} of {self.config.epochs * self.sampler.n_batches}, "
            f"saved in {directory}; the same call resumes there."
        )


def make_optimizer(config: TrainConfig, network: nn.Module) -> torch.optim.Optimizer:
    """The optimiser of a network's parameters; the loop sets its learning rate before each step."""
    options: dict[str, Any] = {"lr": config.learning_rate, "weight_decay": config.weight_decay}
    if config.optimizer == "adam":
        return torch.optim.Adam(network.parameters(), **options)
    return torch.optim.SGD(network.parameters(), momentum=config.momentum, **options)


@torch.no_grad()
def clip_gradients(config: TrainConfig, network: nn.Module) -> Tensor:
    """Clip the gradients in place; the norm of the whole gradient before, not finite if an entry is not."""
    gradients = [p.grad for p in network.parameters() if p.grad is not None]
    if not gradients:
        return torch.zeros(())
    norms = torch.stack(torch.ops.aten._foreach_norm.Scalar(gradients))
    total = norms.norm()
    if config.clip_norm is not None:
        largest = norms if config.clip_each else total.expand_as(norms)
        factors = (config.clip_norm / (largest + 1e-6)).clamp(max=1.0)
        torch.ops.aten._foreach_mul_.List(gradients, list(factors.unbind()))
    return total


def _seed_dropout(device: torch.device, seed: int) -> None:
    """Seed only the generators that dropout draws from on this device."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)


def _at_least_float32(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()
