"""BatchNorm layers trained after the head was chosen, and what the head sees through them afterwards."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from beliefmatch._utils import OnProgress
from beliefmatch._validate import fail
from beliefmatch.adaptation.batchnorm import BATCH_SIZE, BatchNormTraining, ImageRows, train_batchnorm
from beliefmatch.adaptation.features import extracted, running
from beliefmatch.adaptation.heads import Head, head_layer, head_weights
from beliefmatch.adaptation.reading import labelled
from beliefmatch.adaptation.result import Adaptation, BatchNormResult, FeatureSets
from beliefmatch.adaptation.risk_thresholds import risk_thresholds
from beliefmatch.adaptation.scoring import Evaluator
from beliefmatch.adaptation.streams import OOD, as_given, as_stream
from beliefmatch.adaptation.types import Features, subset

__all__ = ["Numbers", "require_repeatable", "with_batchnorm"]

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
            validation = subset(validation, numbers[1])
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
