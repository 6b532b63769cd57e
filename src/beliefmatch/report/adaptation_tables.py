"""Tables of an adaptation for the terminal: before and after, OOD examples, every λ."""

from collections.abc import Sequence

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from beliefmatch.experiments.adapt_record import AdaptRecord
from beliefmatch.experiments.evaluation_record import EvaluationRecord
from beliefmatch.report.adaptation_caveats import caveats
from beliefmatch.report.adaptation_rows import (
    choice_series,
    detection_row,
    line_titles,
    most_seeds,
    ood_sets,
    presentable_adaptation,
    score_rows,
    scored_on_text,
    seeds_words,
    short_scores,
)
from beliefmatch.report.adaptation_words import findings
from beliefmatch.report.comparison_rows import SeedRow
from beliefmatch.report.evaluation_metrics import score_title
from beliefmatch.report.evaluation_text import number_text
from beliefmatch.report.layout import Column, FirstThatFits
from beliefmatch.report.tables import MARKED, cell_text, fitting, is_marked, set_heading, text_column

__all__ = ["adaptation_tables"]

_HEADINGS = {"error": "error %", "nll": "NLL", "kl": "KL", "brier": "Brier", "ece": "ECE %"}


def adaptation_tables(
    record: AdaptRecord, evaluations: Sequence[EvaluationRecord] = ()
) -> tuple[RenderableType, ...]:
    """All that the terminal shows of an adaptation, from top to bottom: tables, then words.

    Args:
        record: the adaptation.
        evaluations: one for each line of its table, if there are some; then the words know what chance may
            have done.
    """
    shown = presentable_adaptation(record, caller="adaptation_tables")
    tables: list[RenderableType] = [_scores(shown)]
    if ood_sets(shown):
        tables.append(_detection(shown))
    tables.append(_choice(shown))
    return (*(part for table in tables for part in (table, "")), _words(shown, evaluations))


def _words(record: AdaptRecord, evaluations: Sequence[EvaluationRecord]) -> Table:
    words = Table.grid(padding=(0, 1))
    signed = (("•", findings(record, evaluations)), ("!", caveats(record)), ("i", record.notes))
    for sign, sentences in signed:
        for sentence in sentences:
            words.add_row(sign, escape(sentence))
    return words


def _titles(record: AdaptRecord) -> list[str]:
    """The line of the new head stands out by an arrow."""
    pairs = zip(record.row_labels, line_titles(record), strict=True)
    return [f"→ {title}" if label == record.new_label else f"  {title}" for label, title in pairs]


def _scores(record: AdaptRecord) -> FirstThatFits:
    rows = [row for row in score_rows(record) if row.key in _HEADINGS]

    def columns(between: str) -> list[Column]:
        return [
            Column(_HEADINGS[row.key], [cell_text(cell, between) for cell in row.cells()]) for row in rows
        ]

    chose = "; these examples chose λ as well" if record.scored_on == "validation" else ""
    return fitting(
        text_column("head", _titles(record)),
        columns,
        title=f"{scored_on_text(record)}{chose}",
        caption=f"{seeds_words(record)}; less is better{_marks(rows)}; → the new head",
    )


def _marks(rows: Sequence[SeedRow]) -> str:
    return f"; {MARKED}" if is_marked(rows) else ""


def _detection(record: AdaptRecord) -> FirstThatFits:
    """AUROC for each OOD set; a head with a belief has a second line."""
    sets, scores, titles = ood_sets(record), short_scores(record), _titles(record)
    rows = [[detection_row(record, name, score) for score in scores] for name in sets]
    places = [
        (index, place)
        for index in range(len(titles))
        for place in range(len(scores))
        if place == 0 or any(of_set[place].means()[index].value is not None for of_set in rows)
    ]

    def columns(between: str) -> list[Column]:
        cells = [[row.cells() for row in of_set] for of_set in rows]
        return [
            Column(set_heading(name), [cell_text(of_set[place][index], between) for index, place in places])
            for name, of_set in zip(sets, cells, strict=True)
        ]

    names = [f"    by {score_title(scores[place])}" if place else titles[index] for index, place in places]
    return fitting(
        text_column("head", [name.replace(" (mutual information)", "") for name in names]),
        columns,
        title=f"OOD examples detected by {score_title(scores[0])}, AUROC %",
        caption=f"{seeds_words(record)}; more is better{_marks([row for of_set in rows for row in of_set])}",
    )


def _choice(record: AdaptRecord) -> FirstThatFits:
    found = [(series, point) for series in choice_series(record) for point in series.points]

    def columns(_: str) -> list[Column]:
        return [
            Column("λ", [f"{point.kl_weight:g}" for _, point in found]),
            Column("NLL", [number_text(point.mean("nll"), 4) for _, point in found]),
            Column("error %", [number_text(point.mean("error"), 2, scale=100) for _, point in found]),
            Column("ECE %", [number_text(point.mean("ece"), 2, scale=100) for _, point in found]),
            Column("", ["chosen" if point.chosen else "" for _, point in found]),
        ]

    return fitting(
        text_column("head", [series.title for series, _ in found]),
        columns,
        title="Every λ on the validation examples",
        caption="means over the seeds" if most_seeds(record) > 1 else "less is better",
    )
