"""The page of a comparison: what holds over all seeds, then the evaluation of the first seed's predictors."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from beliefmatch.experiments.evaluation_record import EvaluationRecord
from beliefmatch.experiments.records import ComparisonRecord
from beliefmatch.report.comparison_cards import comparison_cards, rotation_table
from beliefmatch.report.comparison_costs import COSTS, choices, cost_cells
from beliefmatch.report.comparison_facts import command_of, common_facts, method_facts
from beliefmatch.report.comparison_rows import (
    SeedRow,
    detection_row,
    detection_scores,
    ood_sets,
    over_seeds,
    presentable_comparison,
    score_rows,
)
from beliefmatch.report.evaluation_metrics import score_title
from beliefmatch.report.evaluation_text import count_text, number_text, presentable
from beliefmatch.report.page import render_models
from beliefmatch.report.rotation_tables import wrong_rows

__all__ = ["render_comparison"]


def render_comparison(record: ComparisonRecord, evaluations: Sequence[EvaluationRecord]) -> str:
    """A comparison as a single HTML file, which needs neither network nor server.

    Args:
        record: the comparison.
        evaluations: those of each method's first seed, in the order of the methods.
    """
    shown = presentable_comparison(record, caller="render_comparison")
    if len(evaluations) != len(shown.methods):
        raise ValueError(
            "render_comparison: `evaluations` must be one for each of the "
            f"{count_text(len(shown.methods), 'method')}, got {len(evaluations)}."
        )
    pairs = zip(evaluations, shown.methods, strict=True)
    named = [replace(evaluation, name=method.label) for evaluation, method in pairs]
    models = presentable(named, caller="render_comparison")
    cards = comparison_cards(shown)
    content = _content(shown)
    content["contents"] = list(_contents(content, cards))
    return render_models(models, caller="render_comparison", comparison=content, first_cards=cards)


class ScoreRows(NamedTuple):
    """Rows under a heading, each with its name in words."""

    title: str
    rows: list[tuple[str, SeedRow]]


def _content(record: ComparisonRecord) -> dict[str, Any]:
    turned = rotation_table(record)
    count = len(record.methods)
    return {
        "template": "comparison.html.j2",
        "styles": ("comparison.css",),
        "kicker": "compare",
        "page_title": f"Comparison of {count} methods",
        "part": f"Seed {record.methods[0].runs[0].seed}:",
        "record": record,
        "seeds": record.seeds,
        "title": f"{count} methods, trained alike" if count > 1 else "One method, trained over seeds",
        "lead": _lead(record),
        "seed": record.methods[0].runs[0].seed,
        "over_seeds": over_seeds(record),
        "many": max(len(method.runs) for method in record.methods) > 1,
        "scores": score_rows(record),
        "named_scores": [(row.title, row) for row in score_rows(record)],
        "detection": list(_detection(record)),
        "costs": [(cost, cost_cells(record, cost)) for cost in COSTS],
        "choices": choices(record),
        "number": number_text,
        "turned": turned,
        "wrong": wrong_rows(record, record.rotated_digit) if turned and record.rotated_digit else [],
        "command": command_of(record),
        "common": common_facts(record),
        "by_method": method_facts(record),
    }


def _lead(record: ComparisonRecord) -> str:
    seeds = ", ".join(map(str, record.seeds))
    return f"Trained with {count_text(len(record.seeds), 'seed')}{f' ({seeds})' if seeds else ''}."


def _detection(record: ComparisonRecord) -> Iterator[ScoreRows]:
    """AUROC by every score, and what passes by the first."""
    scores = detection_scores(record)
    for name in ood_sets(record):
        requested = [("auroc", score) for score in scores] + [("fpr95", score) for score in scores[:1]]
        rows = [
            (f"{key.upper()}, {_short(score)}", detection_row(record, name, score, key))
            for key, score in requested
        ]
        yield ScoreRows(name, rows)


def _short(score: str) -> str:
    """Without what stands in brackets, which the note below the table tells."""
    return score_title(score).split(" (")[0]


def _contents(content: dict[str, Any], cards: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "over-seeds", "Scores"
    if content["detection"]:
        yield "ood", "OOD images"
    yield "costs", "Costs"
    if content["choices"]:
        yield "choices", "Choices"
    if cards["learning"]:
        yield "learning", "Learning"
    if content["turned"]:
        yield "rotation", "Rotated digit"
    yield "training", "Training"
