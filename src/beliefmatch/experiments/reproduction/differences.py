"""How a plan differs from the paper's, found by comparing them, so that no setting is forgotten."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from beliefmatch.experiments.strict import plain

__all__ = ["Meant", "differences", "seeds_sentence"]

_WORDS = {
    "data.limit": "training images",
    "data.labels": "labelled images",
    "data.validation": "validation images",
    "data.name": "data",
    "data.size": "pixels on a side",
    "data.augment": "augmentation",
    "engine.precision": "precision",
    "foreign": "foreign sets",
    "model.name": "network",
    "model.options.width": "width of the network",
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
    "model": "network",
}
_ASIDE = ("engine.", "data.directory", "data.workers", "training.validate_every", "seed")
"""Where and how fast; but for the precision, which is told."""
_TOLD = ("engine.precision",)
_USUAL = {
    "model.options.width": 64,
    "data.limit": "all",
    "method.options.samples": 100,
    "method.options.members": 5,
}
"""What a setting that is not there amounts to."""


class Meant(NamedTuple):
    """An arm and the paper's plan of it, a dataclass of settings."""

    key: str
    group: str
    label: str
    plan: Any


def differences(paper: Sequence[Meant], ours: Mapping[str, Any]) -> list[str]:
    """A sentence for each setting that is not the paper's.

    Args:
        paper: the arms at the paper's scale.
        ours: by their keys, the plans that were run; arms of another number have others.
    """
    found: dict[str, dict[tuple[str, str], list[str]]] = {}
    compared = [arm for arm in paper if arm.key in ours]
    for arm in compared:
        for key, pair in _changed(arm.plan, ours[arm.key]).items():
            found.setdefault(key, {}).setdefault(pair, []).append(arm.key)
    return [_sentence(key, pairs, compared) for key, pairs in found.items()]


def seeds_sentence(seeds: int, trials: int) -> list[str]:
    """Whether the seeds are as many as the paper's trials."""
    if seeds == trials:
        return []
    return [f"Seeds: {seeds} instead of {trials}."]


def _changed(paper: Any, ours: Any) -> dict[str, tuple[str, str]]:
    before, after = _flat(plain(paper)), _flat(plain(ours))
    keys = [key for key in {**before, **after} if key in _TOLD or not key.startswith(_ASIDE)]
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
    if isinstance(value, float):
        return f"{value:,.0f}" if value.is_integer() else f"{value:g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else f"{value}"


def _sentence(key: str, pairs: Mapping[tuple[str, str], Sequence[str]], arms: Sequence[Meant]) -> str:
    """Which arms are meant is told where they do not all change alike."""
    parts = []
    for (after, before), keys in pairs.items():
        where = "" if len(pairs) == 1 else f" ({_where(keys, arms)})"
        parts.append(f"{after} instead of {before}{where}")
    words = _WORDS.get(key, f"`{key}`")
    return f"{words[0].upper()}{words[1:]}: {'; '.join(parts)}."


def _where(keys: Sequence[str], arms: Sequence[Meant]) -> str:
    """Whole groups by their names, single arms of a group by theirs."""
    meant = {arm.group for arm in arms if arm.key in keys}
    whole = {group for group in meant if all(arm.key in keys for arm in arms if arm.group == group)}
    names = [arm.group if arm.group in whole else arm.label for arm in arms if arm.key in keys]
    return "; ".join(dict.fromkeys(names))
