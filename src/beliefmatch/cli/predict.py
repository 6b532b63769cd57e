"""`beliefmatch predict`: a finished run put to use."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from beliefmatch._files import atomic_write, ready_directory
from beliefmatch.cli.errors import BAD_INPUT, UserError, user_errors

if TYPE_CHECKING:
    from beliefmatch.experiments.predicting import Restored, Row

__all__ = ["predict"]

FORMATS = (".csv", ".json", ".parquet")


def predict(
    context: typer.Context,
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="Directory that `beliefmatch train` or `adapt` wrote.")
    ],
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT",
            help="Images, folders of images, .npz or .npy arrays of bytes, or .parquet files.",
        ),
    ],
    out: Annotated[
        str, typer.Option(metavar="FILE", help="Where to write, as .csv, .json or .parquet.")
    ] = "predictions.csv",
    abstain: Annotated[
        float | None, typer.Option(metavar="CONFIDENCE", help="Abstain where the confidence is below this.")
    ] = None,
    risk: Annotated[
        float | None,
        typer.Option(
            metavar="RATE",
            help="Abstain so that the error among the answers stays below this, with 95 % probability; the "
            "confidence needed is found on the run's validation images.",
        ),
    ] = None,
    skip_corrupt: Annotated[
        bool, typer.Option("--skip-corrupt", help="Leave out images that cannot be read, and say how many.")
    ] = False,
    workers: Annotated[int, typer.Option(help="Processes that read large images.")] = 2,
) -> None:
    """Predict classes, with probabilities and doubt.

    Entropy and spread are in nats: the larger, the more doubt. Spread is the mutual information under the
    belief, for methods that have one.
    """
    with user_errors(*BAD_INPUT, command=context):
        path = _ready_file(out)
        if abstain is not None and risk is not None:
            raise ValueError("predict: `abstain` must not come with `--risk`, which finds one.")
        _require_share("abstain", abstain)
        _require_share("risk", risk)
        from beliefmatch.data.loading import read_images
        from beliefmatch.experiments.predicting import promised_confidence, restore

        least = abstain if risk is None else promised_confidence(Path(run), risk)
        restored = restore(Path(run))
        names, source = read_images(
            [*inputs],
            like_shape=restored.shape,
            preprocessing=restored.preprocessing,
            corrupt="skip" if skip_corrupt else "stop",
            workers=workers,
        )
    from beliefmatch.cli.terminal import progress

    with user_errors(ValueError, command=context), progress(len(names)) as step:
        rows = []
        for row in restored.rows(names, source, abstain=least):
            rows.append(row)
            step("predicting")
    _write(context, path, rows, restored)
    _say(rows, least, path)


def _write(command: typer.Context, path: Path, rows: "list[Row]", restored: "Restored") -> None:
    from beliefmatch.report.prediction_files import prediction_file

    with user_errors(*BAD_INPUT, command=command):
        content = prediction_file(path.suffix.lower(), rows, restored.class_names)
    try:
        atomic_write(path, content)
    except OSError as error:
        raise UserError(
            f"{command.command_path}: cannot write {path} ({error.strerror or error}); "
            "mend that or choose another `--out`."
        ) from error


def _say(rows: "list[Row]", least: float | None, path: Path) -> None:
    held = sum(row.abstained for row in rows)
    images = f"{len(rows):,} image{'' if len(rows) == 1 else 's'}"
    refused = "" if least is None else f", {held:,} abstained from (confidence below {least:.4g})"
    typer.echo(f"{images}{refused}")
    typer.echo(path)


def _ready_file(name: str) -> Path:
    path = Path(name)
    if path.suffix.lower() not in FORMATS or path.is_dir():
        raise ValueError(f"predict: `out` must be a file ending in {', '.join(FORMATS)}, got {name!r}.")
    ready_directory(f"{path.parent}", caller="predict")
    return path


def _require_share(name: str, value: float | None) -> None:
    if value is not None and not 0 < value < 1:
        raise ValueError(f"predict: `{name}` must lie strictly in (0, 1), got {value}.")
