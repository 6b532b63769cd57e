"""How a configuration differs from the paper's, found by comparing them, so that no setting is forgotten."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from beliefmatch.experiments.config import RunConfig, plain
from beliefmatch.reproduce.scales import training_images

__all__ = [
    "Meant",
    "class_sentences",
    "compiled_sentences",
    "count_sentences",
    "differences",
    "ood_sentences",
    "precision_sentences",
    "seeds_sentence",
]

_WORDS = {
    "data.limit": "training images",
    "data.labels": "labelled images",
    "data.validation": "validation images",
    "data.name": "data",
    "data.size": "pixels on a side",
    "data.augment": "augmentation",
    "ood": "OOD sets",
    "model.name": "network",
    "model.options.width": "width of the network",
    "model.options.stem_stride": "stride of the first convolution",
    "training.epochs": "epochs",
    "training.batch_size": "images in a batch",
    "training.optimizer": "optimiser",
    "training.learning_rate": "learning rate",
    "training.warmup": "warm-up",
    "training.schedule": "schedule of the rate",
    "method.options.rate": "rate of dropout",
    "method.options.samples": "samples of MC dropout",
    "method.options.members": "members of an ensemble",
    "method.options.kl_weight": "λ",
    "epochs": "epochs",
    "model": "network, the paper's being Keras's ResNet-50",
    "weights": "weights",
}
_ASIDE = re.compile(
    r"engine\.|precision$|data\.directory$|data\.workers$|training\.validate_every$|seed$|device$|compile$|batch$"
)
"""Where and how fast; the last three are of transfers."""
_USUAL = {
    "data.limit": "all",
    "data.margin": "the network's",
    "data.mean": "the network's",
    "data.std": "the network's",
    "weights": "those of its name",
    "method.options.samples": 100,
    "method.options.members": 5,
}
"""What a setting that is not there amounts to."""
_WHOLE = {
    "cifar10": 10_000,
    "cifar100": 10_000,
    "food101": 25_250,
    "imagenet-1k": 50_000,
    "stanford_cars": 8041,
    "svhn": 26_032,
}
"""Test images."""
_USUAL_OPTIONS = {
    "preact_resnet18": {"width": 64, "stem_stride": 1},
    "preact_resnet50": {"width": 64, "stem_stride": 1},
    "wrn28_2": {"depth": 28, "factor": 2},
}
"""Of networks."""
_PRECISION = "Numbers are of the precision that the machine has, bfloat16 where it can; the paper tells none."


class Meant(NamedTuple):
    """An arm and the paper's configuration of it, a dataclass of settings."""

    key: str
    group: str
    label: str
    config: Any


def differences(paper: Sequence[Meant], ours: Mapping[str, Any]) -> list[str]:
    """A sentence for each setting that is not the paper's.

    Args:
        paper: the arms at the paper's scale.
        ours: by their keys, the configurations that were run; arms of another number have others.
    """
    found: dict[str, dict[tuple[str, str], list[str]]] = {}
    compared = [arm for arm in paper if arm.key in ours]
    for arm in compared:
        for key, pair in _changed(arm.config, ours[arm.key]).items():
            found.setdefault(key, {}).setdefault(pair, []).append(arm.key)
    return [_sentence(key, pairs, compared) for key, pairs in found.items()]


def seeds_sentence(seeds: int, trials: int | None) -> list[str]:
    """Whether the seeds are as many as the paper's trials, where it tells them."""
    if trials is None or seeds == trials:
        return []
    return [f"Seeds: {seeds} instead of {trials}."]


def precision_sentences(precisions: Iterable[str]) -> list[str]:
    """What networks computed in, where not in float32."""
    told = {"32": "", "auto": _PRECISION}
    found = [told.get(one, f"Numbers are of precision {one}; the paper tells none.") for one in precisions]
    return [sentence for sentence in dict.fromkeys(found) if sentence]


def count_sentences(config: RunConfig, counts: Mapping[str, int]) -> list[str]:
    """Known images that are not as many as the configuration and the whole set would have.

    Args:
        configuration: of a run.
        counts: of its images, by their use.
    """
    data = config.data
    meant = {
        "training": ("train", training_images(config) if data.labels is None else data.labels),
        "validation": ("validation", None if data.validation < 1 else round(data.validation)),
        "test": ("test", _WHOLE.get(data.name)),
    }
    return [
        f"{words.capitalize()} images: {counts[role]:,} of {data.name}, where {expected:,} were meant."
        for words, (role, expected) in meant.items()
        if expected is not None and counts[role] != expected
    ]


def class_sentences(config: RunConfig, classes: int) -> list[str]:
    """Whether a folder that stands for ImageNet has fewer classes; other sets must have theirs."""
    meant = 1000 if config.data.name == "imagenet-1k" else classes
    return [] if classes == meant else [f"Classes: {classes:,} instead of {meant:,}."]


def compiled_sentences(compiled: int, runs: int) -> list[str]:
    """How many runs were of compiled networks, if any; that is no part of a run's name."""
    if not compiled:
        return []
    which = "all" if compiled == runs else f"{compiled} of {runs}"
    return [f"Networks of {which} runs were compiled (`engine.compile`), which changes last digits."]


def ood_sentences(seen: Mapping[str, int]) -> list[str]:
    """OOD sets that are not whole.

    Args:
        seen: images by the name of the set.
    """
    return [
        f"OOD images: {count:,} of {name} instead of {_WHOLE[name]:,}."
        for name, count in seen.items()
        if _WHOLE.get(name, count) != count
    ]


def _changed(paper: Any, ours: Any) -> dict[str, tuple[str, str]]:
    before, after = _flat(plain(paper)), _flat(plain(ours))
    keys = [key for key in {**before, **after} if not _ASIDE.match(key)]
    for option, value in _USUAL_OPTIONS.get(before.get("model.name", ""), {}).items():
        before.setdefault(f"model.options.{option}", value)
    pairs = {key: (_text(key, after.get(key)), _text(key, before.get(key))) for key in keys}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def _flat(settings: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        path = f"{above}{key}"
        flat |= _flat(value, f"{path}.") if isinstance(value, Mapping) else {path: value}
    return flat


def _text(key: str, value: Any) -> str:
    value = _USUAL.get(key, "none") if value is None else value
    if isinstance(value, list):
        return ", ".join(f"{one}" for one in value) or "none"
    if isinstance(value, float) and key == "data.validation" and value < 1:
        return f"{value:g} of the images"
    if isinstance(value, float):
        return f"{value:,.0f}" if value.is_integer() else f"{value:g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else f"{value}"


def _sentence(key: str, pairs: Mapping[tuple[str, str], Sequence[str]], arms: Sequence[Meant]) -> str:
    """Which arms are meant is told where not all of them change, and alike."""
    parts = []
    for (after, before), keys in pairs.items():
        where = "" if len(keys) == len(arms) else f" ({_where(keys, arms)})"
        parts.append(f"{after} instead of {before}{where}")
    words = _WORDS.get(key, f"`{key}`")
    start = words[0].upper() if words[0].isascii() else words[0]  # λ is no Λ
    return f"{start}{words[1:]}: {'; '.join(parts)}."


def _where(keys: Sequence[str], arms: Sequence[Meant]) -> str:
    """Whole groups by their names, a method in all groups by its own, else single arms by both."""
    meant = [arm for arm in arms if arm.key in keys]
    whole = {one.group for one in meant if all(arm.key in keys for arm in arms if arm.group == one.group)}
    common = {one.label for one in meant if all(arm.key in keys for arm in arms if arm.label == one.label)}
    names = [
        arm.group if arm.group in whole else arm.label if arm.label in common else f"{arm.group}: {arm.label}"
        for arm in meant
    ]
    return "; ".join(dict.fromkeys(names))
