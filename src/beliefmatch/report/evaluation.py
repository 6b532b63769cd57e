"""The report of an evaluation: tables, the page and all files.

`evaluation_sections` is also the lower part of the pages of comparisons and adaptations.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace as with_values

from beliefmatch._files import file_names
from beliefmatch.experiments.evaluation_record import (
    PAIRED,
    EvaluationRecord,
    Number,
    RiskThresholdRecord,
)
from beliefmatch.report.columns import (
    AUROC_DIFFERENCE,
    BRIER,
    CALIBRATION,
    DETECTION,
    PREDICTIONS,
    SELECTION,
    metric_title,
    score_title,
)
from beliefmatch.report.evaluation_figures import (
    class_figures,
    confusion_figures,
    entropy_figure,
    reliability_figure,
    risk_coverage_figure,
    roc_figure,
)
from beliefmatch.report.evaluation_scores import (
    cell_of,
    detection_of,
    difference,
    has_same_examples,
    headline_score,
    ranked_by,
    score_names,
    stored_auroc_difference,
)
from beliefmatch.report.evaluation_words import (
    evaluation_advice,
    evaluation_cards,
    evaluation_verdict,
    models_below_chance,
    models_of_distributions,
    own_colour,
)
from beliefmatch.report.figure import Figure, paper_files
from beliefmatch.report.page import (
    Example,
    Examples,
    Facts,
    Page,
    Section,
    Text,
    facts_of,
    render_page,
)
from beliefmatch.report.style import looks
from beliefmatch.report.table import (
    MARKS_LEGEND,
    Cell,
    Column,
    Row,
    Table,
    markdown_report,
    marked,
    rows_of,
    to_csv,
    with_chance,
)
from beliefmatch.report.text import (
    class_label,
    count_text,
    level_text,
    listed,
    number_text,
    ood_names,
    percent,
    presentable,
    threshold_text,
)

__all__ = [
    "auroc_differences",
    "evaluation_files",
    "evaluation_page",
    "evaluation_pictures",
    "evaluation_sections",
    "evaluation_tables",
    "marked_scores",
    "paired_mark",
    "summary_table",
]

_MOST_EXAMPLES = 24
_MOST_PICTURED = 6  # models in the pictures on top; all are below


# Tables


def summary_table(records: Sequence[EvaluationRecord]) -> Table:
    """Error, likelihood, calibration and OOD detection of each model, for the terminal and the page."""
    models = presentable(records, caller="summary_table")
    score = headline_score(models)
    kept = [column for column in (*PREDICTIONS, *CALIBRATION[:1]) if column.key != "top_k_error"]
    parts = [_scores(models, kept)]
    for name in ood_names(models):
        parts.append(_detection(models, name, score, DETECTION[:1]))
    by = f" OOD sets are detected by {score_title(score)}." if len(parts) > 1 else ""
    return _joined(_title(models), parts, caption=_legend(models) + by)


def evaluation_tables(records: Sequence[EvaluationRecord]) -> list[Table]:
    """Every number of the records, by family."""
    models = presentable(records, caller="evaluation_tables")
    tables = [
        with_values(_scores(models, [_with_k(column, models) for column in PREDICTIONS]), title="Scores"),
        with_values(_scores(models, CALIBRATION), title="Calibration"),
        with_values(_scores(models, SELECTION), title="Selective prediction"),
        _brier(models),
        _others(models),
        *_differences(models),
    ]
    for name in (None, *ood_names(models)):
        title = "Wrong predictions" if name is None else f"OOD: {name}"
        parts = [
            _detection(models, name, score, DETECTION, group=score_title(score))
            for score in score_names(models)
        ]
        tables.append(_joined(title, parts))
    return [kept for table in tables if (kept := table.without_empty()).columns]


def _title(models: Sequence[EvaluationRecord]) -> str:
    sizes = sorted({model.examples for model in models})
    examples = " or ".join(f"{size:,}" for size in sizes)
    return f"{examples} {'example' if sizes == [1] else 'examples'}, {len(models[0].class_names):,} classes"


def _legend(models: Sequence[EvaluationRecord]) -> str:
    ways = f"↓ less is better, ↑ more is better; brackets: {level_text(models[0])} intervals."
    return f"{ways} Bold or *: {MARKS_LEGEND}." if len(models) > 1 else ways


def _rows(
    models: Sequence[EvaluationRecord], columns: Sequence[Column], cells: Sequence[Sequence[Cell]]
) -> Table:
    """A table from the cells of each column, in the order of the models."""
    return Table("", columns, rows_of([model.name for model in models], cells))


def _joined(title: str, parts: Sequence[Table], caption: str = "") -> Table:
    """Tables of the same models side by side."""
    rows = [
        with_values(row, cells=[cell for part in parts for cell in part.rows[place].cells])
        for place, row in enumerate(parts[0].rows)
    ]
    return Table(title, [column for part in parts for column in part.columns], rows, caption)


def _scores(models: Sequence[EvaluationRecord], columns: Sequence[Column]) -> Table:
    cells = [marked_scores(models, column) for column in columns]
    return _rows(models, columns, cells)


def marked_scores(models: Sequence[EvaluationRecord], column: Column) -> list[Cell]:
    """The best is marked; what is indistinguishable from it by paired draws, else by its interval."""
    cells = [cell_of(model.scores.get(column.key)) for model in models]
    if not has_same_examples(models):
        return cells
    cells = marked(cells, column.better)
    first = next((place for place, cell in enumerate(cells) if cell.mark == "best"), None)
    if first is None or column.key not in PAIRED:
        return cells
    found = []
    for cell, model in zip(cells, models, strict=True):
        excess = difference(model, models[first], column.key)
        if cell.mark != "best" and excess.low is not None:
            cell = with_values(cell, mark="close" if excess.low <= 0 else "")
        found.append(cell)
    return found


def _with_k(column: Column, models: Sequence[EvaluationRecord]) -> Column:
    """ "Top-k error" says which k, if the records agree on it."""
    found = {str(model.settings.get("top_k", "k")) for model in models}
    if column.key != "top_k_error" or len(found) != 1:
        return column
    return with_values(column, title=f"Top-{found.pop()} error")


def _brier(models: Sequence[EvaluationRecord]) -> Table:
    cells = [
        [Cell(getattr(model.brier_shares, column.key.removeprefix("brier_"))) for model in models]
        for column in BRIER
    ]
    return with_values(_rows(models, BRIER, cells), title="Brier score in parts")


def _others(models: Sequence[EvaluationRecord]) -> Table:
    """Metrics of a later version: shown, without an opinion on which way is better."""
    known = {column.key for column in (*PREDICTIONS, *CALIBRATION, *SELECTION)}
    keys = dict.fromkeys(key for model in models for key in model.scores if key not in known)
    columns = [Column(key, metric_title(key), digits=4) for key in keys]
    return with_values(_scores(models, columns), title="Other metrics")


def _differences(models: Sequence[EvaluationRecord]) -> list[Table]:
    """How far each model is above the best, on the same draws for both."""
    if len(models) < 2 or not has_same_examples(models):
        return []
    columns, cells = [], []
    for column in (*PREDICTIONS, *CALIBRATION):
        numbers = [model.scores.get(column.key, Number(None)).value for model in models]
        present = [value for value in numbers if value is not None]
        if column.key not in PAIRED or len(present) < len(numbers):
            continue
        first = numbers.index(min(present))
        found = [difference(model, models[first], column.key) for model in models]
        if any(one.low is not None for place, one in enumerate(found) if place != first):
            found[first] = Number(0.0)
            unit = "% points" if column.unit == "%" else column.unit
            columns.append(with_values(column, unit=unit, better=""))
            cells.append([cell_of(one) for one in found])
    if not columns:
        return []
    caption = (
        "Both models of a difference are scored on the same resampled examples, so these intervals are "
        "narrower than those of the scores suggest. Each is for one comparison; of many some miss by chance."
    )
    table = _rows(models, columns, cells)
    return [with_values(table, title="Paired bootstrap difference from the best", caption=caption)]


def _detection(
    models: Sequence[EvaluationRecord],
    name: str | None,
    score: str,
    columns: Sequence[Column],
    group: str = "",
) -> Table:
    kept, cells = list[Column](), list[list[Cell]]()
    for column in columns:
        found = [detection_of(model, name, score) for model in models]
        own = [cell_of(None if one is None else getattr(one, column.key)) for one in found]
        # among predictions the share of positives is each model's own error, so that no AUPR is the best
        is_comparable = has_same_examples(models) and (name is not None or not column.key.startswith("aupr"))
        own = marked(own, column.better) if is_comparable else own
        kept.append(column)
        if column.key != "auroc":
            cells.append(own)
            continue
        apart = auroc_differences(models, name, score, own)
        cells.append([with_chance(paired_mark(cell, one)) for cell, one in zip(own, apart, strict=True)])
        if group and any(one.low is not None for one in apart):
            kept.append(AUROC_DIFFERENCE)
            cells.append([cell_of(one) for one in apart])
    heading = group or (name or "wrong predictions")
    return _rows(models, [with_values(column, group=heading) for column in kept], cells)


def auroc_differences(
    models: Sequence[EvaluationRecord], name: str | None, score: str, cells: Sequence[Cell]
) -> list[Number]:
    """How far each AUROC is from the best one, on the same examples."""
    best = next((place for place, cell in enumerate(cells) if cell.mark == "best"), None)
    if best is None:
        return [Number(None)] * len(models)
    found = [stored_auroc_difference(model, models[best], name, score) for model in models]
    return [Number(0.0) if cell.mark == "best" else one for cell, one in zip(cells, found, strict=True)]


def paired_mark(cell: Cell, difference: Number) -> Cell:
    """Whether an AUROC is indistinguishable from the best, by their difference where that is known."""
    if cell.mark == "best" or difference.high is None:
        return cell
    return with_values(cell, mark="close" if difference.high >= 0 else "")


# Page and files


def evaluation_page(records: Sequence[EvaluationRecord]) -> Page:
    """The page of one or more models."""
    models = presentable(records, caller="evaluation_page")
    sizes = _title(models)
    sets = ood_names(models)
    ood = f" OOD: {listed(sets)}." if sets else ""
    warnings = [*models_of_distributions(models), *models_below_chance(models)]
    if not has_same_examples(models):
        warnings.insert(0, "The models were evaluated on different examples: their scores do not compare.")
    name = models[0].name if len(models) == 1 else f"{len(models)} models"
    return Page(
        command="evaluate",
        title=f"Evaluation of {name}",
        verdict=evaluation_verdict(models),
        lead=f"{sizes[:1].upper()}{sizes[1:]}.{ood}",
        models=[model.name for model in models],
        looks=looks([model.name for model in models]),
        warnings=warnings,
        cards=evaluation_cards(models),
        pictures=evaluation_pictures(models),
        advice=evaluation_advice(models),
        sections=[
            Section("Scores", [summary_table(models)], folded=False),
            *evaluation_sections(models),
        ],
        version=models[0].versions.get("beliefmatch", ""),
    )


def evaluation_pictures(models: Sequence[EvaluationRecord]) -> list[Figure]:
    """Reliability, and entropy on test and OOD examples; risk-coverage where there is no OOD set."""
    sets, shown = ood_names(models), None
    if len(models) > _MOST_PICTURED:
        shown = [*ranked_by(models, "nll"), *range(len(models))][:_MOST_PICTURED]
    second = (
        entropy_figure(models, sets[0], shown=shown) if sets else risk_coverage_figure(models, shown=shown)
    )
    return [reliability_figure(models, shown=shown), second]


def evaluation_sections(models: Sequence[EvaluationRecord]) -> list[Section]:
    """Everything below the first screen: one section a question."""
    sets, score = ood_names(models), headline_score(models)
    tables = {table.title: table for table in evaluation_tables(models)}
    of_ood = [tables[title] for title in tables if title.startswith("OOD: ") or title == "Wrong predictions"]
    sections = [
        Section(
            "Out-of-distribution detection" if sets else "Detection of wrong predictions",
            [
                Text(
                    "How well a score separates OOD examples from the test examples, and wrong predictions "
                    "from right ones. What lies above a threshold is flagged. AUPR is to be read against "
                    "chance, the share of what should be flagged; among predictions that is each model's own "
                    "error."
                ),
                *(entropy_figure(models, name) for name in sets[len(models) <= _MOST_PICTURED :]),
                roc_figure(models, score, sets),
                *of_ood,
            ],
        ),
        Section(
            "Selective prediction",
            [
                Text(
                    "The error among the answers when only the most confident predictions are answered. Open "
                    "marks are risk thresholds: above them the error among the answers stays below the risk, "
                    "with the given probability over the draw of the examples."
                ),
                *([risk_coverage_figure(models)] if sets or len(models) > _MOST_PICTURED else []),
                *_threshold_tables(models),
                *_set_tables(models),
                *([tables["Selective prediction"]] if "Selective prediction" in tables else []),
            ],
        ),
        Section(
            "Classes and mistakes", [*class_figures(models), *confusion_figures(models), *_examples(models)]
        ),
        Section(
            "More statistics",
            [
                *([reliability_figure(models)] if len(models) > _MOST_PICTURED else []),
                *(
                    tables[title]
                    for title in (
                        "Scores",
                        "Calibration",
                        "Paired bootstrap difference from the best",
                        "Brier score in parts",
                        "Other metrics",
                    )
                    if title in tables
                ),
            ],
        ),
        Section("Definitions and settings", [*_conventions(models), _facts(models)]),
    ]
    return [section for section in sections if section.blocks]


def _threshold_tables(models: Sequence[EvaluationRecord]) -> Iterator[Table]:
    wanted = sorted({(found.risk, found.delta) for model in models for found in model.risk_thresholds})
    if not wanted:
        return
    columns = []
    for risk, delta in wanted:
        group = f"error ≤ {100 * risk:g} % with probability {100 - 100 * delta:g} %"
        columns += [
            Column(f"threshold_{risk:g}", "confidence ≥", digits=4, group=group),
            Column(f"coverage_{risk:g}", "answered", "%", "high", 1, 100.0, group=group),
        ]
    rows = []
    for index, model in enumerate(models):
        known = {(found.risk, found.delta): found for found in model.risk_thresholds}
        cells = [cell for one in wanted for cell in _threshold_cells(known.get(one))]
        rows.append(Row(model.name, cells, model=index))
    yield Table("Risk thresholds", columns, rows)


def _set_tables(models: Sequence[EvaluationRecord]) -> Iterator[Table]:
    """Size and coverage of conformal prediction sets, by method and by the coverage that was asked for."""
    wanted = dict.fromkeys((one.wanted, one.method) for model in models for one in model.prediction_sets)
    if not wanted:
        return
    columns, help = [], "Share of the examples whose set holds the true class."
    for share, method in wanted:
        group = f"{100 * share:g} %, {method.upper()}"
        columns += [
            Column(f"size_{method}_{share:g}", "mean size", "", "low", 2, group=group),
            Column(f"coverage_{method}_{share:g}", "coverage", "%", "", 1, 100.0, group, help),
        ]
    rows = []
    for index, model in enumerate(models):
        known = {(one.wanted, one.method): one for one in model.prediction_sets}
        cells = []
        for key in wanted:
            one = known.get(key)
            if one is None:
                cells += [Cell(None), Cell(None)]
                continue
            worst = "" if one.worst_class is None else class_label(model, one.worst_class)
            note = f"{worst} {percent(one.worst_coverage)}" if worst else ""
            cells += [Cell(one.mean_size), Cell(one.coverage, note=note)]
        rows.append(Row(model.name, cells, model=index))
    caption = (
        "Sets of classes that hold the true one with the probability asked for (conformal prediction), "
        "calibrated on one half of the examples and scored on the other. Below the coverage: the class "
        "that is held least often, for which the guarantee does not hold by itself."
    )
    yield Table("Prediction sets", columns, rows, caption)


def _threshold_cells(found: RiskThresholdRecord | None) -> list[Cell]:
    if found is None:
        return [Cell(None, note="not requested"), Cell(None)]
    if found.threshold is None:
        return [Cell(None, note="no threshold keeps it"), Cell(0.0)]
    text = "any" if found.threshold <= 0 else threshold_text(found.threshold)
    return [Cell(text), Cell(found.coverage)]


def _examples(models: Sequence[EvaluationRecord]) -> Iterator[Examples]:
    for index, model in enumerate(models):
        for title, found in (
            ("Most confident mistakes", model.mistakes),
            ("Highest predictive entropy", model.doubtful),
        ):
            items = [
                Example(
                    [
                        f"{class_label(model, one.predicted)} · {percent(one.confidence)}",
                        "right"
                        if one.target == one.predicted
                        else f"true: {class_label(model, one.target)} · {percent(one.target_probability)}",
                        f"row {one.index}, entropy {one.entropy:.2f}",
                    ],
                    one.image,
                )
                for one in found[:_MOST_EXAMPLES]
            ]
            yield Examples(f"{title}: {model.name}", items, model=own_colour(models, index))


def _conventions(models: Sequence[EvaluationRecord]) -> list[Facts]:
    found = {metric_title(key): text for model in models for key, text in model.conventions.items()}
    return [Facts({"Conventions": found})] if found else []


def _facts(models: Sequence[EvaluationRecord]) -> Facts:
    groups = {}
    for model in models:
        ood = {f"OOD {one.name}": f"{one.source}, {count_text(one.examples, 'example')}" for one in model.ood}
        groups[model.name] = {
            "file": model.source,
            "content": model.kind,
            "examples": f"{model.examples:,}",
            "classes": f"{len(model.class_names):,}",
            **ood,
            "evaluated": model.created,
            "evaluation took": f"{number_text(model.wall_seconds, 2)} s",
        }
    shared = [("Settings", "settings"), ("Versions", "versions"), ("Hardware", "hardware")]
    for title, name in shared:
        contents = [getattr(model, name) for model in models]
        if all(content == contents[0] for content in contents):
            groups[title] = facts_of(contents[0])
        else:
            groups |= {f"{title}: {model.name}": facts_of(getattr(model, name)) for model in models}
    return Facts(groups)


def evaluation_files(
    records: Sequence[EvaluationRecord], *, figures: Sequence[str] = ()
) -> Iterator[tuple[str, bytes]]:
    """Every file of an evaluation: records, tables, the page, and figures as "pdf", "svg" or "png"."""
    for name, record in zip(file_names([record.name for record in records]), records, strict=True):
        yield f"{name}.json", record.to_json().encode()
    tables, page = evaluation_tables(records), evaluation_page(records)
    yield "summary.csv", to_csv(tables).encode()
    yield "summary.md", markdown_report([summary_table(records), *tables]).encode()
    yield "report.html", render_page(page, caller="evaluate").encode()
    for name, content in paper_files(page.figures(), figures):
        yield f"figures/{name}", content
