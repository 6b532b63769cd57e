"""`beliefmatch report`: the page again, from records alone."""

from pathlib import Path
from typing import Annotated

import typer

from beliefmatch.cli.errors import BAD_INPUT, UserError, told_plainly
from beliefmatch.cli.evaluate_plan import shown
from beliefmatch.experiments.evaluation_record import EvaluationRecord
from beliefmatch.extras import needs
from beliefmatch.files import ready_directory, write_whole

__all__ = ["report"]


def report(
    context: typer.Context,
    records: Annotated[
        list[str],
        typer.Argument(metavar="RECORD", help="Records that `beliefmatch evaluate` wrote, one a model."),
    ],
    out: Annotated[str, typer.Option(metavar="FILE", help="The page to write.")] = "report.html",
) -> None:
    """Rebuild the page of an evaluation from its records alone.

    Neither the predictions nor torch are needed.
    """
    with told_plainly(*BAD_INPUT, command=context):
        found = [_read(path) for path in records]
        classes = {len(record.class_names) for record in found}
        if len(classes) > 1:
            received = " and ".join(map(str, sorted(classes)))
            raise ValueError(f"report: RECORD must have the same number of classes, got {received}.")
        with needs("jinja2 and plotly", extra="report", caller="beliefmatch report"):
            import jinja2  # noqa: F401
            import plotly  # noqa: F401

            from beliefmatch.report.page import render_page
        path = _ready_file(out)

    page = render_page(found).encode()
    try:
        write_whole(path, page)
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"{context.command_path}: cannot write {path} ({reason}).") from error
    typer.echo(path)


def _read(path: str) -> EvaluationRecord:
    try:
        return EvaluationRecord.from_json(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        reason = f"{error.strerror}"
    except UnicodeDecodeError:
        reason = "it is not UTF-8 text"
    except ValueError as error:
        reason = f"{error}".removeprefix("EvaluationRecord: ").rstrip(".")
    raise ValueError(f"report: RECORD must be a file of `beliefmatch evaluate`, got {shown(path)}: {reason}.")


def _ready_file(out: str) -> Path:
    path = Path(out)
    if not out.strip() or path.is_dir():
        raise ValueError(f"report: `out` must be a file to write, got {out!r}.")
    ready_directory(f"{path.parent}", caller="report")
    return path
