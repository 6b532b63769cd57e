"""`beliefmatch evaluate`: how wrong, how overconfident and how blind to OOD input models are."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from beliefmatch._environment import needs
from beliefmatch._files import atomic_write_dir, directory_in_use
from beliefmatch.cli.errors import BAD_INPUT, UserError, user_errors
from beliefmatch.cli.model_files import class_names_of, config, file_names, shown
from beliefmatch.experiments.evaluation_settings import EvaluateConfig, ModelFiles

if TYPE_CHECKING:
    from beliefmatch.experiments.evaluation_record import EvaluationRecord
    from beliefmatch.experiments.evaluations import Evaluations

__all__ = ["evaluate"]

_DEFAULT = EvaluateConfig()
_RENDERING = 1  # steps of the progress bar

Files = list[tuple[str, bytes]]
Render = Callable[[Sequence["EvaluationRecord"]], Files]


def evaluate(
    context: typer.Context,
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE",
            help="Predictions and targets of each model, as .npz, .npy, .parquet, .csv or .safetensors, or "
            "the directory of a run.",
        ),
    ],
    ood: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SET=FILE",
            help="Predictions for OOD examples. With several models SET=FILE,FILE,... in their order.",
        ),
    ] = None,
    out: Annotated[str, typer.Option(metavar="DIRECTORY", help="Where the report goes.")] = "runs/evaluate",
    name: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Name of a model, once for each file.")
    ] = None,
    class_names: Annotated[
        str | None, typer.Option(metavar="FILE", help="Text file with the name of a class on each line.")
    ] = None,
    targets_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="Targets of all models, if not in their files.")
    ] = None,
    n_bins: Annotated[int, typer.Option(help="Number of confidence bins.")] = _DEFAULT.n_bins,
    resamples: Annotated[
        int, typer.Option(help="Of the bootstrap; 0 for no intervals.")
    ] = _DEFAULT.resamples,
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap.")] = _DEFAULT.seed,
    risk: Annotated[
        list[float],
        typer.Option(
            metavar="RATE",
            help="Error rate among answers; its confidence threshold is reported. Repeatable.",
        ),
    ] = list(_DEFAULT.risks),  # noqa: B006 (typer's way to say several)
    logits: Annotated[str | None, typer.Option(metavar="NAME", help="What the logits are called.")] = None,
    probs: Annotated[
        str | None, typer.Option(metavar="NAME", help="What the probabilities are called.")
    ] = None,
    targets: Annotated[str | None, typer.Option(metavar="NAME", help="What the targets are called.")] = None,
    images: Annotated[str | None, typer.Option(metavar="NAME", help="What the images are called.")] = None,
) -> None:
    """Judge models by their predictions, side by side, on one page.

    Files hold arrays or columns called logits or probs, and targets; other names are given by options.
    Writes a JSON record for each model, tables, figures and report.html, which needs no network.
    """
    with ExitStack() as stack:
        with user_errors(*BAD_INPUT, command=context):
            settings = EvaluateConfig(n_bins=n_bins, resamples=resamples, seed=seed, risks=tuple(risk))
            chosen = config(models, names=name or [], ood=ood or [])
            render = _renderer()
            from beliefmatch.data.predictions import FieldNames
            from beliefmatch.experiments.evaluations import Evaluations

            fields = FieldNames(logits=logits, probs=probs, targets=targets, images=images)
            work = Evaluations(
                chosen,
                settings=settings,
                names=fields,
                class_names=class_names or class_names_of(models),
                targets_file=targets_file,
            )
            place = stack.enter_context(directory_in_use(out, caller="evaluate"))
        records, files = _records_and_files(context, work, render)
        _write_and_show(context, place, records, files)


def _records_and_files(
    command: typer.Context, work: "Evaluations", render: Render
) -> tuple[list["EvaluationRecord"], Files]:
    from beliefmatch.cli.terminal import progress

    with progress(work.steps + _RENDERING) as step:
        records = [_record(command, work, model, step) for model in work.models]
        files = render(records)
        step("page")
    return records, files


def _record(
    command: typer.Context, work: "Evaluations", model: ModelFiles, step: Callable[[str], None]
) -> "EvaluationRecord":
    with user_errors(*BAD_INPUT, command=command):
        given = work.read(model, step)
    return work.judge(model, given, step)


def _write_and_show(
    command: typer.Context, place: Path, records: Sequence["EvaluationRecord"], files: Files
) -> None:
    from beliefmatch.cli.terminal import show
    from beliefmatch.report.evaluation_tables import terminal_table

    try:  # files before words: who reads the words may go away
        removed = atomic_write_dir(place, files, keep=".json")  # a record may be the only one
    except OSError as error:
        raise UserError(
            f"{command.command_path}: cannot write to {place} ({error.strerror or error}); "
            "mend that or choose another `--out`."
        ) from error
    finally:
        show(terminal_table(records))
    for line in _lines(records):
        typer.echo(line)
    if removed:
        typer.echo(shown(f"removed what an earlier run left in {place}: {', '.join(removed)}"))
    typer.echo(place / "report.html")


def _renderer() -> Render:
    """A function that makes every file of a report; what it needs is asked for before the work begins."""
    with needs("rich", extra="cli", caller="beliefmatch evaluate"):
        import rich  # noqa: F401
    with needs("matplotlib, jinja2 and plotly", extra="report", caller="beliefmatch evaluate"):
        import jinja2  # noqa: F401
        import plotly  # noqa: F401

        from beliefmatch.report.evaluation_figures import evaluation_files
        from beliefmatch.report.evaluation_tables import to_csv, to_markdown
        from beliefmatch.report.page import render_page

    with needs("scipy", extra="stats", caller="beliefmatch evaluate"):
        import scipy  # noqa: F401

    def files(records: Sequence["EvaluationRecord"]) -> Iterator[tuple[str, str | bytes]]:
        safe = file_names([record.name for record in records])
        yield from ((f"{name}.json", record.to_json()) for name, record in zip(safe, records, strict=True))
        yield "summary.csv", to_csv(records)
        yield "summary.md", to_markdown(records)
        yield from ((f"figures/{name}", image) for name, image in evaluation_files(records))
        yield "report.html", render_page(records)

    return lambda records: [
        (name, content.encode() if isinstance(content, str) else content) for name, content in files(records)
    ]


def _lines(records: Sequence["EvaluationRecord"]) -> Iterator[str]:
    """What every file's arrays were taken for."""
    for record in records:
        read = [(record.source, record.settings["fields"])]
        read += [(one.source, record.settings["ood_fields"][one.name]) for one in record.ood]
        for source, fields in read:
            yield shown(f"{source}: " + ", ".join(f"{role} = {name}" for role, name in fields.items()))
