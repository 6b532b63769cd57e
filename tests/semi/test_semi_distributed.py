"""Consistency losses behind DDP: the gradient is the mean over processes, and buffers do not change.

The fixture runs this file as a script, which starts two processes and prints what they computed.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from torch import distributed, multiprocessing
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from beliefmatch.semi import pi_model, vat
from small_classifiers import drawn, normalising, seeded

pytestmark = pytest.mark.slow
LOSSES = {"vat": lambda *given, **options: vat(*given, epsilon=0.7, **options), "pi": pi_model}


def total_loss(loss, network, rank, step):
    """A supervised and a consistency loss with examples and dropout of this process."""
    first_seed = 100 * rank + 10 * step
    labelled, unlabelled = drawn(5, 6, seed=first_seed), drawn(7, 6, seed=first_seed + 1)
    torch.manual_seed(first_seed + 2)
    supervised = functional.cross_entropy(network(labelled), torch.tensor([0, 1, 2, 3, 0]))
    before = [buffer.clone() for buffer in network.buffers()]
    consistency = LOSSES[loss](network, unlabelled, generator=seeded(first_seed + 3))
    unchanged = all(torch.equal(*pair) for pair in zip(before, network.buffers(), strict=True))
    return supervised + consistency, consistency.item(), unchanged


def compared_step(loss, rank, step, parallel, alone):
    """The gradient behind DDP against the mean of the gradients that each process has alone."""
    value, consistency, unchanged = total_loss(loss, parallel, rank, step)
    value.backward()
    total_loss(loss, alone, rank, step)[0].backward()
    error, difference = 0.0, 0.0
    for own, other in zip(parallel.module.parameters(), alone.parameters(), strict=True):
        before = other.grad.clone()
        distributed.all_reduce(other.grad)
        error = max(error, (own.grad - other.grad / 2).abs().max().item())
        difference = max(difference, (before - other.grad / 2).abs().max().item())
        with torch.no_grad():
            own -= 0.1 * own.grad
            other.copy_(own)
        own.grad = other.grad = None
    return {"error": error, "difference": difference, "consistency": consistency, "unchanged": unchanged}


def work(rank, directory):
    torch.set_num_threads(1)
    rendezvous = f"file://{directory}/rendezvous"
    distributed.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=2)
    results = {}
    for loss in LOSSES:
        alone, network = normalising(dropout=0.3).train(), normalising(dropout=0.3).train()
        parallel = DistributedDataParallel(network)
        results[loss] = [compared_step(loss, rank, step, parallel, alone) for step in range(3)]
    (Path(directory) / f"{rank}.json").write_text(json.dumps(results))
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def results():
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, __file__], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("loss", LOSSES)
def test_gradients_behind_ddp_are_the_mean_over_processes_and_buffers_do_not_change(results, loss):
    for steps in results:
        for step in steps[loss]:
            assert step["error"] < 1e-12 < 1e-3 < step["difference"]
            assert step["consistency"] > 0
            assert step["unchanged"]  # also between a supervised pass and its backward


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        multiprocessing.start_processes(work, (directory,), nprocs=2, start_method="fork")
        print(json.dumps([json.loads((Path(directory) / f"{rank}.json").read_text()) for rank in (0, 1)]))
