"""`beliefmatch compare`: methods trained alike on embedded digits, side by side."""

from pathlib import Path
from typing import Annotated

import typer

from beliefmatch.cli.errors import BAD_INPUT, told_plainly
from beliefmatch.experiments.records import DIGITS_OPTIONS, CompareConfig
from beliefmatch.extras import needs
from beliefmatch.methods import METHODS
from beliefmatch.report.files import ready_directory, write_whole

__all__ = ["compare"]

_DEFAULT = CompareConfig()
_KL_WEIGHT = DIGITS_OPTIONS["belief_matching"]["kl_weight"]


def compare(
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
    out: Annotated[Path, typer.Option(help="Directory for record and figure.")] = Path("runs/compare"),
) -> None:
    """Train methods alike on embedded digits and set them side by side.

    Prints scores on held-out digits, and how sure each network is of a 3 turned upside down.
    Writes a figure, and a JSON record of all numbers.
    """
    with told_plainly(*BAD_INPUT):
        config = CompareConfig(
            methods=tuple(name.strip() for name in methods.split(",")),
            options={} if kl_weight is None else {"belief_matching": {"kl_weight": kl_weight}},
            epochs=epochs,
            seed=seed,
            seeds=seeds,
        )
        with needs("rich", extra="cli", caller="beliefmatch compare"):
            from beliefmatch.cli.terminal import output, progress
            from beliefmatch.report.tables import rotation_table, scores_table
        with needs("matplotlib", extra="report", caller="beliefmatch compare"):
            from beliefmatch.report.figures import render, rotation_figure
        from beliefmatch.experiments.compare import Comparison

        comparison = Comparison(config)
        ready_directory(out, caller="compare")

    with told_plainly(FloatingPointError), progress(comparison.total_epochs) as step:
        record = comparison.run(on_epoch=step)
    output().print(scores_table(record), rotation_table(record))
    figure = rotation_figure(record)
    _write(
        {
            out / "rotated_three.png": render(figure, "png"),
            out / "rotated_three.svg": render(figure, "svg"),
            out / "record.json": record.to_json().encode(),
        }
    )


def _write(files: dict[Path, bytes]) -> None:
    with told_plainly(OSError):
        for path, content in files.items():
            write_whole(path, content)
    for path in files:
        typer.echo(path)
