"""Adapt a trained classifier: extract features, fit heads, choose one, put it in place."""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from msgspec import structs
from torch import nn

from beliefmatch._utils import OnProgress
from beliefmatch._validate import describe, fail
from beliefmatch.adaptation.adapt_config import VAL_FRACTION, AdaptConfig
from beliefmatch.adaptation.batchnorm import require_batchnorm
from beliefmatch.adaptation.cache import as_cache
from beliefmatch.adaptation.features import extracted, running
from beliefmatch.adaptation.heads import find_head, head_weights
from beliefmatch.adaptation.laplace_head import require_laplace
from beliefmatch.adaptation.refit import refit
from beliefmatch.adaptation.result import Adaptation, FeatureSets
from beliefmatch.adaptation.streams import OOD, first_inputs, given_sets
from beliefmatch.adaptation.surgery import with_head
from beliefmatch.adaptation.types import Features, parted_numbers, subset
from beliefmatch.adaptation.with_batchnorm import Numbers, require_repeatable, with_batchnorm

__all__ = ["adapt_classifier"]


def adapt_classifier(
    model: nn.Module,
    train: Any,
    *,
    validation: Any = None,
    test: Any = None,
    ood: Any = None,
    classes: int | None = None,
    head: str | None = None,
    config: AdaptConfig,
    cache: Any = None,
    device: torch.device | str = "cpu",
    precision: str = "32",
    compile: bool = False,
    on_progress: OnProgress | None = None,
) -> tuple[nn.Module, Adaptation]:
    """A copy of the model with the new head, and how it was adapted.

    `beliefmatch.adapt` documents the arguments; `config` holds its remaining options.
    """
    if not isinstance(model, nn.Module):
        raise fail("adapt", f"`model` must be a torch.nn.Module, got {describe(model)}.", TypeError)
    if config.laplace:
        require_laplace()
    data = given_sets(train, validation, test, ood)
    options = {"cache": as_cache(cache), "precision": precision, "compile": compile}
    if config.batchnorm:
        require_repeatable(data)
    began = time.perf_counter()
    with running(model, torch.device(device)) as place:
        batch, data["train"] = first_inputs(train, place)
        found = find_head(model, batch, name=head)
        if config.batchnorm:
            require_batchnorm(model, batch)
        rows = extracted(model, found, data, device=place, on_progress=on_progress, **options)
        sets, numbers = _sets(rows)
        seconds = {"features": time.perf_counter() - began}
        made = refit(
            sets,
            classes=classes,
            init=head_weights(model, found),
            adapt_config=structs.replace(config, batchnorm=False),
            val_fraction=None if numbers is None else VAL_FRACTION,
            on_progress=on_progress,
        )
    better = with_head(model, found, made.chosen.weight, made.chosen.bias)
    made = replace(made, head=found, adapt_config=config, seconds={**seconds, **made.seconds})
    if config.batchnorm:
        made = with_batchnorm(better, made, data, numbers, device=place, on_progress=on_progress)
    return better, made


def _sets(rows: Mapping[str, Features]) -> tuple[FeatureSets, Numbers | None]:
    """The sets; and where no validation data were given, which rows of the training data are which."""
    ood = {name.removeprefix(OOD): one for name, one in rows.items() if name.startswith(OOD)}
    if "validation" in rows:
        return FeatureSets(rows["train"], rows["validation"], rows.get("test"), ood), None
    numbers = parted_numbers(rows["train"], VAL_FRACTION)
    train, validation = (subset(rows["train"], some) for some in numbers)
    return FeatureSets(train, validation, rows.get("test"), ood), numbers
