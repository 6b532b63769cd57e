"""From a name or a path to whole parts or a `Dataset`: found, kept, divided, described."""

from collections.abc import Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np

from beliefmatch._utils import require_name
from beliefmatch._validate import fail, require_choice
from beliefmatch.data import DATASETS
from beliefmatch.data.config import DataConfig
from beliefmatch.data.found import Found, Habits, Known, Part
from beliefmatch.data.labels import class_names_of, require_every_class, require_few_labels, require_labels
from beliefmatch.data.parts import ROLES, Parts, Rows, ValidationFrom, assigned
from beliefmatch.data.pictures import Arrays
from beliefmatch.data.preprocessing import Preprocessing, default_padding
from beliefmatch.data.source import Dataset
from beliefmatch.data.splits import balanced, fingerprint
from beliefmatch.data.store import Frame, Stored, common_frame, stored, warn_of_skipped

__all__ = ["find", "load", "load_parts"]

_PHOTOGRAPHS = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # mean and std of ImageNet


def load(settings: DataConfig) -> Dataset:
    """Read images by name, or from a path, and divide them."""
    return load_parts(settings).dataset()


def load_parts(settings: DataConfig, *, validation_from: ValidationFrom = "train") -> Parts:
    """Read images by name, or from a path, as whole parts; see `beliefmatch.data.load_parts`."""
    require_choice("data", "validation_from", validation_from, ("train", "test"))
    found, habits = find(settings)
    names = class_names_of(found, habits.class_names)
    for name, part in found.parts.items():
        require_labels(part.labels, names, settings.name if name == "all" else f"{settings.name} ({name})")
    kept, frame = _kept(_with_roles(found), settings, habits)
    labels = {name: part.labels for name, part in kept.items()}
    roles = assigned(labels, settings, validation_from=validation_from)
    fitted = roles["train"]
    require_every_class(labels[fitted.part][fitted.rows], names)
    how = _preprocessing(kept[fitted.part], fitted.rows, frame, settings, habits)
    roles, nameless = _with_labels_held_back(roles, labels, settings, names)
    sources = {name: part.source(how, workers=settings.workers) for name, part in kept.items()}
    facts = _facts(found.form, kept, roles, nameless, settings, how) | {"classes": len(names)}
    if validation_from != "train":
        facts["validation_from"] = validation_from
    return Parts(settings.name, sources, **roles, class_names=names, facts=facts, unlabelled=nameless)


def find(settings: DataConfig, *, only: str | None = None) -> tuple[Found, Habits]:
    """What lies under a name or a path, and what is usual for it."""
    if settings.name in DATASETS:
        known: Known = resolve_name(DATASETS[settings.name])
        return known.find(settings, only=only), known.habits
    if settings.directory is not None:
        require_name("data", "name", settings.name, DATASETS, other=" where `directory` is given")
    path = Path(settings.name).expanduser()
    if not path.exists():
        require_name("data", "name", settings.name, DATASETS, other=", or a path to images")
    from beliefmatch.data.forms import find_at

    return find_at(path, only=only), Habits()


def _with_roles(found: Found) -> dict[str, Part]:
    """Which part is to fit on and which to report on; one to report on may be called validation."""
    parts = dict(found.parts)
    if set(parts) == {"train", "validation"}:
        parts["test"] = parts.pop("validation")
    if not ({"train", "test"} <= set(parts) or set(parts) == {"all"}):
        expected = "a train part and one to report on (test or validation), or one undivided set"
        remedy = "give the path of that part itself to have it divided"
        raise fail(
            "data", f"`name` must hold {expected}, got only {', '.join(parts) or 'nothing'}; {remedy}."
        )
    return parts


def _kept(parts: Mapping[str, Part], settings: DataConfig, habits: Habits) -> tuple[dict[str, Stored], Frame]:
    pictures = next(iter(parts.values())).pictures
    size = settings.size or habits.size
    if settings.margin is not None and size is None:
        raise fail("data", f"`size` must be given with `margin`, got a margin of {settings.margin:g} alone.")
    frame = common_frame(pictures, size, margin=settings.margin)
    channels = None if settings.mean is None else len(settings.mean)
    kept = stored(parts, frame, channels=channels, corrupt=settings.corrupt, workers=settings.workers)
    warn_of_skipped(kept)
    return kept, frame


def _with_labels_held_back(
    roles: dict[str, Rows], labels: Mapping[str, np.ndarray], settings: DataConfig, names: tuple[str, ...]
) -> tuple[dict[str, Rows], Rows | None]:
    """The division with labelled rows alone to fit on, and those that lose their labels, if any do."""
    if settings.labels is None:
        return roles, None
    part, rows = roles["train"]
    require_few_labels(settings.labels, len(rows), names)
    kept = rows[balanced(labels[part][rows], settings.labels, settings.split_seed)]
    return roles | {"train": Rows(part, kept)}, Rows(part, np.setdiff1d(rows, kept, assume_unique=True))


def _preprocessing(
    first: Stored, rows: np.ndarray, frame: Frame, settings: DataConfig, habits: Habits
) -> Preprocessing:
    channels, height, width = first.shape
    usual = habits.augment or ("crop" if channels == 1 else "crop_flip")
    augment = usual if settings.augment == "auto" else settings.augment
    if settings.mean is not None and settings.std is not None:
        mean, std = settings.mean, settings.std
    elif habits.mean is not None and habits.std is not None and len(habits.mean) == channels:
        mean, std = habits.mean, habits.std
    elif first.in_memory and isinstance(first.pictures, Arrays):
        mean, std = _moments(first.pictures.pixels, rows)
    else:
        mean, std = _PHOTOGRAPHS
    padding = default_padding(height, width) if settings.shift is None else settings.shift
    return Preprocessing(mean, std, augment, padding, frame.margin, settings.noise)


def _moments(pixels: np.ndarray, rows: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, from exact counts of the bytes."""
    counts = np.zeros((pixels.shape[3], 256), np.int64)
    for some in np.array_split(rows, len(rows) // 4096 + 1):
        for channel, row in enumerate(counts):
            row += np.bincount(pixels[some, :, :, channel].ravel(), minlength=256)
    shares, levels = counts / counts.sum(1, keepdims=True), np.arange(256) / 255
    mean = shares @ levels
    std = np.sqrt(np.maximum(shares @ levels**2 - mean**2, 0)).clip(1 / 255)
    return tuple(np.round(mean, 6).tolist()), tuple(np.round(std, 6).tolist())


def _facts(
    form: str,
    kept: Mapping[str, Stored],
    roles: Mapping[str, Rows],
    nameless: Rows | None,
    settings: DataConfig,
    how: Preprocessing,
) -> dict[str, Any]:
    first = next(iter(kept.values()))
    pieces: list[Any] = [piece for name, part in kept.items() for piece in (name, *part.identity())]
    is_own = {role: role != "train" and _is_whole(kept, roles[role]) for role in ROLES}
    drawn = [roles[role].rows[: 0 if is_own[role] else None] for role in ROLES]
    held_back = [] if nameless is None else [nameless.rows]
    counts = {role: len(roles[role].rows) for role in ROLES}
    counts |= {"unlabelled": len(nameless.rows)} if nameless is not None else {}
    return {
        "name": settings.name,
        "form": form,
        "in_memory": first.in_memory,
        "shape": list(first.shape),
        "counts": counts,
        "skipped": {name: len(part.skipped) for name, part in kept.items()},
        "divided_by_us": [role for role in ROLES[1:] if not is_own[role]],
        "split_seed": settings.split_seed,
        "digest": fingerprint([*pieces, *drawn, *held_back]),
        "preprocessing": how.to_json(),
    }


def _is_whole(kept: Mapping[str, Stored], rows: Rows) -> bool:
    return len(rows.rows) == len(kept[rows.part].labels)
