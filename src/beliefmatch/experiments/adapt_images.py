"""A network and images in, what its last layer sees of them out: `image_inputs`.

The preprocessing that a network was trained with is given, or declared by the network, or else found: the one
under which its existing head is right.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from msgspec import structs
from torch import Tensor, nn

from beliefmatch._environment import needs
from beliefmatch._utils import require_name
from beliefmatch._validate import fail, naming_arguments
from beliefmatch.adaptation.adapt import usable_device
from beliefmatch.adaptation.batchnorm import require_batchnorm
from beliefmatch.adaptation.heads import head_weights
from beliefmatch.adaptation.scoring import head_logits
from beliefmatch.data import load, load_ood
from beliefmatch.data.config import DataConfig
from beliefmatch.data.datasets import DATASETS, IMAGENET_MEAN, IMAGENET_STD
from beliefmatch.data.loading import channel_moments
from beliefmatch.data.preprocessing import Preprocessing
from beliefmatch.data.sources import Dataset, MemorySource, Source
from beliefmatch.data.splits import content_digest
from beliefmatch.experiments.adapt_inputs import (
    ExampleSet,
    Extractor,
    NetworkInputs,
    load_ood_sets,
    needed_rows,
)
from beliefmatch.experiments.adapt_run_config import AdaptRunConfig, ImageAdaptConfig
from beliefmatch.experiments.build import settings_for, trained_network
from beliefmatch.experiments.executors import Workers
from beliefmatch.experiments.run_dir import RunDirectory
from beliefmatch.methods.temperature import fit_temperature
from beliefmatch.models import MODELS
from beliefmatch.models.pretrained import declared_input

__all__ = [
    "PreprocessingTrial",
    "choose_preprocessing",
    "image_inputs",
    "run_of",
    "usual_preprocessings",
]

_TRIAL_IMAGES, _TIE_IMAGES = 256, 1024  # validation images of a trial, and of one of those that are tied
_MIN_ERRORS = 5  # of the existing head, so that the NLL can tell preprocessings of equal accuracy apart
_TIE = 0.05  # p-value of a paired sign test from which on two preprocessings are equally good
_CHANCE = 1e-3  # probability that a head which does not know the classes counts as one that does

_ANY_CHANNELS = {
    "pixels in [0, 1]": (0.0, 1.0),
    "pixels in [-1, 1]": (0.5, 0.5),
    "pixels in [0, 255]": (0.0, 1 / 255),
}
_COLOUR = {
    "ImageNet mean/std": (IMAGENET_MEAN, IMAGENET_STD),
    "pixels in [0, 255] minus the ImageNet mean": (IMAGENET_MEAN, (1 / 255,) * 3),
}
_COMMON_DATASETS = ("cifar10", "mnist")


def image_inputs(
    given: ImageAdaptConfig, config: AdaptRunConfig, workers: Workers | None = None
) -> NetworkInputs:
    """Build the network and find the images; what a user can get wrong is refused here."""
    usable_device(given.device)
    network, settings, origin = _network_and_settings(given)
    place = "data" if settings.directory is None else "data_dir"
    with naming_arguments("adapt", "data", name="data", images="data", path="data", directory=place):
        parts = load(settings, validation_from=given.validation_from)
    source = parts.sources[parts.role_rows["train"].part]
    (batch,) = source.batches([torch.arange(min(4, len(source)))], device="cpu")
    shape = tuple(batch.inputs.shape[1:])
    fault = (
        f"`model` must take images of shape {shape}, but it failed ({{reason}}); see `--size` and `--mean`."
    )
    if given.data is not None and given.data.size is not None:
        fault = (
            f"`size` and `mean` must fit the network, which failed for images of shape {shape} ({{reason}})."
        )
    heads = config.adapt_config.heads
    extractor = Extractor(given, network, batch.inputs, fault, heads=heads, workers=workers)
    trials = list[PreprocessingTrial]()
    if origin == "search":
        labels = config.adapt_config.labels
        is_published = settings.mean is not None
        trials = _tried(extractor, parts, settings, is_published) if labels != "new" else []
        if trials:
            _require_told_apart(given.model, trials)
            parts = parts.with_preprocessing(trials[0].preprocessing)
        elif is_published:
            origin = "network"
        else:
            raise _no_preprocessing(given.model, labels)
    if config.adapt_config.batchnorm:
        require_batchnorm(network, batch.inputs)
    form = {"directory": settings.directory, "corrupt": settings.corrupt, "workers": settings.workers}
    ood: dict[str, Source] = load_ood_sets(config, lambda text: load_ood(text, parts, **form), parts.sources)
    sets = {part: _needed_set(parts, part, rows) for part, rows in needed_rows(parts).items()}
    sets |= {name: ExampleSet(source, source.digest) for name, source in ood.items()}
    facts = {**parts.facts, "validation_from": given.validation_from, "preprocessing_from": origin}
    how = Preprocessing.from_json(parts.facts["preprocessing"])
    return NetworkInputs(
        extractor,
        parts,
        sets,
        key_parts=_key_parts(how, shape),
        facts=facts | ({"preprocessing_tried": [one.facts() for one in trials]} if trials else {}),
        description=_description(how, shape),
        found_preprocessing=_found(trials) if trials else None,
    )


def _needed_set(parts: Dataset, part: str, rows: np.ndarray) -> ExampleSet:
    """A part, or of limited training images no more than are needed."""
    source = parts.sources[part]
    if len(rows) == len(source):
        return ExampleSet(source, lambda: parts.digests[part])
    return ExampleSet(source.subset(rows), lambda: content_digest([parts.digests[part], rows]))


def _key_parts(how: Preprocessing, shape: tuple[int, ...]) -> dict[str, Any]:
    return {"preprocessing": how.to_json(), "shape": list(shape)}


def _description(how: Preprocessing, shape: tuple[int, ...]) -> str:
    mean, std = (",".join(f"{one:.6g}" for one in values) for values in (how.mean, how.std))
    margin = f", margin {how.margin:.4g}" if how.margin != 1 else ""
    order = ", BGR" if how.channel_order == "bgr" else ""
    return f"{' x '.join(map(str, shape))}{margin}, mean {mean}, std {std}{order}"


# The network, and the settings of its images.


def _network_and_settings(
    config: ImageAdaptConfig,
) -> tuple[nn.Module, DataConfig, Literal["options", "network", "run", "search"]]:
    """The network with its weights, the settings of its images, and where their mean and std are from.

    Settings that were not given are those that the network expects. With "search", mean and std are those of
    the published weights that were replaced, or they are missing. The images of a run are its own unless
    others are given, divided as they were: those that it was validated on chose nothing in its network but
    when to look at it.
    """
    run = run_of(config)
    if run is None and Path(config.model).expanduser().is_dir():
        expected = "a network's name or the directory of a finished run, which has a config.yaml"
        raise fail("adapt", f"`model` must be {expected}, got the directory {config.model}.")
    if run is None and ":" not in config.model:
        other = ", timm:NAME, torchvision:NAME, hf:OWNER/NAME, package.module:factory or a finished run"
        require_name("adapt", "model", config.model, MODELS, other=other)
    if config.data is None and run is None:
        raise fail("adapt", "`data` must be given: a dataset's name, or a path to images.")
    with naming_arguments("adapt", "model", name="model", options="model_option", path="weights"):
        found = trained_network(config.model, options=config.options, weights=config.weights)
    if config.data is None:
        assert run is not None
        return found.network, structs.replace(run.config().data, augment="none"), "run"
    settings = settings_for(config.data, found.expected)
    if config.data.mean is not None:
        return found.network, settings, "options"
    if run is not None:
        return found.network, settings, "run"
    is_declared = settings.mean is not None
    if is_declared and (config.weights is None or declared_input(found.network) is not None):
        return found.network, settings, "network"
    return found.network, settings, "search"  # other weights may come with another preprocessing


def run_of(config: ImageAdaptConfig) -> RunDirectory | None:
    """The run that the network is of, if it is of one."""
    home = RunDirectory(Path(config.model).expanduser())
    return home if home.config_file.is_file() else None


# The search for the preprocessing.


class PreprocessingTrial(NamedTuple):
    """How well the existing head predicts training images under one preprocessing."""

    name: str
    preprocessing: Preprocessing
    correct: Tensor
    """Whether the prediction for each image is right."""
    surprise: Tensor
    """Negative log-probability of the label of each image, at the best temperature."""
    is_tied: bool = False
    """Whether its accuracy is indistinguishable from the best one."""

    @property
    def accuracy(self) -> float:
        """Share of the images for which the head is right."""
        return self.correct.double().mean().item()

    @property
    def nll(self) -> float:
        """Mean surprise."""
        return self.surprise.mean().item()

    def is_clearly_better(self, other: PreprocessingTrial) -> bool:
        """Whether its NLL on the same images is lower by two standard errors of the difference."""
        gain = other.surprise - self.surprise
        return gain.mean().item() > 2 * gain.std().item() / len(gain) ** 0.5

    def facts(self) -> dict[str, Any]:
        """For the record, as JSON can hold it."""
        how = self.preprocessing
        return {
            "name": self.name,
            "mean": list(how.mean),
            "std": list(how.std),
            "accuracy": self.accuracy,
            "nll": self.nll,
            "images": len(self.correct),
            "tied": self.is_tied,
        }


def _tried(
    extractor: Extractor, parts: Dataset, settings: DataConfig, is_published: bool
) -> list[PreprocessingTrial]:
    """Trials from the best to the worst; none where the existing head does not know the classes."""
    head = head_weights(extractor.network, extractor.head)
    if head is None or len(head[0]) != len(parts.class_names):
        return []
    train_part, train_rows = parts.role_rows["train"]
    part, rows = parts.role_rows["validation"]  # training images may be learned by heart, whatever the scale
    source = parts.sources[part]
    like, own = Preprocessing.from_json(parts.facts["preprocessing"]), dict[str, Preprocessing]()
    if is_published:
        own["preprocessing of the published weights"] = like
    elif settings.name in DATASETS:
        own[f"mean/std of {settings.name}"] = like
    train = parts.sources[train_part]
    if isinstance(train, MemorySource):
        mean, std = channel_moments(train, train_rows)
        own["mean/std of the training images"] = structs.replace(like, mean=mean, std=std)
    order = np.random.default_rng(0).permutation(rows)

    def ranked(candidates: Mapping[str, Preprocessing], count: int) -> list[PreprocessingTrial]:
        some, trials = np.sort(order[:count]), list[PreprocessingTrial]()
        targets = torch.empty(0, dtype=torch.int64)
        for name, preprocessing in candidates.items():
            images = source.with_preprocessing(preprocessing).subset(some)
            key_parts = {**_key_parts(preprocessing, images.shape), "data": images.digest()}
            logits, targets = head_logits(head, extractor(images, key_parts))  # of many classes, of some rows
            right = logits.argmax(1) == targets
            if int((~right).sum()) >= _MIN_ERRORS:  # or confidence would decide, which grows with the scale
                logits = logits / fit_temperature(logits, targets)
            surprise = -logits.log_softmax(1).gather(1, targets[:, None])[:, 0]
            made = PreprocessingTrial(name, preprocessing, right, surprise)
            is_grey = any(torch.equal(made.surprise, one.surprise) for one in trials)
            if preprocessing.channel_order == "rgb" or not is_grey:  # equal channels have no order
                trials.append(made)
        return choose_preprocessing(trials, targets)

    trials = ranked(usual_preprocessings(like, own), _TRIAL_IMAGES)
    tied = {one.name: one.preprocessing for one in trials if one.is_tied}
    if len(tied) > 1 and isinstance(source, MemorySource):  # larger images take too long
        again = ranked(tied, _TIE_IMAGES)
        return [*again, *trials[len(tied) :]] if again else []
    return trials


def usual_preprocessings(like: Preprocessing, own: Mapping[str, Preprocessing]) -> dict[str, Preprocessing]:
    """Preprocessings that networks are usually trained with, by name; each is listed once.

    Those of colour images are listed in the order RGB, and then in BGR, as OpenCV and Caffe read images.

    Args:
        like: Preprocessing of the right number of channels and margin.
        own: Preprocessings that the data or the network suggest, by name.
    """
    scalings: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
        name: ((mean,) * like.channels, (std,) * like.channels) for name, (mean, std) in _ANY_CHANNELS.items()
    }
    scalings |= _COLOUR
    for name in _COMMON_DATASETS:
        defaults = DATASETS[name].defaults
        if defaults.mean is not None and defaults.std is not None:
            scalings[f"mean/std of {name}"] = defaults.mean, defaults.std
    found = dict(own)
    found |= {
        name: structs.replace(like, mean=mean, std=std)
        for name, (mean, std) in scalings.items()
        if len(mean) == like.channels
    }
    if like.channels == 3:
        found |= {f"{name}, BGR": structs.replace(one, channel_order="bgr") for name, one in found.items()}
    first: dict[Preprocessing, str] = {}
    for name, one in found.items():
        first.setdefault(one, name)
    return {name: one for one, name in first.items()}


def choose_preprocessing(trials: list[PreprocessingTrial], targets: Tensor) -> list[PreprocessingTrial]:
    """Order trials from the best to the worst; the list is empty if none is better than chance.

    The head is right most often under the best one. Those that a paired sign test cannot distinguish from it
    are ordered by NLL before all others.

    Args:
        trials: Trials on the same images.
        targets: Class ids of these images. Always predicting the most frequent class is chance.
    """
    top = max(trials, key=lambda one: (one.accuracy, -one.nll))
    chance = targets.bincount().max().item() / len(targets)
    right = int(top.correct.sum())
    with needs("scipy", extra="stats", caller="adapt"):
        from scipy.stats import binomtest
    if binomtest(right, len(targets), chance, alternative="greater").pvalue > _CHANCE / len(trials):
        return []

    def is_tied(one: PreprocessingTrial) -> bool:
        wins, losses = int((top.correct & ~one.correct).sum()), int((one.correct & ~top.correct).sum())
        return wins == losses or bool(binomtest(wins, wins + losses).pvalue > _TIE)  # a sign test

    tested = [one._replace(is_tied=is_tied(one)) for one in trials]
    return sorted(tested, key=lambda one: (not one.is_tied, one.nll if one.is_tied else -one.accuracy))


def _found(trials: list[PreprocessingTrial]) -> str:
    """Which preprocessing was found, and how well the existing head does with it and with the next ones."""
    best, *others = trials
    rivals = [one for one in others[:1] if one.is_tied]
    images = f"{100 * best.accuracy:.1f} % of {len(best.correct)} validation images"
    images += " with the lowest NLL" if rivals else ""
    runners_up = ", ".join(f"{one.name} {100 * one.accuracy:.1f} %" for one in others[:2])
    images += f"; next: {runners_up}" if runners_up else ""
    if rivals and not best.is_clearly_better(rivals[0]):
        images += "; these are alike, so give --mean and --std if you know them"
    return f"preprocessing: {best.name} (existing head right on {images})"


def _require_told_apart(model: str, trials: list[PreprocessingTrial]) -> None:
    """Refuse to choose by the NLL of images that are all right: the largest scale of the pixels would win."""
    best, tied = trials[0], [one.name for one in trials if one.is_tied]
    wrong = int((~best.correct).sum())
    if len(tied) < 2 or wrong >= _MIN_ERRORS:
        return
    right = (
        f"the existing head is right on {100 * best.accuracy:.1f} % of {len(best.correct)} validation images"
    )
    fact = f"`mean` must be given, and `std`: {model} declares no preprocessing, and {right}"
    remedy = "give those of its training, such as 0 and 1 for pixels in [0, 1]"
    raise fail("adapt", f"{fact} under each of {', '.join(tied[:4])}; {remedy}.")


def _no_preprocessing(model: str, labels: str) -> Exception:
    why = "the classes are new to its head" if labels == "new" else "its head does not know these classes"
    fact = f"`mean` must be given, and `std`: {model} declares no preprocessing, and {why}"
    remedy = "give those of its training, such as 0 and 1 for pixels in [0, 1]"
    return fail("adapt", f"{fact}, so that none can be found; {remedy}.")
