"""The report of an evaluation: verdict, cards, advice, tables and the page.

`evaluation_sections` is also the lower part of the pages of comparisons and adaptations.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace as with_values

from beliefmatch._files import file_names
from beliefmatch.experiments.evaluation_record import (
    EvaluationRecord,
    Number,
    RiskThresholdRecord,
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
    PAIRED,
    detection_of,
    difference,
    has_same_examples,
    headline_score,
    score_names,
)
from beliefmatch.report.figure import Figure, paper_files
from beliefmatch.report.metrics import (
    BRIER,
    CALIBRATION,
    DETECTION,
    PREDICTIONS,
    SELECTION,
    metric_title,
    score_title,
)
from beliefmatch.report.page import (
    Card,
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
from beliefmatch.report.table import MARKS_LEGEND, Cell, Column, Row, Table, marked, to_csv, to_markdown
from beliefmatch.report.text import (
    answers_text,
    class_label,
    count_text,
    listed,
    number_text,
    ood_names,
    percent,
    presentable,
    threshold_text,
)

__all__ = [
    "evaluation_files",
    "evaluation_page",
    "evaluation_sections",
    "evaluation_tables",
    "marked_scores",
    "miscalibration",
    "ood_advice",
    "summary_table",
    "worse_than_chance",
]

_MOST_EXAMPLES = 24
_MISCALIBRATED = 0.01  # least distance of confidence and accuracy that is worth a word
_CHANCE = 0.5


# Tables


def cell_of(number: Number | None) -> Cell:
    """A number of a record as a cell."""
    if number is None or number.value is None:
        return Cell(None, note="not evaluated" if number is None else number.why or "not evaluated")
    return Cell(number.value, number.low, number.high)


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
    ways = "↓ less is better, ↑ more is better; brackets: 95 % intervals."
    level = models[0].settings.get("level")
    ways = ways.replace("95 %", f"{100 * level:g} %") if isinstance(level, float) else ways
    return f"{ways} Bold or *: {MARKS_LEGEND}." if len(models) > 1 else ways


def _rows(
    models: Sequence[EvaluationRecord], columns: Sequence[Column], cells: Sequence[Sequence[Cell]]
) -> Table:
    """A table from the cells of each column, in the order of the models."""
    rows = [
        Row(model.name, [of_column[index] for of_column in cells], model=index)
        for index, model in enumerate(models)
    ]
    return Table("", columns, rows)


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
    cells = []
    for column in columns:
        found = [detection_of(model, name, score) for model in models]
        own = [cell_of(None if one is None else getattr(one, column.key)) for one in found]
        # among predictions the share of positives is each model's own error, so that no AUPR is the best
        is_comparable = has_same_examples(models) and (name is not None or not column.key.startswith("aupr"))
        own = marked(own, column.better) if is_comparable else own
        cells.append([_with_chance(cell) if column.key == "auroc" else cell for cell in own])
    heading = group or (name or "wrong predictions")
    return _rows(models, [with_values(column, group=heading) for column in columns], cells)


def _with_chance(cell: Cell) -> Cell:
    value, high = cell.value, cell.high if cell.high is not None else cell.value
    is_worse = isinstance(value, float) and isinstance(high, float) and high < _CHANCE
    return with_values(cell, note="worse than chance") if is_worse else cell


# Words


def worse_than_chance(models: Sequence[EvaluationRecord]) -> list[str]:
    """Sentences on models that take an OOD set for more familiar than the test examples."""
    score, found = headline_score(models), []
    for name in ood_names(models):
        for model in models:
            one = detection_of(model, name, score)
            if (
                one is not None
                and one.auroc.value is not None
                and (one.auroc.high or one.auroc.value) < _CHANCE
            ):
                fact = f"{model.name} detects {name} worse than chance (AUROC {percent(one.auroc.value)})"
                found.append(f"{fact}: it is surer of these examples than of the test examples.")
    return found


def calibration_words(model: EvaluationRecord) -> str:
    """Such as "overconfident: it is right for 91.1 % and expects 96.5 %"."""
    gap, mean = model.scores.get("overconfidence"), model.scores.get("mean_confidence")
    error = model.scores.get("error")
    if gap is None or gap.value is None or error is None or error.value is None:
        return "of unknown calibration"
    shown = (
        "" if mean is None else f": right for {percent(1 - error.value)}, confident of {percent(mean.value)}"
    )
    side = miscalibration(model)
    return f"{side}{shown}" if side else f"calibrated on average{shown}"


def miscalibration(model: EvaluationRecord) -> str:
    """ "overconfident" or "underconfident" where that is beyond chance and worth a word, else empty."""
    gap = model.scores.get("overconfidence", Number(None))
    if gap.value is None or abs(gap.value) < _MISCALIBRATED:
        return ""
    if gap.low is not None and gap.high is not None and gap.low <= 0 <= gap.high:
        return ""
    return "overconfident" if gap.value > 0 else "underconfident"


def _value(model: EvaluationRecord, key: str) -> float | None:
    return model.scores.get(key, Number(None)).value


def _ranked(models: Sequence[EvaluationRecord], key: str) -> list[int]:
    """Models from the lowest value up; without those that have none."""
    known = [place for place, model in enumerate(models) if _value(model, key) is not None]
    return sorted(known, key=lambda place: _value(models[place], key) or 0.0)


def _is_clear(models: Sequence[EvaluationRecord], best: int, other: int, key: str) -> bool:
    """Whether one model is better than another beyond chance."""
    gap = difference(models[other], models[best], key)
    if gap.low is not None:
        return gap.low > 0
    low, high = (models[place].scores.get(key, Number(None)) for place in (other, best))
    return low.low is not None and high.high is not None and low.low > high.high


def evaluation_verdict(models: Sequence[EvaluationRecord]) -> str:
    """One sentence that a person can repeat."""
    if len(models) == 1:
        first, error = models[0], percent(_value(models[0], "error"))
        shown = f"{error} of {count_text(first.examples, 'example')}"
        return f"{first.name} errs on {shown} and is {calibration_words(first)}."
    if not has_same_examples(models):
        return f"{count_text(len(models), 'model')}, evaluated on different examples: they do not compare."
    by_error, by_nll = _ranked(models, "error"), _ranked(models, "nll")
    if not by_error:
        return f"{count_text(len(models), 'model')} without a finite score."
    best, second = by_error[0], by_error[1] if len(by_error) > 1 else None
    if second is not None and not _is_clear(models, best, second, "error"):
        alike = [place for place in by_error if place == best or not _is_clear(models, best, place, "error")]
        names = listed([models[place].name for place in alike[:3]]) + (" and others" if alike[3:] else "")
        ends = [percent(_value(models[place], "error")) for place in (alike[0], alike[-1])]
        values = ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"
        first = f"{names} err equally often as far as {models[0].examples:,} examples can tell ({values})"
    else:
        first = f"{models[best].name} errs least ({percent(_value(models[best], 'error'))})"
    by_ece = _ranked(models, "ece")
    if not by_ece:
        return f"{first}."
    honest, worst = by_ece[0], by_ece[-1]
    values = f"calibration error {percent(_value(models[honest], 'ece'))}"
    if honest != worst and _is_clear(models, honest, worst, "ece"):
        values += f" against up to {percent(_value(models[worst], 'ece'))}"
        return f"{first}; {models[honest].name} is the most honest about it ({values})."
    same = f"; in calibration they do not differ clearly ({values} and more)"
    return f"{first}{same}." if by_nll else f"{first}."


def evaluation_cards(models: Sequence[EvaluationRecord]) -> list[Card]:
    """Error, calibration, likelihood, OOD detection and selective prediction: the best, and how sure."""
    cards = [
        _card(models, "error", "Error"),
        _card(models, "ece", "Calibration error (ECE)"),
        _card(models, "nll", "Negative log-likelihood"),
    ]
    score = headline_score(models)
    for name in ood_names(models)[:1]:
        areas = {
            place: one.auroc
            for place, model in enumerate(models)
            if (one := detection_of(model, name, score)) is not None and one.auroc.value is not None
        }
        if areas:
            best = max(areas, key=lambda place: areas[place].value or 0.0)
            number = areas[best]
            sure = f"AUROC by {score_title(score)}{_interval(number, 1, 100)}"
            verdict = "worse" if (number.high or number.value or 0.0) < _CHANCE else ""
            cards.append(Card(f"Detects {name}", percent(number.value), sure, verdict, _own(models, best)))
    kept = _best_threshold(models)
    if kept is not None:
        place, found = kept
        rule = answers_text(found)[1] or "at any confidence"
        sure = f"at most {100 * found.risk:g} % errors among the answers, {rule}"
        value = f"answers {number_text(found.coverage, 0, scale=100)}\u00a0%"
        cards.append(Card("When it may abstain", value, sure, model=_own(models, place)))
    return [card for card in cards if card is not None]


def _own(models: Sequence[EvaluationRecord], place: int) -> int | None:
    """The number of a model for its colour; none where there is only one."""
    return place if len(models) > 1 else None


def _interval(number: Number, digits: int, scale: float) -> str:
    if number.low is None or number.high is None:
        return ""
    low, high = (number_text(end, digits, scale=scale) for end in (number.low, number.high))
    return f", 95 % interval {low} to {high}"


def _card(models: Sequence[EvaluationRecord], key: str, title: str) -> Card | None:
    ranked = _ranked(models, key)
    if not ranked:
        return None
    best, is_share = ranked[0], key != "nll"
    number = models[best].scores[key]
    value = percent(number.value, 2) if is_share else number_text(number.value, 3)
    if len(models) == 1:
        sure = _interval(number, 2 if is_share else 3, 100 if is_share else 1).removeprefix(", ")
        if key == "ece":
            sure = f"{miscalibration(models[0]) or 'calibrated on average'}; {sure}" if sure else ""
        return Card(title, value, sure or "no interval")
    if not has_same_examples(models) or len(ranked) < 2:
        return Card(title, value, f"{models[best].name}", model=best)
    clear = [place for place in ranked[1:] if _is_clear(models, best, place, key)]
    others = len(ranked) - 1
    if not clear:
        return Card(title, value, "the lowest; the others do not differ beyond chance")
    if len(clear) == others:
        return Card(title, value, f"{models[best].name}, lowest beyond chance", model=best)
    words = f"{models[best].name}; not clearly lower than {count_text(others - len(clear), 'other')}"
    return Card(title, value, words, model=best)


def _best_threshold(models: Sequence[EvaluationRecord]) -> tuple[int, RiskThresholdRecord] | None:
    """The model that answers most at the least risk that any keeps."""
    kept = [
        (found.risk, -found.coverage, place, found)
        for place, model in enumerate(models)
        for found in model.risk_thresholds
        if found.threshold is not None and found.coverage > 0
    ]
    if not kept:
        return None
    _, _, place, found = min(kept, key=lambda one: one[:3])
    return place, found


def evaluation_advice(models: Sequence[EvaluationRecord]) -> list[str]:
    """What follows from the numbers: which model, which threshold, which score."""
    advice = []
    ranked = _ranked(models, "nll")
    if len(models) > 1 and ranked and has_same_examples(models):
        best = models[ranked[0]]
        reason = f"its probabilities fit best (NLL {number_text(_value(best, 'nll'), 3)})"
        close = [models[place].name for place in ranked[1:] if not _is_clear(models, ranked[0], place, "nll")]
        chance = f"; {listed(close[:3])} may be as good" if close else ""
        advice.append(f"Take {best.name}: {reason}{chance}.")
    best = models[ranked[0]] if ranked else models[0]
    side = miscalibration(best)
    if side:
        gap = number_text(abs(_value(best, "overconfidence") or 0.0), 1, scale=100)
        remedy = "scale its temperature on held-out labels, or refit its last layer with `beliefmatch adapt`"
        advice.append(f"{best.name} is {side} by {gap} points: {remedy}.")
    for found in best.risk_thresholds:
        if found.threshold is None:
            advice.append(
                f"{best.name} keeps the error of its answers below {100 * found.risk:g} % at no confidence."
            )
        elif found.threshold > 0 and found.coverage < 1:
            answered = f"answers {percent(found.coverage)}"
            rule = f"answer only at a confidence of {threshold_text(found.threshold)} or more"
            advice.append(
                f"For at most {100 * found.risk:g} % errors among the answers, {rule}; that {answered}."
            )
    advice += ood_advice(best)
    return advice


def ood_advice(model: EvaluationRecord) -> Iterator[str]:
    """Which score detects each OOD set best."""
    for ood in model.ood:
        known = [one for one in ood.detections if one.auroc.value is not None]
        if not known:
            continue
        best = max(known, key=lambda one: one.auroc.value or 0.0)
        passing = percent(best.fpr95.value)
        yield (
            f"To detect {ood.name} with {model.name}, {score_title(best.score)} does best "
            f"(AUROC {percent(best.auroc.value)}): where 95 % of the test examples pass, {passing} of "
            f"{ood.name} do."
        )


# Page and files


def evaluation_page(records: Sequence[EvaluationRecord]) -> Page:
    """The page of one or more models."""
    models = presentable(records, caller="evaluation_page")
    sizes = _title(models)
    sets = ood_names(models)
    ood = f" OOD: {listed(sets)}." if sets else ""
    warnings = worse_than_chance(models)
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
    sets = ood_names(models)
    second = entropy_figure(models, sets[0]) if sets else risk_coverage_figure(models)
    return [reliability_figure(models), second]


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
                *(entropy_figure(models, name) for name in sets[1:]),
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
                *([risk_coverage_figure(models)] if sets else []),
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
                tables[title]
                for title in (
                    "Scores",
                    "Calibration",
                    "Paired bootstrap difference from the best",
                    "Brier score in parts",
                    "Other metrics",
                )
                if title in tables
            ],
        ),
        Section("How these numbers were made", [*_conventions(models), _facts(models)]),
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
        for title, found in (("Most confident mistakes", model.mistakes), ("Most doubtful", model.doubtful)):
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
            yield Examples(f"{title}: {model.name}", items, model=_own(models, index))


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


def markdown_report(tables: Sequence[Table]) -> str:
    """Tables below each other."""
    return "\n\n".join(map(to_markdown, tables)) + "\n"
