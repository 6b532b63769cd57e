"""One model of a table, and four renderings: terminal, CSV, Markdown, HTML.

A row is a model (or a method, a head, a λ), a column a metric. Cells hold numbers; how many digits are shown,
and in which unit, is the column's. Names are data: every renderer escapes them in its own way.
"""

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from io import StringIO
from itertools import groupby
from statistics import fmean, stdev
from textwrap import wrap
from typing import Literal

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table as RichTable

from beliefmatch.report.text import MISSING, markdown_text, number_text, shorten, spreadsheet_text

__all__ = [
    "MARKS_LEGEND",
    "Better",
    "Cell",
    "Column",
    "FirstThatFits",
    "Mark",
    "Row",
    "Table",
    "column_parts",
    "is_below_chance",
    "markdown_report",
    "marked",
    "mean_cell",
    "plain_text",
    "rows_of",
    "to_csv",
    "to_markdown",
    "to_rich",
    "with_chance",
]

Mark = Literal["best", "close", ""]
Better = Literal["low", "high", "zero", ""]
MARKS_LEGEND = "best, ≈ indistinguishable from the best"
_SIGNS = {"best": "*", "close": "≈", "": ""}
_ARROWS = {"low": "↓", "high": "↑", "zero": "→0", "": ""}
_CSV_HEAD = ("table", "row", "group", "metric", "value", "low", "high", "sd", "better", "note")
_UNBOUNDED = 10_000  # columns; to measure what a layout needs rather than what it is offered
_LONGEST_LABEL, _NARROWEST_LABEL = 160, 16
_MOST_COLUMNS = 8  # of a table on a page, which may be printed


@dataclass(frozen=True)
class Column:
    """A metric and how it is shown."""

    key: str
    title: str
    unit: str = ""
    better: Better = ""
    digits: int = 2
    scale: float = 1.0
    group: str = ""
    """Heading above neighbouring columns, such as the name of an OOD set."""
    help: str = ""
    """What the metric is, in one sentence."""

    @property
    def heading(self) -> str:
        """Title, unit and the direction that is better."""
        return " ".join(filter(None, (self.title, self.unit, _ARROWS[self.better])))

    def text(self, value: float | str | None) -> str:
        """A value with the digits and in the unit of this column."""
        return value if isinstance(value, str) else number_text(value, self.digits, scale=self.scale)


@dataclass(frozen=True)
class Cell:
    """A number with its interval or its deviation over seeds; or a text."""

    value: float | str | None
    low: float | None = None
    high: float | None = None
    sd: float | None = None
    mark: Mark = ""
    note: str = ""
    """Why there is no value, or what else is to be said of it."""

    def spread(self, column: Column) -> str:
        """The interval in brackets, or the deviation; empty where there is neither."""
        if self.sd is not None:
            return f"± {column.text(self.sd)}"
        if self.value is None or self.low is None or self.high is None:
            return ""
        return f"[{column.text(self.low)}, {column.text(self.high)}]"


@dataclass(frozen=True)
class Row:
    """The cells of a model."""

    label: str
    cells: Sequence[Cell]
    model: int | None = None
    """Number of the model, whose colour stands before the label."""
    is_chosen: bool = False
    """Whether the row is the delivered one, which is emphasised."""


@dataclass(frozen=True)
class Table:
    """Rows and columns with a title above and a caption below."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    caption: str = ""
    row_title: str = "model"

    def __str__(self) -> str:
        """The table as a terminal shows it."""
        return plain_text(to_rich(self))

    @property
    def is_marked(self) -> bool:
        """Whether any number is marked as the best."""
        return any(cell.mark for row in self.rows for cell in row.cells)

    def without_empty(self) -> "Table":
        """The table without columns that have no value in any row."""
        return self.of_columns(
            [
                place
                for place in range(len(self.columns))
                if any(row.cells[place].value is not None for row in self.rows)
            ]
        )

    def of_columns(self, places: Sequence[int]) -> "Table":
        """The table with these columns alone."""
        rows = [replace(row, cells=[row.cells[place] for place in places]) for row in self.rows]
        return replace(self, columns=[self.columns[place] for place in places], rows=rows)


def rows_of(
    labels: Sequence[str],
    cells: Sequence[Sequence[Cell]],
    *,
    models: Sequence[int] | None = None,
    chosen: int | None = None,
) -> list[Row]:
    """Rows from the cells of each column.

    Args:
        labels: One for each row.
        cells: Columns, each with one cell for each row.
        models: Numbers of the models of the rows; by default 0, 1, 2, ...
        chosen: Place of the delivered row.
    """
    return [
        Row(label, [column[place] for column in cells], models[place] if models else place, place == chosen)
        for place, label in enumerate(labels)
    ]


def mean_cell(values: Sequence[float | None], *, is_infinite: bool = False, without: str = "") -> Cell:
    """Mean and standard deviation (n − 1 in the denominator) over the seeds that have a value.

    Args:
        values: One for each seed.
        is_infinite: Whether a missing value is infinite, which makes the mean infinite.
        without: Why a seed has no value, also worth a note where none has one.
    """
    present = [value for value in values if value is not None]
    absent = len(values) - len(present)
    if absent and is_infinite:
        return Cell(math.inf)
    note = f"{absent} of {len(values)} seeds {without or 'without a value'}" if absent else ""
    if not present:
        return Cell(None, note=note if without else "")
    return Cell(fmean(present), sd=stdev(present) if len(present) > 1 else None, note=note)


def is_below_chance(cell: Cell) -> bool:
    """Whether an AUROC is less than chance by more than its deviation, or its whole interval is."""
    if not isinstance(cell.value, float):
        return False
    return (cell.value + cell.sd if cell.sd is not None else cell.high or cell.value) < 0.5


def with_chance(cell: Cell) -> Cell:
    """An AUROC with a note where it is worse than chance."""
    return replace(cell, note="worse than chance") if is_below_chance(cell) else cell


def marked(cells: Sequence[Cell], better: Better) -> list[Cell]:
    """The cells of one column with the best value marked, and those whose interval meets that of the best.

    Nothing is marked where there is nothing to compare or to choose, or where a value has neither interval
    nor deviation: then a difference may be chance.
    """
    folded = [_cost(cell, better) for cell in cells]
    present = [cost for cost in folded if cost is not None]
    values = {value for value, _, _ in present}
    is_unsure = any(
        isinstance(cell.value, float | int) and cell.low is None and cell.sd is None for cell in cells
    )
    if not better or is_unsure or len(values) < 2:
        return list(cells)
    least = min(values)
    reach = max(high for value, _, high in present if value == least)
    return [replace(cell, mark=_mark(cost, least, reach)) for cell, cost in zip(cells, folded, strict=True)]


def _mark(cost: tuple[float, float, float] | None, least: float, reach: float) -> Mark:
    if cost is None:
        return ""
    value, low, _ = cost
    return "best" if value == least else "close" if low <= reach else ""


def _cost(cell: Cell, better: Better) -> tuple[float, float, float] | None:
    """Value, low and high turned so that less is better."""
    value, low, high = cell.value, cell.low, cell.high
    if not isinstance(value, float | int):
        return None
    if cell.sd is not None:
        low, high = value - cell.sd, value + cell.sd
    low, high = (value, value) if low is None or high is None else (low, high)
    if better == "high":
        return -value, -high, -low
    if better == "zero":
        nearest = 0.0 if low <= 0 <= high else min(abs(low), abs(high))
        return abs(value), nearest, max(abs(low), abs(high))
    return value, low, high


# Terminal


class FirstThatFits:
    """Shows the first of several layouts that the width has room for.

    When there is none, the last is shown at the width it needs, over the edge: no number is cut short.
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


def to_rich(table: Table) -> FirstThatFits:
    """For a terminal: spreads beside their values, else below them, else columns in several tables."""

    def part(columns: Sequence[int], between: str, *, dense: bool) -> RichTable:
        return _rich_part(table, columns, between, dense=dense)

    every = range(len(table.columns))
    layouts: list[RenderableType] = [
        part(every, " ", dense=False),
        part(every, " ", dense=True),
        part(every, "\n", dense=True),
    ]
    for across in range(len(every) - 1, 0, -1):
        parts = [part(every[start : start + across], "\n", dense=True) for start in every[::across]]
        for one in parts[1:]:
            one.title = None
        for one in parts[:-1]:
            one.caption = None
        layouts.append(Group(*parts))
    return FirstThatFits(*layouts)


def plain_text(shown: RenderableType, *, width: int = 110) -> str:
    """What a terminal of this width would show, without colours."""
    text = StringIO()
    Console(file=text, width=width, color_system=None, highlight=False).print(shown, crop=False)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def _rich_part(table: Table, columns: Sequence[int], between: str, *, dense: bool) -> RichTable:
    made = RichTable(
        title=escape(table.title) or None,
        caption=escape(table.caption) or None,
        box=box.SIMPLE_HEAD,
        padding=0 if dense else (0, 1),
        title_justify="left",
        caption_justify="left",
    )
    labels = [shorten(row.label, _LONGEST_LABEL) for row in table.rows]
    least = min(_NARROWEST_LABEL, max(map(cell_len, labels), default=0))
    made.add_column(escape(table.row_title), overflow="fold", min_width=least or None)
    texts = [[_terminal_cell(row.cells[place], table.columns[place], between) for row in table.rows]
             for place in columns]  # fmt: skip
    for place, column_texts in zip(columns, texts, strict=True):
        column = table.columns[place]
        full = ", ".join(filter(None, (column.group, column.heading)))
        heading = "\n".join(wrap(shorten(full, 48), 16))
        lines = [line for text in (heading, *column_texts) for line in text.split("\n")]
        made.add_column(
            escape(heading),
            justify="right",
            vertical="bottom",
            no_wrap=True,
            min_width=max(map(cell_len, lines)),
        )
    for place, label in enumerate(labels):
        made.add_row(escape(label), *(escape(column_texts[place]) for column_texts in texts))
    return made


def _terminal_cell(cell: Cell, column: Column, between: str) -> str:
    """The mark stands before the number, so that digits stay below digits."""
    value = f"{_SIGNS[cell.mark]}{column.text(cell.value)}"
    return between.join(filter(None, (value, cell.spread(column))))


# Files


def to_csv(tables: Iterable[Table]) -> str:
    """One line for each number, in full precision and never in percent; safe to open in a spreadsheet."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_CSV_HEAD)
    for table in tables:
        for row in table.rows:
            for column, cell in zip(table.columns, row.cells, strict=True):
                names = (table.title, row.label, column.group, column.key)
                numbers = (cell.value, cell.low, cell.high, cell.sd)
                writer.writerow(
                    [
                        *map(spreadsheet_text, names),
                        *map(_csv_value, numbers),
                        column.better,
                        spreadsheet_text(cell.note),
                    ]
                )
    return text.getvalue()


def _csv_value(value: float | str | None) -> str:
    if isinstance(value, str):
        return spreadsheet_text(value)
    return "" if value is None else repr(value)


def to_markdown(table: Table, *, level: int = 3) -> str:
    """A heading, the table, and its caption."""
    heads = [
        markdown_text(", ".join(filter(None, (column.group, column.heading)))) for column in table.columns
    ]
    lines = [[markdown_text(table.row_title), *heads], ["---", *("---:" for _ in heads)]]
    for row in table.rows:
        cells = [_markdown_cell(cell, column) for cell, column in zip(row.cells, table.columns, strict=True)]
        lines.append([markdown_text(row.label), *cells])
    body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    title = f"{'#' * level} {markdown_text(table.title)}" if table.title else ""
    return "\n\n".join(filter(None, (title, body, markdown_text(table.caption))))


def markdown_report(tables: Sequence[Table]) -> str:
    """Tables below each other."""
    return "\n\n".join(map(to_markdown, tables)) + "\n"


def _markdown_cell(cell: Cell, column: Column) -> str:
    text = markdown_text(column.text(cell.value))
    value = f"**{text}**" if cell.mark == "best" else f"{_SIGNS[cell.mark]} {text}".strip()
    note = f"({markdown_text(cell.note)})" if cell.note else ""
    return " ".join(filter(None, (value, cell.spread(column), note)))


# HTML: the page's template draws `columns`, `rows` and these headings.


def column_groups(table: Table) -> list[tuple[str, int]]:
    """Headings above neighbouring columns and how many they span; empty where no column has one."""
    if not any(column.group for column in table.columns):
        return []
    return [(group, len(list(same))) for group, same in groupby(column.group for column in table.columns)]


def column_parts(table: Table) -> list[Table]:
    """Tables of so few columns that each fits on paper; columns of one group stay together."""
    if len(table.columns) <= _MOST_COLUMNS:
        return [table]
    parts: list[list[int]] = [[]]
    for _, same in groupby(range(len(table.columns)), key=lambda place: table.columns[place].group or place):
        group = list(same)
        if parts[-1] and len(parts[-1]) + len(group) > _MOST_COLUMNS:
            parts.append([])
        parts[-1] += group
    return [table.of_columns(part) for part in parts]


def html_cell(cell: Cell, column: Column) -> dict[str, str]:
    """Texts of a cell for the template."""
    missing = cell.value is None
    return {
        "value": MISSING if missing else column.text(cell.value),
        "spread": cell.spread(column),
        "note": cell.note,
        "mark": cell.mark,
    }
