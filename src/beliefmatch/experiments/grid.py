"""Many runs: each cell of a grid once, by an executor that may run several at a time.

A cell is finished when its directory holds a record of the same configuration; the others resume from their
last checkpoint, so the same command continues a grid that was stopped. `attempt_cells` accepts trainings that
diverge, and keeps that as their result.
"""

import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import active_children, get_context
from pathlib import Path
from queue import Empty
from typing import Any, Protocol

import torch

from beliefmatch._errors import fail
from beliefmatch._files import EnvironmentFailure, atomic_write
from beliefmatch._utils import OnProgress
from beliefmatch.experiments.build import dataset
from beliefmatch.experiments.config import RunConfig, fingerprint
from beliefmatch.experiments.records import Diverged, RunRecord
from beliefmatch.experiments.run import RunResult, execute_run, finished
from beliefmatch.experiments.run_dir import RunDirectory
from beliefmatch.loss import LowTargetConfidence

__all__ = [
    "Cell",
    "CellOutcome",
    "Executor",
    "OnCell",
    "attempt_cells",
    "default_jobs",
    "report_cells",
    "run_cells",
]

CellOutcome = RunRecord | Diverged
"""How a cell ended."""

OnCell = Callable[[int, float, str], None]
"""Called with (index of the cell, fraction, description)."""

_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Cell:
    """One run of a grid and its directory."""

    config: RunConfig
    directory: Path
    may_diverge: bool = False
    """Whether a training that diverges is a result rather than an error. The warning about a prior that
    outweighs the labels, which may be the subject of the run, is then left out."""
    evaluated: bool = False
    """Whether the test predictions are evaluated in full while they are in memory."""


class Executor(Protocol):
    """Where cells run; the engine of a cluster can stand behind the same three methods."""

    def submit(self, index: int, cell: Cell) -> None:
        """Hand over a cell, which is known by its index from now on."""
        ...

    def progress(self, on_cell: OnCell) -> Iterator[tuple[int, RunResult | Diverged]]:
        """Report progress and yield the result of each cell as it ends; raise the error of one that fails."""
        ...

    def cancel(self, *, interrupt: bool) -> None:
        """Drop the cells that have not begun and wait for the others, which end early if `interrupt`."""
        ...


def run_cells(cells: Sequence[Cell], *, jobs: int = 1, on_cell: OnCell | None = None) -> list[RunResult]:
    """Run every cell that is not finished; the results of all cells, in their order.

    Args:
        cells: cells with directories of their own.
        jobs: number of processes. More than one are spawned, so a script that calls this needs the usual
            ``if __name__ == "__main__"``.
        on_cell: called with (index, fraction, description).
    """
    found = _results([replace(cell, may_diverge=False) for cell in cells], jobs, on_cell)
    return [result for result in found if isinstance(result, RunResult)]


def attempt_cells(
    cells: Sequence[Cell], *, jobs: int = 1, on_cell: OnCell | None = None
) -> list[CellOutcome]:
    """The records of `run_cells`; a cell that may diverge, and does, gives `Diverged`."""
    found = _results(cells, jobs, on_cell)
    return [result.record if isinstance(result, RunResult) else result for result in found]


def report_cells(
    on_progress: OnProgress, names: Sequence[str], *, before: int = 0, total: int | None = None
) -> OnCell:
    """A callback that turns the progress of single cells into that of all runs.

    Args:
        on_progress: called with (fraction of all runs, name of the cell and description).
        names: names of the cells.
        before: number of runs that earlier stages have finished.
        total: number of runs of all stages; those before and the cells if not given.
    """
    fractions, runs = [0.0] * len(names), max(total or 0, before + len(names))

    def on_cell(index: int, fraction: float, description: str) -> None:
        fractions[index] = fraction
        on_progress((before + sum(fractions)) / runs, f"{names[index]}: {description}")

    return on_cell


def default_jobs(config: RunConfig) -> int:
    """As many runs at a time as the cores have room for; one where a run takes them all, or a GPU."""
    engine = config.engine
    on_cpu = engine.accelerator == "cpu" or (engine.accelerator == "auto" and not torch.cuda.is_available())
    if engine.threads is None or not on_cpu or engine.devices not in ("auto", "1"):
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // engine.threads)


def _results(cells: Sequence[Cell], jobs: int, on_cell: OnCell | None) -> list[RunResult | Diverged]:
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
    jobs = min(jobs, len(left))
    executor: Executor = ProcessExecutor(jobs) if jobs > 1 else SerialExecutor()
    interrupt = False
    try:
        for index in left:
            executor.submit(index, cells[index])
        results.update(executor.progress(report))
    except KeyboardInterrupt:
        interrupt = True
        raise
    finally:
        executor.cancel(interrupt=interrupt)
    return [results[index] for index in range(len(cells))]


def _run(index: int, cell: Cell, on_cell: OnCell) -> RunResult | Diverged:
    """Execute one cell, in whatever process an executor has chosen."""
    try:
        with warnings.catch_warnings():
            if cell.may_diverge:
                warnings.simplefilter("ignore", LowTargetConfidence)
            return execute_run(
                cell.config,
                cell.directory,
                evaluated=cell.evaluated,
                on_progress=lambda fraction, description: on_cell(index, fraction, description),
            )
    except FloatingPointError as error:
        if not cell.may_diverge:
            raise
        digest = dataset(cell.config.data).facts.get("digest")
        diverged = Diverged(fingerprint(cell.config), f"{error}", digest)
        cell.directory.mkdir(parents=True, exist_ok=True)
        atomic_write(RunDirectory(cell.directory).diverged_file, diverged.to_json().encode())
        on_cell(index, 1.0, "diverged")
        return diverged


class SerialExecutor:
    """One cell after the other in this process."""

    def __init__(self) -> None:
        self._cells: list[tuple[int, Cell]] = []

    def submit(self, index: int, cell: Cell) -> None:
        """Put the cell in line."""
        self._cells.append((index, cell))

    def progress(self, on_cell: OnCell) -> Iterator[tuple[int, RunResult | Diverged]]:
        """Run the cells in their order."""
        for index, cell in self._cells:
            yield index, _run(index, cell, on_cell)

    def cancel(self, *, interrupt: bool) -> None:
        """Nothing runs beyond `progress`."""


class ProcessExecutor:
    """Several cells at a time, each in a process of this machine.

    A terminal sends Ctrl-C to every process of its group. Workers leave the group, because a second signal
    ends a training without saving; `cancel` passes one signal on to each.
    """

    def __init__(self, jobs: int) -> None:
        context = get_context("spawn")  # a fork would inherit torch's threads, but not their state
        self._futures: dict[Future[RunResult | Diverged], int] = {}
        self._reports, self._cancelled = context.Queue(), context.Event()
        self._others = set(active_children())
        self._pool = ProcessPoolExecutor(
            jobs,
            mp_context=context,
            initializer=_begin_worker,
            initargs=(os.getpid(), self._reports, self._cancelled),
        )

    def submit(self, index: int, cell: Cell) -> None:
        """Queue the cell; the first starts the workers, which inherit that Ctrl-C is ignored."""
        is_main = threading.current_thread() is threading.main_thread()  # only it may set handlers
        before = signal.signal(signal.SIGINT, signal.SIG_IGN) if is_main else None
        try:
            self._futures[self._pool.submit(_work, index, cell)] = index
        finally:
            if is_main:
                signal.signal(signal.SIGINT, before)

    def progress(self, on_cell: OnCell) -> Iterator[tuple[int, RunResult | Diverged]]:
        """Wait for the workers and pass their reports on."""
        pending = set(self._futures)
        try:
            while pending:
                done, pending = wait(pending, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED)
                with suppress(Empty):
                    while True:
                        on_cell(*self._reports.get_nowait())
                for future in done:
                    yield self._futures[future], future.result()
        except BrokenProcessPool as error:
            why = "perhaps for lack of memory: try fewer `jobs`, or the same command, which resumes"
            raise fail("run", f"one of the processes was killed, {why}.", EnvironmentFailure) from error

    def cancel(self, *, interrupt: bool) -> None:
        """Wait for the workers, and pass every Ctrl-C on to them meanwhile."""
        self._cancelled.set()
        while True:
            try:
                for worker in set(active_children()) - self._others if interrupt else ():
                    with suppress(ProcessLookupError):
                        os.kill(worker.pid or 0, signal.SIGINT)
                return self._pool.shutdown(wait=True, cancel_futures=True)
            except KeyboardInterrupt:
                interrupt = True


_reports: Any = None  # the queue and the event of this worker
_cancelled: Any = None


def _begin_worker(parent: int, reports: Any, cancelled: Any) -> None:
    global _reports, _cancelled
    _reports, _cancelled = reports, cancelled
    reports.cancel_join_thread()  # after an error nobody reads it, and a full pipe would never let this end
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # except while a cell is at work
    if hasattr(os, "setpgrp"):
        os.setpgrp()
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    """End a worker whose parent was killed; it would continue alone and block the next attempt."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _work(index: int, cell: Cell) -> RunResult | Diverged:
    """Execute a cell in a worker, which accepts Ctrl-C meanwhile and ignores it when idle."""
    reported = 0.0

    def on_cell(index: int, fraction: float, description: str) -> None:
        nonlocal reported
        if fraction >= 1 or time.monotonic() - reported > _POLL_SECONDS:
            reported = time.monotonic()
            _reports.put((index, fraction, description))

    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        if _cancelled.is_set():  # the pool hands out a few cells beforehand, which it cannot take back
            raise CancelledError
        return _run(index, cell, on_cell)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
