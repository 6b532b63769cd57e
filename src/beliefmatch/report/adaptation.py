"""The report of an adaptation: tables, the page and all files."""

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace as with_values
from pathlib import Path
from textwrap import fill
from typing import Any

from msgspec.structs import replace
from rich.console import RenderableType

from beliefmatch._errors import fail
from beliefmatch._files import atomic_write_dir
from beliefmatch.experiments.adapt_record import (
    BATCHNORM_LABEL,
    AdaptRecord,
    FeatureDetection,
    ScoredHead,
    adapt_evaluation_paths,
)
from beliefmatch.experiments.evaluation_record import EvaluationRecord, Number
from beliefmatch.report.adaptation_choice import choice_figure, choice_table, tried_table
from beliefmatch.report.adaptation_words import (
    HEADLINE,
    adaptation_advice,
    adaptation_cards,
    adaptation_verdict,
    batchnorm_outcome,
    before_label,
    caveats,
    changes_from,
    findings,
    scored_on_text,
    softmax_label,
    value_of,
    vote_scale_outcome,
)
from beliefmatch.report.columns import CALIBRATION, DETECTION, PREDICTIONS, distinct_scores, score_title
from beliefmatch.report.evaluation import (
    auroc_differences,
    evaluation_pictures,
    evaluation_sections,
    marked_scores,
    paired_mark,
)
from beliefmatch.report.evaluation_scores import cell_of, detection_of
from beliefmatch.report.figure import paper_files
from beliefmatch.report.page import Block, Command, Facts, Page, Section, Text, facts_of, render_page
from beliefmatch.report.style import looks
from beliefmatch.report.table import (
    MARKS_LEGEND,
    Cell,
    Column,
    Row,
    Table,
    markdown_report,
    marked,
    mean_cell,
    plain_text,
    rows_of,
    to_csv,
    to_rich,
)
from beliefmatch.report.text import (
    count_text,
    level_text,
    markdown_text,
    number_text,
    ood_names,
    presentable,
    tidy,
)

__all__ = [
    "adaptation_files",
    "adaptation_markdown",
    "adaptation_page",
    "adaptation_summary",
    "adaptation_tables",
    "terminal_table",
    "write_adaptation",
]

PAGE_NAME = "report.html"
_KL = Column("kl", "KL", "(nats)", "low", 4, help="Divergence of the shares of the votes from probabilities.")
_COLUMNS = {column.key: column for column in (*PREDICTIONS, *CALIBRATION, *DETECTION, _KL)}
_MOST_SETS = 3  # OOD sets in the table of scores
_MOST_DETAILED = 4  # heads whose evaluations are shown in full
_WIDTH = 110  # of the plain summary
_OPTIONS = {"kl_weight": "λ", "prior": "β", "temperature": "T", "matched_kl_weight": "as λ", "smoothing": "ε"}


class _Shown:
    """A record with visible characters and finite numbers; its evaluations by the titles of their lines."""

    def __init__(self, record: AdaptRecord, evaluations: Sequence[EvaluationRecord], *, caller: str) -> None:
        labels = record.row_labels
        if record.label not in labels:
            raise fail(caller, f"`record` must have a line {record.label!r}, got {labels}.")
        if evaluations and len(evaluations) != len(labels):
            expected = f"one for each of the {count_text(len(labels), 'line')}"
            raise fail(caller, f"`evaluations` must be {expected}, got {len(evaluations)}.")
        self.record: AdaptRecord = tidy(record)
        self.labels = self.record.row_labels
        self.titles = [line_title(self.record.delivered(label)) for label in self.labels]
        self.lines = [[one for one in self.record.scored if one.label == label] for label in self.labels]
        named = [replace(one, name=title) for one, title in zip(evaluations, self.titles, strict=False)]
        self.models = presentable(named, caller=caller) if named else []
        first = (before_label(record), record.new_label, "untouched + temperature", softmax_label(record))
        order = dict.fromkeys((*(one for one in first if one in self.labels), *self.labels))
        self.places = {label: place for place, label in enumerate(order) if label is not None}
        """Numbers of the lines on the page: before and after first, then the controls."""
        self.converged = [all(one.converged for one in line) for line in self.lines]
        self.seeds = max(map(len, self.lines))
        votes = ["kl"] if record.targets == "votes" else []
        self.metrics = ["error", "nll", *votes, "brier", "ece", "mean_confidence"]

    @property
    def has_intervals(self) -> bool:
        """Whether the evaluations, which are of one seed and of labels, are of the numbers that are shown."""
        return bool(self.models) and self.seeds == 1 and self.record.targets == "labels"

    @property
    def seeds_text(self) -> str:
        """Of how many heads the numbers are."""
        if self.seeds == 1:
            return "one fit of each head"
        is_alone = any(len(line) == 1 for line in self.lines)
        return f"mean ± sd of {self.seeds} seeds" + (", where a head is trained" if is_alone else "")

    def ordered(self) -> list[EvaluationRecord]:
        """The evaluations as the page has them."""
        return [self.models[self.labels.index(label)] for label in self.places]

    def table(self, title: str, columns: Sequence[Column], cells: Sequence[Sequence[Cell]]) -> Table:
        """A table from the cells of each column, in the order of the lines."""
        places = [self.places[label] for label in self.labels]
        rows = rows_of(self.titles, cells, models=places, chosen=self.labels.index(self.record.new_label))
        return Table(title, columns, rows, row_title="head")


def line_title(scored: ScoredHead) -> str:
    """The label of a line with what was chosen for it."""
    label = {"laplace": "Laplace approximation"}.get(scored.label, scored.label)
    options = [
        f"{sign}\u00a0=\u00a0{scored.options[name]:.4g}"
        for name, sign in _OPTIONS.items()
        if isinstance(scored.options.get(name), int | float)
    ]
    options += [] if scored.converged else ["not converged"]
    return f"{label} ({', '.join(options)})" if options else label


# Tables


def _score_table(shown: _Shown, *, with_intervals: bool = True) -> Table:
    """Scores of every line, and detection of the first OOD sets: means over seeds, or with intervals."""
    record = shown.record
    columns = [_COLUMNS[key] for key in shown.metrics]
    cells = [_score_cells(shown, key) for key in shown.metrics]
    for name in ood_names(record.scored)[:_MOST_SETS]:
        columns.append(with_values(_COLUMNS["auroc"], group=name))
        cells.append(_detection_cells(shown, name, HEADLINE, "auroc"))
    table = shown.table(scored_on_text(record), columns, cells)
    legend = [
        f"{shown.seeds_text[:1].upper()}{shown.seeds_text[1:]}; ↓ less is better, ↑ more is better.",
        f"Brackets: {level_text(shown.models[0])} intervals."
        if shown.has_intervals and with_intervals
        else "",
        f"Bold or *: {MARKS_LEGEND}." if table.is_marked else "",
        f"AUROC by {score_title(HEADLINE)}." if ood_names(record.scored) else "",
        f"Delivered: {line_title(record.delivered(record.new_label))}.",
        "These examples chose λ as well." if record.scored_on == "validation" else "",
    ]
    return with_values(table, caption=" ".join(filter(None, legend)))


def _score_cells(shown: _Shown, key: str) -> list[Cell]:
    is_infinite = key in ("nll", "kl")
    cells = [mean_cell([value_of(one, key) for one in line], is_infinite=is_infinite) for line in shown.lines]
    if not shown.has_intervals:
        return _marked(shown, cells, key)
    numbers = [model.scores.get(key, Number(None)) for model in shown.models]
    cells = [with_values(cell, low=one.low, high=one.high) for cell, one in zip(cells, numbers, strict=True)]
    able = [model for model, converged in zip(shown.models, shown.converged, strict=True) if converged]
    marks = iter(marked_scores(able, _COLUMNS[key]))
    return [
        with_values(cell, mark=next(marks).mark) if converged else cell
        for cell, converged in zip(cells, shown.converged, strict=True)
    ]


def _marked(shown: _Shown, cells: Sequence[Cell], key: str) -> list[Cell]:
    """The best is marked where every head has a number: the best of few is not the best."""
    if any(cell.value is None for cell in cells):
        return list(cells)
    able = [cell for cell, converged in zip(cells, shown.converged, strict=True) if converged]
    found = iter(marked(able, _COLUMNS[key].better))
    return [next(found) if done else cell for cell, done in zip(cells, shown.converged, strict=True)]


def _detection_cells(shown: _Shown, name: str, score: str, key: str) -> list[Cell]:
    """AUROC or FPR95 of every head, for one OOD set and one score."""

    def of(one: ScoredHead) -> float | None:
        return next((getattr(ood, key).get(score) for ood in one.ood if ood.name == name), None)

    cells = [mean_cell([of(one) for one in line]) for line in shown.lines]
    if shown.has_intervals:
        found = [detection_of(model, name, score) for model in shown.models]
        numbers = [Number(None) if one is None else getattr(one, key) for one in found]
        pairs = zip(cells, numbers, strict=True)
        cells = [with_values(cell, low=one.low, high=one.high) for cell, one in pairs]
    cells = _marked(shown, cells, key)
    if not shown.has_intervals or key != "auroc":
        return cells
    apart = auroc_differences(shown.models, name, score, cells)
    return [
        paired_mark(cell, one) if converged else cell
        for cell, one, converged in zip(cells, apart, shown.converged, strict=True)
    ]


def _detection_tables(shown: _Shown) -> list[Table]:
    """One table for each OOD set: AUROC and FPR95 by every score, the paper's first."""
    scores = distinct_scores([ood.auroc for one in shown.record.scored for ood in one.ood])
    wanted = [(score, key) for score in scores for key in ("auroc", "fpr95")]
    columns = [with_values(_COLUMNS[key], group=score_title(score)) for score, key in wanted]
    return [
        shown.table(f"OOD: {name}", columns, [_detection_cells(shown, name, *one) for one in wanted])
        for name in ood_names(shown.record.scored)
    ]


def _feature_table(shown: _Shown) -> Table:
    """Distances between features, which need no head, beside the scores of the delivered head."""
    record, sets = shown.record, ood_names(shown.record.scored)
    known = {(one.ood, one.score): one for one in record.feature_detection}
    columns = [with_values(_COLUMNS[key], group=name) for name in sets for key in ("auroc", "fpr95")]
    head = record.delivered(record.new_label)
    model = shown.models[shown.labels.index(record.new_label)] if shown.has_intervals else None
    rows = []
    is_older = record.new_label == BATCHNORM_LABEL  # the delivered head has features of its own
    which = "features before BatchNorm training" if is_older else "features"
    for score in distinct_scores([one.auroc for one in head.ood]) if known else ():
        cells = []
        for name in sets:
            values = next((one for one in head.ood if one.name == name), None)
            detection = None if model is None else detection_of(model, name, score)
            for key in ("auroc", "fpr95"):
                value = None if values is None else getattr(values, key).get(score)
                number = Number(value) if detection is None else getattr(detection, key)
                cells.append(cell_of(number))
        rows.append(Row(f"delivered head: {score_title(score)}", cells))
    for score in dict.fromkeys(one.score for one in record.feature_detection):
        found = [known.get((name, score)) for name in sets]
        cells = [
            cell_of(None if one is None else getattr(one, key)) for one in found for key in ("auroc", "fpr95")
        ]
        rows.append(Row(f"{which}: {score_title(score)}", cells))
    taken = "; ".join(
        f"{score_title(one.score)}: {_taken(one)}" for one in record.feature_detection if one.ood == sets[0]
    )
    caption = f"Distances to training rows need no head. {taken[:1].upper()}{taken[1:]}." if taken else ""
    return Table("OOD detection by features", columns, rows, caption, row_title="score")


def _taken(one: FeatureDetection) -> str:
    neighbour = "" if one.neighbour is None else f", k = {one.neighbour}"
    return f"{count_text(one.train_rows, 'training row')}{neighbour}, {count_text(one.examples, 'example')}"


def _difference_table(shown: _Shown) -> Table:
    """The new head less each other one, on the same draws of examples where there are some."""
    record = shown.record
    keys = [key for key in shown.metrics if key != "mean_confidence"]
    rows = []
    for label, changes in changes_from(record, shown.models, keys).items():
        found = [(one.difference, one.verdict_text) for one in changes.values()]
        cells = [with_values(cell_of(number), note=note) for number, note in found]
        rows.append(Row(shown.titles[shown.labels.index(label)], cells, model=shown.places[label]))
    columns = [with_values(_COLUMNS[key], better="") for key in keys]
    columns = [with_values(one, unit="% points") if one.unit == "%" else one for one in columns]
    seed = f", heads of seed {record.chosen_head.seed}" if shown.seeds > 1 else ""
    how = "By the shares of the votes, without intervals."
    if record.targets == "labels":
        how = (
            "Both heads are scored on the same resampled examples; where the interval holds zero they are "
            "indistinguishable. Each interval is for one comparison: among many some miss by chance."
        )
    caption = f"On {scored_on_text(record)}{seed}. Below zero the new head is lower, which is better. {how}"
    return Table(f"{record.new_label} less each other head", columns, rows, caption, row_title="other head")


def _seed_table(shown: _Shown) -> Table:
    """The scores of each seed, where there are several."""
    columns = [_COLUMNS[key] for key in shown.metrics]
    rows = [
        Row(f"{line_title(one)}, seed {one.seed}", [Cell(value_of(one, key)) for key in shown.metrics])
        for line in shown.lines
        for one in line
        if shown.seeds > 1
    ]
    return Table("Scores of each seed", columns, rows, row_title="head")


def adaptation_tables(record: AdaptRecord, evaluations: Sequence[EvaluationRecord] = ()) -> list[Table]:
    """Every number of an adaptation; with intervals where its evaluations are given."""
    shown = _Shown(record, evaluations, caller="adaptation_tables")
    found = [_score_table(shown), _difference_table(shown), *_detection_tables(shown)]
    found += [_feature_table(shown), _seed_table(shown)]
    found += [choice_table(shown.record, shown.places), tried_table(shown.record)]
    return [table for table in found if table.rows]


def terminal_table(record: AdaptRecord, evaluations: Sequence[EvaluationRecord] = ()) -> RenderableType:
    """The scores with an arrow before the new head, without intervals: a terminal has no room for them."""
    table = _score_table(_Shown(record, evaluations, caller="terminal_table"), with_intervals=False)
    first = next((column.group for column in table.columns if column.group), "")
    kept = [
        place
        for place, column in enumerate(table.columns)
        if column.key != "mean_confidence" and column.group in ("", first)
    ]
    rows = [
        with_values(
            row,
            label=f"{'→' if row.is_chosen else ' '} {row.label}",
            cells=[with_values(row.cells[place], low=None, high=None) for place in kept],
        )
        for row in table.rows
    ]
    caption = table.caption.replace("Bold or *", "*")
    columns = [table.columns[place] for place in kept]
    return to_rich(with_values(table, columns=columns, rows=rows, caption=caption))


def adaptation_summary(record: AdaptRecord, evaluations: Sequence[EvaluationRecord] = ()) -> str:
    """The verdict, before and after as plain text, then what has to be known of the numbers."""
    table = plain_text(terminal_table(record, evaluations), width=_WIDTH)
    shown: AdaptRecord = tidy(record)
    unseen = [shown.verdict.why] if shown.verdict.seen is False else []  # else the caveats tell it
    notes = (*batchnorm_outcome(shown), *vote_scale_outcome(shown), *shown.notes, *unseen)
    signed = [f"! {one}" for one in caveats(shown, evaluations)] + [f"i {one}" for one in notes]
    words = [fill(one, _WIDTH, subsequent_indent="  ") for one in signed]
    return "\n".join([fill(adaptation_verdict(shown, evaluations), _WIDTH), "", table, *words])


def adaptation_markdown(record: AdaptRecord, evaluations: Sequence[EvaluationRecord] = ()) -> str:
    """What changed in words, then every table, for a README."""
    shown = _Shown(record, evaluations, caller="adaptation_markdown")
    words = [f"## {markdown_text(shown.record.model)}, adapted"]
    words.append(f"**{markdown_text(adaptation_verdict(shown.record, shown.models))}**")
    words += [f"> {markdown_text(one)}" for one in caveats(shown.record, shown.models)]
    sentences = (*findings(shown.record), *shown.record.notes)
    words.append("\n".join(f"- {markdown_text(one)}" for one in sentences))
    return "\n\n".join([*words, markdown_report(adaptation_tables(record, evaluations))])


# Page and files


def adaptation_page(record: AdaptRecord, evaluations: Sequence[EvaluationRecord]) -> Page:
    """The page of an adaptation, from its records alone.

    Args:
        record: the adaptation.
        evaluations: one for each line of its table, in their order.
    """
    shown = _Shown(record, evaluations, caller="adaptation_page")
    if not shown.models:
        raise fail("adaptation_page", "`evaluations` must be one for each line of the table, got none.")
    record, models, ordered = shown.record, shown.models, shown.ordered()
    names = [model.name for model in ordered]
    pair = ordered[: 1 if before_label(record) is None else 2]
    aim = f"{record.classes:,} {'classes as before' if record.labels == 'same' else 'new classes'}"
    seed = ""
    if shown.seeds > 1:
        seed = f" This summary is of seed {record.chosen_head.seed}, the table of scores of all seeds."
    return Page(
        command="adapt",
        title=f"Adaptation of {record.model}",
        verdict=adaptation_verdict(record, models),
        lead=f"{scored_on_text(record)}, {aim}. Delivered: {pair[-1].name}.{seed}",
        models=names,
        looks=looks(names),
        warnings=caveats(record, models),
        cards=adaptation_cards(record, models),
        pictures=evaluation_pictures(pair),
        advice=adaptation_advice(record, models),
        sections=[*_sections(shown), *evaluation_sections(ordered[:_MOST_DETAILED])],
        version=record.versions.get("beliefmatch", ""),
    )


def _sections(shown: _Shown) -> Iterator[Section]:
    record = shown.record
    yield Section("Scores", [_score_table(shown), *_filled(_seed_table(shown))], folded=False)
    if differences := _filled(_difference_table(shown)):
        yield Section("Differences from the other heads", differences)
    if detection := _detection_tables(shown):
        text = (
            "How well each score separates OOD examples from the examples that heads are scored on. Mutual "
            "information and differential entropy exist only for heads with a belief."
        )
        yield Section(
            "OOD detection by every head", [Text(text), *detection, *_filled(_feature_table(shown))]
        )
    text = (
        "The NLL of belief matching falls towards that of softmax as λ goes to 0, so the largest λ with an "
        "NLL within 1 % of the lowest is taken."
    )
    figure = choice_figure(record, shown.places)
    yield Section("The choice of λ", [Text(text), *([figure] if figure else []), tried_table(record)])
    command = [Command(shlex.join(record.command))] if record.command else []
    words = [Text(text) for text in (*findings(record), *record.notes)]
    yield Section("Fitting and settings", [*command, *words, _facts(record)])


def _filled(table: Table) -> list[Block]:
    return [table] if table.rows else []


def _facts(record: AdaptRecord) -> Facts:
    """How it came about: groups of names and texts."""
    head, layer = record.head, {}
    if head is not None:
        shape = f"{head.in_features} → {head.out_features}" if head.out_features else "appended to an encoder"
        layer["last layer"] = f"{head.name} ({shape})"
    seconds = {"took": record.wall_seconds, **{f"{name} took": one for name, one in record.seconds.items()}}
    own = {
        "model": record.model,
        **layer,
        "classes": f"{record.classes:,}, {'as before' if record.labels == 'same' else 'new'}",
        "scored on": record.scored_on,
        "validation seen before": {True: "yes", False: "no", None: "not known"}[record.verdict.seen],
        "why": record.verdict.why,
        "made": record.created,
        **{name: f"{number_text(value, 1)} s" for name, value in seconds.items()},
    }
    sizes = {one.set: f"{one.rows:,} × {one.width:,}, {one.bytes / 1e6:.3g} MB" for one in record.features}
    groups: dict[str, Any] = {
        "This adaptation": own,
        "Features": sizes,
        "Data": record.data,
        "Configuration": _given(record.config or record.adapt_config),
        "BatchNorm layers trained too": record.batchnorm,
        "Versions": record.versions,
        "Hardware": record.hardware,
    }
    return Facts({title: facts_of(content) for title, content in groups.items() if content})


def _given(settings: Any) -> Any:
    """Without what was left open, which is the default."""
    if isinstance(settings, dict):
        return {name: _given(value) for name, value in settings.items() if value is not None}
    return settings


def adaptation_files(
    record: AdaptRecord, evaluations: Sequence[EvaluationRecord], *, head: bytes | None = None
) -> Iterator[tuple[str, bytes]]:
    """Name and content of each file, below a directory that is the adaptation's own.

    Args:
        record: the adaptation.
        evaluations: one for each line of its table, in their order.
        head: the chosen weights as a file, where they are to be kept as well.
    """
    page = adaptation_page(record, evaluations)
    yield "record.json", record.to_json().encode()
    for path, evaluation in zip(adapt_evaluation_paths(record.row_labels), evaluations, strict=True):
        yield path, evaluation.to_json().encode()
    yield "summary.csv", to_csv(adaptation_tables(record, evaluations)).encode()
    yield "summary.md", adaptation_markdown(record, evaluations).encode()
    yield PAGE_NAME, render_page(page, caller="adapt").encode()
    figures = [*page.pictures, *(one for one in page.figures() if one.name == "choice_of_lambda")]
    for name, content in paper_files(figures):
        yield f"figures/{name}", content
    if head is not None:
        yield "head.safetensors", head


def write_adaptation(
    directory: Path,
    record: AdaptRecord,
    evaluations: Sequence[EvaluationRecord],
    *,
    head: bytes | None = None,
    others: Iterable[tuple[str, bytes]] = (),
) -> Path:
    """Write all files, or none, into a directory that is there, `others` too; report.html is returned.

    What an earlier report left there and this one does not write is removed.
    """
    atomic_write_dir(directory, [*others, *adaptation_files(record, evaluations, head=head)])
    return directory / PAGE_NAME
