"""`beliefmatch reproduce`: the tables and figures of the paper, each by its name."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from beliefmatch._errors import fail
from beliefmatch._files import EnvironmentFailure, atomic_write, atomic_write_dir, ready_directory
from beliefmatch.cli import options as opt
from beliefmatch.cli.console import (
    BAD_INPUT,
    FAILURES,
    UserError,
    findings,
    output,
    progress,
    require_packages,
    resumable,
    show,
    user_errors,
)
from beliefmatch.reproduce import REPRODUCTIONS

if TYPE_CHECKING:
    from beliefmatch.reproduce.config import ReproduceConfig
    from beliefmatch.reproduce.record import ReproductionRecord
    from beliefmatch.reproduce.runner import Runner

__all__ = ["reproduce"]


def reproduce(
    context: typer.Context,
    id_: opt.ReproductionId = "list",
    scale: opt.Scale = "paper",
    data_dir: opt.DataDir = None,
    out: opt.OutPlace = "runs/reproduce",
    seeds: opt.ReproductionSeeds = None,
    jobs: opt.Jobs = None,
    on: opt.On = "local",
    set_: opt.Set = None,
    dry_run: opt.DryRun = False,
    verbose: opt.Verbose = False,
) -> None:
    """Run a table or figure of the paper and compare the numbers.

    Prints the paper's numbers next to ours and writes them with figures and a record. The same command
    continues where it was stopped; all tables and figures share their runs, and no run is repeated.
    """
    with output(context, out) as (path, url):
        _reproduce(context, id_, path, url)


def _reproduce(context: typer.Context, id_: str, path: Path, url: str | None) -> None:
    """`reproduce` in a local directory."""
    params = context.params
    with user_errors(context, *BAD_INPUT, EnvironmentFailure):
        from beliefmatch._config import from_mapping
        from beliefmatch.reproduce.config import ReproduceConfig

        require_packages(context, "terminal", "figures")
        names = ("scale", "data_dir", "seeds", "jobs", "on")
        given = {**{name: params[name] for name in names}, "settings": params["set_"] or []}
        given |= {"out": f"{path}" if url else params["out"], "url": url}
        config = from_mapping(ReproduceConfig, given, caller="reproduce")
        runners = _runners(id_, config)
        used = {bool(runner.reproduction.transfers) for runner in runners}
        for setting in config.settings:
            is_transfer = setting not in config.settings_of(transfers=False)
            if is_transfer not in used:
                own = "those of training" if is_transfer else "those of a transfer, as transfer.KEY=VALUE"
                raise fail(
                    "reproduce", f"`set` must be one of the settings of {id_}, {own}, got {setting!r}."
                )
        if id_ == "list":
            _show_list(config)
        elif params["dry_run"]:
            _echo_configs(runners)
    if id_ != "list" and not params["dry_run"]:
        _run_all(context, runners, config, params["verbose"])


def _runners(name: str, config: "ReproduceConfig") -> list["Runner"]:
    from beliefmatch.reproduce import runner_for

    names = REPRODUCTIONS if name in ("all", "list") else [name]
    return [runner_for(one, config) for one in names]


def _show_list(config: "ReproduceConfig") -> None:
    """Titles, numbers of runs and rough times of all reproductions at both scales."""
    from msgspec.structs import replace

    from beliefmatch.report.reproduction import Listed, list_tables
    from beliefmatch.reproduce import reproduction

    paper, cpu = (
        [runner.costs() for runner in _runners("all", replace(config, scale=scale))]
        for scale in ("paper", "cpu")
    )
    listed = [
        Listed(name, reproduction(name).title, (len(a), len(b)), (_seconds(a), _seconds(b)))
        for name, a, b in zip(REPRODUCTIONS, paper, cpu, strict=True)
    ]
    a, b = (
        {run: cost for of in costs for run, cost in of.items()} for costs in (paper, cpu)
    )  # each run once
    seconds = tuple(sum(cost or 0.0 for cost in costs.values()) for costs in (a, b))
    show(*list_tables(listed, Listed("all", "", (len(a), len(b)), (seconds[0], seconds[1]))))


def _seconds(costs: "dict[str, float | None]") -> float | None:
    """The sum; None if one of them is not known."""
    known = [seconds for seconds in costs.values() if seconds is not None]
    return sum(known) if len(known) == len(costs) else None


def _echo_configs(runners: list["Runner"]) -> None:
    from beliefmatch.experiments.yaml_files import as_yaml

    for runner in runners:
        about = runner.reproduction
        typer.echo(f"# {about.id} ({about.place}): {about.title}\n# {runner.scale_words()}")
        for key, config in runner.described().items():
            typer.echo(f"---\n# {key}, seeds 0 to {len(runner.seeds) - 1}")
            typer.echo(as_yaml(config).rstrip())
        typer.echo(f"# runs in all {len(runner.costs())}, of which {runner.finished()} are finished")
        typer.echo("\n".join(f"# differs from the paper: {sentence}" for sentence in runner.differences()))


def _run_all(
    context: typer.Context, runners: list["Runner"], config: "ReproduceConfig", verbose: bool
) -> None:
    """Run one reproduction, or all that can be run.

    Of all, those that cannot be run are left out with a line on stderr. Missing data are no failure of the
    others; anything else ends with an error once they are done.
    """
    from beliefmatch import kernels
    from beliefmatch.reproduce.dataset_paths import MissingDataError

    ready, left_out, failed = [], {}, []
    for runner in runners:
        try:
            with user_errors(context, *BAD_INPUT, *FAILURES):
                kernels.status()  # fails if BELIEFMATCH_KERNEL asks for one that does not exist
                runner.check()
            ready.append(runner)
        except UserError as error:
            left_out[runner.id] = f"{error}"
            if not isinstance(error.__cause__, MissingDataError):
                failed.append(runner.id)
            if len(runners) > 1:
                typer.echo(f"left out: {runner.id}: {error}", err=True)
    if not ready:
        raise UserError(next(iter(left_out.values())))
    with user_errors(context):
        ready_directory(config.out, caller="reproduce")
    is_alone = len(runners) == 1
    records = {runner.id: _run(context, runner, is_alone=is_alone, verbose=verbose) for runner in ready}
    if not is_alone:
        _write_summary(context, runners, records, left_out, config)
    if failed:
        raise UserError(f"{context.command_path}: {', '.join(failed)} could not be run; see above why.")


def _run(context: typer.Context, runner: "Runner", *, is_alone: bool, verbose: bool) -> "ReproductionRecord":
    from beliefmatch.report.reproduction import (
        reproduction_files,
        reproduction_findings,
        reproduction_tables,
    )

    with (
        resumable(runner.runs_directory, runner.config.url),
        user_errors(context, *FAILURES),
        progress() as on_progress,
    ):
        record = runner.run(
            lambda fraction, description: on_progress(fraction, f"{runner.id}: {description}"),
            command=_portable_command(context.obj),
        )
        files = reproduction_files(record)
        try:
            runner.directory.mkdir(parents=True, exist_ok=True)
            atomic_write_dir(runner.directory, files)
        except OSError as error:
            reason, remedy = error.strerror or error, "the runs are kept; repair that and repeat the command"
            raise fail(
                "reproduce", f"cannot write to {runner.directory} ({reason}); {remedy}.", EnvironmentFailure
            ) from error
    tables, page = reproduction_tables(record), "summary.md"
    if verbose:
        show(*tables)
        paths = [runner.directory / name for name, _ in files if name != page]
        typer.echo("\n".join(_shown(one, runner.config) for one in paths))
    elif is_alone:
        show(*tables[:2], findings(reproduction_findings(record)))
    typer.echo(_shown(runner.directory / page, runner.config))
    return record


def _portable_command(arguments: list[str]) -> list[str]:
    """The command without local paths, so that others can repeat it."""
    replaced, kept = (
        {"--data-dir": ["--data-dir", "DATA"], "--out": [], "--jobs": [], "--on": []},
        ["beliefmatch"],
    )
    words = iter(arguments)
    for word in words:
        name, equals, _ = word.partition("=")
        if name in replaced:
            kept += replaced[name]
            if not equals:
                next(words, None)
        else:
            path = word.rpartition("=")[2]
            kept.append(word.replace(path, Path(path).name) if Path(path).is_absolute() else word)
    return kept


def _write_summary(
    context: typer.Context,
    runners: list["Runner"],
    records: dict[str, "ReproductionRecord"],
    left_out: dict[str, str],
    config: "ReproduceConfig",
) -> None:
    """One page of all reproductions, with earlier records of those that could not be run now."""
    from beliefmatch.report.reproduction import overview_table, summary_markdown
    from beliefmatch.reproduce.record import ReproductionRecord

    known = dict(records)
    for runner in runners:
        if runner.id not in known:
            try:
                text = (runner.directory / "reproduction.json").read_text("utf-8")
                known[runner.id] = ReproductionRecord.from_json(text)
            except (OSError, ValueError):
                continue
    shown = [known[runner.id] for runner in runners if runner.id in known]
    earlier = "; what is shown above is of an earlier call"
    missing = {name: f"{why}{earlier if name in known else ''}" for name, why in left_out.items()}
    path = Path(config.out) / config.scale / "summary.md"
    with user_errors(context, *FAILURES):
        atomic_write(path, summary_markdown(shown, missing).encode())
    show(overview_table(list(records.values())))
    typer.echo(_shown(path, config))


def _shown(path: Path, config: "ReproduceConfig") -> str:
    """Where the user finds a file of the output."""
    return f"{path}" if config.url is None else f"{config.url}/{path.relative_to(config.out).as_posix()}"
