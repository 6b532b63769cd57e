"""What a Ray cluster costs beside processes of this machine: by the task, and over a grid of digits.

    python benchmarks/cluster.py [--cells 12] [--out benchmarks/cluster.json]

Appends a round to the file. Both get the same cells. The start of Ray, and of the processes that it keeps, is
measured apart; processes of this machine are started anew by each grid, which is counted, because every
command does so.
"""

import argparse
import json
import logging
import os
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from beliefmatch._environment import provenance
from beliefmatch.experiments.config import config_from, overridden, recipe, with_method
from beliefmatch.experiments.executors import LocalWorkers, Task, Workers, run_tasks, workers_on
from beliefmatch.experiments.grid import Cell, run_cells


def nothing(*, on_progress: Any) -> int:
    return os.getpid()


def seconds_of_tasks(workers: Workers, tasks: int) -> float:
    began = time.perf_counter()
    run_tasks([Task(f"{number}", nothing) for number in range(tasks)], workers)
    return time.perf_counter() - began


def overhead(workers: Workers, *, few: int = 8, many: int = 1008) -> float:
    """Milliseconds of a task that does nothing: the difference of many and few, so that starts drop out."""
    return 1000 * (seconds_of_tasks(workers, many) - seconds_of_tasks(workers, few)) / (many - few)


def grid_seconds(workers: Workers, cells: int) -> float:
    settings = overridden(recipe("digits"), [])
    with tempfile.TemporaryDirectory() as name:
        made = []
        for number in range(cells):
            method = ("softmax", "belief_matching")[number % 2]
            config = config_from(with_method({**settings, "seed": number}, method))
            made.append(Cell(config, Path(name) / f"{number}", f"{method}, seed {number}"))
        began = time.perf_counter()
        run_cells(made, workers=workers)
        return time.perf_counter() - began


@contextmanager
def nodes(count: int):
    """A cluster of nodes with one core each."""
    import ray  # pyright: ignore[reportMissingImports]
    from ray.cluster_utils import Cluster  # pyright: ignore[reportMissingImports]

    head = {"num_cpus": 1, "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(count - 1):
        made.add_node(num_cpus=1)
    ray.init(made.address, log_to_driver=False, logging_level=logging.ERROR)
    try:
        yield
    finally:
        ray.shutdown()
        made.shutdown()


def measured(cells: int) -> dict[str, Any]:
    found: dict[str, Any] = {"cells": cells, "load_before": os.getloadavg()[0]}
    one, two = LocalWorkers(1), LocalWorkers(2)
    grid_seconds(one, 1)  # files of the packages are read, the data loaded
    found["grid_seconds"] = {
        "this process": grid_seconds(one, cells),
        "2 processes": grid_seconds(two, cells),
    }
    found["task_ms"] = {"2 processes": overhead(two)}
    for count in (1, 2):
        name, began = f"Ray, {count} worker{'s' * (count > 1)}", time.perf_counter()
        with nodes(count):
            workers = workers_on("ray")
            seconds_of_tasks(workers, count)
            found.setdefault("start_seconds", {})[name] = time.perf_counter() - began
            found["grid_seconds"][f"{name}, first grid"] = grid_seconds(workers, cells)
            found["grid_seconds"][f"{name}, next grid"] = grid_seconds(workers, cells)
            found["task_ms"][name] = overhead(workers)
    return found | {"load_after": os.getloadavg()[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cells", type=int, default=12)
    parser.add_argument("--out", default="benchmarks/cluster.json")
    options = parser.parse_args()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_TMPDIR", tempfile.mkdtemp(prefix="bm"))
    began = time.perf_counter()
    found = measured(options.cells)
    found |= provenance(time.perf_counter() - began, "beliefmatch", "torch", "ray")
    path = Path(options.out)
    rounds = json.loads(path.read_text()) if path.exists() else []
    path.write_text(json.dumps([*rounds, found], indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
