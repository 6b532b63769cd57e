"""Two processes against one: the same gradients, every example once, and a restart from the checkpoint."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from beliefmatch.methods import build
from beliefmatch.train.predict import predict_all
from small_training import Examples, engine, normalised_network
from two_trainers import CONFIGS, consistent, trained, trained_beside

SCRIPT = Path(__file__).parents[1] / "two_trainers.py"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def run(*command, place):
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "MASTER_PORT": free_port()}
    done = subprocess.run(
        [sys.executable, *command, str(place)], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return json.loads((place / "said.json").read_text())


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    return run(str(SCRIPT), "together", place=tmp_path_factory.mktemp("together"))


@pytest.mark.parametrize("size", list(CONFIGS))
def test_two_processes_step_like_one_with_the_whole_batch(said, size):
    alone, two = trained(engine(), CONFIGS[size]), said["trained"][str(size)]
    assert said["world"] == 2
    for name in ("loss", "norm", "weights"):
        assert two[name] == pytest.approx(alone[name], rel=1e-9, abs=1e-11)


def test_a_further_loss_of_two_processes_is_that_of_one(said):
    alone, two = trained_beside(engine()), said["beside"]
    for name in ("loss", "odd", "norm", "weights"):
        assert two[name] == pytest.approx(alone[name], rel=1e-9, abs=1e-11)


@pytest.mark.parametrize("kind", ["vat", "pi"])
def test_unlabelled_images_are_learnt_from_by_two_processes_as_by_one(said, kind):
    alone, two = consistent(engine(), kind), said["consistent"][kind]
    assert two["agree"] and two["skipped"] == [0, 0, 0]
    assert two["consistency"] == pytest.approx(alone["consistency"], rel=0.5)  # by other chance


@pytest.mark.parametrize(("many", "of_the_first"), [(11, 6), (2, 1), (1, 1)])
def test_every_example_is_predicted_once_and_in_order(said, many, of_the_first):
    two, source = said["predicted"][str(many)], Examples(many)
    method = build("belief_matching", kl_weight=0.01)
    alone = predict_all(engine(), method.predictor(normalised_network()), source, batch_size=4)
    assert two["mine"] == list(range(of_the_first))
    assert alone.logits is not None
    torch.testing.assert_close(
        torch.tensor(two["probs"], dtype=torch.float64), alone.probs, rtol=1e-5, atol=1e-7
    )
    assert torch.tensor(two["logits"]).flatten().tolist() == pytest.approx(
        alone.logits.flatten().tolist(), rel=1e-5, abs=1e-5
    )
    assert two["targets"] == source.targets.tolist()


def test_weights_and_averages_agree_in_the_end(said):
    assert said["buffers_agree"] is True


def test_all_skip_a_step_that_one_cannot_take(said):
    assert said["skipped"] == [2, 2, 2]


def test_all_hear_of_what_the_first_one_meets(said):
    assert "seed was 0 and is now 1" in said["refused"]
    assert said["interrupted"].startswith("interrupted after step 5 of 18, saved in")


@pytest.mark.slow
def test_a_worker_that_dies_leads_to_a_restart_from_the_checkpoint(tmp_path):
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1"]
    address = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}"]
    said = run(*launcher, *address, str(SCRIPT), "restart", place=tmp_path)
    assert said["restarts"] == "1"
    assert (tmp_path / "once").exists()
    assert said["killed"] == said["undisturbed"]
