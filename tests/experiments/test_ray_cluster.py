"""Grids on clusters of several Ray nodes, and what becomes of them when plugs are pulled."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from beliefmatch.experiments.executors import Resources, Task, run_tasks, workers_on
from beliefmatch.experiments.records import ComparisonRecord
from commands import MAIN
from executor_tasks import hungry, where
from ray_clusters import cluster, free_port, needs_ray, own_ray, quiet
from small_runs import comparison, without_times

pytestmark = [needs_ray, pytest.mark.slow, quiet]

MEMBERS = "ensemble:members=4,belief_ensemble:members=4"
LONG = ("training.epochs=40", "model.options.width=32")


def runs_of(record: ComparisonRecord) -> list:
    return [without_times(run) for method in record.methods for run in method.runs]


@pytest.fixture(scope="module")
def long_records(tmp_path_factory):
    return runs_of(
        comparison(tmp_path_factory.mktemp("long"), MEMBERS, seeds=(5,), settings=LONG).run().record
    )


def test_a_grid_over_two_nodes_gives_the_records_of_this_process(tmp_path):
    here = runs_of(comparison(tmp_path / "here").run().record)
    with cluster(1, 1):
        workers = workers_on("ray")
        nodes = run_tasks([Task(f"{number}", where) for number in range(4)], workers)
        there = comparison(tmp_path / "there", workers=workers).run()
    assert len(set(nodes)) == 2
    assert runs_of(there.record) == here


def test_a_node_killed_in_the_middle_loses_nothing(tmp_path, long_records):
    heard: list[str] = []
    with cluster(1, 1) as (made, nodes):
        out, killed = tmp_path / "out", []

        def kill(fraction: float, description: str) -> None:
            heard.append(description)
            trained = list(out.glob("runs/*/network-1/step-*.json"))
            if not killed and len({path.parents[1] for path in trained}) == 2:
                killed.append({path: path.stat().st_mtime_ns for path in trained})
                made.remove_node(nodes[0], allow_graceful=False)

        there = comparison(out, MEMBERS, seeds=(5,), settings=LONG, workers=workers_on("ray")).run(kill)
    assert killed and any("its node died" in description for description in heard)
    assert {path: path.stat().st_mtime_ns for path in killed[0]} == killed[0]  # not trained again
    assert runs_of(there.record) == long_records


def compare_command(out: Path, on: str) -> list[str]:
    options = ["--methods", MEMBERS, "--seeds", "1", "--seed", "5", "--on", on, "--out", f"{out}"]
    sets = ("training.warmup=[]", "data.limit=200", "ood=[noise]", *LONG)
    return [
        sys.executable,
        "-c",
        MAIN,
        "compare",
        *options,
        *(word for one in sets for word in ("--set", one)),
    ]


def wait_for_networks(out: Path, process: subprocess.Popen[str]) -> None:
    """Until the second member of an ensemble has begun: the first is finished."""
    deadline = time.monotonic() + 300
    while not list(out.glob("runs/*/network-1/log.csv")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_ctrl_c_keeps_what_was_trained_and_the_same_command_goes_on(tmp_path, long_records):
    with cluster(1, 1, joined=False) as (made, _):
        os.environ["RAY_ADDRESS"] = made.address
        try:
            line = compare_command(tmp_path, "ray")
            begun = subprocess.Popen(line, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            wait_for_networks(tmp_path, begun)
            begun.send_signal(signal.SIGINT)
            _, errors = begun.communicate(timeout=90)
            assert begun.returncode == 130, errors
            assert "the same command continues" in errors and "Traceback" not in errors
            assert not list(tmp_path.glob("runs/*/record.json"))
            finished = [path.parents[1] for path in tmp_path.glob("runs/*/network-1/log.csv")]
            files = [path for run in finished for path in run.glob("network-0/step-*.json")]
            saved = {path: path.stat().st_mtime_ns for path in files}
            done = subprocess.run(line, capture_output=True, text=True, timeout=300)
        finally:
            del os.environ["RAY_ADDRESS"]
    assert done.returncode == 0, done.stderr
    assert saved and {path: path.stat().st_mtime_ns for path in saved} == saved  # not trained again
    assert runs_of(ComparisonRecord.from_json((tmp_path / "comparison.json").read_text())) == long_records


def test_after_the_head_was_restarted_the_same_command_goes_on(tmp_path, long_records):
    port = free_port()
    line = compare_command(tmp_path, f"ray://127.0.0.1:{port}")
    with cluster(1, 1, joined=False, ray_client_server_port=port):
        begun = subprocess.Popen(line, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        wait_for_networks(tmp_path, begun)
    _, errors = begun.communicate(timeout=180)
    assert begun.returncode == 2, errors
    assert "repeat the command to resume" in errors.splitlines()[-1] and "Traceback" not in errors
    with cluster(2, joined=False, ray_client_server_port=port):
        done = subprocess.run(line, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert runs_of(ComparisonRecord.from_json((tmp_path / "comparison.json").read_text())) == long_records


def test_a_driver_whose_head_dies_ends_with_the_remedy_before_ray_ends_it(tmp_path):
    with cluster(2, joined=False) as (made, _):
        os.environ["RAY_ADDRESS"] = made.address
        try:
            line = compare_command(tmp_path, "ray")
            begun = subprocess.Popen(line, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            wait_for_networks(tmp_path, begun)
        finally:
            del os.environ["RAY_ADDRESS"]
        made.head_node.kill_gcs_server()
        _, errors = begun.communicate(timeout=120)
    assert begun.returncode == 2, errors
    lines = [one for one in errors.splitlines() if one.startswith("beliefmatch")]
    assert len(lines) == 1 and "repeat the command to resume" in lines[0] and "Traceback" not in errors


def test_a_task_that_runs_out_of_memory_is_given_up_and_another_is_not(tmp_path):
    import psutil

    memory = psutil.virtual_memory()
    config = {
        "memory_usage_threshold": memory.percent / 100 + 2e9 / memory.total,
        "memory_monitor_refresh_ms": 50,
    }
    with own_ray(_system_config=config):
        workers, heard = workers_on("ray"), list[str]()
        assert run_tasks([Task("modest", hungry, (10**6,))], workers) == [10**6]
        with pytest.raises(ValueError, match="hungry"):
            run_tasks([Task("hungry", hungry, (6 * 10**9,))], workers, lambda *one: heard.append(one[2]))
    assert sum("out of memory" in one or "was killed" in one for one in heard) == 2


def test_a_full_disk_is_the_error_of_the_run_and_is_not_tried_again(tmp_path):
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", f"{place}"], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("needs the right to mount a file system")
    try:
        with own_ray(), pytest.raises(OSError) as raised:
            comparison(place / "out", seeds=(5,), workers=workers_on("ray")).run()
    finally:
        subprocess.run(["umount", "-l", f"{place}"], check=True)
    assert raised.value.errno == errno.ENOSPC and f"{place}" in f"{raised.value.filename}"


def test_results_go_to_an_object_store_that_no_node_shares(tmp_path, monkeypatch):
    pytest.importorskip("s3fs", reason="needs s3fs")
    server = pytest.importorskip("moto.server", reason="needs moto").ThreadedMotoServer(port=0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        for name, value in {
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        }.items():
            monkeypatch.setenv(name, value)
        import s3fs

        s3fs.S3FileSystem().mkdir("grids")
        from beliefmatch.experiments.storage import local_output

        with own_ray():
            for _ in range(2):  # the second finds all runs finished
                with local_output("s3://grids/digits") as (path, url):
                    there = comparison(path, seeds=(5,), workers=workers_on("ray"), url=url).run()
        names = s3fs.S3FileSystem().find("grids/digits")
    finally:
        server.stop()
    assert runs_of(there.record) == runs_of(comparison(tmp_path, seeds=(5,)).run().record)
    assert sum(name.endswith("/record.json") for name in names) == 2
    assert sum(name.endswith(".safetensors") for name in names) >= 2


def test_a_run_whose_network_needs_more_than_any_node_has_says_that_it_waits():
    heard: list[str] = []

    def stop(index: int, fraction: float, description: str) -> None:
        heard.append(description)
        raise KeyboardInterrupt

    with own_ray(), pytest.raises(KeyboardInterrupt):
        run_tasks([Task("large", where, (), Resources(cores=64))], workers_on("ray"), stop)
    assert heard == ["waits for a node with 64 cores and 0 GPUs"]
