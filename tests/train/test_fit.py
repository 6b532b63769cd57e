"""The loop: against one written out by hand, its history, and steps that are not finite."""

import copy
import csv
import math
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn import functional

from beliefmatch.train import AuxLoss, CsvLog, TrainConfig
from beliefmatch.train.sampler import EpochSampler, RepeatingSampler
from small_training import Exactly, Examples, digest, engine, normalised_network, plain_network, train

ONE_EPOCH = TrainConfig(epochs=1, batch_size=8, learning_rate=0.1)


def digest_number(network):
    return int(digest(network)[:8], 16)


@pytest.mark.parametrize("with_aux", [False, True])
def test_weights_are_those_of_a_loop_written_out(with_aux):
    options = {"clip_norm": 0.5, "weight_decay": 1e-3}
    if with_aux:
        options = {"clip_norm": None, "weight_decay": 0.0, "warmup": ()}
    config = TrainConfig(epochs=2, batch_size=8, learning_rate=0.2, **options)
    network, source, others = plain_network().double(), Exactly(5 if with_aux else 29), Exactly(11, seed=1)
    for examples in (source, others):
        examples.images = examples.images.double()
    by_hand, seeds = copy.deepcopy(network), []
    sampler = EpochSampler(29, 8, seed=5)
    options = {"config": config, "source": source, "seed": 5}
    if with_aux:

        def size_of_logits(network, views, seed):
            seeds.append(seed)
            return network(views[0].inputs).square().sum(1).mean()

        aux = AuxLoss("size", others, size_of_logits, lambda progress: 0.1 + progress, batch_size=6)
        options |= {"aux": aux, "epoch_examples": 29}
        sampler = RepeatingSampler(29, 8, seed=5, n_available=5)
    history = train(network, **options)

    optimizer = torch.optim.SGD(by_hand.parameters(), momentum=0.9, weight_decay=config.weight_decay)
    aux_batches = iter(torch.cat(others.seen).split(6)) if with_aux else None
    losses, norms, sizes = [], [], []
    for epoch in range(2):
        for number, batch in enumerate(sampler.batches(epoch)):
            optimizer.param_groups[0]["lr"] = config.rate(epoch + number / 4)
            loss = functional.cross_entropy(by_hand(source.images[batch]), source.targets[batch])
            if aux_batches is not None:
                size = by_hand(others.images[next(aux_batches)]).square().sum(1).mean()
                loss = loss + (0.1 + (epoch + number / 4) / 2) * size
                sizes.append(size.item())
            optimizer.zero_grad()
            loss.backward()
            norms.append(nn.utils.clip_grad_norm_(by_hand.parameters(), config.clip_norm or math.inf).item())
            optimizer.step()
            losses.append(loss.item() * len(batch))
    tolerance = {"rtol": 1e-9, "atol": 1e-12} if with_aux else {"rtol": 1e-6, "atol": 1e-9}  # torch adds 1e-6
    for ours, theirs in zip(network.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, **tolerance)
    assert history.curve("loss") == pytest.approx([sum(losses[:4]) / 29, sum(losses[4:]) / 29], rel=1e-6)
    assert history.curve("gradient_norm") == pytest.approx([sum(norms[:4]) / 4, sum(norms[4:]) / 4], rel=1e-5)
    assert history.curve("rate") == [config.rate(0.75), config.rate(1.75)]
    assert history.curve("skipped") == [0, 0]
    if with_aux:
        assert history.curve("size") == pytest.approx([sum(sizes[:4]) / 4, sum(sizes[4:]) / 4])
        assert len(set(seeds)) == 8


def test_the_seed_determines_the_weights_and_the_callers_random_state_is_not_changed():
    networks = [normalised_network() for _ in range(3)]
    before = torch.get_rng_state()
    for network, seed in zip(networks, (1, 1, 2), strict=True):
        train(network, seed=seed)
    first, second, other = map(digest, networks)
    assert first == second != other
    assert torch.equal(torch.get_rng_state(), before)


def test_validating_less_often_gives_the_same_weights(tmp_path):
    options, log = {"epochs": 8, "batch_size": 8, "learning_rate": 0.1}, CsvLog(tmp_path / "log.csv")
    often, seldom = normalised_network(), normalised_network()
    validate = {"validate": lambda network: {"size": digest_number(network)}}
    every = train(often, config=TrainConfig(**options), **validate).curve("size")
    config = TrainConfig(**options, validate_every=3)
    third = train(seldom, config=config, log=log, **validate).curve("size")
    assert third == [size if epoch in (0, 2, 5, 7) else None for epoch, size in enumerate(every)]
    assert digest(often) == digest(seldom)
    rows = list(csv.DictReader((tmp_path / "log.csv").read_text().splitlines()))
    assert [row["validation_size"] != "" for row in rows] == [size is not None for size in third]


def test_the_moving_average_is_validated_and_is_the_result():
    config, weights, seen = TrainConfig(epochs=1, batch_size=8, ema=0.5, warmup=()), [], {}

    def parameters():
        return [parameter.detach().clone() for parameter in network.parameters()]

    def validate(network):
        seen["weights"] = parameters()
        assert not network.training
        return {"accuracy": 0.5, "undefined": math.nan}

    network = normalised_network()
    average = parameters()
    history = train(
        network, config=config, on_progress=lambda _: weights.append(parameters()), validate=validate
    )
    for step, now in enumerate(weights):
        decay = min(0.5, (1 + step) / (10 + step))
        average = [decay * old + (1 - decay) * new for old, new in zip(average, now, strict=True)]
    for expected, left, validated in zip(average, network.parameters(), seen["weights"], strict=True):
        torch.testing.assert_close(left.detach(), expected)
        assert torch.equal(left, validated)
    assert history.epochs[0].validation == {"accuracy": 0.5, "undefined": None}
    assert history.curve("accuracy") == [0.5]


def test_progress_counts_steps_and_images():
    seen, config = [], TrainConfig(epochs=2, batch_size=8)
    train(plain_network(), source=Exactly(33), config=config, on_progress=seen.append)
    assert [(one.epoch, one.step) for one in seen] == [(step // 4, step + 1) for step in range(8)]
    assert {(one.epochs, one.steps) for one in seen} == {(2, 8)}  # the 33rd image joins the fourth batch
    assert seen[-1].seconds_left == 0 and all(one.images_per_second > 0 for one in seen)


def test_the_objective_follows_the_progress_of_the_training():
    seen = []

    def objective_at(progress):
        seen.append(progress)
        return functional.cross_entropy

    train(plain_network(), config=TrainConfig(epochs=2, batch_size=15), objective_at=objective_at)
    assert seen == pytest.approx([step / 6 for step in range(6)])


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
def test_batch_normalisation_never_gets_a_single_example(many, flat):
    network = (
        nn.Sequential(nn.Flatten(), nn.BatchNorm1d(108), nn.Linear(108, 3)) if flat else normalised_network()
    )
    assert math.isfinite(train(network, source=Examples(many), config=ONE_EPOCH).curve("loss")[0])


def test_half_precision_learns_the_same():
    losses = {
        precision: train(normalised_network(), on=engine(precision)).curve("loss")
        for precision in ("32", "bf16", "16")
    }
    assert losses["bf16"] == pytest.approx(losses["32"], rel=0.03)
    assert losses["16"] == pytest.approx(losses["32"], rel=0.03)
    assert losses["bf16"] != losses["32"] != losses["16"]


@pytest.mark.parametrize(("width", "expected"), [(16, True), (8, False)])
def test_parameters_of_wide_layers_lie_channels_last(width, expected):
    network = normalised_network(width=width)
    train(network, config=ONE_EPOCH)
    assert network[0].weight.is_contiguous(memory_format=torch.channels_last) is expected


def test_no_examples_and_half_an_ood_loss_are_refused():
    with pytest.raises(ValueError, match="`source`"):
        train(plain_network(), source=Examples(0))
    with pytest.raises(ValueError, match="`ood_source`"):
        train(plain_network(), ood=lambda logits: logits.sum())


# Steps that are not finite


def spoiled_at(*steps):
    """An objective that is not finite at some steps."""
    calls = iter(range(1000))

    def objective(logits, targets):
        loss = functional.cross_entropy(logits, targets)
        return loss * math.nan if next(calls) in steps else loss

    return lambda progress: objective


class Spoiled(Exactly):
    """One batch of images is not finite, which also spoils the averages of batch normalisation."""

    def batches(self, indices, **options):
        for number, batch in enumerate(super().batches(indices, **options)):
            yield batch._replace(inputs=batch.inputs * math.inf) if number == 2 else batch


def test_a_step_that_is_not_finite_changes_nothing():
    network, states = normalised_network(), []
    history = train(
        network, source=Spoiled(40), config=ONE_EPOCH, on_progress=lambda _: states.append(digest(network))
    )
    assert history.epochs[0].skipped == history.skipped == 1
    assert [before == after for before, after in pairwise(states)] == [False, True, False, False]
    assert all(torch.isfinite(tensor).all() for tensor in network.state_dict().values())
    assert math.isfinite(history.epochs[0].loss)


def test_a_finite_loss_with_an_infinite_gradient_is_skipped_too():
    def objective(logits, targets):
        return functional.cross_entropy(logits, targets) + (logits.detach() - logits).sum().sqrt()

    with pytest.raises(FloatingPointError, match="6 of the 6 steps of epoch 1"):
        train(normalised_network(), config=ONE_EPOCH, objective_at=lambda progress: objective)


def test_many_skipped_steps_in_a_row_end_with_advice():
    config = TrainConfig(epochs=1, batch_size=2)
    advice = "20 steps in a row were not finite .*learning_rate.*warmup.*clip_norm.*precision.*kl_weight"
    with pytest.raises(FloatingPointError, match=advice):
        train(normalised_network(), config=config, objective_at=spoiled_at(*range(2, 22)))
    history = train(normalised_network(), config=config, objective_at=spoiled_at(*range(2, 12)))
    assert history.skipped == 10


def test_half_an_epoch_of_skipped_steps_ends_the_training_and_less_does_not():
    assert train(normalised_network(), config=ONE_EPOCH, objective_at=spoiled_at(0, 2, 4)).skipped == 3
    with pytest.raises(FloatingPointError, match="4 of the 6 steps of epoch 1"):
        train(normalised_network(), config=ONE_EPOCH, objective_at=spoiled_at(0, 2, 4, 5))


def test_the_search_for_the_loss_scale_of_float16_skips_no_step():
    on, config = engine("16"), TrainConfig(epochs=8, batch_size=8, learning_rate=0.1)
    assert on.scaler is not None
    on.scaler._init_scale = 2.0**19  # the first gradients overflow
    history = train(normalised_network(), on=on, config=config)
    assert history.skipped == 0
    assert on.scaler.get_scale() < 2.0**19
    assert history.curve("loss")[-1] < history.curve("loss")[0]


def test_float16_that_stays_infinite_is_a_failure():
    config, objective_at = TrainConfig(epochs=20, batch_size=8), spoiled_at(*range(1000))
    with pytest.raises(FloatingPointError, match="not finite"):
        train(normalised_network(), on=engine("16"), config=config, objective_at=objective_at)
