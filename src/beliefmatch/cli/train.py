"""`beliefmatch train` and `beliefmatch compare`: one method, or several trained alike."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from beliefmatch._errors import ArgumentWarning, fail, naming_arguments
from beliefmatch._files import atomic_write_dir, ready_directory
from beliefmatch.cli import options as opt
from beliefmatch.cli.console import (
    FAILURES,
    findings,
    output,
    progress,
    require_packages,
    resumable,
    show,
    show_warning,
    user_errors,
    write_errors,
)

if TYPE_CHECKING:
    from beliefmatch.experiments.config import RunConfig
    from beliefmatch.experiments.cost import Estimate
    from beliefmatch.experiments.records import RunRecord

__all__ = ["compare", "train"]

DEFAULT_METHODS = "softmax,label_smoothing,mc_dropout,ensemble,belief_matching"
_OOD_SCORE = "entropy"
_SHOWN = 5  # classes in a warning


@opt.with_options(opt.RunOptions)
def train(
    context: typer.Context,
    method: opt.Method = None,
    *,
    seed: opt.Seed = None,
    tensorboard: opt.Tensorboard = False,
    on: opt.On = "local",
    out: opt.OutPlace = "runs/train",
    dry_run: opt.DryRun = False,
    verbose: opt.Verbose = False,
) -> None:
    """Train one method and keep the run in a directory.

    The same command continues a training that was stopped, and only prints the results of one that is
    finished. The directory holds checkpoints, logs, predictions on the test and OOD sets, and record.json. It
    can be passed to `beliefmatch evaluate`, `predict` and `adapt`.
    """
    with output(context, out) as (path, url):
        _train(context, method, path, url)


def _train(context: typer.Context, method: str | None, path: Path, url: str | None) -> None:
    """`train` in a local directory."""
    params = context.params
    dry_run, shown = params["dry_run"], url or params["out"]
    with user_errors(context):
        settings, kl_weight_value, notes = _settings(context)
        config = _run_config(settings, method, kl_weight_value)
        require_packages(context, "terminal")
        from beliefmatch.experiments.build import is_main_process
        from beliefmatch.experiments.executors import workers_on
        from beliefmatch.experiments.train_job import TrainJob

        workers, tensorboard = workers_on(params["on"]), params["tensorboard"]
        job = TrainJob(config, path, tensorboard=tensorboard, url=url, workers=workers)
        notes = _notes(config, notes)
        _warn_of_single_rows(context, config)
        if not dry_run:
            ready_directory(f"{path}" if url else params["out"], caller="train")
    if dry_run:
        cost = job.estimate()
        if is_main_process():
            _echo_config(config, cost, runs=job.runs, notes=notes)
        return
    if notes and is_main_process():
        show(findings(notes))
    with resumable(path, url), user_errors(context, *FAILURES), progress() as on_progress:
        record = job.run(on_progress)
    if is_main_process():
        from beliefmatch.report.comparison import run_tables
        from beliefmatch.report.table import to_rich

        tables = run_tables(record)
        found = _run_findings(record)
        shown_tables = tables if params["verbose"] else tables[:1]
        show(*map(to_rich, shown_tables), *([findings(found)] if found else []))
        typer.echo(shown)


@opt.with_options(opt.RunOptions)
def compare(
    context: typer.Context,
    methods: opt.Methods = DEFAULT_METHODS,
    *,
    seed: opt.FirstSeed = 0,
    seeds: opt.MethodSeeds = 3,
    jobs: opt.Jobs = None,
    on: opt.On = "local",
    out: opt.OutPlace = "runs/compare",
    dry_run: opt.DryRun = False,
    verbose: opt.Verbose = False,
) -> None:
    """Train several methods in the same way and compare them.

    Trains on the embedded digits unless --data is given. The directory holds every run, all numbers as JSON,
    CSV and Markdown, figures, and report.html, which works offline. The same command continues where it was
    stopped; finished runs are not repeated.
    """
    with output(context, out) as (path, url):
        _compare(context, methods, path, url)


def _compare(context: typer.Context, methods: str, path: Path, url: str | None) -> None:
    """`compare` in a local directory."""
    params = context.params
    seed, seeds, jobs, dry_run = (params[name] for name in ("seed", "seeds", "jobs", "dry_run"))
    with user_errors(context):
        for name, number in (("jobs", jobs), ("seeds", seeds)):
            if number is not None and number < 1:
                raise fail("compare", f"`{name}` must be at least 1, got {number}.")
        from beliefmatch import kernels
        from beliefmatch.experiments.build import is_main_process
        from beliefmatch.experiments.compare import Comparison
        from beliefmatch.experiments.executors import workers_on
        from beliefmatch.experiments.grid import resources_of
        from beliefmatch.experiments.method_spec import parse_methods, with_kl_weight

        kernels.status()  # fails if BELIEFMATCH_KERNEL asks for one that does not exist
        settings, kl_weight_value, notes = _settings(context)
        specs = parse_methods(methods)
        if kl_weight_value is not None:
            specs = with_kl_weight(specs, kl_weight_value)
        all_seeds = list(range(seed, seed + seeds))
        workers = workers_on(params["on"], jobs=jobs)
        job = Comparison(settings, specs, seeds=all_seeds, directory=path, url=url, workers=workers)
        require_packages(context, "terminal", "report")
        notes = _notes(job.first, notes)
        _warn_of_single_rows(context, job.first)
        if not dry_run:
            ready_directory(f"{path}" if url else params["out"], caller="compare")
    if dry_run:
        costs = job.estimates()
        if is_main_process():
            at_a_time = workers.describe(resources_of(job.first))
            for config, cost in costs:
                _echo_config(config, cost)
                typer.echo()
            typer.echo("\n".join(f"# {line}" for line in (*notes, f"{job.cells} runs, {at_a_time}")))
        return
    if notes and is_main_process():
        show(findings(notes))
    from beliefmatch.report import comparison as report
    from beliefmatch.report.table import to_rich

    with resumable(path, url), user_errors(context, *FAILURES), progress() as on_progress:
        record, evaluations = job.run(on_progress, command=["beliefmatch", *context.obj])
        if not is_main_process():
            return
        on_progress(1.0, "report")
        files = report.comparison_files(record, evaluations)
    try:  # files first: the reader of the output may close the pipe
        with write_errors(context, path):
            atomic_write_dir(path, files, keep=".json")
    finally:
        verbose = params["verbose"]
        tables = report.comparison_tables(record) if verbose else [report.comparison_summary(record)]
        show(*map(to_rich, tables), findings(report.comparison_findings(record)))
    typer.echo(path / "report.html" if url is None else f"{url}/report.html")


def _settings(context: typer.Context) -> tuple[dict[str, Any], float | str | None, tuple[str, ...]]:
    """Settings as `config_from` takes them: recipe, options, --set; λ, which is a method's; and notes."""
    from beliefmatch.experiments.choose_recipe import ChosenRecipe, choose_recipe
    from beliefmatch.experiments.config import merged, overridden, recipe
    from beliefmatch.experiments.method_spec import require_no_semi_settings
    from beliefmatch.semi.config import WITHOUT

    given, params = opt.settings_of(context), context.params
    kl_weight = given.pop("kl_weight", None)
    if given.get("semi", {}).get("kind") == WITHOUT:
        require_no_semi_settings(given["semi"])
        given["semi"] = None
    single = params["set_"] or []
    if params["recipe"] is not None:
        chosen = ChosenRecipe(params["recipe"], {}, ())
    else:
        everything = overridden(given, single)
        with naming_arguments("data", path="name", directory="name"):
            chosen = choose_recipe(
                everything.get("data", {}),
                accelerator=everything.get("engine", {}).get("accelerator", "auto"),
                epochs=everything.get("training", {}).get("epochs"),
            )
    with naming_arguments("train", "recipe", name_or_path="recipe"):
        base = merged(recipe(chosen.name), chosen.changes)
    return overridden(merged(base, given), single), kl_weight, chosen.notes


def _notes(config: "RunConfig", notes: tuple[str, ...]) -> list[str]:
    """What was chosen for the data, and what their columns were taken for."""
    from beliefmatch.experiments.build import dataset

    return [*dataset(config.data).facts.get("notes", ()), *notes]


def _warn_of_single_rows(context: typer.Context, config: "RunConfig") -> None:
    """Warn of classes with one training example, unless so few labels were asked for."""
    from beliefmatch.experiments.build import dataset, is_main_process
    from beliefmatch.report.text import count_text, listed

    data = dataset(config.data)
    counts = data.train.targets.bincount(minlength=len(data.class_names)).tolist()
    single = [name for name, count in zip(data.class_names, counts, strict=True) if count == 1]
    if single and config.data.labels is None and is_main_process():
        others = [count_text(len(single) - _SHOWN, "other")] if len(single) > _SHOWN else []
        which = "class" if len(single) == 1 else "each of the classes"
        which = f"{which} {listed([*single[:_SHOWN], *others])}"
        fact = f"`data` has 1 example of {which} among {sum(counts):,} to train on; too few to learn from."
        show_warning(context, ArgumentWarning("train", fact))


def _run_config(settings: dict[str, Any], method: str | None, kl_weight: float | str | None) -> "RunConfig":
    from beliefmatch.experiments.config import config_from
    from beliefmatch.experiments.method_spec import parse_methods, with_spec

    if method is not None:
        spec, *others = parse_methods(method, caller="train", argument="method")
        if others:
            raise fail("train", f"`method` must be one method, got {method!r}.")
        settings = with_spec(settings, spec)
    if kl_weight is not None:
        section = settings["method"]
        options = {**section.get("options", {}), "kl_weight": kl_weight}
        settings = {**settings, "method": {**section, "options": options}}
    return config_from(settings)


def _echo_config(config: "RunConfig", cost: "Estimate", *, runs: int = 1, notes: Sequence[str] = ()) -> None:
    """Print the configuration as YAML, which `--recipe` takes, and its cost as comments below it."""
    from beliefmatch.experiments.config import fingerprint, to_mapping
    from beliefmatch.experiments.yaml_files import as_yaml

    typer.echo(as_yaml(to_mapping(config)).rstrip())
    seconds = cost.train_seconds * runs
    if seconds < 120:
        time = f"{seconds:.0f} s"
    else:
        time = f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
    lines = (
        *notes,
        f"configuration {fingerprint(config)}",
        f"runs {runs}, networks {runs * cost.networks}, parameters of each {cost.parameters:,}",
        f"steps of one network {cost.steps:,}, {cost.step_seconds * 1000:.0f} ms each",
        f"time about {time}, measured in a few steps on this machine",
        f"memory about {_size(cost.memory)} for network and batch, {_size(cost.data_memory)} for images",
    )
    typer.echo("\n".join(f"# {line}" for line in lines))


def _size(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def _run_findings(record: "RunRecord") -> list[str]:
    """OOD detection, and the value that was chosen on validation images."""
    found = [
        f"OOD set {one.name}: AUROC {100 * one.auroc[_OOD_SCORE]:.1f} % by predictive entropy."
        for one in record.ood
    ]
    chosen = [trial for trial in record.search if trial.chosen]
    return found + [
        f"{one.option} = {one.value:g} was chosen from {len(record.search)} values on validation images."
        for one in chosen
    ]
