"""Steps that are not finite: skipped without a trace, counted, and ended with advice."""

import math
from itertools import pairwise

import pytest
import torch
from torch.nn import functional

from beliefmatch.train.config import TrainConfig
from small_training import Exactly, cross_entropy_at, digest, engine, normalised_network, train

ONE_EPOCH = TrainConfig(epochs=1, batch_size=8, learning_rate=0.1)


def spoiled_at(*steps):
    """An objective that is not finite at some steps."""
    calls = iter(range(1000))

    def objective(logits, targets):
        loss = functional.cross_entropy(logits, targets)
        return loss * math.nan if next(calls) in steps else loss

    return lambda progress: objective


class Spoiled(Exactly):
    """One batch of its images is not finite, which also spoils the averages of batch normalisation."""

    def batches(self, parts, **options):
        for number, batch in enumerate(super().batches(parts, **options)):
            yield batch._replace(inputs=batch.inputs * math.inf) if number == 2 else batch


def test_a_step_that_is_not_finite_is_as_if_it_had_not_been():
    network = normalised_network()
    states = []
    history = train(
        network,
        source=Spoiled(40),
        config=ONE_EPOCH,
        on_progress=lambda progress: states.append(digest(network)),
    )
    assert history.epochs[0].skipped == history.skipped == 1
    assert [before == after for before, after in pairwise(states)] == [
        False,
        True,
        False,
        False,
    ]
    assert all(torch.isfinite(tensor).all() for tensor in network.state_dict().values())
    assert math.isfinite(history.epochs[0].loss)


def test_a_finite_loss_with_an_infinite_gradient_is_skipped_too():
    def objective(logits, targets):
        return functional.cross_entropy(logits, targets) + (logits.detach() - logits).sum().sqrt()

    with pytest.raises(FloatingPointError, match="6 of the 6 steps of epoch 1"):
        train(normalised_network(), config=ONE_EPOCH, objective_at=lambda progress: objective)


def test_many_in_a_row_end_with_advice():
    config = TrainConfig(epochs=1, batch_size=2)
    advice = "20 steps in a row were not finite .*learning_rate.*warmup.*clip_norm.*precision.*kl_weight"
    with pytest.raises(FloatingPointError, match=advice):
        train(normalised_network(), config=config, objective_at=spoiled_at(*range(2, 22)))
    history = train(normalised_network(), config=config, objective_at=spoiled_at(*range(2, 12)))
    assert history.skipped == 10


def test_half_an_epoch_ends_the_training_and_less_does_not():
    assert train(normalised_network(), config=ONE_EPOCH, objective_at=spoiled_at(0, 2, 4)).skipped == 3
    with pytest.raises(FloatingPointError, match="4 of the 6 steps of epoch 1 were not finite"):
        train(normalised_network(), config=ONE_EPOCH, objective_at=spoiled_at(0, 2, 4, 5))


def test_the_search_for_the_scale_of_float16_is_no_failure():
    on = engine("16")
    assert on.scaler is not None
    on.scaler._init_scale = 2.0**19  # the first gradients overflow
    history = train(
        normalised_network(), on=on, config=TrainConfig(epochs=8, batch_size=8, learning_rate=0.1)
    )
    assert history.skipped == 0
    assert on.scaler.get_scale() < 2.0**19
    assert history.curve("loss")[-1] < history.curve("loss")[0]


def test_float16_that_stays_infinite_is_a_failure():
    with pytest.raises(FloatingPointError, match="not finite"):
        train(
            normalised_network(),
            on=engine("16"),
            config=TrainConfig(epochs=20, batch_size=8),
            objective_at=lambda progress: (
                lambda logits, targets: cross_entropy_at(0)(logits, targets) * math.nan
            ),
        )
