"""Adapt a trained classifier: extract features, fit heads, choose one, put it in place.

`adapt_network` is the one pipeline. `beliefmatch.adapt` runs it on data given as Python objects
(`GivenData`), the command on images and sentences that it has found by their names.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from msgspec import structs
from torch import nn

from beliefmatch._utils import OnProgress
from beliefmatch._validate import describe, fail
from beliefmatch.adaptation.adapt_config import VAL_FRACTION, AdaptConfig
from beliefmatch.adaptation.batchnorm import Numbers, require_batchnorm, require_repeatable, with_batchnorm
from beliefmatch.adaptation.cache import FeatureCache
from beliefmatch.adaptation.ensemble import EnsembleHead
from beliefmatch.adaptation.features import extracted
from beliefmatch.adaptation.heads import Head, find_head, head_weights, input_errors, running
from beliefmatch.adaptation.laplace_head import require_laplace
from beliefmatch.adaptation.refit import refit
from beliefmatch.adaptation.result import Adaptation, FeatureSets
from beliefmatch.adaptation.streams import Stream, given_streams, map_inputs, ood_sets
from beliefmatch.adaptation.surgery import with_ensemble, with_head

__all__ = ["AdaptSource", "GivenData", "adapt_network"]

_FEATURES = 0.7  # share of the work, where there are features to compute
_FEW = 8  # rows that a head is found by


class AdaptSource(Protocol):
    """A network and the examples that it is adapted with."""

    @property
    def network(self) -> nn.Module:
        """The classifier, or an encoder without a head."""
        ...

    @property
    def head(self) -> Head:
        """Its last layer, or the place for one."""
        ...

    @property
    def classes(self) -> int | None:
        """K, where it is known."""
        ...

    @property
    def val_fraction(self) -> float | None:
        """Share of the training examples held out because there were no others; None where there were."""
        ...

    def features(self, on_progress: OnProgress) -> FeatureSets:
        """The inputs of the head for every set."""
        ...

    def notes(self) -> Sequence[str]:
        """What was decided about the inputs, in sentences."""
        ...

    def train_batchnorm(self, network: nn.Module, made: Adaptation, on_progress: OnProgress) -> Adaptation:
        """Train the BatchNorm layers of the adapted network in place."""
        ...


def adapt_network(
    source: AdaptSource, config: AdaptConfig, on_progress: OnProgress | None = None
) -> tuple[nn.Module, Adaptation]:
    """A copy of the network with the delivered head, and how it was adapted."""
    tell: OnProgress = (lambda fraction, description: None) if on_progress is None else on_progress
    began = time.perf_counter()
    sets = source.features(lambda fraction, description: tell(_FEATURES * fraction, description))
    seconds = {"features": time.perf_counter() - began}
    made = refit(
        sets,
        classes=source.classes,
        init=head_weights(source.network, source.head),
        adapt_config=structs.replace(config, batchnorm=False),
        val_fraction=source.val_fraction,
        on_progress=lambda fraction, description: tell(_FEATURES + (1 - _FEATURES) * fraction, description),
    )
    made = replace(
        made,
        head=source.head,
        adapt_config=config,
        seconds={**seconds, **made.seconds},
        notes=(*source.notes(), *made.notes),
    )
    chosen = made.chosen
    if isinstance(chosen, EnsembleHead):
        adapted = with_ensemble(source.network, source.head, chosen.weights, chosen.biases)
    else:
        adapted = with_head(source.network, source.head, chosen.weight, chosen.bias)
    if config.batchnorm:
        made = source.train_batchnorm(adapted, made, tell)
    return adapted, made


@dataclass(eq=False)
class GivenData:
    """A network and data as Python objects, in any form that `extract` accepts.

    Args:
        network: The classifier.
        data: The sets by name, from `given_streams`.
        head: Its last layer.
        classes: K, where it is known.
        cache: Where features are kept.
        device: Device to compute on.
        precision: See `extract`.
        compile: See `extract`.
    """

    network: nn.Module
    data: Mapping[str, Stream]
    head: Head
    classes: int | None = None
    cache: FeatureCache | None = None
    device: torch.device | str = "cpu"
    precision: str = "32"
    compile: bool = False
    val_fraction: float | None = None
    _numbers: Numbers | None = field(default=None, init=False)

    @classmethod
    def of(
        cls,
        model: nn.Module,
        train: Any,
        *,
        validation: Any,
        test: Any,
        ood: Any,
        background: Any,
        head: str | None,
        config: AdaptConfig,
        device: torch.device | str,
        **options: Any,
    ) -> "GivenData":
        """Find the head; errors of the arguments are raised here."""
        if not isinstance(model, nn.Module):
            raise fail("adapt", f"`model` must be a torch.nn.Module, got {describe(model)}.", TypeError)
        if config.laplace:
            require_laplace()
        with running(model, torch.device(device)) as place:
            data = given_streams(
                place, train=train, validation=validation, test=test, ood=ood, background=background
            )
            if config.batchnorm:
                require_repeatable(data)
            batch = map_inputs(lambda tensor: tensor.to(place), data["train"].first().head(_FEW).inputs)
            with input_errors("train", batch):
                found = find_head(model, batch, name=head)
            if config.batchnorm:
                require_batchnorm(model, batch)
        fraction = VAL_FRACTION if validation is None else None
        return cls(model, data, found, device=device, val_fraction=fraction, **options)

    def features(self, on_progress: OnProgress) -> FeatureSets:
        """The inputs of the head for every set; a part of `train` is held out if there is nothing else."""
        rows = extracted(
            self.network,
            self.head,
            self.data,
            cache=self.cache,
            device=self.device,
            precision=self.precision,
            compile=self.compile,
            on_progress=on_progress,
        )
        train, validation = rows["train"], rows.get("validation")
        if validation is None:
            self._numbers = train.hold_out(VAL_FRACTION)
            train, validation = (rows["train"].subset(some) for some in self._numbers)
        return FeatureSets(train, validation, rows.get("test"), ood_sets(rows), rows.get("background"))

    def notes(self) -> Sequence[str]:
        """None: nothing is decided about data that are given."""
        return ()

    def train_batchnorm(self, network: nn.Module, made: Adaptation, on_progress: OnProgress) -> Adaptation:
        """Train the BatchNorm layers of the adapted network in place."""
        options = {"device": self.device, "on_progress": on_progress}
        return with_batchnorm(network, made, self.data, self._numbers, **options)
