"""A reproduction shown: its files (record, Markdown, figures), tables for the terminal, the list of all."""

import math
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace as with_values
from itertools import groupby
from statistics import fmean, stdev
from typing import NamedTuple

from rich.console import RenderableType
from rich.markup import escape

from beliefmatch.report.comparison_figures import rotation_figure
from beliefmatch.report.figure import Axis, Figure, Panel, Series, paper_files
from beliefmatch.report.style import Look, looks
from beliefmatch.report.table import Cell, Column, Table, mean_cell, to_rich
from beliefmatch.report.table import Row as TableRow
from beliefmatch.report.text import MISSING, markdown_text, number_text, tidy
from beliefmatch.reproduce import record as recorded
from beliefmatch.reproduce.record import Drawing, ReproductionRecord, Row

__all__ = [
    "Listed",
    "common_markdown",
    "common_notes",
    "list_tables",
    "ours_text",
    "overview_table",
    "reproduction_figures",
    "reproduction_files",
    "reproduction_findings",
    "reproduction_markdown",
    "reproduction_tables",
    "summary_markdown",
]

_DEVIATIONS = "± is the standard deviation over the seeds that did not diverge (n − 1 in the denominator)."
_KINDS = ("svg", "png")


def reproduction_files(record: ReproductionRecord) -> list[tuple[str, bytes]]:
    """Name and content of each file, relative to the directory of the reproduction."""
    return [
        ("reproduction.json", record.to_json().encode()),
        ("summary.md", reproduction_markdown(record).encode()),
        *((f"figures/{name}", content) for name, content in reproduction_figures(record)),
    ]


# Numbers as text


def ours_text(row: Row) -> str:
    """Mean and standard deviation (n − 1 in the denominator) over the seeds that did not diverge.

    Where some of these have no finite number, such as an infinite NLL, it says how many seeds it is of.
    """
    present = [value for value in row.values if value is not None]
    if not present:
        return "diverged" if row.diverged == len(row.values) else MISSING
    deviation = stdev(present) if len(present) > 1 else None
    ended = len(row.values) - row.diverged
    seeds = f" ({len(present)} of {ended} seeds)" if len(present) < ended else ""
    return _with_deviation(fmean(present), deviation, row.digits) + seeds


def _with_deviation(value: float, deviation: float | None, digits: int) -> str:
    mean = number_text(value, digits)
    return mean if deviation is None else f"{mean} ± {number_text(deviation, digits)}"


def _count(row: Row) -> int:
    """Seeds that have a number."""
    return sum(value is not None for value in row.values)


def _caption(record: ReproductionRecord) -> str:
    """Scale and seeds, which stand with every table and figure."""
    seeds = len(record.seeds)
    return f"{record.scale_words}; {seeds} seed{'' if seeds == 1 else 's'}"


# Tables: groups with numbers of the paper share one, with a line a number. Each other group has its own, with
# a line a method and a column a measure.


def _paper_lines(rows: Sequence[Row]) -> list[list[str]]:
    """Cells of the rows of groups for which the paper has a number."""
    groups = {row.group for row in rows if row.paper is not None}
    return [
        [
            row.group,
            row.label,
            f"{row.measure} {row.unit}".strip(),
            MISSING
            if row.paper is None
            else _with_deviation(row.paper.value, row.paper.deviation, row.digits),
            ours_text(row),
            f"{_count(row)}",
            number_text(row.train_seconds, 0),
            row.note,
        ]
        for group in dict.fromkeys(row.group for row in rows)
        if group in groups
        for row in rows
        if row.group == group
    ]


class _Measured(NamedTuple):
    """A group for which the paper has no number."""

    group: str
    measures: list[str]
    methods: dict[str, dict[str, Row]]
    """Rows by label, then by measure."""


def _measured(rows: Sequence[Row]) -> list[_Measured]:
    groups: dict[str, dict[str, dict[str, Row]]] = {}
    for row in rows:
        if not any(one.paper is not None for one in rows if one.group == row.group):
            methods = groups.setdefault(row.group, {})
            methods.setdefault(row.label, {})[f"{row.measure} {row.unit}".strip()] = row
    return [
        _Measured(group, list(dict.fromkeys(one for own in methods.values() for one in own)), methods)
        for group, methods in groups.items()
    ]


def reproduction_tables(record: ReproductionRecord) -> tuple[RenderableType, ...]:
    """Tables for the terminal, then the differences from the paper's protocol."""
    shown = tidy(record)
    heading = f"{shown.id} ({shown.place}): {shown.title}\n{_caption(shown)}\n{_DEVIATIONS}\n"
    tables = [_measured_table(one) for one in _measured(shown.rows)]
    if lines := _paper_lines(shown.rows):
        heads = ("", "paper", "ours", "n", "s per run", "")
        rows = []
        for group, of_group in groupby(lines, key=lambda line: line[0]):
            rows.append(TableRow(group, [Cell("") for _ in heads]))
            rows += [TableRow(f"  {label}", list(map(Cell, cells))) for _, label, *cells in of_group]
        tables.insert(0, Table("", [Column(head, head) for head in heads], rows, row_title=""))
    sentences = ["Differs from the paper:", *(f"- {sentence}" for sentence in shown.differences)]
    return (escape(heading), *map(to_rich, tables), escape("\n".join(sentences)))


def _measured_table(found: _Measured) -> Table:
    """A row a method, a column a measure, with notes at the end."""
    rows = []
    for label, own in found.methods.items():
        cells = [_mean_cell(own[measure]) if measure in own else Cell(None) for measure in found.measures]
        rows.append(TableRow(label, [*cells, Cell(next(iter(own.values())).note)]))
    digits = {measure: row.digits for own in found.methods.values() for measure, row in own.items()}
    columns = [Column(measure, measure, digits=digits[measure]) for measure in found.measures]
    has_notes = any(row.cells[-1].value for row in rows)
    rows = [with_values(row, cells=row.cells if has_notes else row.cells[:-1]) for row in rows]
    notes = [Column("note", "")] if has_notes else []
    return Table(found.group, [*columns, *notes], rows, row_title="")


def _mean_cell(row: Row) -> Cell:
    """Mean and deviation; words where it is not of all seeds that ended."""
    present = [value for value in row.values if value is not None]
    if not present or len(present) < len(row.values) - row.diverged:
        return Cell(ours_text(row))
    return mean_cell(present)


def reproduction_findings(record: ReproductionRecord) -> list[str]:
    """Whether the paper's best method is the best here, runs that diverged, and where more is shown."""
    same, comparisons = _same_best(record)
    found = []
    if comparisons:
        found.append(
            f"The method with the lowest number in the paper has the lowest mean here in {same} of "
            f"{comparisons} comparisons."
        )
    if diverged := sum(run.diverged is not None for run in record.runs):
        found.append(f"Training diverged in {diverged} of {len(record.runs)} runs.")
    found.append(
        f"The protocol differs from the paper in {len(record.differences)} points, listed on the page."
    )
    if (others := len(reproduction_tables(record)) - 3) > 0:
        found.append(f"{others} more table{'s' if others > 1 else ''}: on the page, or with --verbose.")
    return found


def _same_best(record: ReproductionRecord) -> tuple[int, int]:
    """Comparisons in which the paper's best method is the best here, and all comparisons; less is better."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in record.rows:
        if row.paper is not None:
            groups.setdefault((row.group, row.measure), []).append(row)
    compared = [rows for rows in groups.values() if len(rows) > 1]
    same = 0
    for rows in compared:
        best = min(rows, key=lambda row: row.paper.value if row.paper is not None else math.inf)
        same += best is min(rows, key=_mean)
    return same, len(compared)


def _mean(row: Row) -> float:
    present = [value for value in row.values if value is not None]
    return fmean(present) if present else math.inf


def overview_table(records: Sequence[ReproductionRecord]) -> RenderableType:
    """One line for each reproduction."""
    shown = [tidy(record) for record in records]
    heads = ("best method as in paper", "seeds", "diverged", "differences in protocol")
    rows = []
    for one in shown:
        same, of = _same_best(one)
        diverged = sum(run.diverged is not None for run in one.runs)
        cells = [f"{same} of {of}" if of else MISSING, len(one.seeds), diverged, len(one.differences)]
        rows.append(TableRow(f"{one.id}: {one.title}", [Cell(f"{cell}") for cell in cells]))
    return to_rich(Table("", [Column(head, head) for head in heads], rows, row_title=""))


def reproduction_markdown(
    record: ReproductionRecord, *, figures: str = "figures", common: Sequence[str] = ()
) -> str:
    """Tables, figures, differences from the paper's protocol, and the command, as Markdown.

    Args:
        record: Record of one reproduction.
        figures: Directory of its figures, relative to the file that this is written to.
        common: Differences that stand elsewhere in that file (`common_notes`) and are not repeated.
    """
    shown = tidy(record)
    blocks = [
        f"## {markdown_text(shown.id)}: {markdown_text(shown.title)}",
        f"{markdown_text(shown.place).capitalize()}. **{markdown_text(_caption(shown))}.**",
    ]
    if lines := _paper_lines(shown.rows):
        blocks.append(_paper_markdown(lines, seeds=len(shown.seeds)))
    blocks += [_measured_markdown(one, seeds=len(shown.seeds)) for one in _measured(shown.rows)]
    drawn = [drawing for drawing in shown.drawings if drawing.is_drawn]
    blocks += [f"![{markdown_text(one.title)}]({figures}/{one.name}.png)" for one in drawn]
    listed = [one for one in shown.differences if one not in common]
    further = "further " if len(listed) < len(shown.differences) else ""
    differences = f"difference{'' if len(listed) == 1 else 's'} from the paper"
    summary = f"{len(listed)} {further}{differences}, and the command"
    blocks.append(f'<details markdown="1"><summary>{summary if listed else "The command"}</summary>')
    sentences = listed if _DEVIATIONS in common else [*listed, _DEVIATIONS]
    if sentences:
        blocks.append("\n".join(f"- {_noted(sentence)}" for sentence in sentences))
    if shown.command:
        blocks.append(f"```sh\n{_wrapped_command(shown.command)}\n```")
    blocks.append("</details>")
    return "\n\n".join(blocks) + "\n"


def _paper_markdown(lines: Sequence[Sequence[str]], *, seeds: int) -> str:
    """The paper's numbers beside ours; a measure that all rows share stands in the head."""
    measures = {measure for _, _, measure, *_ in lines}
    head, table, above = ["", "method", "measure", "paper", "ours", "n", "note"], [], None
    for group, label, measure, paper, ours, count, _seconds, note in lines:
        table.append(["" if group == above else group, label, measure, paper, ours, count, note])
        above = group
    if len(measures) == 1:
        head[3:5] = [f"paper, {min(measures)}", f"ours, {min(measures)}"]
    return _narrow_table(head, table, without={"measure"} if len(measures) == 1 else set(), seeds=seeds)


def _measured_markdown(found: _Measured, *, seeds: int) -> str:
    """A row a method, a column a measure."""
    lines = []
    for label, own in found.methods.items():
        cells = [ours_text(own[measure]) if measure in own else MISSING for measure in found.measures]
        lines.append([label, *cells, f"{max(map(_count, own.values()))}", next(iter(own.values())).note])
    return _narrow_table([found.group, *found.measures, "n", "note"], lines, seeds=seeds)


def _narrow_table(
    head: Sequence[str], lines: Sequence[Sequence[str]], *, seeds: int, without: Collection[str] = ()
) -> str:
    """A table without the named columns, empty notes, and numbers of seeds that are all `seeds`."""
    uninformative = {"n": f"{seeds}", "note": ""}
    kept = [
        place
        for place, name in enumerate(head)
        if name not in without
        and not (name in uninformative and all(line[place] == uninformative[name] for line in lines))
    ]
    shown = [[line[place] for place in kept] for line in (head, *lines)]
    return _markdown_table(shown[0], shown[1:])


def _wrapped_command(command: Sequence[str]) -> str:
    """A command for a shell, on lines of at most 80 columns where its options allow it."""
    lines = [""]
    for word in shlex.join(command).replace(" --", "\0--").split("\0"):
        if len(lines[-1]) + len(word) > 74:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip()
    return " \\\n  ".join(lines)


def common_notes(records: Sequence[ReproductionRecord]) -> dict[str, list[str]]:
    """Notes that several records share, with the ids of these records: a page says them once."""
    found: dict[str, list[str]] = {_DEVIATIONS: [record.id for record in records]}
    for shown in map(tidy, records):
        for note in shown.differences:
            found.setdefault(note, []).append(shown.id)
    return {note: ids for note, ids in found.items() if len(ids) > 1}


def common_markdown(records: Sequence[ReproductionRecord]) -> str:
    """The notes that several records share, as a list for each set of records."""
    lists: dict[tuple[str, ...], list[str]] = {}
    for note, ids in common_notes(records).items():
        lists.setdefault(tuple(ids), []).append(f"- {_noted(note)}")
    if not lists:
        return ""
    summary = "Notes and differences from the paper that several share"
    blocks = [f'<details markdown="1"><summary>{summary}</summary>']
    for ids, notes in lists.items():
        name = "All" if len(ids) == len(records) else ", ".join(map(markdown_text, ids))
        blocks.append("\n".join([f"{name}:", "", *notes]))
    return "\n\n".join([*blocks, "</details>"])


def _noted(text: str) -> str:
    """Text as Markdown, in which names between backticks are code."""
    parts = re.split(r"(`[\w.]+`)", text)
    return "".join(part if place % 2 else _escaped(part) for place, part in enumerate(parts))


def _escaped(text: str) -> str:
    """`markdown_text` that keeps the spaces at the ends."""
    return re.sub(r"\S(?:.*\S)?", lambda found: markdown_text(found[0]), text, flags=re.DOTALL)


def _markdown_table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    texts = [[_noted(cell) for cell in line] for line in lines]
    parts = [[markdown_text(cell) or " " for cell in head], ["---" for _ in head], *texts]
    return "\n".join(f"| {' | '.join(part)} |" for part in parts)


def summary_markdown(records: Sequence[ReproductionRecord], left_out: Mapping[str, str]) -> str:
    """All reproductions on one page.

    Args:
        records: Records in the order in which they are shown.
        left_out: Reasons why others were not run, by id.
    """
    parts = ["# The paper's tables and figures, run here"]
    common = tuple(common_notes(records))
    parts += filter(None, [common_markdown(records)])
    parts += [
        reproduction_markdown(record, figures=f"{record.id}/figures", common=common).rstrip()
        for record in records
    ]
    if left_out:
        lines = [f"- {markdown_text(name)}: {markdown_text(reason)}" for name, reason in left_out.items()]
        parts.append("\n".join(["## Not run", "", *lines]))
    return "\n\n".join(parts) + "\n"


# The list of all reproductions


class Listed(NamedTuple):
    """One reproduction at the scales "paper" and "cpu"."""

    id: str
    title: str
    runs: tuple[int, int]
    seconds: tuple[float | None, float | None]
    """On two cores; None where there is no estimate."""


def list_tables(listed: Sequence[Listed], together: Listed) -> tuple[RenderableType, ...]:
    """A line for each reproduction, and the totals.

    Args:
        listed: Reproductions in order.
        together: All of them, with each run counted once.
    """
    heads = ("runs, paper", "time, paper", "runs, cpu", "time, cpu")
    rows = []
    for one in listed:
        (paper, cpu), (paper_time, cpu_time) = one.runs, map(_time_text, one.seconds)
        cells = [f"{paper}", paper_time, f"{cpu}", cpu_time]
        rows.append(TableRow(f"{one.id}: {one.title}", list(map(Cell, cells))))
    table = Table("", [Column(head, head) for head in heads], rows, row_title="")
    sums = [
        f"{runs} at {scale} scale ({_time_text(seconds)})"
        for scale, runs, seconds in zip(("paper", "CPU"), together.runs, together.seconds, strict=True)
    ]
    text = (
        f"Runs are shared: together they are {' and '.join(sums)}.\n"
        "Times are of two CPU cores and very rough, and those not known are left out of the sums; above, a "
        "run counts wherever it is needed."
    )
    return to_rich(table), text


def _time_text(seconds: float | None) -> str:
    """Minutes, hours or days."""
    if seconds is None:
        return MISSING
    hours = seconds / 3600
    if hours < 1:
        return f"{max(seconds / 60, 1):.0f} min"
    return f"{hours:.1f} h" if hours < 100 else f"{hours / 24:,.0f} days"


# Figures


def reproduction_figures(record: ReproductionRecord) -> Iterator[tuple[str, bytes]]:
    """Name and content of each file; the scale stands in every figure."""
    shown = tidy(record)
    figures = [_figure(drawing, _caption(shown)) for drawing in shown.drawings if drawing.is_drawn]
    return paper_files(figures, _KINDS)


def _figure(drawing: Drawing, caption: str) -> Figure:
    if (seen := drawing.rotation) is not None:
        figure = rotation_figure(seen.labels, seen.rotations, seen.digit)
        return with_values(figure, name=drawing.name, caption=caption)
    every = [series for panel in drawing.panels for series in panel.series if series.style != "crosses"]
    labels = list(dict.fromkeys(series.label for series in every))
    styles = dict(zip(labels, looks(labels), strict=True))
    panels = [_panel(panel, styles) for panel in drawing.panels]
    columns = min(drawing.columns, len(panels))
    if drawing.same_scale_in_columns:
        for place in range(columns):
            column = range(place, len(panels), columns)
            for at, panel in zip(column, _with_same_scale([panels[at] for at in column]), strict=True):
                panels[at] = panel
    return Figure(
        drawing.name,
        panels,
        drawing.title,
        title=drawing.title,
        legend=list(styles.items()),
        across=columns,
        caption=caption,
    )


def _panel(panel: recorded.Panel, styles: Mapping[str, Look]) -> Panel:
    """The panel with its text below the title; failures have the look of the lines that they belong to."""
    others = [series for series in panel.series if series.style != "crosses"]
    crosses = [series for series in panel.series if series.style == "crosses"]
    failures = "× number of seeds that diverged" if any(series.x for series in crosses) else ""
    lines = (panel.title, ", ".join(filter(None, (panel.subtitle, panel.text))), failures)
    drawn = [_series(series, styles[series.label]) for series in others]
    for series, other in zip(crosses, others, strict=False):
        drawn.append(Series(series.label, series.x, series.y, styles[other.label], "counts"))
    ticks = panel.series[0].x if panel.x_is_log and panel.series else ()
    return Panel(
        drawn,
        Axis(panel.x_label, log=panel.x_is_log, ticks=ticks),
        Axis(panel.y_label),
        title="\n".join(filter(None, lines)),
        height=2.9,
    )


def _series(series: recorded.Series, look: Look) -> Series:
    if series.style == "bars":
        return Series(series.label, series.x, series.y, look, "bars", bar_width=series.width)
    if series.style == "dots":
        return Series(series.label, series.x, series.y, look, "points", size=3.0, alpha=0.6)
    if series.deviation is None:
        return Series(series.label, series.x, series.y, look)
    pairs = list(zip(series.y, series.deviation, strict=True))
    low, high = [y - sd for y, sd in pairs], [y + sd for y, sd in pairs]
    return Series(series.label, series.x, series.y, look, marker=True, low=low, high=high)


def _with_same_scale(panels: Sequence[Panel]) -> list[Panel]:
    limits = {}
    for name in ("x", "y"):
        values = [value for panel in panels for series in panel.series for value in getattr(series, name)]
        margin = 0.05 * (max(values, default=1.0) - min(values, default=0.0)) or 1.0
        limits[name] = min(values, default=0.0) - margin, max(values, default=1.0) + margin
    return [
        with_values(
            panel,
            x=with_values(panel.x, low=limits["x"][0], high=limits["x"][1]),
            y=with_values(panel.y, low=limits["y"][0], high=limits["y"][1]),
        )
        for panel in panels
    ]
