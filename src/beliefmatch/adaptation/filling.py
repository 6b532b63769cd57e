"""From pieces of any length to whole shards on the disk."""

import errno
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from beliefmatch._files import EnvironmentFailure
from beliefmatch._validate import fail
from beliefmatch.adaptation.shards import Layout, ShardEntry, ShardFolder
from beliefmatch.adaptation.sizes import format_bytes

__all__ = ["Filler", "full_disk_errors"]

_FULL = (errno.ENOSPC, errno.EDQUOT)


class Filler:
    """Takes rows in order and writes each shard that is missing when its last row has come.

    Args:
        folder: to write to.
        layout: of the shards.
        there: shards that are there and whole; only the targets of their rows are looked at.
        make_room: called with the rows that will be there, before a shard is written.
    """

    def __init__(
        self,
        folder: ShardFolder,
        layout: Layout,
        there: Mapping[int, ShardEntry],
        make_room: Callable[[int], object],
    ) -> None:
        self._folder, self._layout, self._make_room = folder, layout, make_room
        self._there = dict(there)
        self._rows = np.empty((layout.shard_rows, layout.features), layout.dtype)
        self._targets = torch.empty(0)
        self._open: tuple[int, int] | None = None  # the shard that is being filled, and its rows so far

    @property
    def lines(self) -> list[ShardEntry]:
        """Of all shards that are there."""
        return sorted(self._there.values())

    def wants(self, start: int, stop: int) -> bool:
        """Whether any of these rows is of a shard that is missing."""
        size = self._layout.shard_rows
        return any(shard not in self._there for shard in range(start // size, -(-stop // size)))

    def add(self, start: int, targets: Tensor, rows: np.ndarray | None) -> None:
        """Take the next rows; None where none of them is wanted."""
        self._require_alike(start, targets)
        done = 0
        while done < len(targets):
            shard, first = divmod(start + done, self._layout.shard_rows)
            many = min(self._layout.shard_rows - first, len(targets) - done)
            part = slice(done, done + many)
            if shard in self._there:
                self._compare(shard, first, targets[part])
            elif rows is not None:
                self._take(shard, first, rows[part], targets[part])
            done += many

    def finish(self, seen: int | None = None) -> None:
        """Write the last shard; `seen` rows must have come where nobody knew before."""
        if self._open is not None:
            self._write(*self._open)
        total = sum(line.rows for line in self._there.values())
        if seen is not None and total != seen:
            raise _other_data(f"{seen} rows, where there were {total}")

    def _take(self, shard: int, first: int, rows: np.ndarray, targets: Tensor) -> None:
        many = first + len(rows)
        if first == 0:
            self._targets = torch.empty(self._layout.shard_rows, *targets.shape[1:], dtype=targets.dtype)
        self._rows[first:many] = rows
        self._targets[first:many] = targets
        self._open = shard, many
        if many == self._layout.shard_rows:
            self._write(shard, many)

    def _write(self, shard: int, many: int) -> None:
        self._make_room(shard * self._layout.shard_rows + many)
        with full_disk_errors(self._folder, self._layout):
            line = self._folder.write(shard, self._rows[:many], self._targets[:many].numpy())
        self._there[shard] = line
        self._open = None

    def _require_alike(self, start: int, targets: Tensor) -> None:
        classes = targets.shape[1] if targets.dim() == 2 else None
        if classes != self._layout.classes:
            kinds = [f"counts of {k} classes" if k else "class ids" for k in (self._layout.classes, classes)]
            fact = f"`source` must have {kinds[0]} as in the first batch, got {kinds[1]} at row {start}"
            raise fail("extract", f"{fact}.")

    def _compare(self, shard: int, first: int, targets: Tensor) -> None:
        before = self._folder.targets(shard)[first : first + len(targets)]
        if not torch.equal(before, targets):
            raise _other_data(f"other targets at row {shard * self._layout.shard_rows + first}")


@contextmanager
def full_disk_errors(folder: ShardFolder, layout: Layout) -> Iterator[None]:
    """Turn the error of a full disk into one line with a remedy."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        planned = f" of {format_bytes(layout.planned_bytes())}" if layout.rows else ""
        fact = f"the disk must have room, but {folder.path.parent} is full ({error.strerror})"
        kept = f"{format_bytes(folder.bytes())}{planned} are kept; make room and start again to continue"
        raise EnvironmentFailure(
            f"features: {fact}. {kept}, or choose another directory by `--cache-dir`."
        ) from error


def _other_data(got: str) -> Exception:
    fact = "`source` must give the rows of the same key in the same order as before"
    return fail("extract", f"{fact}, got {got}; use a loader that does not shuffle, or another `data_key`.")
