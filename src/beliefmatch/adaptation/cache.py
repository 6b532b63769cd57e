"""Features kept on disk: one memory-mapped file for each set, named by the key of what it holds.

A file is a header that describes the features, followed by one record for each row: features, target and
checksum. A row is present if its checksum is right. After a kill, a full disk or damage to the file each row
is therefore either right or computed again, and an interrupted extraction continues where it stopped.

One process at a time writes a file and holds its lock meanwhile. Readers need neither a lock nor the right to
write: no file is ever shortened or given other rows, it is replaced, and a file that was removed stays
readable while it is mapped.
"""

import errno
import json
import os
import re
import shutil
import socket
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
from torch import Tensor

from beliefmatch._files import EnvironmentFailure
from beliefmatch._validate import describe, fail, warn

__all__ = [
    "FORMAT",
    "SUFFIX",
    "FeatureCache",
    "FeatureFile",
    "Layout",
    "as_cache",
    "default_directory",
    "format_bytes",
]

FORMAT = "beliefmatch.features/3"
SUFFIX = ".features"

_HEADER_BYTES = 4096  # a page, so that features are aligned
_PREFIX = struct.Struct("<8sI")  # magic and checksum of the description, which fills the rest of the header
_MAGIC = b"BELIEFM3"
_KEY = re.compile(r"[0-9a-f]{64}")
_FULL = (errno.ENOSPC, errno.EDQUOT)
_UNITS = {"": 1, **{f"{prefix}b": 1000**power for power, prefix in enumerate(["", "k", "m", "g", "t"])}}
_UNITS |= {f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", 1)}


class Layout(NamedTuple):
    """The form of the rows of a set."""

    width: int
    """F, the number of features."""
    classes: int | None = None
    """K where targets are counts; None where they are class ids."""

    @property
    def record(self) -> np.dtype:
        """The record of a row; its size is a multiple of 8, so that features are aligned."""
        target = ("<i8",) if self.classes is None else ("<f4", (self.classes,))
        fields: list[Any] = [("features", "<f4", (self.width,)), ("target", *target), ("checksum", "<u4")]
        size = np.dtype(fields).itemsize
        return np.dtype([*fields, ("padding", "V", -size % 8)] if size % 8 else fields)

    def planned_bytes(self, rows: int) -> int:
        """Size of a file of so many rows."""
        return _HEADER_BYTES + rows * self.record.itemsize


class FeatureFile:
    """An open file of features.

    Args:
        file: Unbuffered, and writable where rows are to be written.
        facts: Description in the header: key, layout, writer, and the number of rows, None until all of them
            have been written.
    """

    def __init__(self, file: BinaryIO, facts: dict[str, Any]) -> None:
        self._file, self.facts = file, facts
        self.layout = Layout(**facts["layout"])
        self.is_present = np.zeros(0, dtype=bool)
        """For each row, whether an earlier call has written it."""
        self._present_targets = np.zeros(0)

    @classmethod
    def created(cls, file: BinaryIO, layout: Layout, rows: int | None, *, key: str = "") -> "FeatureFile":
        """Begin an empty file, with room for all rows where their number is known."""
        made = cls(file, {"key": key, "layout": layout._asdict()})
        made.describe(rows=None)
        if rows is not None:
            file.truncate(layout.planned_bytes(rows))
            made.is_present = np.zeros(rows, dtype=bool)
        return made

    @classmethod
    def opened(cls, file: BinaryIO) -> "FeatureFile | None":
        """An existing file; None where its header cannot be read."""
        try:
            header = file.read(_HEADER_BYTES)
            magic, checksum = _PREFIX.unpack_from(header)
            text = header[_PREFIX.size :]
            facts = json.loads(text) if magic == _MAGIC and zlib.crc32(text) == checksum else {}
            found = cls(file, facts)
            is_whole = facts.keys() >= {"key", "rows", "writer"} and found.layout.record.itemsize
            return found if is_whole else None
        except (struct.error, ValueError, KeyError, TypeError):
            return None

    def describe(self, *, rows: int | None) -> None:
        """Write the header; `rows` is None until all rows have been written."""
        self.facts |= {"rows": rows, "writer": f"process {os.getpid()} on {socket.gethostname()}"}
        text = json.dumps(self.facts).encode().ljust(_HEADER_BYTES - _PREFIX.size)
        _write(self._file, 0, _PREFIX.pack(_MAGIC, zlib.crc32(text)) + text)

    def resume(self, rows: int | None, path: Path) -> None:
        """Take the file up for writing: find the rows that are present, warn of those that are damaged."""
        records, before = self._records(), self.facts["rows"]
        total = rows or before or len(records)
        records = records[:total]
        self.is_present, is_written = np.zeros((2, total), dtype=bool)
        self.is_present[: len(records)] = _checksums(records) == records["checksum"]
        is_written[: len(records)] = records["checksum"] != 0
        self._present_targets = records["target"]
        damaged = ~self.is_present & (is_written | (before is not None))
        if damaged.any():
            fact = f"{int(damaged.sum())} rows of {path} are damaged, from row {int(damaged.argmax())} on"
            warn("adapt", f"{fact}; they are computed again.")
        self.describe(rows=None)

    def has_targets(self, start: int, targets: Tensor) -> bool:
        """Whether the rows from `start` on, as far as they are present, have these targets."""
        present = np.flatnonzero(self.is_present[start : start + len(targets)])
        same = np.array_equal(self._present_targets[start:][present], targets.numpy()[present])
        return same or not len(present)

    def write(self, start: int, rows: np.ndarray, targets: np.ndarray) -> None:
        """Write neighbouring rows from number `start` on."""
        records = np.zeros(len(rows), self.layout.record)
        records["features"], records["target"] = rows, targets
        records["checksum"] = _checksums(records)
        _write(self._file, self.layout.planned_bytes(start), records.tobytes())

    def complete(self, rows: int) -> None:
        """Record that all rows were written."""
        self.describe(rows=rows)
        os.fsync(self._file.fileno())

    def is_complete(self) -> bool:
        """Whether all rows were written and their checksums are right."""
        records = self._records()
        return len(records) == self.facts["rows"] and bool((_checksums(records) == records["checksum"]).all())

    def read(self) -> tuple[np.ndarray, Tensor]:
        """Features (N, F), memory-mapped and read-only, and targets (N,) or (N, K) in memory."""
        records = self._records()
        kind = np.int64 if self.layout.classes is None else np.float32
        return records["features"], torch.from_numpy(records["target"].astype(kind))

    def _records(self) -> np.ndarray:
        """The records in the file, memory-mapped; no more than there are rows."""
        record, size = self.layout.record, os.fstat(self._file.fileno()).st_size
        count = max(0, size - _HEADER_BYTES) // record.itemsize
        if self.facts["rows"] is not None:
            count = min(count, self.facts["rows"])
        if count <= 0:
            return np.empty(0, record)
        return np.memmap(self._file, record, "r", offset=_HEADER_BYTES, shape=(count,))


def _write(file: BinaryIO, offset: int, content: bytes) -> None:
    """Write all of the content, also where a disk takes it in parts."""
    file.seek(offset)
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) :]


def _checksums(records: np.ndarray) -> np.ndarray:
    """CRC-32 of features and target of each record; of a record of zeros it is not zero."""
    end, size = records.dtype.fields["checksum"][1], records.itemsize  # type: ignore[index]
    content = records.view(np.uint8).data if len(records) else memoryview(b"")
    starts = range(0, len(content), size)
    return np.fromiter((zlib.crc32(content[at : at + end]) for at in starts), np.uint32, len(records))


class CachedSet(NamedTuple):
    """A file in the cache."""

    key: str
    bytes: int
    used: float
    """Time of last use, in seconds since 1970."""


def default_directory() -> Path:
    """`beliefmatch/features` below $XDG_CACHE_HOME, or below ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "beliefmatch" / "features"


class FeatureCache:
    """A directory of feature files that together stay within a size.

    Args:
        directory: Created with the first file; `default_directory()` by default.
        size: Maximum size of all files together in bytes, or a text such as "10GB".
        wait: Whether to wait while another process computes the same features; if not, an error is raised.
    """

    def __init__(
        self, directory: str | Path | None = None, *, size: int | str = "20GB", wait: bool = True
    ) -> None:
        if directory is not None and not f"{directory}".strip():
            raise fail("FeatureCache", f"`directory` must be a directory, got {f'{directory}'!r}.")
        self.directory = default_directory() if directory is None else Path(directory).expanduser()
        self.size = bytes_of(size)
        self.wait = wait

    def path(self, key: str) -> Path:
        """Path of the file of this key, whether it exists or not."""
        if not _KEY.fullmatch(key):
            raise fail("FeatureCache", f"`key` must be 64 hexadecimal digits, got {key[:80]!r}.")
        return self.directory / f"{key}{SUFFIX}"

    def read(self, key: str) -> tuple[np.ndarray, Tensor] | None:
        """Rows and targets of a complete set, which is marked as used; None where there is none."""
        path = self.path(key)
        try:
            with path.open("rb", buffering=0) as file:
                found = FeatureFile.opened(file)
                if found is None or found.facts["key"] != key or not found.is_complete():
                    return None
                with suppress(OSError):  # not ours to write
                    os.utime(path)
                return found.read()
        except OSError:
            return None

    @contextmanager
    def locked(self, key: str) -> Iterator[None]:
        """Let no other process write the file of this key inside the block."""
        from filelock import Timeout

        self._make_directory()
        try:
            lock = self._lock(key)
            try:
                lock.acquire(timeout=0)
            except Timeout:
                fact = f"{self._writer(key)} computes these features in {self.directory}"
                if not self.wait:
                    raise _failure(f"`directory` must be free, but {fact}; wait for it.") from None
                warn("adapt", f"{fact}; waiting for it.")
                lock.acquire()
        except (OSError, NotImplementedError) as error:
            fact = f"`directory` must be where files can be locked, got {self.directory}"
            raise _failure(f"{fact} ({error}).") from error
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def writing(
        self, key: str, layout: Layout, rows: int | None, is_current: Callable[[FeatureFile], bool]
    ) -> Iterator[FeatureFile]:
        """The file of this key for writing, inside `locked`: that of an earlier call if it is current."""
        path = self.path(key)
        try:
            if path.exists():
                with path.open("r+b", buffering=0) as file:
                    found = FeatureFile.opened(file)
                    if found is not None and found.facts["key"] == key and found.layout == layout:
                        found.resume(rows, path)
                        if is_current(found):
                            yield found
                            return
            path.unlink(missing_ok=True)
            with path.open("x+b", buffering=0) as file:
                yield FeatureFile.created(file, layout, rows, key=key)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            fact = f"the disk must have room, but {self.directory} is full ({error.strerror})"
            remedy = "finished rows are kept; make room and start again, or choose another by `--cache-dir`"
            raise _failure(f"{fact}; {remedy}.") from error

    def sets(self) -> list[CachedSet]:
        """All files, complete or not, the least recently used first."""
        found = []
        for path in self.directory.glob(f"*{SUFFIX}"):
            with suppress(OSError):
                facts = path.stat()
                if _KEY.fullmatch(path.stem):
                    found.append(CachedSet(path.stem, facts.st_size, facts.st_mtime))
        return sorted(found, key=lambda one: (one.used, one.key))

    def make_room(self, key: str, needed: int) -> None:
        """Remove the least recently used files until `needed` bytes fit for this key.

        Files that are being written stay. If the bytes do not fit without them, nothing is removed.

        Raises:
            EnvironmentFailure: The bytes do not fit into the cache's size, or not on the disk.
        """
        from filelock import Timeout

        others = [one for one in self.sets() if one.key != key]
        excess, going = sum(one.bytes for one in others) + needed - self.size, list[Path]()
        with ExitStack() as locks:
            for one in others if needed <= self.size else ():
                if excess > 0:
                    with suppress(Timeout, OSError):
                        locks.enter_context(self._lock(one.key).acquire(timeout=0))
                        going.append(self.path(one.key))
                        excess -= one.bytes
            if excess > 0:
                in_use = excess - needed + self.size if needed <= self.size else 0
                next_to = f", next to {format_bytes(in_use)} in use" if in_use else ""
                fact = f"`size` must be at least {format_bytes(needed + in_use)}"
                remedy = f"these features take {format_bytes(needed)}{next_to}; give a larger one"
                raise _failure(f"{fact}, got {format_bytes(self.size)}: {remedy}.")
            for path in going:
                path.unlink(missing_ok=True)
        path, free = self.path(key), shutil.disk_usage(self.directory).free
        missing = needed - (getattr(path.stat(), "st_blocks", 0) * 512 if path.exists() else 0)
        if missing > free:
            fact = f"`directory` must have room for {format_bytes(missing)}, got {self.directory}"
            raise _failure(f"{fact} with {format_bytes(free)} free; choose another.")

    def _lock(self, key: str) -> Any:
        """The lock of a key; its file stays, or two processes could lock two files of the same name."""
        from filelock import FileLock

        return FileLock(self.directory / "locks" / f"{key}.lock")

    def _writer(self, key: str) -> str:
        with suppress(OSError), self.path(key).open("rb", buffering=0) as file:
            if (found := FeatureFile.opened(file)) is not None:
                return found.facts["writer"]
        return "another process"

    def _make_directory(self) -> None:
        try:
            (self.directory / "locks").mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.directory):
                pass
        except OSError as error:
            fact = f"`directory` must be a directory to write in, got {self.directory} ({error.strerror})"
            raise _failure(f"{fact}; choose another.") from error


def _failure(fact: str) -> Exception:
    return fail("adapt", fact, EnvironmentFailure)


def as_cache(cache: Any) -> FeatureCache | None:
    """A cache, or one in the directory of this path."""
    if isinstance(cache, str | Path):
        return FeatureCache(cache)
    if cache is not None and not isinstance(cache, FeatureCache):
        expected = "a FeatureCache or the path of a directory"
        raise fail("adapt", f"`cache` must be {expected}, got {describe(cache)}.", TypeError)
    return cache


def bytes_of(size: int | str) -> int:
    """A number of bytes, from itself or from a text.

    >>> bytes_of("10GB"), bytes_of("1.5 MiB"), bytes_of(7)
    (10000000000, 1572864, 7)
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", f"{size}".lower())
    if isinstance(size, bool) or found is None or found[2] not in _UNITS:
        expected = "a number of bytes such as 10GB, 500 MB or 4GiB"
        raise fail("FeatureCache", f"`size` must be {expected}, got {size!r}.")
    return int(float(found[1]) * _UNITS[found[2]]) if "." in found[1] else int(found[1]) * _UNITS[found[2]]


def format_bytes(count: float) -> str:
    """A number of bytes in three digits.

    >>> format_bytes(999), format_bytes(1_638_400_000), format_bytes(52e6)
    ('999 B', '1.64 GB', '52 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.4g} TB"
