"""Ctrl-C and SIGTERM: recorded immediately; training stops after the current step."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["Interrupted", "StopRequest", "catch_signals"]


class Interrupted(KeyboardInterrupt):
    """A training was interrupted and has written a checkpoint; the message says how to resume."""


class StopRequest:
    """Whether SIGINT or SIGTERM was received."""

    received = False

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Record the first signal; the second raises KeyboardInterrupt immediately."""
        if self.received:
            raise KeyboardInterrupt
        self.received = True


@contextmanager
def catch_signals(active: bool) -> Iterator[StopRequest]:
    """Catch SIGINT and SIGTERM inside the block if `active`; only possible in the main thread."""
    request = StopRequest()
    if not active or threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.signal(number, request.handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
