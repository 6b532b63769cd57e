"""Tasks on a Ray cluster: the executor behind `--on ray` and `--on ray://HOST:PORT`.

Ray places tasks and moves their arguments. Everything else is decided here. A task whose node or process dies
is submitted again, and continues from whatever it has saved; an error of the task itself is its result, and
is not tried again. Progress and the request to stop pass through one actor, the board: a task that is asked
to stop gets the signal of Ctrl-C once, and saves.
"""

import _thread
import os
import re
import signal
import socket
import sys
import threading
import time
import traceback
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from beliefmatch._environment import needs, software
from beliefmatch._errors import fail
from beliefmatch._files import EnvironmentFailure, InUse
from beliefmatch._utils import OnProgress, reason_of
from beliefmatch.experiments.executors import POLL_SECONDS, OnTask, Resources, Task, picklable

__all__ = ["RayExecutor", "RayWorkers"]

_REPORT_SECONDS = 0.5  # between two looks of a task at the board
_LOG_SECONDS = 10.0  # between two lines in the log of a task, which the dashboard shows
_CONNECT_SECONDS = 5.0  # for an answer of the cluster
_PROBE_SECONDS = 3.0  # between two looks at the head, and for its answer
_MOST_MISSES = 5  # of the head: fewer than in the minute after which Ray ends this process
_RESTART_SECONDS = (5.0, 15.0)  # between attempts to connect to a head that has just been restarted
_STUCK_MISSES = 10  # after which this process is taken to wait inside of Ray, which would end it
_NODES_SECONDS = 5.0  # between two looks at the nodes
_CLIENT_PORT = 10001  # default port of Ray's server for ray://
_BOARD_SECONDS = 10.0  # for an answer of the board
_MOST_QUESTIONS = 3  # to the board before a task begins without its answer
_LOST_SECONDS = 30.0  # without any answer, after which the cluster counts as lost
_START_SECONDS = 600.0  # for the first answer: the board imports torch, from a slow disk or on a busy node
_MOST_NODES_LOST = 10  # attempts of a task whose nodes die
_MOST_CRASHES = 3  # attempts of a task whose process is killed, as it is for lack of memory
_IN_USE_SECONDS = 60.0  # until the process of an earlier attempt has noticed that its node is gone
_BAD_END = 2  # the exit code of commands that end with one line
_RESUMES = "repeat the command to resume from what was saved"


@dataclass(frozen=True)
class RayWorkers:
    """A Ray cluster, joined when the first task is submitted."""

    on: str = "ray"
    """"ray", or the address of a cluster: ray://HOST:PORT."""
    jobs: int | None = None
    """Tasks at a time; as many as the cluster has room for if not given."""

    is_remote = True

    def __post_init__(self) -> None:
        _import_ray()

    def executor(self, tasks: Sequence[Task]) -> "RayExecutor":
        """Tasks on the cluster."""
        _connect(self.on)
        return RayExecutor(self.jobs)

    def share(self, value: Any) -> Any:
        """A reference to the value in Ray's object store."""
        ray = _connect(self.on)
        return ray.put(value)

    def describe(self, resources: Resources) -> str:
        """The cluster, and the limit if there is one."""
        return f"{'as many' if self.jobs is None else self.jobs} at a time on {self.on}"


def _import_ray() -> Any:
    with needs("Ray", extra="cluster", caller="--on ray"):
        import ray  # pyright: ignore[reportMissingImports]
    return ray


def _connect(on: str) -> Any:
    """Join the cluster, unless this process has done so; an EnvironmentFailure where there is none."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "1")  # without a GPU of its own none is seen
    os.environ.setdefault("RAY_TQDM_PATCH_PRINT", "0")  # `print` stays the built-in one, which can be pickled
    ray = _import_ray()
    if ray.is_initialized():
        return ray
    address = _own_cluster() if on == "ray" else on
    place = address.removeprefix("ray://")
    if place not in ("local", "auto") and "://" not in place and not _answers(place):
        raise _no_cluster(on, address, "nobody answers there")
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM) if is_main else None
    try:
        found = _init(ray, address)
    except (ConnectionError, RuntimeError, OSError, ValueError) as error:
        raise _no_cluster(on, address, _reason(error)) from error
    finally:
        if is_main:  # Ray's own handler of SIGTERM would end this process with a page of its stack
            signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
    # Ray prints a page to standard output for every node that dies; what became of its tasks is shown by us
    sys.modules["ray._private.worker"].__dict__["print_to_stdstream"] = lambda *arguments, **options: None
    url = getattr(found, "dashboard_url", None)
    if url:
        print(f"Ray dashboard: http://{url}", file=sys.stderr)
    return ray


def _own_cluster() -> str:
    """The cluster of $RAY_ADDRESS or of this machine; "local" starts one where there is none.

    Ray would wait for minutes for a cluster that has died and left its address behind.
    """
    if given := os.environ.get("RAY_ADDRESS"):
        return given
    with suppress(OSError):
        below = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
        found = (Path(below) / "ray" / "ray_current_cluster").read_text().strip()
        if _answers(found):
            return found
    return "local"


def _answers(address: str, seconds: float = _CONNECT_SECONDS) -> bool:
    """Whether somebody listens at HOST:PORT, or at [HOST]:PORT with an address of IPv6."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=seconds).close()
    except (OSError, ValueError, OverflowError):
        return False
    return True


def _init(ray: Any, address: str) -> Any:
    """`ray.init`, once more where processes of a head that has just been restarted still hold its ports."""
    for seconds in _RESTART_SECONDS:
        try:
            return ray.init(address, log_to_driver=False, logging_level="ERROR")
        except ConnectionError as error:
            if "Starting Ray client server failed" not in f"{error}":
                raise
        with suppress(Exception):
            ray.shutdown()
        time.sleep(seconds)
    return ray.init(address, log_to_driver=False, logging_level="ERROR")


def _no_cluster(on: str, address: str, reason: str) -> EnvironmentFailure:
    if on == "ray" and address == os.environ.get("RAY_ADDRESS"):
        on, reason = f"{on} with RAY_ADDRESS={address}", f"{reason}; unset RAY_ADDRESS or repair it"
    if address.startswith("ray://") and not address.endswith(f":{_CLIENT_PORT}"):
        reason = (
            f"{reason}; ray:// takes the port of Ray's client server, {_CLIENT_PORT} unless it was changed"
        )
    return fail("run", f"`on` must be a Ray cluster that answers, got {on} ({reason}).", EnvironmentFailure)


def _reason(error: Exception) -> str:
    """The message of an error on one line; of a page from the server, what follows its last traceback."""
    cause: BaseException | None = error
    while cause is not None:  # Ray reports all that happens on connecting as one failure
        if "InvalidAuthToken" in f"{cause}":
            return "it asks for a token: set RAY_AUTH_MODE=token, with the ~/.ray/auth_token of the head"
        cause = cause.__cause__ or cause.__context__
    text = f"{error}".rpartition("Traceback (most recent call last):\n")[2]
    if text != f"{error}" and (below := re.search(r"^\S.*", text, re.MULTILINE | re.DOTALL)):
        text = below[0]
    return reason_of(text or error, limit=300)


class _HeadWatch:
    """Looks every few seconds whether the head of the cluster is there.

    Ray itself tries for a minute, and then ends this process with a page of its stack and without a remedy. A
    process that is blocked inside Ray meanwhile cannot raise an error, so it is ended here, with one line.

    Args:
        address: HOST:PORT of the head; None where another process is connected to it.
    """

    def __init__(self, address: str | None) -> None:
        self._address, self._misses, self._over = address, 0, threading.Event()
        if address is not None:
            threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while not self._over.wait(_PROBE_SECONDS):
            self._misses = 0 if _answers(f"{self._address}", _PROBE_SECONDS) else self._misses + 1
            if self._misses >= _STUCK_MISSES and not self._over.is_set():
                print(
                    f"beliefmatch: the Ray cluster was lost ({self._loss}); {_RESUMES}.",
                    file=sys.stderr,
                    flush=True,
                )
                os._exit(_BAD_END)

    @property
    def _loss(self) -> str:
        return f"its head at {self._address} does not answer"

    @property
    def is_silent(self) -> bool:
        """Whether the last look was in vain: what asks the head now may never return."""
        return self._misses > 0

    @property
    def is_lost(self) -> bool:
        """Whether there was no answer for long."""
        return self._misses >= _MOST_MISSES

    def require(self) -> None:
        """A ConnectionError if the head is lost."""
        if self.is_lost:
            raise ConnectionError(self._loss)

    def end(self) -> None:
        """Look no more."""
        self._over.set()


@dataclass
class _Submitted:
    """A task on the cluster."""

    index: int
    task: Task
    attempt: int = 0
    nodes_lost: int = 0
    crashes: int = 0
    in_use_since: float | None = None
    fraction: float = 0.0
    has_begun: bool = False


class RayExecutor:
    """Tasks on the cluster that this process has joined.

    Args:
        jobs: tasks at a time; as many as there is room for if not given.
    """

    def __init__(self, jobs: int | None = None) -> None:
        self._ray, self._jobs = _import_ray(), jobs
        self._waiting: deque[_Submitted] = deque()
        self._running: dict[Any, _Submitted] = {}
        self._retries: list[tuple[float, _Submitted]] = []  # with the time to submit them
        self._heard, self._patience = time.monotonic(), _START_SECONDS
        self._shortage: Any = None  # what was said last of nodes that are too small
        self._next_look = 0.0
        is_client = self._ray.util.client.ray.is_connected()
        with _cluster_errors():
            self._head = _HeadWatch(None if is_client else self._ray.get_runtime_context().gcs_address)
            self._work = self._ray.remote(_work)
            self._board = self._ray.remote(_Board).options(num_cpus=0, max_restarts=-1).remote()
            self._has_gpus = self._ray.cluster_resources().get("GPU", 0) > 0

    def submit(self, index: int, task: Task) -> None:
        """Put the task in line for the cluster."""
        self._waiting.append(_Submitted(index, task))

    def progress(self, on_task: OnTask) -> Iterator[tuple[int, Any]]:
        """Wait for the tasks, pass their reports on, and submit again those that were lost."""
        while self._waiting or self._running or self._retries:
            with _cluster_errors():
                self._head.require()
                if not self._head.is_silent:
                    self._fill()
                    self._announce_shortage(on_task)
                done, _ = (
                    self._ray.wait([*self._running], timeout=POLL_SECONDS) if self._running else ([], [])
                )
                self._report(on_task)
            for reference in done:
                one = self._running.pop(reference)
                with _cluster_errors():
                    outcome = self._outcome(reference, one, on_task)
                if outcome is not None:
                    yield one.index, outcome.result()

    def cancel(self, *, interrupt: bool) -> None:
        """Wait for tasks that run, and pass every Ctrl-C on to them meanwhile."""
        interrupts = int(interrupt)
        self._waiting.clear()
        self._retries.clear()
        if self._head.is_lost:  # whatever asks it would wait for the end of this process
            self._running.clear()
            return self._head.end()
        while True:
            try:
                with suppress(Exception):  # without a cluster nothing runs
                    self._stop(interrupts)
                    while self._running:
                        done, _ = self._ray.wait([*self._running], timeout=1.0)
                        for reference in done:
                            del self._running[reference]
                        self._close(interrupts)  # anew, should the board have been restarted
                with suppress(Exception):
                    if not self._head.is_silent:
                        self._ray.kill(self._board)
                return self._head.end()
            except KeyboardInterrupt:
                interrupts += 1

    def _stop(self, interrupts: int) -> None:
        begun = self._close(interrupts)
        for reference, one in self._running.items():
            if (one.index, one.attempt) not in begun:
                self._ray.cancel(reference)

    def _close(self, interrupts: int) -> Any:
        """Tell the board that tasks shall stop; which of them have begun."""
        return self._answer(self._board.close.remote(interrupts), _LOST_SECONDS)

    def _answer(self, reference: Any, seconds: float) -> Any:
        answer = self._ray.get(reference, timeout=seconds)
        self._heard, self._patience = time.monotonic(), _LOST_SECONDS
        return answer

    def _fill(self) -> None:
        """Submit what there is room for, and what is due again."""
        due = [one for at, one in self._retries if at <= time.monotonic()]
        self._retries = [(at, one) for at, one in self._retries if at > time.monotonic()]
        self._waiting.extendleft(reversed(due))
        while self._waiting and len(self._running) < (self._jobs or sys.maxsize):
            one = self._waiting.popleft()
            cores, gpus = self._needs(one.task.resources)
            options = {"num_cpus": cores, "num_gpus": gpus, "name": one.task.name, "max_retries": 0}
            function = self._work.options(**options, scheduling_strategy="SPREAD")
            place, work = (os.getcwd(), software()), (one.task.function, *one.task.arguments)
            reference = function.remote(self._board, (one.index, one.attempt), *place, *work)
            self._running[reference] = one

    def _needs(self, resources: Resources) -> tuple[int, float]:
        """Cores and GPUs of a task; all cores are those of the smallest node that has any."""
        gpus = resources.gpus if self._has_gpus or not resources.is_gpu_optional else 0.0
        if resources.cores is None and gpus:
            return 1, gpus
        if resources.cores is not None and not resources.are_cores_optional:
            return resources.cores, gpus
        found = [int(node["Resources"].get("CPU", 0)) for node in self._nodes()]
        cores = [one for one in found if one >= 1] or [1]
        return min(cores) if resources.cores is None else min(resources.cores, max(cores)), gpus

    def _nodes(self) -> list[dict[str, Any]]:
        return [node for node in self._ray.nodes() if node["Alive"]]

    def _announce_shortage(self, on_task: OnTask) -> None:
        """Say of tasks that no node can ever hold that they wait, at once and when nodes have come or gone.

        A node may be added. It is also said on standard error, as a log would show it after minutes.
        """
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + _NODES_SECONDS
        idle = [*self._waiting, *(one for one in self._running.values() if not one.has_begun)]
        nodes = self._nodes() if idle else []
        found = [(node["Resources"].get("CPU", 0), node["Resources"].get("GPU", 0)) for node in nodes]
        lacking = Counter[str]()
        wanted = [(one, *self._needs(one.task.resources)) for one in idle]
        wanted = [one for one in wanted if not any(cpu >= one[1] and gpu >= one[2] for cpu, gpu in found)]
        shortage = {one[1:] for one in wanted}, {node["NodeID"] for node in nodes}
        if not wanted or shortage == self._shortage:
            return
        self._shortage = shortage
        for one, cores, gpus in wanted:
            needed = f"a node with {cores} cores and {gpus:g} GPUs"
            lacking[needed] += 1
            on_task(one.index, one.fraction, f"waits for {needed}")
        most = [f"{max((node[place] for node in found), default=0):g}" for place in (0, 1)]
        for needed, count in lacking.items():
            got = f"the nodes there are have at most {most[0]} cores and {most[1]} GPUs"
            remedy = "add a node, or ask for less, such as `--set engine.threads=1`"
            print(f"tasks that wait for {needed}: {count}; {got}: {remedy}", file=sys.stderr)

    def _report(self, on_task: OnTask) -> None:
        try:
            reports = self._answer(self._board.take.remote(), _BOARD_SECONDS)
        except (self._ray.exceptions.RayActorError, self._ray.exceptions.GetTimeoutError):
            if time.monotonic() - self._heard > self._patience:
                raise
            return  # it is restarted
        current = {(one.index, one.attempt): one for one in self._running.values()}
        for key, fraction, description in reports:
            if key in current:
                current[key].fraction, current[key].has_begun = fraction, True
                on_task(key[0], fraction, description)

    def _outcome(self, reference: Any, one: _Submitted, on_task: OnTask) -> "_Outcome | None":
        """How a task ended; None if it was lost and is submitted again."""
        errors = self._ray.exceptions
        try:
            outcome = self._ray.get(reference)
        except errors.RayTaskError as error:  # the node could not even begin
            reason = reason_of(f"{error}".strip().rpartition("\n")[2], limit=200)
            remedy = "its nodes need the same packages as this machine, see docs/scaling.md"
            raise fail(
                "run", f"the cluster cannot run `{one.task.name}` ({reason}); {remedy}.", EnvironmentFailure
            ) from error
        except (errors.OutOfMemoryError, errors.WorkerCrashedError) as error:
            one.crashes += 1
            is_memory = isinstance(error, errors.OutOfMemoryError)
            self._again(one, "out of memory" if is_memory else "its process was killed", on_task, error)
        except errors.RayError as error:  # of nodes, and of objects that were on them
            one.nodes_lost += 1
            self._again(one, "its node died", on_task, error)
        else:
            if isinstance(outcome.error, KeyboardInterrupt):  # which did not come from here
                one.nodes_lost += 1
                self._again(one, "its process received SIGTERM", on_task, outcome.error)
                return None
            if not isinstance(outcome.error, InUse) or one.attempt == 0:
                return outcome
            one.in_use_since = one.in_use_since or time.monotonic()
            if time.monotonic() - one.in_use_since > _IN_USE_SECONDS:
                return outcome
            self._resubmit(one, after=2.0)
        return None

    def _again(self, one: _Submitted, why: str, on_task: OnTask, error: BaseException) -> None:
        if one.crashes >= _MOST_CRASHES or one.nodes_lost >= _MOST_NODES_LOST:
            times = one.crashes + one.nodes_lost
            remedy = f"try fewer `jobs`, or nodes with more memory; {_RESUMES}"
            raise fail(
                "run",
                f"{one.task.name} was given up after {times} attempts ({why}): {remedy}.",
                EnvironmentFailure,
            ) from error
        on_task(one.index, one.fraction, f"{why}; goes on from what was saved")
        self._resubmit(one, after=0.0)

    def _resubmit(self, one: _Submitted, *, after: float) -> None:
        one.attempt, one.has_begun = one.attempt + 1, False
        self._retries.append((time.monotonic() + after, one))


@contextmanager
def _cluster_errors() -> Iterator[None]:
    """Turn the loss of the cluster into one line."""
    ray = _import_ray()
    lost: tuple[type[Exception], ...] = (ConnectionError, ray.exceptions.RaySystemError)
    lost += (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError)
    with suppress(ImportError):
        from grpc import RpcError  # of ray://, which does not translate all  # pyright: ignore

        lost += (RpcError,)
    try:
        yield
    except lost as error:
        details = error.details() if hasattr(error, "details") else error  # pyright: ignore
        reason = reason_of(f"{details}".strip().partition("\n")[0], limit=160)
        raise fail("run", f"the Ray cluster was lost ({reason}); {_RESUMES}.", EnvironmentFailure) from error


class _Board:
    """The actor that tasks report to, and that tells them to stop."""

    def __init__(self) -> None:
        self._reports: dict[Any, tuple[Any, float, str]] = {}
        self._latest: dict[Any, tuple[float, str]] = {}
        self._begun: set[Any] = set()
        self._is_closed, self._interrupts = False, 0

    def begin(self, key: Any) -> bool:
        """Whether the task may begin."""
        if not self._is_closed:
            self.report(key, 0.0, "begins")
        return not self._is_closed

    def report(self, key: Any, fraction: float, description: str) -> int:
        """Keep the latest report of a task; how often Ctrl-C was pressed."""
        self._begun.add(key)
        if self._latest.get(key) != (fraction, description):
            self._latest[key] = fraction, description
            self._reports[key] = key, fraction, description
        return self._interrupts

    def take(self) -> list[tuple[Any, float, str]]:
        """The reports since the last call."""
        reports, self._reports = [*self._reports.values()], {}
        return reports

    def close(self, interrupts: int) -> set[Any]:
        """Let no task begin any more, and pass Ctrl-C on; those that have begun."""
        self._is_closed, self._interrupts = True, interrupts
        return self._begun


@dataclass
class _Outcome:
    """How a task ended, as it is sent back."""

    value: Any = None
    error: BaseException | None = None
    trace: str = ""
    warnings: list[Warning] = field(default_factory=list)

    def result(self) -> Any:
        """The value, or the error raised as it was in the task; its warnings are shown here."""
        for one in self.warnings:
            warnings.warn(one, stacklevel=2)
        if self.error is not None:
            raise self.error from _RemoteTraceback(self.trace)
        return self.value


class _RemoteTraceback(Exception):  # noqa: N818
    """Shows where in the task an error was raised."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def _work(
    board: Any,
    key: Any,
    directory: str,
    expected: Mapping[str, str],
    function: Callable[..., Any],
    *arguments: Any,
) -> _Outcome:
    """Run a task in a process of the cluster, in the directory of the same name if the node has it."""
    if os.path.isdir(directory):
        os.chdir(directory)
    before, threads = signal.signal(signal.SIGINT, signal.default_int_handler), torch.get_num_threads()
    try:
        _require_software(expected)
        with _reporting(board, key) as on_progress, warnings.catch_warnings(record=True) as held:
            value = function(*arguments, on_progress=on_progress)
        return _Outcome(value, warnings=[picklable(one.message) for one in held])
    except KeyboardInterrupt:
        return _Outcome(error=KeyboardInterrupt())
    except Exception as error:
        text = f"on {socket.gethostname()}:\n{traceback.format_exc()}"
        return _Outcome(error=picklable(error), trace=text)
    finally:
        signal.signal(signal.SIGINT, before)
        torch.set_num_threads(threads)  # the process may get other tasks


def _require_software(expected: Mapping[str, str]) -> None:
    """Refuse to work with other software than that of the command, which would give other numbers."""
    found = software()
    for name, version in expected.items():
        if found[name] != version:
            place = socket.gethostname()
            remedy = "install the same on all nodes, or name it in a runtime environment, see docs/scaling.md"
            fact = f"{name} on {place} must be that of the command, expected {version}, got {found[name]}"
            raise fail("run", f"{fact}; {remedy}.", EnvironmentFailure)


@contextmanager
def _reporting(board: Any, key: Any) -> Iterator[OnProgress]:
    """Send the latest progress of a task to the board, and bring Ctrl-C from there.

    A thread asks the board: while the main thread waits for an answer, Ray lends its cores to other tasks.
    """
    ray, may_begin, over = _import_ray(), threading.Event(), threading.Event()
    latest, interrupts = (0.0, "begins"), 0

    def on_progress(fraction: float, description: str) -> None:
        nonlocal latest
        latest = fraction, description

    def exchange() -> None:
        nonlocal interrupts
        is_open, logged = True, 0.0
        for _ in range(_MOST_QUESTIONS):  # a board that has died is restarted, or the cluster is gone
            with suppress(Exception):
                is_open = ray.get(board.begin.remote(key), timeout=_BOARD_SECONDS)
                break
        interrupts = 0 if is_open else 1
        may_begin.set()
        while is_open:
            is_over = over.wait(_REPORT_SECONDS)
            if time.monotonic() - logged > _LOG_SECONDS or is_over:
                logged = time.monotonic()
                print(f"{100 * latest[0]:.0f} %  {latest[1]}", flush=True)
            before = interrupts
            with suppress(Exception):
                interrupts = ray.get(board.report.remote(key, *latest), timeout=_BOARD_SECONDS)
            if is_over:
                return
            if interrupts > before:
                _thread.interrupt_main()  # Ray blocks the signal itself, which a terminal sends to all

    thread = threading.Thread(target=exchange, daemon=True)
    thread.start()
    try:
        may_begin.wait()
        if interrupts:
            raise KeyboardInterrupt
        yield on_progress
    finally:
        over.set()
        thread.join()
