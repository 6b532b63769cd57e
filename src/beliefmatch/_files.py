"""Atomic writes of files and directories, and safe file names."""

import hashlib
import json
import os
import re
import secrets
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from beliefmatch._errors import ArgumentError, fail

__all__ = [
    "LEDGER",
    "EnvironmentFailure",
    "InUse",
    "atomic_write",
    "atomic_write_dir",
    "directory_in_use",
    "file_names",
    "is_url",
    "numbered",
    "ready_directory",
    "refuse_url",
]

LEDGER = ".beliefmatch-files"
"""Names and digests of the files that a report consists of, so that the next one can clear them away."""

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://.*")  # one letter would be a drive of Windows
_LONGEST = 80  # characters of a file's name, without its ending


class EnvironmentFailure(ArgumentError):  # noqa: N818
    """Something outside of the program is not as it must be: a file, a directory, another process."""


class InUse(EnvironmentFailure):
    """Another process works in the directory."""


def is_url(place: str) -> bool:
    """Whether this names a place behind a URL.

    >>> is_url("s3://bucket/grid"), is_url("runs/compare")
    (True, False)
    """
    return _URL.fullmatch(place) is not None


def refuse_url(place: str, *, caller: str, argument: str = "out") -> None:
    """Refuse a URL where a path of this machine is needed: as a path it names a directory such as `s3:`."""
    if is_url(place):
        remedy = "write to a path and copy it; `compare`, `train` and `reproduce` take URLs"
        raise fail(caller, f"`{argument}` must be a path of this machine, got the URL {place}: {remedy}.")


def ready_directory(name: str, *, caller: str, argument: str = "out") -> Path:
    """Make a directory, its parents too, and prove that files can be written there.

    Errors name `argument` of `caller`.
    """
    if not name.strip():
        raise fail(caller, f"`{argument}` must be a directory (. for the current one), got {name!r}.")
    refuse_url(name, caller=caller, argument=argument)
    path = Path(name)
    try:
        if path.exists() and not path.is_dir():
            raise fail(caller, f"`{argument}` must be a directory, got the file {path}.")
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path, buffering=0) as probe:
            probe.write(bytes(4096))  # a full disk still makes empty files
    except OSError as error:
        raise fail(
            caller, f"`{argument}` must be a directory to write in, got {path} ({error.strerror})."
        ) from error
    return path


@contextmanager
def directory_in_use(name: str, *, caller: str, argument: str = "out") -> Iterator[Path]:
    """`ready_directory` for the block; directories created here are removed if they stay empty."""
    missing = [path for path in (Path(name), *Path(name).parents) if not os.path.exists(path)]
    try:
        yield ready_directory(name, caller=caller, argument=argument)
    finally:
        for path in missing:
            with suppress(OSError):  # not empty, or never made
                path.rmdir()


def atomic_write(path: Path, content: bytes) -> None:
    """Write a file through a neighbour, so that no reader and no crash sees half of it.

    Each call has a neighbour of its own: threads share a process id, and so may two containers that share a
    file system. An error names the file, as that of a full disk does not by itself.
    """
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # or a power cut may leave the new name without the content
        os.replace(part, path)
    except OSError as error:
        error.filename = error.filename or f"{path}"
        raise
    finally:
        part.unlink(missing_ok=True)


def atomic_write_dir(
    directory: Path, files: Iterable[tuple[str, bytes]], *, keep: str | None = None
) -> list[str]:
    """Write files by their names below a directory: all of them, or none.

    They take their names only when the last is on the disk, so that neither a full disk nor Ctrl-C leaves
    a report whose parts do not belong together. What an earlier call wrote there and this one does not is
    removed, if it is still as it was written and its name does not end in `keep`; the names of these files
    are returned.
    """
    with tempfile.TemporaryDirectory(dir=directory, prefix=".") as name:
        staged, written = Path(name), dict[str, str]()
        for file, content in files:
            _stage(staged / file, content)
            written[file] = hashlib.sha256(content).hexdigest()
        _stage(staged / LEDGER, json.dumps(written, indent=1).encode())
        before = _ledger(directory)
        for file in (*written, LEDGER):
            (directory / file).parent.mkdir(parents=True, exist_ok=True)
            os.replace(staged / file, directory / file)
    kept = {file.casefold() for file in written}  # some file systems take a.json for A.json
    stale = [entry for entry in before.items() if entry[0].casefold() not in kept]
    if keep is not None:
        stale = [entry for entry in stale if not entry[0].endswith(keep)]
    return [file for file, digest in stale if _remove(directory, file, digest)]


def _stage(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, content)


def _ledger(directory: Path) -> dict[str, str]:
    """What an earlier call wrote; empty if the ledger is missing or damaged."""
    try:
        content = json.loads((directory / LEDGER).read_bytes())
    except (OSError, ValueError):
        return {}
    entries = content.items() if isinstance(content, dict) else ()
    return {file: digest for file, digest in entries if isinstance(digest, str)}


def _remove(directory: Path, file: str, digest: str) -> bool:
    """Remove a file of ours below the directory, but none that was changed since, and nothing elsewhere."""
    path = directory / file
    try:
        inside = path.parent.resolve().is_relative_to(directory.resolve())
        ours = inside and path.is_file() and not path.is_symlink()
        if not ours or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            return False
        path.unlink()
    except (OSError, ValueError):  # a name that no file can have was not written by us
        return False
    return True


def file_names(names: Sequence[str]) -> list[str]:
    """For each name one that any file system takes; two that differ in case only count as the same."""
    safe = [re.sub(r"[^\w.-]+", "_", name).strip("._")[:_LONGEST] or "model" for name in names]
    return numbered(safe, "_{}")


def numbered(names: Sequence[str], pattern: str) -> list[str]:
    """Each name once; a later one that is taken already gets a number."""
    made: list[str] = []
    taken: set[str] = set()
    for name in names:
        unique, number = name, 1
        while unique.casefold() in taken:
            number += 1
            unique = name + pattern.format(number)
        taken.add(unique.casefold())
        made.append(unique)
    return made
