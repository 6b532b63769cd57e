"""Out-of-distribution images in the form of an in-distribution dataset's inputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from beliefmatch._environment import needs
from beliefmatch._utils import derive_seed
from beliefmatch._validate import fail
from beliefmatch.data.config import DataConfig
from beliefmatch.data.datasets import DATASETS
from beliefmatch.data.digits import STEP, rotated
from beliefmatch.data.images import Images
from beliefmatch.data.loading import read_parts
from beliefmatch.data.prepare import prepare_like
from beliefmatch.data.preprocessing import Preprocessing
from beliefmatch.data.raw import holds, read_images_at
from beliefmatch.data.sources import Dataset, MemorySource, Source

__all__ = ["SYMMETRIC_DIGITS", "load_ood"]

MAX_GENERATED = 2000
"""Maximum number of images of a generated set."""

SYMMETRIC_DIGITS = (0, 1, 6, 8, 9)
"""Rotated, a 0, a 1 and an 8 look like themselves and a 6 like a 9: these are still in distribution."""

_GENERATED = {"noise", "rotations", "patches"}
_CALLER = "load_ood"
_ANGLES = (60.0, 300.0)


def load_ood(
    text: str, like: Dataset, *, directory: str | None = None, corrupt: str = "stop", workers: int = 2
) -> tuple[str, Source]:
    """Images or rows of none of the classes of a dataset, in the form of its inputs; their targets are -1.

    Args:
        text: "noise"; for digits also "rotations" and "patches"; a name of `DATASETS`, of which the test
            images are taken; a path to images; or `name=path`. For a table, a path to another or `name=path`.
        like: the in-distribution dataset, whose size, channels and preprocessing the images take.
        directory: where a named dataset is stored on this machine; from the hub if not given.
        corrupt: what to do with images that cannot be read, "stop" or "skip".
        workers: processes that read large images.

    Returns:
        The name of the set, and its images.
    """
    if "table" in like.facts:
        from beliefmatch.data.tables import table_source

        return table_source(text, like)
    if "preprocessing" not in like.facts:
        raise fail(_CALLER, f"`like` must have its preprocessing in its facts, got {sorted(like.facts)}.")
    preprocessing = Preprocessing.from_json(like.facts["preprocessing"])
    name, equals, place = text.partition("=")
    if text in _GENERATED:
        return text, MemorySource(_generate(text, like), preprocessing=preprocessing)
    if equals:
        if not name or not place:
            raise fail(_CALLER, f"`text` must have a name and a path where it is name=path, got {text!r}.")
        images = _read_ood_path(Path(place).expanduser(), text, name)
    elif text in DATASETS:
        images = _test_images(text, directory)
    else:
        name, images = Path(text).stem, _read_ood_path(Path(text).expanduser(), text)
    source, _ = prepare_like(images, like.test.shape, preprocessing, corrupt=corrupt, workers=workers)
    return name, source


def _test_images(name: str, directory: str | None) -> Images:
    """Of a named dataset; files without a name in the directory belong to the in-distribution dataset."""
    if directory is not None and name != "digits" and not holds(Path(directory).expanduser(), name):
        expected = f"a set that {directory} holds in files or a folder of that name, or name=path"
        raise fail(_CALLER, f"`text` must be {expected}, got {name!r}.")
    found, _ = read_parts(DataConfig(name=name, directory=directory), only="test")
    return (found.get("test") or found["all"]).images


def _read_ood_path(path: Path, text: str, name: str = "") -> Images:
    if not path.exists():
        expected = f"{', '.join(sorted(_GENERATED))}, one of {', '.join(DATASETS)}, a path or name=path"
        raise fail(_CALLER, f"`text` must be {expected}, got {text!r}, and there is nothing at {path}.")
    return read_images_at(path, name=name)


def _generate(text: str, like: Dataset) -> np.ndarray:
    channels, height, width = like.test.shape
    seed, count = int(like.facts.get("split_seed", 0)), min(len(like.test), MAX_GENERATED)
    digits = like.test if like.name == "digits" and isinstance(like.test, MemorySource) else None
    if text == "noise":
        levels = _random_bytes(count * height * width * channels, derive_seed(seed, 0))
        levels = levels if digits is None else (levels // 15 * STEP).clip(max=16 * STEP)
        return levels.reshape(count, height, width, channels)
    if digits is None or (height, width) != (8, 8):
        raise fail(_CALLER, f"`text` must not be {text!r} for {like.name}: {text} are for digits alone.")
    if text == "patches":
        return _patches(count, seed=seed)
    return _rotations(digits.images.numpy(), digits.targets.numpy(), seed=seed)


def _random_bytes(count: int, seed: int) -> np.ndarray:
    """Uniform on 0 to 255, the same on every machine."""
    words = np.random.PCG64(seed).random_raw(-(-count // 8))
    return words.astype("<u8").view(np.uint8)[:count]


def _rotations(images: np.ndarray, labels: np.ndarray, *, seed: int) -> np.ndarray:
    """Digits (N, H, W, 1) rotated by 60 to 300 degrees, without those that would still be digits."""
    chosen = images[~np.isin(labels, SYMMETRIC_DIGITS)]
    low, high = _ANGLES
    shares = np.random.PCG64(derive_seed(seed, 60)).random_raw(len(chosen)) / 2.0**64
    levels = torch.from_numpy(chosen).permute(0, 3, 1, 2).double()
    turned = [rotated(one, [low + (high - low) * share]) for one, share in zip(levels, shares, strict=True)]
    return torch.cat(turned).round().to(torch.uint8).permute(0, 2, 3, 1).contiguous().numpy()


def _patches(count: int, *, seed: int) -> np.ndarray:
    """Grey squares of 8 by 8 pixels out of scikit-learn's two photographs: bytes (count, 8, 8, 1)."""
    with needs("scikit-learn and pillow", extra="sklearn,data", caller="patches"):
        from sklearn.datasets import load_sample_images

        photographs = load_sample_images().images  # china.jpg and flower.jpg
    grey = [(image @ np.array([0.299, 0.587, 0.114])) * (16 * STEP / 255) for image in photographs]
    draws = np.random.PCG64(derive_seed(seed, 8)).random_raw(3 * count).reshape(count, 3) / 2.0**64
    result = np.empty((count, 8, 8, 1), np.uint8)
    for patch, (which, down, across) in zip(result, draws, strict=True):
        image = grey[int(which * len(grey))]
        top, left = int(down * (image.shape[0] - 7)), int(across * (image.shape[1] - 7))
        patch[..., 0] = np.rint(image[top : top + 8, left : left + 8])
    return result
