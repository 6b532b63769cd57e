"""`beliefmatch report`: the page again, from records alone."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from beliefmatch._environment import needs
from beliefmatch._files import atomic_write, ready_directory
from beliefmatch.cli.errors import BAD_INPUT, UserError, user_errors
from beliefmatch.cli.model_files import shown
from beliefmatch.experiments.adapt_record import ADAPT_SCHEMA, AdaptRecord, adapt_evaluation_paths
from beliefmatch.experiments.evaluation_record import EvaluationRecord
from beliefmatch.experiments.records import COMPARISON_SCHEMA, ComparisonRecord, evaluation_paths

__all__ = ["report"]

Record = EvaluationRecord | ComparisonRecord | AdaptRecord
_KINDS: dict[str, type[Record]] = {
    COMPARISON_SCHEMA.partition("/")[0]: ComparisonRecord,
    ADAPT_SCHEMA.partition("/")[0]: AdaptRecord,
}
_OF_DIRECTORIES = ("comparison.json", "record.json")


def report(
    context: typer.Context,
    records: Annotated[
        list[str],
        typer.Argument(
            metavar="RECORD",
            help="Records that `beliefmatch evaluate` wrote, one a model; or the directory of one "
            "`beliefmatch compare` or `adapt`, or the record in it.",
        ),
    ],
    out: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="The page to write; by default in the current directory, not beside the record.",
        ),
    ] = "report.html",
) -> None:
    """Rebuild a page from its records alone.

    Neither the predictions nor torch are needed.
    """
    with user_errors(*BAD_INPUT, command=context):
        render = _renderer(records)
        path = _ready_file(out)

    page = render().encode()
    try:
        atomic_write(path, page)
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"{context.command_path}: cannot write {path} ({reason}).") from error
    typer.echo(path)


def _renderer(paths: Sequence[str]) -> Callable[[], str]:
    """A function that makes the page; all that it needs is read and checked."""
    files = [_file_of(path) for path in paths]
    found = [_read(file) for file in files]
    first, evaluations = found[0], [record for record in found if isinstance(record, EvaluationRecord)]
    if len(evaluations) < len(found) > 1:
        what = "one comparison, one adaptation or only evaluations"
        raise ValueError(f"report: RECORD must be {what}, got {len(found)}.")
    if not isinstance(first, EvaluationRecord):
        evaluations = _evaluations(files[0], first)
    _require_same_classes(evaluations)
    with needs("jinja2 and plotly", extra="report", caller="beliefmatch report"):
        import jinja2  # noqa: F401
        import plotly  # noqa: F401

        from beliefmatch.report.adaptation_page import render_adaptation
        from beliefmatch.report.comparison_page import render_comparison
        from beliefmatch.report.page import render_page
    if isinstance(first, ComparisonRecord):
        return lambda: render_comparison(first, evaluations)
    if isinstance(first, AdaptRecord):
        return lambda: render_adaptation(first, evaluations)
    return lambda: render_page(evaluations)


def _file_of(path: str) -> Path:
    """The record of a directory; any other path as it is."""
    place = Path(path)
    if not place.is_dir():
        return place
    found = next((place / name for name in _OF_DIRECTORIES if (place / name).is_file()), None)
    if found is None:
        expected = " or ".join(_OF_DIRECTORIES)
        raise ValueError(f"report: RECORD must be a directory with {expected}, got {shown(place)} without.")
    return found


def _evaluations(path: Path, record: ComparisonRecord | AdaptRecord) -> list[EvaluationRecord]:
    """What lies beside a record, one for each of its methods or heads."""
    found = [_read(path.parent / name) for name in _evaluation_paths(path, record)]
    evaluations = [record for record in found if isinstance(record, EvaluationRecord)]
    if len(evaluations) < len(found):
        raise ValueError(f"report: RECORD must have evaluations beside it, got others at {shown(path)}.")
    return evaluations


def _evaluation_paths(path: Path, record: ComparisonRecord | AdaptRecord) -> list[str]:
    if isinstance(record, AdaptRecord):
        return adapt_evaluation_paths(record.row_labels)
    if not record.methods or not all(method.runs for method in record.methods):
        raise ValueError(f"report: RECORD must hold a run of every method, got none in {shown(path)}.")
    return evaluation_paths([method.key for method in record.methods])


def _require_same_classes(records: Sequence[EvaluationRecord]) -> None:
    classes = {len(record.class_names) for record in records}
    if len(classes) > 1:
        received = " and ".join(map(str, sorted(classes)))
        raise ValueError(f"report: RECORD must have the same number of classes, got {received}.")


def _read(path: Path) -> Record:
    try:
        text = path.read_text(encoding="utf-8")
        return _kind_of(text).from_json(text)
    except OSError as error:
        reason = f"{error.strerror}"
    except UnicodeDecodeError:
        reason = "it is not UTF-8 text"
    except ValueError as error:
        reason = f"{error}".split("Record: ", 1)[-1].rstrip(".")
    expected = "a file of `beliefmatch evaluate`, `compare` or `adapt`"
    raise ValueError(f"report: RECORD must be {expected}, got {shown(path)}: {reason}.")


def _kind_of(text: str) -> type[Record]:
    """What a text says that it is; an evaluation where it does not."""
    try:
        content = json.loads(text)
    except ValueError:
        return EvaluationRecord
    schema = content.get("schema") if isinstance(content, dict) else None
    return (
        _KINDS.get(schema.partition("/")[0], EvaluationRecord)
        if isinstance(schema, str)
        else EvaluationRecord
    )


def _ready_file(out: str) -> Path:
    path = Path(out)
    if not out.strip() or path.is_dir():
        raise ValueError(f"report: `out` must be a file to write, got {out!r}.")
    ready_directory(f"{path.parent}", caller="report")
    return path
