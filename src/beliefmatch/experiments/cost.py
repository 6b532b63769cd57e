"""What a run will cost in time and memory, from a few steps of it on random images."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from beliefmatch.data.sources import Batch
from beliefmatch.experiments.build import dataset, engine_for, method_of, network_of
from beliefmatch.experiments.config import RunConfig
from beliefmatch.experiments.training_inputs import aux_loss
from beliefmatch.methods.base import Method
from beliefmatch.train.engine import Engine

__all__ = ["Estimate", "estimate", "gpu_share"]

_SHARE_IMAGES = 2
_PROBE_NUMBERS = 300_000  # of the inputs: a batch of 96 small images, or of two large ones
_GPU_SHARES = ((1 << 28, 0.25), (1 << 30, 0.5))
"""Bytes of weights and activations up to which a training takes this share of a GPU."""
_STATES = {"sgd": 1, "adam": 2}  # tensors like the weights that an optimiser keeps


@dataclass(frozen=True)
class Estimate:
    """A run in numbers; times are from a short probe on this machine."""

    networks: int
    parameters: int
    steps: int
    """Steps of one network."""
    step_seconds: float
    train_seconds: float
    """Time to train all networks."""
    memory: int
    """Bytes: weights, gradients, optimiser, activations of a batch in each process."""
    data_memory: int
    """Bytes of images, if they were all held in memory as bytes."""


def estimate(config: RunConfig) -> Estimate:
    """Take three steps on random images and multiply."""
    method, data, engine = method_of(config), dataset(config.data), engine_for(config.engine)
    training, shape = config.training, data.train.shape
    numbers = torch.Size(shape).numel()
    full = min(training.batch_size, data.epoch_images)
    batch = min(full, max(2, _PROBE_NUMBERS // max(1, numbers)))
    network = engine.prepare(network_of(config, method, data))
    layout = torch.channels_last if len(shape) == 3 else torch.preserve_format
    inputs = torch.rand(batch, *shape).to(engine.device, memory_format=layout)
    targets = torch.randint(len(data.class_names), (batch,), device=engine.device)
    with engine.running():
        seconds, activations = _probe(network, _loss(config, method, inputs, targets), engine)
    steps = training.epochs * -(-training.epoch_examples(data.epoch_images) // training.batch_size)
    weights = sum(tensor.nbytes for tensor in (*network.parameters(), *network.buffers()))
    step_seconds = seconds / batch * full / engine.world_size
    return Estimate(
        networks=method.members,
        parameters=sum(parameter.numel() for parameter in network.parameters()),
        steps=steps,
        step_seconds=step_seconds,
        train_seconds=step_seconds * steps * method.members,
        memory=weights * (2 + _STATES[training.optimizer]) + activations // batch * full // engine.world_size,
        data_memory=numbers * (data.epoch_images + len(data.validation) + len(data.test)),
    )


def gpu_share(config: RunConfig) -> float:
    """The share of a GPU that a training takes, by the size of a step: a small network leaves it idle.

    A quarter up to 256 MB of weights, gradients, optimiser and activations, half up to 1 GB, else all of it;
    none where it is to run on a CPU.
    """
    if config.engine.accelerator == "cpu":
        return 0.0
    method, data, training = method_of(config), dataset(config.data), config.training
    network = network_of(config, method, data)
    with _noting_activations(network) as activations:
        network.train()(torch.zeros(_SHARE_IMAGES, *data.train.shape))
    weights = sum(parameter.nbytes for parameter in network.parameters())
    kept = activations() * training.batch_size // _SHARE_IMAGES
    needed = weights * (2 + _STATES[training.optimizer]) + kept
    return next((share for size, share in _GPU_SHARES if needed <= size), 1.0)


def _loss(
    config: RunConfig, method: Method, inputs: Tensor, targets: Tensor
) -> Callable[[nn.Module], Tensor]:
    """The loss of a step as a function of the network; unlabelled images, if any, in their proportion."""
    aux, labelled = aux_loss(config, method), config.training.batch_size
    size = labelled if config.semi is None else config.semi.batch_size or labelled
    rows = torch.arange(max(2, len(inputs) * size // labelled), device=inputs.device) % len(inputs)
    unlabelled = Batch(inputs[rows], targets[rows])

    def loss(network: nn.Module) -> Tensor:
        total = method.objective(network(inputs).float(), targets)
        if aux is not None:
            function, views = aux
            total = total + function(network, [unlabelled] * views, 0).float()
        return total

    return loss


def _probe(network: nn.Module, loss: Callable[[nn.Module], Tensor], engine: Engine) -> tuple[float, int]:
    """Seconds of the faster of two steps after one for warming up, and bytes kept for the backward pass."""
    seconds, kept = list[float](), 0
    for _ in range(3):
        start = time.perf_counter()
        with _noting_activations(network) as activations, engine.autocast():
            value = loss(network.train())
        value.backward()
        seconds.append(time.perf_counter() - start)
        network.zero_grad()
        kept = activations()
    return min(seconds[1:]), kept


@contextmanager
def _noting_activations(network: nn.Module) -> Iterator[Callable[[], int]]:
    """A function that gives the bytes kept in the block for the backward pass, without the weights."""
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()  # a storage that is kept twice counts once
        return tensor

    def total() -> int:
        own = {parameter.untyped_storage().data_ptr() for parameter in network.parameters()}
        return sum(size for pointer, size in kept.items() if pointer not in own)

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        yield total
