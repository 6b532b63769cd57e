"""What is kept of each prediction, against scipy, plain loops and extreme values."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from beliefmatch.metrics import outcomes
from forecasts import forecast, seeds

COLUMNS = ("predicted", "confidence", "nll", "brier", "entropy", "rank")


def rank_by_loop(row: list[float], target: int) -> int:
    order = sorted(range(len(row)), key=lambda k: (-row[k], k))
    return order.index(target)


@given(st.integers(1, 40), st.integers(1, 9), seeds)
@settings(max_examples=30, deadline=None)
def test_columns_equal_their_definitions(examples, classes, seed):
    _, probs, targets = forecast(examples, classes, seed)
    seen, p = outcomes(targets, probs=probs), probs.numpy()
    onehot = np.eye(classes)[targets]
    np.testing.assert_array_equal(seen.predicted, p.argmax(1))
    np.testing.assert_array_equal(seen.confidence, p.max(1))
    np.testing.assert_allclose(seen.nll, -np.log((p * onehot).sum(1)), atol=1e-15)
    np.testing.assert_allclose(seen.brier, ((p - onehot) ** 2).sum(1), rtol=1e-9, atol=1e-14)
    np.testing.assert_allclose(seen.entropy, special.entr(p).sum(1), rtol=1e-9, atol=1e-14)
    assert seen.rank.tolist() == [rank_by_loop(*pair) for pair in zip(p.tolist(), targets, strict=True)]
    assert seen.correct.tolist() == (p.argmax(1) == targets.numpy()).tolist()
    assert len(seen) == examples


@given(st.integers(1, 40), st.integers(1, 9), seeds)
@settings(max_examples=30, deadline=None)
def test_logits_give_what_their_softmax_gives(examples, classes, seed):
    logits, probs, targets = forecast(examples, classes, seed)
    of_logits, of_probs = outcomes(targets, logits=logits), outcomes(targets, probs=probs)
    for column in COLUMNS:
        torch.testing.assert_close(getattr(of_logits, column), getattr(of_probs, column))


@pytest.mark.parametrize("kind", ["probs", "logits"])
def test_blocks_of_rows_make_no_difference(kind):
    logits, probs, targets = forecast(700, 1000, seed=2)  # three blocks
    values = probs if kind == "probs" else logits
    whole = outcomes(targets, **{kind: values})
    parts = [outcomes(targets[i : i + 7], **{kind: values[i : i + 7]}) for i in range(0, 700, 7)]
    for column in COLUMNS:
        joined = torch.cat([getattr(part, column) for part in parts])
        torch.testing.assert_close(getattr(whole, column), joined, rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["probs", "logits"])
def test_lower_precision_is_read_as_it_stands(kind, dtype):
    logits, probs, targets = forecast(60, 7, seed=4)
    values = (probs if kind == "probs" else logits).to(dtype)
    low, high = outcomes(targets, **{kind: values}), outcomes(targets, **{kind: values.double()})
    for column in COLUMNS:
        assert getattr(low, column).dtype == getattr(high, column).dtype
        torch.testing.assert_close(getattr(low, column), getattr(high, column), rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_logits_keep_their_digits(dtype):
    """Where the softmax is 0 or 1 to the last bit, NLL, Brier score and entropy still have digits."""
    logits = torch.tensor([[60.0, 0.0, 0.0], [0.0, -1000.0, 0.0], [1e4, -1e4, 0.0]], dtype=dtype)
    seen = outcomes(torch.tensor([0, 1, 2]), logits=logits)
    small = 2 * math.exp(-60)
    assert seen.nll.tolist() == pytest.approx([small, 1000 + math.log(2), 1e4], rel=1e-6)
    assert seen.brier[0].item() == pytest.approx(small**2 + small**2 / 2, rel=1e-6)
    assert seen.entropy[0].item() == pytest.approx(small + 60 * small, rel=1e-6)
    assert seen.entropy.tolist()[1:] == pytest.approx([math.log(2), 0.0])
    assert seen.confidence.tolist() == pytest.approx([1.0, 0.5, 1.0])


def test_logits_of_minus_infinity_are_impossible_classes():
    logits = torch.tensor([[0.0, -math.inf, 0.0], [0.0, -math.inf, -math.inf]])
    seen = outcomes(torch.tensor([1, 0]), logits=logits)
    assert seen.nll.tolist() == [math.inf, 0.0]
    assert seen.brier.tolist() == [1.5, 0.0]
    assert seen.entropy.tolist() == pytest.approx([math.log(2), 0.0])
    assert seen.rank.tolist() == [2, 0]


def test_of_tied_classes_the_first_comes_first():
    probs = torch.full((4, 4), 0.25)
    seen = outcomes(torch.arange(4), probs=probs)
    assert seen.predicted.tolist() == [0, 0, 0, 0]
    assert seen.rank.tolist() == [0, 1, 2, 3]


def test_certainty_right_and_wrong():
    probs = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    seen = outcomes(torch.tensor([0, 2]), probs=probs)
    assert seen.nll.tolist() == [0.0, math.inf]
    assert seen.brier.tolist() == [0.0, 2.0]
    assert seen.entropy.tolist() == [0.0, 0.0]
    assert seen.rank.tolist() == [0, 2]


def test_a_single_class_is_always_right():
    seen = outcomes(torch.tensor([0, 0]), logits=torch.tensor([[3.0], [-3.0]]))
    assert seen.confidence.tolist() == [1.0, 1.0]
    assert seen.brier.tolist() == seen.nll.tolist() == seen.entropy.tolist() == [0.0, 0.0]


def test_strided_and_recorded_tensors_are_read():
    logits, _, targets = forecast(20, 6, seed=1)
    strided = logits.T.contiguous().T.requires_grad_()
    seen = outcomes(targets, logits=strided)
    torch.testing.assert_close(seen.nll, outcomes(targets, logits=logits).nll)
    assert not seen.nll.requires_grad


IDS = torch.tensor([0, 1, 2, 0])
LOGITS = torch.zeros(4, 3)


@pytest.mark.parametrize(
    ("targets", "given", "kind", "words"),
    [
        (IDS, {}, TypeError, "`probs`"),
        (IDS, {"probs": LOGITS + 1 / 3, "logits": LOGITS}, TypeError, "got both"),
        (IDS, {"logits": LOGITS * math.nan}, ValueError, "`logits`"),
        (IDS, {"logits": LOGITS + math.inf}, ValueError, "`logits`"),
        (IDS, {"logits": LOGITS - math.inf}, ValueError, "`logits`"),
        (IDS, {"logits": LOGITS[:, :0]}, ValueError, "`logits`"),
        (IDS[:3], {"logits": LOGITS}, ValueError, "`targets`"),
        (IDS, {"probs": LOGITS - 2.0}, ValueError, r"in \[0, 1\] \(probabilities, not logits\), got -2.0"),
        (IDS, {"probs": LOGITS + 0.9}, ValueError, "rows that sum to 1, got 2.6"),
    ],
)
def test_bad_input_is_refused_in_one_line(targets, given, kind, words):
    with pytest.raises(kind, match=words) as caught:
        outcomes(targets, **given)
    assert str(caught.value).startswith("outcomes: ")
    assert "\n" not in str(caught.value)


def test_a_bad_row_far_down_is_found():
    _, probs, targets = forecast(700, 1000, seed=2)
    probs[690, 5] = math.nan
    with pytest.raises(ValueError, match="got nan"):
        outcomes(targets, probs=probs)
