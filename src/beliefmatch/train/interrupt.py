"""Ctrl-C and requests to end: heard at once, obeyed after the step."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["Interrupted", "Request", "listening"]


class Interrupted(KeyboardInterrupt):
    """A training that was asked to end, has saved where it is, and says how to go on."""


class Request:
    """Whether somebody has asked to end."""

    made = False

    def hear(self, number: int, frame: FrameType | None) -> None:
        """Remember the first signal; the second ends at once."""
        if self.made:
            raise KeyboardInterrupt
        self.made = True


@contextmanager
def listening(active: bool) -> Iterator[Request]:
    """Hear SIGINT and SIGTERM for the time of the block. Only the main thread can."""
    request = Request()
    if not active or threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.signal(number, request.hear) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
