"""The rotated digit in the terminal: at each angle for one or two methods, in short for more."""

from collections.abc import Sequence
from statistics import fmean

from rich.console import Group, RenderableType
from rich.markup import escape

from beliefmatch.experiments.records import Compared, ComparisonRecord, RotatedDigit, Rotation
from beliefmatch.report.comparison_rows import SeedRow, over_seeds, seed_row
from beliefmatch.report.evaluation_metrics import Metric
from beliefmatch.report.layout import Column, FirstThatFits, plain_table

__all__ = ["class_string", "rotation_tables", "wrong_rows"]

_MOST_IN_FULL = 2
_DOUBT = (
    "conf.: probability of the class; entropy of the probabilities and mutual information of the "
    "belief in nats: the larger, the more doubt. Last row: how many classes are wrong, and means over those."
)


def rotation_tables(record: ComparisonRecord, labels: Column) -> tuple[RenderableType, ...]:
    """What the terminal shows of the rotated digit; nothing where none was turned."""
    rotated_digit = record.rotated_digit
    if rotated_digit is None or any(method.runs[0].rotation is None for method in record.methods):
        return ()
    wrong = _in_short(record, rotated_digit, labels)
    return (_in_full(record, rotated_digit), wrong) if len(record.methods) <= _MOST_IN_FULL else (wrong,)


def class_string(seen: Rotation) -> str:
    """The classes over the angles, in one word if each is one digit."""
    return ("" if max(seen.predicted, default=0) < 10 else " ").join(map(str, seen.predicted))


def wrong_rows(record: ComparisonRecord, rotated_digit: RotatedDigit) -> list[SeedRow]:
    """The confidence in wrong classes over all angles: of the pictured digit, and of all of its kind."""
    titles = {
        "wrong_confidence": (f"Confidence when wrong, the pictured {rotated_digit.digit}", "this one"),
        "mean_wrong_confidence": (
            f"Confidence when wrong, all {rotated_digit.examples:,} test {rotated_digit.digit}s",
            f"all {rotated_digit.examples:,}",
        ),
    }
    return [
        seed_row(
            record,
            Metric(key, title, "low", short=short),
            lambda run, key=key: None if run.rotation is None else getattr(run.rotation, key),
            left_out="never wrong",
        )
        for key, (title, short) in titles.items()
    ]


def _in_short(record: ComparisonRecord, rotated_digit: RotatedDigit, labels: Column) -> FirstThatFits:
    """A row a method: its classes over the angles, and how sure it is."""
    rotations = [_rotation(method) for method in record.methods]
    rows = wrong_rows(record, rotated_digit)
    short = ", in short" if len(record.methods) <= _MOST_IN_FULL else ""
    never = any(cell.why for row in rows for cell in row.cells())
    angles = rotated_digit.angles
    caption = (
        f"classes (seed {record.methods[0].runs[0].seed}) at {angles[0]}° to {angles[-1]}°; mean confidence "
        f"in them %; confidence in wrong classes %, {over_seeds(record)}: of this {rotated_digit.digit}, and "
        f"of all {rotated_digit.examples:,} test {rotated_digit.digit}s"
        + ("; (n): n seeds never wrong" if never else "")
    )

    def layout(between: str, *, dense: bool) -> RenderableType:
        wrong = [_wrong_column(row, between) for row in rows]
        return plain_table(
            labels,
            Column("classes", [class_string(seen) for seen in rotations]),
            Column("conf.", [f"{100 * fmean(seen.confidence):.1f}" for seen in rotations]),
            *wrong,
            title=f"A test {rotated_digit.digit} turned upside down{short}",
            caption=caption,
            dense=dense,
        )

    return FirstThatFits(
        layout(" ", dense=False),
        layout(" ", dense=True),
        layout("\n", dense=True),
        _stacked(record, rotated_digit, rotations, caption),
    )


def _wrong_column(row: SeedRow, between: str) -> Column:
    cells = []
    for cell, values in zip(row.cells(), row.values, strict=True):
        never = f" ({values.count(None)})" if None in values else ""
        cells.append(between.join(part for part in (cell.value, cell.deviation) if part) + never)
    return Column(f"if wrong:\n{row.short}", cells)


def _stacked(
    record: ComparisonRecord, rotated_digit: RotatedDigit, rotations: Sequence[Rotation], caption: str
) -> Group:
    """For the narrowest terminals: a small table a method."""
    rows = wrong_rows(record, rotated_digit)
    tables = [
        plain_table(
            Column("classes", [class_string(seen)]),
            Column("conf.", [f"{100 * fmean(seen.confidence):.1f}"]),
            *(
                Column(column.heading, [column.cells[index]])
                for column in (_wrong_column(row, "\n") for row in rows)
            ),
            title=escape(method.label),
            dense=True,
        )
        for index, (method, seen) in enumerate(zip(record.methods, rotations, strict=True))
    ]
    tables[-1].caption = caption
    return Group(*tables)


def _in_full(record: ComparisonRecord, rotated_digit: RotatedDigit) -> FirstThatFits:
    """What the networks of the first seed make of one digit at each angle."""
    title = f"A test {rotated_digit.digit} turned upside down (seed {record.methods[0].runs[0].seed})"
    angle = Column("angle", [f"{angle}°" for angle in rotated_digit.angles], "wrong")
    methods = [_columns(method, rotated_digit.digit) for method in record.methods]
    across = [column for columns in methods for column in columns]
    stacked = [plain_table(angle, *columns, dense=True) for columns in methods]
    stacked[0].title, stacked[-1].caption = title, _DOUBT
    return FirstThatFits(plain_table(angle, *across, title=title, caption=_DOUBT), Group(*stacked))


def _columns(method: Compared, digit: int) -> list[Column]:
    """What the first network of a method sees, and below it the means where its class is wrong."""
    seen = _rotation(method)
    wrong = [predicted != digit for predicted in seen.predicted]
    heading = escape("\n".join(method.label.split(" (")[0].split()))
    measures = [("conf.", seen.confidence, 2), ("entropy", seen.entropy, 2)]
    if seen.mutual_information is not None:
        measures.append(("mutual_information", seen.mutual_information, 3))
    predicted = Column(f"{heading}\nclass", [f"{c}" for c in seen.predicted], f"{sum(wrong)}")
    return [
        predicted,
        *(
            Column(name, [f"{v:.{digits}f}" for v in values], _mean_where(values, wrong, digits))
            for name, values, digits in measures
        ),
    ]


def _rotation(method: Compared) -> Rotation:
    seen = method.runs[0].rotation
    assert seen is not None  # who has none is not shown
    return seen


def _mean_where(values: Sequence[float], chosen: Sequence[bool], digits: int) -> str:
    kept = [value for value, keep in zip(values, chosen, strict=True) if keep]
    return f"{fmean(kept):.{digits}f}" if kept else "–"
