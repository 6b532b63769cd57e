"""Many runs: each cell of a grid once, by workers that may run several at a time, here or on a cluster.

A cell is finished when its directory holds a record of the same configuration; the others resume from their
last checkpoint, so the same command continues a grid that was stopped. `attempt_cells` accepts trainings that
diverge, and keeps that as their result.
"""

import socket
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from beliefmatch._errors import fail
from beliefmatch._files import EnvironmentFailure, atomic_write
from beliefmatch._utils import OnProgress
from beliefmatch.data.config import DataConfig
from beliefmatch.data.sources import Dataset, MemorySource
from beliefmatch.experiments.build import dataset, keep_dataset
from beliefmatch.experiments.config import RunConfig, fingerprint
from beliefmatch.experiments.cost import gpu_share
from beliefmatch.experiments.executors import LocalWorkers, Resources, Task, Workers, run_tasks
from beliefmatch.experiments.records import Diverged, RunRecord
from beliefmatch.experiments.run import RunResult, execute_run, finished
from beliefmatch.experiments.run_dir import RunDirectory
from beliefmatch.experiments.storage import RemoteDirectory, mirrored, without_networks
from beliefmatch.loss import LowTargetConfidence

__all__ = [
    "Cell",
    "CellOutcome",
    "OnCell",
    "attempt_cells",
    "report_cells",
    "resources_of",
    "run_cells",
]

CellOutcome = RunRecord | Diverged
"""How a cell ended."""

OnCell = Callable[[int, float, str], None]
"""Called with (index of the cell, fraction, description)."""

_SHARED_BYTES = 4 << 30  # of images that go to the nodes of a cluster; more are read there
_LINES = 8  # cells at work that a description lists


@dataclass(frozen=True)
class Cell:
    """One run of a grid and its directory."""

    config: RunConfig
    directory: Path
    name: str = "run"
    """As progress shows it, and the dashboard of a cluster."""
    may_diverge: bool = False
    """Whether a training that diverges is a result rather than an error. The warning about a prior that
    outweighs the labels, which may be the subject of the run, is then left out."""
    evaluated: bool = False
    """Whether the test predictions are evaluated in full while they are in memory."""
    url: str | None = None
    """Where the run is kept, if not in its directory, which then gets all but the networks."""


def run_cells(
    cells: Sequence[Cell], *, workers: Workers | None = None, on_cell: OnCell | None = None
) -> list[RunResult]:
    """Run every cell that is not finished; the results of all cells, in their order.

    Args:
        cells: cells with directories of their own.
        workers: where they run; one after the other in this process if not given.
        on_cell: called with (index, fraction, description).
    """
    found = _results([replace(cell, may_diverge=False) for cell in cells], workers, on_cell)
    return [result for result in found if isinstance(result, RunResult)]


def attempt_cells(
    cells: Sequence[Cell], *, workers: Workers | None = None, on_cell: OnCell | None = None
) -> list[CellOutcome]:
    """The records of `run_cells`; a cell that may diverge, and does, gives `Diverged`."""
    found = _results(cells, workers, on_cell)
    return [result.record if isinstance(result, RunResult) else result for result in found]


def report_cells(
    on_progress: OnProgress, names: Sequence[str], *, before: int = 0, total: int | None = None
) -> OnCell:
    """A callback that turns the progress of single cells into that of all runs.

    Args:
        on_progress: called with (fraction of all runs, a line for each cell at work).
        names: names of the cells.
        before: number of runs that earlier stages have finished.
        total: number of runs of all stages; those before and the cells if not given.
    """
    fractions, runs = [0.0] * len(names), max(total or 0, before + len(names))
    at_work: dict[int, str] = {}

    def on_cell(index: int, fraction: float, description: str) -> None:
        fractions[index], line = fraction, f"{names[index]}: {description}"
        at_work.pop(index, None)
        if fraction < 1:
            at_work[index] = line
        lines = [at_work[one] for one in sorted(at_work)] or [line]
        hidden = [f"and {len(lines) - _LINES} more"] if len(lines) > _LINES else []
        on_progress((before + sum(fractions)) / runs, "\n".join(lines[:_LINES] + hidden))

    return on_cell


def resources_of(config: RunConfig) -> Resources:
    """What a run takes of a machine: its threads, and a GPU unless it is to run on a CPU."""
    engine = config.engine
    is_one_process = engine.devices in ("auto", "1")
    return Resources(
        cores=engine.threads if is_one_process else None,
        gpus=0.0 if engine.accelerator == "cpu" else 1.0,
        is_gpu_optional=engine.accelerator == "auto",
    )


def _results(
    cells: Sequence[Cell], workers: Workers | None, on_cell: OnCell | None
) -> list[RunResult | Diverged]:
    report = on_cell or (lambda index, fraction, description: None)
    results: dict[int, RunResult | Diverged] = {}
    for index, cell in enumerate(cells):
        record = finished(cell.directory, cell.config)
        if record is not None:
            results[index] = RunResult(record)
        elif cell.may_diverge and (diverged := RunDirectory(cell.directory).diverged()) is not None:
            results[index] = diverged
    for index in results:
        report(index, 1.0, "finished before")
    left = [index for index in range(len(cells)) if index not in results]
    workers = workers or LocalWorkers(1)
    tasks = _tasks([cells[index] for index in left], workers)
    ran = run_tasks(
        tasks, workers, lambda index, fraction, description: report(left[index], fraction, description)
    )
    results |= dict(zip(left, ran, strict=True))
    for cell in (cells[index] for index in left):
        if cell.url is not None:
            RemoteDirectory(cell.url).pull(cell.directory, without_networks)
    return [results[index] for index in range(len(cells))]


def _tasks(cells: Sequence[Cell], workers: Workers) -> list[Task]:
    """A task for each cell. On other machines it has an absolute path, and data in memory come with it."""
    if not workers.is_remote:
        return [Task(cell.name, run_cell, (cell,), resources_of(cell.config)) for cell in cells]
    tasks, shared = [], dict[DataConfig, Any]()
    for cell in cells:
        _require_one_process(cell.config)
        directory, settings = cell.directory.absolute(), cell.config.data
        if settings not in shared:
            shared[settings] = _shared_data(settings, workers)
        if cell.url is None:
            directory.mkdir(parents=True, exist_ok=True)  # by which a node knows that it sees the same files
        resources = replace(resources_of(cell.config), gpus=gpu_share(cell.config))
        arguments = replace(cell, directory=directory), shared[settings]
        tasks.append(Task(cell.name, run_remote_cell, arguments, resources))
    return tasks


def _require_one_process(config: RunConfig) -> None:
    engine = config.engine
    if engine.devices not in ("auto", "1") or engine.nodes != 1:
        got = f"{engine.devices} on {engine.nodes} machines; one training on several runs by torchrun"
        raise fail("run", f"`engine.devices` must be 1 for each run of a cluster, got {got}.")


def _shared_data(settings: DataConfig, workers: Workers) -> Any:
    """The data for all nodes if they are in memory here; else None, and each node reads them by name."""
    data = dataset(settings)
    sources = (data.train, data.validation, data.test, data.unlabelled)
    held = [one for one in sources if isinstance(one, MemorySource)]
    is_small = sum(one.pixels.nbytes for one in held) <= _SHARED_BYTES
    return workers.share(data) if is_small and len(held) == sum(one is not None for one in sources) else None


def run_remote_cell(cell: Cell, data: Dataset | None, *, on_progress: OnProgress) -> RunResult | Diverged:
    """`run_cell` on a node of a cluster, with data that came with it."""
    if cell.url is None and not cell.directory.is_dir():
        wanted = "a directory that all nodes see, or a URL such as s3://BUCKET/PATH"
        got = f"{cell.directory}, which {socket.gethostname()} does not"
        raise fail("run", f"`out` must be {wanted}, got {got}.", EnvironmentFailure)
    if data is not None:
        keep_dataset(cell.config.data, data)
    return run_cell(cell, on_progress=on_progress)


def run_cell(cell: Cell, *, on_progress: OnProgress) -> RunResult | Diverged:
    """Execute one cell, in whatever process an executor has chosen."""
    if cell.url is not None:
        with mirrored(cell.url) as directory:
            return run_cell(replace(cell, directory=directory, url=None), on_progress=on_progress)
    try:
        with warnings.catch_warnings():
            if cell.may_diverge:
                warnings.simplefilter("ignore", LowTargetConfidence)
            return execute_run(cell.config, cell.directory, evaluated=cell.evaluated, on_progress=on_progress)
    except FloatingPointError as error:
        if not cell.may_diverge:
            raise
        digest = dataset(cell.config.data).facts.get("digest")
        diverged = Diverged(fingerprint(cell.config), f"{error}", digest)
        cell.directory.mkdir(parents=True, exist_ok=True)
        atomic_write(RunDirectory(cell.directory).diverged_file, diverged.to_json().encode())
        on_progress(1.0, "diverged")
        return diverged
