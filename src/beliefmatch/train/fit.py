"""The training loop: blind to methods, exact when it is taken up again."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from beliefmatch.checks import fail
from beliefmatch.data.source import Source
from beliefmatch.train.ema import MovingAverage
from beliefmatch.train.engine import Engine
from beliefmatch.train.extra import Extra
from beliefmatch.train.history import History, Progress
from beliefmatch.train.interrupt import listening
from beliefmatch.train.logs import Log
from beliefmatch.train.order import Order, Repeated
from beliefmatch.train.recipe import Recipe
from beliefmatch.train.state import Saving, State
from beliefmatch.train.step import Objective, Stepper
from beliefmatch.train.training import Training

__all__ = ["Saving", "fit"]


def fit(
    engine: Engine,
    network: nn.Module,
    source: Source,
    recipe: Recipe,
    *,
    objective_at: Callable[[float], Objective],
    seed: int,
    foreign: Callable[[Tensor], Tensor] | None = None,
    foreign_source: Source | None = None,
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
        foreign: a loss of the logits of foreign examples, added to the objective.
        foreign_source: these examples; each step takes as many of them as of the others.
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
    if (foreign is None) != (foreign_source is None):
        raise fail("fit", "`foreign` and `foreign_source` must be given together, got one of them.")
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
            foreign=foreign,
            foreign_source=foreign_source,
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
