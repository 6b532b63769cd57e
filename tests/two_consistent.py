"""Two processes add a consistency loss behind DDP; run by test_semi_distributed, which reads it."""

import json
import os
import sys
import tempfile
from pathlib import Path

import torch
from torch import distributed, multiprocessing
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parent))
from beliefmatch.semi import pi_model, vat
from small_classifiers import drawn, normalising, seeded

LOSSES = {"vat": lambda *given, **how: vat(*given, epsilon=0.7, **how), "pi": pi_model}


def total(loss, network, rank, step):
    """A supervised and a consistency loss of the examples and dropout of this process."""
    labelled, unlabelled = drawn(5, 6, seed=mine(rank, step, 0)), drawn(7, 6, seed=mine(rank, step, 1))
    torch.manual_seed(mine(rank, step, 2))
    supervised = functional.cross_entropy(network(labelled), torch.tensor([0, 1, 2, 3, 0]))
    before = [buffer.clone() for buffer in network.buffers()]
    consistency = LOSSES[loss](network, unlabelled, generator=seeded(mine(rank, step, 3)))
    same = all(torch.equal(*pair) for pair in zip(before, network.buffers(), strict=True))
    return supervised + consistency, consistency.item(), same


def mine(*numbers):
    return sum(number * 10**at for at, number in enumerate(numbers))


def compared(loss, rank):
    """Gradients behind DDP against the mean of those that each process has alone; a few steps."""
    alone, network = normalising(dropout=0.3).train(), normalising(dropout=0.3).train()
    parallel = DistributedDataParallel(network)
    return [compared_step(loss, rank, step, parallel, network, alone) for step in range(3)]


def compared_step(loss, rank, step, parallel, network, alone):
    value, consistency, same = total(loss, parallel, rank, step)
    value.backward()
    total(loss, alone, rank, step)[0].backward()
    gap, between = 0.0, 0.0
    for own, other in zip(network.parameters(), alone.parameters(), strict=True):
        before = other.grad.clone()
        distributed.all_reduce(other.grad)
        gap = max(gap, (own.grad - other.grad / 2).abs().max().item())
        between = max(between, (before - other.grad / 2).abs().max().item())
        with torch.no_grad():
            own -= 0.1 * own.grad
            other.copy_(own)
        own.grad = other.grad = None
    return {"gap": gap, "between": between, "consistency": consistency, "same": same}


def work(rank, place):
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{place}/meet", rank=rank, world_size=2)
    said = {loss: compared(loss, rank) for loss in LOSSES}
    (Path(place) / f"{rank}.json").write_text(json.dumps(said))
    distributed.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.start_processes(work, (folder,), nprocs=2, start_method="fork")
        print(json.dumps([json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in (0, 1)]))
