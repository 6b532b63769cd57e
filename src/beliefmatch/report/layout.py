"""Layouts for any width: numbers are never cut short."""

from collections.abc import Sequence
from typing import NamedTuple

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table

__all__ = ["Column", "FirstThatFits", "plain_table"]

_UNBOUNDED = 10_000  # columns; to measure what a layout needs rather than what it is offered


class Column(NamedTuple):
    """A column of numbers, which takes the room they need, or of text, which folds."""

    heading: str
    cells: Sequence[str]
    footer: str = ""
    is_text: bool = False
    least: int = 0
    """Cells of the terminal that text is not folded below."""

    @property
    def width(self) -> int:
        """That of the longest line."""
        return max(
            cell_len(line) for text in (self.heading, *self.cells, self.footer) for line in text.split("\n")
        )


class FirstThatFits:
    """Shows the first of several layouts that the width has room for.

    When there is none, the last is shown at the width it needs, over the edge.
    """

    def __init__(self, *layouts: RenderableType) -> None:
        self.layouts = layouts

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        unbounded = options.update(width=_UNBOUNDED)
        for layout in self.layouts:
            needed = Measurement.get(console, unbounded, layout).minimum
            if needed <= options.max_width or layout is self.layouts[-1]:
                yield from console.render(layout, options.update(width=max(needed, options.max_width)))
                return


def plain_table(
    *columns: Column, title: str | None = None, caption: str | None = None, dense: bool = False
) -> Table:
    """A table with a line below its head; a dense one has a single space between columns."""
    table = Table(
        title=title,
        caption=caption,
        box=box.SIMPLE_HEAD,
        padding=0 if dense else (0, 1),
        title_justify="left",
        caption_justify="left",
        show_footer=any(column.footer for column in columns),
    )
    for column in columns:
        if column.is_text:
            table.add_column(column.heading, overflow="fold", min_width=column.least or None)
        else:
            table.add_column(
                column.heading,
                footer=column.footer,
                justify="right",
                vertical="bottom",
                no_wrap=True,
                min_width=column.width,
            )
    for row in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*row)
    return table
