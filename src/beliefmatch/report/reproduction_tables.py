"""Tables of a reproduction for the terminal."""

from collections.abc import Sequence

from rich.console import RenderableType
from rich.markup import escape

from beliefmatch.report.evaluation_text import MISSING, number_text
from beliefmatch.report.layout import Column, FirstThatFits, plain_table
from beliefmatch.report.reproduction_rows import (
    DEVIATIONS,
    caption,
    count,
    grouped,
    has_paper,
    measures_of,
    ours_text,
    paper_text,
    shown_reproduction,
)
from beliefmatch.reproduce.record import ReproductionRecord, Row

__all__ = ["reproduction_tables"]

_NARROW = 10  # cells of text that words can still be read in


def reproduction_tables(record: ReproductionRecord) -> tuple[RenderableType, ...]:
    """The paper's numbers beside ours, then how the protocols differ."""
    shown = shown_reproduction(record)
    heading = escape(f"{shown.id} ({shown.place}): {shown.title}\n{caption(shown)}\n{DEVIATIONS}\n")
    with_paper = [row for row in shown.rows if has_paper(grouped(shown.rows)[row.group])]
    parts: list[RenderableType] = [heading]
    if with_paper:
        parts.append(_beside_paper(with_paper))
    parts += [_measured(group, rows) for group, rows in grouped(shown.rows).items() if not has_paper(rows)]
    return (*parts, _protocol(shown.differences))


def _beside_paper(rows: Sequence[Row]) -> RenderableType:
    table = plain_table(
        _text("", [row.group for row in rows]),
        _text("", [row.label for row in rows]),
        _text("", [f"{row.measure} {row.unit}".strip() for row in rows]),
        Column("paper", [paper_text(row.paper, row.digits) for row in rows]),
        Column("ours", [ours_text(row) for row in rows]),
        Column("n", [f"{count(row)}" for row in rows]),
        Column("s per run", [number_text(row.train_seconds, 0) for row in rows]),
        _text("", [row.note for row in rows]),
    )
    return FirstThatFits(table)


def _measured(group: str, rows: Sequence[Row]) -> RenderableType:
    """Numbers that the paper does not have: a line a method, a column a measure."""
    lines = measures_of(rows)
    heads = list(dict.fromkeys(head for line in lines.values() for head in line))
    columns = [
        Column(escape(head.replace(", ", "\n")), [_cell(line.get(head)) for line in lines.values()])
        for head in heads
    ]
    notes = [next(iter(line.values())).note for line in lines.values()]
    told = [_text("", notes)] if any(notes) else []
    table = plain_table(_text("", list(lines)), *columns, *told, title=escape(group), dense=len(heads) > 4)
    return FirstThatFits(table)


def _cell(row: Row | None) -> str:
    return MISSING if row is None else ours_text(row).replace(" ± ", "\n± ")


def _text(heading: str, cells: Sequence[str]) -> Column:
    """Folds, but not so far that rows could not be told apart."""
    folded = Column(heading, [escape(cell) for cell in cells], is_text=True)
    return folded._replace(least=min(folded.width, _NARROW))


def _protocol(sentences: Sequence[str]) -> str:
    return escape("\n".join(["Differs from the paper:", *(f"- {sentence}" for sentence in sentences)]))
