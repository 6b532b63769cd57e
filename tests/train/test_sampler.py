"""Samplers: every example once, the same from any start, and shards whose mean is that of the batch."""

import pytest
import torch

from beliefmatch.train.sampler import CyclicSampler, EpochSampler, RepeatingSampler, shard


@pytest.mark.parametrize(
    ("examples", "batch_size", "sizes"),
    [
        (10, 4, [4, 4, 2]),
        (12, 4, [4, 4, 4]),
        (9, 4, [4, 5]),  # the last one joins the batch before
        (3, 1, [1, 1, 1]),
        (3, 8, [3]),
        (1, 8, [1]),
        (5, 4, [5]),
    ],
)
def test_batches_have_the_given_size_and_the_last_has_more_than_one_example(examples, batch_size, sizes):
    sampler = EpochSampler(examples, batch_size, seed=0)
    assert [len(batch) for batch in sampler.batches(0)] == sizes
    assert sampler.n_batches == len(sizes)


def test_an_epoch_has_every_example_once_in_an_order_of_its_own():
    before, sampler = torch.get_rng_state(), EpochSampler(101, 8, seed=3)
    first, second = (torch.cat(sampler.batches(epoch)) for epoch in (0, 1))
    for order in (first, second):
        assert torch.equal(order.sort().values, torch.arange(101))
    assert not torch.equal(first, second)
    assert not torch.equal(first, torch.cat(EpochSampler(101, 8, seed=4).batches(0)))
    assert torch.equal(torch.cat(EpochSampler(101, 8, seed=3).batches(1)), second)  # without epoch 0
    assert torch.equal(torch.get_rng_state(), before)


def test_few_examples_fill_epochs_as_long_as_those_of_more():
    sampler = RepeatingSampler(29, 8, seed=3, n_available=5)
    batches = [batch for epoch in range(3) for batch in sampler.batches(epoch)]
    assert [len(batch) for batch in batches] == [8, 8, 8, 5] * 3 and sampler.n_batches == 4
    row = torch.cat(batches)
    assert all(sorted(cycle.tolist()) == list(range(5)) for cycle in row[:85].split(5))
    assert torch.equal(torch.cat(sampler.batches(1)), row[29:58])  # no epoch needs an earlier one


@pytest.mark.parametrize("world", [1, 2, 3, 7])
@pytest.mark.parametrize("size", [2, 3, 5, 12])
def test_the_mean_of_weighted_means_is_the_mean_of_the_batch(size, world):
    values = torch.randn(100, dtype=torch.float64)
    batch = torch.randperm(100)[:size]
    shares = [shard(batch, rank, world) for rank in range(world)]
    means = [weight * values[indices].mean() for indices, weight in shares]
    assert torch.stack(means).mean().item() == pytest.approx(values[batch].mean().item(), rel=1e-14)
    assert all(len(indices) >= 2 for indices, _ in shares)
    counted = [indices for indices, weight in shares if weight]
    assert sorted(set(torch.cat(counted).tolist())) == sorted(batch.tolist())


def test_a_cyclic_sequence_can_be_entered_anywhere():
    row = CyclicSampler(7, seed=1)
    whole = row.take(0, 40)
    assert all(sorted(cycle.tolist()) == list(range(7)) for cycle in whole[:35].split(7))
    for first in (0, 3, 6, 7, 20):
        assert torch.equal(row.take(first, 15), whole[first : first + 15])
    assert torch.equal(torch.cat(list(row.batches([4, 1, 6], 5))), whole[5:16])
    assert list(row.batches([], 3)) == []


@pytest.mark.parametrize("arguments", [(0, 4), (4, 0)])
def test_impossible_samplers_are_refused(arguments):
    with pytest.raises(ValueError, match="must be at least 1, got 0"):
        EpochSampler(*arguments, seed=0)
