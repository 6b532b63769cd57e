"""Peak memory of an operation, from the allocations that torch's profiler records."""

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from torch.profiler import ProfilerActivity, profile

__all__ = ["peak_bytes"]


def peak_bytes(operation: Callable[[], object]) -> int:
    """The most bytes that were allocated at one time while the operation ran, beyond those before it.

    Sees every CPU tensor and every buffer that torch's allocator hands out, also those of compiled code
    and of C++ extensions that use it. Does not see what a library takes from malloc on its own, thread
    stacks or code. Memory that existed before the operation is not counted, nor its release.
    """
    profiler = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
    with _without_stderr():
        profiler.start()
    try:
        operation()
    finally:
        with _without_stderr():
            profiler.stop()
    total = peak = 0
    for change in _allocations(profiler):
        total += change
        peak = max(peak, total)
    return peak


def _allocations(profiler: profile) -> list[int]:
    """Bytes allocated (positive) and freed (negative), in order of time."""
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    changes = [event for event in events if event.get("name") == "[memory]"]
    on_cpu = [event for event in changes if event["args"]["Device Type"] == 0]
    return [event["args"]["Bytes"] for event in sorted(on_cpu, key=lambda event: event["ts"])]


@contextmanager
def _without_stderr() -> Iterator[None]:
    """Some builds of the profiler write a line at every start and stop, below Python."""
    sys.stderr.flush()
    kept = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
