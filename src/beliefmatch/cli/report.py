"""`beliefmatch report`: the page again, from records alone."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from beliefmatch.cli.errors import BAD_INPUT, UserError, told_plainly
from beliefmatch.cli.evaluate_plan import shown
from beliefmatch.experiments.comparison_record import COMPARISON_SCHEMA, ComparisonRecord, evaluation_paths
from beliefmatch.experiments.evaluation_record import EvaluationRecord
from beliefmatch.extras import needs
from beliefmatch.files import ready_directory, write_whole

__all__ = ["report"]

_COMPARISONS = COMPARISON_SCHEMA.partition("/")[0]


def report(
    context: typer.Context,
    records: Annotated[
        list[str],
        typer.Argument(
            metavar="RECORD",
            help="Records that `beliefmatch evaluate` wrote, one a model; "
            "or the comparison.json of one `beliefmatch compare`.",
        ),
    ],
    out: Annotated[str, typer.Option(metavar="FILE", help="The page to write.")] = "report.html",
) -> None:
    """Rebuild a page from its records alone.

    Neither the predictions nor torch are needed.
    """
    with told_plainly(*BAD_INPUT, command=context):
        render = _renderer(records)
        path = _ready_file(out)

    page = render().encode()
    try:
        write_whole(path, page)
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"{context.command_path}: cannot write {path} ({reason}).") from error
    typer.echo(path)


def _renderer(paths: Sequence[str]) -> Callable[[], str]:
    """A function that makes the page; all that it needs is read and checked."""
    found = [_read(path) for path in paths]
    comparisons = [record for record in found if isinstance(record, ComparisonRecord)]
    evaluations = [record for record in found if isinstance(record, EvaluationRecord)]
    if comparisons and len(found) > 1:
        raise ValueError(f"report: RECORD must be one comparison or only evaluations, got {len(found)}.")
    if comparisons:
        evaluations = _evaluations(Path(paths[0]), comparisons[0])
    _require_same_classes(evaluations)
    with needs("jinja2 and plotly", extra="report", caller="beliefmatch report"):
        import jinja2  # noqa: F401
        import plotly  # noqa: F401

        from beliefmatch.report.comparison_page import render_comparison
        from beliefmatch.report.page import render_page
    if comparisons:
        return lambda: render_comparison(comparisons[0], evaluations)
    return lambda: render_page(evaluations)


def _evaluations(path: Path, record: ComparisonRecord) -> list[EvaluationRecord]:
    """What lies beside a comparison's record, one for each of its methods."""
    names = evaluation_paths([method.key for method in record.methods])
    if not names or not all(method.runs for method in record.methods):
        raise ValueError(f"report: RECORD must hold a run of every method, got none in {shown(path)}.")
    found = [_read(f"{path.parent / name}") for name in names]
    evaluations = [record for record in found if isinstance(record, EvaluationRecord)]
    if len(evaluations) < len(found):
        raise ValueError(f"report: RECORD must have evaluations beside it, got comparisons at {shown(path)}.")
    return evaluations


def _require_same_classes(records: Sequence[EvaluationRecord]) -> None:
    classes = {len(record.class_names) for record in records}
    if len(classes) > 1:
        received = " and ".join(map(str, sorted(classes)))
        raise ValueError(f"report: RECORD must have the same number of classes, got {received}.")


def _read(path: str) -> EvaluationRecord | ComparisonRecord:
    try:
        text = Path(path).read_text(encoding="utf-8")
        kind = ComparisonRecord if _is_comparison(text) else EvaluationRecord
        return kind.from_json(text)
    except OSError as error:
        reason = f"{error.strerror}"
    except UnicodeDecodeError:
        reason = "it is not UTF-8 text"
    except ValueError as error:
        reason = f"{error}".split("Record: ", 1)[-1].rstrip(".")
    raise ValueError(
        f"report: RECORD must be a file of `beliefmatch evaluate` or `compare`, got {shown(path)}: {reason}."
    )


def _is_comparison(text: str) -> bool:
    try:
        content = json.loads(text)
    except ValueError:
        return False
    schema = content.get("schema") if isinstance(content, dict) else None
    return isinstance(schema, str) and schema.startswith(f"{_COMPARISONS}/")


def _ready_file(out: str) -> Path:
    path = Path(out)
    if not out.strip() or path.is_dir():
        raise ValueError(f"report: `out` must be a file to write, got {out!r}.")
    ready_directory(f"{path.parent}", caller="report")
    return path
