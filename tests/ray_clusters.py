"""Ray clusters of this machine for tests, each with a directory of its own."""

import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

try:
    import ray
except ModuleNotFoundError:
    ray: Any = None

needs_ray = pytest.mark.skipif(ray is None, reason='needs Ray: pip install "beliefmatch[cluster]"')
# sockets of processes that Ray has started, and that it leaves to the end of this one
quiet = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


@contextmanager
def own_ray(cores: int = 2, **options: Any) -> Iterator[None]:
    """A Ray of this process on one node."""
    with _environment():
        ray.init("local", num_cpus=cores, include_dashboard=False, log_to_driver=False, **options)
        try:
            yield
        finally:
            ray.shutdown()


@contextmanager
def cluster(*cores: int, joined: bool = True, **head: Any) -> Iterator[tuple[Any, list[Any]]]:
    """A cluster of a head without cores and nodes with these, and whether this process joins it."""
    from ray.cluster_utils import Cluster

    with _environment():
        made = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **head}
        )
        try:
            nodes = [made.add_node(num_cpus=count) for count in cores]
            if joined:
                ray.init(made.address, log_to_driver=False, logging_level="ERROR")
            yield made, nodes
        finally:
            ray.shutdown()
            made.shutdown()


@contextmanager
def _environment() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="bm") as name:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_TMPDIR", name)  # where the address of the latest cluster is kept
        patch.setenv("RAY_TQDM_PATCH_PRINT", "0")  # else Ray replaces `print` for all later tests
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "1")
        patch.setenv(
            "PYTHONPATH", os.pathsep.join([os.path.dirname(__file__), os.environ.get("PYTHONPATH", "")])
        )
        yield


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
