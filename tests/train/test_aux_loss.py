"""An auxiliary loss: its examples, views, weight and precision."""

import pytest
import torch
from torch import nn

from beliefmatch.train import AuxLoss, TrainConfig
from small_training import (
    Examples,
    agreement,
    digest,
    engine,
    normalised_network,
    plain_network,
    train,
)


def size_of_logits(network, views, seed):
    noise = torch.randn(views[0].inputs.shape, generator=torch.Generator().manual_seed(seed))
    return network(views[0].inputs + 0.1 * noise.to(views[0].inputs)).square().sum(1).mean()


def aux_loss(loss=size_of_logits, *, weight=0.5, many=31, **options):
    return AuxLoss("size", Examples(many, seed=8), loss, lambda progress: weight, **options)


def test_its_examples_have_an_order_of_their_own_without_early_repetition():
    aux = aux_loss(many=10, batch_size=4)
    train(plain_network(), aux=aux)
    order = torch.cat(aux.source.seen)
    assert len(order) == 4 * 18
    assert all(sorted(cycle.tolist()) == list(range(10)) for cycle in order[:70].split(10))


def test_views_are_the_same_examples_with_other_augmentation():
    pairs = []

    def loss(network, views, seed):
        pairs.append(views)
        return agreement(network, views, seed)

    train(normalised_network(), aux=aux_loss(loss, views=2), config=TrainConfig(epochs=1, batch_size=8))
    for first, second in pairs:
        assert torch.equal(first.targets, second.targets) and len(first.targets) == 8
        assert (first.inputs - second.inputs).std().item() == pytest.approx(0.1 * 2**0.5, rel=0.1)


@pytest.mark.parametrize("precision", ["32", "16"])
def test_without_weight_nothing_is_computed_and_nothing_changes(precision):
    def never(network, views, seed):
        raise AssertionError("computed")

    alone, together = normalised_network(), normalised_network()
    expected = train(alone, on=engine(precision))
    history = train(together, on=engine(precision), aux=aux_loss(never, weight=0.0))
    assert digest(together) == digest(alone)
    assert history.curve("loss") == expected.curve("loss")
    assert history.curve("size") == [None] * 3


def test_the_weight_is_a_function_of_progress():
    seen = []

    def weight(progress):
        seen.append(progress)
        return float(progress >= 0.5)

    history = train(plain_network(), aux=AuxLoss("size", Examples(9), size_of_logits, weight))
    assert seen == pytest.approx([step / 18 for step in range(18)])
    assert history.curve("size")[0] is None and history.curve("size")[2] > 0


def test_a_loss_that_is_not_finite_is_skipped_with_its_step():
    calls = iter(range(100))

    def spoiled(network, views, seed):
        loss = size_of_logits(network, views, seed)
        return loss * float("nan") if next(calls) % 5 == 2 else loss

    history = train(normalised_network(), aux=aux_loss(spoiled))
    assert history.curve("skipped") == [1, 1, 2]  # steps 2, 7, 12 and 17, of six in each epoch
    assert all(value > 0 for value in history.curve("size"))


def test_the_whole_gradient_is_clipped():
    options = {"learning_rate": 1.0, "momentum": 0.0, "weight_decay": 0.0, "warmup": ()}
    network = plain_network()
    before = nn.utils.parameters_to_vector(network.parameters()).detach().clone()
    config = TrainConfig(epochs=1, batch_size=45, **options)
    history = train(network, config=config, aux=aux_loss(weight=1e4))
    moved = nn.utils.parameters_to_vector(network.parameters()).detach() - before
    assert history.curve("gradient_norm")[0] > 100
    assert moved.norm().item() == pytest.approx(1.0, rel=1e-3)


def test_half_precision_learns_the_same():
    full, half = (
        train(normalised_network(), on=engine(precision), aux=aux_loss(agreement, views=2))
        for precision in ("32", "16")
    )
    for name in ("loss", "size"):
        assert half.curve(name) == pytest.approx(full.curve(name), rel=0.05)
        assert half.curve(name) != full.curve(name)


@pytest.mark.parametrize(
    ("options", "argument"),
    [({"many": 0}, "source"), ({"views": 0}, "views"), ({"batch_size": 0}, "batch_size")],
)
def test_impossible_auxiliary_losses_are_refused(options, argument):
    with pytest.raises(ValueError, match=f"`{argument}`"):
        aux_loss(**options)
