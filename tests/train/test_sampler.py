"""Orders: every example once, the same from anywhere, and shares whose mean is the whole."""

import pytest
import torch

from beliefmatch.train.sampler import CyclicSampler, EpochSampler, shard


@pytest.mark.parametrize(
    ("examples", "batch_size", "sizes"),
    [
        (10, 4, [4, 4, 2]),
        (12, 4, [4, 4, 4]),
        (9, 4, [4, 5]),  # the last one is not left alone
        (3, 1, [1, 1, 1]),
        (3, 8, [3]),
        (1, 8, [1]),
        (5, 4, [5]),
    ],
)
def test_batches_have_the_size_asked_for_and_none_is_left_alone(examples, batch_size, sizes):
    sampler = EpochSampler(examples, batch_size, seed=0)
    assert [len(batch) for batch in sampler.batches(0)] == sizes
    assert sampler.n_batches == len(sizes)


def test_an_epoch_sees_every_example_once_in_an_order_of_its_own():
    sampler = EpochSampler(101, 8, seed=3)
    first, second = (torch.cat(sampler.batches(epoch)) for epoch in (0, 1))
    assert torch.equal(first.sort().values, torch.arange(101))
    assert torch.equal(second.sort().values, torch.arange(101))
    assert not torch.equal(first, second)
    assert not torch.equal(first, torch.cat(EpochSampler(101, 8, seed=4).batches(0)))


def test_an_epoch_needs_no_epoch_before_it_nor_the_global_state():
    before = torch.get_rng_state()
    sampler = EpochSampler(50, 8, seed=3)
    for epoch in range(3):
        sampler.batches(epoch)
    assert all(map(torch.equal, sampler.batches(7), EpochSampler(50, 8, seed=3).batches(7)))
    assert torch.equal(torch.get_rng_state(), before)


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


def test_an_endless_row_can_be_entered_anywhere():
    row = CyclicSampler(7, seed=1)
    whole = row.take(0, 40)
    assert all(sorted(cycle.tolist()) == list(range(7)) for cycle in whole[:35].split(7))
    for first in (0, 3, 6, 7, 20):
        assert torch.equal(row.take(first, 15), whole[first : first + 15])
    assert torch.equal(torch.cat(list(row.batches([4, 1, 6], 5))), whole[5:16])
    assert list(row.batches([], 3)) == []


@pytest.mark.parametrize("arguments", [(0, 4), (4, 0)])
def test_nothing_cannot_be_ordered(arguments):
    with pytest.raises(ValueError, match="must be at least 1, got 0"):
        EpochSampler(*arguments, seed=0)
