"""What a command prints to: rich on a terminal, plain text elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.progress import Progress

__all__ = ["progress", "show"]

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
