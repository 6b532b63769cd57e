"""`beliefmatch train`: one method on one dataset, kept in a directory that can be gone on with."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from beliefmatch._environment import needs
from beliefmatch._files import ready_directory
from beliefmatch.cli.errors import BAD_INPUT, OUTSIDE, resumable, user_errors
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
    from beliefmatch.experiments.config import RunConfig

__all__ = ["train"]


def train(
    context: typer.Context,
    method: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[:OPTION=VALUE]",
            help=f"{', '.join(METHODS)}; the recipe's if not given, belief_matching in ours.",
            show_default=False,
        ),
    ] = None,
    kl_weight: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER|auto", help="Belief matching's λ; auto chooses it on validation images."
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
    seed: Annotated[int | None, typer.Option(help="Of weights, order and augmentation.")] = None,
    precision: Precision = None,
    accelerator: Accelerator = None,
    devices: Devices = None,
    nodes: Nodes = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write TensorBoard's logs too.")] = False,
    out: Annotated[str, typer.Option(metavar="DIRECTORY", help="Where the run is kept.")] = "runs/train",
    dry_run: DryRun = False,
) -> None:
    """Train a network, and keep everything about it.

    The same command goes on with a training that was stopped, and only shows one that is finished. Writes
    checkpoints, logs, predictions of the test and OOD sets, and record.json; `beliefmatch evaluate` and
    `beliefmatch predict` take the directory.
    """
    flags = Flags.of(context.params)
    with user_errors(*BAD_INPUT, command=context):
        config = _config(flags, method, kl_weight, seed)
        with needs("rich", extra="cli", caller="beliefmatch train"):
            from beliefmatch.cli.run_show import show_config, show_run
            from beliefmatch.cli.terminal import share_done
        from beliefmatch.experiments.search import Training

        work = Training(config, Path(out), tensorboard=tensorboard)
        if not dry_run:
            ready_directory(out, caller="train")
    if dry_run:
        cost = work.estimate()
        if work.is_main_process:
            show_config(config, cost, runs=work.runs)
        return
    with resumable(), user_errors(*OUTSIDE, command=context), share_done() as tell:
        record = work.run(tell)
    if work.is_main_process:
        show_run(record, Path(out))


def _config(flags: Flags, method: str | None, kl_weight: str | None, seed: int | None) -> "RunConfig":
    from msgspec.structs import replace

    from beliefmatch.experiments.config import config_from
    from beliefmatch.experiments.method_spec import parse_methods, with_spec

    mapping = settings_of(flags)
    if method is not None:
        spec, *others = parse_methods(method, caller="train", argument="method")
        if others:
            raise ValueError(f"train: `method` must be one method, got {method!r}.")
        mapping = with_spec(mapping, spec)
    if kl_weight is not None:
        mapping = _with_weight(mapping, kl_weight)
    config = config_from(mapping)
    return config if seed is None else replace(config, seed=seed)


def _with_weight(mapping: dict[str, Any], text: str) -> dict[str, Any]:
    from beliefmatch.cli.numbers import number_or_auto

    section = mapping["method"]
    options = {**section.get("options", {}), "kl_weight": number_or_auto("train", "kl_weight", text)}
    return {**mapping, "method": {**section, "options": options}}
