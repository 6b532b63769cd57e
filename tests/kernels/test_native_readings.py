"""Predictions read by the compiled kernel: the numbers and the errors of the reference, and an oracle's."""

import math
import warnings
from unittest.mock import patch

import mpmath as mp
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from beliefmatch import kernels
from beliefmatch.metrics import SCORES, outcomes, readings
from beliefmatch.metrics._inputs import SUM_TOLERANCE
from forecasts import forecast, seeds
from kernel_contract import NEEDS_NATIVE, using

pytestmark = [NEEDS_NATIVE, pytest.mark.usefixtures("instruction_set")]
INF, NAN = math.inf, math.nan
KINDS = ("probs", "logits")
TYPES = (torch.float32, torch.float64)
BAR = {torch.float32: 5e-7, torch.float64: 1e-12}
EXACT = ("best", "rank", "top", "own")
READ = {"probs": readings.read_probs, "logits": readings.read_logits}


def read(kind, values, targets, **options):
    """By the native kernel; an error for what it leaves to numpy."""
    with using("native"), patch.object(readings, "chunks", side_effect=AssertionError("left to numpy")):
        return READ[kind]("caller", values, targets, **options)


def read_by_numpy(kind, values, targets, **options):
    with using("reference"):
        return READ[kind]("caller", values, targets, **options)


def assert_alike(actual, truth, bar):
    """To a share of each number; of the depths, which are added to a logarithm, to a share of that."""
    for name, column in actual._asdict().items():
        expected = getattr(truth, name)
        assert column.dtype == expected.dtype and column.shape == expected.shape
        if name in EXACT:
            assert torch.equal(column, expected), name
            continue
        beside = truth.rest.log1p() if name == "depths" else torch.zeros(())
        told = f"{name}: {column} and not {expected}"
        torch.testing.assert_close(
            column - beside, expected - beside, rtol=bar, atol=1e-300, equal_nan=True, msg=told
        )


def assert_reads_alike(kind, values, targets, **options):
    """The native kernel takes the rows and reads them as numpy does in double precision."""
    truth = read_by_numpy(kind, values.detach().double(), targets, **options)
    assert_alike(read(kind, values, targets, **options), truth, BAR.get(values.dtype, 5e-7))


def given_as(kind, examples, classes, dtype, seed=0):
    logits, probs, targets = forecast(examples, classes, seed)
    return (probs if kind == "probs" else logits).to(dtype), targets


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("classes", [1, 2, 3, 7, 16, 17, 63, 129, 1000, 4097])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_numpy_for_any_number_of_classes(kind, classes, dtype):
    values, targets = given_as(kind, 23, classes, dtype)
    assert_reads_alike(kind, values, targets)
    assert_reads_alike(kind, values, targets, entropy=False)


@given(st.integers(1, 9), st.integers(1, 70), seeds)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_ranks_and_best_classes_with_many_ties_are_those_of_a_sorted_row(examples, classes, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(-2, 3, (examples, classes), generator=generator).float()
    targets = torch.randint(classes, (examples,), generator=generator)
    logits[logits == -2] = -INF
    logits[:, seed % classes] = 1.0  # one class at least is possible
    for dtype in TYPES:
        seen = read("logits", logits.to(dtype), targets)
        for row, target, best, rank in zip(logits.tolist(), targets, seen.best, seen.rank, strict=True):
            order = sorted(range(classes), key=lambda k: (-row[k], k))
            assert (order[0], order.index(target)) == (best, rank)
        assert_reads_alike("logits", logits.to(dtype), targets)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_of_rows_that_are_all_the_same_the_target_comes_after_the_smaller_ids(kind, dtype):
    values = torch.full((50, 50), 1 / 50 if kind == "probs" else -3.0, dtype=dtype)
    seen = read(kind, values, torch.arange(50))
    assert seen.best.tolist() == [0] * 50
    assert seen.rank.tolist() == list(range(50))
    assert_reads_alike(kind, values, torch.arange(50))


def oracle(logits, target):
    """Confidence, NLL, Brier score and entropy of one row in many digits."""
    with mp.workdps(60 + int(max(logits) - min(logits))):
        powers = [mp.exp(mp.mpf(z)) for z in logits]
        shares = [power / mp.fsum(powers) for power in powers]
        brier = mp.fsum((share - (k == target)) ** 2 for k, share in enumerate(shares))
        entropy = -mp.fsum(share * mp.log(share) for share in shares)
        return [float(x) for x in (max(shares), -mp.log(shares[target]), brier, entropy)]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("scale", [0.1, 3.0, 40.0, 200.0])
def test_matches_sixty_digit_oracle(scale, dtype):
    logits, _, _ = forecast(12, 37, seed=7)
    logits = (scale / 3 * logits).to(dtype)
    targets = torch.where(torch.arange(12) % 2 == 0, logits.argmax(1), torch.arange(12))
    with using("native"):
        seen = outcomes(targets, logits=logits)
    columns = torch.stack([seen.confidence, seen.nll, seen.brier, seen.entropy], 1)
    truth = [oracle(row, target) for row, target in zip(logits.tolist(), targets.tolist(), strict=True)]
    np.testing.assert_allclose(columns, truth, rtol=BAR[dtype], atol=1e-300)


@pytest.mark.parametrize("dtype", TYPES)
def test_matches_sixty_digit_oracle_for_probabilities(dtype):
    _, probs, targets = forecast(12, 37, seed=7)
    probs = probs.to(dtype)
    seen = read("probs", probs, targets)
    for row, entropy in zip(probs.tolist(), seen.entropy, strict=True):
        exact = -mp.fsum(mp.mpf(p) * mp.log(p) for p in row)
        assert entropy.item() == pytest.approx(float(exact), rel=BAR[dtype])


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("gap", [50, 79, 81, 95, 120, 690])
def test_small_shares_keep_their_digits(gap, dtype):
    """Where e^−gap leaves the range of float32, or of what float lanes add."""
    logits = torch.full((3, 40), -float(gap), dtype=dtype) - torch.arange(40).to(dtype) / 8
    logits[:, 20] = 0.0
    assert_reads_alike("logits", logits, torch.tensor([20, 3, 39]))
    shifted = logits + 512.0  # exact
    truth = read_by_numpy("logits", logits.double(), torch.tensor([20, 3, 39]))
    seen = read("logits", shifted, torch.tensor([20, 3, 39]))
    torch.testing.assert_close(seen.rest, truth.rest, rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize("dtype", TYPES)
def test_huge_and_impossible_logits(dtype):
    rows = [
        [1e30, 0.0, -1e30, 1e30, -INF],
        [-1e30, -INF, -1e30, -1.5e30, -INF],
        [3e38, -3e38, 1e5, -1e5, 0.0],
        [-INF, -INF, 7.0, -INF, -INF],
        [1e5, 99999.0, 99990.0, -1e5, -INF],
        [0.0, -1e-30, -1e-5, -103.0, -INF],
    ]
    logits = torch.tensor(rows, dtype=dtype)
    for target in range(5):
        assert_reads_alike("logits", logits, torch.full((6,), target))
    assert read("logits", logits, torch.full((6,), 2)).rest[3] == 0


@pytest.mark.parametrize("dtype", TYPES)
def test_certain_and_tiny_probabilities(dtype):
    tiny = torch.finfo(dtype).tiny
    rows = [[1.0, 0.0, 0.0, -0.0], [0.0, 0.0, 0.0, 1.0], [1.0, tiny, tiny / 8, 0.0], [0.995, 0.0, 0.0, 0.0]]
    probs = torch.tensor(rows, dtype=dtype)
    for target in range(4):
        truth = read_by_numpy("probs", probs, torch.full((4,), target))
        seen = read("probs", probs, torch.full((4,), target))
        for name, column in seen._asdict().items():
            torch.testing.assert_close(column, getattr(truth, name), rtol=1e-6, atol=1e-36)


def layouts(values):
    """The same numbers in other places."""
    wide = torch.zeros(len(values), values.shape[1] + 5, dtype=values.dtype)
    wide[:, 3:-2] = values
    return {
        "transposed": values.T.contiguous().T,
        "part of wider rows": wide[:, 3:-2],
        "every second row": torch.repeat_interleave(values, 2, 0)[::2],
        "every second class": torch.repeat_interleave(values, 2, 1)[:, ::2],
        "recorded": values.clone().requires_grad_(),
        "a parameter": torch.nn.Parameter(values.clone()),
    }


@pytest.mark.parametrize("dtype", [*TYPES, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_every_layout_and_type_is_read(kind, dtype):
    values, targets = given_as(kind, 400, 901, dtype, seed=3)  # two blocks
    expected = read(kind, values, targets)
    assert_reads_alike(kind, values, targets)
    for name, other in layouts(values).items():
        seen = read(kind, other, torch.stack([targets, targets], 1)[:, 0].contiguous())
        for column, truth in zip(seen, expected, strict=True):
            assert torch.equal(column, truth), name
            assert not column.requires_grad


@pytest.mark.parametrize("kind", KINDS)
def test_one_row_for_all_and_memory_that_may_not_be_written(kind):
    values, targets = given_as(kind, 9, 70, torch.float32)
    assert_reads_alike(kind, values[:1].expand(9, 70), targets)
    locked = values.numpy().copy()
    locked.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own: it has no tensors that may not be written
        assert_reads_alike(kind, torch.from_numpy(locked), targets)


@pytest.mark.parametrize("given_targets", [torch.int32, torch.uint8])
def test_targets_of_other_types_and_strides(given_targets):
    logits, targets = given_as("logits", 20, 30, torch.float32)
    strided = torch.stack([targets, targets], 1).to(given_targets)[:, 1]
    with using("native"):
        assert torch.equal(outcomes(strided, logits=logits).nll, outcomes(targets, logits=logits).nll)


@pytest.mark.parametrize("kind", KINDS)
def test_every_number_of_threads_gives_the_same_bits(kind):
    values, targets = given_as(kind, 300, 333, torch.float32)
    expected, before = read(kind, values, targets), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        seen = read(kind, values, targets)
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(*pair) for pair in zip(seen, expected, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_columns_have_memory_of_their_own(kind):
    values, targets = given_as(kind, 10, 6, torch.float32)
    for column in read(kind, values, targets):
        assert column.untyped_storage().nbytes() == 10 * column.element_size()


@pytest.mark.parametrize("kind", KINDS)
def test_without_entropy_only_that_is_missing(kind):
    values, targets = given_as(kind, 10, 40, torch.float32)
    name = "entropy" if kind == "probs" else "depths"
    plain, whole = read(kind, values, targets, entropy=False), read(kind, values, targets)
    assert getattr(plain, name).isnan().all()
    for column in set(plain._fields) - {name}:
        torch.testing.assert_close(getattr(plain, column), getattr(whole, column), rtol=1e-15, atol=0)


def message(kind, values, targets, kernel):
    with using(kernel), pytest.raises(ValueError, match=kind) as caught:
        outcomes(targets, **{kind: values})
    return str(caught.value)


@pytest.mark.parametrize("dtype", [*TYPES, torch.float16])
@pytest.mark.parametrize("place", [0, 16, 31, 60, 69])
@pytest.mark.parametrize(
    ("kind", "wrong"),
    [*(("probs", wrong) for wrong in (NAN, INF, -INF, -0.25, 1.5)), ("logits", NAN), ("logits", INF)],
)
def test_what_is_not_allowed_is_told_in_the_words_of_the_reference(kind, wrong, place, dtype):
    values, targets = given_as(kind, 300, 70, dtype)
    values[290, place] = wrong
    for target in (place, (place + 1) % 70):  # in its own place and among the others
        targets[290] = target
        told = message(kind, values, targets, "native")
        assert told == message(kind, values, targets, "reference")
        assert told.endswith(f"got {wrong!r}.")


@pytest.mark.parametrize("dtype", TYPES)
def test_rows_that_are_no_prediction_are_told_in_the_words_of_the_reference(dtype):
    _, probs, targets = forecast(40, 70, seed=1)
    short = probs.to(dtype)
    short[30] *= 0.98
    logits = torch.zeros(40, 70, dtype=dtype)
    logits[30] = -INF
    for kind, values in (("probs", short), ("logits", logits)):
        told = message(kind, values, targets, "native")
        assert told == message(kind, values, targets, "reference")
    balanced = probs.to(dtype)
    balanced[30, 4] -= 0.5  # negative, in a row that sums to one
    balanced[30, 5] += 0.5
    assert "in [0, 1]" in message("probs", balanced, targets, "native")


def test_probabilities_may_miss_one_by_the_tolerance():
    probs = torch.full((2, 4), 0.25, dtype=torch.float64)
    for factor in (1 - 0.99 * SUM_TOLERANCE, 1 + 0.99 * SUM_TOLERANCE):
        assert_reads_alike("probs", probs * factor, torch.tensor([0, 3]))


@pytest.mark.parametrize("target", [-1, 6, 2**40])
def test_ids_of_no_class_are_declined(target):
    logits, targets = given_as("logits", 10, 6, torch.float32)
    targets[7] = target
    assert kernels.read_logits(logits, targets, True) is None
    assert kernels.read_probs(logits.softmax(1), targets, SUM_TOLERANCE, True) is None


class Watched(torch.Tensor):
    """A tensor that may be more than its numbers."""


@pytest.mark.parametrize("kind", KINDS)
def test_subclasses_are_left_to_numpy(kind):
    values, targets = given_as(kind, 10, 6, torch.float32)
    with using("native"):
        assert kernels.read_logits(values.as_subclass(Watched), targets, True) is None
        seen = READ[kind]("caller", values.as_subclass(Watched), targets)
    assert_alike(seen, read(kind, values, targets), 1e-6)


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_those_of_the_reference(kind, name):
    values, _ = given_as(kind, 30, 50, torch.float32)
    if kind == "probs" and SCORES[name].needs_logits:
        return
    with using("reference"):
        expected = SCORES[name](**{kind: values.double()})
    with using("native"):
        torch.testing.assert_close(SCORES[name](**{kind: values}), expected, rtol=2e-6, atol=2e-6)
