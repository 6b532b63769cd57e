"""Tasks that tests of executors submit: a module, because other processes have to import it."""

import os
import signal
import time
from pathlib import Path

from beliefmatch.experiments import ray_executor


def square(number, *, on_progress):
    on_progress(0.5, f"half of {number}")
    on_progress(1.0, "done")
    return number**2, os.getpid()


def failing(path, *, on_progress):
    with Path(path).open("a") as file:
        file.write("once\n")
    raise FloatingPointError("the loss is not finite", 7)


class DownloadError(Exception):
    """Cannot be unpickled: its argument has no place in `args`."""

    def __init__(self, *, url):
        super().__init__(f"no answer from {url}")


def failing_in_its_own_way(url, *, on_progress):
    raise DownloadError(url=url)


def sleeping(path, *, on_progress):
    try:
        Path(path).touch()
        on_progress(0.1, "asleep")
        for _ in range(1200):
            time.sleep(0.1)
    except KeyboardInterrupt:
        Path(path).write_text("saved")
        raise


def interrupted_once(path, *, on_progress):
    if not Path(path).exists():
        Path(path).touch()
        raise KeyboardInterrupt  # as of a training whose process gets SIGTERM
    return "done"


def length_of(mapping, name, *, on_progress):
    return len(mapping[name])


def counting(path, *, on_progress):
    on_progress(0.0, "begins")
    directory = Path(path)
    own = directory / f"{os.getpid()}-{time.monotonic_ns()}"
    own.touch()
    most, begun = 1, time.monotonic()
    while most == 1 and time.monotonic() - begun < 5:  # a second process may have to import torch first
        time.sleep(0.1)
        most = len(list(directory.iterdir()))
    time.sleep(0.5)
    most = max(most, len(list(directory.iterdir())))
    own.unlink()
    return most


def dying(path, times, *, on_progress):
    attempts = len(list(Path(path).iterdir()))
    (Path(path) / f"{attempts}").touch()
    if attempts < times:
        os.kill(os.getpid(), signal.SIGKILL)
    return attempts


def where(*, on_progress):
    import ray

    time.sleep(1)
    return ray.get_runtime_context().get_node_id()


def hungry(size, *, on_progress):
    content = bytearray(size)
    for start in range(0, size, 1 << 28):
        content[start : start + (1 << 28)] = b"1" * len(content[start : start + (1 << 28)])
        time.sleep(0.2)
    return len(content)


class SlowBoard(ray_executor._Board):
    """A board that answers late, as on a node that is busy or has a slow disk."""

    def __init__(self) -> None:
        time.sleep(10.0)
        super().__init__()
