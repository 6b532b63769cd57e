"""Head plus BatchNorm: scales, shifts and statistics of BatchNorm layers follow the new head.

So does the paper's published code, while its text speaks of the last layer alone. The loop of
`beliefmatch.train` trains whole networks: all modules in training mode, a fixed number of epochs, behind an
engine that is an extra. Here only the BatchNorm layers may be in training mode, the best epoch is kept, and
training ends when the validation images say so.
"""

import copy
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from beliefmatch._utils import OnProgress
from beliefmatch._validate import fail
from beliefmatch.adaptation.feature_rows import labelled
from beliefmatch.adaptation.features import extract_sets
from beliefmatch.adaptation.fitted import Candidate, HeadScores, Point
from beliefmatch.adaptation.heads import (
    call_model,
    evaluating,
    head_layer,
    head_weights,
    logits_of,
    running,
)
from beliefmatch.adaptation.result import Adaptation, BatchNormResult, FeatureSets
from beliefmatch.adaptation.scoring import Evaluator, risk_thresholds, score_predictions
from beliefmatch.adaptation.streams import (
    BATCH_SIZE,
    IndexedStream,
    Inputs,
    Stream,
    as_stream,
    map_inputs,
    ood_sets,
)
from beliefmatch.loss import belief_matching_loss
from beliefmatch.train.sampler import EpochSampler

__all__ = [
    "SplitIndices",
    "batchnorm_layers",
    "require_batchnorm",
    "require_repeatable",
    "train_batchnorm",
    "with_batchnorm",
]

LEARNING_RATE = 3e-4
"""The paper's, as is the batch size of streams."""
PATIENCE = 10
"""Epochs without a lower validation NLL after which training ends."""
SplitIndices = tuple[np.ndarray, np.ndarray]
"""Which rows of the training data are to train on, and which to choose on."""


class BatchNormTraining(NamedTuple):
    """How it went, and the best epoch; the first fields of a `BatchNormResult`."""

    layers: tuple[str, ...]
    before: HeadScores
    after: HeadScores
    epoch: int
    curve: tuple[Point, ...]


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


def require_repeatable(data: Mapping[str, Stream]) -> None:
    """All data must be such as can be read more than once, and those to train on in any order."""
    for name, one in data.items():
        needed, got = "data that can be read more than once", "an iterator"
        if one.is_repeatable and name in ("train", "validation") and not isinstance(one, IndexedStream):
            needed, got = "images that can be read in any order", "batches in an order of their own"
        elif one.is_repeatable:
            continue
        fact = f"`batchnorm` needs {needed}, got {got} for `{one.argument}`"
        raise fail("adapt", f"{fact}; give a dataset or tensors.")


def train_batchnorm(
    model: nn.Module,
    head: nn.Module,
    candidate: Candidate,
    train: IndexedStream,
    validation: IndexedStream,
    *,
    epochs: int,
    device: torch.device | str = "cpu",
    on_progress: OnProgress | None = None,
) -> BatchNormTraining:
    """Train BatchNorm layers and head in place by Adam; the model keeps its best epoch, or stays as it is.

    Statistics are those of batches while an epoch runs, and their moving averages on validation images. All
    other layers are as in inference: no dropout, no gradients.

    Args:
        model: Classifier with the new head in it.
        head: Its last layer, a module of the model.
        candidate: Belief matching to go on with: its λ and its prior; its seed is that of the order.
        train: Images to train on.
        validation: Images that choose the epoch.
        epochs: Maximum number of epochs.
        device: Device of the model.
        on_progress: Called with (fraction, description).
    """
    device = torch.device(device)
    first = next(validation.picked([torch.arange(min(2, len(validation)))]))
    named = require_batchnorm(model, _placed(first.inputs, device))
    if len(train) < 2:
        raise fail("adapt", "`batchnorm` needs at least two images to train on, got one.")
    layers, sampler = list(named.values()), EpochSampler(len(train), BATCH_SIZE, candidate.seed)
    modules = [*layers, head]
    with _only(model, modules, device) as parameters:
        optimizer = torch.optim.Adam(parameters, LEARNING_RATE)
        before = after = _scores(model, candidate, validation, device)
        best_epoch, best, curve = 0, _states(modules), list[Point]()
        for epoch in range(1, epochs + 1):
            batches = sampler.batches(epoch - 1)
            loss = _epoch(model, layers, optimizer, candidate, train, batches, device)
            now = _scores(model, candidate, validation, device)
            curve.append(Point(epoch, loss, now.nll, now.error))
            if math.isfinite(now.nll) and now.nll < after.nll:
                after, best_epoch, best = now, epoch, _states(modules)
            if on_progress is not None:
                on_progress(epoch / epochs, f"BatchNorm layers: epoch {epoch}, validation NLL {now.nll:.4f}")
            if not math.isfinite(loss) or epoch - best_epoch >= PATIENCE:
                break
        for module, state in zip(modules, best, strict=True):
            module.load_state_dict(state)
    return BatchNormTraining(tuple(named), before, after, best_epoch, tuple(curve))


def with_batchnorm(
    model: nn.Module,
    made: Adaptation,
    data: Mapping[str, Any],
    split: SplitIndices | None,
    *,
    device: torch.device | str = "cpu",
    on_progress: OnProgress | None = None,
) -> Adaptation:
    """Train BatchNorm layers of an adapted model in place; its adaptation with what came of it.

    Args:
        model: Classifier from `with_head`.
        made: Its adaptation.
        data: Images by name, as in `adapt`.
        split: Rows of `train` to train and to choose on, where there are no validation images.
        device: Device to train on.
        on_progress: Called with (fraction, description).
    """
    assert made.head is not None
    began, config, sets, fitted = time.perf_counter(), made.adapt_config, made.sets, made.chosen
    validation, test, ood, thresholds = sets.validation, sets.test, sets.ood, made.risk_thresholds
    with running(model, torch.device(device)) as device:
        trained = train_batchnorm(
            model,
            head_layer(model, made.head, caller="adapt"),
            fitted.candidate,
            *_images(data, split, sets, device),
            epochs=config.epochs,
            device=device,
            on_progress=on_progress,
        )
        if trained.epoch:  # the network has changed, and its features with it
            weights = head_weights(model, made.head)
            assert weights is not None
            fitted = replace(
                fitted,
                weight=weights[0],
                bias=weights[1],
                validation=trained.after,
                iterations=trained.epoch,
                curve=trained.curve,
            )
            others = {name: one for name, one in data.items() if name != "train"}
            rows = extract_sets(model, made.head, {"validation": data["train"], **others}, device=device)
            validation = rows["validation"] if split is None else rows["validation"].subset(split[1])
            test, ood = rows.get("test"), ood_sets(rows)
            options = {"risks": config.risks, "delta": config.delta}
            thresholds = risk_thresholds(fitted, validation, **options)
    result = BatchNormResult(*trained, head=fitted, validation=validation, test=test, ood=ood)
    seconds = {**made.seconds, "batchnorm": time.perf_counter() - began}
    return replace(made, batchnorm=result, risk_thresholds=thresholds, seconds=seconds)


def _images(
    data: Mapping[str, Any], split: SplitIndices | None, sets: FeatureSets, device: torch.device
) -> Iterator[IndexedStream]:
    """Images to train and to choose on, of the same rows as the features that the head was chosen by."""
    indices = labelled(sets.train).numpy(), Evaluator(sets.validation).indices.numpy()
    if split is not None:
        indices = split[0][indices[0]], split[1][indices[1]]
    for name, some in zip(("train", "validation" if split is None else "train"), indices, strict=True):
        stream = as_stream(data[name], device=device, argument=name)
        assert isinstance(stream, IndexedStream)
        yield stream.subset(some)


def _epoch(
    model: nn.Module,
    layers: Sequence[nn.Module],
    optimizer: torch.optim.Optimizer,
    candidate: Candidate,
    train: IndexedStream,
    batches: Sequence[Tensor],
    device: torch.device,
) -> float:
    """One pass over the images; the mean loss."""
    total, beta = 0.0, candidate.prior
    prior = torch.tensor(beta, device=device) if isinstance(beta, tuple) else beta
    for layer in layers:
        layer.train()
    for piece in train.picked(batches):
        optimizer.zero_grad(set_to_none=True)
        logits = _logits(model, piece.inputs, device)
        targets = piece.targets.to(device)
        loss = belief_matching_loss(logits, targets, kl_weight=candidate.kl_weight, prior=prior)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(targets)
    for layer in layers:
        layer.eval()
    return total / len(train)


@torch.no_grad()
def _scores(
    model: nn.Module, candidate: Candidate, images: IndexedStream, device: torch.device
) -> HeadScores:
    return score_predictions(
        (candidate.read(_logits(model, piece.inputs, device).cpu()), piece.targets)
        for piece in images.pieces()
    )


def _logits(model: nn.Module, inputs: Inputs, device: torch.device) -> Tensor:
    return logits_of(call_model(model, _placed(inputs, device)), caller="adapt")


def _placed(inputs: Inputs, device: torch.device) -> Inputs:
    """In the default layout: on a CPU, torch's backward pass of narrow convolutions fails in the other."""
    return map_inputs(lambda tensor: tensor.to(device, non_blocking=True).contiguous(), inputs)


def _states(modules: Sequence[nn.Module]) -> list[dict[str, Any]]:
    return [copy.deepcopy(module.state_dict()) for module in modules]


@contextmanager
def _only(
    model: nn.Module, modules: Sequence[nn.Module], device: torch.device
) -> Iterator[list[nn.Parameter]]:
    """The parameters of these modules, which alone have gradients; all layers are as in inference."""
    wanted = {id(one) for module in modules for one in module.parameters(recurse=False)}
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    if device.type == "cpu":
        model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    with evaluating(model), torch.enable_grad():
        for parameter, _ in flags:
            parameter.requires_grad_(id(parameter) in wanted)
        try:
            yield [parameter for parameter, _ in flags if parameter.requires_grad]
        finally:
            for parameter, flag in flags:
                parameter.requires_grad_(flag)
                parameter.grad = None
