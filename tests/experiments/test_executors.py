"""One contract for every executor: this process, processes of this machine, and Ray."""

import os
import re
import signal
import threading
import time
from contextlib import closing

import pytest

from beliefmatch._environment import software
from beliefmatch._files import EnvironmentFailure
from beliefmatch.experiments import ray_executor
from beliefmatch.experiments.config import fingerprint
from beliefmatch.experiments.executors import (
    LocalWorkers,
    Resources,
    Task,
    completed_tasks,
    run_tasks,
    workers_on,
)
from beliefmatch.experiments.grid import Cell, attempt_cells, report_cells, run_cells
from beliefmatch.experiments.records import Diverged, RunRecord
from executor_tasks import (
    SlowBoard,
    counting,
    dying,
    failing,
    failing_in_its_own_way,
    interrupted_once,
    length_of,
    sleeping,
    square,
)
from ray_clusters import needs_ray, own_ray, quiet, ray
from small_runs import comparison, digits_config, without_times

pytestmark = quiet


@pytest.fixture(scope="module")
def one_node():
    with own_ray():
        yield workers_on("ray")


@pytest.fixture(params=["serial", "processes", pytest.param("ray", marks=needs_ray)])
def workers(request):
    if request.param == "ray":
        return request.getfixturevalue("one_node")
    return LocalWorkers(1 if request.param == "serial" else 2)


@needs_ray
def test_a_cluster_that_does_not_answer_is_one_line():
    assert not ray.is_initialized()
    with pytest.raises(EnvironmentFailure, match="`on`"):
        workers_on("ray://127.0.0.1:9").executor([])


@needs_ray
def test_a_dead_ray_address_is_one_line_that_names_it(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "[::1]:9")
    with pytest.raises(EnvironmentFailure, match=r"`on` .*RAY_ADDRESS=\[::1\]:9 \(nobody answers"):
        workers_on("ray").executor([])


@needs_ray
def test_another_port_than_that_of_the_client_server_is_told_which_it_is():
    with pytest.raises(EnvironmentFailure, match=r"10001"):
        workers_on("ray://[::1]:9").executor([])


def test_a_page_from_the_server_is_cut_to_the_error_at_its_end():
    page = "Initialization failure from server:\nTraceback (most recent call last):\n"
    page += (
        '  File "a.py", line 1, in f\n    g()\nRuntimeError: Version mismatch:\n    Ray: 2.9\n    Ray: 2.60\n'
    )
    assert ray_executor._reason(ConnectionError(page)) == "RuntimeError: Version mismatch: Ray: 2.9 Ray: 2.60"
    assert ray_executor._reason(ConnectionError("ray client\ntimeout.")) == "ray client timeout"
    assert ray_executor._reason(ConnectionError()) == "ConnectionError"


def test_a_cluster_that_asks_for_a_token_is_told_by_the_variable_to_set():
    error = ConnectionError("Failed to connect to Ray cluster")
    error.__context__ = RuntimeError("Failed to connect to GCS")
    error.__context__.__context__ = ValueError("Unauthenticated: RPC error: InvalidAuthToken: missing")
    assert "RAY_AUTH_MODE=token" in ray_executor._reason(error)


def test_results_come_in_the_order_of_the_tasks_with_their_progress(workers):
    heard: dict[int, list[float]] = {}
    tasks = [Task(f"square {number}", square, (number,)) for number in range(5)]
    found = run_tasks(tasks, workers, lambda index, fraction, _: heard.setdefault(index, []).append(fraction))
    assert [value for value, _ in found] == [0, 1, 4, 9, 16]
    assert sorted(heard) == [0, 1, 2, 3, 4] and all(fractions[-1] == 1.0 for fractions in heard.values())
    is_here = workers == LocalWorkers(1)
    assert ({process for _, process in found} == {os.getpid()}) == is_here


def test_no_tasks_have_no_results(workers):
    assert run_tasks([], workers) == []


def test_an_error_of_a_task_is_raised_as_it_was_and_not_tried_again(workers, tmp_path):
    with pytest.raises(FloatingPointError) as raised:
        run_tasks([Task("fails", failing, (f"{tmp_path / 'log'}",))] * 1, workers)
    assert raised.value.args == ("the loss is not finite", 7)
    assert (tmp_path / "log").read_text() == "once\n"


@pytest.mark.parametrize("workers", ["processes", pytest.param("ray", marks=needs_ray)], indirect=True)
def test_an_error_that_cannot_be_sent_arrives_in_words(workers):
    tasks = [Task("fails", failing_in_its_own_way, ("example.org",))] * 2
    with pytest.raises(RuntimeError) as raised:
        run_tasks(tasks, workers)
    assert raised.value.args == ("DownloadError: no answer from example.org",)


@pytest.mark.parametrize("workers", ["processes", pytest.param("ray", marks=needs_ray)], indirect=True)
def test_tasks_that_run_are_asked_once_to_stop_and_save(workers, tmp_path):
    files = [tmp_path / f"{number}" for number in range(4)]
    tasks = [Task(file.name, sleeping, (f"{file}",)) for file in files]

    def interrupt(index, fraction, description):
        if sum(file.exists() for file in files) >= 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_tasks(tasks, workers, interrupt)
    assert [file.read_text() for file in files if file.exists()] == ["saved", "saved"]  # two were not begun


def test_sigterm_asks_tasks_that_run_to_stop_and_save(workers, tmp_path):
    files, before = [tmp_path / name for name in "ab"], signal.getsignal(signal.SIGTERM)

    def terminate(index, fraction, description):
        if description == "asleep":
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        run_tasks([Task(file.name, sleeping, (f"{file}",)) for file in files], workers, terminate)
    begun = [file.read_text() for file in files if file.exists()]
    assert begun and set(begun) == {"saved"} and signal.getsignal(signal.SIGTERM) is before


def test_a_shared_value_is_given_to_tasks_itself(workers):
    shared = workers.share({"rows": [3, 4]})
    assert run_tasks([Task("shared", length_of, (shared, name)) for name in ("rows",)], workers) == [2]


@pytest.mark.slow
@needs_ray
@pytest.mark.parametrize(("jobs", "cores", "most"), [(1, 1, 1), (None, 2, 1), (None, 1, 2)])
def test_ray_runs_as_many_tasks_as_jobs_and_cores_allow(one_node, tmp_path, jobs, cores, most):
    tasks = [Task(f"{number}", counting, (f"{tmp_path}",), Resources(cores=cores)) for number in range(4)]
    assert max(run_tasks(tasks, workers_on("ray", jobs=jobs))) == most


@needs_ray
def test_a_task_whose_process_is_killed_runs_again(one_node, tmp_path):
    heard = []
    tasks = [Task("dies", dying, (f"{tmp_path}", 2))]
    assert run_tasks(tasks, one_node, lambda *report: heard.append(report[2])) == [2]
    assert sum("killed" in description for description in heard) == 2


@needs_ray
def test_a_task_whose_process_is_told_to_end_from_outside_runs_again(one_node, tmp_path):
    heard = []
    tasks = [Task("terminated once", interrupted_once, (f"{tmp_path / 'begun'}",))]
    assert run_tasks(tasks, one_node, lambda *report: heard.append(report[2])) == ["done"]
    assert sum("received SIGTERM" in description for description in heard) == 1


@needs_ray
@pytest.mark.parametrize("name", ["Python", "torch", "beliefmatch"])
def test_a_node_with_other_software_is_refused_with_what_differs(one_node, name, monkeypatch):
    assert set(software()) == {"Python", "torch", "beliefmatch"}
    monkeypatch.setattr(ray_executor, "software", lambda: software() | {name: "9.9"})
    with pytest.raises(
        EnvironmentFailure, match=f"{name} on .* expected 9.9, got {re.escape(software()[name])}"
    ):
        run_tasks([Task("square", square, (3,))], one_node)


@needs_ray
def test_cores_that_no_node_has_are_not_waited_for_where_a_task_runs_on_fewer(one_node):
    resources = Resources(cores=64, are_cores_optional=True)
    assert run_tasks([Task("square", square, (3,), resources)], one_node)[0][0] == 9


@needs_ray
def test_a_task_that_no_node_can_hold_is_named_at_once_without_a_terminal_too(one_node, capsys):
    heard: list[str] = []

    def stop(index: int, fraction: float, description: str) -> None:
        heard.append(description)

    with closing(completed_tasks([Task("large", square, (3,), Resources(cores=64))], one_node, stop)) as left:
        timer = threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            next(left)
    assert heard == ["waits for a node with 64 cores and 0 GPUs"]
    (line,) = capsys.readouterr().err.splitlines()
    assert "64 cores" in line and "at most 2 cores" in line and "engine.threads" in line


@pytest.mark.slow
@needs_ray
def test_a_cluster_that_starts_slowly_is_not_lost(one_node, monkeypatch):
    monkeypatch.setattr(ray_executor, "_Board", SlowBoard)
    monkeypatch.setattr(ray_executor, "_BOARD_SECONDS", 2.0)
    monkeypatch.setattr(ray_executor, "_LOST_SECONDS", 0.5)
    assert run_tasks([Task("square", square, (3,))], one_node)[0][0] == 9


@pytest.mark.slow
@needs_ray
def test_a_task_whose_process_is_killed_every_time_is_given_up_with_a_remedy(one_node, tmp_path):
    with pytest.raises(EnvironmentFailure, match=r"dies .*`jobs`"):
        run_tasks([Task("dies", dying, (f"{tmp_path}", 99))], one_node)
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.slow
@needs_ray
def test_closing_the_iterator_ends_what_runs(one_node, tmp_path):
    tasks = [Task("quick", square, (3,)), Task("slow", sleeping, (f"{tmp_path / 'slow'}",))]
    with closing(completed_tasks(tasks, one_node)) as completed:
        assert next(completed)[1][0] == 9
        while not (tmp_path / "slow").exists():
            time.sleep(0.05)
    assert (tmp_path / "slow").read_text() == "saved"


@pytest.mark.slow
@needs_ray
def test_a_grid_on_ray_gives_the_records_of_this_process(one_node, tmp_path):
    here = comparison(tmp_path / "here", seeds=(5,)).run().record
    there = comparison(tmp_path / "there", seeds=(5,), workers=one_node).run()
    for one, other in zip(here.methods, there.record.methods, strict=True):
        assert [without_times(run) for run in one.runs] == [without_times(run) for run in other.runs]
    assert there.evaluations[0].scores["nll"].value == there.record.methods[0].runs[0].test.nll


@pytest.mark.slow
@needs_ray
def test_a_training_that_diverges_on_ray_is_a_result_or_an_error_and_its_neighbours_go_on(one_node, tmp_path):
    steep, plain = digits_config("belief_matching", "training.learning_rate=1e30"), digits_config()
    cells = [
        Cell(steep, tmp_path / "steep", "steep", may_diverge=True),
        Cell(plain, tmp_path / "plain", "plain"),
    ]
    heard: list[str] = []
    diverged, record = attempt_cells(cells, workers=one_node, on_cell=lambda *one: heard.append(one[2]))
    assert isinstance(diverged, Diverged) and "were not finite" in diverged.message
    assert isinstance(record, RunRecord) and record.fingerprint == fingerprint(plain)
    assert not any("goes on from" in description for description in heard)
    with pytest.raises(FloatingPointError, match="were not finite"):
        run_cells([Cell(steep, tmp_path / "alone", "steep")], workers=one_node)


def test_the_place_of_work_is_refused_where_it_cannot_be_read():
    for text in ("", "slurm", "ray://", "ray://host", "ray:host:10001"):
        with pytest.raises(ValueError, match="`on`") as raised:
            workers_on(text)
        assert raised.value.argument == "on"  # type: ignore[attr-defined]


@pytest.mark.skipif(ray is not None, reason="Ray is installed")
def test_without_ray_one_line_names_the_extra():
    with pytest.raises(ModuleNotFoundError, match=r'pip install "beliefmatch\[cluster\]"'):
        workers_on("ray")


def test_progress_lists_every_cell_at_work():
    shown: list[tuple[float, str]] = []
    on_cell = report_cells(lambda *one: shown.append(one), [f"cell {number}" for number in range(10)])
    on_cell(1, 0.5, "epoch 1")
    on_cell(0, 0.5, "epoch 2")
    assert shown[-1] == (0.1, "cell 0: epoch 2\ncell 1: epoch 1")
    on_cell(1, 1.0, "done")
    assert shown[-1] == (0.15, "cell 0: epoch 2")
    for number in range(10):
        on_cell(number, 0.1, "epoch 1")
    assert shown[-1][1].count("\n") == 8 and shown[-1][1].endswith("and 2 more")
