"""How a configuration differs from the paper's, found by comparing them, so that no setting is forgotten."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from beliefmatch._config import plain
from beliefmatch.experiments.config import RunConfig
from beliefmatch.reproduce.arms import Arm
from beliefmatch.reproduce.dataset_facts import DATASET_FACTS
from beliefmatch.reproduce.scales import training_images

__all__ = ["data_sentences", "ood_sentences", "precision_sentences", "protocol_differences"]

_WORDS = {
    "data.limit": "training images",
    "data.labels": "labelled images",
    "data.validation": "validation images",
    "data.name": "data",
    "data.size": "image size",
    "data.augment": "augmentation",
    "ood": "OOD sets",
    "model.name": "network",
    "model.options.width": "width of the network",
    "model.options.stem_stride": "stride of the first convolution",
    "training.epochs": "epochs",
    "training.epoch_steps": "steps of an epoch",
    "training.batch_size": "batch size",
    "training.optimizer": "optimiser",
    "training.learning_rate": "learning rate",
    "training.warmup": "warm-up",
    "training.schedule": "learning-rate schedule",
    "method.options.rate": "dropout rate",
    "method.options.samples": "MC dropout samples",
    "method.options.members": "ensemble members",
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
_RESNET_DEFAULTS = {"model.options.width": 64, "model.options.stem_stride": 1}
_NETWORK_DEFAULTS = {
    "preact_resnet18": _RESNET_DEFAULTS,
    "preact_resnet50": _RESNET_DEFAULTS,
    "wrn28_2": {"model.options.depth": 28, "model.options.factor": 2},
}


def protocol_differences(paper: Sequence[tuple[Arm, Any]], ours: Mapping[str, Any]) -> list[str]:
    """A sentence for each setting that is not the paper's.

    Args:
        paper: The arms with the paper's configurations, each a `RunConfig` or `TransferConfig`.
        ours: The configurations of a reproduction by the keys of their arms; others are not compared.
    """
    found: dict[str, dict[tuple[str, str], list[str]]] = {}
    compared = [(arm, config) for arm, config in paper if arm.key in ours]
    for arm, config in compared:
        before, after = _flat(plain(config)), _flat(plain(ours[arm.key]))
        keys = [key for key in {**before, **after} if not _IGNORED.match(key)]
        before = _NETWORK_DEFAULTS.get(before.get("model.name", ""), {}) | before
        for key in keys:
            pair = (_text(key, after.get(key)), _text(key, before.get(key)))
            if pair[0] != pair[1]:
                found.setdefault(key, {}).setdefault(pair, []).append(arm.key)
    return [_sentence(key, pairs, [arm for arm, _ in compared]) for key, pairs in found.items()]


def precision_sentences(precisions: Iterable[str]) -> list[str]:
    """A sentence for each precision that is not float32."""
    words = {"auto": "the precision that the machine has, bfloat16 where it can"}
    return [
        f"Numbers are computed in {words.get(one, one)}; the paper does not state its precision."
        for one in dict.fromkeys(precisions)
        if one != "32"
    ]


def data_sentences(config: RunConfig, counts: Mapping[str, int], classes: int) -> tuple[list[str], list[str]]:
    """Sentences on images, then on classes, that the configuration or the dataset has and a run lacks.

    Args:
        config: Configuration of the run.
        counts: Images of the run, by part of the data.
        classes: Classes of the run; only a folder that stands for ImageNet may have fewer.
    """
    data, facts = config.data, DATASET_FACTS.get(config.data.name)
    expected = {
        "train": ("Training", training_images(config) if data.labels is None else data.labels),
        "validation": ("Validation", None if data.validation < 1 else round(data.validation)),
        "test": ("Test", facts and facts.test_images),
    }
    images = [
        f"{title} images: {counts[part]:,} of {data.name} instead of {count:,}."
        for part, (title, count) in expected.items()
        if count is not None and counts[part] != count
    ]
    is_partial = data.name == "imagenet-1k" and classes != 1000
    return images, [f"Classes: {classes:,} instead of 1,000."] if is_partial else []


def ood_sentences(counts: Mapping[str, int]) -> list[str]:
    """A sentence for each OOD set that is not complete, by its number of images."""
    return [
        f"OOD images: {count:,} of {name} instead of {DATASET_FACTS[name].test_images:,}."
        for name, count in counts.items()
        if name in DATASET_FACTS and DATASET_FACTS[name].test_images != count
    ]


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
    others = [arm for arm in arms if arm.key not in keys]
    groups, labels = {arm.group for arm in others}, {arm.label for arm in others}
    names = [
        arm.group if arm.group not in groups
        else arm.label if arm.label not in labels
        else f"{arm.group}: {arm.label}"
        for arm in arms if arm.key in keys
    ]  # fmt: skip
    return "; ".join(dict.fromkeys(names))
