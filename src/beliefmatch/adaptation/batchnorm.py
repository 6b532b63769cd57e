"""Head plus BatchNorm: scales, shifts and statistics of BatchNorm layers follow the new head.

So does the paper's published code, while its text speaks of the last layer alone. The loop of
`beliefmatch.train` trains whole networks: all modules in training mode, a fixed number of epochs, behind an
engine that is an extra. Here only the BatchNorm layers may be in training mode, the best epoch is kept, and
training ends when the validation images say so.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from beliefmatch._utils import OnProgress
from beliefmatch._validate import fail
from beliefmatch.adaptation.candidates import Candidate
from beliefmatch.adaptation.features import extracted, running
from beliefmatch.adaptation.fitted import HeadScores, Point
from beliefmatch.adaptation.heads import Head, call_model, evaluating, head_layer, head_weights, logits_of
from beliefmatch.adaptation.result import Adaptation, BatchNormResult, FeatureSets
from beliefmatch.adaptation.scoring import Evaluator, risk_thresholds, scored
from beliefmatch.adaptation.streams import OOD, Inputs, Piece, Stream, as_given, as_stream, map_inputs, moved
from beliefmatch.adaptation.types import Features, labelled
from beliefmatch.loss import belief_matching_loss
from beliefmatch.train.sampler import EpochSampler

__all__ = [
    "BatchNormTraining",
    "ImageRows",
    "Numbers",
    "batchnorm_layers",
    "require_batchnorm",
    "require_repeatable",
    "train_batchnorm",
    "with_batchnorm",
]

LEARNING_RATE, BATCH_SIZE = 3e-4, 64
"""The paper's."""
PATIENCE = 10
"""Epochs without a lower validation NLL after which training ends."""


class ImageRows(NamedTuple):
    """Some of the rows of a stream that can be read in any order, and their targets."""

    stream: Stream
    numbers: np.ndarray

    def pieces(self, indices: Sequence[Tensor]) -> Iterator[Piece]:
        """One piece for each tensor of places among these rows."""
        numbers = torch.from_numpy(self.numbers)
        found = self.stream.picked([numbers[chosen] for chosen in indices])
        if found is None:
            fact = (
                "`batchnorm` needs images that can be read in any order, got batches in an order of their own"
            )
            raise fail("adapt", f"{fact}; give a dataset or tensors.")
        return found


@dataclass
class BatchNormTraining:
    """How it went, and the best epoch: 0 for the network as it was."""

    layers: tuple[str, ...]
    before: HeadScores
    after: HeadScores
    epoch: int = 0
    curve: list[Point] = field(default_factory=list)


def batchnorm_layers(model: nn.Module, batch: Any = None) -> dict[str, nn.Module]:
    """The BatchNorm layers to train, by name; those that a batch runs through if one is given.

    These are all kinds that estimate statistics of a batch, also fused and synchronised ones, except those
    that have neither a scale to learn nor statistics. A batch leaves out the layers of auxiliary heads, which
    inference does not use.
    """
    layers: dict[str, nn.Module] = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) and (module.affine or module.track_running_stats)
    }
    if batch is None:
        return layers
    used: set[nn.Module] = set()

    def note(module: nn.Module, _: Any) -> None:
        used.add(module)

    hooks = [module.register_forward_pre_hook(note) for module in layers.values()]
    try:
        with evaluating(model):
            call_model(model, batch)
    finally:
        for hook in hooks:
            hook.remove()
    return {name: module for name, module in layers.items() if module in used}


def require_batchnorm(model: nn.Module, batch: Any) -> dict[str, nn.Module]:
    """The BatchNorm layers that a batch goes through, by name; there must be some, in float32."""
    layers = batchnorm_layers(model, batch)
    if not layers:
        kinds = {type(module).__name__ for module in model.modules() if "Norm" in type(module).__name__}
        there = f"only {', '.join(sorted(kinds))}" if kinds else "none"
        fact = f"`batchnorm` must be False for a model without BatchNorm layers to train, got {there}"
        raise fail("adapt", f"{fact}; the head alone can be adapted.")
    wrong = {parameter.dtype for parameter in model.parameters()} - {torch.float32}
    if wrong:
        kind = f"{wrong.pop()}".removeprefix("torch.")
        raise fail("adapt", f"`batchnorm` needs a model in float32 to train, got {kind}; use model.float().")
    return layers


def train_batchnorm(
    model: nn.Module,
    head: nn.Module,
    candidate: Candidate,
    train: ImageRows,
    validation: ImageRows,
    *,
    epochs: int,
    device: torch.device | str = "cpu",
    on_progress: OnProgress | None = None,
) -> BatchNormTraining:
    """Train BatchNorm layers and head in place by Adam; the model keeps its best epoch, or stays as it is.

    Statistics are those of batches while an epoch runs, and their moving averages on validation images. All
    other layers are as in inference: no dropout, no gradients.

    Args:
        model: with the new head in it.
        head: its last layer, a module of the model.
        candidate: the belief matching to go on with: its λ, its prior; its seed is that of the order.
        train: images to train on.
        validation: images that choose the epoch.
        epochs: at most.
        device: where the model is.
        on_progress: Called with (fraction, description).
    """
    place = torch.device(device)
    first = next(validation.pieces([torch.arange(min(2, len(validation.numbers)))]))
    layers = require_batchnorm(model, moved(first.inputs, place))
    sampler = EpochSampler(len(train.numbers), BATCH_SIZE, candidate.seed)
    if sampler.n_examples < 2:
        raise fail("adapt", "`batchnorm` needs at least two images to train on, got one.")
    with _only(model, [*layers.values()], head, place) as trained:
        optimizer = torch.optim.Adam(trained, LEARNING_RATE)
        before = _scores(model, candidate, validation, place)
        modules = [*layers.values(), head]
        result, best = BatchNormTraining(tuple(layers), before, before), _kept(modules)
        for epoch in range(1, epochs + 1):
            loss = _epoch(
                model, [*layers.values()], optimizer, candidate, train, sampler.batches(epoch - 1), place
            )
            now = _scores(model, candidate, validation, place)
            result.curve.append(Point(epoch, loss, now.nll, now.error))
            if math.isfinite(now.nll) and now.nll < result.after.nll:
                result.after, result.epoch, best = now, epoch, _kept(modules)
            if on_progress is not None:
                on_progress(epoch / epochs, f"BatchNorm layers: epoch {epoch}, validation NLL {now.nll:.4f}")
            if not math.isfinite(loss) or epoch - result.epoch >= PATIENCE:
                break
        _put_back(modules, best)
    return result


def _epoch(
    model: nn.Module,
    layers: Sequence[nn.Module],
    optimizer: torch.optim.Optimizer,
    candidate: Candidate,
    train: ImageRows,
    indices: Sequence[Tensor],
    device: torch.device,
) -> float:
    """One pass over the images; the mean loss."""
    total, beta = 0.0, candidate.prior
    prior = torch.tensor(beta, device=device) if isinstance(beta, tuple) else beta
    for layer in layers:
        layer.train()
    for piece in train.pieces(indices):
        optimizer.zero_grad(set_to_none=True)
        logits = _logits(model, piece.inputs, device)
        targets = piece.targets.to(device)
        loss = belief_matching_loss(logits, targets, kl_weight=candidate.kl_weight, prior=prior)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(targets)
    for layer in layers:
        layer.eval()
    return total / len(train.numbers)


@torch.no_grad()
def _scores(model: nn.Module, candidate: Candidate, images: ImageRows, device: torch.device) -> HeadScores:
    read = candidate.read

    def pairs() -> Iterator[Any]:
        for piece in images.pieces(torch.arange(len(images.numbers)).split(BATCH_SIZE)):
            logits = _logits(model, piece.inputs, device)
            yield read(logits.cpu()), piece.targets

    return scored(pairs())


def _logits(model: nn.Module, inputs: Inputs, device: torch.device) -> Tensor:
    """In the default layout: on a CPU, torch's backward pass of narrow convolutions fails in the other."""
    contiguous = map_inputs(torch.Tensor.contiguous, moved(inputs, device))
    return logits_of(call_model(model, contiguous), caller="adapt")


@contextmanager
def _only(
    model: nn.Module, layers: Sequence[nn.Module], head: nn.Module, device: torch.device
) -> Iterator[list[nn.Parameter]]:
    """The parameters to train, all others without gradients and all layers as in inference for the while."""
    wanted = {id(one) for module in (*layers, head) for one in module.parameters(recurse=False)}
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    modes = [(module, module.training) for module in model.modules()]
    if device.type == "cpu":
        model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    model.eval()
    for parameter, _ in flags:
        parameter.requires_grad_(id(parameter) in wanted)
    try:
        yield [parameter for parameter, _ in flags if parameter.requires_grad]
    finally:
        for parameter, flag in flags:
            parameter.requires_grad_(flag)
            parameter.grad = None
        for module, training in modes:
            module.training = training


def _kept(modules: Sequence[nn.Module]) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in _tensors(modules)]


@torch.no_grad()
def _put_back(modules: Sequence[nn.Module], kept: Sequence[Tensor]) -> None:
    for tensor, value in zip(_tensors(modules), kept, strict=True):
        tensor.copy_(value)


def _tensors(modules: Sequence[nn.Module]) -> Iterator[Tensor]:
    for module in modules:
        yield from (*module.parameters(), *module.buffers())


Numbers = tuple[np.ndarray, np.ndarray]
"""Which rows of the training data are to train on, and which to choose on."""


def require_repeatable(data: Mapping[str, Any]) -> None:
    """All data must be such as can be read more than once, and those to train on in any order."""
    for name, one in data.items():
        if isinstance(one, Iterator):
            fact = f"`batchnorm` needs data that can be read more than once, got an iterator for `{name}`"
            raise fail("adapt", f"{fact}; give a dataset or tensors.")
    for name in ("train", "validation"):
        with as_given(name):
            stream = as_stream(data[name], batch_size=1, device=torch.device("cpu")) if name in data else None
        if stream is not None and stream.rows is None:
            fact = (
                "`batchnorm` needs images that can be read in any order, got batches in an order of their own"
            )
            raise fail("adapt", f"{fact} for `{name}`; give a dataset or tensors.")


def with_batchnorm(
    model: nn.Module,
    made: Adaptation,
    data: Mapping[str, Any],
    numbers: Numbers | None,
    *,
    device: torch.device | str = "cpu",
    on_progress: OnProgress | None = None,
) -> Adaptation:
    """Train BatchNorm layers of an adapted model in place; its adaptation with what came of it.

    Args:
        model: what `with_head` made.
        made: how it was adapted.
        data: by name, as in `adapt`.
        numbers: which rows of `train` are which, where there are no validation data.
        device: where to train.
        on_progress: Called with (fraction, description).
    """
    assert made.head is not None
    began = time.perf_counter()
    with running(model, torch.device(device)) as place:
        train, validation = _images(data, numbers, made.sets, place)
        trained = train_batchnorm(
            model,
            head_layer(model, made.head, caller="adapt"),
            made.chosen.candidate,
            train,
            validation,
            epochs=made.adapt_config.epochs,
            device=place,
            on_progress=on_progress,
        )
        result = _result(model, made.head, made, trained, data, numbers, place)
    adapt_config, seconds = made.adapt_config, {**made.seconds, "batchnorm": time.perf_counter() - began}
    thresholds = made.risk_thresholds
    if result.is_taken:
        thresholds = risk_thresholds(
            result.head, result.validation, risks=adapt_config.risks, delta=adapt_config.delta
        )
    return replace(made, batchnorm=result, risk_thresholds=thresholds, seconds=seconds)


def _images(
    data: Mapping[str, Any], numbers: Numbers | None, sets: FeatureSets, device: torch.device
) -> tuple[ImageRows, ImageRows]:
    """Of the same rows as the features that the head was chosen by."""
    everything = (np.arange(len(sets.train)), np.arange(len(sets.validation)))
    to_train, to_choose = everything if numbers is None else numbers
    streams = [
        as_stream(data[name], batch_size=BATCH_SIZE, device=device)
        for name in ("train", "train" if numbers is not None else "validation")
    ]
    return (
        ImageRows(streams[0], to_train[labelled(sets.train).numpy()]),
        ImageRows(streams[1], to_choose[Evaluator(sets.validation).places.numpy()]),
    )


def _result(
    model: nn.Module,
    head: Head,
    made: Adaptation,
    trained: BatchNormTraining,
    data: Mapping[str, Any],
    numbers: Numbers | None,
    device: torch.device,
) -> BatchNormResult:
    """What came of it, with features anew where the network has changed."""
    fitted, sets, curve = made.chosen, made.sets, tuple(trained.curve)
    validation, test, ood = sets.validation, sets.test, sets.ood
    if trained.epoch:
        weights = head_weights(model, head)
        assert weights is not None
        fitted = replace(
            fitted,
            weight=weights[0],
            bias=weights[1],
            validation=trained.after,
            iterations=trained.epoch,
            curve=curve,
        )
        others = {name: one for name, one in data.items() if name != "train"}
        whole = {"validation": data["train"], **others}
        rows = extracted(model, head, whole, device=device)
        validation, test = rows["validation"], rows.get("test")
        if numbers is not None:
            validation = validation.subset(numbers[1])
        ood = _ood(rows)
    return BatchNormResult(
        layers=trained.layers,
        before=trained.before,
        after=trained.after,
        epoch=trained.epoch,
        curve=curve,
        head=fitted,
        validation=validation,
        test=test,
        ood=ood,
    )


def _ood(rows: Mapping[str, Features]) -> dict[str, Features]:
    return {name.removeprefix(OOD): one for name, one in rows.items() if name.startswith(OOD)}
