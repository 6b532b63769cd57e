"""Splits: disjoint, complete, in proportion, and the same everywhere."""

import hashlib
import itertools
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from beliefmatch.data.splits import (
    balanced_rows,
    fingerprint,
    halves,
    resolve_count,
    split_rows,
    stratified_rows,
)

LABELS = st.lists(st.integers(0, 5), min_size=3, max_size=80).map(np.array)
SEEDS = st.integers(0, 2**31)
RAGGED = np.repeat([0, 1, 2, 3], [3, 40, 7, 25])[np.random.default_rng(0).permutation(75)]


@given(
    LABELS,
    st.sampled_from([0.1, 0.2, 0.5, 1]),
    st.sampled_from([0, 0.2, 0.3]),
    st.none() | st.integers(1, 90),
    SEEDS,
)
def test_splits_are_disjoint_ascending_and_as_large_as_asked(labels, validation, test, limit, seed):
    parts = split_rows(labels, validation=validation, test=test, limit=limit, seed=seed)
    together = np.concatenate(parts)
    assert len(np.unique(together)) == len(together)
    assert all((np.diff(part) > 0).all() for part in parts)
    assert len(parts.test) == (max(1, round(test * len(labels))) if test else 0)
    rest = len(labels) - len(parts.test)
    assert len(parts.validation) == max(1, round(validation * rest) if validation < 1 else validation)
    left = rest - len(parts.validation)
    assert len(parts.train) == (left if limit is None else min(limit, left))


@given(LABELS, st.floats(0, 1), SEEDS)
def test_every_class_is_chosen_in_proportion(labels, share, seed):
    count = int(share * len(labels))
    sizes = np.bincount(labels, minlength=6)
    taken = np.bincount(labels[stratified_rows(labels, count, seed)], minlength=6)
    assert taken.sum() == count
    # Sainte-Laguë: one share t exists that, rounded to whole images, gives every class its number.
    present = sizes > 0
    lowest = ((taken[present] - 0.5) / sizes[present]).max()
    highest = ((taken[present] + 0.5) / sizes[present]).min()
    assert lowest <= highest + 1e-12


@given(LABELS, SEEDS)
def test_a_smaller_choice_is_part_of_a_larger_one(labels, seed):
    choices = [set(stratified_rows(labels, count, seed).tolist()) for count in range(len(labels) + 1)]
    assert all(small < large for small, large in itertools.pairwise(choices))


@given(LABELS, SEEDS)
def test_a_limit_takes_nothing_from_the_other_parts(labels, seed):
    whole = split_rows(labels, validation=0.2, test=0.2, seed=seed)
    limited = split_rows(labels, validation=0.2, test=0.2, limit=2, seed=seed)
    assert np.array_equal(whole.validation, limited.validation)
    assert np.array_equal(whole.test, limited.test)
    assert set(limited.train) <= set(whole.train)


def test_the_split_of_the_paper_has_a_fifth_of_every_class():
    labels = np.repeat(np.arange(10), 5000)
    parts = split_rows(labels, validation=10000, seed=0)
    assert len(parts.train) == 40000 and len(parts.test) == 0
    assert np.bincount(labels[parts.validation]).tolist() == [1000] * 10


def test_the_split_is_the_one_it_always_was():
    """Whatever the platform and the release of numpy: runs of different years share a test set."""
    parts = split_rows(np.arange(20) % 3, validation=0.25, test=0.2, seed=7)
    assert parts.train.tolist() == TRAIN
    assert parts.validation.tolist() == VALIDATION
    assert parts.test.tolist() == TEST


TRAIN = [1, 3, 5, 8, 9, 10, 11, 12, 13, 14, 15, 19]
VALIDATION = [2, 6, 7, 16]
TEST = [0, 4, 17, 18]


def test_the_seed_decides():
    labels = np.arange(60) % 3
    first, again, other = (split_rows(labels, validation=0.2, seed=seed).train for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("count", [2, 7, 40])
def test_halves_are_disjoint_and_complete(count):
    first, second = halves(np.arange(count) % 3, seed=5)
    assert len(first) == count // 2
    assert sorted([*first, *second]) == list(range(count))


def test_four_thousand_labels_of_cifar_are_balanced():
    labels = np.arange(45_000) % 10
    rows = balanced_rows(labels, 4000, seed=3)
    assert len(rows) == len(set(rows.tolist())) == 4000
    assert np.bincount(labels[rows]).tolist() == [400] * 10
    assert (np.diff(rows) > 0).all()


@pytest.mark.parametrize(("count", "expected"), [(4, [1, 1, 1, 1]), (12, [3, 3, 3, 3]), (36, [3, 13, 7, 13])])
def test_classes_keep_equally_many_as_long_as_they_have_them(count, expected):
    assert np.bincount(RAGGED[balanced_rows(RAGGED, count)]).tolist() == expected


def test_where_classes_do_not_divide_the_number_none_has_two_more_than_another():
    counts = np.bincount(RAGGED[balanced_rows(RAGGED, 10, seed=1)])
    assert counts.sum() == 10 and set(counts.tolist()) == {2, 3}


def test_fewer_labels_are_among_more_and_the_seed_decides():
    more = set(balanced_rows(RAGGED, 20, seed=5).tolist())
    assert set(balanced_rows(RAGGED, 8, seed=5).tolist()) < more
    assert set(balanced_rows(RAGGED, 20, seed=6).tolist()) != more
    assert balanced_rows(RAGGED, 20, seed=5).tolist() == sorted(more)


@pytest.mark.parametrize("amount", [10, 11, 2.5])
def test_more_images_than_there_are_or_parts_of_images_are_refused(amount):
    with pytest.raises(ValueError, match=f"`validation` .* got {amount:g}"):
        resolve_count(amount, 10)


def test_a_fingerprint_is_a_sha256_of_lengths_and_contents():
    array = np.array([[1, 2, 258]], ">i4")
    expected = hashlib.sha256(b"2:ab" + b"3:\x00\x01\x02" + b"i4(1, 3)" + struct.pack("<3i", 1, 2, 258))
    assert fingerprint(["ab", b"\x00\x01\x02", array]) == expected.hexdigest()


def test_fingerprints_tell_pieces_apart():
    assert fingerprint(["ab", "c"]) != fingerprint(["a", "bc"])
    assert fingerprint([np.zeros((2, 3))]) != fingerprint([np.zeros((3, 2))])
    assert fingerprint([np.zeros(2, np.int32)]) != fingerprint([np.zeros(1, np.int64)])
