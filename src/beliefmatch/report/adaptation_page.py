"""The page of an adaptation: what changed, what else was tried, then the evaluation of each head."""

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from beliefmatch.experiments.adapt_record import AdaptRecord
from beliefmatch.experiments.evaluation_record import EvaluationRecord
from beliefmatch.report.adaptation_cards import adaptation_cards
from beliefmatch.report.adaptation_caveats import caveats
from beliefmatch.report.adaptation_rows import (
    detection_row,
    detection_scores,
    line_titles,
    most_seeds,
    ood_sets,
    presentable_adaptation,
    score_rows,
    scored_on_text,
    seeds_words,
)
from beliefmatch.report.adaptation_words import against, findings
from beliefmatch.report.comparison_rows import SeedRow
from beliefmatch.report.evaluation_metrics import score_title
from beliefmatch.report.evaluation_text import count_text, number_text, presentable
from beliefmatch.report.page import render_models
from beliefmatch.report.page_facts import flattened

__all__ = ["named_evaluations", "render_adaptation"]

Facts = list[tuple[str, list[tuple[str, str]]]]


def render_adaptation(record: AdaptRecord, evaluations: Sequence[EvaluationRecord]) -> str:
    """An adaptation as a single HTML file, which needs neither network nor server.

    Args:
        record: the adaptation.
        evaluations: one for each line of its table, in their order.
    """
    shown = presentable_adaptation(record, caller="render_adaptation")
    models = named_evaluations(shown, evaluations, caller="render_adaptation")
    cards = adaptation_cards(shown)
    content = _content(shown, models)
    content["contents"] = list(_contents(content, cards))
    return render_models(models, caller="render_adaptation", comparison=content, first_cards=cards)


def named_evaluations(
    record: AdaptRecord, evaluations: Sequence[EvaluationRecord], *, caller: str
) -> list[EvaluationRecord]:
    """The evaluations, presentable, by the titles of their lines."""
    titles = line_titles(record)
    if len(evaluations) != len(titles):
        raise ValueError(
            f"{caller}: `evaluations` must be one for each of the {count_text(len(titles), 'line')}, "
            f"got {len(evaluations)}."
        )
    named = [replace(one, name=title) for one, title in zip(evaluations, titles, strict=True)]
    return presentable(named, caller=caller)


def _content(record: AdaptRecord, models: Sequence[EvaluationRecord]) -> dict[str, Any]:
    seed = record.chosen_head.seed
    verdict, *sentences = findings(record, models)
    return {
        "template": "adaptation.html.j2",
        "styles": ("comparison.css", "adaptation.css"),
        "kicker": "adapt",
        "page_title": f"{record.model}: adaptation",
        "title": record.model,
        "lead": verdict,
        "part": "Each head:",
        "record": record,
        "sentences": sentences,
        "caveats": caveats(record),
        "scored": scored_on_text(record),
        "seed": seed,
        "seeds": sorted({one.seed for one in record.scored}),
        "marked": any(cell.mark for row in score_rows(record) for cell in row.cells()),
        "many": most_seeds(record) > 1,
        "over_seeds": seeds_words(record),
        "chosen": record.row_labels.index(record.new_label),
        "ours": record.new_label,
        "scores": score_rows(record),
        "named_scores": [(row.title, row) for row in score_rows(record)],
        "against": against(record, models),
        "by_majority": record.targets == "votes",
        "detection": list(_detection(record)),
        "command": shlex.join(record.command),
        "common": _facts(record),
        "tried": _tried(record),
    }


def _detection(record: AdaptRecord) -> Iterator[tuple[str, list[tuple[str, SeedRow]]]]:
    """AUROC by every score, and what passes by the first."""
    scores = detection_scores(record)
    for name in ood_sets(record):
        requested = [("auroc", score) for score in scores] + [("fpr95", score) for score in scores[:1]]
        yield (
            name,
            [
                (
                    f"{key.upper()}, {score_title(score).split(' (')[0]}",
                    detection_row(record, name, score, key),
                )
                for key, score in requested
            ],
        )


def _tried(record: AdaptRecord) -> list[tuple[bool, list[str]]]:
    """Whether each head was chosen, and its numbers, the best first."""
    ordered = sorted(record.tried, key=lambda one: (one.nll is None, one.nll or 0.0))
    return [
        (
            one.name == record.chosen,
            [
                one.name,
                number_text(one.nll, 4),
                number_text(one.error, 2, scale=100),
                number_text(one.ece, 2, scale=100),
                str(one.iterations) if one.iterations else "—",
                "; ".join([*([] if one.converged else ["not converged"]), *one.notes]),
            ],
        )
        for one in ordered
    ]


def _facts(record: AdaptRecord) -> Facts:
    """How it came about: groups of names and texts."""
    head = record.head
    layer = {}
    if head is not None:
        before = (
            f"{head.in_features} → {head.out_features}" if head.out_features else "appended to an encoder"
        )
        layer["last layer"] = f"{head.name} ({before})"
    own = {
        "model": record.model,
        **layer,
        "classes": f"{record.classes:,}, {'as before' if record.labels == 'same' else 'new'}",
        "scored on": record.scored_on,
        "validation seen before": {True: "yes", False: "no", None: "not known"}[record.verdict.seen],
        "why": record.verdict.why,
        "made": record.created,
        "took": f"{number_text(record.wall_seconds, 1)} s",
        **{f"{name} took": f"{number_text(value, 1)} s" for name, value in record.seconds.items()},
    }
    sets = {one.set: f"{one.rows:,} × {one.width:,}, {_size(one.bytes)}" for one in record.features}
    groups: list[tuple[str, dict[str, Any]]] = [
        ("This adaptation", own),
        ("Features", sets),
        ("Data", record.data),
        ("Configuration", _unsaid(record.config or record.adapt_config)),
        ("BatchNorm layers trained too", record.batchnorm or {}),
        ("Versions", record.versions),
        ("Hardware", record.hardware),
    ]
    return [(title, list(flattened(content).items())) for title, content in groups if content]


def _unsaid(content: Any) -> Any:
    """What was left open is not called None."""
    if isinstance(content, dict):
        return {name: _unsaid(value) for name, value in content.items()}
    return "default" if content is None else content


def _size(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"


def _contents(content: dict[str, Any], cards: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "changed", "What changed"
    yield "over-seeds", "Scores"
    if content["detection"]:
        yield "ood", "OOD examples"
    if cards["choice"]:
        yield "choice", "Choice of λ"
    yield "made", "How it was made"
