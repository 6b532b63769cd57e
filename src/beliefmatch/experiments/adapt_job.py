"""An adaptation from the configuration to the record: from a network and examples, or from features alone."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import nn

from beliefmatch._config import plain
from beliefmatch._utils import OnProgress
from beliefmatch._validate import fail, naming_arguments
from beliefmatch.adaptation.adapt import adapt_network
from beliefmatch.adaptation.fitted import Init
from beliefmatch.adaptation.laplace_head import require_laplace
from beliefmatch.adaptation.refit import refit
from beliefmatch.adaptation.result import Adaptation, FeatureSets
from beliefmatch.adaptation.stored import feature_sets
from beliefmatch.experiments.adapt_images import image_inputs
from beliefmatch.experiments.adapt_inputs import BACKGROUND, NetworkInputs, text_inputs
from beliefmatch.experiments.adapt_record import AdaptRecord
from beliefmatch.experiments.adapt_run_config import AdaptRunConfig, FeatureAdaptConfig, ImageAdaptConfig
from beliefmatch.experiments.adapted_evaluation import score_adaptation
from beliefmatch.experiments.evaluation_record import EvaluationRecord
from beliefmatch.experiments.executors import Workers
from beliefmatch.models.text import TextModel

__all__ = ["AdaptJob", "AdaptResult"]


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


class AdaptJob:
    """An adaptation ready to run: what a user can get wrong is refused on construction.

    Args:
        config: what is adapted, to what, and how.
        workers: where features are computed; in this process if not given.
    """

    def __init__(self, config: AdaptRunConfig, workers: Workers | None = None) -> None:
        self.config, given = config, config.given
        self.inputs: NetworkInputs | _StoredFeatures
        if config.adapt_config.laplace:
            require_laplace()
        if isinstance(given, FeatureAdaptConfig):
            if workers is not None and workers.is_remote:
                raise fail("adapt", "`on` must be local with `--features`: they are computed already.")
            self.inputs = _stored_features(given, config)
        elif isinstance(given, ImageAdaptConfig):
            self.inputs = image_inputs(given, config, workers)
        else:
            self.inputs = text_inputs(given, config, workers)

    @property
    def validation_part(self) -> str | None:
        """The part of the data that the validation examples are; None if they are held out of another."""
        if not isinstance(self.inputs, NetworkInputs):
            return None
        part = self.inputs.parts.role_rows["validation"].part
        return part if part == "validation" or self.inputs.facts["validation_from"] == "test" else None

    @property
    def found_preprocessing(self) -> str | None:
        """Which preprocessing was found, if it had to be."""
        return self.inputs.found_preprocessing if isinstance(self.inputs, NetworkInputs) else None

    def announcement(self) -> Iterator[str]:
        """What is to be done, and what it takes on the disk."""
        return self.inputs.announcement()

    def run(self, on_progress: OnProgress, *, command: Sequence[str] = ()) -> AdaptResult:
        """Compute features, fit, choose and score; the record tells the command."""
        began = time.perf_counter()
        inputs, given, fit = self.inputs, self.config.given, self.config.adapt_config
        if isinstance(inputs, NetworkInputs):
            with naming_arguments("adapt", train="data", test="data"):
                network, made = adapt_network(
                    inputs.network,
                    inputs.head,
                    fit,
                    features=inputs.features,
                    train_batchnorm=inputs.train_batchnorm,
                    classes=inputs.classes,
                    notes=inputs.notes(),
                    on_progress=on_progress,
                )
            class_names, facts, text = inputs.parts.class_names, inputs.facts, inputs.text
        else:
            made = refit(inputs.sets, init=inputs.init, adapt_config=fit, on_progress=on_progress)
            network = class_names = facts = text = None
        on_progress(1.0, "scoring")
        record, evaluations = score_adaptation(
            made,
            model_name=given.train if isinstance(given, FeatureAdaptConfig) else given.model,
            class_names=class_names,
            data_facts=facts,
            config=plain(self.config),
            command=command,
            wall_seconds=time.perf_counter() - began,
        )
        return AdaptResult(made, record, evaluations, network, text)


class _StoredFeatures(NamedTuple):
    """Features that were read from files, and the existing head."""

    sets: FeatureSets
    init: Init | None

    def announcement(self) -> Iterator[str]:
        sets = self.sets
        named = {"train": sets.train, "validation": sets.validation, "test": sets.test, **sets.ood}
        rows = ", ".join(f"{name} {len(one):,}" for name, one in named.items() if one is not None)
        yield f"features: {sets.train.width} a row"
        yield f"rows: {rows}"
        yield f"existing head: {'none' if self.init is None else f'{len(self.init[0])} classes'}"


def _stored_features(given: FeatureAdaptConfig, config: AdaptRunConfig) -> _StoredFeatures:
    files: dict[str, str] = {}
    for text in config.ood:
        name, _, path = text.partition("=")
        if not name or not path:
            raise fail("adapt", f"`ood` must be NAME=FILE with `--features`, got {text!r}.")
        if name in files or name == BACKGROUND:
            raise fail("adapt", f"`ood` must name each set once and none {BACKGROUND!r}, got {name!r}.")
        files[name] = path
    options = {f"ood[{name!r}]": "ood" for name in files}
    options["train"] = "features"
    options["validation"] = "features" if given.validation is None else "validation"
    options["test"] = "features" if given.test is None else "test_features"
    with naming_arguments("adapt", "features", **options):
        sets, init = feature_sets(
            given.train,
            validation=given.validation,
            test=given.test,
            ood=files,
            background=config.background,
            split_seed=given.split_seed,
        )
    return _StoredFeatures(sets, init)
