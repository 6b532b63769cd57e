"""The summary of an adaptation as plain text, and as Markdown and lines for a spreadsheet."""

import csv
from collections.abc import Iterator, Sequence
from io import StringIO
from textwrap import fill

from beliefmatch.experiments.adapt_record import AdaptRecord, ScoredHead
from beliefmatch.experiments.evaluation_record import EvaluationRecord
from beliefmatch.report.adaptation_caveats import caveats
from beliefmatch.report.adaptation_rows import (
    SCORED,
    choice_series,
    detection_row,
    detection_scores,
    line_titles,
    ood_sets,
    presentable_adaptation,
    score_rows,
    scored_on_text,
    seeds_words,
    short_scores,
)
from beliefmatch.report.adaptation_words import batchnorm_outcome, findings
from beliefmatch.report.comparison_rows import SeedCell, SeedRow
from beliefmatch.report.evaluation_metrics import score_title
from beliefmatch.report.evaluation_text import MISSING, number_text
from beliefmatch.report.safe_text import markdown_text, spreadsheet_text

__all__ = ["adaptation_csv", "adaptation_markdown", "adaptation_summary"]

_CSV_HEAD = ("head", "name", "seed", "part", "set", "score", "metric", "value")
_ARROWS = {"low": " ↓", "high": " ↑", "zero": " →0", "": ""}
_WIDTH = 100
_MOST_SETS = 3  # OOD sets side by side in plain text

Line = tuple[str, str, str, str, float | None]


def adaptation_summary(record: AdaptRecord) -> str:
    """Before and after as plain text: a line a head, then what has to be known of the numbers."""
    shown = presentable_adaptation(record, caller="adaptation_summary")
    rows = [row for row in score_rows(shown) if row.key != "mean_confidence"]
    columns = [(_plain_heading(row), row) for row in rows]
    for score in short_scores(shown)[:1]:
        for name in ood_sets(shown)[:_MOST_SETS]:
            columns.append((f"AUROC % {name[:20]}", detection_row(shown, name, score)))
    lines = _aligned(shown, columns)
    note = f"On {scored_on_text(shown)}, {seeds_words(shown)}. AUROC by {score_title('entropy')}."
    if not ood_sets(shown):
        note = note.partition(" AUROC")[0]
    unseen = [shown.verdict.why] if shown.verdict.seen is False else []  # else the caveats tell it
    notes = (*batchnorm_outcome(shown), *shown.notes, *unseen)
    signed = [f"! {one}" for one in caveats(shown)] + [f"i {one}" for one in notes]
    words = [fill(note, _WIDTH), *(fill(one, _WIDTH, subsequent_indent="  ") for one in signed)]
    return "\n".join([*lines, *words])


def _plain_heading(row: SeedRow) -> str:
    short = {"error": "error %", "nll": "NLL", "kl": "KL", "brier": "Brier", "ece": "ECE %"}
    return short.get(row.key, row.short)


def _aligned(record: AdaptRecord, columns: Sequence[tuple[str, SeedRow]]) -> list[str]:
    """Titles to the left, numbers to the right; a star for the new head."""
    stars = ["* " if label == record.new_label else "  " for label in record.row_labels]
    titles = ["", *(f"{star}{title}" for star, title in zip(stars, line_titles(record), strict=True))]
    table = [titles]
    for heading, row in columns:
        table.append([heading, *(" ".join(filter(None, cell[:2])) for cell in row.cells())])
    widths = [max(map(len, column)) for column in table]
    return [
        "  ".join(
            text.ljust(width) if place == 0 else text.rjust(width)
            for place, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in zip(*table, strict=True)
    ]


def adaptation_csv(record: AdaptRecord) -> str:
    """One line for each head, seed and metric, in full precision and never in percent.

    First the lines of the table on what they are scored by, then every head that was tried on the validation
    examples. Safe to open in a spreadsheet. A value is empty where there is none, and "inf" where it is
    infinite.
    """
    shown = presentable_adaptation(record, caller="adaptation_csv")
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_CSV_HEAD)
    for one in shown.scored:
        writer.writerows(_exact(one.label, one.name, one.seed, line) for line in _lines(shown, one))
    for head in shown.tried:
        for key in ("nll", "error", "ece"):
            line = "tried", "", "", key, getattr(head, key)
            writer.writerow(_exact("", head.name, head.seed, line))
    return text.getvalue()


def _exact(label: str, name: str, seed: int, line: Line) -> list[str]:
    *texts, metric, value = line
    infinite = texts[0] != "tried" and metric in ("nll", "kl")
    number = repr(value) if value is not None else "inf" if infinite else ""
    return [
        *map(spreadsheet_text, (label, name)),
        str(seed),
        *map(spreadsheet_text, (*map(str, texts), str(metric))),
        number,
    ]


def _lines(record: AdaptRecord, one: ScoredHead) -> Iterator[Line]:
    for key in SCORED:
        yield record.scored_on, "", "", key, getattr(one.scores, key)
    if record.targets == "votes":
        yield record.scored_on, "", "", "kl", one.kl
    for ood in one.ood:
        for metric, by_score in (("auroc", ood.auroc), ("fpr95", ood.fpr95)):
            for score, value in by_score.items():
                yield "ood", ood.name, score, metric, value
        yield "ood", ood.name, "", "mean_confidence", ood.mean_confidence


def adaptation_markdown(record: AdaptRecord, evaluations: Sequence[EvaluationRecord] = ()) -> str:
    """What changed in words, then scores, detection and every λ as tables for a README."""
    shown = presentable_adaptation(record, caller="adaptation_markdown")
    words = [f"## {markdown_text(shown.model)}, adapted"]
    words += [f"> {markdown_text(one)}" for one in caveats(shown)]
    words.append(
        "\n".join(f"- {markdown_text(one)}" for one in (*findings(shown, evaluations), *shown.notes))
    )
    tables = [table for part in (_scores, _detection, _choice) for table in part(shown)]
    legend = f"{seeds_words(shown).capitalize()}; ↓ less is better, ↑ more is better."
    return "\n\n".join([*words, *tables, legend]) + "\n"


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Titles and heads are escaped here, cells by who makes them."""
    lines = [[*map(markdown_text, head)], ["---", *("---:" for _ in head[1:])], *rows]
    return f"### {markdown_text(title)}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _by_line(record: AdaptRecord, rows: Sequence[SeedRow]) -> list[list[str]]:
    titles = [markdown_text(title) for title in line_titles(record)]
    return [list(line) for line in zip(titles, *(map(_cell, row.cells()) for row in rows), strict=True)]


def _cell(cell: SeedCell) -> str:
    value = f"**{cell.value}**" if cell.mark == "best" else cell.value
    return " ".join(part for part in ("≈" if cell.mark == "close" else "", value, cell.deviation) if part)


def _scores(record: AdaptRecord) -> Iterator[str]:
    rows = score_rows(record)
    heads = [" ".join(filter(None, (row.title, row.unit))) + _ARROWS[row.better] for row in rows]
    yield _table(scored_on_text(record), ["head", *heads], _by_line(record, rows))


def _detection(record: AdaptRecord) -> Iterator[str]:
    sets = ood_sets(record)
    for score in detection_scores(record):
        lines = _by_line(record, [detection_row(record, name, score) for name in sets])
        title = f"OOD examples detected by {score_title(score)}, AUROC % ↑"
        yield _table(title, ["head", *sets], [line for line in lines if {*line[1:]} != {MISSING}])


def _choice(record: AdaptRecord) -> Iterator[str]:
    rows = [
        [
            markdown_text(series.title),
            f"{point.kl_weight:g}",
            number_text(point.mean("nll"), 4),
            number_text(point.mean("error"), 2, scale=100),
            number_text(point.mean("ece"), 2, scale=100),
            "chosen" if point.chosen else "",
        ]
        for series in choice_series(record)
        for point in series.points
    ]
    yield _table("Every λ on the validation examples", ["head", "λ", "NLL", "error %", "ECE %", ""], rows)
