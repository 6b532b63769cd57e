"""Reproductions as Markdown: one of them, and all that lie in a directory as one page."""

import shlex
from collections.abc import Mapping, Sequence

from beliefmatch.report.evaluation_tables import markdown_text
from beliefmatch.report.evaluation_text import MISSING, number_text
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

__all__ = ["reproduction_markdown", "summary_markdown"]

_HEAD = ("", "", "", "paper", "ours", "n", "seconds per run", "")


def summary_markdown(records: Sequence[ReproductionRecord], left_out: Mapping[str, str]) -> str:
    """All reproductions below each other.

    Args:
        records: in the order to show them.
        left_out: why others were not run, by their names.
    """
    parts = ["# The paper's tables and figures, run here"]
    parts += [reproduction_markdown(record, figures=f"{record.id}/figures").rstrip() for record in records]
    if left_out:
        lines = [f"- {markdown_text(name)}: {markdown_text(why)}" for name, why in left_out.items()]
        parts.append("\n".join(["## Not run", "", *lines]))
    return "\n\n".join(parts) + "\n"


def reproduction_markdown(record: ReproductionRecord, *, figures: str = "figures") -> str:
    """Numbers beside the paper's, figures, command, and how the protocols differ.

    Args:
        record: of one reproduction.
        figures: where its figures lie, as seen from the file that this is written to.
    """
    shown = shown_reproduction(record)
    blocks = [
        f"## {markdown_text(shown.id)}: {markdown_text(shown.title)}",
        f"{markdown_text(shown.place)}. **{markdown_text(caption(shown))}.** {DEVIATIONS}",
        *_tables(shown.rows),
        *(
            f"![{markdown_text(one.title)}]({figures}/{one.name}.png)"
            for one in shown.drawings
            if one.is_drawn
        ),
        "Differs from the paper:",
        "\n".join(f"- {markdown_text(sentence)}" for sentence in shown.differences),
    ]
    if shown.command:
        blocks.append(f"```sh\n{shlex.join(shown.command)}\n```")
    return "\n\n".join(blocks) + "\n"


def _tables(rows: Sequence[Row]) -> list[str]:
    groups = grouped(rows)
    beside = [row for group in groups.values() if has_paper(group) for row in group]
    tables = [_table(_HEAD, [_line(row) for row in beside])] if beside else []
    return tables + [_measured(group, own) for group, own in groups.items() if not has_paper(own)]


def _line(row: Row) -> list[str]:
    return [
        markdown_text(row.group),
        markdown_text(row.label),
        markdown_text(f"{row.measure} {row.unit}".strip()),
        paper_text(row.paper, row.digits),
        ours_text(row),
        f"{count(row)}",
        number_text(row.train_seconds, 0),
        markdown_text(row.note),
    ]


def _measured(group: str, rows: Sequence[Row]) -> str:
    lines = measures_of(rows)
    heads = list(dict.fromkeys(head for line in lines.values() for head in line))
    cells = [
        [
            markdown_text(label),
            *(ours_text(line[head]) if head in line else MISSING for head in heads),
            f"{max(map(count, line.values()))}",
            number_text(next(iter(line.values())).train_seconds, 0),
            markdown_text(next(iter(line.values())).note),
        ]
        for label, line in lines.items()
    ]
    return _table((markdown_text(group), *map(markdown_text, heads), "n", "seconds per run", ""), cells)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [[one or " " for one in head], ["---" for _ in head], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
