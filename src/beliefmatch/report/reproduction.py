"""A reproduction shown: its files (record, Markdown, figures), tables for the terminal, the list of all."""

import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import fmean, stdev
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import RenderableType
from rich.markup import escape

from beliefmatch.report.evaluation_style import look
from beliefmatch.report.evaluation_text import MISSING, number_text, tidy
from beliefmatch.report.figure_parts import drawn_text, model_line, rendered
from beliefmatch.report.layout import Column, FirstThatFits, plain_table
from beliefmatch.report.rotation_figure import turned_figure
from beliefmatch.report.safe_text import markdown_text
from beliefmatch.reproduce.record import Drawing, Panel, ReproductionRecord, Row, Series

__all__ = [
    "Listed",
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
_NARROW = 10  # columns of a terminal in which words can still be read
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
    parts: list[RenderableType] = [escape(heading)]
    if lines := _paper_lines(shown.rows):
        heads = ("", "", "", "paper", "ours", "n", "s per run", "")
        columns = zip(heads, zip(*lines, strict=True), strict=True)
        table = plain_table(*(Column(head, one) if head else _text_column(one) for head, one in columns))
        parts.append(FirstThatFits(table))
    for group, measures, methods in _measured(shown.rows):
        columns = [_text_column(list(methods))]
        for measure in measures:
            cells = [ours_text(own[measure]) if measure in own else MISSING for own in methods.values()]
            broken = [cell.replace(" ± ", "\n± ") for cell in cells]
            columns.append(Column(escape(measure.replace(", ", "\n")), broken))
        notes = [next(iter(own.values())).note for own in methods.values()]
        columns += [_text_column(notes)] if any(notes) else []
        parts.append(FirstThatFits(plain_table(*columns, title=escape(group), dense=len(measures) > 4)))
    sentences = ["Differs from the paper:", *(f"- {sentence}" for sentence in shown.differences)]
    return (*parts, escape("\n".join(sentences)))


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
    best = [_same_best(record) for record in shown]
    table = plain_table(
        Column("id", [one.id for one in shown], is_text=True, least=max(len(one.id) for one in shown)),
        Column("", [escape(one.title) for one in shown], is_text=True, least=12),
        Column("best method\nas in paper", [f"{same} of {of}" if of else MISSING for same, of in best]),
        Column("seeds", [f"{len(one.seeds)}" for one in shown]),
        Column("diverged", [f"{sum(run.diverged is not None for run in one.runs)}" for one in shown]),
        Column("differences\nin protocol", [f"{len(one.differences)}" for one in shown]),
    )
    return FirstThatFits(table)


def _text_column(cells: Sequence[str]) -> Column:
    """Text that folds, but not so far that rows could not be distinguished."""
    folded = Column("", [escape(cell) for cell in cells], is_text=True)
    return folded._replace(least=min(folded.width, _NARROW))


def reproduction_markdown(record: ReproductionRecord, *, figures: str = "figures") -> str:
    """Tables, figures, differences from the paper's protocol, and the command, as Markdown.

    Args:
        record: Record of one reproduction.
        figures: Directory of its figures, relative to the file that this is written to.
    """
    shown = tidy(record)
    blocks = [
        f"## {markdown_text(shown.id)}: {markdown_text(shown.title)}",
        f"{markdown_text(shown.place)}. **{markdown_text(_caption(shown))}.** {_DEVIATIONS}",
    ]
    if lines := _paper_lines(shown.rows):
        blocks.append(_markdown_table(("", "", "", "paper", "ours", "n", "seconds per run", ""), lines))
    for group, measures, methods in _measured(shown.rows):
        lines = [
            [
                label,
                *(ours_text(own[measure]) if measure in own else MISSING for measure in measures),
                f"{max(map(_count, own.values()))}",
                number_text(next(iter(own.values())).train_seconds, 0),
                next(iter(own.values())).note,
            ]
            for label, own in methods.items()
        ]
        blocks.append(_markdown_table((group, *measures, "n", "seconds per run", ""), lines))
    drawn = [drawing for drawing in shown.drawings if drawing.is_drawn]
    blocks += [f"![{markdown_text(one.title)}]({figures}/{one.name}.png)" for one in drawn]
    blocks.append("Differs from the paper:")
    blocks.append("\n".join(f"- {markdown_text(sentence)}" for sentence in shown.differences))
    if shown.command:
        blocks.append(f"```sh\n{shlex.join(shown.command)}\n```")
    return "\n\n".join(blocks) + "\n"


def _markdown_table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    texts = [[markdown_text(cell) for cell in line] for line in lines]
    parts = [[markdown_text(cell) or " " for cell in head], ["---" for _ in head], *texts]
    return "\n".join(f"| {' | '.join(part)} |" for part in parts)


def summary_markdown(records: Sequence[ReproductionRecord], left_out: Mapping[str, str]) -> str:
    """All reproductions on one page.

    Args:
        records: Records in the order in which they are shown.
        left_out: Reasons why others were not run, by id.
    """
    parts = ["# The paper's tables and figures, run here"]
    parts += [reproduction_markdown(record, figures=f"{record.id}/figures").rstrip() for record in records]
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
    table = plain_table(
        Column("id", [one.id for one in listed], is_text=True, least=max(len(one.id) for one in listed)),
        Column("", [one.title for one in listed], is_text=True, least=12),
        Column("runs\npaper", [f"{one.runs[0]}" for one in listed]),
        Column("time\npaper", [_time_text(one.seconds[0]) for one in listed]),
        Column("runs\ncpu", [f"{one.runs[1]}" for one in listed]),
        Column("time\ncpu", [_time_text(one.seconds[1]) for one in listed]),
    )
    sums = [
        f"{runs} at {scale} scale ({_time_text(seconds)})"
        for scale, runs, seconds in zip(("paper", "CPU"), together.runs, together.seconds, strict=True)
    ]
    text = (
        f"Runs are shared: together they are {' and '.join(sums)}.\n"
        "Times are of two CPU cores and very rough, and those not known are left out of the sums; above, a "
        "run counts wherever it is needed."
    )
    return FirstThatFits(table), text


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
    for drawing in shown.drawings:
        if drawing.is_drawn:
            yield from rendered(drawing.name, partial(_figure, drawing, _caption(shown)), _KINDS)


def _figure(drawing: Drawing, caption: str) -> Figure:
    if drawing.rotation is not None:
        figure = turned_figure(drawing.rotation.labels, drawing.rotation.rotations, drawing.rotation.digit)
    else:
        figure = _panel_figure(drawing)
    figure.supxlabel(caption, fontsize=8, color="#555555")
    return figure


def _panel_figure(drawing: Drawing) -> Figure:
    columns = min(drawing.columns, len(drawing.panels))
    lines = -(-len(drawing.panels) // columns)
    width = 3.0 if columns > 2 else 4.2
    figure = Figure(figsize=(width * columns, 0.5 + 2.9 * lines), layout="constrained")
    figure.suptitle(drawn_text(drawing.title, 90), fontsize=12)
    grid = list(figure.subplots(lines, columns, squeeze=False).flat)
    shown: list[str] = []
    for axes, panel in zip(grid, drawing.panels, strict=False):
        _draw_panel(axes, panel)
        labels = [series.label for series in panel.series]
        if len(labels) > 1 and labels != shown:  # one legend for panels that have the same
            axes.legend(fontsize=7, loc="best")
            shown = labels
    for axes in grid[len(drawing.panels) :]:
        axes.set_visible(False)
    if drawing.same_scale_in_columns:
        for column in range(columns):
            _share_limits(grid[column : len(drawing.panels) : columns])
    return figure


def _share_limits(column: Sequence[Axes]) -> None:
    for get_limits, set_limits in (("get_xlim", "set_xlim"), ("get_ylim", "set_ylim")):
        found = [getattr(axes, get_limits)() for axes in column]
        for axes in column:
            getattr(axes, set_limits)(min(low for low, _ in found), max(high for _, high in found))


def _draw_panel(axes: Axes, panel: Panel) -> None:
    for index, series in enumerate(panel.series):
        _STYLES[series.style](axes, series, index)
    pad = 26 if any(one.style == "crosses" and one.x for one in panel.series) else None  # room for them
    axes.set_title("\n".join(drawn_text(line, 40) for line in (panel.title, panel.subtitle) if line), pad=pad)
    axes.set(xlabel=drawn_text(panel.x_label, 40), ylabel=drawn_text(panel.y_label, 40))
    if panel.x_is_log and panel.series:
        ticks = panel.series[0].x
        axes.set_xscale("log")
        axes.set_xticks(ticks, [f"{tick:,.0f}" for tick in ticks], minor=False)
        axes.set_xticks([], minor=True)
    if panel.text:
        place = {"transform": axes.transAxes, "ha": "right", "va": "bottom"}
        axes.text(1, 1.02, drawn_text(panel.text, 40), fontsize=8, **place)


def _line(axes: Axes, series: Series, index: int) -> None:
    name, style = drawn_text(series.label, 40), model_line(index)
    if series.deviation is None:
        axes.plot(series.x, series.y, label=name, **style)
    else:
        marks = {"marker": look(index).marker, "markersize": 4, "capsize": 2.5}
        axes.errorbar(series.x, series.y, yerr=series.deviation, label=name, **marks, **style)


def _dots(axes: Axes, series: Series, index: int) -> None:
    looks = look(index)
    mark = {"color": looks.colour, "marker": looks.marker, "linestyle": "none", "markersize": 3, "alpha": 0.6}
    axes.plot(series.x, series.y, label=drawn_text(series.label, 40), **mark)


def _bars(axes: Axes, series: Series, index: int) -> None:
    style = {"color": look(index).colour, "alpha": 0.45, "edgecolor": "white"}
    axes.bar(series.x, series.y, width=series.width, label=drawn_text(series.label, 40), **style)


def _crosses(axes: Axes, series: Series, index: int) -> None:
    """Numbers of failures above the axes, where they are not mistaken for values; a line for each series."""
    if not series.x:
        return
    height = 1.03 + 0.06 * (index % 2)
    mark = {"color": look(index % 2).colour, "marker": "x", "linestyle": "none", "markeredgewidth": 2}
    place = {"transform": axes.get_xaxis_transform(), "clip_on": False}
    axes.plot(series.x, [height] * len(series.x), label=drawn_text(series.label, 40), **mark, **place)
    for x, count in zip(series.x, series.y, strict=True):
        axes.annotate(
            f"{count:.0f}", (x, height), xycoords=axes.get_xaxis_transform(), xytext=(5, -3),
            textcoords="offset points", fontsize=7, annotation_clip=False,
        )  # fmt: skip


_STYLES: dict[str, Callable[[Axes, Series, int], None]] = {
    "line": _line,
    "dots": _dots,
    "bars": _bars,
    "crosses": _crosses,
}
