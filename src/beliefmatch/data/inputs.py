"""Images to predict: files, folders, arrays and tables, without labels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from beliefmatch._validate import fail
from beliefmatch.data.decode import SUFFIXES
from beliefmatch.data.found import Part, Pictures
from beliefmatch.data.pictures import Chain
from beliefmatch.data.preprocessing import Preprocessing
from beliefmatch.data.source import Source
from beliefmatch.data.store import Frame, stored, warn_of_skipped

__all__ = ["read_images"]

_ARRAYS = (".npz", ".npy", ".parquet")


def read_images(
    paths: str | Path | Sequence[str | Path],
    *,
    like_shape: tuple[int, int, int],
    preprocessing: Preprocessing,
    corrupt: str = "stop",
    workers: int = 2,
) -> tuple[list[str], Source]:
    """Images brought to what a network was trained on, in the order of the paths.

    Args:
        paths: of images, of folders of images (with all that is below them), of .npz or .npy arrays of bytes
            (N, H, W) or (N, H, W, C), or of .parquet files.
        like_shape: C, H, W of the network's inputs.
        preprocessing: as the run directory keeps it.
        corrupt: what becomes of images that cannot be read, "stop" or "skip".
        workers: processes that read large images.

    Returns:
        What each image is called, and the images; their targets are -1.
    """
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    if not given:
        raise fail("read_images", "`paths` must be at least one path, got none.")
    found = [_pictures(Path(path).expanduser()) for path in given]
    pictures = found[0] if len(found) == 1 else Chain(found)
    if len(pictures) == 0:
        raise fail("read_images", f"`paths` must hold images, got none in {given[0]}.")
    channels, height, width = like_shape
    part = Part(pictures, np.full(len(pictures), -1))
    frame = Frame(height, width, preprocessing.margin)
    kept = stored({"given": part}, frame, channels=channels, corrupt=corrupt, workers=workers)
    warn_of_skipped(kept)
    names = [pictures.name(row) for row in kept["given"].kept.tolist()]
    return names, kept["given"].source(preprocessing, workers=workers)


def _pictures(path: Path) -> Pictures:
    if path.is_dir():
        from beliefmatch.data.forms.folder import all_images

        return all_images(path).pictures
    if not path.is_file():
        raise fail("read_images", f"`paths` must be files or folders, got nothing at {path}.")
    if path.suffix.lower() not in SUFFIXES + _ARRAYS:
        expected = f"{', '.join(SUFFIXES)}, {', '.join(_ARRAYS)} or be a folder"
        raise fail("read_images", f"`paths` must end in {expected}, got {path}.")
    from beliefmatch.data.forms import read_file

    return read_file(path).pictures
