"""The summary of a comparison as Markdown, and as lines for a spreadsheet."""

import csv
from collections.abc import Iterator, Sequence
from io import StringIO

from beliefmatch.experiments.records import ComparisonRecord, Costs, RunRecord
from beliefmatch.report.comparison_costs import COSTS, choices, cost_cells
from beliefmatch.report.comparison_rows import (
    SeedCell,
    SeedRow,
    detection_row,
    detection_scores,
    ood_sets,
    over_seeds,
    presentable_comparison,
    score_rows,
)
from beliefmatch.report.evaluation_metrics import score_title
from beliefmatch.report.evaluation_text import MISSING, count_text, number_text
from beliefmatch.report.rotation_tables import class_string, wrong_rows
from beliefmatch.report.safe_text import markdown_text, spreadsheet_text

__all__ = ["comparison_csv", "comparison_markdown"]

_CSV_HEAD = ("method", "key", "seed", "part", "set", "score", "metric", "value")
_SCORES = ("error", "nll", "brier", "ece", "mean_confidence")
_ARROWS = {"low": " ↓", "high": " ↑", "zero": " →0", "": ""}

Line = tuple[str, str, str, str, float | None]


def comparison_csv(record: ComparisonRecord) -> str:
    """One line for each method, seed and metric, in full precision and never in percent.

    Safe to open in a spreadsheet. A value is empty where there is none, and "inf" where it is infinite.
    """
    shown = presentable_comparison(record, caller="comparison_csv")
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_CSV_HEAD)
    for method in shown.methods:
        for run in method.runs:
            for part, name, score, metric, value in _lines(run):
                names = map(spreadsheet_text, (part, name, score, metric))
                labels = map(spreadsheet_text, (method.label, method.key))
                writer.writerow([*labels, run.seed, *names, _exact(metric, value)])
    return text.getvalue()


def _exact(metric: str, value: float | None) -> str:
    if value is None:
        return "inf" if metric == "nll" else ""
    return repr(value)


def _lines(run: RunRecord) -> Iterator[Line]:
    for part in ("test", "validation"):
        for key in _SCORES:
            yield part, "", "", key, getattr(getattr(run, part), key)
    for ood in run.ood:
        for metric, by_score in (("auroc", ood.auroc), ("fpr95", ood.fpr95)):
            for score, value in by_score.items():
                yield "ood", ood.name, score, metric, value
        yield "ood", ood.name, "", "mean_confidence", ood.mean_confidence
    for name in Costs.__struct_fields__:
        yield "costs", "", "", name, getattr(run.costs, name)
    yield "training", "", "", "skipped_steps", run.skipped_steps
    if run.rotation is not None:
        for key in ("wrong_confidence", "mean_wrong_confidence"):
            yield "rotation", "", "", key, getattr(run.rotation, key)


def comparison_markdown(record: ComparisonRecord) -> str:
    """Scores, detection, costs, choices and the rotated digit as tables for a README."""
    shown = presentable_comparison(record, caller="comparison_markdown")
    blocks = [
        block for part in (_scores, _detection, _costs, _choices, _rotated_digit) for block in part(shown)
    ]
    many = max(len(method.runs) for method in shown.methods) > 1
    legend = f"{over_seeds(shown).capitalize()}; ↓ less is better, ↑ more is better."
    if many and len(shown.methods) > 1:
        legend += " **Bold**: best mean; ≈: its mean ± sd overlaps that of the best."
    return "\n\n".join([*blocks, legend]) + "\n"


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Titles and heads are escaped here, cells by who makes them."""
    lines = [[*map(markdown_text, head)], ["---", *("---:" for _ in head[1:])], *rows]
    return f"### {markdown_text(title)}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _by_method(record: ComparisonRecord, columns: Sequence[Sequence[str]]) -> list[list[str]]:
    labels = [markdown_text(method.label) for method in record.methods]
    return [list(row) for row in zip(labels, *columns, strict=True)]


def _cells(row: SeedRow) -> list[str]:
    return [_cell(cell) for cell in row.cells()]


def _cell(cell: SeedCell) -> str:
    value = f"**{cell.value}**" if cell.mark == "best" else cell.value
    mark = "≈" if cell.mark == "close" else ""
    why = f"({cell.why})" if cell.why else ""
    return " ".join(part for part in (mark, value, cell.deviation, why) if part)


def _heading(row: SeedRow) -> str:
    return " ".join(part for part in (row.title, row.unit) if part) + _ARROWS[row.better]


def _scores(record: ComparisonRecord) -> Iterator[str]:
    rows = score_rows(record)
    first = record.methods[0].runs[0]
    title = f"{count_text(first.test.examples, 'test image')}, {len(first.class_names)} classes"
    head = ["method", *map(_heading, rows)]
    yield _table(title, head, _by_method(record, [_cells(row) for row in rows]))


def _detection(record: ComparisonRecord) -> Iterator[str]:
    sets = ood_sets(record)
    for score in detection_scores(record):
        rows = [detection_row(record, name, score) for name in sets]
        title = f"OOD images detected by {score_title(score)}, AUROC % ↑"
        lines = _by_method(record, [_cells(row) for row in rows])
        yield _table(title, ["method", *sets], [line for line in lines if {*line[1:]} != {MISSING}])


def _costs(record: ComparisonRecord) -> Iterator[str]:
    columns = [
        [f"{cell.value} ({cell.ratio})" if cell.ratio else cell.value for cell in cost_cells(record, cost)]
        for cost in COSTS
    ]
    title = "Costs, means over the seeds (and times that of the first method)"
    yield _table(title, ["method", *(cost.title for cost in COSTS)], _by_method(record, columns))


def _choices(record: ComparisonRecord) -> Iterator[str]:
    found = choices(record)
    rows = [
        [
            markdown_text(record.methods[choice.method].label),
            markdown_text(choice.option),
            choice.value,
            number_text(choice.error, 2, scale=100),
            "∞" if choice.nll is None else number_text(choice.nll, 4),
            choice.verdict,
        ]
        for choice in found
    ]
    if rows:
        head = ["method", "option", "value", "Error %", "Negative log-likelihood (nats)", "chosen"]
        yield _table("Chosen on validation images", head, rows)


def _rotated_digit(record: ComparisonRecord) -> Iterator[str]:
    rotated_digit = record.rotated_digit
    seen = [run.rotation for run in (method.runs[0] for method in record.methods) if run.rotation is not None]
    if rotated_digit is None or len(seen) < len(record.methods):
        return
    rows = wrong_rows(record, rotated_digit)
    columns = [[f"`{class_string(rotation)}`" for rotation in seen], *(_cells(row) for row in rows)]
    seed = record.methods[0].runs[0].seed
    angles = f"{rotated_digit.angles[0]}° to {rotated_digit.angles[-1]}°"
    head = ["method", f"classes at {angles} (seed {seed})", *map(_heading, rows)]
    yield _table(f"A test {rotated_digit.digit} turned upside down", head, _by_method(record, columns))
