"""A training that is killed several times and resumed; run by test_resume.

Prints how often it was killed, and digests of its weights and of those of an undisturbed training. The
trainings are forked from a process that has not trained, because starting torch takes longer.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import lightning_fabric  # noqa: F401  # once, rather than in every child
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from beliefmatch.train.checkpoint import Checkpointing, final_weights
from beliefmatch.train.config import TrainConfig
from small_training import digest, engine, normalised_network, train

CONFIG = TrainConfig(epochs=5, batch_size=8, learning_rate=0.1, ema=0.9)


def forked(directory: Path) -> int:
    child = os.fork()
    if child == 0:
        try:
            checkpointing = Checkpointing(directory, every_seconds=0)
            train(normalised_network(), on=engine("bf16"), config=CONFIG, checkpointing=checkpointing)
            os._exit(0)
        finally:
            os._exit(1)
    return child


def killed(child: int, directory: Path, *, after: float) -> bool:
    """Kill a child some seconds after it has written a checkpoint; whether it was still alive."""
    before, end = names(directory), None
    while end is None or time.perf_counter() < end:
        if os.waitpid(child, os.WNOHANG)[0]:
            return False
        if end is None and names(directory) != before:
            end = time.perf_counter() + after
        time.sleep(0.0005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("*.json"))


def final_digest(directory: Path) -> str:
    network = normalised_network(seed=99)
    weights = final_weights(directory)
    assert weights is not None
    network.load_state_dict(weights)
    return digest(network)


if __name__ == "__main__":
    torch.set_num_threads(1)
    rng, kills = random.Random(0), 0
    alone, disturbed = Path(sys.argv[1]) / "alone", Path(sys.argv[1]) / "killed"
    while kills < 5 and killed(forked(disturbed), disturbed, after=rng.uniform(0, 0.02)):
        kills += 1
    for directory in (alone, disturbed):
        assert os.waitpid(forked(directory), 0)[1] == 0
    print(kills, final_digest(alone), final_digest(disturbed))
