"""Detection of OOD input: scikit-learn with ties, hand-worked cases, bad input."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from beliefmatch.metrics import aupr, auroc, fpr_at_tpr, roc
from beliefmatch.metrics.ood import count_needed
from forecasts import coarse_scores, seeds

sizes = st.integers(1, 60)


def labelled(in_distribution, ood):
    """Which scores are of OOD examples, and all scores."""
    is_ood = np.r_[np.zeros(len(in_distribution)), np.ones(len(ood))]
    return is_ood, torch.cat([in_distribution, ood]).numpy()


@given(sizes, sizes, st.sampled_from([0.5, 0.8, 0.95]), seeds)
@settings(max_examples=60, deadline=None)
def test_areas_curves_and_rates_equal_scikit_learn_with_ties(examples, others, tpr, seed):
    scores = coarse_scores(examples, seed), coarse_scores(others, seed + 1) + 0.5
    is_ood, values = labelled(*scores)
    assert auroc(*scores) == pytest.approx(roc_auc_score(is_ood, values))
    assert aupr(*scores) == pytest.approx(average_precision_score(is_ood, values))
    reverse = average_precision_score(1 - is_ood, -values)
    assert aupr(*scores, positive="in_distribution") == pytest.approx(reverse)
    x, y = roc(*scores)
    false, true, _ = roc_curve(is_ood, values, drop_intermediate=False)
    np.testing.assert_allclose(x, false)
    np.testing.assert_allclose(y, true)
    assert np.trapezoid(y, x) == pytest.approx(auroc(*scores))
    # with OOD input as the positive class, sides and signs are swapped
    assert fpr_at_tpr(-scores[1], -scores[0], tpr=tpr) == pytest.approx(false[np.argmax(true >= tpr - 1e-12)])
    false, true, _ = roc_curve(1 - is_ood, -values, drop_intermediate=False)
    assert fpr_at_tpr(*scores, tpr=tpr) == pytest.approx(false[np.argmax(true >= tpr - 1e-12)])


@given(sizes, sizes, seeds)
@settings(max_examples=40, deadline=None)
def test_the_area_is_the_share_of_pairs_in_order(examples, others, seed):
    in_distribution, ood = coarse_scores(examples, seed), coarse_scores(others, seed + 1)
    difference = ood[:, None] - in_distribution[None]
    pairs = (difference > 0).double().mean() + (difference == 0).double().mean() / 2
    area = auroc(in_distribution, ood)
    assert area == pytest.approx(pairs.item())
    assert area == pytest.approx(1 - auroc(ood, in_distribution))
    assert area == pytest.approx(auroc(-ood, -in_distribution))
    assert area == auroc(in_distribution.exp(), ood.exp())  # any rising function leaves it as it is


def test_a_long_curve_is_thinned_without_moving():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(3000, generator=generator), torch.randn(4000, generator=generator) + 1
    x, y = roc(*scores)
    assert 400 < len(x) <= 500
    assert (x[0], y[0], x[-1], y[-1]) == (0, 0, 1, 1)
    assert (x.diff() >= 0).all() and (y.diff() >= 0).all()
    assert np.trapezoid(y, x) == pytest.approx(auroc(*scores), abs=1e-4)


def test_tied_perfect_and_worst_scores():
    same = torch.zeros(3), torch.zeros(5)
    assert auroc(*same) == 0.5 and fpr_at_tpr(*same) == 1.0
    assert aupr(*same) == pytest.approx(5 / 8)
    assert aupr(*same, positive="in_distribution") == pytest.approx(3 / 8)
    low, high = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([3.0, 4.0])
    assert auroc(low, high) == aupr(low, high) == aupr(low, high, positive="in_distribution") == 1.0
    assert fpr_at_tpr(low, high) == 0.0
    assert auroc(high, low) == 0.0 and fpr_at_tpr(high, low) == 1.0
    assert auroc(torch.tensor([-math.inf, 0.0]), torch.tensor([1.0, math.inf])) == 1.0
    assert auroc(torch.tensor([math.inf]), torch.tensor([math.inf])) == 0.5


def test_false_positive_rate_worked_by_hand():
    """Of the in-distribution scores 1 ... 20, 95 % lie at or below 19; of 18, 19 and 19.5 two pass."""
    in_distribution, ood = torch.arange(1.0, 21.0), torch.tensor([18.0, 19.0, 19.5])
    assert fpr_at_tpr(in_distribution, ood) == pytest.approx(2 / 3)
    assert fpr_at_tpr(in_distribution, ood, tpr=0.951) == 1.0
    assert fpr_at_tpr(in_distribution, ood, tpr=0.9) == pytest.approx(1 / 3)
    assert [count_needed(0.95, 20), count_needed(0.07, 100), count_needed(0.01, 5)] == [
        19,
        7,
        1,
    ]  # 0.07 · 100 > 7 in binary
    assert count_needed(0.95, 10_000_019) == 9_500_019  # beyond the integers of single precision


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.int64])
def test_scores_may_be_of_any_type(dtype):
    assert auroc(torch.tensor([1, 2, 3]).to(dtype), torch.tensor([2, 4]).to(dtype)) == pytest.approx(4.5 / 6)


def test_a_million_scores_do_not_overflow_the_count_of_pairs():
    assert auroc(torch.zeros(1_000_000), torch.ones(1_000_000)) == 1.0


@pytest.mark.parametrize("metric", [auroc, aupr, fpr_at_tpr, roc])
@pytest.mark.parametrize(
    ("bad", "kind"),
    [
        (torch.tensor([]), ValueError),
        (torch.zeros(2, 2), ValueError),
        (torch.tensor([0.0, math.nan]), ValueError),
        ([0.0, 1.0], TypeError),
    ],
)
def test_invalid_scores_are_named_in_one_line(metric, bad, kind):
    for name, scores in (("in_distribution", (bad, torch.ones(2))), ("ood", (torch.ones(2), bad))):
        with pytest.raises(kind, match=rf"^{metric.__name__}: `{name}` [^\n]+\.$"):
            metric(*scores)


@pytest.mark.parametrize(("metric", "option"), [(aupr, {"positive": "wrong"}), (fpr_at_tpr, {"tpr": 95})])
def test_invalid_options_are_named(metric, option):
    with pytest.raises(ValueError, match=rf"^{metric.__name__}: `{next(iter(option))}`"):
        metric(torch.ones(2), torch.ones(2), **option)
