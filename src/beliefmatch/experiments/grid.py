"""Many runs: in parallel processes within the machine's cores, and none of them twice.

A cell is finished when its directory holds a record of the same config; the others go on from their last
checkpoint. So a grid that was stopped is taken up by the same command. `attempt_cells` bears trainings that
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
from typing import Any

import torch

from beliefmatch._files import EnvironmentFailure, atomic_write
from beliefmatch.experiments.build import dataset
from beliefmatch.experiments.config import RunConfig, fingerprint
from beliefmatch.experiments.records import Diverged, RunRecord, Trial
from beliefmatch.experiments.run import execute, finished
from beliefmatch.experiments.run_dir import RunDirectory

__all__ = ["Cell", "OnCell", "Ran", "attempt_cells", "default_jobs", "run_cells"]

Ran = RunRecord | Diverged
"""How a cell ended."""

OnCell = Callable[[int, float, str], None]
"""Called with the cell's index, the share of it that is done, and what is being done."""

_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Cell:
    """One run of a grid and where it is kept."""

    config: RunConfig
    directory: Path
    search: tuple[Trial, ...] = ()
    """How an option of the configuration was chosen, for its record."""
    may_diverge: bool = False
    """Whether a training that leaves the finite numbers is a result rather than an error. A prior that fights
    the labels, which may be what is looked into, is then no reason to warn either."""


def run_cells(cells: Sequence[Cell], *, jobs: int = 1, on_cell: OnCell | None = None) -> list[RunRecord]:
    """Run every cell that is not finished; the records of all of them, in their order.

    Args:
        cells: with directories of their own.
        jobs: processes at a time. With more than one they are started afresh, so a script that calls this
            needs the usual ``if __name__ == "__main__"``.
        on_cell: told about progress.
    """
    found = attempt_cells([replace(cell, may_diverge=False) for cell in cells], jobs=jobs, on_cell=on_cell)
    return [record for record in found if isinstance(record, RunRecord)]


def attempt_cells(cells: Sequence[Cell], *, jobs: int = 1, on_cell: OnCell | None = None) -> list[Ran]:
    """`run_cells`, but for cells that may diverge: then that is what is given for them, and kept."""
    announce = on_cell or (lambda index, share, doing: None)
    records = {index: record for index, cell in enumerate(cells) if (record := _ended(cell))}
    for index in records:
        announce(index, 1.0, "finished before")
    left = [index for index in range(len(cells)) if index not in records]
    if jobs <= 1 or len(left) <= 1:
        for index in left:
            records[index] = _run(cells[index], index, announce)
    else:
        records |= _in_processes(cells, left, min(jobs, len(left)), announce)
    return [records[index] for index in range(len(cells))]


def default_jobs(config: RunConfig) -> int:
    """As many runs at a time as the cores have room for; one where a run takes them all, or a GPU."""
    engine = config.engine
    on_cpu = engine.accelerator == "cpu" or (engine.accelerator == "auto" and not torch.cuda.is_available())
    if engine.threads is None or not on_cpu or engine.devices not in ("auto", "1"):
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // engine.threads)


def _ended(cell: Cell) -> Ran | None:
    record = finished(cell.directory, cell.config)
    return RunDirectory(cell.directory).diverged() if record is None and cell.may_diverge else record


def _run(cell: Cell, index: int, announce: OnCell) -> Ran:
    if not cell.may_diverge:
        return _execute(cell, index, announce)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".* asks for a target mean of only ")
            return _execute(cell, index, announce)
    except FloatingPointError as error:
        digest = dataset(cell.config.data).facts.get("digest")
        ended = Diverged(fingerprint(cell.config), f"{error}", digest)
        cell.directory.mkdir(parents=True, exist_ok=True)
        atomic_write(RunDirectory(cell.directory).diverged_file, ended.to_json().encode())
        announce(index, 1.0, "diverged")
        return ended


def _execute(cell: Cell, index: int, announce: OnCell) -> RunRecord:
    return execute(
        cell.config,
        cell.directory,
        search=cell.search,
        on_progress=lambda share, doing: announce(index, share, doing),
    )


def _in_processes(cells: Sequence[Cell], left: Sequence[int], jobs: int, announce: OnCell) -> dict[int, Ran]:
    context = get_context("spawn")  # a fork would inherit torch's threads, but not their state
    news, over, others = context.Queue(), context.Event(), set(active_children())
    pool = ProcessPoolExecutor(
        jobs, mp_context=context, initializer=_begin_worker, initargs=(os.getpid(), news, over)
    )
    interrupted = False
    try:
        with _deaf():  # as the workers that begin here shall be
            futures = {pool.submit(_work, cells[index], index): index for index in left}
        _wait(futures, news, announce)
        return {index: future.result() for future, index in futures.items()}
    except KeyboardInterrupt:
        interrupted = True
        raise
    except BrokenProcessPool as error:
        why = "perhaps for lack of memory: try fewer `jobs`, or the same command, which goes on"
        raise EnvironmentFailure(
            f"run: one of the processes at work was ended from outside, {why}."
        ) from error
    finally:  # on Ctrl-C the workers save what they have, on an error they finish it
        over.set()
        _close(pool, lambda: set(active_children()) - others, interrupted)


@contextmanager
def _deaf() -> Iterator[None]:
    """Ignore Ctrl-C for the time of the block, which is short. Only the main thread can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _close(pool: ProcessPoolExecutor, workers: Callable[[], set[Any]], interrupted: bool) -> None:
    """Wait for the workers, and pass every Ctrl-C on: only this process hears them."""
    while True:
        try:
            for worker in workers() if interrupted else ():
                with suppress(ProcessLookupError):
                    os.kill(worker.pid, signal.SIGINT)
            return pool.shutdown(wait=True, cancel_futures=True)
        except KeyboardInterrupt:
            interrupted = True


def _wait(futures: dict[Future[Ran], int], news: Any, announce: OnCell) -> None:
    """Pass on what the workers tell until all are done or one has failed."""
    pending = set(futures)
    while pending:
        done, pending = wait(pending, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED)
        while (told := _next(news)) is not None:
            announce(*told)
        for future in done:
            future.result()


def _next(news: Any) -> tuple[int, float, str] | None:
    try:
        return news.get_nowait()
    except Empty:
        return None


_news: Any = None  # of this worker
_over: Any = None


def _begin_worker(parent: int, news: Any, over: Any) -> None:
    global _news, _over
    _news, _over = news, over
    news.cancel_join_thread()  # after an error nobody reads it, and a full pipe would never let this one end
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # but while at work
    if hasattr(os, "setpgrp"):
        os.setpgrp()  # a terminal would signal the workers too, and the second signal ends without saving
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    """A worker whose parent was killed would go on alone and be in the way of the next attempt."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _work(cell: Cell, index: int) -> Ran:
    told = [0.0]

    def announce(index: int, share: float, doing: str) -> None:
        now = time.monotonic()
        if share >= 1 or now - told[0] > _POLL_SECONDS:
            told[0] = now
            _news.put((index, share, doing))

    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        if _over.is_set():  # the pool hands out a few cells beforehand, which it cannot take back
            raise CancelledError
        return _run(cell, index, announce)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
