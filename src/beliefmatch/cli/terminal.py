"""What a command prints to: rich on a terminal, plain text elsewhere."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

__all__ = ["progress", "share_done", "show"]

_QUIET_SECONDS = 60.0  # between lines about work that goes on, where there is no terminal
_PLAIN_WIDTH = 120  # files and pipes have no width; in this no row of our tables is folded


def show(*parts: RenderableType) -> None:
    """Print on standard output; a line too long for the terminal is continued, never cut."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _PLAIN_WIDTH
    console.print(*parts, crop=False)


@contextmanager
def progress(total: int) -> Iterator[Callable[[str], None]]:
    """A bar on standard error, gone when done; yields a function to call at each step."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total)
        yield lambda doing: bar.update(task, advance=1, description=doing)


@contextmanager
def share_done() -> Iterator[Callable[[float, str], None]]:
    """A bar on standard error with the time left; yields a function of the share done and what is doing.

    Without a terminal, a line now and then, so that a log shows that long work goes on.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Log(console)
        return
    columns = (
        BarColumn(20),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(elapsed_when_finished=False),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda share, doing: bar.update(task, completed=share, description=doing)


class _Log:
    """Says how far work is, in a line a minute."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._start = self._last = time.monotonic()

    def __call__(self, share: float, doing: str) -> None:
        now = time.monotonic()
        if now - self._last < _QUIET_SECONDS:
            return
        self._last = now
        text = f"{100 * share:.0f} % after {(now - self._start) / 60:.0f} min: {doing}"
        self._console.out(text, highlight=False)
