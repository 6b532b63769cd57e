"""The report of a comparison: verdict, cards, advice, tables, page and files; and the tables of one run."""

import csv
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace as with_values
from io import StringIO
from math import floor, log10
from statistics import fmean
from typing import Any

from msgspec.structs import replace

from beliefmatch.experiments.evaluation_record import EvaluationRecord
from beliefmatch.experiments.records import (
    Compared,
    ComparisonRecord,
    Costs,
    RotatedDigit,
    RunRecord,
    Scores,
    Trial,
    evaluation_paths,
)
from beliefmatch.report.comparison_figures import (
    comparison_figures,
    learning_figure,
    overview_figure,
    rotation_figure,
    rotations_of,
)
from beliefmatch.report.comparison_scores import (
    INFINITE,
    SCORES,
    Measure,
    Ranking,
    cost,
    detection,
    detection_scores,
    hardest_set,
    mean_of,
    ood_sets,
    over_seeds,
    presentable_comparison,
    ranking,
    short_names,
    wrong_confidences,
)
from beliefmatch.report.evaluation import (
    evaluation_pictures,
    evaluation_sections,
    markdown_report,
)
from beliefmatch.report.figure import KINDS, paper_files
from beliefmatch.report.metrics import score_title
from beliefmatch.report.page import Card, Command, Facts, Page, Section, Text, facts_of, render_page
from beliefmatch.report.style import looks
from beliefmatch.report.table import MARKS_LEGEND, Cell, Column, Row, Table
from beliefmatch.report.text import (
    MISSING,
    count_text,
    listed,
    number_text,
    percent,
    presentable,
    spreadsheet_text,
)

__all__ = [
    "comparison_csv",
    "comparison_files",
    "comparison_findings",
    "comparison_page",
    "comparison_summary",
    "comparison_tables",
    "run_tables",
]

_CHANCE = 0.5
_FEW_SEEDS = 5
_COSTLY = 2.0  # times the cost of another that is worth a word
_ALL_ANGLES = 2  # methods whose view of the digit is shown at every angle
_COUNTS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_COSTS = (
    Column("networks", "Networks"),
    Column("parameters", "Parameters of a network"),
    Column("train_seconds", "Training", "(s)"),
    Column("train_images_per_second", "Training", "(images a second)"),
    Column("predict_ms_per_image", "Prediction", "(ms an image)"),
)
_TIMED = ("train_seconds", "predict_ms_per_image")  # also shown as multiples of the first method's
_TRIED = (
    Column("value", "value"),
    Column("error", "Error", "%", "low", 2, 100.0),
    Column("nll", "NLL", "", "low", 4),
    Column("chosen", ""),
)


# Tables


def comparison_summary(record: ComparisonRecord) -> Table:
    """Error, likelihood, calibration, OOD detection and training time, for the terminal and the page."""
    shown = presentable_comparison(record, caller="comparison_summary")
    score = next(iter(detection_scores(shown)), "")
    measures = [SCORES[key] for key in ("error", "nll", "ece")]
    table = _measured(shown, "", [*measures, *(detection(name, score) for name in ood_sets(shown))])
    by = f" OOD sets are detected by {score_title(score)}." if score else ""
    first = shown.methods[0].runs[0]
    if len(shown.methods) > 1:
        times = Column("train_ratio", "Training", f"× {short_names(shown)[0]}", digits=1)
        ratios = _ratios(shown, "train_seconds")
        rows = [
            with_values(row, cells=[*row.cells, Cell(ratio)])
            for row, ratio in zip(table.rows, ratios, strict=True)
        ]
        table = with_values(table, columns=[*table.columns, times], rows=rows)
    size = f"{count_text(first.test.examples, 'test image')}, {len(first.class_names):,} classes"
    return with_values(table, title=size, caption=f"{_legend(shown, table)}{by}")


def comparison_tables(record: ComparisonRecord) -> list[Table]:
    """All tables, from top to bottom: summary, OOD detection, costs, choices, rotated digit."""
    shown = presentable_comparison(record, caller="comparison_tables")
    tables = [
        comparison_summary(shown),
        _further_scores(shown),
        *_detection_tables(shown),
        _cost_table(shown),
        *_choice_tables(shown),
        *_rotation_tables(shown),
    ]
    return [kept for table in tables if (kept := table.without_empty()).columns]


def _legend(record: ComparisonRecord, table: Table) -> str:
    words = over_seeds(record)
    marks = f" Bold or *: {MARKS_LEGEND}: mean ± sd meet." if table.is_marked else ""
    return f"{words[:1].upper()}{words[1:]}; ↓ less is better, ↑ more is better.{marks}"


def _measured(record: ComparisonRecord, title: str, measures: Sequence[Measure]) -> Table:
    """A row a method, a column a measure; areas below chance are remarked on."""
    cells = [
        [_with_chance(cell) if measure.column.key == "auroc" else cell for cell in measure.cells(record)]
        for measure in measures
    ]
    rows = [
        Row(method.label, [of_measure[index] for of_measure in cells], model=index)
        for index, method in enumerate(record.methods)
    ]
    return Table(title, [measure.column for measure in measures], rows, row_title="method")


def _further_scores(record: ComparisonRecord) -> Table:
    """Brier score and mean confidence on the test images, error and NLL on those of validation."""
    confidence = Column("mean_confidence", "Mean confidence", "%", "", 2, 100.0)
    measures = [SCORES["brier"], Measure(confidence, lambda run: run.test.mean_confidence)]
    for key in ("error", "nll"):
        column = with_values(SCORES[key].column, group="validation")
        measures.append(with_values(SCORES[key], column=column, of=_validation(key)))
    table = _measured(record, "Further scores", measures)
    return with_values(table, caption=_legend(record, table))


def _validation(key: str) -> Callable[[RunRecord], float | None]:
    return lambda run: getattr(run.validation, key)


def _is_below_chance(cell: Cell) -> bool:
    return isinstance(cell.value, float) and cell.value + (cell.sd or 0.0) < _CHANCE


def _with_chance(cell: Cell) -> Cell:
    return with_values(cell, note="worse than chance") if _is_below_chance(cell) else cell


def _detection_tables(record: ComparisonRecord) -> Iterator[Table]:
    """AUROC by every score and FPR95 by the first, a table a set."""
    scores = detection_scores(record)
    for name in ood_sets(record):
        shown = [(scores[0], "auroc"), (scores[0], "fpr95"), *((score, "auroc") for score in scores[1:])]
        measures = [detection(name, score, key, group=score_title(score)) for score, key in shown]
        table = _measured(record, f"OOD set {name}", measures)
        yield with_values(table, caption=_legend(record, table))


def _ratios(record: ComparisonRecord, key: str) -> list[float | None]:
    """How many times the first method's mean cost each method's is."""
    means = [mean_of(method, lambda run: getattr(run.costs, key)) for method in record.methods]
    first = means[0]
    return [mean / first if mean is not None and first else None for mean in means]


def _cost_table(record: ComparisonRecord) -> Table:
    columns, cells = [], []
    first = short_names(record)[0]
    for column in _COSTS:
        columns.append(column)
        cells.append([Cell(significant(cost(column).cell(method).value)) for method in record.methods])
        if column.key in _TIMED and len(record.methods) > 1:
            columns.append(Column(f"{column.key}_ratio", f"× {first}"))
            cells.append([Cell(_times(ratio)) for ratio in _ratios(record, column.key)])
    rows = [
        Row(method.label, [of_column[index] for of_column in cells], model=index)
        for index, method in enumerate(record.methods)
    ]
    several = max(len(method.runs) for method in record.methods) > 1
    caption = (
        "Means over the seeds. Training time is of all networks of a method, one after the other."
        if several
        else "Of one seed. Training time is of all networks of a method, one after the other."
    )
    return Table("Costs", columns, rows, caption, row_title="method")


def _times(ratio: float | None) -> str:
    if ratio is None:
        return MISSING
    return f"{ratio:.1f}×" if ratio < 9.95 else f"{round(ratio):,}×"


def significant(value: float | str | None, digits: int = 3) -> str:
    """A number with so many digits, whole ones with all of theirs.

    >>> significant(1234567.8), significant(0.012345), significant(60170)
    ('1,234,568', '0.0123', '60,170')
    """
    if not isinstance(value, float | int):
        return MISSING
    if value == int(value) or abs(value) >= 10**digits:
        return f"{round(value):,}".replace("-", "−")
    return number_text(value, max(digits - 1 - floor(log10(abs(value))), 0))


def _choice_tables(record: ComparisonRecord) -> Iterator[Table]:
    """Each value of each option that was tried on validation data: means over the seeds that tried it."""
    rows = []
    for index, method in enumerate(record.methods):
        trials: dict[tuple[str, float], list[Trial]] = {}
        for trial in (trial for run in method.runs for trial in run.search):
            trials.setdefault((trial.option, trial.value), []).append(trial)
        for (option, value), tried in trials.items():
            chosen = sum(trial.chosen for trial in tried)
            words = f"chosen by {chosen} of {len(tried)}" if chosen < len(tried) else "chosen"
            error = fmean(trial.validation.error for trial in tried)
            nlls = [trial.validation.nll for trial in tried]
            nll = INFINITE if None in nlls else fmean(nll for nll in nlls if nll is not None)
            cells = [Cell(f"{value:g}"), Cell(error), Cell(nll), Cell(words if chosen else "")]
            rows.append(Row(f"{method.label}: {option}", cells, model=index, is_chosen=chosen > 0))
    if rows:
        caption = "Scores on validation images, means over the seeds that tried a value."
        yield Table("Chosen on validation data", _TRIED, rows, caption, row_title="option")


def _rotation_tables(record: ComparisonRecord) -> Iterator[Table]:
    """A row a method: its classes over the angles, and how sure it is of wrong ones; all angles for few."""
    digit, rotations = record.rotated_digit, rotations_of(record)
    if digit is None or not rotations:
        return
    seed = record.methods[0].runs[0].seed
    title = f"A test {digit.digit} turned upside down"
    if len(rotations) <= _ALL_ANGLES:
        yield _all_angles(record, digit, f"{title}, seed {seed}")
    wrong = _measured(record, "", wrong_confidences(digit))
    angles = f"{digit.angles[0]}° to {digit.angles[-1]}°"
    columns = [
        Column("classes", f"Classes at {angles}, seed {seed}"),
        Column("confidence", "Mean confidence", "%", digits=1, scale=100.0),
    ]
    rows = []
    for row, seen in zip(wrong.rows, rotations, strict=True):
        between = "" if max(seen.predicted, default=0) < 10 else " "
        own = [Cell(between.join(map(str, seen.predicted))), Cell(fmean(seen.confidence))]
        rows.append(with_values(row, cells=[*own, *row.cells]))
    notes = {f"{row.label}: {cell.note}." for row in wrong.rows for cell in row.cells if cell.note}
    caption = " ".join([_legend(record, wrong), *sorted(notes)])
    yield Table(title, [*columns, *wrong.columns], rows, caption, row_title="method")


def _all_angles(record: ComparisonRecord, digit: RotatedDigit, title: str) -> Table:
    """Class, confidence, entropy and mutual information at each angle, and means where the class is wrong."""
    columns: list[Column] = []
    lists: list[list[float | str | None]] = []
    for method, seen in zip(record.methods, rotations_of(record), strict=True):
        is_wrong = [predicted != digit.digit for predicted in seen.predicted]
        columns.append(Column("class", "class", group=method.label))
        lists.append([*map(str, seen.predicted), f"{sum(is_wrong)}"])
        measures = {"confidence": (seen.confidence, 2), "entropy": (seen.entropy, 2)}
        if seen.mutual_information is not None:
            measures["mutual information"] = (seen.mutual_information, 3)
        for name, (values, digits) in measures.items():
            kept = [value for value, wrong in zip(values, is_wrong, strict=True) if wrong]
            columns.append(Column(name, name, digits=digits, group=method.label))
            lists.append([*values, fmean(kept) if kept else None])
    names = [*(f"{angle}°" for angle in digit.angles), "wrong"]
    rows = [Row(name, [Cell(values[place]) for values in lists]) for place, name in enumerate(names)]
    caption = (
        "Confidence: probability of the class. Entropy of the probabilities and mutual information of the "
        "belief in nats: the larger, the more doubt. Last row: number of wrong classes, and means over those."
    )
    return Table(title, columns, rows, caption, row_title="angle")


# Words


def _count(number: int) -> str:
    return _COUNTS[number] if number < len(_COUNTS) else f"{number:,}"


def _seeds(record: ComparisonRecord) -> str:
    most = max(len(method.runs) for method in record.methods)
    return f"{_count(most)} seed{'s' if most > 1 else ''}"


def _has_one_seed(record: ComparisonRecord) -> bool:
    return all(len(method.runs) == 1 for method in record.methods)


def _names(record: ComparisonRecord, places: Sequence[int], most: int = 2) -> str:
    """The first names, and how many others there are."""
    names = [short_names(record)[place] for place in places]
    others = len(names) - most
    return listed(names) if others <= 0 else listed([*names[:most], count_text(others, "other")])


def _value_text(measure: Measure, cell: Cell) -> str:
    """A mean with its deviation, as sentences have it: with few digits."""
    if not isinstance(cell.value, float):
        return f"{cell.value}"
    if measure.column.unit == "%":
        sd = "" if cell.sd is None else f"\u00a0±\u00a0{number_text(cell.sd, 1, scale=100)}"
        return f"{percent(cell.value)}{sd}"
    return number_text(cell.value, 3)


def _best_text(measure: Measure, ranked: Ranking) -> str:
    return _value_text(measure, ranked.cells[ranked.best])


def comparison_verdict(record: ComparisonRecord) -> str:
    """One sentence that a person can repeat."""
    error, nll, names = SCORES["error"], SCORES["nll"], short_names(record)
    by_error, by_nll = ranking(record, error), ranking(record, nll)
    if by_error is None:
        return f"{count_text(len(record.methods), 'method')} without a finite error."
    best = _best_text(error, by_error)
    if len(record.methods) == 1:
        fit = "" if by_nll is None else f" and has an NLL of {_best_text(nll, by_nll)}"
        return f"{names[0]} errs on {best} of the test images{fit}, over {_seeds(record)}."
    if _has_one_seed(record):
        worst = by_error.order[-1]
        ends = (
            f"{best} ({names[by_error.best]}) to {_value_text(error, by_error.cells[worst])} ({names[worst]})"
        )
        return f"One seed cannot rank {_count(len(names))} methods: their errors are {ends}."
    who = names[by_error.best]
    first = f"Of {_count(len(names))} methods {who} errs least ({best})"
    if by_error.alike:
        first += f", but {_seeds(record)} cannot tell it from {_names(record, by_error.alike)}"
    else:
        first += f", beyond the scatter of {_seeds(record)}"
    if by_nll is None:
        return f"{first}."
    fits = "it also fits" if by_nll.best == by_error.best else f"{names[by_nll.best]} fits"
    doubt = "" if by_nll.is_clear else ", not clearly"
    return f"{first}; {fits} best (NLL {_best_text(nll, by_nll)}{doubt})."


def comparison_findings(record: ComparisonRecord) -> list[str]:
    """The verdict, OOD detection and cost: at most three sentences for the terminal."""
    shown = presentable_comparison(record, caller="comparison_findings")
    found = [comparison_verdict(shown), *_ood_sentence(shown)]
    ratios, names = _ratios(shown, "train_seconds"), short_names(shown)
    known = [place for place, ratio in enumerate(ratios) if ratio is not None]
    if len(known) > 1:
        longest = max(known, key=lambda place: ratios[place] or 0.0)
        seconds = mean_of(shown.methods[0], lambda run: run.costs.train_seconds)
        most = (
            f"{names[longest]} takes {_times(ratios[longest])} as long"
            if longest
            else "no other method takes longer"
        )
        found.append(f"{names[0]} trains in {significant(seconds)} s; {most}.")
    return found


def _ood_sentence(record: ComparisonRecord) -> list[str]:
    """The range of the hardest OOD set, or who is worse than chance."""
    below, hardest, names = worse_than_chance(record), hardest_set(record), short_names(record)
    if below:
        more = f" ({count_text(len(below) - 1, 'more such case')})" if len(below) > 1 else ""
        return [f"{below[0].removesuffix('.')}{more}."]
    if hardest is None:
        return []
    name, score, ranked = hardest
    ends = [
        f"{percent(ranked.cells[place].value)} ({names[place]})"  # type: ignore[arg-type]
        for place in (ranked.order[-1], ranked.best)
    ]
    which = f"OOD set {name}" + (", the hardest" if len(ood_sets(record)) > 1 else "")
    values = f"from {ends[0]} to {ends[1]}" if ranked.order[-1] != ranked.best else ends[0]
    return [f"{which}: AUROC {values} by {score_title(score)}."]


def worse_than_chance(record: ComparisonRecord) -> list[str]:
    """Sentences on methods that take an OOD set for more familiar than the test images."""
    found = []
    for score in detection_scores(record)[:1]:
        for name in ood_sets(record):
            cells = detection(name, score).cells(record)
            for method, cell in zip(short_names(record), cells, strict=True):
                if _is_below_chance(cell):
                    area = percent(cell.value)  # type: ignore[arg-type]
                    fact = f"{method} detects {name} worse than chance (AUROC {area})"
                    found.append(f"{fact}: it is surer of these images than of the test images.")
    return found


def comparison_cards(record: ComparisonRecord) -> list[Card]:
    """Error, likelihood, calibration, OOD detection and cost: the best, and whether seeds tell it apart."""
    titles = {"error": "Error", "nll": "Negative log-likelihood", "ece": "Calibration error (ECE)"}
    cards = [_card(record, title, SCORES[key]) for key, title in titles.items()]
    hardest = hardest_set(record)
    if hardest is not None:
        name, score, _ = hardest
        which = ", the hardest" if len(ood_sets(record)) > 1 else ""
        cards.append(_card(record, f"Detects {name}{which} (AUROC)", detection(name, score)))
    cards.append(_cost_card(record))
    return [card for card in cards if card is not None]


def _card(record: ComparisonRecord, title: str, measure: Measure) -> Card | None:
    ranked = ranking(record, measure)
    if ranked is None:
        return None
    value, name = _best_text(measure, ranked), short_names(record)[ranked.best]
    cell = ranked.cells[ranked.best]
    verdict = "worse" if measure.column.key == "auroc" and _is_below_chance(cell) else ""
    if len(record.methods) == 1:
        return Card(title, value, over_seeds(record), verdict)
    word = "highest" if measure.column.better == "high" else "lowest"
    if _has_one_seed(record):
        return Card(title, value, f"{name}, {word} of one seed: may be chance", verdict, ranked.best)
    if ranked.is_clear:
        sure = f"{name}, {word} beyond the scatter of {_seeds(record)}"
        return Card(title, value, sure, verdict or "better", ranked.best)
    doubt = f"{name}, {word}; {_seeds(record)} cannot tell it from {_names(record, ranked.alike, 1)}"
    return Card(title, value, doubt, verdict, ranked.best)


def _cost_card(record: ComparisonRecord) -> Card | None:
    ratios, names = _ratios(record, "train_seconds"), short_names(record)
    known = [place for place, ratio in enumerate(ratios) if ratio is not None]
    seconds = mean_of(record.methods[0], lambda run: run.costs.train_seconds)
    if len(record.methods) == 1:
        return Card("Training time", f"{significant(seconds)} s", over_seeds(record))
    if not known:
        return None
    least, most = (choose(known, key=lambda place: ratios[place] or 0.0) for choose in (min, max))
    ends = dict.fromkeys(_times(ratios[place]) for place in (least, most))
    sure = f"{names[least]} to {names[most]}, against {names[0]} ({significant(seconds)} s)"
    return Card("Cost of training", " to ".join(ends), sure)


def comparison_advice(record: ComparisonRecord) -> list[str]:
    """Which method and why; nothing where the seeds cannot tell; what it costs."""
    if len(record.methods) == 1:
        return ["Train a second method beside it (`--methods`): one alone is neither good nor bad."]
    if _has_one_seed(record):
        return [
            "Choose nothing yet: one seed shows no scatter. Repeat with `--seeds 5`; finished runs are kept.",
            *_prediction_costs(record),
        ]
    advice = [*_choice_advice(record), *_calibration_advice(record), *_prediction_costs(record)]
    if max(len(method.runs) for method in record.methods) < _FEW_SEEDS:
        advice.append(
            f"{_seeds(record).capitalize()} are few: `--seeds {_FEW_SEEDS}` or more tell finer differences, "
            "and finished runs are kept."
        )
    return advice


def _choice_advice(record: ComparisonRecord) -> Iterator[str]:
    by_error, by_nll = (ranking(record, SCORES[key]) for key in ("error", "nll"))
    names = short_names(record)
    if by_error is None or by_nll is None:
        return
    as_right, as_fitting = ({ranked.best, *ranked.alike} for ranked in (by_error, by_nll))
    candidates = [place for place in by_nll.order if place in as_right & as_fitting]
    if not candidates:
        yield (
            f"{names[by_error.best]} errs least and {names[by_nll.best]} fits best, both beyond the scatter "
            "of the seeds: take the first if only the class counts, the second if probabilities are used."
        )
        return
    ratios = _ratios(record, "train_seconds")
    cheapest = min(candidates, key=lambda place: ratios[place] or 1.0)
    if len(candidates) == 1:
        times = _times(ratios[cheapest])
        price = "" if times in (MISSING, "1.0×") else f", for {times} the training time of {names[0]}"
        yield f"Take {names[cheapest]}: no other is as good in both error and NLL{price}."
        return
    yield (
        f"Nothing here tells {_names(record, candidates, 5)} apart in error and NLL: choose by cost, or "
        "by the calibration and OOD detection that you need."
    )
    least = ratios[cheapest] or 1.0
    own = [None if ratio is None else ratio / least for ratio in ratios]
    yield from _costly(names, {place: own[place] for place in candidates}, "Training", names[cheapest])


def _costly(names: Sequence[str], ratios: Mapping[int, float | None], what: str, other: str) -> Iterator[str]:
    """Who takes how many times as long as another."""
    found = [
        f"{_times(ratio)} as long with {names[place]}"
        for place, ratio in ratios.items()
        if ratio is not None and ratio >= _COSTLY
    ]
    if found:
        yield f"{what} takes {listed(found)} as with {other}."


def _calibration_advice(record: ComparisonRecord) -> Iterator[str]:
    ranked, names = ranking(record, SCORES["ece"]), short_names(record)
    if ranked is not None and len(ranked.alike) < len(record.methods) - 1 and len(ranked.order) > 1:
        alike = f" (or {_names(record, ranked.alike)}, as far as the seeds can tell)" if ranked.alike else ""
        worst = ranked.order[-1]
        ends = [_value_text(SCORES["ece"], ranked.cells[place]) for place in (ranked.best, worst)]
        yield (
            f"If confidences are to be taken at their word, {names[ranked.best]}{alike} is better calibrated "
            f"than {names[worst]} (ECE {ends[0]} against {ends[1]}); a temperature fitted on held-out labels "
            "may level that."
        )


def _prediction_costs(record: ComparisonRecord) -> Iterator[str]:
    names, ratios = short_names(record), _ratios(record, "predict_ms_per_image")
    yield from _costly(names, dict(enumerate(ratios)), "Prediction", names[0])


# Page


def comparison_page(record: ComparisonRecord, evaluations: Sequence[EvaluationRecord]) -> Page:
    """What holds over all seeds, then the evaluation of the first seed's predictors.

    Args:
        record: The comparison.
        evaluations: Those of each method's first seed, in the order of the methods.
    """
    shown = presentable_comparison(record, caller="comparison_page")
    if len(evaluations) != len(shown.methods):
        raise ValueError(
            "comparison_page: `evaluations` must be one for each of the "
            f"{count_text(len(shown.methods), 'method')}, got {len(evaluations)}."
        )
    labels = [method.label for method in shown.methods]
    named = [replace(one, name=label) for one, label in zip(evaluations, labels, strict=True)]
    models = presentable(named, caller="comparison_page")
    reliability, other = evaluation_pictures(models)
    seed = shown.methods[0].runs[0].seed
    note = f"Seed {seed} alone. {reliability.note}"
    return Page(
        command="compare",
        title=f"Comparison of {count_text(len(labels), 'method')}",
        verdict=comparison_verdict(shown),
        lead=_lead(shown),
        models=labels,
        looks=looks(labels),
        warnings=worse_than_chance(shown),
        cards=comparison_cards(shown),
        pictures=[overview_figure(shown, most=4), with_values(reliability, note=note)],
        advice=comparison_advice(shown),
        sections=[
            *_sections(shown),
            *(
                with_values(
                    section, title=f"Seed {seed}: {_lower(section.title)}", blocks=[*first, *section.blocks]
                )
                for section, first in _with_first(evaluation_sections(models), [_of_one_seed(seed), other])
            ),
        ],
        version=shown.versions.get("beliefmatch", ""),
    )


def _lower(title: str) -> str:
    return title[:1].lower() + title[1:]


def _with_first(sections: Sequence[Section], blocks: list[Any]) -> Iterator[tuple[Section, list[Any]]]:
    """The sections, the first with blocks to put before its own."""
    for place, section in enumerate(sections):
        yield section, [] if place else blocks


def _of_one_seed(seed: int) -> Text:
    return Text(
        f"From here on everything is of the networks of seed {seed}. Intervals come from resampling the test "
        "images, not from training again; the two kinds of doubt are not the same."
    )


def _lead(record: ComparisonRecord) -> str:
    first = record.methods[0].runs[0]
    seeds = ", ".join(map(str, record.seeds))
    parts = [
        f"{count_text(len(record.methods), 'method')}, trained alike with "
        f"{count_text(len(record.seeds), 'seed')}{f' ({seeds})' if seeds else ''}.",
        f"{count_text(first.test.examples, 'test image')}, {len(first.class_names):,} classes.",
    ]
    sets = ood_sets(record)
    return " ".join([*parts, *([f"OOD: {listed(sets)}."] if sets else [])])


def _sections(record: ComparisonRecord) -> Iterator[Section]:
    yield Section("Scores over seeds", [comparison_summary(record), _further_scores(record)], folded=False)
    if found := [table.without_empty() for table in _detection_tables(record)]:
        text = Text(
            "How well a score separates OOD images from the test images. An AUROC of 50 % is chance, less is "
            "worse than chance. FPR95: share of the OOD images that pass where 95 % of the test images pass."
        )
        yield Section("OOD detection over seeds", [text, *found])
    yield Section("Costs", [with_values(_cost_table(record), title="")])
    if tables := list(_choice_tables(record)):
        yield Section("Chosen on validation data", [with_values(table, title="") for table in tables])
    if figures := learning_figure(record):
        yield Section("Learning curves", [with_values(figure, title="") for figure in figures])
    digit, rotations = record.rotated_digit, rotations_of(record)
    if digit is not None and rotations:
        figure = rotation_figure([method.label for method in record.methods], rotations, digit)
        tables = [with_values(table, title="") for table in _rotation_tables(record)]
        yield Section("A digit turned upside down", [figure, *tables])
    yield Section("How it was trained", list(_training(record)))


def _training(record: ComparisonRecord) -> Iterator[Command | Facts]:
    """The command to repeat it, what was the same for all methods, and what was not."""
    settings = dict(record.settings)
    command = settings.pop("command", "")
    command = shlex.join(map(str, command)) if isinstance(command, list) else f"{command}"
    if command:
        yield Command(command)
    runs = [run for method in record.methods for run in method.runs]
    groups = {
        "This comparison": {
            "seeds": ", ".join(map(str, record.seeds)),
            "made": record.created,
            "took": f"{number_text(record.wall_seconds, 1)} s, without runs that were finished before",
        },
        "Settings": facts_of(settings),
    }
    apart = []
    for name in ("data", "engine"):
        contents = [getattr(run, name) for run in runs]
        if all(content == contents[0] for content in contents):
            groups[name.capitalize()] = facts_of(contents[0])
        else:
            apart.append(name)
    groups |= {"Versions": facts_of(record.versions), "Hardware": facts_of(record.hardware)}
    yield Facts({title: content for title, content in groups.items() if content})
    yield Facts({method.label: _method_facts(method, apart) for method in record.methods})


def _method_facts(method: Compared, apart: Sequence[str]) -> dict[str, str]:
    first = method.runs[0]
    return {
        "method": first.method,
        **{f"option {name}": text for name, text in facts_of(first.options).items() if first.options},
        "seeds": ", ".join(f"{run.seed}" for run in method.runs),
        "networks of a run": f"{first.costs.networks}",
        "steps skipped": ", ".join(f"{run.skipped_steps}" for run in method.runs),
        **{f"learned {name}": text for name, text in facts_of(first.learned).items() if first.learned},
        **(facts_of({name: getattr(first, name) for name in apart}) if apart else {}),
        "seconds of each run": ", ".join(number_text(run.wall_seconds, 1) for run in method.runs),
        f"fingerprint, seed {first.seed}": first.fingerprint,
    }


# Files


def comparison_files(
    record: ComparisonRecord, evaluations: Sequence[EvaluationRecord]
) -> list[tuple[str, bytes]]:
    """Name and content of each file, below a directory that is the comparison's own."""
    paths = evaluation_paths([method.key for method in record.methods])
    texts = [
        ("comparison.json", record.to_json()),
        *((path, evaluation.to_json()) for path, evaluation in zip(paths, evaluations, strict=True)),
        ("summary.csv", comparison_csv(record)),
        ("summary.md", markdown_report(comparison_tables(record))),
        ("report.html", render_page(comparison_page(record, evaluations), caller="compare")),
    ]
    figures = [
        (f"figures/{name}", content) for name, content in paper_files(comparison_figures(record), KINDS)
    ]
    return [*((name, text.encode()) for name, text in texts), *figures]


def comparison_csv(record: ComparisonRecord) -> str:
    """One line for each method, seed and metric, in full precision and never in percent.

    Safe to open in a spreadsheet. A value is empty where there is none, and "inf" where it is infinite.
    """
    shown = presentable_comparison(record, caller="comparison_csv")
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("method", "key", "seed", "part", "set", "score", "metric", "value"))
    for method in shown.methods:
        labels = [spreadsheet_text(method.label), spreadsheet_text(method.key)]
        for run in method.runs:
            for *names, value in _lines(run):
                absent = "inf" if names[-1] == "nll" else ""
                exact = absent if value is None else repr(value)
                writer.writerow([*labels, run.seed, *map(spreadsheet_text, names), exact])
    return text.getvalue()


def _lines(run: RunRecord) -> Iterator[tuple[str, str, str, str, float | None]]:
    """Part, OOD set, score, metric and value of every number of a run."""
    for part in ("test", "validation"):
        for key in Scores.__struct_fields__[1:]:  # without the number of examples
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


# One run


def run_tables(record: RunRecord) -> list[Table]:
    """Scores on validation and test images with the costs as caption, OOD sets, and what was chosen."""
    columns = [Column("images", "images"), *(measure.column for measure in SCORES.values())]
    rows = [
        Row(
            name,
            [
                Cell(f"{scores.examples:,}"),
                *(Cell(INFINITE if (value := getattr(scores, key)) is None else value) for key in SCORES),
            ],
        )
        for name, scores in (("validation", record.validation), ("test", record.test))
    ]
    title = f"{record.method.replace('_', ' ')}{_learnt_from(record)}, seed {record.seed}"
    tables = [Table(title, columns, rows, _run_costs(record), row_title="")]
    method = Compared(record.method, record.method.replace("_", " "), [record])
    alone = ComparisonRecord([method], [record.seed], None, {}, {}, {}, "", 0.0)
    tables += [table.without_empty() for table in _detection_tables(alone)]
    return [*tables, *_choice_tables(alone)]


def _learnt_from(record: RunRecord) -> str:
    """Unlabelled data and other settings of a run that are not the defaults."""
    labels = record.config["data"].get("labels")
    semi, teacher = record.config.get("semi"), record.config.get("teacher")
    words = [f"{labels:,} labels"] if labels else []
    words += [semi["kind"]] if semi else []
    if teacher:
        votes = f"{teacher['strength']:g} vote{'s' * (teacher['strength'] != 1)}"
        words.append(f"a teacher of {votes}")
    return f" with {listed(words)}" if words else ""


def _run_costs(record: RunRecord) -> str:
    costs = record.costs
    networks = f"{costs.networks} networks of " if costs.networks > 1 else ""
    skipped = f", {record.skipped_steps} steps skipped" if record.skipped_steps else ""
    return (
        f"{networks}{costs.parameters:,} parameters, trained in {costs.train_seconds:.1f} s "
        f"({costs.train_images_per_second:.0f} images/s), {costs.predict_ms_per_image:.3f} ms a prediction, "
        f"{record.engine['device']}, {record.engine['precision']}{skipped}"
    )
