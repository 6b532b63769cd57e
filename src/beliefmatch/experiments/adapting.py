"""An adaptation from the configuration to the record: from a network and images, or from features alone."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from torch import nn

from beliefmatch._config import plain
from beliefmatch._utils import OnProgress
from beliefmatch._validate import fail
from beliefmatch.adaptation.adapt import adapt_network
from beliefmatch.adaptation.cache import format_bytes
from beliefmatch.adaptation.fitted import Init
from beliefmatch.adaptation.refit import refit
from beliefmatch.adaptation.result import Adaptation, FeatureSets
from beliefmatch.adaptation.stored import feature_sets
from beliefmatch.experiments.adapt_images import AdaptImages
from beliefmatch.experiments.adapt_inputs import BACKGROUND
from beliefmatch.experiments.adapt_record import AdaptRecord
from beliefmatch.experiments.adapt_run_config import (
    AdaptRunConfig,
    FeatureAdaptConfig,
    ImageAdaptConfig,
    TextAdaptConfig,
)
from beliefmatch.experiments.adapt_text import AdaptText
from beliefmatch.experiments.adapted_evaluation import score_adaptation
from beliefmatch.experiments.evaluation_record import EvaluationRecord
from beliefmatch.models.text import TextModel

__all__ = ["AdaptResult", "Adapting"]


@dataclass(frozen=True, eq=False)
class AdaptResult:
    """What an adaptation gives."""

    adaptation: Adaptation
    record: AdaptRecord
    evaluations: Sequence[EvaluationRecord]
    network: nn.Module | None
    """With its new head; None where there were features alone."""
    text: TextModel | None = None
    """The network before the adaptation with its tokenizer, where the inputs are sentences."""


class Adapting:
    """An adaptation ready to run: what a user can get wrong is refused on construction."""

    def __init__(self, config: AdaptRunConfig) -> None:
        self.config = config
        given, fit = config.given, config.adapt_config
        ood = {"ood": config.ood, "background": config.background}
        self.images: AdaptImages | AdaptText | None = (
            AdaptImages.of(given, **ood, batchnorm=fit.batchnorm, labels=fit.labels)
            if isinstance(given, ImageAdaptConfig)
            else None
        )
        if isinstance(given, TextAdaptConfig):
            self.images = AdaptText.of(given, **ood, batchnorm=fit.batchnorm)
        self.stored = _stored(given, config) if isinstance(given, FeatureAdaptConfig) else None

    def run(self, on_progress: OnProgress) -> AdaptResult:
        """Compute features, fit, choose and score."""
        began = time.perf_counter()
        adaptation, network = self._adapted(on_progress)
        on_progress(1.0, "scoring")
        record, evaluations = score_adaptation(
            adaptation,
            model_name=self._name,
            class_names=self._class_names(adaptation),
            data_facts={} if self.images is None else self.images.facts(),
            config=plain(self.config),
            wall_seconds=time.perf_counter() - began,
        )
        text = self.images.model if isinstance(self.images, AdaptText) else None
        return AdaptResult(adaptation, record, evaluations, network, text)

    def announcement(self) -> Iterator[str]:
        """What is to be done, and what it takes on the disk."""
        if self.stored is not None:
            sets, init, _ = self.stored
            named = {"train": sets.train, "validation": sets.validation, "test": sets.test, **sets.ood}
            rows = ", ".join(f"{name} {len(one):,}" for name, one in named.items() if one is not None)
            yield f"features: {sets.train.width} a row"
            yield f"rows: {rows}"
            yield f"existing head: {'none' if init is None else f'{len(init[0])} classes'}"
        if self.images is None:
            return
        images, head = self.images, self.images.head
        yield f"{head.name}: {head.in_features} features, {head.out_features} classes in the network"
        yield f"{images.examples}: {', '.join(f'{one.name} {len(one.source):,}' for one in images.wanted)}"
        yield f"use: {', '.join(f'{many:,} to {use}' for use, many in images.uses().items())}"
        if (found := images.preprocessing()) is not None:
            yield found
        yield f"inputs: {images.inputs()}"
        yield f"features: {format_bytes(images.bytes)} in {images.cache.directory}"

    def _adapted(self, on_progress: OnProgress) -> tuple[Adaptation, nn.Module | None]:
        if self.stored is not None:
            sets, init, classes = self.stored
            return refit(
                sets,
                classes=classes,
                init=init,
                adapt_config=self.config.adapt_config,
                on_progress=on_progress,
            ), None
        assert self.images is not None
        network, adaptation = adapt_network(self.images, self.config.adapt_config, on_progress)
        return adaptation, network

    @property
    def _name(self) -> str:
        given = self.config.given
        return given.train if isinstance(given, FeatureAdaptConfig) else given.model

    def _class_names(self, adaptation: Adaptation) -> list[str]:
        if self.images is not None:
            return list(self.images.parts.class_names)
        return [f"{index}" for index in range(adaptation.classes)]


def _stored(given: FeatureAdaptConfig, config: AdaptRunConfig) -> tuple[FeatureSets, Init | None, int | None]:
    ood = _paths(config.ood)
    if config.background is not None:
        ood[BACKGROUND] = config.background
    sets, init, classes = feature_sets(
        given.train, validation=given.validation, test=given.test, ood=ood, split_seed=given.split_seed
    )
    if config.background is not None:
        named = dict(sets.ood)
        sets = replace(sets, background=named.pop(BACKGROUND), ood=named)
    return sets, init, classes


def _paths(ood: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in ood:
        name, equals, path = text.partition("=")
        if not equals or not name or not path:
            raise fail("adapt", f"`ood` must be NAME=FILE with `--features`, got {text!r}.")
        if name in found:
            raise fail("adapt", f"`ood` must name each set once, got {name!r} twice.")
        found[name] = path
    return found
