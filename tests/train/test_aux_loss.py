"""A loss beside the objective, against a loop written out, and on the ways a training can take."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from beliefmatch.train.aux_loss import AuxLoss
from beliefmatch.train.checkpoint import Checkpointing
from beliefmatch.train.config import TrainConfig
from beliefmatch.train.sampler import CyclicSampler, RepeatingSampler
from small_training import CONFIG, Exactly, Examples, digest, engine, normalised_network, plain_network, train


def agreement(network, views, seed):
    """The squared distance between two views, of a network that is run more than once."""
    first, second = (network(view.inputs) for view in views)
    return (first - second).square().sum(1).mean()


def size_of_logits(network, views, seed):
    noise = torch.randn(views[0].inputs.shape, generator=torch.Generator().manual_seed(seed))
    return network(views[0].inputs + 0.1 * noise.to(views[0].inputs)).square().sum(1).mean()


def aux_loss(loss=size_of_logits, *, weight=0.5, many=31, **options):
    return AuxLoss("size", Examples(many, seed=8), loss, lambda progress: weight, **options)


def test_few_examples_fill_epochs_as_long_as_those_of_more():
    sampler = RepeatingSampler(29, 8, seed=3, n_available=5)
    batches = [batch for epoch in range(3) for batch in sampler.batches(epoch)]
    assert [len(batch) for batch in batches] == [8, 8, 8, 5] * 3 and sampler.n_batches == 4
    row = torch.cat(batches)
    assert all(sorted(cycle.tolist()) == list(range(5)) for cycle in row[:85].split(5))
    assert torch.equal(torch.cat(sampler.batches(1)), row[29:58])  # no epoch needs the one before


def test_weights_are_those_of_a_loop_written_out():
    config = TrainConfig(
        epochs=2, batch_size=8, learning_rate=0.2, clip_norm=None, warmup=(), weight_decay=0.0
    )
    network, source, others = plain_network().double(), Exactly(5), Exactly(11, seed=1)
    for examples in (source, others):
        examples.images = examples.images.double()
    by_hand, seeds = copy.deepcopy(network), []

    def loss(network, views, seed):
        seeds.append(seed)
        return network(views[0].inputs).square().sum(1).mean()

    beside = AuxLoss("size", others, loss, lambda progress: 0.1 + progress, batch_size=6)
    history = train(network, config=config, source=source, seed=5, aux=beside, epoch_examples=29)

    sampler, optimizer = (
        RepeatingSampler(29, 8, seed=5, n_available=5),
        torch.optim.SGD(by_hand.parameters(), momentum=0.9),
    )
    seen = iter(torch.cat(others.seen).split(6))
    sizes, totals = [], []
    for epoch in range(2):
        for number, batch in enumerate(sampler.batches(epoch)):
            optimizer.param_groups[0]["lr"] = config.rate(epoch + number / 4)
            in_distribution = functional.cross_entropy(by_hand(source.images[batch]), source.targets[batch])
            size = by_hand(others.images[next(seen)]).square().sum(1).mean()
            total = in_distribution + (0.1 + (epoch + number / 4) / 2) * size
            optimizer.zero_grad()
            total.backward()
            optimizer.step()
            sizes.append(size.item())
            totals.append(total.item() * len(batch))
    for ours, theirs in zip(network.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
    assert history.curve("size") == pytest.approx([sum(sizes[:4]) / 4, sum(sizes[4:]) / 4])
    assert history.curve("loss") == pytest.approx([sum(totals[:4]) / 29, sum(totals[4:]) / 29])
    assert len(set(seeds)) == 8


def test_its_examples_come_in_an_order_of_their_own_each_before_any_comes_again():
    beside = aux_loss(many=10, batch_size=4)
    train(plain_network(), aux=beside)
    row = torch.cat(beside.source.seen)
    assert len(row) == 4 * 18
    assert all(sorted(cycle.tolist()) == list(range(10)) for cycle in row[:70].split(10))


def test_views_are_the_same_examples_augmented_apart():
    pairs = []

    def loss(network, views, seed):
        pairs.append(views)
        return agreement(network, views, seed)

    train(normalised_network(), aux=aux_loss(loss, views=2), config=TrainConfig(epochs=1, batch_size=8))
    for first, second in pairs:
        assert torch.equal(first.targets, second.targets) and len(first.targets) == 8
        assert not torch.equal(first.inputs, second.inputs)
        assert (first.inputs - second.inputs).std().item() == pytest.approx(0.1 * 2**0.5, rel=0.1)


@pytest.mark.parametrize("precision", ["32", "16"])
def test_without_weight_nothing_is_computed_and_nothing_changes(precision):
    def never(network, views, seed):
        raise AssertionError("computed")

    alone, beside = normalised_network(), normalised_network()
    expected = train(alone, on=engine(precision))
    history = train(beside, on=engine(precision), aux=aux_loss(never, weight=0.0))
    assert digest(beside) == digest(alone)
    assert history.curve("loss") == expected.curve("loss")
    assert history.curve("size") == [None] * 3


def test_a_loss_that_says_nothing_changes_nothing_but_the_averages_it_fills():
    def nothing(network, views, seed):
        return 0.0 * network(views[0].inputs).sum()

    alone, beside = plain_network(), plain_network()
    train(alone)
    history = train(beside, aux=aux_loss(nothing, weight=1.0))
    assert digest(beside) == digest(alone)
    assert history.curve("size") == [0.0] * 3


def test_the_caller_may_skip_by_progress():
    seen = []

    def weight(progress):
        seen.append(progress)
        return float(progress >= 0.5)

    history = train(plain_network(), aux=AuxLoss("size", Examples(9), size_of_logits, weight))
    assert seen == pytest.approx([step / 18 for step in range(18)])
    assert history.curve("size")[0] is None and history.curve("size")[2] > 0


@pytest.mark.parametrize("precision", ["32", "16"])
@pytest.mark.parametrize("stop_at", [2, 6, 11])
def test_taken_up_again_it_ends_the_same(tmp_path, precision, stop_at):
    options = {"aux": aux_loss(agreement, views=2, batch_size=5), "epoch_examples": 45, "source": Examples(7)}
    whole = normalised_network()
    expected = train(whole, on=engine(precision), **options)

    class EnoughError(Exception):
        pass

    def stop(progress):
        if progress.step == stop_at:
            raise EnoughError

    checkpointing = Checkpointing(tmp_path, every_seconds=0)
    with pytest.raises(EnoughError):
        train(
            normalised_network(),
            on=engine(precision),
            checkpointing=checkpointing,
            on_progress=stop,
            **options,
        )
    resumed = normalised_network(seed=99)
    history = train(resumed, on=engine(precision), checkpointing=checkpointing, **options)
    assert digest(resumed) == digest(whole)
    for name in ("loss", "size", "gradient_norm"):
        assert history.curve(name) == expected.curve(name)


@pytest.mark.parametrize("change", [{"aux": None}, {"epoch_examples": 46}])
def test_a_checkpoint_of_another_aux_loss_is_refused(tmp_path, change):
    options = {"aux": aux_loss(), "epoch_examples": 45, "source": Examples(7)}
    train(normalised_network(), checkpointing=Checkpointing(tmp_path), config=CONFIG, **options)
    with pytest.raises(ValueError, match="`directory`"):
        train(
            normalised_network(),
            checkpointing=Checkpointing(tmp_path),
            config=CONFIG,
            **{**options, **change},
        )


def test_a_loss_that_is_not_finite_is_skipped_with_its_step():
    calls = iter(range(100))

    def spoiled(network, views, seed):
        loss = size_of_logits(network, views, seed)
        return loss * float("nan") if next(calls) % 5 == 2 else loss

    history = train(normalised_network(), aux=aux_loss(spoiled))
    assert history.curve("skipped") == [1, 1, 2]  # steps 2, 7, 12 and 17, of six in each epoch
    assert all(value > 0 for value in history.curve("size"))


def test_the_whole_gradient_is_clipped():
    config = TrainConfig(
        epochs=1, batch_size=45, learning_rate=1.0, momentum=0.0, weight_decay=0.0, warmup=()
    )
    network = plain_network()
    before = nn.utils.parameters_to_vector(network.parameters()).detach().clone()
    history = train(network, config=config, aux=aux_loss(weight=1e4))
    moved = nn.utils.parameters_to_vector(network.parameters()).detach() - before
    assert history.curve("gradient_norm")[0] > 100
    assert moved.norm().item() == pytest.approx(1.0, rel=1e-3)


def test_half_precision_learns_the_same():
    found = {}
    for precision in ("32", "16"):
        beside = aux_loss(agreement, views=2)
        found[precision] = train(normalised_network(), on=engine(precision), aux=beside)
    for name in ("loss", "size"):
        assert found["16"].curve(name) == pytest.approx(found["32"].curve(name), rel=0.05)
        assert found["16"].curve(name) != found["32"].curve(name)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"many": 0}, "`source`"),
        ({"views": 0}, "`views` must be at least 1, got 0"),
        ({"batch_size": 0}, "`batch_size` must be at least 1, got 0"),
    ],
)
def test_what_means_nothing_is_refused(options, said):
    with pytest.raises(ValueError, match=said):
        aux_loss(**options)


def test_the_examples_of_a_step_do_not_depend_on_where_a_training_is_taken_up():
    row = CyclicSampler(10, seed=4)
    whole = torch.cat(list(row.batches([4] * 6, 0)))
    assert torch.equal(torch.cat(list(row.batches([4] * 3, 12))), whole[12:])
