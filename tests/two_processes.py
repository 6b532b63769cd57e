"""Two processes, 13 and 37 of fifty examples, compute metrics of the whole; run by test_streaming."""

import os
import sys
import tempfile
from pathlib import Path

import torch
from torch import distributed, multiprocessing

sys.path.insert(0, str(Path(__file__).parent))
from beliefmatch.metrics import AURC, NLL, ExpectedCalibrationError
from forecasts import forecast


def work(rank: int, rendezvous: str) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    _, probs, targets = forecast(50, 5, seed=1)
    mine = slice(0, 13) if rank == 0 else slice(13, 50)
    metrics = {"ece": ExpectedCalibrationError(), "nll": NLL(), "aurc": AURC()}
    values = {}
    for name, metric in metrics.items():
        metric.update(probs[mine], targets[mine])
        values[name] = metric.compute().item()
    if rank == 0:
        print("\n".join(f"{name} {value!r}" for name, value in values.items()), flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.start_processes(work, (f"{folder}/rendezvous",), nprocs=2, start_method="fork")
