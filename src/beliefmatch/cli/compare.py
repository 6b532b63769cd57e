"""`beliefmatch compare`: methods trained alike, side by side."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from beliefmatch._environment import needs
from beliefmatch._files import atomic_write_dir, ready_directory
from beliefmatch.cli.errors import BAD_INPUT, OUTSIDE, UserError, resumable, user_errors
from beliefmatch.cli.run_options import (
    Accelerator,
    BatchSize,
    DataDir,
    DataName,
    Devices,
    DryRun,
    Epochs,
    Flags,
    Labels,
    Limit,
    ModelName,
    Nodes,
    Ood,
    OODTraining,
    Precision,
    PriorFrom,
    PriorStrength,
    Rate,
    RecipeName,
    Semi,
    SemiWeight,
    Settings,
    settings_of,
)
from beliefmatch.methods import METHODS

if TYPE_CHECKING:
    from beliefmatch.experiments.compare import Comparison

__all__ = ["compare"]

USUAL = "softmax,label_smoothing,mc_dropout,ensemble,belief_matching"


def compare(
    context: typer.Context,
    methods: Annotated[
        str,
        typer.Option(
            metavar="NAME[:OPTION=VALUE],...",
            help=f"Methods to compare, of {', '.join(METHODS)}; such as belief_matching:kl_weight=0.01.",
        ),
    ] = USUAL,
    kl_weight: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER|auto",
            help="Belief matching's λ; auto chooses it on validation images; the recipe's if not given.",
            show_default=False,
        ),
    ] = None,
    data: DataName = None,
    data_dir: DataDir = None,
    limit: Limit = None,
    labels: Labels = None,
    semi: Semi = None,
    semi_weight: SemiWeight = None,
    prior_from: PriorFrom = None,
    prior_strength: PriorStrength = None,
    model: ModelName = None,
    ood: Ood = None,
    ood_training: OODTraining = None,
    recipe: RecipeName = None,
    set_: Settings = None,
    epochs: Epochs = None,
    batch_size: BatchSize = None,
    learning_rate: Rate = None,
    seed: Annotated[int, typer.Option(help="Seed of the first run.")] = 0,
    seeds: Annotated[int, typer.Option(help="Number of runs of each method.")] = 3,
    jobs: Annotated[
        int | None, typer.Option(help="Runs at a time; as the machine has cores for if not given.")
    ] = None,
    precision: Precision = None,
    accelerator: Accelerator = None,
    devices: Devices = None,
    nodes: Nodes = None,
    out: Annotated[
        str, typer.Option(help="Directory for runs and report.", metavar="DIRECTORY")
    ] = "runs/compare",
    dry_run: DryRun = False,
) -> None:
    """Train methods alike and set them side by side.

    On embedded digits unless told otherwise. Prints error, calibration, detection of OOD input and costs.
    Writes every run, all numbers as JSON, CSV and Markdown, figures, and report.html, which needs no network.
    The same command goes on where it was stopped; runs that are finished are not run again.
    """
    flags = Flags.of(context.params)
    with user_errors(*BAD_INPUT, command=context):
        work = _comparison(flags, methods, kl_weight, range(seed, seed + seeds), Path(out), jobs)
        _require_extras()
        if not dry_run:
            ready_directory(out, caller="compare")
    if dry_run:
        _show_plans(work)
        return
    _run_and_show(context, work, Path(out))


def _comparison(
    flags: Flags, methods: str, kl_weight: str | None, seeds: range, out: Path, jobs: int | None
) -> "Comparison":
    if jobs is not None and jobs < 1:
        raise ValueError(f"compare: `jobs` must be at least 1, got {jobs}.")
    if not seeds:
        raise ValueError(f"compare: `seeds` must be at least 1, got {len(seeds)}.")
    from beliefmatch import kernels
    from beliefmatch.cli.numbers import number_or_auto
    from beliefmatch.experiments.compare import Comparison
    from beliefmatch.experiments.method_spec import parse_methods, with_kl_weight

    kernels.status()  # asked for one that there is?
    specs = parse_methods(methods)
    if kl_weight is not None:
        specs = with_kl_weight(specs, number_or_auto("compare", "kl_weight", kl_weight))
    return Comparison(settings_of(flags), specs, seeds=list(seeds), directory=out, jobs=jobs)


def _require_extras() -> None:
    with needs("rich", extra="cli", caller="beliefmatch compare"):
        import rich  # noqa: F401
    with needs("matplotlib, jinja2 and plotly", extra="report", caller="beliefmatch compare"):
        import jinja2  # noqa: F401
        import matplotlib  # noqa: F401
        import plotly  # noqa: F401


def _show_plans(work: "Comparison") -> None:
    from beliefmatch.cli.run_show import show_config

    costs = work.estimates()
    if not work.is_main_process:
        return
    for config, cost in costs:
        show_config(config, cost)
        typer.echo()
    typer.echo(f"# runs in all {work.cells}, {work.jobs} at a time")


def _run_and_show(command: typer.Context, work: "Comparison", out: Path) -> None:
    from beliefmatch.cli.terminal import share_done, show
    from beliefmatch.experiments.compare import evaluations
    from beliefmatch.report.comparison_files import comparison_files
    from beliefmatch.report.tables import comparison_tables

    with resumable(), user_errors(*OUTSIDE, command=command), share_done() as tell:
        record = work.run(tell, command=["beliefmatch", *command.obj])
        if not work.is_main_process:
            return
        tell(1.0, "report")
        judged = evaluations(record, work)
        files = comparison_files(record, judged)
    try:  # files before words: who reads the words may go away
        atomic_write_dir(out, files, keep=".json")
    except OSError as error:
        raise UserError(
            f"{command.command_path}: cannot write to {out} ({error.strerror or error}); "
            "mend that or choose another `--out`."
        ) from error
    finally:
        show(*comparison_tables(record))
    typer.echo(out / "report.html")
