"""Find the preprocessing that a network was trained with: the one under which its existing head is right."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from msgspec.structs import replace
from torch import Tensor

from beliefmatch._environment import needs
from beliefmatch.adaptation.fitted import Init
from beliefmatch.adaptation.scoring import head_logits
from beliefmatch.adaptation.types import Features
from beliefmatch.data.datasets import DATASETS, IMAGENET_MEAN, IMAGENET_STD
from beliefmatch.data.preprocessing import Preprocessing

__all__ = [
    "TIE_IMAGES",
    "TRIAL_IMAGES",
    "PreprocessingTrial",
    "choose_preprocessing",
    "try_preprocessing",
    "usual_preprocessings",
]

TRIAL_IMAGES, TIE_IMAGES = 256, 1024
"""Training images on which the head is tried with each preprocessing, and with those that are tied."""

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


class PreprocessingTrial(NamedTuple):
    """How well the existing head predicts training images under one preprocessing."""

    name: str
    preprocessing: Preprocessing
    correct: Tensor
    """Whether the prediction for each image is right."""
    surprise: Tensor
    """Negative log-probability of the label of each image."""
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
        mean, std = self.preprocessing.mean, self.preprocessing.std
        scores = {
            "accuracy": self.accuracy,
            "nll": self.nll,
            "images": len(self.correct),
            "tied": self.is_tied,
        }
        return {"name": self.name, "mean": list(mean), "std": list(std), **scores}


def usual_preprocessings(like: Preprocessing, own: Mapping[str, Preprocessing]) -> dict[str, Preprocessing]:
    """Preprocessings that networks are usually trained with, by name; each is listed once.

    Args:
        like: preprocessing of the right number of channels and margin.
        own: preprocessings that the data or the network suggest, by name.
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
        name: replace(like, mean=mean, std=std)
        for name, (mean, std) in scalings.items()
        if len(mean) == like.channels
    }
    first: dict[Preprocessing, str] = {}
    for name, one in found.items():
        first.setdefault(one, name)
    return {name: one for one, name in first.items()}


def try_preprocessing(
    name: str, preprocessing: Preprocessing, features: Features, head: Init
) -> PreprocessingTrial:
    """The trial of one preprocessing, from the features that the network computes with it."""
    logits, targets, _ = head_logits(head, features)
    surprise = -logits.log_softmax(1).gather(1, targets[:, None])[:, 0]
    return PreprocessingTrial(name, preprocessing, logits.argmax(1) == targets, surprise)


def choose_preprocessing(trials: list[PreprocessingTrial], targets: Tensor) -> list[PreprocessingTrial]:
    """Order trials from the best to the worst; the list is empty if none is better than chance.

    The head is right most often under the best one. Those that a paired sign test cannot distinguish from it
    are ordered by NLL before all others.

    Args:
        trials: on the same images.
        targets: class ids of these images. Always predicting the most frequent class is chance.
    """
    top = max(trials, key=lambda one: (one.accuracy, -one.nll))
    chance = targets.bincount().max().item() / len(targets)
    right = int(top.correct.sum())
    with needs("scipy", extra="stats", caller="choose_preprocessing"):
        from scipy.stats import binomtest
    if binomtest(right, len(targets), chance, alternative="greater").pvalue > _CHANCE / len(trials):
        return []

    def is_tied(one: PreprocessingTrial) -> bool:
        wins, losses = int((top.correct & ~one.correct).sum()), int((one.correct & ~top.correct).sum())
        return wins == losses or bool(binomtest(wins, wins + losses).pvalue > _TIE)  # a sign test

    tested = [one._replace(is_tied=is_tied(one)) for one in trials]
    return sorted(tested, key=lambda one: (not one.is_tied, one.nll if one.is_tied else -one.accuracy))
