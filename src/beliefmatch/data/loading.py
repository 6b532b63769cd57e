"""From a name or a path to a `Dataset`, or from paths to images for prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from beliefmatch._utils import require_name
from beliefmatch._validate import fail, require_choice
from beliefmatch.data.config import DataConfig, is_table
from beliefmatch.data.datasets import DATASETS, IMAGENET_MEAN, IMAGENET_STD, DatasetDefaults
from beliefmatch.data.images import SUFFIXES, ChainedImages, Images
from beliefmatch.data.prepare import common_frame, prepare, prepare_like
from beliefmatch.data.preprocessing import Preprocessing, default_padding
from beliefmatch.data.raw import ARRAY_SUFFIXES, LabelledImages, images_below, read_file, read_parts_at
from beliefmatch.data.sources import Dataset, ImageSource, MemorySource, Source
from beliefmatch.data.splits import (
    ROLES,
    RowSelection,
    ValidationFrom,
    assign_roles,
    balanced_rows,
    content_digest,
    named_parts,
    require_every_class,
)

__all__ = ["channel_moments", "load", "read_images", "read_parts"]

_MOST_CLASSES = 1_000_000  # a larger number is no class id


def load(config: DataConfig, *, validation_from: ValidationFrom = "train") -> Dataset:
    """Read images by name, or images or a table from a path, and split them.

    Args:
        config: which images or rows, and how they are split, read and augmented.
        validation_from: "train", or "test" for networks that were already trained on the train part, to which
            none of its images is new: half of the test images, in class proportion and by the split seed, are
            then for validation and the other half for the test, and all of the train part is for training.
            Neither `validation` nor a validation part that is present is used then.

    Raises:
        ValueError: in one line, for data that are missing, cannot be read or cannot be split.
    """
    require_choice("data", "validation_from", validation_from, ("train", "test"))
    if config.name not in DATASETS and is_table(config.name):
        from beliefmatch.data.tables import load_table

        return load_table(config, validation_from=validation_from)
    for argument, given in (("target", config.target), ("drop", config.drop)):
        if given:
            raise fail("data", f"`{argument}` must be given for tables alone, got it for {config.name}.")
    found, defaults = read_parts(config)
    names = _class_names(found, config, defaults)
    parts = named_parts(found)
    prepared = _prepare(parts, config, defaults)
    labels = {name: source.targets.numpy() for name, (source, _) in prepared.items()}
    roles = assign_roles(labels, config, validation_from=validation_from)
    part, rows = roles["train"]
    require_every_class(labels[part][rows], names)
    preprocessing = _preprocessing(prepared[part][0], rows, config, defaults)
    sources = {name: source.with_preprocessing(preprocessing) for name, (source, _) in prepared.items()}
    unlabelled, held_back = None, None
    if config.labels is not None:
        if not len(names) <= config.labels < len(rows):
            expected = (
                f"one for each of {len(names)} classes at least and below the {len(rows)} training images"
            )
            remedy = "leave it out to keep all labels"
            raise fail("data", f"`labels` must be {expected}, got {config.labels}; {remedy}.")
        kept = rows[balanced_rows(labels[part][rows], config.labels, config.split_seed)]
        roles["train"], held_back = RowSelection(part, kept), np.setdiff1d(rows, kept, assume_unique=True)
        unlabelled = sources[part].subset(held_back).unlabelled()
    whole = {role: len(rows) == len(labels[part]) for role, (part, rows) in roles.items()}
    facts = {
        "name": config.name,
        "form": next(iter(found.values())).format,
        "in_memory": isinstance(sources[part], MemorySource),
        "shape": list(sources[part].shape),
        "counts": {role: len(roles[role].rows) for role in ROLES},
        "skipped": {name: len(parts[name].labels) - len(rows) for name, (_, rows) in prepared.items()},
        "divided_by_us": [role for role in ROLES[1:] if not whole[role]],
        "split_seed": config.split_seed,
        "digest": _digest(prepared, roles, held_back),
        "preprocessing": preprocessing.to_json(),
        "classes": len(names),
    }
    if held_back is not None:
        facts["counts"]["unlabelled"] = len(held_back)
    if validation_from != "train":
        facts["validation_from"] = validation_from
    by_role = {
        role: sources[part] if whole[role] else sources[part].subset(rows)
        for role, (part, rows) in roles.items()
    }
    return Dataset(
        config.name,
        **by_role,
        class_names=names,
        unlabelled=unlabelled,
        facts=facts,
        sources=sources,
        role_rows=roles,
    )


def read_parts(
    config: DataConfig, *, only: str | None = None
) -> tuple[dict[str, LabelledImages], DatasetDefaults]:
    """The parts of the dataset under a name or a path, and the defaults that apply to them."""
    if config.name in DATASETS:
        dataset = DATASETS[config.name]
        return dataset.read(config, only=only), dataset.defaults
    if config.directory is not None:
        require_name("data", "name", config.name, DATASETS, other=" where `directory` is given")
    path = Path(config.name).expanduser()
    if not path.exists():
        require_name("data", "name", config.name, DATASETS, other=", or a path to images")
    return read_parts_at(path, only=only), DatasetDefaults()


def read_images(
    paths: str | Path | Sequence[str | Path],
    *,
    like_shape: tuple[int, int, int],
    preprocessing: Preprocessing,
    corrupt: str = "stop",
    workers: int = 2,
) -> tuple[list[str], Source]:
    """Images for prediction, brought to the form of a network's training images, in the order of the paths.

    Args:
        paths: of images, of folders of images (with all that is below them), of .npz or .npy arrays of bytes
            (N, H, W) or (N, H, W, C), or of .parquet files.
        like_shape: C, H, W of the network's inputs.
        preprocessing: as the run directory keeps it.
        corrupt: what to do with images that cannot be read, "stop" or "skip".
        workers: processes that read large images.

    Returns:
        The name of each image, and the images; their targets are -1.
    """
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    if not given:
        raise fail("read_images", "`paths` must be at least one path, got none.")
    found = [_read_path(Path(path).expanduser()) for path in given]
    images = found[0] if len(found) == 1 else ChainedImages(found)
    if len(images) == 0:
        raise fail("read_images", f"`paths` must hold images, got none in {given[0]}.")
    source, rows = prepare_like(images, like_shape, preprocessing, corrupt=corrupt, workers=workers)
    return [images.name(row) for row in rows.tolist()], source


def _read_path(path: Path) -> Images:
    if path.is_dir():
        return images_below(path)
    if not path.is_file():
        raise fail("read_images", f"`paths` must be files or folders, got nothing at {path}.")
    if path.suffix.lower() not in SUFFIXES + ARRAY_SUFFIXES:
        expected = f"{', '.join(SUFFIXES)}, {', '.join(ARRAY_SUFFIXES)} or be a folder"
        raise fail("read_images", f"`paths` must end in {expected}, got {path}.")
    return read_file(path).images


def _class_names(
    found: Mapping[str, LabelledImages], config: DataConfig, defaults: DatasetDefaults
) -> tuple[str, ...]:
    """The names that were found, else the dataset's, else the numbers; every label must be an id of one."""
    first = next(iter(found.values()), None)
    if first is None or len(first.labels) == 0:
        raise fail("data", "images must be at least 2 of 2 classes, got none.")
    names = first.class_names
    if names is None:
        largest = int(first.labels.max())
        if largest >= _MOST_CLASSES:
            raise fail("data", f"labels must be class ids counted from 0, got {largest}.")
        names = defaults.class_names or tuple(f"{label}" for label in range(largest + 1))
    for part, (_, labels, *_) in found.items():
        if len(labels) and (labels == -1).all():
            raise fail("data", f"images must have labels to train on, got none in the {part} part.")
        wrong = np.flatnonzero((labels < 0) | (labels >= len(names)))
        if len(wrong):
            place = config.name if part == "all" else f"{config.name} ({part})"
            expected = f"class ids from 0 to {len(names) - 1}"
            got = f"{labels[wrong[0]]} at image {wrong[0]}"
            raise fail("data", f"labels of {place} must be {expected}, got {got}.")
    return names


def _prepare(
    parts: Mapping[str, LabelledImages], config: DataConfig, defaults: DatasetDefaults
) -> dict[str, tuple[ImageSource, np.ndarray]]:
    size = config.size or defaults.size
    if config.margin is not None and size is None:
        raise fail("data", f"`size` must be given with `margin`, got a margin of {config.margin:g} alone.")
    frame = common_frame(next(iter(parts.values())).images, size, margin=config.margin)
    channels = None if config.mean is None else len(config.mean)
    return prepare(parts, frame, channels=channels, corrupt=config.corrupt, workers=config.workers)


def _preprocessing(
    train: ImageSource, rows: np.ndarray, config: DataConfig, defaults: DatasetDefaults
) -> Preprocessing:
    channels, height, width = train.shape
    augment = config.augment
    if augment == "auto":
        augment = defaults.augment or ("crop" if channels == 1 else "crop_flip")
    if config.mean is not None and config.std is not None:
        mean, std = config.mean, config.std
    elif defaults.mean is not None and defaults.std is not None and len(defaults.mean) == channels:
        mean, std = defaults.mean, defaults.std
    elif isinstance(train, MemorySource):
        mean, std = channel_moments(train, rows)
    else:
        mean, std = IMAGENET_MEAN, IMAGENET_STD
    padding = default_padding(height, width) if config.shift is None else config.shift
    return Preprocessing(mean, std, augment, padding, train.preprocessing.margin, config.noise)


def channel_moments(source: MemorySource, rows: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel over these rows, from exact counts of the bytes."""
    pixels = source.pixels.numpy()
    counts = np.zeros((pixels.shape[3], 256), np.int64)
    for some in np.array_split(rows, len(rows) // 4096 + 1):
        for channel, row in enumerate(counts):
            row += np.bincount(pixels[some, :, :, channel].ravel(), minlength=256)
    shares, levels = counts / counts.sum(1, keepdims=True), np.arange(256) / 255
    mean = shares @ levels
    std = np.sqrt(np.maximum(shares @ levels**2 - mean**2, 0)).clip(1 / 255)
    return tuple(np.round(mean, 6).tolist()), tuple(np.round(std, 6).tolist())


def _digest(
    prepared: Mapping[str, tuple[ImageSource, np.ndarray]],
    roles: Mapping[str, RowSelection],
    held_back: np.ndarray | None,
) -> str:
    """Digest of images, labels and split; a part that is whole for validation or test adds no rows."""
    pieces: list[Any] = []
    for name, (source, rows) in prepared.items():
        pieces += [name, *source.identity(), rows, source.targets.numpy()]
    for role in ROLES:
        part, rows = roles[role]
        is_whole = role != "train" and len(rows) == len(prepared[part][0])
        pieces.append(rows[:0] if is_whole else rows)
    return content_digest(pieces if held_back is None else [*pieces, held_back])
