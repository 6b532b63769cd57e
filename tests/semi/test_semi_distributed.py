"""Two processes behind DDP against each alone: the same mean gradient, buffers left as they are."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def said():
    script = Path(__file__).parents[1] / "two_consistent.py"
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("loss", ["vat", "pi"])
def test_gradients_behind_ddp_are_the_mean_over_processes(said, loss):
    for steps in said:
        for step in steps[loss]:
            assert step["gap"] < 1e-12 < 1e-3 < step["between"]
            assert step["consistency"] > 0


@pytest.mark.parametrize("loss", ["vat", "pi"])
def test_buffers_of_all_processes_are_left_as_they_are(said, loss):
    """Also between a supervised pass and its backward."""
    assert all(step["same"] for steps in said for step in steps[loss])
