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
from two_trainers import CONFIGS, consistent, trained, trained_with_aux

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
    return json.loads((place / "result.json").read_text())


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return run(str(SCRIPT), "together", place=tmp_path_factory.mktemp("together"))


@pytest.mark.parametrize("size", list(CONFIGS))
def test_two_processes_step_like_one_with_the_whole_batch(result, size):
    alone, two = trained(engine(), CONFIGS[size]), result["trained"][str(size)]
    assert result["world"] == 2
    for name in ("loss", "norm", "weights"):
        assert two[name] == pytest.approx(alone[name], rel=1e-9, abs=1e-11)


def test_an_auxiliary_loss_of_two_processes_is_that_of_one(result):
    alone, two = trained_with_aux(engine()), result["aux"]
    for name in ("loss", "odd", "norm", "weights"):
        assert two[name] == pytest.approx(alone[name], rel=1e-9, abs=1e-11)


@pytest.mark.parametrize("kind", ["vat", "pi"])
def test_consistency_losses_of_two_processes_are_like_those_of_one(result, kind):
    alone, two = consistent(engine(), kind), result["consistent"][kind]
    assert two["agree"] and two["skipped"] == [0, 0, 0]
    assert two["consistency"] == pytest.approx(alone["consistency"], rel=0.5)  # with other random numbers


@pytest.mark.parametrize(("many", "of_the_first"), [(11, 6), (2, 1), (1, 1)])
def test_every_example_is_predicted_once_and_in_order(result, many, of_the_first):
    two, source = result["predicted"][str(many)], Examples(many)
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


def test_weights_and_averages_agree_in_the_end(result):
    assert result["buffers_agree"] is True


def test_all_skip_a_step_that_is_not_finite_in_one(result):
    assert result["skipped"] == [2, 2, 2]


def test_errors_and_signals_of_the_main_process_reach_all(result):
    assert "seed was 0 and is now 1" in result["refused"]
    assert result["interrupted"].startswith("interrupted after step 5 of 18, saved in")


@pytest.mark.slow
def test_a_worker_that_dies_leads_to_a_restart_from_the_checkpoint(tmp_path):
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1"]
    address = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}"]
    result = run(*launcher, *address, str(SCRIPT), "restart", place=tmp_path)
    assert result["restarts"] == "1"
    assert (tmp_path / "once").exists()
    assert result["killed"] == result["undisturbed"]
