"""A network and images in, what its last layer sees of them out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from msgspec import structs
from torch import Tensor, nn

from beliefmatch._utils import OnProgress, reason_of
from beliefmatch._validate import fail
from beliefmatch.adaptation.adapt_config import Labels
from beliefmatch.adaptation.batchnorm import require_batchnorm, with_batchnorm
from beliefmatch.adaptation.features import ExtractProgress, extract
from beliefmatch.adaptation.heads import Head, find_head, head_weights
from beliefmatch.adaptation.result import Adaptation
from beliefmatch.adaptation.streams import OOD
from beliefmatch.adaptation.types import Features
from beliefmatch.data import load, load_ood
from beliefmatch.data.config import DataConfig
from beliefmatch.data.datasets import DATASETS
from beliefmatch.data.loading import channel_moments
from beliefmatch.data.preprocessing import Preprocessing
from beliefmatch.data.sources import Dataset, MemorySource, Source
from beliefmatch.data.splits import ROLES, content_digest
from beliefmatch.experiments.adapt_inputs import NetworkInputs, named_sets, require_device
from beliefmatch.experiments.adapt_networks import PreprocessingOrigin, network_and_settings
from beliefmatch.experiments.adapt_preprocessing import (
    TIE_IMAGES,
    TRIAL_IMAGES,
    PreprocessingTrial,
    choose_preprocessing,
    try_preprocessing,
    usual_preprocessings,
)
from beliefmatch.experiments.adapt_run_config import ImageAdaptConfig

__all__ = ["AdaptImages", "Wanted"]


class Wanted(NamedTuple):
    """A set whose features are wanted, in one pass over its images."""

    name: str
    source: Source
    digest: str


@dataclass(frozen=True, eq=False)
class AdaptImages(NetworkInputs):
    """A network, images, and where it looks at them from.

    Args:
        config: The request.
        network: with the weights that it was trained to.
        parts: the images of its classes.
        ood: the images of none, by the name of their set.
        origin: where the preprocessing is from.
        trials: of preprocessings that were tried, from the best to the worst.
    """

    config: ImageAdaptConfig
    network: nn.Module
    parts: Dataset
    ood: Mapping[str, Source]
    origin: PreprocessingOrigin = "options"
    trials: tuple[PreprocessingTrial, ...] = ()
    examples = "images"

    @classmethod
    def of(
        cls,
        config: ImageAdaptConfig,
        ood: tuple[str, ...],
        *,
        background: str | None = None,
        batchnorm: bool = False,
        labels: Labels = "auto",
    ) -> AdaptImages:
        """Build the network and find the images; what a user can get wrong is refused here."""
        require_device(config.device)
        network, settings, origin = network_and_settings(config)
        parts = load(settings, validation_from=config.validation_from)
        made = cls(config, network, parts, {}, origin)
        _ = made.head, made.cache  # raise their errors now
        if origin == "search":
            made = made._with_found_preprocessing(settings, labels)
        if batchnorm:
            require_batchnorm(network, made._some)
        return replace(made, ood=_ood(named_sets(ood, background), made.parts, settings))

    def _with_found_preprocessing(self, settings: DataConfig, labels: Labels) -> AdaptImages:
        """Take the preprocessing under which the existing head is right, or else the published one.

        Raises:
            ValueError: the head does not know the classes, and no preprocessing was published.
        """
        is_published = settings.mean is not None
        trials = self._tried(settings, is_published) if labels != "new" else []
        if trials:
            parts = self.parts.with_preprocessing(trials[0].preprocessing)
            return replace(self, parts=parts, trials=tuple(trials))
        if is_published:
            return replace(self, origin="network")
        name = self.config.model
        why = "its head does not know these classes" if labels != "new" else "the classes are new to its head"
        fact = f"`mean` must be given, and `std`: {name} declares no preprocessing, and {why}"
        remedy = "give those of its training, such as 0 and 1 for pixels in [0, 1]"
        raise fail("adapt", f"{fact}, so that none can be found; {remedy}.")

    def _tried(self, settings: DataConfig, is_published: bool) -> list[PreprocessingTrial]:
        """Trials from the best to the worst; none where the existing head does not know the classes."""
        head = head_weights(self.network, self.head)
        if head is None or len(head[0]) != len(self.parts.class_names):
            return []
        like = Preprocessing.from_json(self.parts.facts["preprocessing"])
        part, rows = self.parts.role_rows["train"]
        source, own = self.parts.sources[part], dict[str, Preprocessing]()
        if is_published:
            own["preprocessing of the published weights"] = like
        elif settings.name in DATASETS:
            own[f"mean/std of {settings.name}"] = like
        if isinstance(source, MemorySource):
            mean, std = channel_moments(source, rows)
            own["mean/std of the training images"] = structs.replace(like, mean=mean, std=std)
        order = np.random.default_rng(0).permutation(rows)

        def ranked(candidates: Mapping[str, Preprocessing], count: int) -> list[PreprocessingTrial]:
            some, trials = np.sort(order[:count]), []
            for name, preprocessing in candidates.items():
                fed = replace(self, parts=self.parts.with_preprocessing(preprocessing))
                images = fed.parts.sources[part].subset(some)
                features = fed.compute(Wanted(name, images, images.digest()), lambda _: None)
                trials.append(try_preprocessing(name, preprocessing, features, head))
            return choose_preprocessing(trials, source.targets[some])

        trials = ranked(usual_preprocessings(like, own), TRIAL_IMAGES)
        tied = {one.name: one.preprocessing for one in trials if one.is_tied}
        if len(tied) > 1 and isinstance(source, MemorySource):  # larger images take too long
            return [*ranked(tied, TIE_IMAGES), *trials[len(tied) :]]
        return trials

    def find_head(self) -> Head:
        """Its last layer."""
        try:
            return find_head(self.network, self._some, name=self.config.head)
        except (RuntimeError, AssertionError, IndexError) as error:  # of other people's code
            reason = reason_of(error, typed=True, limit=200)
            shape = tuple(self._some.shape[1:])
            fact = f"`model` must take images of shape {shape}, but it failed ({reason})"
            remedy = "see `--size`, `--mean` and `--std`"
            raise fail("adapt", f"{fact}; {remedy}.") from error

    def find_wanted(self) -> list[Wanted]:
        """Every part once, and the OOD sets; of limited training images no more than are needed."""
        found = [self._wanted(part) for part in self.needed_parts]
        return [*found, *(Wanted(name, source, _digest(source)) for name, source in self.ood.items())]

    def train_batchnorm(self, network: nn.Module, made: Adaptation, on_progress: OnProgress) -> Adaptation:
        """Train the BatchNorm layers of the adapted network in place."""
        sets: dict[str, Any] = {role: getattr(self.parts, role) for role in ROLES}
        sets |= {OOD + name: source for name, source in self.ood.items()}
        place = self.config.device
        return with_batchnorm(network, made, sets, None, device=place, on_progress=on_progress)

    @property
    def _some(self) -> Tensor:
        """A few inputs."""
        source = self.parts.sources[self.parts.role_rows["train"].part]
        (batch,) = source.batches([torch.arange(min(4, len(source)))], device="cpu")
        return batch.inputs

    def compute(self, one: Wanted, tell: Callable[[ExtractProgress], None]) -> Features:
        """The features of one set."""
        how = self.parts.facts["preprocessing"]
        shape = list(one.source.shape)
        return extract(
            self.network,
            self.backbone,
            one.source,
            key_parts={"head": self.head.name, "preprocessing": how, "shape": shape, "data": one.digest},
            cache=self.cache,
            device=self.config.device,
            batch_size=self.config.batch_size,
            precision=self.config.precision,
            compile=self.config.compile,
            on_progress=tell,
            argument="ood" if one.name in self.ood else "data",
        )

    def _wanted(self, part: str) -> Wanted:
        source, needed = self.parts.sources[part], self.needed(part)
        digest = self.parts.digests[part]
        if len(needed) == len(source):
            return Wanted(part, source, digest)
        return Wanted(part, source.subset(needed), content_digest([digest, needed]))

    def inputs(self) -> str:
        """How images become inputs, in words."""
        how = Preprocessing.from_json(self.parts.facts["preprocessing"])
        channels, height, width = self.parts.sources[self.parts.role_rows["train"].part].shape
        mean, std = (",".join(f"{one:.6g}" for one in values) for values in (how.mean, how.std))
        margin = f", margin {how.margin:.4g}" if how.margin != 1 else ""
        return f"{channels} x {height} x {width}{margin}, mean {mean}, std {std}"

    def preprocessing(self) -> str | None:
        """Which preprocessing was found and how well the existing head does with it; None if it was known."""
        if not self.trials:
            return None
        best, *others = (f"{100 * one.accuracy:.1f} %" for one in self.trials)
        runners_up = [f"{one.name} {right}" for one, right in zip(self.trials[1:], others, strict=True)]
        images = f"{len(self.trials[0].correct)} training images"
        lowest = " with the lowest NLL" if self.trials[1].is_tied else ""
        shown = f"existing head right on {best} of {images}{lowest}; next: {', '.join(runners_up[:2])}"
        is_alike = self.trials[1].is_tied and not self.trials[0].is_clearly_better(self.trials[1])
        unsure = "; these are alike, so give --mean and --std if you know them" if is_alike else ""
        return f"preprocessing: {self.trials[0].name} ({shown}{unsure})"

    def facts(self) -> dict[str, Any]:
        """Of data and features, for the record."""
        facts = {**self.parts.facts, "validation_from": self.config.validation_from}
        facts["preprocessing_from"] = self.origin
        return facts | ({"preprocessing_tried": [one.facts() for one in self.trials]} if self.trials else {})


def _ood(texts: Sequence[tuple[str | None, str]], parts: Dataset, settings: DataConfig) -> dict[str, Source]:
    found = dict[str, Source]()
    for given, text in texts:
        own, source = load_ood(
            text, parts, directory=settings.directory, corrupt=settings.corrupt, workers=settings.workers
        )
        name = given or own
        if name in found or name in parts.sources:
            raise fail("adapt", f"`ood` must name each set once and none {name!r}, got {text!r}.")
        found[name] = source
    return found


def _digest(source: Any) -> str:
    return source.digest()
