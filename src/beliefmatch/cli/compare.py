"""`beliefmatch compare`: methods trained alike on embedded digits, side by side."""

from pathlib import Path
from typing import Annotated

import typer

from beliefmatch.cli.errors import BAD_INPUT, UserError, told_plainly
from beliefmatch.experiments.records import DIGITS_OPTIONS, CompareConfig
from beliefmatch.extras import needs
from beliefmatch.files import ready_directory, write_whole
from beliefmatch.methods import METHODS

__all__ = ["compare"]

_DEFAULT = CompareConfig()
_KL_WEIGHT = DIGITS_OPTIONS["belief_matching"]["kl_weight"]


def compare(
    context: typer.Context,
    methods: Annotated[str, typer.Option(help=f"Methods to compare, of {', '.join(METHODS)}.")] = ",".join(
        _DEFAULT.methods
    ),
    kl_weight: Annotated[
        float | None,
        typer.Option(
            help=f"Belief matching's λ, the weight of its prior; if not given, {_KL_WEIGHT:g}, "
            "chosen on validation images.",
            show_default=False,
        ),
    ] = None,
    epochs: Annotated[int, typer.Option(help="Passes over the training images.")] = _DEFAULT.epochs,
    seed: Annotated[int, typer.Option(help="Seed of the first run.")] = _DEFAULT.seed,
    seeds: Annotated[int, typer.Option(help="Number of runs of each method.")] = _DEFAULT.seeds,
    out: Annotated[
        str, typer.Option(help="Directory for record and figure.", metavar="DIRECTORY")
    ] = "runs/compare",
) -> None:
    """Train methods alike on embedded digits and set them side by side.

    Prints scores on held-out digits, and how sure each network is of a 3 turned upside down.
    Writes a figure, and a JSON record of all numbers.
    """
    with told_plainly(*BAD_INPUT, command=context):
        names = tuple(name.strip() for name in methods.split(","))
        options = _options(names, kl_weight)
        config = CompareConfig(methods=names, options=options, epochs=epochs, seed=seed, seeds=seeds)
        with needs("rich", extra="cli", caller="beliefmatch compare"):
            from beliefmatch.cli.terminal import progress, show
            from beliefmatch.report.tables import comparison_tables
        with needs("matplotlib", extra="report", caller="beliefmatch compare"):
            from beliefmatch.report.figures import rotation_files
        from beliefmatch import kernels
        from beliefmatch.experiments.compare import Comparison

        kernels.status()  # asked for one that there is?
        comparison = Comparison(config)
        place = ready_directory(out, caller="compare")

    with told_plainly(FloatingPointError, command=context), progress(comparison.total_epochs) as step:
        record = comparison.run(on_epoch=step)
    try:  # files before words: who reads the words may go away
        written = [_write(context, place / "record.json", record.to_json().encode())]
        written += [_write(context, place / name, image) for name, image in rotation_files(record)]
    finally:
        show(*comparison_tables(record))
    for path in written:
        typer.echo(path)


def _options(methods: tuple[str, ...], kl_weight: float | None) -> dict[str, dict[str, float]]:
    """What the methods to compare are told."""
    if kl_weight is None:
        return {}
    if "belief_matching" not in methods:
        chosen = ",".join(methods)
        raise ValueError(f"compare: `kl_weight` must come with belief_matching in `--methods`, got {chosen}.")
    return {"belief_matching": {"kl_weight": kl_weight}}


def _write(command: typer.Context, path: Path, content: bytes) -> Path:
    try:
        write_whole(path, content)
    except OSError as error:
        raise UserError(
            f"{command.command_path}: cannot write {path} ({error.strerror or error}); "
            "mend that or choose another `--out`."
        ) from error
    return path
