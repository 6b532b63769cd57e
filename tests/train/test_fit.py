"""The loop against one written out by hand, and what it tells on the way."""

import copy
import csv
import math

import pytest
import torch
from msgspec.structs import replace
from torch import nn
from torch.nn import functional

from beliefmatch.train.checkpoint import Checkpointing
from beliefmatch.train.config import TrainConfig
from beliefmatch.train.history import CsvLog
from beliefmatch.train.sampler import EpochSampler
from small_training import Exactly, Examples, digest, engine, normalised_network, plain_network, train


def test_weights_are_those_of_a_loop_written_out():
    config = TrainConfig(
        epochs=2, batch_size=8, learning_rate=0.2, momentum=0.9, clip_norm=0.5, weight_decay=1e-3
    )
    network, source = plain_network().double(), Exactly(29)
    source.images = source.images.double()
    by_hand = copy.deepcopy(network)
    history = train(network, config=config, source=source, seed=5)

    optimizer = torch.optim.SGD(by_hand.parameters(), momentum=0.9, weight_decay=1e-3)
    losses, norms = [], []
    for epoch in range(2):
        for number, batch in enumerate(EpochSampler(29, 8, seed=5).batches(epoch)):
            optimizer.param_groups[0]["lr"] = config.rate(epoch + number / 4)
            loss = functional.cross_entropy(by_hand(source.images[batch]), source.targets[batch])
            optimizer.zero_grad()
            loss.backward()
            norms.append(nn.utils.clip_grad_norm_(by_hand.parameters(), 0.5).item())
            optimizer.step()
            losses.append(loss.item() * len(batch))
    for ours, theirs in zip(network.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-9)  # their clipping adds 1e-6 as well
    assert history.curve("loss") == pytest.approx([sum(losses[:4]) / 29, sum(losses[4:]) / 29], rel=1e-6)
    assert history.curve("gradient_norm") == pytest.approx([sum(norms[:4]) / 4, sum(norms[4:]) / 4], rel=1e-5)
    assert history.curve("rate") == [config.rate(0.75), config.rate(1.75)]
    assert history.curve("skipped") == [0, 0]


def test_the_seed_decides_and_the_callers_chance_is_left_alone():
    networks = [normalised_network() for _ in range(3)]
    before = torch.get_rng_state()
    for network, seed in zip(networks, (1, 1, 2), strict=True):
        train(network, seed=seed)
    first, second, other = map(digest, networks)
    assert first == second != other
    assert torch.equal(torch.get_rng_state(), before)


def test_looking_less_often_at_the_validation_set_leaves_gaps_and_the_same_weights(tmp_path):
    often, seldom = normalised_network(), normalised_network()
    config = TrainConfig(epochs=8, batch_size=8, learning_rate=0.1)
    looked = {"validate": lambda network: {"size": digest_number(network)}}
    every = train(often, config=config, **looked).curve("size")
    log = CsvLog(tmp_path / "log.csv")
    third = train(seldom, config=replace(config, validate_every=3), log=log, **looked).curve("size")
    assert third == [size if place in (0, 2, 5, 7) else None for place, size in enumerate(every)]
    assert digest(often) == digest(seldom)
    rows = list(csv.DictReader((tmp_path / "log.csv").read_text().splitlines()))
    assert [row["validation_size"] != "" for row in rows] == [size is not None for size in third]


def test_what_is_averaged_is_what_is_left_and_validated():
    config = TrainConfig(epochs=1, batch_size=8, learning_rate=0.1, ema=0.5, warmup=())
    weights = []

    def follow(_):
        weights.append([parameter.detach().clone() for parameter in network.parameters()])

    seen = {}

    def validate(network):
        seen["weights"] = [parameter.detach().clone() for parameter in network.parameters()]
        assert not network.training
        return {"accuracy": 0.5, "undefined": math.nan}

    network = normalised_network()
    average = [parameter.detach().clone() for parameter in network.parameters()]
    history = train(network, config=config, on_progress=follow, validate=validate)
    for step, now in enumerate(weights):
        decay = min(0.5, (1 + step) / (10 + step))
        average = [decay * old + (1 - decay) * new for old, new in zip(average, now, strict=True)]
    for expected, left, validated in zip(average, network.parameters(), seen["weights"], strict=True):
        torch.testing.assert_close(left.detach(), expected)
        assert torch.equal(left, validated)
    assert history.epochs[0].validation == {"accuracy": 0.5, "undefined": None}
    assert history.curve("accuracy") == [0.5]


def test_progress_counts_steps_and_images():
    told = []
    train(
        plain_network(),
        source=Exactly(33),
        config=TrainConfig(epochs=2, batch_size=8),
        on_progress=told.append,
    )
    assert [(one.epoch, one.step) for one in told] == [(0, n) for n in range(1, 5)] + [
        (1, n) for n in range(5, 9)
    ]
    assert {(one.epochs, one.steps) for one in told} == {(2, 8)}  # the 33rd image joins the fourth batch
    assert told[-1].seconds_left == 0 and all(one.images_per_second > 0 for one in told)


def test_the_objective_follows_the_share_of_the_training():
    shares = []

    def objective_at(share):
        shares.append(share)
        return functional.cross_entropy

    train(plain_network(), config=TrainConfig(epochs=2, batch_size=15), objective_at=objective_at)
    assert shares == pytest.approx([0, 1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6])


def test_ood_examples_come_with_each_batch_and_their_loss_counts():
    sizes = []

    def ood(logits):
        sizes.append(len(logits))
        return 100 * logits.square().mean()

    config = TrainConfig(epochs=12, batch_size=16, optimizer="adam", learning_rate=0.01)
    network, others = plain_network(), Examples(10, seed=9)
    train(network, config=config, ood=ood, ood_source=others)
    assert sizes[:3] == [16, 16, 13]
    seen = torch.cat(others.seen)
    assert all(sorted(cycle.tolist()) == list(range(10)) for cycle in seen[:50].split(10))
    assert network(others.images).square().mean() < 0.1 * plain_network()(others.images).square().mean()


@pytest.mark.parametrize("many", [1, 2, 9, 17])
@pytest.mark.parametrize("flat", [False, True])
def test_batch_normalisation_never_meets_a_single_value(many, flat):
    network = (
        nn.Sequential(nn.Flatten(), nn.BatchNorm1d(108), nn.Linear(108, 3)) if flat else normalised_network()
    )
    history = train(network, source=Examples(many), config=TrainConfig(epochs=1, batch_size=8))
    assert math.isfinite(history.curve("loss")[0])


def test_half_precision_learns_the_same():
    losses = {}
    for precision in ("32", "bf16", "16"):
        on = engine(precision)
        assert on.precision == {"32": "32-true", "bf16": "bf16-mixed", "16": "16-mixed"}[precision]
        losses[precision] = train(normalised_network(), on=on).curve("loss")
    assert losses["bf16"] == pytest.approx(losses["32"], rel=0.03)
    assert losses["16"] == pytest.approx(losses["32"], rel=0.03)
    assert losses["bf16"] != losses["32"] != losses["16"]


@pytest.mark.parametrize(("width", "expected"), [(16, True), (8, False)])
def test_parameters_of_wide_layers_lie_channels_last(width, expected):
    network = normalised_network(width=width)
    train(network)
    assert network[0].weight.is_contiguous(memory_format=torch.channels_last) is expected


def test_what_cannot_be_trained_is_refused(tmp_path):
    with pytest.raises(ValueError, match="`source`"):
        train(plain_network(), source=Examples(0))
    with pytest.raises(ValueError, match="must be given together"):
        train(plain_network(), ood=lambda logits: logits.sum())


@pytest.mark.parametrize("precision", ["32", "bf16", "16"])
@pytest.mark.parametrize("stop_at", [2, 6, 9, 15])
def test_a_training_taken_up_again_ends_the_same(tmp_path, precision, stop_at):
    whole = normalised_network()
    expected = train(whole, on=engine(precision), validate=lambda network: {"size": digest_number(network)})

    class EnoughError(Exception):
        pass

    def stop(progress):
        if progress.step == stop_at:
            raise EnoughError

    options = {
        "checkpointing": Checkpointing(tmp_path, every_seconds=0),
        "validate": lambda network: {"size": digest_number(network)},
    }
    with pytest.raises(EnoughError):
        train(normalised_network(), on=engine(precision), on_progress=stop, **options)
    resumed = normalised_network(seed=99)
    history = train(resumed, on=engine(precision), **options)
    assert digest(resumed) == digest(whole)
    for name in ("loss", "gradient_norm", "rate", "size", "skipped"):
        assert history.curve(name) == expected.curve(name)
    again = normalised_network(seed=98)
    assert train(again, on=engine(precision), **options) == history
    assert digest(again) == digest(whole)


def digest_number(network):
    return int(digest(network)[:8], 16)
