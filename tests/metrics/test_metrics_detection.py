"""Detection against scikit-learn and torchmetrics, ties and the conventions included."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve
from torchmetrics.functional.classification import binary_auroc

from beliefmatch.metrics import aupr, auroc, fpr_at_tpr, roc
from forecasts import coarse_scores, seeds

sizes = st.integers(1, 60)


def labelled(in_distribution: torch.Tensor, ood: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    is_outside = np.r_[np.zeros(len(in_distribution)), np.ones(len(ood))]
    return is_outside, torch.cat([in_distribution, ood]).numpy()


@given(sizes, sizes, seeds)
@settings(max_examples=40, deadline=None)
def test_areas_equal_scikit_learn_with_ties(in_distribution, ood, seed):
    in_distribution, ood = coarse_scores(in_distribution, seed), coarse_scores(ood, seed + 1) + 0.5
    truth, scores = labelled(in_distribution, ood)
    assert auroc(in_distribution, ood) == pytest.approx(roc_auc_score(truth, scores))
    assert aupr(in_distribution, ood) == pytest.approx(average_precision_score(truth, scores))
    reverse = average_precision_score(1 - truth, -scores)
    assert aupr(in_distribution, ood, positive="in_distribution") == pytest.approx(reverse)


@given(sizes, sizes, seeds)
@settings(max_examples=40, deadline=None)
def test_the_area_is_the_share_of_pairs_in_order(in_distribution, ood, seed):
    in_distribution, ood = coarse_scores(in_distribution, seed), coarse_scores(ood, seed + 1)
    difference = ood[:, None] - in_distribution[None]
    pairs = (difference > 0).double().mean() + (difference == 0).double().mean() / 2
    assert auroc(in_distribution, ood) == pytest.approx(pairs.item())
    assert auroc(in_distribution, ood) == pytest.approx(1 - auroc(ood, in_distribution))
    assert auroc(in_distribution, ood) == pytest.approx(auroc(-ood, -in_distribution))
    assert auroc(in_distribution.exp(), ood.exp()) == auroc(
        in_distribution, ood
    )  # any rising function will do


@given(sizes, sizes, seeds)
@settings(max_examples=40, deadline=None)
def test_the_curve_is_that_of_scikit_learn_and_has_the_area(in_distribution, ood, seed):
    in_distribution, ood = coarse_scores(in_distribution, seed), coarse_scores(ood, seed + 1)
    x, y = roc(in_distribution, ood)
    false, true, _ = roc_curve(*labelled(in_distribution, ood), drop_intermediate=False)
    np.testing.assert_allclose(x, false)
    np.testing.assert_allclose(y, true)
    assert np.trapezoid(y, x) == pytest.approx(auroc(in_distribution, ood))


def test_a_long_curve_is_thinned_without_moving():
    generator = torch.Generator().manual_seed(0)
    in_distribution, ood = torch.randn(3000, generator=generator), torch.randn(4000, generator=generator) + 1
    x, y = roc(in_distribution, ood)
    assert 400 < len(x) <= 500
    assert (x[0], y[0], x[-1], y[-1]) == (0, 0, 1, 1)
    assert (x.diff() >= 0).all() and (y.diff() >= 0).all()
    assert np.trapezoid(y, x) == pytest.approx(auroc(in_distribution, ood), abs=1e-4)


def test_all_tied_scores_tell_nothing():
    in_distribution, ood = torch.zeros(3), torch.zeros(5)
    assert auroc(in_distribution, ood) == 0.5
    assert aupr(in_distribution, ood) == pytest.approx(5 / 8)
    assert aupr(in_distribution, ood, positive="in_distribution") == pytest.approx(3 / 8)
    assert fpr_at_tpr(in_distribution, ood) == 1.0


def test_perfect_and_worst_separation():
    low, high = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([3.0, 4.0])
    assert auroc(low, high) == aupr(low, high) == aupr(low, high, positive="in_distribution") == 1.0
    assert fpr_at_tpr(low, high) == 0.0
    assert auroc(high, low) == 0.0
    assert fpr_at_tpr(high, low) == 1.0


def test_false_positive_rate_by_hand():
    """Of the inside scores 1 ... 20, 95 % lie at or below 19; of 18, 19 and 19.5 outside two pass."""
    in_distribution, ood = torch.arange(1.0, 21.0), torch.tensor([18.0, 19.0, 19.5])
    assert fpr_at_tpr(in_distribution, ood) == pytest.approx(2 / 3)
    assert fpr_at_tpr(in_distribution, ood, tpr=0.951) == 1.0
    assert fpr_at_tpr(in_distribution, ood, tpr=0.9) == pytest.approx(1 / 3)


@given(sizes, sizes, st.sampled_from([0.5, 0.8, 0.95]), seeds)
@settings(max_examples=40, deadline=None)
def test_false_positive_rate_equals_a_search_of_the_curve(in_distribution, ood, tpr, seed):
    """Known input is the positive class, a score counts from the least OOD up."""
    in_distribution, ood = coarse_scores(in_distribution, seed), coarse_scores(ood, seed + 1)
    truth, scores = labelled(in_distribution, ood)
    false, true, _ = roc_curve(1 - truth, -scores, drop_intermediate=False)
    expected = false[np.argmax(true >= tpr - 1e-12)]
    assert fpr_at_tpr(in_distribution, ood, tpr=tpr) == pytest.approx(expected)


@given(sizes, sizes, seeds)
@settings(max_examples=40, deadline=None)
def test_with_ood_input_as_the_positive_class_sides_and_signs_are_swapped(in_distribution, ood, seed):
    in_distribution, ood = coarse_scores(in_distribution, seed), coarse_scores(ood, seed + 1)
    false, true, _ = roc_curve(*labelled(in_distribution, ood), drop_intermediate=False)
    expected = false[np.argmax(true >= 0.95 - 1e-12)]
    assert fpr_at_tpr(-ood, -in_distribution) == pytest.approx(expected)


def test_torchmetrics_squashes_scores_beyond_the_unit_interval_and_loses_their_order():
    scores, ood = torch.tensor([20.0, 30.0, 40.0, 50.0]), torch.tensor([0, 0, 1, 1])
    assert binary_auroc(scores, ood).item() == 0.5
    assert auroc(scores[:2], scores[2:]) == 1.0


def test_infinite_scores_are_the_most_extreme():
    assert auroc(torch.tensor([-math.inf, 0.0]), torch.tensor([1.0, math.inf])) == 1.0
    assert auroc(torch.tensor([math.inf]), torch.tensor([math.inf])) == 0.5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.int64])
def test_scores_of_any_type_are_read(dtype):
    in_distribution, ood = torch.tensor([1, 2, 3]).to(dtype), torch.tensor([2, 4]).to(dtype)
    assert auroc(in_distribution, ood) == pytest.approx(4.5 / 6)


def test_a_million_scores_do_not_overflow_the_count_of_pairs():
    in_distribution, ood = torch.zeros(1_000_000), torch.ones(1_000_000)
    assert auroc(in_distribution, ood) == 1.0


@pytest.mark.parametrize("metric", [auroc, aupr, fpr_at_tpr, roc])
@pytest.mark.parametrize(
    ("bad", "kind", "words"),
    [
        (torch.tensor([]), ValueError, r"must have shape \(N,\) with N >= 1"),
        (torch.zeros(2, 2), ValueError, r"must have shape \(N,\) with N >= 1"),
        (torch.tensor([0.0, math.nan]), ValueError, "must be free of NaN, got nan"),
        ([0.0, 1.0], TypeError, "must be a tensor of numbers"),
    ],
)
def test_bad_scores_are_refused_in_one_line(metric, bad, kind, words):
    for name, scores in (("in_distribution", (bad, torch.ones(2))), ("ood", (torch.ones(2), bad))):
        with pytest.raises(kind, match=rf"^{metric.__name__}: `{name}` {words}") as caught:
            metric(*scores)
        assert "\n" not in str(caught.value)


def test_options_are_checked():
    with pytest.raises(ValueError, match="`positive`"):
        aupr(torch.ones(2), torch.ones(2), positive="wrong")
    with pytest.raises(ValueError, match="`tpr`"):
        fpr_at_tpr(torch.ones(2), torch.ones(2), tpr=95)
