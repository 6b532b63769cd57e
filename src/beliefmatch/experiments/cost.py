"""What a run will cost in time and memory, from a few steps of it on made-up images."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from beliefmatch.data.sources import Batch, Dataset
from beliefmatch.experiments.config import RunConfig
from beliefmatch.experiments.training_inputs import aux_loss
from beliefmatch.methods.base import Method
from beliefmatch.train.engine import Engine

__all__ = ["Estimate", "estimate"]

_PROBE_NUMBERS = 300_000  # of the inputs: a batch of 96 small images, or of two large ones
_STATES = {"sgd": 1, "adam": 2}  # tensors like the weights that an optimiser keeps


@dataclass(frozen=True)
class Estimate:
    """A run in numbers; times are from a short probe on this machine."""

    networks: int
    parameters: int
    steps: int
    """Of one network."""
    step_seconds: float
    train_seconds: float
    """Of all networks."""
    memory: int
    """Bytes: weights, gradients, optimiser, activations of a batch in each process."""
    data_memory: int
    """Bytes of images, if they were all held in memory as bytes."""


def estimate(
    config: RunConfig, dataset: Dataset, method: Method, network: nn.Module, engine: Engine
) -> Estimate:
    """Take three steps on made-up images and multiply."""
    recipe, shape = config.training, dataset.train.shape
    full = min(recipe.batch_size, dataset.epoch_images)
    batch = min(full, max(2, _PROBE_NUMBERS // max(1, _count(shape))))
    network = engine.prepare(network)
    inputs = torch.rand(batch, *shape).to(engine.device, memory_format=torch.channels_last)
    targets = torch.randint(len(dataset.class_names), (batch,), device=engine.device)
    with engine.running():
        seconds, saved = _probe(network, _loss(config, method, inputs, targets), engine)
    steps = recipe.epochs * -(-dataset.epoch_images // recipe.batch_size)
    weights = sum(tensor.nbytes for tensor in (*network.parameters(), *network.buffers()))
    step_seconds = seconds / batch * full / engine.world_size
    return Estimate(
        networks=method.members,
        parameters=sum(parameter.numel() for parameter in network.parameters()),
        steps=steps,
        step_seconds=step_seconds,
        train_seconds=step_seconds * steps * method.members,
        memory=weights * (2 + _STATES[recipe.optimizer]) + saved // batch * full // engine.world_size,
        data_memory=_count(shape) * (dataset.epoch_images + len(dataset.validation) + len(dataset.test)),
    )


def _loss(
    config: RunConfig, method: Method, inputs: Tensor, targets: Tensor
) -> Callable[[nn.Module], Tensor]:
    """What a step minimises, of a network; unlabelled images, if with any, in their proportion."""
    aux, usual = aux_loss(config, method), config.training.batch_size
    size = usual if config.semi is None else config.semi.batch_size or usual
    rows = torch.arange(max(2, len(inputs) * size // usual), device=inputs.device) % len(inputs)
    unlabelled = Batch(inputs[rows], targets[rows])

    def loss(network: nn.Module) -> Tensor:
        total = method.objective(network(inputs).float(), targets)
        if aux is not None:
            aux_loss_function, views = aux
            total = total + aux_loss_function(network, [unlabelled] * views, 0).float()
        return total

    return loss


def _probe(network: nn.Module, loss: Callable[[nn.Module], Tensor], engine: Engine) -> tuple[float, int]:
    """Seconds of the faster of two steps after one for warming up, and bytes kept for the backward pass."""
    seconds: list[float] = []
    kept: dict[int, int] = {}
    for _ in range(3):
        kept.clear()
        start = time.perf_counter()
        noted = torch.autograd.graph.saved_tensors_hooks(partial(_note, kept), lambda tensor: tensor)
        with noted, engine.autocast():
            value = loss(network.train())
        value.backward()
        seconds.append(time.perf_counter() - start)
        network.zero_grad()
    own = {p.untyped_storage().data_ptr() for p in network.parameters()}
    return min(seconds[1:]), sum(size for place, size in kept.items() if place not in own)


def _note(kept: dict[int, int], tensor: Tensor) -> Tensor:
    storage = tensor.untyped_storage()
    kept[storage.data_ptr()] = storage.nbytes()  # one that is kept twice counts once
    return tensor


def _count(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()
