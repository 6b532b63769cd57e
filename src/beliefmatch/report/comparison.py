"""The report of a comparison: tables, page and files; and the tables of one run."""

import csv
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace as with_values
from io import StringIO
from statistics import fmean

from msgspec.structs import replace

from beliefmatch._errors import fail
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
from beliefmatch.report.columns import score_title
from beliefmatch.report.comparison_figures import (
    comparison_figures,
    learning_figures,
    overview_figure,
    rotation_figure,
    rotations_of,
)
from beliefmatch.report.comparison_scores import (
    INFINITE,
    SCORES,
    Measure,
    cost,
    cost_ratios,
    detection,
    detection_scores,
    has_cpu_costs,
    has_one_seed,
    over_seeds,
    presentable_comparison,
    runs_of,
    short_names,
    significant,
    times_text,
    wrong_confidences,
)
from beliefmatch.report.comparison_words import (
    comparison_advice,
    comparison_cards,
    comparison_findings,
    comparison_verdict,
    methods_below_chance,
)
from beliefmatch.report.evaluation import evaluation_pictures, evaluation_sections
from beliefmatch.report.figure import KINDS, paper_files
from beliefmatch.report.page import Command, Facts, Page, Section, Text, facts_of, render_page
from beliefmatch.report.style import looks
from beliefmatch.report.table import MARKS_LEGEND, Cell, Column, Row, Table, markdown_report, rows_of
from beliefmatch.report.text import (
    count_text,
    listed,
    number_text,
    ood_names,
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

_ALL_ANGLES = 2  # methods whose view of the digit is shown at every angle
_COSTS = (
    Column("networks", "Networks"),
    Column("parameters", "Parameters"),
    Column("train_seconds", "Training", "(s)"),
    Column("train_images_per_second", "Training", "(examples/s)"),
    Column("predict_ms_per_image", "Prediction", "(ms/example)"),
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
    table = _measured(shown, "", [*measures, *(detection(name, score) for name in ood_names(runs_of(shown)))])
    by = f" OOD sets are detected by {score_title(score)}." if score else ""
    first = shown.methods[0].runs[0]
    if len(shown.methods) > 1:
        times = Column("train_ratio", "Training", f"× {short_names(shown)[0]}", digits=1)
        ratios = cost_ratios(shown, "train_seconds")
        rows = [
            with_values(row, cells=[*row.cells, Cell(ratio)])
            for row, ratio in zip(table.rows, ratios, strict=True)
        ]
        table = with_values(table, columns=[*table.columns, times], rows=rows)
    size = f"{count_text(first.test.examples, f'test {_noun(first)}')}, {len(first.class_names):,} classes"
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
    """A row a method, a column a measure."""
    rows = rows_of([one.label for one in record.methods], [measure.cells(record) for measure in measures])
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


def _detection_tables(record: ComparisonRecord) -> Iterator[Table]:
    """AUROC by every score and FPR95 by the first, a table a set."""
    scores, sets = detection_scores(record), ood_names(runs_of(record))
    for name in sets:
        shown = [(scores[0], "auroc"), (scores[0], "fpr95"), *((score, "auroc") for score in scores[1:])]
        measures = [detection(name, score, key, group=score_title(score)) for score, key in shown]
        table = _measured(record, f"OOD set {name}", measures)
        yield with_values(table, caption=_legend(record, table) if name == sets[-1] else "")


def _cost_table(record: ComparisonRecord) -> Table:
    columns, cells = [], []
    first = short_names(record)[0]
    for column in _COSTS:
        columns.append(column)
        cells.append([Cell(significant(cost(column).cell(method).value)) for method in record.methods])
        if column.key in _TIMED and len(record.methods) > 1:
            columns.append(Column(f"{column.key}_ratio", f"× {first}"))
            cells.append([Cell(times_text(ratio)) for ratio in cost_ratios(record, column.key)])
    rows = rows_of([method.label for method in record.methods], cells)
    of = "Of one seed" if has_one_seed(record) else "Means over the seeds"
    caption = f"{of}. Parameters of one network; training time of all networks, one after the other."
    if len(record.methods) > 1 and has_cpu_costs(record, "train_seconds"):
        caption += " Multiples are of processor time, which other programs on the machine hardly change."
    return Table("Costs", columns, rows, caption, row_title="method")


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
        "Confidence: probability of the class. Entropy of the probabilities, and mutual information of the "
        "belief or of masks or members, in nats: the larger, the less certain. Last row: number of wrong "
        "classes, and means over those."
    )
    return Table(title, columns, rows, caption, row_title="angle")


# Page


def comparison_page(record: ComparisonRecord, evaluations: Sequence[EvaluationRecord]) -> Page:
    """What holds over all seeds, then the evaluation of the first seed's predictors.

    Args:
        record: The comparison.
        evaluations: Those of each method's first seed, in the order of the methods.
    """
    shown = presentable_comparison(record, caller="comparison_page")
    if len(evaluations) != len(shown.methods):
        raise fail(
            "comparison_page",
            "`evaluations` must be one for each of the "
            f"{count_text(len(shown.methods), 'method')}, got {len(evaluations)}.",
        )
    labels = [method.label for method in shown.methods]
    named = [replace(one, name=label) for one, label in zip(evaluations, labels, strict=True)]
    models = presentable(named, caller="comparison_page")
    seed = shown.methods[0].runs[0].seed
    pictures = [
        with_values(figure, note=f"Seed {seed} alone. {figure.note}")
        for figure in evaluation_pictures(models)
    ]
    return Page(
        command="compare",
        title=f"Comparison of {count_text(len(labels), 'method')}",
        verdict=comparison_verdict(shown),
        lead=_lead(shown),
        models=labels,
        looks=looks(labels),
        warnings=methods_below_chance(shown),
        cards=comparison_cards(shown),
        pictures=[overview_figure(shown, most=4), *pictures],
        advice=comparison_advice(shown),
        sections=[*_sections(shown), *_first_seed_sections(models, seed)],
        version=shown.versions.get("beliefmatch", ""),
    )


def _first_seed_sections(models: Sequence[EvaluationRecord], seed: int) -> Iterator[Section]:
    """The sections of an evaluation."""
    text = Text(
        f"From here on everything is of the networks of seed {seed}. Intervals come from resampling the test "
        "images, not from training again; the two kinds of uncertainty are not the same."
    )
    first = [text]
    for section in evaluation_sections(models):
        title = f"Seed {seed}: {section.title[:1].lower()}{section.title[1:]}"
        yield with_values(section, title=title, blocks=[*first, *section.blocks])
        first = []


def _lead(record: ComparisonRecord) -> str:
    first = record.methods[0].runs[0]
    seeds = ", ".join(map(str, record.seeds))
    parts = [
        f"{count_text(len(record.methods), 'method')}, trained alike with "
        f"{count_text(len(record.seeds), 'seed')}{f' ({seeds})' if seeds else ''}.",
        f"{count_text(first.test.examples, 'test image')}, {len(first.class_names):,} classes.",
    ]
    sets = ood_names(runs_of(record))
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
    if figures := learning_figures(record):
        yield Section("Learning curves", [with_values(figure, title="") for figure in figures])
    digit, rotations = record.rotated_digit, rotations_of(record)
    if digit is not None and rotations:
        labels = [method.label for method in record.methods]
        figure = rotation_figure(labels, rotations, digit, names=short_names(record))
        tables = [with_values(table, title="") for table in _rotation_tables(record)]
        yield Section("Rotated digit", [figure, *tables])
    yield Section("Training settings", list(_training(record)))


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
    """Scores on validation and test examples with the costs as caption, OOD sets, and what was chosen."""
    columns = [Column("images", f"{_noun(record)}s"), *(measure.column for measure in SCORES.values())]
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


def _noun(record: RunRecord) -> str:
    """What one example is."""
    return "row" if record.data.get("form") == "table" else "image"


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
        f"({costs.train_images_per_second:.0f} {_noun(record)}s/s), "
        f"{costs.predict_ms_per_image:.3f} ms a prediction, "
        f"{record.engine['device']}, {record.engine['precision']}{skipped}"
    )
