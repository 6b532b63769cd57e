"""Images from elsewhere, brought to the form of the home set's inputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from beliefmatch._utils import derive_seed
from beliefmatch._validate import fail
from beliefmatch.data import DATASETS
from beliefmatch.data.config import DataConfig
from beliefmatch.data.embedded import STEP, patches, rotations
from beliefmatch.data.found import Part
from beliefmatch.data.loading import find
from beliefmatch.data.memory import MemorySource
from beliefmatch.data.preprocessing import Preprocessing
from beliefmatch.data.source import Dataset, Source
from beliefmatch.data.store import Frame, stored, warn_of_skipped

__all__ = ["load_ood"]

MOST_MADE = 2000
"""Images that are made rather than found."""

_MADE = {"noise", "rotations", "patches"}
_CALLER = "load_ood"


def load_ood(
    text: str, like: Dataset, *, directory: str | None = None, corrupt: str = "stop", workers: int = 2
) -> tuple[str, Source]:
    """Images that are none of the home set's classes; see `beliefmatch.data.load_ood`."""
    if "preprocessing" not in like.facts:
        raise fail(_CALLER, f"`like` must tell its preprocessing in its facts, got {sorted(like.facts)}.")
    how = Preprocessing.from_json(like.facts["preprocessing"])
    name, equals, place = text.partition("=")
    if text in _MADE:
        return text, MemorySource(_made(text, like), preprocessing=how)
    if equals:
        if not name or not place:
            raise fail(_CALLER, f"`text` must have a name and a path where it is name=path, got {text!r}.")
        part = _part_at(Path(place).expanduser(), text, name)
    elif text in DATASETS:
        part = _test_of(text, directory)
    else:
        name, part = Path(text).stem, _part_at(Path(text).expanduser(), text)
    channels, height, width = like.test.shape
    frame = Frame(height, width, how.margin)
    unlabelled = Part(part.pictures, np.full(len(part.labels), -1))
    kept = stored({"test": unlabelled}, frame, channels=channels, corrupt=corrupt, workers=workers)
    warn_of_skipped(kept)
    return name, kept["test"].source(how, workers=workers)


def _made(text: str, like: Dataset) -> np.ndarray:
    channels, height, width = like.test.shape
    seed, count = int(like.facts.get("split_seed", 0)), min(len(like.test), MOST_MADE)
    of_digits = like.name == "digits" and isinstance(like.test, MemorySource)
    if text == "noise":
        levels = random_bytes(count * height * width * channels, derive_seed(seed, 0))
        levels = (levels // 15 * STEP).clip(max=16 * STEP) if of_digits else levels
        return levels.reshape(count, height, width, channels)
    if not of_digits or (height, width) != (8, 8):
        raise fail(_CALLER, f"`text` must not be {text!r} for {like.name}: {text} are made for digits alone.")
    assert isinstance(like.test, MemorySource)
    if text == "patches":
        return patches(count, seed=seed)
    return rotations(like.test.images.numpy(), like.test.targets.numpy(), seed=seed)


def random_bytes(count: int, seed: int) -> np.ndarray:
    """Uniform on 0 to 255, the same on every machine."""
    words = np.random.PCG64(seed).random_raw(-(-count // 8))
    return words.astype("<u8").view(np.uint8)[:count]


def _test_of(name: str, directory: str | None) -> Part:
    """The home set's directory is asked too, but not for files without a name: they are the home set's."""
    from beliefmatch.data.forms import holds

    if directory is not None and name != "digits" and not holds(Path(directory).expanduser(), name):
        expected = f"a set that {directory} holds in files or a folder of that name, or name=path"
        raise fail(_CALLER, f"`text` must be {expected}, got {name!r}.")
    settings = DataConfig(name=name, directory=directory)
    found, _ = find(settings, only="test")
    return found.parts.get("test") or next(iter(found.parts.values()))


def _part_at(path: Path, text: str, name: str = "") -> Part:
    if not path.exists():
        expected = f"{', '.join(sorted(_MADE))}, one of {', '.join(DATASETS)}, a path or name=path"
        raise fail(_CALLER, f"`text` must be {expected}, got {text!r}, and there is nothing at {path}.")
    from beliefmatch.data.forms import find_unlabelled

    raw = find_unlabelled(path, name=name)
    return Part(raw.pictures, np.full(len(raw.pictures), -1))
