"""Splits: disjoint, complete, in proportion, and the same everywhere."""

import hashlib
import itertools
import struct
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beliefmatch.data.splits import (
    balanced_rows,
    content_digest,
    halves,
    resolve_count,
    split_rows,
    stratified_rows,
)
from refusals import refusal

LABELS = st.lists(st.integers(0, 5), min_size=3, max_size=80).map(np.array)
SEEDS = st.integers(0, 2**31)
RAGGED = np.repeat([0, 1, 2, 3], [3, 40, 7, 25])[np.random.default_rng(0).permutation(75)]

some_examples = settings(max_examples=50, deadline=None)


@some_examples
@given(
    LABELS,
    st.sampled_from([0.1, 0.2, 0.5, 1]),
    st.sampled_from([0, 0.2, 0.3]),
    st.none() | st.integers(1, 90),
    SEEDS,
)
def test_splits_are_disjoint_ascending_and_of_the_configured_size(labels, validation, test, limit, seed):
    parts = split_rows(labels, validation=validation, test=test, limit=limit, seed=seed)
    together = np.concatenate(parts)
    assert len(np.unique(together)) == len(together)
    assert all((np.diff(part) > 0).all() for part in parts)
    assert len(parts.test) == (max(1, round(test * len(labels))) if test else 0)
    rest = len(labels) - len(parts.test)
    assert len(parts.validation) == max(1, round(validation * rest) if validation < 1 else validation)
    left = rest - len(parts.validation)
    assert len(parts.train) == (left if limit is None else min(limit, left))
    whole = split_rows(labels, validation=validation, test=test, seed=seed)
    assert np.array_equal(whole.validation, parts.validation) and np.array_equal(whole.test, parts.test)
    assert set(parts.train) <= set(whole.train)  # a limit takes nothing from the other parts


@some_examples
@given(LABELS, SEEDS)
def test_every_class_is_chosen_in_proportion_and_fewer_rows_are_among_more(labels, seed):
    choices = [stratified_rows(labels, count, seed) for count in range(len(labels) + 1)]
    assert all(set(small) < set(large) for small, large in itertools.pairwise(choices))
    sizes = np.bincount(labels, minlength=6)
    for count, rows in enumerate(choices):
        taken = np.bincount(labels[rows], minlength=6)
        assert taken.sum() == count
        # Sainte-Laguë: one share t exists that, rounded to whole images, gives every class its number.
        present = sizes > 0
        lowest = ((taken[present] - 0.5) / sizes[present]).max()
        highest = ((taken[present] + 0.5) / sizes[present]).min()
        assert lowest <= highest + 1e-12


def test_the_split_of_the_paper_has_a_fifth_of_every_class():
    labels = np.repeat(np.arange(10), 5000)
    parts = split_rows(labels, validation=10000, seed=0)
    assert len(parts.train) == 40000 and len(parts.test) == 0
    assert np.bincount(labels[parts.validation]).tolist() == [1000] * 10


def test_the_seed_decides_and_gives_the_same_split_on_every_machine():
    """Whatever the platform and the release of numpy: runs of different years share a test set."""
    parts = split_rows(np.arange(20) % 3, validation=0.25, test=0.2, seed=7)
    assert parts.train.tolist() == [1, 3, 5, 8, 9, 10, 11, 12, 13, 14, 15, 19]
    assert parts.validation.tolist() == [2, 6, 7, 16]
    assert parts.test.tolist() == [0, 4, 17, 18]
    other = split_rows(np.arange(20) % 3, validation=0.25, test=0.2, seed=8)
    assert other.test.tolist() != parts.test.tolist()


@pytest.mark.parametrize("count", [2, 7, 40])
def test_halves_are_disjoint_and_complete(count):
    first, second = halves(np.arange(count) % 3, seed=5)
    assert len(first) == count // 2
    assert sorted([*first, *second]) == list(range(count))


@pytest.mark.parametrize(
    ("count", "expected"), [(4, [1, 1, 1, 1]), (10, [2, 2, 3, 3]), (12, [3, 3, 3, 3]), (36, [3, 7, 13, 13])]
)
def test_classes_keep_equally_many_labels_as_long_as_they_have_them(count, expected):
    rows = balanced_rows(RAGGED, count, seed=1)
    assert sorted(np.bincount(RAGGED[rows]).tolist()) == expected
    assert len(rows) == count and (np.diff(rows) > 0).all()


def test_fewer_labels_are_among_more_and_the_seed_decides():
    draw = partial(balanced_rows, RAGGED)
    assert set(draw(8, seed=5)) < set(draw(20, seed=5)) != set(draw(20, seed=6))


@pytest.mark.parametrize("amount", [10, 11, 2.5])
def test_more_images_than_there_are_or_parts_of_images_are_refused(amount):
    message = refusal(resolve_count, amount, 10)
    assert "`validation`" in message and f"got {amount:g}" in message


def test_a_content_digest_is_a_sha256_of_lengths_and_contents():
    array = np.array([[1, 2, 258]], ">i4")
    expected = hashlib.sha256(b"2:ab" + b"3:\x00\x01\x02" + b"i4(1, 3)" + struct.pack("<3i", 1, 2, 258))
    assert content_digest(["ab", b"\x00\x01\x02", array]) == expected.hexdigest()
    assert content_digest(["ab", "c"]) != content_digest(["a", "bc"])
    assert content_digest([np.zeros((2, 3))]) != content_digest([np.zeros((3, 2))])
    assert content_digest([np.zeros(2, np.int32)]) != content_digest([np.zeros(1, np.int64)])
