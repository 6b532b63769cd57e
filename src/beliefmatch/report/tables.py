"""Tables of a comparison for the terminal."""

from collections.abc import Callable, Sequence
from textwrap import wrap

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from beliefmatch.experiments.records import ComparisonRecord
from beliefmatch.report.comparison_costs import COSTS, Choice, CostCell, choices, cost_cells
from beliefmatch.report.comparison_rows import (
    SeedCell,
    SeedRow,
    belief_scores,
    detection_row,
    ood_sets,
    over_seeds,
    presentable_comparison,
    score_rows,
)
from beliefmatch.report.evaluation_metrics import score_title
from beliefmatch.report.evaluation_text import count_text, number_text, shorten
from beliefmatch.report.layout import Column, FirstThatFits, plain_table
from beliefmatch.report.rotation_tables import rotation_tables

__all__ = ["MARKED", "cell_text", "comparison_tables", "fitting", "is_marked", "set_heading", "text_column"]

_MARKS = {"best": "*", "close": "≈", "": ""}
MARKED = "* best mean, ≈ mean ± sd overlaps that of the best"
_NARROWEST_LABEL = 16
_LONGEST_LABEL = 60

Columns = Callable[[str], list[Column]]


def comparison_tables(record: ComparisonRecord) -> tuple[RenderableType, ...]:
    """All that the terminal shows of a comparison, from top to bottom."""
    shown = presentable_comparison(record, caller="comparison_tables")
    tables: list[RenderableType] = [_scores(shown)]
    if ood_sets(shown):
        tables.append(_detection(shown))
    tables.append(_costs(shown))
    if choices(shown):
        tables.append(_choices(shown))
    tables += rotation_tables(shown, _labels(shown))
    return tuple(part for table in tables for part in (table, ""))[:-1]


def _labels(record: ComparisonRecord) -> Column:
    return text_column("method", [method.label for method in record.methods])


def text_column(heading: str, texts: Sequence[str]) -> Column:
    """A column of names, which may hold anything."""
    cells = [shorten(text, _LONGEST_LABEL) for text in texts]
    least = min(_NARROWEST_LABEL, max(map(cell_len, cells)))
    return Column(heading, [escape(cell) for cell in cells], is_text=True, least=least)


def fitting(first: Column, columns: Columns, *, title: str, caption: str) -> FirstThatFits:
    """Means next to their deviations, then above them, then in as many tables as the width needs."""
    wide, tall = columns(" "), columns("\n")

    def table(of: Sequence[Column], *, dense: bool) -> Table:
        return plain_table(first, *of, title=title, caption=caption, dense=dense)

    layouts: list[RenderableType] = [
        table(wide, dense=False),
        table(wide, dense=True),
        table(tall, dense=True),
    ]
    for columns_across in range(len(tall) - 1, 0, -1):
        starts = range(0, len(tall), columns_across)
        parts = [plain_table(first, *tall[start : start + columns_across], dense=True) for start in starts]
        parts[0].title, parts[-1].caption = title, caption
        layouts.append(Group(*parts))
    return FirstThatFits(*layouts)


def cell_text(cell: SeedCell, between: str) -> str:
    """The mark stands before the number, so that digits stay below digits."""
    return between.join(part for part in (f"{_MARKS[cell.mark]}{cell.value}", cell.deviation) if part)


def is_marked(rows: Sequence[SeedRow]) -> bool:
    """Whether any number is the best."""
    return any(cell.mark for row in rows for cell in row.cells())


def _scores(record: ComparisonRecord) -> FirstThatFits:
    """Error, NLL, Brier score and ECE of each method on the test examples."""
    rows = score_rows(record)[:4]

    def columns(between: str) -> list[Column]:
        return [
            Column(heading, [cell_text(cell, between) for cell in row.cells()])
            for heading, row in zip(("error %", "NLL", "Brier", "ECE %"), rows, strict=True)
        ]

    test = record.methods[0].runs[0].test.examples
    caption = f"{over_seeds(record)}; less is better" + (f"; {MARKED}" if is_marked(rows) else "")
    return fitting(_labels(record), columns, title=count_text(test, "test image"), caption=caption)


def _detection(record: ComparisonRecord) -> FirstThatFits:
    """AUROC for each OOD set; a method with a belief has a second row."""
    sets, scores = ood_sets(record), belief_scores(record)
    rows = [[detection_row(record, name, score) for score in scores] for name in sets]
    places = [
        (index, place)
        for index in range(len(record.methods))
        for place in range(len(scores))
        if place == 0 or any(rows[s][place].means()[index].value is not None for s in range(len(sets)))
    ]
    names = [f"  by {score_title(scores[p])}" if p else record.methods[i].label for i, p in places]

    def columns(between: str) -> list[Column]:
        cells = [[row.cells() for row in of_set] for of_set in rows]
        return [
            Column(set_heading(name), [cell_text(cells[s][place][index], between) for index, place in places])
            for s, name in enumerate(sets)
        ]

    first = score_title(scores[0]) if scores else "no score"
    marked = f"; {MARKED}, by each score" if is_marked([row for of_set in rows for row in of_set]) else ""
    return fitting(
        text_column("method", [name.replace(" (mutual information)", "") for name in names]),
        columns,
        title=f"OOD images detected by {first}, AUROC %",
        caption=f"{over_seeds(record)}; more is better{marked}",
    )


def set_heading(name: str) -> str:
    """The name of an OOD set above a column of numbers."""
    return escape("\n".join(wrap(shorten(name, 48), 16)))


def _costs(record: ComparisonRecord) -> FirstThatFits:
    """Networks, parameters, times, and how many times the first method's they are."""

    def columns(between: str) -> list[Column]:
        return [Column(cost.short, _cost_texts(cost_cells(record, cost), between)) for cost in COSTS]

    many = max(len(method.runs) for method in record.methods) > 1
    times = f"; ×: times that of {shorten(record.methods[0].label, 40)}" if len(record.methods) > 1 else ""
    caption = f"{'means over the seeds' if many else 'one seed'}, parameters of one network{times}"
    return fitting(_labels(record), columns, title="Costs", caption=escape(caption))


def _cost_texts(cells: Sequence[CostCell], between: str) -> list[str]:
    """Values, with their ratios below each other."""
    width = max(len(cell.ratio) for cell in cells)
    show = len(cells) > 1 and width
    return [f"{cell.value}{between}{cell.ratio:>{width}}" if show else cell.value for cell in cells]


def _choices(record: ComparisonRecord) -> FirstThatFits:
    """Each value of each option that was tried, and which was taken."""
    found = choices(record)
    names = [f"{record.methods[choice.method].label}: {choice.option}" for choice in found]
    first = [name if place == 0 or names[place - 1] != name else "" for place, name in enumerate(names)]

    def columns(between: str) -> list[Column]:
        return [
            Column("value", [_tried(choice, between) for choice in found]),
            Column("error %", [number_text(choice.error, 2, scale=100) for choice in found]),
            Column("NLL", [number_text(choice.nll, 4).replace("—", "∞") for choice in found]),
        ]

    caption = "* chosen; means over the seeds that tried a value"
    return fitting(
        text_column("option", first), columns, title="Chosen on validation images", caption=caption
    )


def _tried(choice: Choice, between: str) -> str:
    if not choice.chosen:
        return choice.value
    some = f"{between}({choice.chosen} of {choice.tried})" if choice.chosen < choice.tried else ""
    return f"*{choice.value}{some}"
