"""From a name or a path to a `Dataset`: found, kept, divided, described."""

from collections.abc import Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np

from beliefmatch.checks import fail
from beliefmatch.data import DATASETS
from beliefmatch.data.found import Found, Habits, Known
from beliefmatch.data.labels import class_names_of, require_every_class, require_few_labels, require_labels
from beliefmatch.data.pictures import Arrays
from beliefmatch.data.preprocessing import Preprocessing, usual_padding
from beliefmatch.data.settings import DataSettings
from beliefmatch.data.source import Dataset
from beliefmatch.data.splits import TEST_SHARE, Division, balanced, divided, fingerprint
from beliefmatch.data.store import Frame, Stored, common_frame, stored, warn_of_skipped

__all__ = ["find", "load"]

MARGIN = 256 / 224
_PHOTOGRAPHS = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # mean and std of ImageNet


def load(settings: DataSettings) -> Dataset:
    """Read images by name, or from a path, and divide them."""
    found, habits = find(settings)
    names = class_names_of(found, habits.class_names)
    for part in found.parts.values():
        require_labels(part.labels, names)
    parts = _with_roles(found)
    pictures = next(iter(parts.values())).pictures
    frame = common_frame(pictures, settings.size or habits.size, margin=MARGIN)
    kept = stored(parts, frame, channels=None, corrupt=settings.corrupt, workers=settings.workers)
    warn_of_skipped(kept)
    division = _division(kept, settings)
    first = kept.get("train", kept.get("all"))
    assert first is not None
    require_every_class(first.labels[division.train], names)
    how = _preprocessing(first, division.train, frame, settings, habits)
    division, unlabelled = _with_labels_held_back(division, first.labels, settings, names)
    facts = _facts(found.form, kept, division, unlabelled, settings, how, len(names))
    return _dataset(settings, kept, division, unlabelled, how, names, facts)


def find(settings: DataSettings, *, only: str | None = None) -> tuple[Found, Habits]:
    """What lies under a name or a path, and what is usual for it."""
    if settings.name in DATASETS:
        known: Known = resolve_name(DATASETS[settings.name])
        return known.find(settings, only=only), known.habits
    if settings.directory is not None:
        expected = f"one of {', '.join(DATASETS)} where `directory` is given"
        raise fail("data", f"`name` must be {expected}, got {settings.name!r}.")
    path = Path(settings.name).expanduser()
    if not path.exists():
        expected = f"one of {', '.join(DATASETS)}, or a path to images"
        raise fail("data", f"`name` must be {expected}, got {settings.name!r}.")
    from beliefmatch.data.forms import find_at

    return find_at(path, only=only), Habits()


def _with_roles(found: Found) -> dict[str, Any]:
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


def _division(kept: Mapping[str, Stored], settings: DataSettings) -> Division:
    """Rows of the first part; the others are taken whole."""
    undivided = "all" in kept
    labels = kept["all" if undivided else "train"].labels
    own = "validation" in kept
    return divided(
        labels,
        validation=0 if own else settings.validation,
        test=TEST_SHARE if undivided else 0,
        limit=settings.limit,
        seed=settings.split_seed,
    )


def _with_labels_held_back(
    division: Division, labels: np.ndarray, settings: DataSettings, names: tuple[str, ...]
) -> tuple[Division, np.ndarray | None]:
    """The division with labelled rows alone to fit on, and those that lose their labels, if any do."""
    if settings.labels is None:
        return division, None
    require_few_labels(settings.labels, len(division.train), names)
    rows = division.train[balanced(labels[division.train], settings.labels, settings.split_seed)]
    return division._replace(train=rows), np.setdiff1d(division.train, rows, assume_unique=True)


def _preprocessing(
    first: Stored, rows: np.ndarray, frame: Frame, settings: DataSettings, habits: Habits
) -> Preprocessing:
    channels, height, width = first.shape
    usual = habits.augment or ("crop" if channels == 1 else "crop_flip")
    augment = usual if settings.augment == "auto" else settings.augment
    if habits.mean is not None and habits.std is not None and len(habits.mean) == channels:
        mean, std = habits.mean, habits.std
    elif first.in_memory and isinstance(first.pictures, Arrays):
        mean, std = _moments(first.pictures.pixels, rows)
    else:
        mean, std = _PHOTOGRAPHS
    padding = usual_padding(height, width) if settings.shift is None else settings.shift
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
    division: Division,
    unlabelled: np.ndarray | None,
    settings: DataSettings,
    how: Preprocessing,
    classes: int,
) -> dict[str, Any]:
    pieces: list[Any] = [piece for name, part in kept.items() for piece in (name, *part.identity())]
    rows = division._asdict() | ({} if unlabelled is None else {"unlabelled": unlabelled})
    counts = {name: len(some) for name, some in rows.items()}
    whole = {name: len(part.labels) for name, part in kept.items() if name in ("validation", "test")}
    return {
        "name": settings.name,
        "form": form,
        "in_memory": next(iter(kept.values())).in_memory,
        "classes": classes,
        "shape": list(next(iter(kept.values())).shape),
        "counts": {**counts, **whole},
        "skipped": {name: len(part.skipped) for name, part in kept.items()},
        "divided_by_us": [name for name in ("validation", "test") if name not in kept],
        "split_seed": settings.split_seed,
        "digest": fingerprint([*pieces, *rows.values()]),
        "preprocessing": how.to_json(),
    }


def _dataset(
    settings: DataSettings,
    kept: Mapping[str, Stored],
    division: Division,
    unlabelled: np.ndarray | None,
    how: Preprocessing,
    names: tuple[str, ...],
    facts: dict[str, Any],
) -> Dataset:
    sources = {name: part.source(how, workers=settings.workers) for name, part in kept.items()}
    first = sources.pop("all" if "all" in sources else "train")
    rest = {name: first.subset(rows) for name, rows in division._asdict().items() if name not in sources}
    nameless = None if unlabelled is None else first.subset(unlabelled).unlabelled()
    return Dataset(settings.name, **rest, **sources, class_names=names, unlabelled=nameless, facts=facts)
