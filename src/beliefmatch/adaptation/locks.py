"""Locks between processes that end with their process, however it ends."""

import errno
import os
import socket
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["BusyError", "Hold", "exclusive", "held"]

_REFUSED = (errno.EWOULDBLOCK, errno.EACCES)


class BusyError(Exception):
    """Somebody else has the lock; the text says who, as far as it is known."""


class Hold:
    """An open lock file. The lock is released by `close`, with the object, or with the process."""

    def __init__(self, descriptor: int) -> None:
        self._release = weakref.finalize(self, os.close, descriptor)
        self._release.atexit = False  # the operating system closes the file, and memory maps may outlive us

    def close(self) -> None:
        """Release the lock; a second call does nothing."""
        self._release()


def held(path: Path, *, shared: bool, wait: bool = False) -> Hold:
    """Lock a file, which is made if need be.

    Args:
        path: Path of the lock file.
        shared: Whether other processes may share the lock; otherwise it is exclusive.
        wait: Whether to wait until the lock is free; otherwise `BusyError` is raised at once.

    Raises:
        OSError: the file can be neither made nor opened.
    """
    descriptor = _opened(path, shared=shared)
    hold = Hold(descriptor)
    if os.name == "posix":
        import fcntl

        how = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
        try:
            fcntl.flock(descriptor, how)
        except OSError as error:
            who = _who(descriptor)
            hold.close()
            if error.errno in _REFUSED:
                raise BusyError(who) from error
            raise
    return hold


@contextmanager
def exclusive(path: Path, *, wait: bool, on_wait: Callable[[str], None] | None = None) -> Iterator[None]:
    """Nobody else has the lock for the time of the block.

    Args:
        path: of the lock file, in which this process writes its number for others to read.
        wait: whether to wait for others; otherwise `BusyError` is raised.
        on_wait: called with who has the lock before waiting.
    """
    try:
        hold = held(path, shared=False)
    except BusyError as busy:
        if not wait:
            raise
        if on_wait is not None:
            on_wait(f"{busy}")
        hold = held(path, shared=False, wait=True)
    try:
        path.write_text(f"process {os.getpid()} on {socket.gethostname()}", "utf-8")
        yield
    finally:
        hold.close()


def _opened(path: Path, *, shared: bool) -> int:
    """A descriptor for the lock; sharing needs no right to write."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError:
        if not shared:
            raise
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def _who(descriptor: int) -> str:
    return os.pread(descriptor, 200, 0).decode("utf-8", "replace").strip() or "another process"
