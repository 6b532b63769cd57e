"""Tables of a comparison for the terminal."""

from statistics import fmean, stdev

from rich import box
from rich.table import Table

from beliefmatch.experiments.records import CompareRecord, Rotation, RunRecord
from beliefmatch.report.labels import method_label

__all__ = ["rotation_table", "scores_table"]


def scores_table(record: CompareRecord) -> Table:
    """Error, NLL and ECE of each method on the test images."""
    runs = len(record.of(record.config.methods[0]))
    average = f"mean ± sd of {runs} seeds" if runs > 1 else "one seed"
    table = _table(
        f"{record.examples['test']} test digits",
        f"{average}, {record.examples['train']} training images; less is better",
    )
    table.add_column("method")
    for heading in ("error %", "NLL", "ECE %"):
        table.add_column(heading, justify="right")
    for name in record.config.methods:
        of_method = record.of(name)
        table.add_row(
            method_label(of_method[0]),
            _mean_and_sd([100 * run.test.error for run in of_method], digits=2),
            _mean_and_sd([run.test.nll for run in of_method], digits=4),
            _mean_and_sd([100 * run.test.ece for run in of_method], digits=2),
        )
    return table


def rotation_table(record: CompareRecord) -> Table:
    """What the networks of the first seed make of one digit at each angle."""
    table = _table(
        f"A test {record.digit} turned upside down (seed {record.config.seed})",
        "conf.: probability of the class; entropy of the probabilities and spread (mutual "
        "information) of the belief in nats: the larger, the more doubt. Last row: how many "
        "classes are wrong, and means over those.",
    )
    table.show_footer = True
    table.add_column("angle", justify="right", footer="wrong")
    columns = [[f"{angle}°" for angle in record.angles]]
    for name in record.config.methods:
        columns += _add_method(table, record.of(name)[0], record.digit)
    for row in zip(*columns, strict=True):
        table.add_row(*row)
    return table


def _add_method(table: Table, run: RunRecord, digit: int) -> list[list[str]]:
    """Add the columns of one network; return their cells."""
    seen = run.rotation
    wrong = [predicted != digit for predicted in seen.predicted]
    heading = run.method.replace("_", "\n")
    table.add_column(f"{heading}\nclass", justify="right", footer=f"{sum(wrong)}")
    cells = [[f"{predicted}" for predicted in seen.predicted]]
    for measure, values, digits in _measures(seen):
        footer = _mean_where(values, wrong, digits)
        table.add_column(measure, justify="right", vertical="bottom", footer=footer)
        cells.append([f"{value:.{digits}f}" for value in values])
    return cells


def _measures(seen: Rotation) -> list[tuple[str, list[float], int]]:
    """Name, values and digits to show."""
    measures = [("conf.", seen.confidence, 2), ("entropy", seen.entropy, 2)]
    return measures if seen.spread is None else [*measures, ("spread", seen.spread, 3)]


def _mean_where(values: list[float], chosen: list[bool], digits: int) -> str:
    kept = [value for value, keep in zip(values, chosen, strict=True) if keep]
    return f"{fmean(kept):.{digits}f}" if kept else "–"


def _mean_and_sd(values: list[float], *, digits: int) -> str:
    mean = f"{fmean(values):.{digits}f}"
    return f"{mean} ± {stdev(values):.{digits}f}" if len(values) > 1 else mean


def _table(title: str, caption: str) -> Table:
    return Table(
        title=title,
        caption=caption,
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
    )
