"""Files that are there whole or not at all."""

import os
import tempfile
from pathlib import Path

__all__ = ["ready_directory", "write_whole"]


def ready_directory(path: Path, *, caller: str) -> Path:
    """Make a directory, its parents too, and prove that files can be written there."""
    if path.exists() and not path.is_dir():
        raise ValueError(f"{caller}: `out` must be a directory, got the file {path}.")
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise ValueError(
            f"{caller}: `out` must be a directory to write in, got {path} ({error.strerror})."
        ) from error
    return path


def write_whole(path: Path, content: bytes) -> None:
    """Write a file through a neighbour, so that no reader and no crash sees half of it."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(content)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
