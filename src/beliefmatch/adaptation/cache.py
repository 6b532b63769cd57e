"""A directory of feature sets: found by their key, shared between processes, kept within a size.

Each set has a subdirectory named by its key (see `beliefmatch.adaptation.shards`) and two files in `locks/`:
one that whoever computes the set holds alone, and one that all who read it share, so that no set in use is
cleared away. Readers wait for nobody and need no right to write.
"""

import os
import re
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from beliefmatch._files import EnvironmentFailure
from beliefmatch._validate import fail, level_of_caller
from beliefmatch.adaptation.locks import BusyError, Hold, exclusive, held
from beliefmatch.adaptation.shards import ShardFolder
from beliefmatch.adaptation.sizes import bytes_of, format_bytes

__all__ = ["DEFAULT_SIZE", "FeatureCache", "Kept", "TemporaryCache", "default_directory"]

DEFAULT_SIZE = "20GB"
_CALLER = "FeatureCache"
_KEY = re.compile(r"[0-9a-f]{64}")
_GONE = ".gone-"


class Kept(NamedTuple):
    """A set in the cache."""

    key: str
    bytes: int
    """That it takes, or will take if somebody is still at work on it."""
    used: float
    """When it was last used, in seconds since 1970."""
    is_complete: bool


def default_directory() -> Path:
    """`beliefmatch/features` below $XDG_CACHE_HOME, or below ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "beliefmatch" / "features"


class FeatureCache:
    """A directory of feature sets.

    Args:
        directory: made when the first set is written; see `default_directory`.
        size: bytes that all sets together may take, or a text such as "10GB".
        wait: for another process that computes the set wanted; otherwise that is an error.
    """

    def __init__(
        self, directory: str | Path | None = None, *, size: int | str = DEFAULT_SIZE, wait: bool = True
    ) -> None:
        if directory is not None and not f"{directory}".strip():
            raise fail(_CALLER, f"`cache_dir` must be a directory, got {f'{directory}'!r}.")
        self.directory = default_directory() if directory is None else Path(directory).expanduser()
        self.size = bytes_of(size, caller=_CALLER)
        self.wait = wait

    def folder(self, key: str) -> ShardFolder:
        """Where the set of this key lies, or would."""
        if not _KEY.fullmatch(key):
            raise fail(_CALLER, f"`key` must be 64 hexadecimal digits, got {key[:80]!r}.")
        return ShardFolder(self.directory / key)

    def using(self, key: str) -> Hold | None:
        """Mark a set as used, from now until the result is forgotten; None where that cannot be marked."""
        path = self._lock(key, "use")
        try:
            hold = held(path, shared=True, wait=True)  # only for who is clearing it away, if somebody is
        except OSError:  # nothing there, or not ours to write
            return None
        with suppress(OSError):
            os.utime(path)
        return hold

    @contextmanager
    def writing(self, key: str) -> Iterator[None]:
        """Nobody else computes this set for the time of the block."""
        self._make()

        def tell(who: str) -> None:
            fact = f"features: {who} computes these features in {self.directory}; waiting for it."
            warnings.warn(fact, stacklevel=level_of_caller())

        with ExitStack() as stack:
            try:
                stack.enter_context(exclusive(self._lock(key, "lock"), wait=self.wait, on_wait=tell))
            except BusyError as busy:
                fact = f"`cache_dir` must be free, but {busy} computes these features in {self.directory}"
                raise EnvironmentFailure(f"features: {fact}; wait for it.") from busy
            except OSError as error:
                fact = f"`cache_dir` must be where files can be locked, got {self.directory}"
                raise EnvironmentFailure(f"features: {fact} ({error.strerror}).") from error
            yield

    def sets(self) -> list[Kept]:
        """All sets, complete or not, the least recently used first."""
        try:
            names = sorted(path.name for path in self.directory.iterdir() if _KEY.fullmatch(path.name))
        except OSError:
            return []
        return sorted(map(self._kept, names), key=lambda one: (one.used, one.key))

    def make_room(self, key: str, needed: int) -> list[str]:
        """See that `needed` bytes fit for this set, what is there of it included; the keys that had to go.

        The least recently used complete sets go first, then those that nobody went on with; none that is
        read or worked on. If that is not enough, nothing goes.

        Raises:
            EnvironmentFailure: they do not fit into the cache's size, or not on the disk.
        """
        with exclusive(self.directory / "locks" / "room", wait=True), ExitStack() as stack:
            self._sweep()
            others = [one for one in self.sets() if one.key != key]
            excess = sum(one.bytes for one in others) + needed - self.size
            going: list[str] = []
            for one in sorted(others, key=lambda one: not one.is_complete):
                if excess > 0 and needed <= self.size and self._is_free(one.key, stack, "lock", "use"):
                    going.append(one.key)
                    excess -= one.bytes
            if excess > 0:
                raise self._too_large(needed, excess)
            for gone in going:
                self._remove(gone)
        self._require_disk(needed - self.folder(key).bytes())
        return going

    def _kept(self, key: str) -> Kept:
        folder = self.folder(key)
        with ExitStack() as stack:
            layout = None if self._is_free(key, stack, "lock") else folder.layout()
        planned = layout.planned_bytes() if layout is not None else 0
        try:
            used = self._lock(key, "use").stat().st_mtime
        except OSError:
            used = 0.0
        return Kept(key, max(planned, folder.bytes()), used, folder.is_complete)

    def _is_free(self, key: str, stack: ExitStack, *kinds: str) -> bool:
        """Whether nobody has these locks of a set; then nobody has until the stack is closed."""
        try:
            for kind in kinds:
                stack.callback(held(self._lock(key, kind), shared=False).close)
        except (BusyError, OSError):
            return False
        return True

    def _too_large(self, needed: int, excess: int) -> EnvironmentFailure:
        in_use = excess - needed + self.size if needed <= self.size else 0
        others = f", next to {format_bytes(in_use)} in use" if in_use else ""
        fact = f"`cache_size` must be at least {format_bytes(needed + in_use)}, got {format_bytes(self.size)}"
        remedy = f"these features take {format_bytes(needed)}{others}; set `--cache-size`"
        return EnvironmentFailure(f"features: {fact}: {remedy}.")

    def _require_disk(self, needed: int) -> None:
        free = shutil.disk_usage(self.directory).free
        if needed > free:
            got = f"{self.directory} with {format_bytes(free)}"
            fact = f"`cache_dir` must have room for {format_bytes(needed)}, got {got}"
            raise EnvironmentFailure(f"features: {fact} free; choose another by `--cache-dir`.")

    def _remove(self, key: str) -> None:
        """Out of sight at once, then off the disk; a kill in between leaves work for `_sweep`."""
        gone = self.directory / f"{_GONE}{key}-{os.getpid()}"
        os.rename(self.directory / key, gone)
        shutil.rmtree(gone, ignore_errors=True)

    def _sweep(self) -> None:
        for path in self.directory.glob(f"{_GONE}*"):
            shutil.rmtree(path, ignore_errors=True)

    def _make(self) -> None:
        try:
            (self.directory / "locks").mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.directory):
                pass
        except OSError as error:
            fact = f"`cache_dir` must be a directory to write in, got {self.directory} ({error.strerror})"
            raise EnvironmentFailure(f"features: {fact}; choose another by `--cache-dir`.") from error

    def _lock(self, key: str, kind: str) -> Path:
        return self.directory / "locks" / f"{key}.{kind}"


class TemporaryCache(FeatureCache):
    """A cache of one set, for data without a key; its directory is removed with the last user."""

    def __init__(self) -> None:
        place = tempfile.mkdtemp(prefix="beliefmatch-features-")
        super().__init__(place, size=1 << 62)
        self._end = weakref.finalize(self, shutil.rmtree, place, ignore_errors=True)
