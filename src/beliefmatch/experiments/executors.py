"""Tasks and where they run: one interface for this process, processes of this machine, and a Ray cluster.

A task is a function with its arguments. An executor takes tasks by `submit`, reports how far they are and
yields their results by `progress`, and ends early by `cancel`. `Workers` make executors; `workers_on` reads
the option `--on` that names them. What is submitted does not know which executor runs it.
"""

import os
import pickle
import re
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import active_children, get_context
from queue import Empty
from typing import Any, Protocol

import torch

from beliefmatch._errors import fail
from beliefmatch._files import EnvironmentFailure

__all__ = [
    "Executor",
    "LocalWorkers",
    "OnTask",
    "ProcessExecutor",
    "Resources",
    "SerialExecutor",
    "Task",
    "Workers",
    "completed_tasks",
    "picklable",
    "run_tasks",
    "workers_on",
]

OnTask = Callable[[int, float, str], None]
"""Called with (index of the task, fraction, description)."""

POLL_SECONDS = 0.2
"""Time between two looks at the tasks, and between two reports of one."""

_ADDRESS = re.compile(r"ray://(\[[0-9A-Fa-f:.%]+\]|[^\s/:\[\]]+):\d+")  # [::1] is a host too


@dataclass(frozen=True)
class Resources:
    """What a task takes of the machine that it runs on."""

    cores: int | None = 1
    """None for all cores of the machine."""
    gpus: float = 0.0
    """A fraction where several tasks fit on one GPU."""
    is_gpu_optional: bool = False
    """Whether the task runs on cores where there is no GPU."""
    are_cores_optional: bool = False
    """Whether the task runs on all cores of the largest machine where none has as many."""


@dataclass(frozen=True)
class Task:
    """A function called with arguments and the keyword `on_progress`; all of it can be pickled."""

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    resources: Resources = field(default_factory=Resources)


class Executor(Protocol):
    """Where tasks run."""

    def submit(self, index: int, task: Task) -> None:
        """Hand over a task, which is known by its index from now on."""
        ...

    def progress(self, on_task: OnTask) -> Iterator[tuple[int, Any]]:
        """Report progress and yield the result of each task as it ends; raise the error of one that fails."""
        ...

    def cancel(self, *, interrupt: bool) -> None:
        """Drop the tasks that have not begun and wait for the others, which end early if `interrupt`."""
        ...


class Workers(Protocol):
    """Makes executors."""

    @property
    def is_remote(self) -> bool:
        """Whether tasks may run on machines that do not have this one's files."""
        ...

    def executor(self, tasks: Sequence[Task]) -> Executor:
        """An executor with room for these tasks."""
        ...

    def share(self, value: Any) -> Any:
        """A value that many tasks have among their arguments, sent once; tasks are given the value itself."""
        ...

    def describe(self, resources: Resources) -> str:
        """How many tasks of these resources run at a time, in words."""
        ...


def completed_tasks(
    tasks: Sequence[Task], workers: Workers, on_task: OnTask | None = None
) -> Generator[tuple[int, Any], None, None]:
    """Run tasks; index and result of each, as they end.

    Ctrl-C, SIGTERM and closing the iterator let tasks that run end early; an error of one lets the others
    end.
    """
    executor, interrupt = workers.executor(tasks), False
    with _terminated_by_interrupt():
        try:
            for index, task in enumerate(tasks):
                executor.submit(index, task)
            yield from executor.progress(on_task or (lambda index, fraction, description: None))
        except (KeyboardInterrupt, GeneratorExit):
            interrupt = True
            raise
        finally:
            executor.cancel(interrupt=interrupt)


@contextmanager
def _terminated_by_interrupt() -> Iterator[None]:
    """Let SIGTERM, by which schedulers end a job, do in the block what Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():  # only it may set handlers
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def run_tasks(tasks: Sequence[Task], workers: Workers, on_task: OnTask | None = None) -> list[Any]:
    """Run tasks; their results, in the order of the tasks."""
    with closing(completed_tasks(tasks, workers, on_task)) as completed:
        results = dict(completed)
    return [results[index] for index in range(len(tasks))]


def workers_on(on: str = "local", *, jobs: int | None = None) -> Workers:
    """The workers that `--on` names.

    Args:
        on: "local" for processes of this machine; "ray" for the Ray cluster that this machine belongs to, or
            one started here; "ray://HOST:PORT" for the Ray cluster that is reached there.
        jobs: number of tasks at a time; as many as there is room for if not given.
    """
    if on == "local":
        return LocalWorkers(jobs)
    if on != "ray" and not _ADDRESS.fullmatch(on):
        raise fail("run", f"`on` must be local, ray or ray://HOST:PORT, got {on!r}.")
    from beliefmatch.experiments.ray_executor import RayWorkers

    return RayWorkers(on, jobs)


@dataclass(frozen=True)
class LocalWorkers:
    """Processes of this machine; the process itself where one task runs at a time.

    More than one process are spawned, so a script that uses them needs the usual
    ``if __name__ == "__main__"``.
    """

    jobs: int | None = None
    """Processes at a time; as many as the cores have room for if not given."""

    is_remote = False

    def executor(self, tasks: Sequence[Task]) -> Executor:
        """One after the other, or several processes."""
        room = min((self._at_a_time(task.resources) for task in tasks), default=1)
        jobs = min(self.jobs or room, len(tasks))
        return ProcessExecutor(jobs) if jobs > 1 else SerialExecutor()

    def share(self, value: Any) -> Any:
        """The value."""
        return value

    def describe(self, resources: Resources) -> str:
        """The number."""
        return f"{self.jobs or self._at_a_time(resources)} at a time"

    @staticmethod
    def _at_a_time(resources: Resources) -> int:
        """As many as the cores have room for; one where a task takes them all, or a GPU."""
        uses_gpu = resources.gpus > 0 and (not resources.is_gpu_optional or torch.cuda.is_available())
        if resources.cores is None or uses_gpu:
            return 1
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return max(1, cores // resources.cores)


class SerialExecutor:
    """One task after the other in this process."""

    def __init__(self) -> None:
        self._tasks: list[tuple[int, Task]] = []

    def submit(self, index: int, task: Task) -> None:
        """Put the task in line."""
        self._tasks.append((index, task))

    def progress(self, on_task: OnTask) -> Iterator[tuple[int, Any]]:
        """Run the tasks in their order."""
        for index, task in self._tasks:

            def on_progress(fraction: float, description: str, index: int = index) -> None:
                on_task(index, fraction, description)

            yield index, task.function(*task.arguments, on_progress=on_progress)

    def cancel(self, *, interrupt: bool) -> None:
        """Nothing runs beyond `progress`."""


class ProcessExecutor:
    """Several tasks at a time, each in a process of this machine.

    A terminal sends Ctrl-C to every process of its group. Workers leave the group, because a second signal
    ends a training without saving; `cancel` passes one signal on to each.
    """

    def __init__(self, jobs: int) -> None:
        context = get_context("spawn")  # a fork would inherit torch's threads, but not their state
        self._futures: dict[Future[Any], int] = {}
        self._reports, self._cancelled = context.Queue(), context.Event()
        self._others = set(active_children())
        self._pool = ProcessPoolExecutor(
            jobs,
            mp_context=context,
            initializer=_begin_worker,
            initargs=(os.getpid(), self._reports, self._cancelled),
        )

    def submit(self, index: int, task: Task) -> None:
        """Queue the task; the first starts the workers, which inherit that Ctrl-C is ignored."""
        is_main = threading.current_thread() is threading.main_thread()  # only it may set handlers
        before = signal.signal(signal.SIGINT, signal.SIG_IGN) if is_main else None
        try:
            self._futures[self._pool.submit(_work, index, task)] = index
        finally:
            if is_main:
                signal.signal(signal.SIGINT, before)

    def progress(self, on_task: OnTask) -> Iterator[tuple[int, Any]]:
        """Wait for the workers and pass their reports on.

        A result may overtake the last reports of its task, which are dropped then.
        """
        pending, unfinished = set(self._futures), dict.fromkeys(self._futures.values(), (0.0, ""))
        try:
            while pending:
                done, pending = wait(pending, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED)
                with suppress(Empty):
                    while True:
                        index, fraction, description = self._reports.get_nowait()
                        if index in unfinished:
                            unfinished[index] = fraction, description
                            on_task(index, fraction, description)
                for future in done:
                    index, result = self._futures[future], future.result()
                    fraction, description = unfinished.pop(index)
                    if fraction < 1:
                        on_task(index, 1.0, description)
                    yield index, result
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
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # except while a task is at work
    if hasattr(os, "setpgrp"):
        os.setpgrp()
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    """End a worker whose parent was killed; it would continue alone and block the next attempt."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _work(index: int, task: Task) -> Any:
    """Execute a task in a worker, which accepts Ctrl-C meanwhile and ignores it when idle."""
    reported = 0.0

    def on_progress(fraction: float, description: str) -> None:
        nonlocal reported
        if fraction >= 1 or time.monotonic() - reported > POLL_SECONDS:
            reported = time.monotonic()
            _reports.put((index, fraction, description))

    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        if _cancelled.is_set():  # the pool hands out a few tasks beforehand, which it cannot take back
            raise CancelledError
        return task.function(*task.arguments, on_progress=on_progress)
    except Exception as error:
        sent = picklable(error)
        if sent is error:
            raise
        raise sent from None
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def picklable(error: Any) -> Any:
    """An error or warning, in words where it cannot be sent."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return (UserWarning if isinstance(error, Warning) else RuntimeError)(
            f"{type(error).__name__}: {error}"
        )
    return error
