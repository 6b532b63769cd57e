"""`beliefmatch adapt`: a trained classifier is given its doubt back."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from beliefmatch._environment import needs
from beliefmatch._files import ready_directory
from beliefmatch.cli.adapt_flags import config_of
from beliefmatch.cli.adapt_options import (
    BatchNorm,
    CacheDir,
    CacheSize,
    ChooseBy,
    Compile,
    Controls,
    Device,
    Epochs,
    FeatureBatch,
    Features,
    HeadBatch,
    HeadName,
    HeadRate,
    KlWeights,
    Labels,
    Laplace,
    Limit,
    Margin,
    Mean,
    ModelOptions,
    Network,
    Optimizer,
    Precision,
    Priors,
    Risks,
    Seeds,
    Size,
    SkipCorrupt,
    SplitSeed,
    Std,
    TestFeatures,
    Validation,
    ValidationFrom,
    Weights,
    Workers,
)
from beliefmatch.cli.errors import BAD_INPUT, OUTSIDE, UserError, user_errors
from beliefmatch.cli.run_options import DataDir, DataName, DryRun, Ood

if TYPE_CHECKING:
    from beliefmatch.experiments.adapt_run_config import AdaptRunConfig
    from beliefmatch.experiments.adapting import Adapting, AdaptResult

__all__ = ["adapt"]


def adapt(
    context: typer.Context,
    model: Network = None,
    model_option: ModelOptions = None,
    weights: Weights = None,
    head: HeadName = None,
    data: DataName = None,
    data_dir: DataDir = None,
    validation: Validation = None,
    validation_from: ValidationFrom = "train",
    limit: Limit = None,
    split_seed: SplitSeed = 0,
    size: Size = None,
    margin: Margin = None,
    mean: Mean = None,
    std: Std = None,
    skip_corrupt: SkipCorrupt = False,
    workers: Workers = 2,
    ood: Ood = None,
    features: Features = None,
    test_features: TestFeatures = None,
    cache_dir: CacheDir = None,
    cache_size: CacheSize = "20GB",
    device: Device = "cpu",
    precision: Precision = "auto",
    compile_: Compile = False,
    feature_batch: FeatureBatch = 32,
    labels: Labels = "auto",
    kl_weight: KlWeights = None,
    prior: Priors = "1",
    seeds: Seeds = 1,
    controls: Controls = "softmax,label_smoothing,evidential",
    laplace: Laplace = False,
    choose_by: ChooseBy = "nll",
    epochs: Epochs = 100,
    batch_size: HeadBatch = 256,
    learning_rate: HeadRate = None,
    optimizer: Optimizer = "adam",
    train_batchnorm: BatchNorm = False,
    risk: Risks = [0.01, 0.05],  # noqa: B006 (typer's way to say several)
    out: Annotated[
        str, typer.Option(metavar="DIRECTORY", help="For the new weights, records and report.")
    ] = "runs/adapt",
    dry_run: DryRun = False,
) -> None:
    """Refit the last layer of a classifier, and show what changed.

    Features are computed once and kept. All values of λ, and other heads to compare with, are fitted in one
    pass over them; λ is chosen on images that the network must not have seen. Takes minutes on a CPU.
    """
    with user_errors(*BAD_INPUT, command=context):
        config = config_of(context.params)
        _require_extras()
        from beliefmatch.experiments.adapting import Adapting

        _require_no_run(Path(out))
        work = Adapting(config)
        if not dry_run:
            ready_directory(out, caller="adapt")
    _announce(work)
    if dry_run:
        return
    from beliefmatch.cli.terminal import share_done

    with user_errors(ValueError, *OUTSIDE, command=context), share_done() as tell:
        outcome = work.run(tell)
    _write_and_show(context, Path(out), config, outcome)


def _require_no_run(place: Path) -> None:
    """The files of an adaptation have the names of a run's: one would destroy the other."""
    from beliefmatch.experiments.run_dir import RunDirectory

    if RunDirectory(place).config_file.is_file():
        raise ValueError(f"adapt: `out` must not be the directory of a run, got {place}; choose another.")


def _require_extras() -> None:
    """What the end needs is asked for before the work begins."""
    with needs("rich", extra="cli", caller="beliefmatch adapt"):
        import rich  # noqa: F401
    with needs("matplotlib, jinja2 and plotly", extra="report", caller="beliefmatch adapt"):
        import jinja2  # noqa: F401
        import matplotlib  # noqa: F401
        import plotly  # noqa: F401
    with needs("scipy", extra="stats", caller="beliefmatch adapt"):
        import scipy  # noqa: F401
    with needs("safetensors", extra="files", caller="beliefmatch adapt"):
        import safetensors  # noqa: F401


def _announce(work: "Adapting") -> None:
    """How much is to be computed, and what it takes on the disk."""
    for line in work.announcement():
        typer.echo(line)


def _write_and_show(
    command: typer.Context, place: Path, config: "AdaptRunConfig", outcome: "AdaptResult"
) -> None:
    from beliefmatch.cli.terminal import show
    from beliefmatch.experiments.adapt_run_config import ImageAdaptConfig
    from beliefmatch.experiments.adapted_directory import kept_files
    from beliefmatch.experiments.adapted_head import head_file
    from beliefmatch.report.adaptation_files import write_adaptation
    from beliefmatch.report.adaptation_tables import adaptation_tables

    record, evaluations = outcome.record, outcome.evaluations
    others = kept_files(outcome, config.given if isinstance(config.given, ImageAdaptConfig) else None)
    head = head_file(outcome.adaptation, outcome.network)
    try:  # files before words: who reads the words may go away
        page = write_adaptation(place, record, evaluations, head=head, others=others)
    except OSError as error:
        raise UserError(
            f"{command.command_path}: cannot write to {place} ({error.strerror or error}); "
            "mend that or choose another `--out`."
        ) from error
    finally:
        show(*adaptation_tables(record, evaluations))
    typer.echo(page)
