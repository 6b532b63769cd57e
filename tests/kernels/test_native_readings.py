"""Predictions read by the native kernel: the numbers and errors of numpy, and a sixty-digit oracle."""

import math
import warnings
from unittest.mock import patch

import mpmath as mp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from beliefmatch import kernels
from beliefmatch._validate import SUM_TOLERANCE
from beliefmatch.metrics import _readings as readings
from beliefmatch.metrics import outcomes
from forecasts import forecast, seeds
from kernel_contract import HYPOTHESIS, NEEDS_NATIVE, using

pytestmark = [NEEDS_NATIVE, pytest.mark.usefixtures("instruction_set")]
INF, NAN = math.inf, math.nan
KINDS = ("probs", "logits")
TYPES = (torch.float32, torch.float64)
BAR = {torch.float32: 5e-7, torch.float64: 1e-12}
INTEGERS_AND_COPIES = ("best", "rank", "top", "own")
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
        offset = truth.rest.log1p() if name == "depths" else torch.zeros(())
        if name in INTEGERS_AND_COPIES:
            assert torch.equal(column, expected), name
        else:
            column, expected = column - offset, expected - offset
            torch.testing.assert_close(column, expected, rtol=bar, atol=1e-300, equal_nan=True)


def assert_reads_alike(kind, values, targets, **options):
    """The native kernel supports the rows and reads them as numpy does in double precision."""
    truth = read_by_numpy(kind, values.detach().double(), targets, **options)
    assert_alike(read(kind, values, targets, **options), truth, BAR.get(values.dtype, 5e-7))


def predictions(kind, examples, classes, dtype, seed=0):
    logits, probs, targets = forecast(examples, classes, seed)
    return (probs if kind == "probs" else logits).to(dtype), targets


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("classes", [1, 2, 3, 7, 16, 17, 63, 129, 1000, 4097])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_numpy_for_any_number_of_classes(kind, classes, dtype):
    values, targets = predictions(kind, 23, classes, dtype)
    assert_reads_alike(kind, values, targets)
    assert_reads_alike(kind, values, targets, entropy=False)


@given(st.integers(1, 9), st.integers(1, 70), seeds)
@settings(max_examples=40, **HYPOTHESIS)
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
def test_logits_match_the_oracle(scale, dtype):
    logits = (scale / 3 * forecast(12, 37, seed=7)[0]).to(dtype)
    targets = torch.where(torch.arange(12) % 2 == 0, logits.argmax(1), torch.arange(12))
    with using("native"):
        seen = outcomes(targets, logits=logits)
    columns = torch.stack([seen.confidence, seen.nll, seen.brier, seen.entropy], 1)
    truth = [oracle(row, target) for row, target in zip(logits.tolist(), targets.tolist(), strict=True)]
    np.testing.assert_allclose(columns, truth, rtol=BAR[dtype], atol=1e-300)


@pytest.mark.parametrize("dtype", TYPES)
def test_entropies_of_probabilities_match_the_oracle(dtype):
    probs, targets = predictions("probs", 12, 37, dtype, seed=7)
    exact = [float(-mp.fsum(mp.mpf(p) * mp.log(p) for p in row)) for row in probs.tolist()]
    assert read("probs", probs, targets).entropy.tolist() == pytest.approx(exact, rel=BAR[dtype])


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("gap", [50, 79, 81, 95, 120, 690])
def test_small_shares_keep_their_digits(gap, dtype):
    """Where e^−gap leaves the range of float32, or of what float lanes add."""
    logits = torch.full((3, 40), -float(gap), dtype=dtype) - torch.arange(40).to(dtype) / 8
    logits[:, 20] = 0.0
    targets = torch.tensor([20, 3, 39])
    assert_reads_alike("logits", logits, targets)
    truth = read_by_numpy("logits", logits.double(), targets)
    seen = read("logits", logits + 512.0, targets)  # an exact shift
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
    for target in torch.arange(4):
        seen, truth = (reader("probs", probs, target.repeat(4)) for reader in (read, read_by_numpy))
        torch.testing.assert_close(tuple(seen), tuple(truth), rtol=1e-6, atol=1e-36)


def layouts(values):
    """The same numbers elsewhere in memory."""
    wide = torch.zeros(len(values), values.shape[1] + 5, dtype=values.dtype)
    wide[:, 3:-2] = values
    return {
        "transposed": values.T.contiguous().T,
        "part of wider rows": wide[:, 3:-2],
        "every second row": torch.repeat_interleave(values, 2, 0)[::2],
        "every second class": torch.repeat_interleave(values, 2, 1)[:, ::2],
        "tracked": values.clone().requires_grad_(),
        "a parameter": torch.nn.Parameter(values.clone()),
    }


@pytest.mark.parametrize("dtype", [*TYPES, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_every_layout_and_type_is_read(kind, dtype):
    values, targets = predictions(kind, 400, 901, dtype, seed=3)  # two blocks
    assert_reads_alike(kind, values, targets)
    for reader in (read, read_by_numpy):
        expected = reader(kind, values, targets)
        for name, other in layouts(values).items():
            seen = reader(kind, other, targets)
            assert all(torch.equal(*pair) for pair in zip(seen, expected, strict=True)), name
            assert not any(column.requires_grad for column in seen)


@pytest.mark.parametrize("kind", KINDS)
def test_one_row_for_all_and_memory_that_is_read_only(kind):
    values, targets = predictions(kind, 9, 70, torch.float32)
    assert_reads_alike(kind, values[:1].expand(9, 70), targets)
    locked = values.numpy().copy()
    locked.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own: it has no read-only tensors
        assert_reads_alike(kind, torch.from_numpy(locked), targets)


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8])
def test_targets_of_other_types_and_strides(dtype):
    logits, targets = predictions("logits", 20, 30, torch.float32)
    strided = torch.stack([targets, targets], 1).to(dtype)[:, 1]
    with using("native"):
        assert torch.equal(outcomes(strided, logits=logits).nll, outcomes(targets, logits=logits).nll)


@pytest.mark.parametrize("kind", KINDS)
def test_the_number_of_threads_changes_no_bit(kind):
    values, targets = predictions(kind, 300, 333, torch.float32)
    expected, before = read(kind, values, targets), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        seen = read(kind, values, targets)
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(*pair) for pair in zip(seen, expected, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_columns_have_their_own_memory_and_only_the_entropy_is_optional(kind):
    values, targets = predictions(kind, 10, 40, torch.float32)
    name = "entropy" if kind == "probs" else "depths"
    plain, whole = read(kind, values, targets, entropy=False), read(kind, values, targets)
    assert all(column.untyped_storage().nbytes() == 10 * column.element_size() for column in whole)
    assert getattr(plain, name).isnan().all()
    for column in set(plain._fields) - {name}:
        torch.testing.assert_close(getattr(plain, column), getattr(whole, column), rtol=1e-15, atol=0)


# What the native kernel leaves to numpy


def message_of(kind, values, targets):
    """The error for these predictions, which does not depend on the kernel."""
    messages = set()
    for kernel in ("native", "reference"):
        with using(kernel), pytest.raises(ValueError, match=rf"^outcomes: `{kind}`") as caught:
            outcomes(targets, **{kind: values})
        messages.add(str(caught.value))
    (message,) = messages
    return message


@pytest.mark.parametrize("dtype", [*TYPES, torch.float16])
@pytest.mark.parametrize("position", [0, 16, 31, 60, 69])
@pytest.mark.parametrize(
    ("kind", "wrong"),
    [*(("probs", wrong) for wrong in (NAN, INF, -INF, -0.25, 1.5)), ("logits", NAN), ("logits", INF)],
)
def test_an_invalid_value_is_shown(kind, wrong, position, dtype):
    values, targets = predictions(kind, 300, 70, dtype)
    values[290, position] = wrong
    for target in (position, (position + 1) % 70):  # as the target's and as another class's
        targets[290] = target
        assert message_of(kind, values, targets).endswith(f"got {wrong!r}.")


@pytest.mark.parametrize("dtype", TYPES)
def test_rows_that_are_no_prediction_are_named(dtype):
    probs, targets = predictions("probs", 40, 70, dtype, seed=1)
    short, balanced, impossible = probs.clone(), probs.clone(), torch.zeros(40, 70, dtype=dtype)
    short[30] *= 0.98
    balanced[30, 4] -= 0.5  # negative, in a row that sums to one
    balanced[30, 5] += 0.5
    impossible[30] = -INF
    for kind, values, received in (
        ("probs", short, short[30].double().sum()),
        ("probs", balanced, balanced[30, 4]),
        ("logits", impossible, -INF),
    ):
        shown = float(message_of(kind, values, targets).rsplit("got ", 1)[1].rstrip("."))
        assert shown == pytest.approx(float(received), rel=1e-6)


def test_probabilities_may_miss_one_by_the_tolerance():
    probs = torch.full((2, 4), 0.25, dtype=torch.float64)
    for factor in (1 - 0.99 * SUM_TOLERANCE, 1 + 0.99 * SUM_TOLERANCE):
        assert_reads_alike("probs", probs * factor, torch.tensor([0, 3]))


@pytest.mark.parametrize("target", [-1, 6, 2**40])
def test_ids_of_no_class_are_left_to_numpy(target):
    logits, targets = predictions("logits", 10, 6, torch.float32)
    probs = logits.softmax(1)
    with using("native"):
        assert kernels.read_logits(logits, targets, True) is not None
        assert kernels.read_probs(probs, targets, SUM_TOLERANCE, True) is not None
        targets[7] = target
        assert kernels.read_logits(logits, targets, True) is None
        assert kernels.read_probs(probs, targets, SUM_TOLERANCE, True) is None


class Subclass(torch.Tensor):
    """A tensor that may be more than its numbers."""


@pytest.mark.parametrize("kind", KINDS)
def test_subclasses_are_left_to_numpy(kind):
    values, targets = predictions(kind, 10, 6, torch.float32)
    with using("native"):
        subclass = values.as_subclass(Subclass)
        if kind == "probs":
            assert kernels.read_probs(subclass, targets, SUM_TOLERANCE, True) is None
        else:
            assert kernels.read_logits(subclass, targets, True) is None
        seen = READ[kind]("caller", subclass, targets)
    assert_alike(seen, read(kind, values, targets), 1e-6)
