"""Many runs: each cell of a grid once, by an executor that may run several at a time.

A cell is finished when its directory holds a record of the same configuration; the others go on from their
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
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing import active_children, get_context
from pathlib import Path
from queue import Empty
from typing import Any, Protocol

import torch

from beliefmatch._files import EnvironmentFailure, atomic_write
from beliefmatch.experiments.build import dataset
from beliefmatch.experiments.config import RunConfig, fingerprint
from beliefmatch.experiments.records import Diverged, RunRecord, Trial
from beliefmatch.experiments.run import RunResult, execute_run, finished
from beliefmatch.experiments.run_dir import RunDirectory

__all__ = ["Cell", "Executor", "OnCell", "Ran", "attempt_cells", "default_jobs", "run_cells"]

Ran = RunRecord | Diverged
"""How a cell ended."""

OnCell = Callable[[int, float, str], None]
"""Called with (index of the cell, fraction, description)."""

_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Cell:
    """One run of a grid and its directory."""

    config: RunConfig
    directory: Path
    search: tuple[Trial, ...] = ()
    """Trials by which an option of the configuration was chosen, for its record."""
    may_diverge: bool = False
    """Whether a training that leaves the finite numbers is a result rather than an error. A prior that fights
    the labels, which may be the subject of the run, is then no reason to warn either."""
    evaluated: bool = False
    """Whether the test predictions are evaluated in full while they are in memory."""


class Executor(Protocol):
    """Where cells run; a cluster's engine can stand behind the same three calls."""

    def submit(self, index: int, cell: Cell) -> None:
        """Hand over a cell; its progress is reported by this index."""
        ...

    def results(self) -> Iterator[tuple[int, RunResult | Diverged]]:
        """The result of each cell as it ends, with progress meanwhile; the error of the first that fails."""
        ...

    def close(self, *, interrupted: bool) -> None:
        """Wait until nothing runs any more. Cells at work finish; if `interrupted` they save and end."""
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


def attempt_cells(cells: Sequence[Cell], *, jobs: int = 1, on_cell: OnCell | None = None) -> list[Ran]:
    """The records of `run_cells`; a cell that may diverge, and does, gives `Diverged`."""
    found = _results(cells, jobs, on_cell)
    return [result.record if isinstance(result, RunResult) else result for result in found]


def default_jobs(config: RunConfig) -> int:
    """As many runs at a time as the cores have room for; one where a run takes them all, or a GPU."""
    engine = config.engine
    on_cpu = engine.accelerator == "cpu" or (engine.accelerator == "auto" and not torch.cuda.is_available())
    if engine.threads is None or not on_cpu or engine.devices not in ("auto", "1"):
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // engine.threads)


def _results(cells: Sequence[Cell], jobs: int, on_cell: OnCell | None) -> list[RunResult | Diverged]:
    report = on_cell or (lambda index, fraction, doing: None)
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
    executor: Executor = ProcessesExecutor(jobs, report) if jobs > 1 else SerialExecutor(report)
    interrupted = False
    try:
        for index in left:
            executor.submit(index, cells[index])
        results.update(executor.results())
    except KeyboardInterrupt:
        interrupted = True
        raise
    finally:
        executor.close(interrupted=interrupted)
    return [results[index] for index in range(len(cells))]


def _run(cell: Cell, index: int, report: OnCell) -> RunResult | Diverged:
    def execute() -> RunResult:
        return execute_run(
            cell.config,
            cell.directory,
            search=cell.search,
            evaluated=cell.evaluated,
            on_progress=lambda fraction, doing: report(index, fraction, doing),
        )

    if not cell.may_diverge:
        return execute()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".* gives a target mean of only ")
            return execute()
    except FloatingPointError as error:
        digest = dataset(cell.config.data).facts.get("digest")
        diverged = Diverged(fingerprint(cell.config), f"{error}", digest)
        cell.directory.mkdir(parents=True, exist_ok=True)
        atomic_write(RunDirectory(cell.directory).diverged_file, diverged.to_json().encode())
        report(index, 1.0, "diverged")
        return diverged


class SerialExecutor:
    """One cell after the other in this process."""

    def __init__(self, report: OnCell) -> None:
        self._report, self._cells = report, list[tuple[int, Cell]]()

    def submit(self, index: int, cell: Cell) -> None:
        """Put the cell in line."""
        self._cells.append((index, cell))

    def results(self) -> Iterator[tuple[int, RunResult | Diverged]]:
        """Run the cells in their order."""
        for index, cell in self._cells:
            yield index, _run(cell, index, self._report)

    def close(self, *, interrupted: bool) -> None:
        """Nothing runs beyond `results`."""


class ProcessesExecutor:
    """Several cells at a time, each in a process of this machine."""

    def __init__(self, jobs: int, report: OnCell) -> None:
        context = get_context("spawn")  # a fork would inherit torch's threads, but not their state
        self._report, self._futures = report, dict[Future[RunResult | Diverged], int]()
        self._progress, self._closing = context.Queue(), context.Event()
        self._others = set(active_children())
        self._pool = ProcessPoolExecutor(
            jobs,
            mp_context=context,
            initializer=_begin_worker,
            initargs=(os.getpid(), self._progress, self._closing),
        )

    def submit(self, index: int, cell: Cell) -> None:
        """Queue the cell; the first starts the workers, which inherit that Ctrl-C is ignored."""
        with _sigint_ignored():
            self._futures[self._pool.submit(_work, cell, index)] = index

    def results(self) -> Iterator[tuple[int, RunResult | Diverged]]:
        """Wait for the workers and pass their progress on."""
        pending = set(self._futures)
        try:
            while pending:
                done, pending = wait(pending, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED)
                with suppress(Empty):
                    while True:
                        self._report(*self._progress.get_nowait())
                for future in done:
                    yield self._futures[future], future.result()
        except BrokenProcessPool as error:
            why = "perhaps for lack of memory: try fewer `jobs`, or the same command, which goes on"
            raise EnvironmentFailure(
                f"run: one of the processes at work was ended from outside, {why}."
            ) from error

    def close(self, *, interrupted: bool) -> None:
        """Wait for the workers, and pass every Ctrl-C on, because only this process receives it."""
        self._closing.set()
        while True:
            try:
                for worker in set(active_children()) - self._others if interrupted else ():
                    with suppress(ProcessLookupError):
                        os.kill(worker.pid or 0, signal.SIGINT)
                return self._pool.shutdown(wait=True, cancel_futures=True)
            except KeyboardInterrupt:
                interrupted = True


@contextmanager
def _sigint_ignored() -> Iterator[None]:
    """Ignore Ctrl-C for the time of the block, which is short. Only the main thread can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


_progress: Any = None  # queue of this worker
_closing: Any = None


def _begin_worker(parent: int, progress: Any, closing: Any) -> None:
    global _progress, _closing
    _progress, _closing = progress, closing
    progress.cancel_join_thread()  # after an error nobody reads it, and a full pipe would never let this end
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # except while a cell is at work
    if hasattr(os, "setpgrp"):
        os.setpgrp()  # a terminal would signal the workers too, and the second signal ends without saving
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    """A worker whose parent was killed would go on alone and be in the way of the next attempt."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _work(cell: Cell, index: int) -> RunResult | Diverged:
    reported = 0.0

    def report(index: int, fraction: float, doing: str) -> None:
        nonlocal reported
        if fraction >= 1 or time.monotonic() - reported > _POLL_SECONDS:
            reported = time.monotonic()
            _progress.put((index, fraction, doing))

    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        if _closing.is_set():  # the pool hands out a few cells beforehand, which it cannot take back
            raise CancelledError
        return _run(cell, index, report)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
