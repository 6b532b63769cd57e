"""What a command prints to: rich on a terminal, plain text elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress

__all__ = ["output", "progress"]

_PLAIN_WIDTH = 120  # files and pipes have no width; in this no row of our tables is folded


def output() -> Console:
    """Standard output."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _PLAIN_WIDTH
    return console


@contextmanager
def progress(total: int) -> Iterator[Callable[[str], None]]:
    """A bar on standard error, gone when done; yields a function to call at each step."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total)
        yield lambda doing: bar.update(task, advance=1, description=doing)
