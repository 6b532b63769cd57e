"""Scores of single predictions: what each is, which way it points, and what it needs."""

import pytest
import torch

from beliefmatch import Belief
from beliefmatch.metrics import SCORES
from forecasts import forecast

OF_LOGITS_ONLY = ("mutual_information", "differential_entropy", "precision", "energy")


def test_names_are_the_documented_ones():
    assert tuple(SCORES) == ("entropy", "confidence", *OF_LOGITS_ONLY)
    assert all(score.name == name for name, score in SCORES.items())
    assert tuple(name for name, score in SCORES.items() if score.needs_logits) == OF_LOGITS_ONLY


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("entropy", lambda belief: belief.entropy()),
        ("confidence", lambda belief: 1 - belief.confidence),
        ("mutual_information", lambda belief: belief.mutual_information()),
        ("differential_entropy", lambda belief: belief.differential_entropy()),
        ("precision", lambda belief: -belief.log_precision),
        ("energy", lambda belief: -belief.log_precision),
    ],
)
def test_scores_are_those_of_a_belief(name, expected):
    logits, _, _ = forecast(600, 700, seed=0)  # two blocks
    torch.testing.assert_close(SCORES[name](logits=logits), expected(Belief(logits)))


@pytest.mark.parametrize("name", ["entropy", "confidence"])
def test_probabilities_give_the_same(name):
    logits, probs, _ = forecast(50, 6, seed=1)
    torch.testing.assert_close(SCORES[name](probs=probs), SCORES[name](logits=logits))


@pytest.mark.parametrize("name", SCORES)
def test_a_doubtful_row_scores_higher_than_a_sure_one(name):
    sure, doubtful = SCORES[name](logits=torch.tensor([[9.0, 0.0, 0.0], [0.5, 0.0, 0.0]]))
    assert doubtful > sure


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", SCORES)
def test_lower_precision_is_read_as_it_stands(name, dtype):
    logits = forecast(50, 6, seed=2)[0].to(dtype)
    score = SCORES[name](logits=logits)
    assert score.dtype == torch.float64 and score.shape == (50,)
    torch.testing.assert_close(score, SCORES[name](logits=logits.double()), rtol=1e-5, atol=1e-5)


def test_doubt_keeps_its_digits_where_the_confidence_rounds_to_one():
    """In single precision 1 − softmax would be 0 for both rows, and their order lost."""
    logits = torch.tensor([[30.0, 0.0], [40.0, 0.0]])
    assert SCORES["confidence"](logits=logits).tolist() == pytest.approx(
        torch.tensor([-30.0, -40.0]).double().exp().tolist(), rel=1e-6
    )
    assert (1 - logits.softmax(1).amax(1)).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("name", OF_LOGITS_ONLY)
def test_probabilities_do_not_tell_the_evidence(name):
    _, probs, _ = forecast(5, 3, seed=0)
    with pytest.raises(TypeError, match=rf"^SCORES\['{name}'\]: needs `logits`, .*; got `probs`\.$"):
        SCORES[name](probs=probs)


def test_exactly_one_of_probabilities_and_logits_is_taken():
    logits, probs, _ = forecast(5, 3, seed=0)
    with pytest.raises(TypeError, match="got neither"):
        SCORES["entropy"]()
    with pytest.raises(TypeError, match="got both"):
        SCORES["entropy"](probs=probs, logits=logits)
    with pytest.raises(ValueError, match="not logits"):
        SCORES["entropy"](probs=logits)
    with pytest.raises(ValueError, match="`logits`"):
        SCORES["energy"](logits=logits * torch.nan)
