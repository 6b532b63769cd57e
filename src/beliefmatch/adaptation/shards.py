"""One set of features on the disk: shards, their checksums, and the file that says that all are there.

    facts.json           what the features are of, and how they lie here
    rows-000000.npy      features of the first rows, (n, F)
    targets-000000.npy   their class ids (n,) or counts (n, K)
    manifest.jsonl       a line for each shard that is there: its rows and checksums
    complete.json        written last; all of the manifest again

Every file but the manifest is written to a temporary name and renamed; a torn last line of the manifest
is no line. So whatever moment a process is killed at, what the manifest tells of is there, and checksums
find what a disk or a hand has changed since.
"""

import hashlib
import io
import json
import os
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from beliefmatch._files import atomic_write
from beliefmatch._validate import level_of_caller
from beliefmatch.adaptation.rows import ShardedRows
from beliefmatch.adaptation.sizes import planned_bytes

__all__ = ["FORMAT", "Layout", "ShardEntry", "ShardFolder", "StoredType"]

FORMAT = "beliefmatch.features/1"
StoredType = Literal["float32", "float16"]


@dataclass(frozen=True)
class Layout:
    """How a set of features lies on the disk.

    Args:
        features: of a row.
        shard_rows: rows of every shard but the last.
        dtype: of the features.
        classes: K where the targets are counts, None where they are class ids.
        rows: of all shards together; None while nobody knows.
    """

    features: int
    shard_rows: int
    dtype: StoredType = "float32"
    classes: int | None = None
    rows: int | None = None

    @property
    def shards(self) -> int | None:
        """How many there will be."""
        return None if self.rows is None else -(-self.rows // self.shard_rows)

    def planned_bytes(self, rows: int | None = None) -> int:
        """On the disk, of so many rows or of all; 0 where nobody knows how many there are."""
        rows = self.rows if rows is None else rows
        return 0 if rows is None else planned_bytes(rows, self.features, self.dtype, classes=self.classes)


class ShardEntry(NamedTuple):
    """What the manifest says of a shard."""

    shard: int
    rows: int
    features_sha256: str
    targets_sha256: str


class ShardFolder:
    """The directory of one set. Whoever writes holds the lock of the set."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def is_complete(self) -> bool:
        """Whether the last shard was written, some time."""
        return (self.path / "complete.json").is_file()

    def facts(self) -> dict[str, Any]:
        """What the features are of; empty if unknown."""
        facts = _json(self.path / "facts.json")
        return facts if facts.get("format") == FORMAT else {}

    def layout(self) -> Layout | None:
        """How the set lies here; None if unknown."""
        try:
            found = Layout(**self.facts()["layout"])
        except (KeyError, TypeError):
            return None
        total = _json(self.path / "complete.json").get("rows", found.rows)
        return Layout(**{**asdict(found), "rows": total})

    def begin(self, key: str, parts: Mapping[str, Any], layout: Layout) -> None:
        """Make the directory, or take up what is there of the same layout; all else in it goes."""
        self.path.mkdir(parents=True, exist_ok=True)
        there = self.facts().get("layout") == asdict(layout)
        for file in self.path.iterdir():
            if file.name.endswith(".part") or not there:
                file.unlink()
        if not there:
            facts = {"format": FORMAT, "key": key, "parts": dict(parts), "layout": asdict(layout)}
            atomic_write(self.path / "facts.json", _bytes(facts))

    def clear(self) -> None:
        """Remove all that is there, what says that it is complete first; who has it open can read on."""
        (self.path / "complete.json").unlink(missing_ok=True)
        for file in self.path.iterdir():
            file.unlink()

    def write(self, shard: int, rows: np.ndarray, targets: np.ndarray) -> ShardEntry:
        """Write a shard, then the line that tells of it."""
        digests = []
        for path, values in zip(self._files(shard), (rows, targets), strict=True):
            content = _npy(values)
            atomic_write(path, content)
            digests.append(hashlib.sha256(content).hexdigest())
        line = ShardEntry(shard, len(rows), *digests)
        with (self.path / "manifest.jsonl").open("ab") as file:
            file.write(json.dumps(line).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        return line

    def resume(self) -> dict[int, ShardEntry]:
        """The shards that are there and whole; the manifest is brought to just these, the others go."""
        whole = self.verified()
        (self.path / "complete.json").unlink(missing_ok=True)
        lines = [json.dumps(line).encode() + b"\n" for line in whole.values()]
        atomic_write(self.path / "manifest.jsonl", b"".join(lines))
        return whole

    def complete(self, lines: Iterable[ShardEntry]) -> None:
        """Say that all shards are there."""
        lines = sorted(lines)
        rows = sum(line.rows for line in lines)
        atomic_write(self.path / "complete.json", _bytes({"format": FORMAT, "rows": rows, "shards": lines}))

    def lines(self) -> dict[int, ShardEntry]:
        """What complete.json, or else the manifest, tells of the shards; a broken line tells nothing."""
        whole = _json(self.path / "complete.json")
        if whole.get("format") == FORMAT:
            return {line.shard: line for entry in whole.get("shards", ()) if (line := _line(entry))}
        try:
            texts = (self.path / "manifest.jsonl").read_bytes().splitlines()
        except OSError:
            return {}
        return {line.shard: line for text in texts if (line := _line(_parsed(text)))}

    def verified(self, *, warn: bool = True) -> dict[int, ShardEntry]:
        """The shards whose checksums are right; with `warn`, a warning names each of the others."""
        whole, layout = {}, self.layout()
        for shard, line in sorted(self.lines().items() if layout else ()):
            reason = self._fault(line)
            if reason is None:
                whole[shard] = line
            elif warn:
                fact = f"features: {self._files(shard)[0]} is not used ({reason}); it is computed again."
                warnings.warn(fact, stacklevel=level_of_caller())
        return whole

    def is_whole(self, lines: Mapping[int, ShardEntry]) -> bool:
        """Whether these are all shards of a complete set."""
        layout = self.layout()
        return self.is_complete and layout is not None and list(lines) == list(range(layout.shards or 0))

    def open(self, held: Any = None) -> tuple[ShardedRows, Tensor]:
        """Rows, memory-mapped, and targets of a complete set."""
        numbers = sorted(self.lines())
        shards = [np.load(self._files(shard)[0], mmap_mode="r", allow_pickle=False) for shard in numbers]
        return ShardedRows(shards, held), torch.cat([self.targets(shard) for shard in numbers])

    def targets(self, shard: int) -> Tensor:
        """Of one shard."""
        return torch.from_numpy(np.load(self._files(shard)[1], allow_pickle=False))

    def bytes(self) -> int:
        """What is there takes on the disk."""
        total = 0
        for path in self.path.glob("*"):
            try:
                total += path.stat().st_size
            except OSError:  # moved or removed by who works here
                continue
        return total

    def digest(self) -> str:
        """Of the features and targets themselves."""
        return hashlib.sha256(json.dumps(sorted(self.lines().values())).encode()).hexdigest()

    def _files(self, shard: int) -> tuple[Path, Path]:
        return self.path / f"rows-{shard:06d}.npy", self.path / f"targets-{shard:06d}.npy"

    def _fault(self, line: ShardEntry) -> str | None:
        """What is wrong with a shard, in a few words."""
        for path, digest in zip(self._files(line.shard), line[2:], strict=True):
            try:
                if _digest_of(path) != digest:
                    return f"the checksum of {path.name} is another"
            except OSError as error:
                return f"{path.name}: {error.strerror}"
        return None


def _digest_of(path: Path) -> str:
    state = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 22):
            state.update(piece)
    return state.hexdigest()


def _npy(values: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.lib.format.write_array(content, np.ascontiguousarray(values), allow_pickle=False)
    return content.getvalue()


def _bytes(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=1, allow_nan=False) + "\n").encode()


def _json(path: Path) -> dict[str, Any]:
    try:
        content = _parsed(path.read_bytes())
    except OSError:
        return {}
    return content if isinstance(content, dict) else {}


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _line(entry: Any) -> ShardEntry | None:
    kinds = (int, int, str, str)
    is_line = isinstance(entry, list) and len(entry) == len(kinds)
    return ShardEntry(*entry) if is_line and all(map(isinstance, entry, kinds)) else None
