"""What the terminal shows of a configuration and of a run."""

from pathlib import Path

import typer

from beliefmatch.cli.terminal import show
from beliefmatch.experiments.config import RunConfig, fingerprint, to_mapping
from beliefmatch.experiments.cost import Estimate
from beliefmatch.experiments.records import RunRecord
from beliefmatch.experiments.yaml_files import as_yaml
from beliefmatch.report.run_tables import run_tables

__all__ = ["duration", "show_config", "show_run"]


def show_config(config: RunConfig, cost: Estimate, *, runs: int = 1) -> None:
    """The configuration as YAML, which `--recipe` takes, and below it what it will cost."""
    typer.echo(as_yaml(to_mapping(config)).rstrip())
    networks = runs * cost.networks
    lines = (
        f"configuration {fingerprint(config)}",
        f"runs {runs}, networks in all {networks}, parameters of one {cost.parameters:,}",
        f"steps of one network {cost.steps:,} of {cost.step_seconds * 1000:.0f} ms",
        f"time about {duration(cost.train_seconds * runs)}, from a few steps on this machine",
        f"memory about {_size(cost.memory)} for network and batch, {_size(cost.data_memory)} for images",
    )
    typer.echo("\n".join(f"# {line}" for line in lines))


def show_run(record: RunRecord, directory: Path) -> None:
    """Scores and costs of a run, and where it is."""
    show(*run_tables(record))
    typer.echo(directory)


def duration(seconds: float) -> str:
    """Seconds in the units people configuration with.

    >>> duration(42), duration(4000), duration(300000)
    ('42 s', '67 min', '83.3 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _size(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
