"""`beliefmatch reproduce`: the paper's tables and figures, each by its name."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from beliefmatch._environment import needs
from beliefmatch._files import EnvironmentFailure, atomic_write, atomic_write_dir, ready_directory
from beliefmatch.cli.errors import BAD_INPUT, OUTSIDE, UserError, resumable, user_errors
from beliefmatch.cli.run_options import Settings
from beliefmatch.reproduce import REPRODUCTIONS

if TYPE_CHECKING:
    from beliefmatch.reproduce.config import ReproduceConfig
    from beliefmatch.reproduce.record import ReproductionRecord
    from beliefmatch.reproduce.runner import Runner

__all__ = ["reproduce"]


def reproduce(
    context: typer.Context,
    id_: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help=f"{', '.join(REPRODUCTIONS)}; all for every one; list to see what they are and cost.",
        ),
    ] = "list",
    scale: Annotated[
        str,
        typer.Option(
            metavar="paper|cpu|tiny",
            help="The paper's protocol; the same made small for two cores; or a moment, to see that it runs.",
        ),
    ] = "paper",
    data_dir: Annotated[
        str | None,
        typer.Option(
            metavar="DIRECTORY", help="Where the datasets lie, by their names; from the hub if not given."
        ),
    ] = None,
    out: Annotated[
        str,
        typer.Option(metavar="DIRECTORY", help="For the runs, which all share, and what is read of them."),
    ] = "runs/reproduce",
    seeds: Annotated[
        int | None,
        typer.Option(
            help="Runs of each method; the paper's or the scale's if not given.", show_default=False
        ),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(help="Runs at a time; as the machine has cores for if not given.")
    ] = None,
    set_: Settings = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show every configuration, how many runs, and do nothing.")
    ] = False,
) -> None:
    """Run a table or figure of the paper and compare the numbers.

    Ends with one table, figures, and a record of everything. The same command goes on where it was stopped;
    no run is made twice, and all tables and figures share them.
    """
    with user_errors(*BAD_INPUT, EnvironmentFailure, command=context):
        from beliefmatch.reproduce.config import ReproduceConfig

        _require_extras()
        if not out.strip():
            raise ValueError("reproduce: `out` must be a directory, got an empty name.")
        config = ReproduceConfig(scale, Path(out), data_dir, tuple(set_ or ()), seeds, jobs)
        runners = _runners(id_, config)
        _require_use(id_, runners, config)
        if id_ == "list":
            _show_list(config)
        elif dry_run:
            _show_configs(runners)
    if id_ != "list" and not dry_run:
        _run_all(context, runners, config)


def _require_extras() -> None:
    with needs("rich", extra="cli", caller="beliefmatch reproduce"):
        import rich  # noqa: F401
    with needs("matplotlib", extra="report", caller="beliefmatch reproduce"):
        import matplotlib  # noqa: F401


def _runners(name: str, config: "ReproduceConfig") -> list["Runner"]:
    from beliefmatch._utils import require_name
    from beliefmatch.reproduce import runner_for
    from beliefmatch.reproduce.scales import SCALES

    require_name("reproduce", "scale", config.scale, SCALES)
    names = REPRODUCTIONS if name in ("all", "list") else [name]
    return [runner_for(one, config) for one in names]


def _require_use(name: str, runners: list["Runner"], config: "ReproduceConfig") -> None:
    """Every setting must be one of what is run; a ValueError says where it belongs."""
    for setting in config.settings:
        if not any(runner.takes(setting) for runner in runners):
            own = (
                "those of a transfer, as transfer.KEY=VALUE"
                if runners[0].takes("transfer.")
                else "those of training"
            )
            raise ValueError(
                f"reproduce: `set` must be one of the settings of {name}, {own}, got {setting!r}."
            )


def _show_list(config: "ReproduceConfig") -> None:
    from dataclasses import replace

    from beliefmatch.cli.terminal import show
    from beliefmatch.report.reproduction import Listed, list_tables

    scales = {scale: _runners("all", replace(config, scale=scale)) for scale in ("paper", "cpu")}
    listed = [
        Listed(
            id=paper.id,
            title=paper.reproduction.title,
            runs=(len(paper.costs()), len(cpu.costs())),
            seconds=(_sum(paper.costs()), _sum(cpu.costs())),
        )
        for paper, cpu in zip(scales["paper"], scales["cpu"], strict=True)
    ]
    paper, cpu = (_together(runners) for runners in scales.values())
    show(*list_tables(listed, Listed("all", "", (paper[0], cpu[0]), (paper[1], cpu[1]))))


def _together(runners: list["Runner"]) -> tuple[int, float | None]:
    """Different runs, and the seconds of those that can be told."""
    costs = {name: seconds for runner in runners for name, seconds in runner.costs().items()}
    return len(costs), _sum({name: seconds for name, seconds in costs.items() if seconds is not None})


def _sum(costs: "dict[str, float | None]") -> float | None:
    """None if one of them cannot be told."""
    told = [seconds for seconds in costs.values() if seconds is not None]
    return sum(told) if len(told) == len(costs) else None


def _show_configs(runners: list["Runner"]) -> None:
    from beliefmatch.experiments.yaml_files import as_yaml

    for runner in runners:
        about = runner.reproduction
        typer.echo(f"# {about.id} ({about.place}): {about.title}\n# {runner.scale_words}")
        for key, config in runner.described().items():
            typer.echo(f"---\n# {key}, seeds 0 to {len(runner.seeds) - 1}")
            typer.echo(as_yaml(config).rstrip())
        typer.echo(f"# runs in all {len(runner.costs())}, of which {runner.finished()} are finished")
        typer.echo("\n".join(f"# differs from the paper: {sentence}" for sentence in runner.differences))


def _run_all(command: typer.Context, runners: list["Runner"], config: "ReproduceConfig") -> None:
    """One, or all: then those that cannot be run are left out, and told.

    That data are missing is no failure of all the others; anything else is, once they are done.
    """
    ready, left_out, failed = _ready(command, runners)
    with user_errors(*BAD_INPUT, command=command):
        ready_directory(f"{config.directory}", caller="reproduce")
    records = {runner.id: _run(command, runner) for runner in ready}
    if len(runners) > 1:
        _summarise(command, runners, records, left_out, config)
    if failed:
        raise UserError(f"beliefmatch reproduce: {', '.join(failed)} could not be run; see above why.")


def _ready(
    command: typer.Context, runners: list["Runner"]
) -> tuple[list["Runner"], dict[str, str], list[str]]:
    """What can be run, why others cannot, and which of these do not just lack data."""
    from beliefmatch import kernels
    from beliefmatch.reproduce.dataset_paths import MissingDataError

    ready, left_out, failed = [], {}, []
    for runner in runners:
        try:
            with user_errors(*BAD_INPUT, *OUTSIDE, command=command):
                kernels.status()  # asked for one that there is?
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
    return ready, left_out, failed


def _run(command: typer.Context, runner: "Runner") -> "ReproductionRecord":
    from beliefmatch.cli.terminal import share_done, show
    from beliefmatch.report.reproduction import reproduction_files, reproduction_tables

    with resumable(), user_errors(*OUTSIDE, command=command), share_done() as tell:
        record = runner.run(
            lambda share, doing: tell(share, f"{runner.id}: {doing}"), command=_repeat(command)
        )
        files = reproduction_files(record)
        with _writing(runner.directory):
            runner.directory.mkdir(parents=True, exist_ok=True)
            atomic_write_dir(runner.directory, files)
    show(*reproduction_tables(record))
    for name, _ in files:
        typer.echo(runner.directory / name)
    return record


@contextmanager
def _writing(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        remedy = "the runs are kept; mend that, and the same command reads them again"
        raise EnvironmentFailure(
            f"reproduce: cannot write to {directory} ({error.strerror or error}); {remedy}."
        ) from error


def _repeat(command: typer.Context) -> list[str]:
    """The command, without where things lie on this machine."""
    aside, kept = {"--data-dir": "DATA", "--out": None, "--jobs": None}, ["beliefmatch"]
    words = iter(command.obj)
    for word in words:
        name, equals, _ = word.partition("=")
        if name not in aside:
            place = word.rpartition("=")[2]
            kept.append(word.replace(place, Path(place).name) if Path(place).is_absolute() else word)
            continue
        if not equals:
            next(words, None)
        shown = aside[name]
        kept += [] if shown is None else [name, shown]
    return kept


def _summarise(
    command: typer.Context,
    runners: list["Runner"],
    records: dict[str, "ReproductionRecord"],
    left_out: dict[str, str],
    config: "ReproduceConfig",
) -> None:
    """One page, also with what was run before and could not be looked at again."""
    from beliefmatch.report.reproduction import summary_markdown

    known = {runner.id: records.get(runner.id) or _kept(runner) for runner in runners}
    shown = [record for record in known.values() if record is not None]
    earlier = "; what is shown above is of an earlier call"
    missing = {name: f"{why}{earlier if known[name] else ''}" for name, why in left_out.items()}
    place = config.directory / config.scale / "summary.md"
    with user_errors(*OUTSIDE, command=command):
        atomic_write(place, summary_markdown(shown, missing).encode())
    typer.echo(place)


def _kept(runner: "Runner") -> "ReproductionRecord | None":
    """The record that an earlier call left, if it can be read."""
    from beliefmatch.reproduce.record import ReproductionRecord

    try:
        return ReproductionRecord.from_json((runner.directory / "reproduction.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None
