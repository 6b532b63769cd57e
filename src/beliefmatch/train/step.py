"""Steps whose loss or gradient is not finite: skipped, counted, and no longer borne when they persist."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from beliefmatch.data.source import Batch
from beliefmatch.train.config import TrainConfig
from beliefmatch.train.ema import copy_all, norms, scale_all
from beliefmatch.train.engine import Engine

__all__ = [
    "Beside",
    "Guard",
    "Objective",
    "Stepper",
    "TrainConfig",
    "Tried",
    "clip",
    "joined",
    "optimizer",
    "seeded",
]

ADVICE = (
    "Try a lower `learning_rate`, a longer `warmup`, a smaller `clip_norm`, `precision` 32, "
    "or for belief matching a larger `kl_weight`."
)


@dataclass
class Guard:
    """Count of the steps that had to be skipped.

    Args:
        limit: of steps skipped in a row; the next ends the training.
        in_a_row: how many they were up to now.
    """

    limit: int = 20
    in_a_row: int = 0

    def passed(self) -> None:
        """A step was taken."""
        self.in_a_row = 0

    def skipped(self, loss: float, gradient_norm: float) -> None:
        """A step was not taken. FloatingPointError if it was one too many."""
        self.in_a_row += 1
        if self.in_a_row >= self.limit:
            what = f"loss {loss:.4g}, gradient norm {gradient_norm:.4g}"
            raise FloatingPointError(
                f"fit: {self.in_a_row} steps in a row were not finite (the last: {what}). {ADVICE}"
            )

    @staticmethod
    def epoch_ended(epoch: int, steps: int, skipped: int) -> None:
        """FloatingPointError if more than half of an epoch was skipped."""
        if skipped > steps / 2:
            raise FloatingPointError(
                f"fit: {skipped} of the {steps} steps of epoch {epoch + 1} were not finite. {ADVICE}"
            )

    @staticmethod
    def is_finite(loss: float, gradient_norm: float) -> bool:
        """Whether a step may be taken."""
        return math.isfinite(loss) and math.isfinite(gradient_norm)


def optimizer(recipe: TrainConfig, network: nn.Module) -> torch.optim.Optimizer:
    """The optimiser of a network's parameters; its rate is set before each step."""
    options: dict[str, Any] = {"lr": recipe.learning_rate, "weight_decay": recipe.weight_decay}
    if recipe.optimizer == "adam":
        return torch.optim.Adam(network.parameters(), **options)
    return torch.optim.SGD(network.parameters(), momentum=recipe.momentum, **options)


def clip(recipe: TrainConfig, network: nn.Module) -> torch.Tensor:
    """Clip the gradient by the recipe; the norm it had, infinite or NaN where one of its numbers is."""
    gradients = [p.grad for p in network.parameters() if p.grad is not None]
    each = norms(gradients) if gradients else torch.zeros(1)
    total = each.norm()
    if recipe.clip_norm is None:
        return total
    largest = each if recipe.clip_each else total.expand_as(each)
    factors = (recipe.clip_norm / (largest + 1e-6)).clamp(max=1.0)
    scale_all(gradients, factors)
    return total


Objective = Callable[[Tensor, Tensor], Tensor]
"""``loss(logits, targets)``, a mean over the batch."""


class Beside(NamedTuple):
    """A further loss of a step, of the network itself."""

    loss: Callable[[nn.Module], Tensor]
    weight: float
    """Of the loss beside the objective."""
    share: float
    """Weight of this process's examples."""


class Tried(NamedTuple):
    """The loss of a step, the gradient's norm before clipping, and the further loss, if there is one.

    Both losses are multiplied by the weight of this process's share, the further one by no other.
    """

    loss: float
    norm: float
    beside: float | None


class Stepper:
    """A network and its optimiser, a step at a time.

    Args:
        engine: where it runs.
        network: trained in place.
        recipe: of the optimiser and clipping.
    """

    def __init__(self, engine: Engine, network: nn.Module, recipe: TrainConfig) -> None:
        self.engine, self.recipe = engine, recipe
        self.network = engine.prepared(network)
        self.plain = optimizer(recipe, self.network)
        self.wrapped, self.optimizer = engine.setup(self.network, self.plain)
        self._buffers = list(self.network.buffers())
        self._before = [buffer.clone() for buffer in self._buffers]

    def try_out(
        self,
        inputs: Tensor,
        loss_of: Callable[[Tensor], Tensor],
        *,
        weight: float,
        rate: float,
        beside: Beside | None = None,
    ) -> Tried:
        """Compute the clipped gradient of the loss, times `weight`, and of what is beside it.

        The loss is computed in float32 at least, whatever the network computes in.
        """
        for group in self.plain.param_groups:
            group["lr"] = rate
        self.plain.zero_grad(set_to_none=True)
        copy_all(self._before, self._buffers)
        loss = loss_of(_at_least_float32(self.wrapped(inputs)))
        loss = loss if weight == 1 else weight * loss
        told = [loss]
        if beside is not None:
            further = beside.share * self._of_network(beside.loss)
            told = [loss + beside.weight * further, further]
        self.engine.fabric.backward(told[0])
        if self.engine.scaler is not None:
            self.engine.scaler.unscale_(self.plain)
        norm = clip(self.recipe, self.network)
        numbers = torch.stack([norm, *(one.detach().to(norm) for one in told)])
        norm_now, loss_now, *beside_now = numbers.tolist()  # one wait for the device
        return Tried(loss_now, norm_now, beside_now[0] if beside_now else None)

    def _of_network(self, loss: Callable[[nn.Module], Tensor]) -> Tensor:
        """A loss that may run the network as often as it likes, in its precision.

        It is given the network itself: behind `DistributedDataParallel` each run would give all processes the
        first one's buffers, which those of the runs before still need. Gradients are gathered all the same,
        when they are accumulated.
        """
        with self.engine.autocast():
            return loss(self.network)

    def take(self) -> None:
        """Step along the gradient."""
        self.optimizer.step()

    def leave(self) -> bool:
        """Stay, as if the batch had not been; whether the scale of the loss can be the only reason."""
        copy_all(self._buffers, self._before)
        scaler = self.engine.scaler
        if scaler is None:
            return False
        searching = scaler.get_scale() > 1
        scaler.update()
        return searching


def seeded(device: torch.device, seed: int) -> None:
    """Seed the generator that dropout on a device draws from, and no other."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)


def joined(batch: Batch, ood: Batch | None) -> Tensor:
    """The inputs of both in one pass: normalised together, as they will be by the network's own averages."""
    return batch.inputs if ood is None else torch.cat([batch.inputs, ood.inputs])


def _at_least_float32(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()
