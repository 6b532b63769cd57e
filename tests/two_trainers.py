"""Two processes train and predict as one; run by test_distributed, which reads what the first one prints.

With "restart", under torchrun: a worker of the second training kills itself once, in the middle of it.
"""

import json
import os
import signal
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from beliefmatch.methods import build
from beliefmatch.semi import Consistency, SemiConfig
from beliefmatch.train.aux_loss import AuxLoss
from beliefmatch.train.checkpoint import Checkpointing
from beliefmatch.train.config import EngineConfig, TrainConfig
from beliefmatch.train.engine import Engine
from beliefmatch.train.interrupt import Interrupted
from beliefmatch.train.predict import predict_all
from small_training import Exactly, Examples, digest, normalised_network, plain_network, train

# 37 examples in batches of 5 leave one of 2; batches of 18 one of 1, which joins the one before.
CONFIGS = {
    size: TrainConfig(epochs=2, batch_size=size, learning_rate=0.3, weight_decay=0.0) for size in (5, 18, 3)
}


def trained(engine, config):
    network = plain_network(seed=engine.rank).double()  # the first process's weights are taken
    source = Exactly(37)
    source.images = source.images.double()
    history = train(network, on=engine, config=config, source=source)
    return {
        "loss": history.curve("loss"),
        "norm": history.curve("gradient_norm"),
        "weights": torch.cat([parameter.detach().flatten() for parameter in network.parameters()]).tolist(),
    }


def trained_with_aux(engine):
    """With a deterministic auxiliary loss, on batches that do not halve evenly."""

    def loss(network, views, seed):
        return (network(views[0].inputs) - network(-views[0].inputs)).square().sum(1).mean()

    network, source, others = plain_network(seed=engine.rank).double(), Exactly(7), Exactly(23, seed=2)
    for examples in (source, others):
        examples.images = examples.images.double()
    aux = AuxLoss("odd", others, loss, lambda progress: 0.5 + progress, batch_size=3)
    options = {"aux": aux, "epoch_examples": 37, "source": source}
    history = train(network, on=engine, config=CONFIGS[5], **options)
    return {
        "loss": history.curve("loss"),
        "odd": history.curve("odd"),
        "norm": history.curve("gradient_norm"),
        "weights": torch.cat([parameter.detach().flatten() for parameter in network.parameters()]).tolist(),
    }


def consistent(engine, kind):
    """Each process searches the direction for itself, and the weights agree."""
    consistency = Consistency(SemiConfig(kind=kind, weight=1.0, epsilon=1.0), has_belief=True)

    def loss(network, views, seed):
        return consistency.loss(network, views[0].inputs, seed, views[-1].inputs if kind == "pi" else None)

    network = normalised_network()
    aux = AuxLoss("consistency", Examples(23, seed=2), loss, lambda progress: 1.0, views=2)
    history = train(network, on=engine, aux=aux)
    numbers = torch.cat([tensor.double().flatten() for tensor in network.state_dict().values()])
    sums = engine.sum_over_processes(numbers.tolist())
    agree = torch.equal(torch.tensor(sums, dtype=torch.float64), engine.world_size * numbers)
    return {"agree": agree, "consistency": history.curve("consistency"), "skipped": history.curve("skipped")}


def predicted(engine, many):
    network, source = normalised_network().eval(), Examples(many)
    method = build("belief_matching", kl_weight=0.01)
    made = predict_all(engine, method.predictor(network), source, batch_size=4)
    assert made.logits is not None
    return {
        "probs": made.probs.tolist(),
        "logits": made.logits.tolist(),
        "targets": made.targets.tolist(),
        "mine": torch.cat(source.seen).tolist(),
    }


def buffers_agree(engine):
    network = normalised_network()
    train(network, on=engine)
    numbers = torch.cat([tensor.double().flatten() for tensor in network.state_dict().values()])
    sums = engine.sum_over_processes(numbers.tolist())
    return torch.equal(torch.tensor(sums, dtype=torch.float64), 2 * numbers)


def skipped(engine):
    """Only the second process meets a loss that is not finite, once in a while; both skip."""
    calls = iter(range(1000))

    def objective(logits, targets):
        spoiled = engine.rank == 1 and next(calls) % 3 == 1
        loss = torch.nn.functional.cross_entropy(logits, targets)
        return loss + float("inf") if spoiled else loss  # the gradient stays finite

    network = normalised_network()
    history = train(network, on=engine, objective_at=lambda progress: objective)
    return history.curve("skipped")


def refused(engine, directory):
    """An error of the first process is an error of all."""
    train(plain_network(), on=engine, checkpointing=Checkpointing(directory))
    try:
        train(plain_network(), on=engine, checkpointing=Checkpointing(directory), seed=1)
    except ValueError as error:
        return str(error)


def interrupted(engine, directory):
    def interrupt(progress):
        if progress.step == 4:
            os.kill(os.getpid(), signal.SIGTERM)  # heard by the first process alone

    try:
        train(plain_network(), on=engine, checkpointing=Checkpointing(directory), on_progress=interrupt)
    except Interrupted as error:
        return str(error)


def together(engine, directory):
    return {
        "world": engine.world_size,
        "trained": {size: trained(engine, config) for size, config in CONFIGS.items()},
        "aux": trained_with_aux(engine),
        "consistent": {kind: consistent(engine, kind) for kind in ("vat", "pi")},
        "predicted": {many: predicted(engine, many) for many in (11, 2, 1)},
        "buffers_agree": buffers_agree(engine),
        "skipped": skipped(engine),
        "refused": refused(engine, directory / "refused"),
        "interrupted": interrupted(engine, directory / "interrupted"),
    }


def restart(engine, directory):
    def kill_once(batch):
        marker = directory / "once"
        if engine.rank == 1 and batch == 25 and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    class Deadly(Examples):
        count = 0

        def batches(self, parts, **options):
            for batch in super().batches(parts, **options):
                self.count += 1
                kill_once(self.count)
                yield batch

    left = {}
    for name, source in (("undisturbed", Examples(45)), ("killed", Deadly(45))):
        network = normalised_network()
        checkpointing = Checkpointing(directory / name, every_seconds=0)
        config = TrainConfig(epochs=6, batch_size=8, ema=0.9)
        train(network, on=engine, source=source, config=config, checkpointing=checkpointing)
        left[name] = digest(network)
    return {**left, "restarts": os.environ["TORCHELASTIC_RESTART_COUNT"]}


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    job, place = {"together": together, "restart": restart}[sys.argv[1]], Path(sys.argv[2])
    engine = Engine(EngineConfig(accelerator="cpu", devices="2", precision="32", threads=1))
    result = job(engine, place)
    if engine.is_main_process:
        (place / "result.json").write_text(json.dumps(result))
    engine.close()
