"""`beliefmatch evaluate`, `report` and `predict`: what trained models are worth, and what they answer."""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from beliefmatch._config import schema_of
from beliefmatch._errors import fail
from beliefmatch._files import (
    EnvironmentFailure,
    atomic_write,
    atomic_write_dir,
    directory_in_use,
    numbered,
    ready_directory,
    refuse_url,
)
from beliefmatch._utils import require_name
from beliefmatch.cli import options as opt
from beliefmatch.cli.console import (
    findings,
    printable,
    require_packages,
    show,
    step_progress,
    user_errors,
    write_errors,
)
from beliefmatch.experiments.evaluate_config import (
    EvaluateConfig,
    ModelFiles,
    require_enough_resamples,
    require_ood_name,
)

if TYPE_CHECKING:
    from beliefmatch.experiments.adapt_record import AdaptRecord
    from beliefmatch.experiments.evaluation_record import EvaluationRecord
    from beliefmatch.experiments.records import ComparisonRecord, PredictionRow
    from beliefmatch.experiments.votes_record import VotesRecord

    Record = EvaluationRecord | ComparisonRecord | AdaptRecord | VotesRecord

__all__ = ["evaluate", "predict", "report"]

_DEFAULT = EvaluateConfig()
_RISKS = list(_DEFAULT.risks)
_REFUSED = 0.05  # share of in-distribution sentences that `predict` answers with "none of these"
_FEW_ROWS = 20  # sentences whose predictions are also printed
_FIGURES = ("pdf", "svg", "png")
_RECORDS = ("comparison.json", "record.json")  # of the directories of `compare`, and of `adapt` and `votes`


def evaluate(
    context: typer.Context,
    models: opt.PredictionFiles,
    ood: opt.OodFiles = None,
    out: opt.OutDir = "runs/evaluate",
    name: opt.ModelNames = None,
    class_names: opt.ClassNames = None,
    targets_file: opt.TargetsFile = None,
    n_bins: opt.Bins = _DEFAULT.n_bins,
    resamples: opt.Resamples = _DEFAULT.resamples,
    seed: opt.BootstrapSeed = _DEFAULT.seed,
    risk: opt.Risks = _RISKS,
    logits: opt.LogitsName = None,
    probs: opt.ProbsName = None,
    targets: opt.TargetsName = None,
    images: opt.ImagesName = None,
    figures: opt.Figures = None,
    on: opt.On = "local",
    verbose: opt.Verbose = False,
) -> None:
    """Evaluate models by their predictions, side by side on one page.

    Each file holds arrays or columns named logits or probs, and targets; --logits, --probs and --targets give
    other names. The directory holds a JSON record of each model, tables, and report.html, which works
    offline; with --figures also figures for a paper.
    """
    with ExitStack() as stack:
        with user_errors(context):
            config = EvaluateConfig(**opt.settings_of(context))
            require_enough_resamples(resamples)
            for kind in figures or ():
                require_name("evaluate", "figures", kind, _FIGURES)
            refuse_url(out, caller="evaluate")
            chosen = model_files(models, names=name or [], ood=ood or [])
            require_packages(context, "terminal", "report", "statistics")
            from beliefmatch import kernels
            from beliefmatch.data.predictions import FieldNames, read_class_names
            from beliefmatch.evaluating import Evaluation
            from beliefmatch.experiments.evaluate import PredictionFiles, evaluate_models
            from beliefmatch.experiments.executors import workers_on
            from beliefmatch.report.table import to_rich

            workers = workers_on(on)
            kernels.status()  # fails if BELIEFMATCH_KERNEL asks for one that does not exist
            class_file = _class_names_of_run(models[0]) if class_names is None else class_names
            known_names = None if class_file is None else read_class_names(class_file)
            fields = FieldNames(logits=logits, probs=probs, targets=targets, images=images)
            sources = [
                PredictionFiles(one, names=fields, class_names=known_names, targets_file=targets_file)
                for one in chosen
            ]
            directory = stack.enter_context(directory_in_use(out, caller="evaluate"))
        total = sum(source.steps for source in sources) + 1
        with user_errors(context, EnvironmentFailure), step_progress(total) as step:
            found = Evaluation(
                evaluate_models(
                    sources,
                    settings=config,
                    class_names=known_names,
                    on_step=step,
                    reading=lambda: user_errors(context),
                    workers=workers,
                )
            )
            files = list(found.files(figures=figures or ()))
            step("page")
        removed: list[str] = []
        try:  # files first: the reader of the output may close the pipe
            with write_errors(context, directory):
                removed = atomic_write_dir(directory, files, keep=".json")  # a record may be the only copy
        finally:
            show(findings([found.verdict, *found.warnings]))
            for table in [found.table(), *(found.tables() if verbose else ())]:
                show(to_rich(table))
        show(findings(list(_fields_read(found.records)))) if verbose else None
        if removed:
            typer.echo(printable(f"removed files of an earlier run in {directory}: {', '.join(removed)}"))
        typer.echo(directory / "report.html")


def _fields_read(records: Sequence["EvaluationRecord"]) -> Iterator[str]:
    """What the arrays of each file were recognised as."""
    for record in records:
        read = [(record.source, record.settings["fields"])]
        read += [(one.source, record.settings["ood_fields"][one.name]) for one in record.ood]
        for source, fields in read:
            yield f"{source}: " + ", ".join(f"{role} = {name}" for role, name in fields.items())


def model_files(files: Sequence[str], *, names: Sequence[str], ood: Sequence[str]) -> list[ModelFiles]:
    """Name, predictions and OOD predictions of each model, which is a file or the directory of a run."""
    if names and len(names) != len(files):
        raise fail("evaluate", f"`name` must be given {len(files)} times, once a file, got {len(names)}.")
    for name, times in Counter(names).items():
        if times > 1:
            raise fail("evaluate", f"`name` must be another for each file, got {name!r} {times} times.")
    from beliefmatch.experiments.run_dir import RunDirectory

    if not all(file.strip() for file in files):
        expected = "files of predictions or directories of runs (. for the current one)"
        raise fail("evaluate", f"`models` must be {expected}, got ''.")
    paths, sets = [Path(file) for file in files], _ood_files(ood, len(files))
    models = []
    for index, (name, path) in enumerate(zip(model_names(paths, names), paths, strict=True)):
        predictions, own = path, {}
        if path.is_dir():
            run = RunDirectory(path)
            predictions, own = run.predictions("test"), run.ood_predictions(run.ood_names())
        models.append(ModelFiles(name, predictions, own | {set_: of[index] for set_, of in sets.items()}))
    return models


def model_names(paths: Sequence[Path], given: Sequence[str]) -> list[str]:
    """The given names or those of the files, with their directories where names are alike, none twice."""
    names = list(given) or [path.name if path.is_dir() else path.stem for path in paths]
    if not given:
        counts = Counter(names)
        names = [
            f"{path.absolute().parent.name}/{name}" if counts[name] > 1 else name
            for name, path in zip(names, paths, strict=True)
        ]
    return numbered([printable(name).strip() or "model" for name in names], " ({})")


def _ood_files(texts: Sequence[str], models: int) -> dict[str, list[Path]]:
    """One file for each model, by the name of the OOD set."""
    sets: dict[str, list[Path]] = {}
    for text in texts:
        name, equals, files = text.partition("=")
        name = printable(name).strip()
        if not equals or not name or not files.strip():
            raise fail("evaluate", f"`ood` must be SET=FILE, such as svhn=svhn.npz, got {text!r}.")
        require_ood_name(name)
        if name in sets:
            raise fail("evaluate", f"`ood` must name each set once, got {name!r} twice.")
        found = [Path(file.strip()) for file in files.split(",")]
        if models == 1 and (os.path.exists(files) or not any(map(os.path.exists, found))):
            found = [Path(files)]  # the comma is part of its name
        if len(found) != models:
            expected = f"one file for each of the {models} models, separated by commas"
            expected = expected if models > 1 else "one file, as there is one model"
            raise fail("evaluate", f"`ood` must give {expected}, got {len(found)} for {name!r}.")
        sets[name] = found
    return sets


def _class_names_of_run(model: str) -> str | None:
    from beliefmatch.experiments.run_dir import RunDirectory

    file = RunDirectory(Path(model)).classes_file
    return f"{file}" if file.is_file() else None


def report(context: typer.Context, records: opt.Records, out: opt.PageFile = "report.html") -> None:
    """Rebuild a page from its records.

    The predictions are not needed, nor is torch.
    """
    with user_errors(context):
        refuse_url(out, caller="report")
        render = _page_renderer(context, records)
        path = Path(out)
        if not out.strip() or path.is_dir():
            raise fail("report", f"`out` must be a file to write, got {out!r}.")
        ready_directory(f"{path.parent}", caller="report")
    page = render().encode()
    with write_errors(context, path):
        atomic_write(path, page)
    typer.echo(path)


def _page_renderer(context: typer.Context, paths: Sequence[str]) -> Callable[[], str]:
    """A function that renders the page, once all that it needs is read and checked."""
    from beliefmatch.experiments.adapt_record import AdaptRecord
    from beliefmatch.experiments.evaluation_record import EvaluationRecord
    from beliefmatch.experiments.records import ComparisonRecord
    from beliefmatch.experiments.votes_record import VotesRecord

    files = [_record_file(Path(path)) for path in paths]
    for file, times in Counter(file.resolve() for file in files).items():
        if times > 1:
            raise fail("report", f"`records` must be given once each, got {printable(file)} {times} times.")
    found = [_read_record(file) for file in files]
    first = found[0]
    if isinstance(first, VotesRecord) and len(found) == 1:
        require_packages(context, "page")
        return lambda: _rendered_votes(first)
    if isinstance(first, EvaluationRecord | VotesRecord) or len(found) > 1:
        expected = "one comparison, one adaptation, one analysis of votes or only evaluations"
        problem = f"must be {expected}, got {len(found)}"
    else:
        found = [_read_record(files[0].parent / name) for name in _evaluation_paths(files[0], first)]
        problem = f"must be in a directory with its evaluations, got other records at {printable(files[0])}"
    evaluations = [record for record in found if isinstance(record, EvaluationRecord)]
    if len(evaluations) < len(found):
        raise fail("report", f"`records` {problem}.")
    classes = sorted({len(record.class_names) for record in evaluations})
    if len(classes) > 1:
        received = " and ".join(map(str, classes))
        raise fail("report", f"`records` must have the same number of classes, got {received}.")
    require_packages(context, "page")
    from beliefmatch.report.adaptation import adaptation_page
    from beliefmatch.report.comparison import comparison_page
    from beliefmatch.report.evaluation import evaluation_page
    from beliefmatch.report.page import render_page

    if isinstance(first, ComparisonRecord):
        page = comparison_page(first, evaluations)
    elif isinstance(first, AdaptRecord):
        page = adaptation_page(first, evaluations)
    else:
        page = evaluation_page(evaluations)
    return lambda: render_page(page, caller="report")


def _rendered_votes(record: "VotesRecord") -> str:
    from beliefmatch.report.page import render_page
    from beliefmatch.report.votes import votes_page

    return render_page(votes_page(record), caller="report")


def _record_file(path: Path) -> Path:
    """The record of a directory; any other path as it is."""
    if not path.is_dir():
        return path
    for name in _RECORDS:
        if (path / name).is_file():
            return path / name
    expected, received = " or ".join(_RECORDS), f"{printable(path)} without"
    if any(path.glob("*.json")):
        received = f"{received}; give the records of `beliefmatch evaluate` as {printable(path / '*.json')}"
    raise fail("report", f"`records` must be a directory with {expected}, got {received}.")


def _evaluation_paths(path: Path, record: "ComparisonRecord | AdaptRecord") -> list[str]:
    """Files of the evaluations in the directory of a record, one for each of its methods or heads."""
    from beliefmatch.experiments.adapt_record import AdaptRecord, adapt_evaluation_paths
    from beliefmatch.experiments.records import evaluation_paths

    if isinstance(record, AdaptRecord):
        return adapt_evaluation_paths(record.row_labels)
    if not record.methods or not all(method.runs for method in record.methods):
        raise fail("report", f"`records` must hold a run of every method, got none in {printable(path)}.")
    return evaluation_paths([method.key for method in record.methods])


def _read_record(path: Path) -> "Record":
    from beliefmatch.experiments.adapt_record import ADAPT_SCHEMA, AdaptRecord
    from beliefmatch.experiments.evaluation_record import EvaluationRecord
    from beliefmatch.experiments.records import COMPARISON_SCHEMA, ComparisonRecord
    from beliefmatch.experiments.votes_record import VOTES_SCHEMA, VotesRecord

    kinds = {COMPARISON_SCHEMA: ComparisonRecord, ADAPT_SCHEMA: AdaptRecord, VOTES_SCHEMA: VotesRecord}
    try:
        text = path.read_text(encoding="utf-8")
        schema = schema_of(text).partition("/")[0]
        kind = next((of for name, of in kinds.items() if name.partition("/")[0] == schema), EvaluationRecord)
        return kind.from_json(text)
    except OSError as error:
        reason = f"{error.strerror}"
    except UnicodeDecodeError:
        reason = "it is not UTF-8 text"
    except ValueError as error:
        reason = f"{error}".split("Record: ", 1)[-1].rstrip(".")
    expected = "files of `beliefmatch evaluate`, `compare`, `adapt` or `votes`"
    raise fail("report", f"`records` must be {expected}, got {printable(path)}: {reason}.")


def predict(
    context: typer.Context,
    run: opt.Run,
    inputs: opt.Inputs,
    out: opt.PredictionsFile = "predictions.csv",
    abstain: opt.Abstain = None,
    risk: opt.MaxRisk = None,
    none_of_these: opt.NoneOfThese = None,
    coverage: opt.SetCoverage = None,
    text_column: opt.TextColumn = None,
    skip_corrupt: opt.SkipCorrupt = False,
    workers: opt.Workers = 2,
    overwrite: opt.Overwrite = False,
    verbose: opt.Verbose = False,
) -> None:
    """Predict classes with probabilities and uncertainty.

    Inputs are images, sentences or rows of a table, as the network takes them. The file has the entropy of
    each prediction and, for beliefs, MC dropout and ensembles, the mutual information, both in nats: the
    larger, the more uncertain.
    """
    path = Path(out)
    with user_errors(context):
        _require_predict_options(context)
        from beliefmatch import kernels
        from beliefmatch._validate import naming_arguments
        from beliefmatch.experiments.predict import none_of_these as rule_for
        from beliefmatch.experiments.predict import restore, risk_threshold, set_threshold

        kernels.status()  # fails if BELIEFMATCH_KERNEL asks for one that does not exist
        with naming_arguments("predict", "run"):
            restored = restore(Path(run))
            _require_own_file(path, Path(run), inputs, overwrite)
            threshold = abstain if risk is None else risk_threshold(Path(run), risk)
            is_text = restored.tokenize is not None
            rate = _REFUSED if none_of_these is None and is_text else none_of_these
            rule = None if rate is None else rule_for(Path(run), rate, measure=restored.measure)
            in_set = None if coverage is None else set_threshold(Path(run), coverage)
        corrupt = "skip" if skip_corrupt else "stop"
        names, source = restored.read([*inputs], corrupt=corrupt, workers=workers, text_column=text_column)
        with directory_in_use(f"{path.parent}", caller="predict"):  # proved now, made for the file
            pass
    rows = []
    with user_errors(context, ValueError), step_progress(len(names)) as step:
        rules = {"abstain": threshold, "none_of_these": rule, "in_set": in_set}
        for row in restored.rows(names, source, **rules):
            rows.append(row)
            step("predicting")
    with user_errors(context):
        from beliefmatch.report.prediction_files import prediction_file

        heading = "text" if is_text else restored.noun
        content = prediction_file(path.suffix.lower(), rows, restored.class_names, inputs=heading)
    with write_errors(context, path), directory_in_use(f"{path.parent}", caller="predict"):
        atomic_write(path, content)
    if is_text and len(rows) <= _FEW_ROWS:
        _show_rows(rows)
    if verbose:
        _show_classes(rows)
    noun = restored.noun
    counts = [f"{len(rows):,} {noun}{'' if len(rows) == 1 else 's'}"]
    if threshold is not None:
        abstained = sum(row.abstained for row in rows)
        counts.append(f"{abstained:,} abstained (confidence below {threshold:.4g})")
    if rule is not None:
        refused = sum(row.none_of_these for row in rows)
        measure = rule.measure.replace("_", " ")
        share = f"as for {100 * rule.rate:g}% of {rule.examples:,} validation {noun}s"
        counts.append(f"{refused:,} none of these ({measure} above {rule.threshold:.4g}, {share})")
    if in_set is not None:
        size = sum(len(row.prediction_set or ()) for row in rows) / max(len(rows), 1)
        counts.append(f"sets of {size:.2f} classes on average (probability at least {in_set:.4g})")
    typer.echo(", ".join(counts))
    typer.echo(path)


def _require_predict_options(context: typer.Context) -> None:
    from beliefmatch.report.prediction_files import FORMATS

    given = context.params
    if not given["run"].strip():
        raise fail("predict", f"`run` must be a directory (. for the current one), got {given['run']!r}.")
    refuse_url(given["out"], caller="predict")
    if Path(given["out"]).suffix.lower() not in FORMATS or Path(given["out"]).is_dir():
        raise fail("predict", f"`out` must be a file ending in {', '.join(FORMATS)}, got {given['out']!r}.")
    if given["workers"] < 0:
        raise fail("predict", f"`workers` must be at least 0, got {given['workers']}.")
    if given["abstain"] is not None and given["risk"] is not None:
        raise fail("predict", "`abstain` must not come with `--risk`, which finds one.")
    for name in ("abstain", "risk", "none_of_these", "coverage"):
        if given[name] is not None and not 0 < given[name] < 1:
            raise fail("predict", f"`{name}` must lie strictly in (0, 1), got {given[name]}.")


def _require_own_file(out: Path, run: Path, inputs: Sequence[str], overwrite: bool) -> None:
    """Require a file that is neither an input nor a part of the run, nor an existing one by accident."""
    if run.is_dir() and out.resolve().is_relative_to(run.resolve()):
        raise fail("predict", f"`out` must be outside of the run {printable(run)}, got {printable(out)}.")
    if not out.exists():
        return
    if any(os.path.exists(one) and os.path.samefile(one, out) for one in inputs):
        raise fail("predict", f"`out` must be another file than the inputs, got {printable(out)}.")
    if not overwrite:
        received = f"{printable(out)}, which exists; set `--overwrite` to replace it"
        raise fail("predict", f"`out` must be a new file, got {received}.")


def _show_rows(rows: Sequence["PredictionRow"]) -> None:
    """The answer for each of a few sentences."""
    from beliefmatch.report.table import Cell, Column, Row, Table, to_rich

    def answer(row: "PredictionRow") -> str:
        refused = "none of these" if row.none_of_these else "abstained" if row.abstained else ""
        return printable(f"{refused} ({row.class_name})" if refused else row.class_name)

    measure = "entropy" if rows[0].mutual_information is None else "mutual information"
    columns = [
        Column("answer", "answer"),
        Column("confidence", "confidence", digits=3),
        Column("uncertainty", measure),
    ]
    lines = []
    for row in rows:
        doubt = row.entropy if row.mutual_information is None else row.mutual_information
        cells = [Cell(answer(row)), Cell(row.confidence), Cell(f"{doubt:.2g}")]
        lines.append(Row(printable(row.name), cells))
    show(to_rich(Table("", columns, lines, row_title="sentence")))


def _show_classes(rows: Sequence["PredictionRow"]) -> None:
    """Number, mean confidence and abstentions of each predicted class."""
    from beliefmatch.report.table import Cell, Column, Row, Table, to_rich

    groups: dict[str, list[PredictionRow]] = {}
    for row in sorted(rows, key=lambda row: row.predicted):
        groups.setdefault(printable(row.class_name), []).append(row)
    columns = [
        Column("predictions", "predictions"),
        Column("mean_confidence", "mean confidence", digits=3),
        Column("abstained", "abstained"),
    ]
    lines = []
    for name, group in groups.items():
        mean, abstained = (
            sum(row.confidence for row in group) / len(group),
            sum(row.abstained for row in group),
        )
        lines.append(Row(name, [Cell(f"{len(group):,}"), Cell(mean), Cell(f"{abstained:,}")]))
    show(to_rich(Table("", columns, lines, row_title="predicted")))
