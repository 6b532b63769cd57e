"""How a configuration differs from the paper's, found by comparing them, so that no setting is forgotten."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from beliefmatch._config import plain
from beliefmatch.experiments.config import RunConfig
from beliefmatch.reproduce.arms import Arm
from beliefmatch.reproduce.scales import training_images

__all__ = [
    "compiled_sentences",
    "data_sentences",
    "ood_sentences",
    "precision_sentences",
    "protocol_differences",
    "seed_sentences",
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
_IGNORED = re.compile(
    r"engine\.|precision$|data\.directory$|data\.workers$|training\.validate_every$|seed$|device$|compile$|batch$"
)
"""Settings that decide where and how fast something runs; the last three belong to transfers."""
_DEFAULTS = {
    "data.limit": "all",
    "data.margin": "the network's",
    "data.mean": "the network's",
    "data.std": "the network's",
    "weights": "those of its name",
    "method.options.samples": 100,
    "method.options.members": 5,
}
"""Meaning of a setting that is absent."""
_NETWORK_DEFAULTS = {
    "preact_resnet18": {"width": 64, "stem_stride": 1},
    "preact_resnet50": {"width": 64, "stem_stride": 1},
    "wrn28_2": {"depth": 28, "factor": 2},
}
_TEST_IMAGES = {
    "cifar10": 10_000,
    "cifar100": 10_000,
    "food101": 25_250,
    "imagenet-1k": 50_000,
    "stanford_cars": 8041,
    "svhn": 26_032,
}
_AUTO_PRECISION = (
    "Numbers are of the precision that the machine has, bfloat16 where it can; the paper tells none."
)


def protocol_differences(paper: Sequence[tuple[Arm, Any]], ours: Mapping[str, Any]) -> list[str]:
    """A sentence for each setting that is not the paper's.

    Args:
        paper: The arms with the paper's configurations, each a `RunConfig` or `TransferConfig`.
        ours: The configurations of a reproduction by the keys of their arms; others are not compared.
    """
    found: dict[str, dict[tuple[str, str], list[str]]] = {}
    compared = [(arm, config) for arm, config in paper if arm.key in ours]
    for arm, config in compared:
        for key, pair in _changed(config, ours[arm.key]).items():
            found.setdefault(key, {}).setdefault(pair, []).append(arm.key)
    return [_sentence(key, pairs, [arm for arm, _ in compared]) for key, pairs in found.items()]


def seed_sentences(seeds: int, trials: int | None) -> list[str]:
    """A sentence if the number of seeds is not the paper's, where it gives one."""
    return [] if trials is None or seeds == trials else [f"Seeds: {seeds} instead of {trials}."]


def precision_sentences(precisions: Iterable[str]) -> list[str]:
    """A sentence for each precision that is not float32."""
    known = {"32": "", "auto": _AUTO_PRECISION}
    found = [known.get(one, f"Numbers are of precision {one}; the paper tells none.") for one in precisions]
    return [sentence for sentence in dict.fromkeys(found) if sentence]


def data_sentences(config: RunConfig, counts: Mapping[str, int], classes: int) -> tuple[list[str], list[str]]:
    """Sentences on images, then on classes, that the configuration and the dataset promise and a run lacks.

    Args:
        config: Configuration of the run.
        counts: Images of the run, by part of the data.
        classes: Classes of the run; only a folder that stands for ImageNet may have fewer.
    """
    data = config.data
    expected = {
        "train": training_images(config) if data.labels is None else data.labels,
        "validation": None if data.validation < 1 else round(data.validation),
        "test": _TEST_IMAGES.get(data.name),
    }
    titles = {"train": "Training", "validation": "Validation", "test": "Test"}
    images = [
        f"{titles[part]} images: {counts[part]:,} of {data.name}, where {count:,} were meant."
        for part, count in expected.items()
        if count is not None and counts[part] != count
    ]
    is_partial = data.name == "imagenet-1k" and classes != 1000
    return images, [f"Classes: {classes:,} instead of 1,000."] if is_partial else []


def compiled_sentences(compiled: int, runs: int) -> list[str]:
    """A sentence if networks were compiled, which the fingerprint of a run does not show."""
    if not compiled:
        return []
    which = "all" if compiled == runs else f"{compiled} of {runs}"
    return [f"Networks of {which} runs were compiled (`engine.compile`), which changes last digits."]


def ood_sentences(counts: Mapping[str, int]) -> list[str]:
    """A sentence for each OOD set that is not complete, by its number of images."""
    return [
        f"OOD images: {count:,} of {name} instead of {_TEST_IMAGES[name]:,}."
        for name, count in counts.items()
        if _TEST_IMAGES.get(name, count) != count
    ]


def _changed(paper: Any, ours: Any) -> dict[str, tuple[str, str]]:
    """Our text and the paper's for each setting that differs."""
    before, after = _flat(plain(paper)), _flat(plain(ours))
    keys = [key for key in {**before, **after} if not _IGNORED.match(key)]
    for option, value in _NETWORK_DEFAULTS.get(before.get("model.name", ""), {}).items():
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
    value = _DEFAULTS.get(key, "none") if value is None else value
    if isinstance(value, list):
        return ", ".join(f"{one}" for one in value) or "none"
    if isinstance(value, float) and key == "data.validation" and value < 1:
        return f"{value:g} of the images"
    if isinstance(value, float):
        return f"{value:,.0f}" if value.is_integer() else f"{value:g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else f"{value}"


def _sentence(key: str, pairs: Mapping[tuple[str, str], Sequence[str]], arms: Sequence[Arm]) -> str:
    """One setting; arms are named where not all of them change alike."""
    parts = []
    for (after, before), keys in pairs.items():
        where = "" if len(keys) == len(arms) else f" ({_where(keys, arms)})"
        parts.append(f"{after} instead of {before}{where}")
    words = _WORDS.get(key, f"`{key}`")
    start = words[0].upper() if words[0].isascii() else words[0]  # λ is no Λ
    return f"{start}{words[1:]}: {'; '.join(parts)}."


def _where(keys: Sequence[str], arms: Sequence[Arm]) -> str:
    """Complete groups by their titles, a method in all groups by its label, else single arms by both."""
    chosen = [arm for arm in arms if arm.key in keys]
    others = [arm for arm in arms if arm.key not in keys]
    groups, labels = {arm.group for arm in others}, {arm.label for arm in others}
    names = [
        arm.group if arm.group not in groups
        else arm.label if arm.label not in labels
        else f"{arm.group}: {arm.label}"
        for arm in chosen
    ]  # fmt: skip
    return "; ".join(dict.fromkeys(names))
