"""Directories behind URLs such as s3:// and gs://, through fsspec: results that no file system shares.

Work is done in a local directory. `RemoteDirectory` brings the files of a URL there and takes changed ones
back; `mirrored` does so around the work and every half minute of it, so that a node that dies loses little.
"""

import re
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any

from beliefmatch._errors import fail
from beliefmatch._files import EnvironmentFailure, is_url
from beliefmatch._utils import reason_of

__all__ = ["RemoteDirectory", "local_output", "mirrored", "without_networks"]

_PUSH_SECONDS = 30.0
_NETWORK = re.compile(r"(.*/)?network-\d+/.*\.(safetensors|json)")


def without_networks(name: str) -> bool:
    """Whether a file of runs is other than the weights and checkpoints of networks.

    >>> without_networks("runs/a/record.json"), without_networks("runs/a/network-0/step-8.safetensors")
    (True, False)
    """
    return _NETWORK.fullmatch(name) is None


class RemoteDirectory:
    """The files below a URL, and which of them a local directory has as they are.

    Args:
        url: as fsspec takes it.

    Raises:
        EnvironmentFailure: no package for such URLs is installed, or it cannot be reached.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        if not is_url(self.url):
            raise fail("run", f"`out` must name a place behind its URL, got {url}.", EnvironmentFailure)
        self._known: dict[str, tuple[int, int]] = {}  # size and time of the local files that are the same
        with self._errors():
            import fsspec  # torch brings it

            self._files, self._root = fsspec.core.url_to_fs(self.url)
            self._root = self._root.rstrip("/")

    def pull(self, local: Path, wanted: Callable[[str], bool] = lambda name: True) -> None:
        """Bring the files whose names are wanted, and that the local directory does not have yet."""
        with self._errors():
            self._files.invalidate_cache()
            for path in self._files.find(self._root):
                name = f"{PurePosixPath(path).relative_to(self._root)}"
                if wanted(name) and name not in self._known:
                    target = local / name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    self._files.get_file(path, f"{target}")
                    self._known[name] = _state(target)

    def push(self, local: Path) -> None:
        """Take back the files that are new or changed, oldest first, and remove those that are gone."""
        found: dict[str, tuple[int, int]] = {}
        for path in local.rglob("*"):
            if path.is_file() and path.name != ".lock" and path.suffix != ".part":
                with suppress(FileNotFoundError):  # removed meanwhile
                    found[path.relative_to(local).as_posix()] = _state(path)
        with self._errors():
            for name in sorted(found, key=lambda name: found[name][1]):  # a record is the last of its run
                if self._known.get(name) != found[name]:
                    with suppress(FileNotFoundError):
                        self._put(local / name, f"{self._root}/{name}")
                        self._known[name] = found[name]
            for name in [name for name in self._known if name not in found]:
                with suppress(FileNotFoundError):
                    self._files.rm_file(f"{self._root}/{name}")
                del self._known[name]

    def _put(self, path: Path, target: str) -> None:
        content = path.read_bytes()  # whole: what is appended meanwhile comes with the next push
        self._files.makedirs(target.rpartition("/")[0], exist_ok=True)
        self._files.pipe_file(target, content)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """One line for whatever a store may raise."""
        try:
            yield
        except EnvironmentFailure:
            raise
        except ImportError as error:
            reason = reason_of(error, limit=160)
            raise fail(
                "run", f"`out` needs another package for {self.url}: {reason}.", EnvironmentFailure
            ) from error
        except Exception as error:  # each store has errors of its own
            reason = reason_of(error, typed=True, limit=160)
            raise fail(
                "run", f"`out` must be a URL to write to, got {self.url} ({reason}).", EnvironmentFailure
            ) from error


@contextmanager
def mirrored(url: str) -> Iterator[Path]:
    """A temporary directory with the files of a URL, which follows it during the block and at its end."""
    remote, over = RemoteDirectory(url), threading.Event()
    with tempfile.TemporaryDirectory(prefix="beliefmatch-") as name:
        local = Path(name)
        remote.pull(local)

        def follow() -> None:
            while not over.wait(_PUSH_SECONDS):
                with suppress(EnvironmentFailure):  # the next one, or the last, will tell
                    remote.push(local)

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        try:
            yield local
        finally:
            over.set()
            thread.join()
            remote.push(local)


@contextmanager
def local_output(
    out: str, wanted: Callable[[str], bool] = without_networks
) -> Iterator[tuple[Path, str | None]]:
    """The local directory of an output, and its URL if it is one: then a copy that is taken back at the end.

    Args:
        out: directory or URL.
        wanted: which of the files at the URL are brought.
    """
    if not is_url(out):
        yield Path(out), None
        return
    remote = RemoteDirectory(out)
    with tempfile.TemporaryDirectory(prefix="beliefmatch-") as name:
        remote.pull(Path(name), wanted)
        try:
            yield Path(name), remote.url
        finally:
            remote.push(Path(name))


def _state(path: Path) -> tuple[int, int]:
    facts: Any = path.stat()
    return facts.st_size, facts.st_mtime_ns
