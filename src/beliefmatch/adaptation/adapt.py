"""Adapt a trained classifier: extract features, fit heads, choose one, put it in place.

`adapt_network` is the one pipeline. `beliefmatch.adapt` runs it on data given as Python objects
(`adapt_data`), the command on images and sentences that it has found by their names.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from beliefmatch._torch_state import fitting
from beliefmatch._utils import OnProgress, reason_of
from beliefmatch._validate import describe, fail, naming_arguments
from beliefmatch.adaptation.adapt_config import VAL_FRACTION, AdaptConfig, require_no_background
from beliefmatch.adaptation.batchnorm import (
    SplitIndices,
    require_batchnorm,
    require_repeatable,
    with_batchnorm,
)
from beliefmatch.adaptation.cache import FeatureCache
from beliefmatch.adaptation.ensemble import EnsembleHead
from beliefmatch.adaptation.features import extract_sets
from beliefmatch.adaptation.heads import (
    Head,
    find_head,
    head_layer,
    head_weights,
    input_errors,
    running,
)
from beliefmatch.adaptation.laplace_head import require_laplace
from beliefmatch.adaptation.refit import fit_heads
from beliefmatch.adaptation.result import Adaptation, FeatureSets
from beliefmatch.adaptation.streams import given_streams, map_inputs, ood_sets
from beliefmatch.adaptation.surgery import require_ensemble, with_ensemble, with_head
from beliefmatch.adaptation.vote_scale import with_vote_scale

__all__ = ["adapt_data", "adapt_network", "usable_device"]

_FEATURES = 0.7  # share of the features in the work for the head
_HEAD = 0.3  # share of that in the whole work, where BatchNorm layers are trained too
_FEW = 8  # rows that a head is found by


def adapt_network(
    network: nn.Module,
    head: Head,
    config: AdaptConfig,
    *,
    features: Callable[[OnProgress], FeatureSets],
    train_batchnorm: Callable[[nn.Module, Adaptation, OnProgress], Adaptation],
    classes: int | None = None,
    notes: Sequence[str] = (),
    on_progress: OnProgress | None = None,
) -> tuple[nn.Module, Adaptation]:
    """A copy of a network with the delivered head, and how it was adapted.

    Args:
        network: The classifier, or an encoder without a head.
        head: Its last layer, or the place for one.
        config: What to fit and what to deliver.
        features: Computes the inputs of the head for every set.
        train_batchnorm: Trains the BatchNorm layers of the adapted network in place, if that is wanted.
        classes: K, where it is known.
        notes: What was decided about the inputs, in sentences.
        on_progress: Called with (fraction, description).
    """
    if config.laplace:
        require_laplace()
    ends = [_FEATURES, 1.0, 1.0] if not config.batchnorm else [_FEATURES * _HEAD, _HEAD, 1.0]
    began = time.perf_counter()
    sets = features(_part(on_progress, 0.0, ends[0]))
    seconds = {"features": time.perf_counter() - began}
    with fitting():
        made = fit_heads(
            sets,
            classes=classes,
            init=head_weights(network, head),
            adapt_config=config,
            on_progress=_part(on_progress, ends[0], ends[1]),
        )
    seconds, notes = {**seconds, **made.seconds}, (*notes, *made.notes)
    made = replace(made, head=head, seconds=seconds, notes=notes)
    if not config.batchnorm:
        with fitting():
            made = with_vote_scale(made)
    chosen = made.chosen
    if isinstance(chosen, EnsembleHead):
        adapted = with_ensemble(network, head, chosen.weights, chosen.biases)
    else:
        adapted = with_head(network, head, chosen.weight, chosen.bias)
    if config.batchnorm:  # which trains the head as its loss has it
        made = with_vote_scale(train_batchnorm(adapted, made, _part(on_progress, ends[1], ends[2])))
        if made.vote_scale is not None and made.vote_scale.scale is not None:
            layer = head_layer(adapted, head, caller="adapt")
            assert layer.bias is not None
            layer.bias.data += math.log(made.vote_scale.scale)
    return adapted, made


def _part(on_progress: OnProgress | None, start: float, end: float) -> OnProgress:
    """Report the progress of a part of the work as that of the whole."""

    def report(fraction: float, description: str) -> None:
        if on_progress is not None:
            on_progress(start + (end - start) * fraction, description)

    return report


def adapt_data(
    model: nn.Module,
    train: Any,
    *,
    validation: Any,
    test: Any,
    ood: Any,
    background: Any,
    classes: int | None,
    head: str | None,
    config: AdaptConfig,
    cache: FeatureCache | None,
    device: torch.device | str,
    precision: str,
    compile: bool,
    on_progress: OnProgress | None,
) -> tuple[nn.Module, Adaptation]:
    """`adapt_network` with data as Python objects; the arguments are those of `beliefmatch.adapt`."""
    if not isinstance(model, nn.Module):
        raise fail("adapt", f"`model` must be a torch.nn.Module, got {describe(model)}.", TypeError)
    if head is not None and not isinstance(head, str):
        raise fail("adapt", f"`head` must be the name of a layer, got {describe(head)}.", TypeError)
    require_no_background(config, background)
    home = usable_device(device)
    with running(model, home) as device:
        given = {"train": train, "validation": validation, "test": test, "ood": ood, "background": background}
        data = given_streams(device, **given)
        if config.batchnorm:
            require_repeatable(data)
        batch = map_inputs(lambda tensor: tensor.to(device), data["train"].first().head(_FEW).inputs)
        names = {"name": "head", "batch": "train", "model": "model"}
        with naming_arguments("adapt", "model", **names), input_errors("train", batch):
            found = find_head(model, batch, name=head)
        if config.heads:
            require_ensemble(model, found, config.heads)
        if config.batchnorm:
            require_batchnorm(model, batch)
    split: SplitIndices | None = None

    def features(on_progress: OnProgress) -> FeatureSets:
        nonlocal split
        options = {"cache": cache, "precision": precision, "compile": compile, "device": home}
        rows = extract_sets(model, found, data, **options, on_progress=on_progress)
        fraction = None if "validation" in rows else VAL_FRACTION
        if fraction is not None:
            whole = rows["train"]
            split = whole.hold_out(fraction)
            rows["train"], rows["validation"] = (whole.subset(some) for some in split)
        return FeatureSets(
            rows["train"],
            rows["validation"],
            rows.get("test"),
            ood_sets(rows),
            rows.get("background"),
            val_fraction=fraction,
        )

    def train_batchnorm(network: nn.Module, made: Adaptation, on_progress: OnProgress) -> Adaptation:
        return with_batchnorm(network, made, data, split, device=home, on_progress=on_progress)

    return adapt_network(
        model,
        found,
        config,
        features=features,
        train_batchnorm=train_batchnorm,
        classes=classes,
        on_progress=on_progress,
    )


def usable_device(device: torch.device | str) -> torch.device:
    """Require a device that torch can use here."""
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, TypeError) as error:  # torch without CUDA asserts
        fact = f"`device` must be one that torch has here, got {device!r} ({reason_of(error, limit=120)})"
        raise fail("adapt", f"{fact}.") from error
