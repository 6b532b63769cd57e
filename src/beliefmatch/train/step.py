"""One step of an optimiser: forward, backward, clipped, taken or left."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from beliefmatch.data.source import Batch
from beliefmatch.train.engine import Engine
from beliefmatch.train.many import copy_all
from beliefmatch.train.recipe import Recipe, clip, optimizer

__all__ = ["Objective", "Stepper", "joined", "seeded"]

Objective = Callable[[Tensor, Tensor], Tensor]
"""``loss(logits, targets)``, a mean over the batch."""


class Stepper:
    """A network and its optimiser, a step at a time.

    Args:
        engine: where it runs.
        network: trained in place.
        recipe: of the optimiser and clipping.
    """

    def __init__(self, engine: Engine, network: nn.Module, recipe: Recipe) -> None:
        self.engine, self.recipe = engine, recipe
        self.network = engine.prepared(network)
        self.plain = optimizer(recipe, self.network)
        self.wrapped, self.optimizer = engine.setup(self.network, self.plain)
        self._buffers = list(self.network.buffers())
        self._before = [buffer.clone() for buffer in self._buffers]

    def try_out(
        self, inputs: Tensor, loss_of: Callable[[Tensor], Tensor], *, weight: float, rate: float
    ) -> tuple[float, float]:
        """Compute the clipped gradient; the loss, times `weight`, and the gradient's norm before clipping.

        The loss is computed in float32 at least, whatever the network computes in.
        """
        for group in self.plain.param_groups:
            group["lr"] = rate
        self.plain.zero_grad(set_to_none=True)
        copy_all(self._before, self._buffers)
        loss = loss_of(_at_least_float32(self.wrapped(inputs)))
        loss = loss if weight == 1 else weight * loss
        self.engine.fabric.backward(loss)
        if self.engine.scaler is not None:
            self.engine.scaler.unscale_(self.plain)
        norm = clip(self.recipe, self.network)
        loss_now, norm_now = torch.stack([loss.detach().to(norm), norm]).tolist()  # one wait for the device
        return loss_now, norm_now

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


def joined(batch: Batch, foreign: Batch | None) -> Tensor:
    """The inputs of both in one pass: normalised together, as they will be by the network's own averages."""
    return batch.inputs if foreign is None else torch.cat([batch.inputs, foreign.inputs])


def _at_least_float32(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()
