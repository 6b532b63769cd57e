"""Outcomes and scores of single predictions: scipy, plain loops, Belief, extreme values, bad input."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from beliefmatch import Belief
from beliefmatch.metrics import SCORES, outcomes
from forecasts import forecast, seeds
from kernel_contract import READERS, using

COLUMNS = ("predicted", "confidence", "nll", "brier", "entropy", "rank")
KINDS = ("probs", "logits")
SINGLE_AND_LESS = [torch.float16, torch.bfloat16, torch.float32]


def given_as(kind, examples, classes, seed):
    """Predictions of one kind, and their targets."""
    logits, probs, targets = forecast(examples, classes, seed)
    return (probs if kind == "probs" else logits), targets


def rank_by_loop(row: list[float], target: int) -> int:
    return sorted(range(len(row)), key=lambda k: (-row[k], k)).index(target)


@pytest.mark.parametrize("kind", KINDS)
@given(examples=st.integers(1, 40), classes=st.integers(1, 9), seed=seeds)
@settings(max_examples=30, deadline=None)
def test_columns_equal_their_definitions(kind, examples, classes, seed):
    logits, probs, targets = forecast(examples, classes, seed)
    p, onehot = probs.numpy(), np.eye(classes)[targets]
    for kernel in READERS:
        with using(kernel):
            seen = outcomes(targets, **{kind: probs if kind == "probs" else logits})
        np.testing.assert_array_equal(seen.predicted, p.argmax(1))
        np.testing.assert_allclose(seen.confidence, p.max(1), rtol=0 if kind == "probs" else 1e-14)
        np.testing.assert_allclose(seen.nll, -np.log((p * onehot).sum(1)), rtol=1e-9, atol=1e-15)
        np.testing.assert_allclose(seen.brier, ((p - onehot) ** 2).sum(1), rtol=1e-9, atol=1e-14)
        np.testing.assert_allclose(seen.entropy, special.entr(p).sum(1), rtol=1e-9, atol=1e-14)
        assert seen.rank.tolist() == [rank_by_loop(*pair) for pair in zip(p.tolist(), targets, strict=True)]
        assert seen.correct.tolist() == (p.argmax(1) == targets.numpy()).tolist() and len(seen) == examples


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_of_rows_make_no_difference(kind):
    values, targets = given_as(kind, 700, 1000, seed=2)  # three blocks
    for kernel in READERS:
        with using(kernel):
            whole = outcomes(targets, **{kind: values})
            parts = [outcomes(targets[i : i + 70], **{kind: values[i : i + 70]}) for i in range(0, 700, 70)]
        for column in COLUMNS:
            joined = torch.cat([getattr(part, column) for part in parts])
            torch.testing.assert_close(getattr(whole, column), joined, rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("dtype", SINGLE_AND_LESS)
@pytest.mark.parametrize("kind", KINDS)
def test_lower_precision_gives_the_values_of_double(kind, dtype):
    values, targets = given_as(kind, 60, 7, seed=4)
    values = values.to(dtype)
    high = outcomes(targets, **{kind: values.double()})
    for kernel in READERS:
        with using(kernel):
            low = outcomes(targets, **{kind: values})
        for column in COLUMNS:
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


CERTAIN = [[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]
IMPOSSIBLE = [[0.0, -math.inf, 0.0], [0.0, -math.inf, -math.inf]]


@pytest.mark.parametrize(
    ("kind", "values", "targets", "expected"),
    [
        (
            "probs",
            CERTAIN,
            [0, 2],
            {"nll": [0, math.inf], "brier": [0, 2], "entropy": [0, 0], "rank": [0, 2]},
        ),
        (
            "logits",
            IMPOSSIBLE,
            [1, 0],
            {"nll": [math.inf, 0], "brier": [1.5, 0], "entropy": [math.log(2), 0], "rank": [2, 0]},
        ),
        ("probs", [[0.25] * 4] * 4, [0, 1, 2, 3], {"predicted": [0] * 4, "rank": [0, 1, 2, 3]}),
        (
            "logits",
            [[3.0], [-3.0]],
            [0, 0],
            {"confidence": [1, 1], "brier": [0, 0], "nll": [0, 0], "entropy": [0, 0]},
        ),
    ],
    ids=["certain", "impossible classes", "ties", "one class"],
)
def test_outcomes_worked_by_hand(kind, values, targets, expected):
    for kernel in READERS:
        with using(kernel):
            seen = outcomes(torch.tensor(targets), **{kind: torch.tensor(values)})
        for column, numbers in expected.items():
            assert getattr(seen, column).tolist() == pytest.approx(numbers), column


IDS, LOGITS = torch.tensor([0, 1, 2, 0]), torch.zeros(4, 3)


@pytest.mark.parametrize(
    ("targets", "arguments", "kind", "argument"),
    [
        (IDS, {}, TypeError, "probs"),
        (IDS, {"probs": LOGITS + 1 / 3, "logits": LOGITS}, TypeError, "logits"),
        *((IDS, {"logits": LOGITS + bad}, ValueError, "logits") for bad in (math.nan, math.inf, -math.inf)),
        (IDS, {"logits": LOGITS[:, :0]}, ValueError, "logits"),
        (IDS[:3], {"logits": LOGITS}, ValueError, "target"),
        *((IDS, {"probs": LOGITS + bad}, ValueError, "probs") for bad in (-2.0, 0.9)),
    ],
)
def test_invalid_predictions_are_named_in_one_line(targets, arguments, kind, argument):
    with pytest.raises(kind, match=rf"^outcomes: [^\n]*`{argument}`[^\n]*\.$"):
        outcomes(targets, **arguments)


def test_an_invalid_row_of_a_later_block_is_found():
    values, targets = given_as("probs", 700, 1000, seed=2)
    values[690, 5] = math.nan
    for kernel in READERS:
        with using(kernel), pytest.raises(ValueError, match=r"^outcomes: `probs` .*, got nan\.$"):
            outcomes(targets, probs=values)


# Scores

OF_LOGITS_ONLY = ("mutual_information", "differential_entropy", "precision", "energy", "max_logit")
OF_BELIEFS = {
    "entropy": lambda belief: belief.entropy(),
    "confidence": lambda belief: 1 - belief.confidence,
    "mutual_information": lambda belief: belief.mutual_information(),
    "differential_entropy": lambda belief: belief.differential_entropy(),
    "precision": lambda belief: -belief.log_precision,
    "energy": lambda belief: -belief.log_precision,
    "max_logit": lambda belief: -belief.alpha.log().amax(1),
}


def test_scores_are_found_by_their_names():
    assert tuple(SCORES) == ("entropy", "confidence", *OF_LOGITS_ONLY) == tuple(OF_BELIEFS)
    assert all(score.name == name for name, score in SCORES.items())
    assert tuple(name for name, score in SCORES.items() if score.needs_logits) == OF_LOGITS_ONLY


@pytest.mark.parametrize("name", SCORES)
def test_scores_are_those_of_a_belief_and_higher_where_more_doubtful(name):
    logits, probs, _ = forecast(600, 700, seed=0)  # two blocks
    expected = OF_BELIEFS[name](Belief(logits))
    for kernel in READERS:
        with using(kernel):
            torch.testing.assert_close(SCORES[name](logits=logits), expected)
            if name not in OF_LOGITS_ONLY:
                torch.testing.assert_close(SCORES[name](probs=probs), expected)
    sure, doubtful = SCORES[name](logits=torch.tensor([[9.0, 0.0, 0.0], [0.5, 0.0, 0.0]]))
    assert doubtful > sure


@pytest.mark.parametrize("dtype", SINGLE_AND_LESS)
@pytest.mark.parametrize("name", SCORES)
def test_scores_of_lower_precision_are_those_of_double(name, dtype):
    logits = forecast(50, 6, seed=2)[0].to(dtype)
    score = SCORES[name](logits=logits)
    assert score.dtype == torch.float64 and score.shape == (50,)
    torch.testing.assert_close(score, SCORES[name](logits=logits.double()), rtol=1e-5, atol=1e-5)


def test_doubt_keeps_its_digits_where_the_confidence_rounds_to_one():
    """In single precision 1 − softmax would be 0 for both rows, and their order lost."""
    logits = torch.tensor([[30.0, 0.0], [40.0, 0.0]])
    expected = [math.exp(-30), math.exp(-40)]
    assert SCORES["confidence"](logits=logits).tolist() == pytest.approx(expected, rel=1e-6)
    assert (1 - logits.softmax(1).amax(1)).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("name", "arguments", "kind", "argument"),
    [
        *((name, {"probs": LOGITS + 1 / 3}, TypeError, "logits") for name in OF_LOGITS_ONLY),
        ("entropy", {}, TypeError, "probs"),
        ("entropy", {"probs": LOGITS + 1 / 3, "logits": LOGITS}, TypeError, "probs"),
        ("entropy", {"probs": LOGITS - 1}, ValueError, "probs"),
        ("energy", {"logits": LOGITS * torch.nan}, ValueError, "logits"),
    ],
)
def test_arguments_that_a_score_cannot_use_are_named(name, arguments, kind, argument):
    with pytest.raises(kind, match=rf"^SCORES\['{name}'\]: .*`{argument}`"):
        SCORES[name](**arguments)


@pytest.mark.parametrize(("kind", "remedy"), [("logits", r"\[-z/2, z/2\]"), ("probs", r"\[1 - p, p\]")])
def test_one_number_an_example_is_refused_with_what_to_stack(kind, remedy):
    with pytest.raises(ValueError, match=rf"^outcomes: `{kind}` .*{remedy}"):
        outcomes(torch.tensor([0, 1, 1]), **{kind: torch.full((3,), 0.5)})
