"""Tables of a comparison for the terminal."""

from collections.abc import Sequence
from statistics import fmean, stdev

from rich.console import Group, RenderableType
from rich.table import Table

from beliefmatch.experiments.records import CompareRecord, Rotation
from beliefmatch.report.labels import method_label, method_name
from beliefmatch.report.layout import Column, FirstThatFits, plain_table

__all__ = ["comparison_tables", "rotation_table", "scores_table", "wrong_confidence"]


def comparison_tables(record: CompareRecord) -> tuple[RenderableType, ...]:
    """All that the terminal shows of a comparison, from top to bottom."""
    return scores_table(record), rotation_table(record), wrong_confidence(record)


def scores_table(record: CompareRecord) -> FirstThatFits:
    """Error, NLL and ECE of each method on the test images."""
    return FirstThatFits(_scores(record, " ± "), _scores(record, "\n± ", dense=True))


def _scores(record: CompareRecord, plus_minus: str, *, dense: bool = False) -> Table:
    methods = [record.of(name) for name in record.config.methods]

    def column(heading: str, measure: str, scale: int, digits: int) -> Column:
        values = [[scale * getattr(run.test, measure) for run in runs] for runs in methods]
        cells = [_mean_and_sd(of_method, digits, plus_minus) for of_method in values]
        return Column(heading, cells)

    return plain_table(
        Column("method", [method_label(runs[0]) for runs in methods], is_text=True),
        column("error %", "error", 100, 2),
        column("NLL", "nll", 1, 4),
        column("ECE %", "ece", 100, 2),
        title=f"{record.examples['test']} test digits",
        caption=f"{_over(methods[0])}, {record.examples['train']} training images; less is better",
        dense=dense,
    )


def rotation_table(record: CompareRecord) -> FirstThatFits:
    """What the networks of the first seed make of one digit at each angle."""
    title = f"A test {record.digit} turned upside down (seed {record.config.seed})"
    caption = (
        "conf.: probability of the class; entropy of the probabilities and spread (mutual "
        "information) of the belief in nats: the larger, the more doubt. Last row: how many "
        "classes are wrong, and means over those."
    )
    angle = Column("angle", [f"{angle}°" for angle in record.angles], "wrong")
    methods = [_columns(record, name) for name in record.config.methods]
    side_by_side = [column for columns in methods for column in columns]
    stacked = [plain_table(angle, *columns, dense=True) for columns in methods]
    stacked[0].title, stacked[-1].caption = title, caption
    return FirstThatFits(
        plain_table(angle, *side_by_side, title=title, caption=caption),
        Group(*stacked),
    )


def _columns(record: CompareRecord, method: str) -> list[Column]:
    """What the first network of a method sees, and below it the means where its class is wrong."""
    seen = record.of(method)[0].rotation
    wrong = [predicted != record.digit for predicted in seen.predicted]
    heading = method.replace("_", "\n")
    predicted = Column(f"{heading}\nclass", [f"{c}" for c in seen.predicted], f"{sum(wrong)}")
    return [
        predicted,
        *(
            Column(measure, [f"{v:.{digits}f}" for v in values], _mean_where(values, wrong, digits))
            for measure, values, digits in _measures(seen)
        ),
    ]


def _measures(seen: Rotation) -> list[tuple[str, list[float], int]]:
    """Name, values and digits to show."""
    measures = [("conf.", seen.confidence, 2), ("entropy", seen.entropy, 2)]
    return measures if seen.spread is None else [*measures, ("spread", seen.spread, 3)]


def wrong_confidence(record: CompareRecord) -> str:
    """How sure the networks of all seeds are of wrong classes, over all angles."""
    one = _by_method(record, [run.rotation.wrong_confidence for run in record.runs])
    every = _by_method(record, [run.rotation.mean_wrong_confidence for run in record.runs])
    over = _over(record.of(record.config.methods[0]))
    return (
        f"\nconfidence when wrong, {over}: {one}"
        f"\nthe same over all {record.digit_examples} test {record.digit}s: {every}\n"
    )


def _by_method(record: CompareRecord, values: Sequence[float | None]) -> str:
    """Mean and deviation over the runs of each method; `values` are one for each run."""
    return ", ".join(
        f"{method_name(name)} {_mean_and_sd([v for v in of_method if v is not None], 2)}"
        + (f" (never wrong: {of_method.count(None)})" if None in of_method else "")
        for name in record.config.methods
        if (of_method := [v for run, v in zip(record.runs, values, strict=True) if run.method == name])
    )


def _over(runs: Sequence[object]) -> str:
    return f"mean ± sd of {len(runs)} seeds" if len(runs) > 1 else "one seed"


def _mean_where(values: list[float], chosen: list[bool], digits: int) -> str:
    kept = [value for value, keep in zip(values, chosen, strict=True) if keep]
    return f"{fmean(kept):.{digits}f}" if kept else "–"


def _mean_and_sd(values: list[float], digits: int, plus_minus: str = " ± ") -> str:
    if not values:
        return "–"
    mean = f"{fmean(values):.{digits}f}"
    return f"{mean}{plus_minus}{stdev(values):.{digits}f}" if len(values) > 1 else mean
