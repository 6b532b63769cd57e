"""What a command prints to: rich on a terminal, plain text elsewhere."""

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
    """A bar on standard error with the time left; yields a function of the share done and what is doing."""
    console = Console(stderr=True)
    columns = (
        BarColumn(20),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(elapsed_when_finished=False),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda share, doing: bar.update(task, completed=share, description=doing)
