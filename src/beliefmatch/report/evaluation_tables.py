"""Tables of evaluations: for the terminal, for a spreadsheet, for a README."""

import csv
from collections.abc import Iterator, Sequence
from io import StringIO
from textwrap import wrap

from rich.console import Group
from rich.markup import escape
from rich.table import Table

from beliefmatch.experiments.evaluation_record import EvaluationRecord
from beliefmatch.report.evaluation_metrics import score_title
from beliefmatch.report.evaluation_rows import (
    MetricRow,
    Section,
    TableCell,
    detection_sections,
    has_differences,
    same_examples,
    summary,
)
from beliefmatch.report.evaluation_text import count_text, presentable, shorten
from beliefmatch.report.layout import Column, FirstThatFits, plain_table
from beliefmatch.report.safe_text import markdown_text, spreadsheet_text

__all__ = ["terminal_table", "to_csv", "to_markdown"]

_MARKS = {"best": "*", "close": "≈", "": ""}
_ARROWS = {"low": "↓", "high": "↑", "zero": "→0", "": ""}
_CSV_HEAD = ("model", "set", "score", "metric", "value", "low", "high", "better", "note")
_WAYS = "↓ less is better, ↑ more"
_OVERLAP = "interval overlaps that of the best"
_HOLDS_ZERO = "its difference above the best may be 0 or, where none is shown"
_AREAS = "AUROC: area under the ROC curve"
_TERMS = f"{_AREAS}; FPR95: OOD that pass where 95 % of in-distribution pass"


def terminal_table(records: Sequence[EvaluationRecord]) -> FirstThatFits:
    """The summary of all models, side by side as far as the terminal is wide."""
    models = presentable(records, caller="terminal_table")
    layouts = [
        _stack(models, columns_across, between)
        for columns_across in range(len(models), 0, -1)
        for between in (" ", "\n")
        if columns_across == len(models) or between == "\n"
    ]
    return FirstThatFits(*layouts)


def _stack(models: Sequence[EvaluationRecord], columns_across: int, between: str) -> Group:
    """Tables below each other, each with so many models side by side."""
    sections = [section for section in summary(models) if section.title != "Other"]
    starts = range(0, len(models), columns_across)
    tables = [_block(models, sections, start, start + columns_across, between) for start in starts]
    tables[0].title = _title(models)
    legend = f"{_WAYS}; * best, ≈ {_close(sections)}" if len(models) > 1 else _WAYS
    keys = {row.key for section in sections for row in section.rows}
    terms = _TERMS if "fpr95" in keys else _AREAS if "auroc" in keys else ""
    tables[-1].caption = f"{legend}\n{terms}".strip()
    return Group(*tables)


def _close(sections: Sequence[Section]) -> str:
    """The meaning of the sign of a model that is indistinguishable from the best."""
    return f"{_HOLDS_ZERO}, {_OVERLAP}" if has_differences(sections) else _OVERLAP


def _block(
    models: Sequence[EvaluationRecord], sections: Sequence[Section], start: int, stop: int, between: str
) -> Table:
    rows = [row for section in sections for row in section.rows]
    cells = [row.cells() for row in rows]
    titles = Column("", [_plain_title(row) for row in rows], is_text=True)
    columns = [
        Column(_heading(model.name), [_terminal_cell(row[index], between) for row in cells])
        for index, model in enumerate(models[start:stop], start)
    ]
    return plain_table(titles, *columns, dense=between == "\n")


def _heading(name: str) -> str:
    return escape("\n".join(wrap(shorten(name, 48), 16)))


def _terminal_cell(cell: TableCell, between: str) -> str:
    """The mark stands before the number, so that digits stay below digits."""
    parts = [f"{_MARKS[cell.mark]} {cell.value}".strip(), *([cell.interval] if cell.interval else [])]
    return escape(between.join(parts))


def _title(models: Sequence[EvaluationRecord]) -> str:
    first, differing = models[0], len({model.examples for model in models}) > 1
    examples = "differing numbers of examples" if differing else count_text(first.examples, "example")
    if not differing and not same_examples(models):
        examples += " with different targets, so that the models do not compare"
    return f"{examples}, {len(first.class_names)} classes"


def _plain_title(row: MetricRow) -> str:
    name = shorten(row.metric.short or row.title, 40)
    return escape(" ".join(part for part in (name, row.unit, _ARROWS[row.better]) if part))


def to_csv(records: Sequence[EvaluationRecord]) -> str:
    """One line for each number, in full precision and never in percent; safe to open in a spreadsheet."""
    models = presentable(records, caller="to_csv")
    sections = [*(s for s in summary(models) if not s.title.startswith("Detection"))]
    sections += detection_sections(models, twins=True)
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_CSV_HEAD)
    for index, model in enumerate(models):
        for row in (row for section in sections for row in section.rows):
            number = row.numbers[index]
            names = (model.name, row.set, row.score, row.key)
            values = (
                "" if value is None else repr(value) for value in (number.value, number.low, number.high)
            )
            writer.writerow(
                [*map(spreadsheet_text, names), *values, row.better, spreadsheet_text(number.why)]
            )
    return text.getvalue()


def to_markdown(records: Sequence[EvaluationRecord]) -> str:
    """A table of the summary, and one for each thing to detect."""
    models = presentable(records, caller="to_markdown")
    blocks = list(_markdown_blocks(models))
    legend = "↓ less is better, ↑ more is better, →0 nearer to zero is better; intervals in brackets."
    if len(models) > 1:
        legend += f" **Bold**: best; ≈ {_close(summary(models))}."
    if any(section.rows for section in detection_sections(models)):
        legend += f" {_AREAS}; AUPR: area under the precision-recall curve."
    return "\n\n".join([*blocks, legend]) + "\n"


def _markdown_blocks(models: Sequence[EvaluationRecord]) -> Iterator[str]:
    yield f"## {_title(models)}"
    for section in summary(models):
        yield _markdown_table(section.title, models, section.rows, [row.title for row in section.rows])
    for section in detection_sections(models):
        if section.rows:
            titles = [f"{row.title}, {score_title(row.score)}" for row in section.rows]
            yield _markdown_table(f"Detection: {section.title}", models, section.rows, titles)


def _markdown_table(
    title: str, models: Sequence[EvaluationRecord], rows: Sequence[MetricRow], titles: Sequence[str]
) -> str:
    head = [" ", *(markdown_text(model.name) for model in models)]
    lines = [head, ["---", *("---:" for _ in models)]]
    for row, name in zip(rows, titles, strict=True):
        label = " ".join(part for part in (markdown_text(name), row.unit, _ARROWS[row.better]) if part)
        lines.append([label, *map(_markdown_cell, row.cells())])
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"### {markdown_text(title)}\n\n{table}"


def _markdown_cell(cell: TableCell) -> str:
    if cell.why:
        return f"{cell.value} ({markdown_text(cell.why)})"
    value = f"**{cell.value}**" if cell.mark == "best" else f"{_MARKS[cell.mark]} {cell.value}".strip()
    chance = f"({cell.chance})" if cell.chance else ""
    return " ".join(part for part in (value, cell.interval, chance) if part)
