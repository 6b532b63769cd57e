"""Two processes against one: the same gradients, every example once, and a restart from the checkpoint.

The tests run this file as a script, which starts two processes; the main process writes the results.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from beliefmatch.methods import build
from beliefmatch.semi import Consistency, SemiConfig
from beliefmatch.train import (
    AuxLoss,
    Checkpointing,
    Engine,
    EngineConfig,
    Interrupted,
    TrainConfig,
    predict_all,
)
from small_training import Exactly, Examples, digest, engine, normalised_network, plain_network, train

# 37 examples in batches of 5 leave one of 2; batches of 18 leave one of 1, which joins the batch before.
SIZES = (5, 18, 3)


def in_double(source):
    source.images = source.images.double()
    return source


def trained(on, batch_size, with_aux=False):
    """Losses, norms and weights of a training, with an auxiliary loss on batches that do not halve evenly."""

    def odd(network, views, seed):
        return (network(views[0].inputs) - network(-views[0].inputs)).square().sum(1).mean()

    options = {"source": in_double(Exactly(37))}
    if with_aux:
        others = in_double(Exactly(23, seed=2))
        aux = AuxLoss("odd", others, odd, lambda progress: 0.5 + progress, batch_size=3)
        options = {"source": in_double(Exactly(7)), "aux": aux, "epoch_examples": 37}
    network = plain_network(seed=on.rank).double()  # the main process's weights are used
    config = TrainConfig(epochs=2, batch_size=batch_size, learning_rate=0.3, weight_decay=0.0)
    history = train(network, on=on, config=config, **options)
    names = ["loss", "gradient_norm", "odd"] if with_aux else ["loss", "gradient_norm"]
    numbers = [value for name in names for value in history.curve(name)]
    return [*numbers, *torch.nn.utils.parameters_to_vector(network.parameters()).tolist()]


def consistent(on, kind):
    """A training in which each process searches its own adversarial directions."""
    consistency = Consistency(SemiConfig(kind=kind, weight=1.0, epsilon=1.0), has_belief=True)

    def loss(network, views, seed):
        return consistency.loss(network, views[0].inputs, seed, views[-1].inputs if kind == "pi" else None)

    network = normalised_network()
    aux = AuxLoss("consistency", Examples(23, seed=2), loss, lambda progress: 1.0, views=2)
    history = train(network, on=on, aux=aux)
    numbers = torch.cat([tensor.double().flatten() for tensor in network.state_dict().values()])
    sums = torch.tensor(on.sum_over_processes(numbers.tolist()), dtype=torch.float64)
    return {
        "weights_agree": torch.equal(sums, on.world_size * numbers),
        "consistency": history.curve("consistency"),
        "skipped": history.curve("skipped"),
    }


def predicted(on, many):
    source, method = Examples(many), build("belief_matching", kl_weight=0.01)
    made = predict_all(on, method.predictor(normalised_network()), source, batch_size=4)
    assert made.logits is not None
    return {
        "probs": made.probs.flatten().tolist(),
        "logits": made.logits.flatten().tolist(),
        "targets": made.targets.tolist(),
        "own": torch.cat(source.seen).tolist(),
    }


def skipped(on):
    """Steps that both processes skip because the loss of the second process is not finite."""
    calls = iter(range(1000))

    def objective(logits, targets):
        is_spoiled = on.rank == 1 and next(calls) % 3 == 1
        loss = functional.cross_entropy(logits, targets)
        return loss + float("inf") if is_spoiled else loss  # the gradient stays finite

    return train(normalised_network(), on=on, objective_at=lambda progress: objective).curve("skipped")


def raised(error, on, directory, **options):
    """The message of the error that a training ends with in all processes."""
    try:
        train(plain_network(), on=on, checkpointing=Checkpointing(directory), **options)
    except error as received:
        return str(received)


def terminate_main_process(progress):
    if progress.step == 4:
        os.kill(os.getpid(), signal.SIGTERM)


def together(on, directory):
    train(plain_network(), on=on, checkpointing=Checkpointing(directory / "refused"))
    return {
        "world_size": on.world_size,
        "trained": {size: trained(on, size) for size in SIZES},
        "with_aux": trained(on, 5, with_aux=True),
        "consistent": {kind: consistent(on, kind) for kind in ("vat", "pi")},
        "predicted": {many: predicted(on, many) for many in (11, 2, 1)},
        "skipped": skipped(on),
        "refused": raised(ValueError, on, directory / "refused", seed=1),
        "interrupted": raised(Interrupted, on, directory / "stopped", on_progress=terminate_main_process),
    }


def restart(on, directory):
    """A training whose second process kills itself once, and one that is not disturbed."""

    class Deadly(Examples):
        def batches(self, indices, **options):
            for batch in super().batches(indices, **options):
                if on.rank == 1 and len(self.seen) == 25 and not (directory / "once").exists():
                    (directory / "once").touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                yield batch

    weights = {}
    for name, source in (("undisturbed", Examples(45)), ("killed", Deadly(45))):
        network = normalised_network()
        checkpointing = Checkpointing(directory / name, every_seconds=0)
        config = TrainConfig(epochs=6, batch_size=8, ema=0.9)
        train(network, on=on, source=source, config=config, checkpointing=checkpointing)
        weights[name] = digest(network)
    return {**weights, "restarts": os.environ["TORCHELASTIC_RESTART_COUNT"]}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def run(*command, directory):
    environment = {"GLOO_SOCKET_IFNAME": "lo", "MASTER_PORT": free_port(), "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(
        [sys.executable, *command, str(directory)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads((directory / "result.json").read_text())


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return run(__file__, "together", directory=tmp_path_factory.mktemp("together"))


@pytest.mark.parametrize("size", SIZES)
def test_two_processes_step_like_one_with_the_whole_batch(result, size):
    assert result["world_size"] == 2
    assert result["trained"][str(size)] == pytest.approx(trained(engine(), size), rel=1e-9, abs=1e-11)


def test_an_auxiliary_loss_of_two_processes_is_that_of_one(result):
    assert result["with_aux"] == pytest.approx(trained(engine(), 5, with_aux=True), rel=1e-9, abs=1e-11)


@pytest.mark.parametrize("kind", ["vat", "pi"])
def test_consistency_losses_of_two_processes_are_like_those_of_one(result, kind):
    alone, two = consistent(engine(), kind), result["consistent"][kind]
    assert two["weights_agree"] and two["skipped"] == [0, 0, 0]
    assert two["consistency"] == pytest.approx(alone["consistency"], rel=0.5)  # with other random numbers


@pytest.mark.parametrize(("many", "of_the_first"), [(11, 6), (2, 1), (1, 1)])
def test_every_example_is_predicted_once_and_in_order(result, many, of_the_first):
    alone, two = predicted(engine(), many), result["predicted"][str(many)]
    assert two["own"] == list(range(of_the_first))
    assert two["probs"] == pytest.approx(alone["probs"], rel=1e-5, abs=1e-7)
    assert two["logits"] == pytest.approx(alone["logits"], rel=1e-5, abs=1e-5)
    assert two["targets"] == Examples(many).targets.tolist()


def test_all_processes_skip_a_step_that_is_not_finite_in_one(result):
    assert result["skipped"] == [2, 2, 2]


def test_errors_and_signals_of_the_main_process_reach_all(result):
    assert "seed was 0 and is now 1" in result["refused"]
    assert result["interrupted"].startswith("interrupted after step 5 of 18, saved in")


@pytest.mark.slow
def test_a_process_that_dies_leads_to_a_restart_from_the_checkpoint(tmp_path):
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1"]
    address = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}"]
    result = run(*launcher, *address, __file__, "restart", directory=tmp_path)
    assert result["restarts"] == "1"
    assert (tmp_path / "once").exists()
    assert result["killed"] == result["undisturbed"]


if __name__ == "__main__":
    torch.set_num_threads(1)
    job, directory = {"together": together, "restart": restart}[sys.argv[1]], Path(sys.argv[2])
    two = Engine(EngineConfig(accelerator="cpu", devices="2", precision="32", threads=1))
    outcome = job(two, directory)
    if two.is_main_process:
        (directory / "result.json").write_text(json.dumps(outcome))
    torch.distributed.destroy_process_group()
