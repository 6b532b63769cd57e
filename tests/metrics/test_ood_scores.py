"""Detection of OOD input and its scores: scikit-learn with ties, hand-worked cases, bad input."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp
from sklearn.covariance import EmpiricalCovariance, LedoitWolf
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve
from sklearn.neighbors import NearestNeighbors

from beliefmatch.metrics import (
    aupr,
    auroc,
    energy,
    fpr_at_tpr,
    knn_distance,
    mahalanobis_distance,
    max_logit,
    roc,
)
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
    assert count_needed(0.95, 1_200_019) == 1_140_019
    assert count_needed(0.1 + 0.2, 10) == 3
    for places in (1, 2, 3):
        for digits in range(1, 10**places + 1):
            for examples in (10, 20_000, 1_200_019, 10**9, 10**9 + 7):
                assert count_needed(digits / 10**places, examples) == -(-digits * examples // 10**places)


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


# Scores of logits and features


def clusters(examples, seed, dimensions=6):
    """Features of three classes around means of their own, with correlated noise, and the class ids."""
    rng = np.random.default_rng(seed)
    target = rng.integers(0, 3, examples)
    mixing = np.random.default_rng(9).normal(size=(dimensions, dimensions))
    means = 4 * np.random.default_rng(8).normal(size=(3, dimensions))
    features = means[target] + rng.normal(size=(examples, dimensions)) @ mixing
    return torch.from_numpy(features), torch.from_numpy(target)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_energy_and_the_largest_logit_are_those_of_scipy(dtype):
    logits = 5 * torch.randn(50, 7, generator=torch.Generator().manual_seed(0)).to(dtype)
    np.testing.assert_allclose(energy(logits), -logsumexp(logits.double().numpy(), axis=1), rtol=1e-6)
    assert max_logit(logits).tolist() == (-logits.amax(1)).double().tolist()


@pytest.mark.parametrize("shrunk", [False, True])
def test_the_mahalanobis_distance_is_that_of_scikit_learn(shrunk):
    train, target = clusters(400, 0)
    features, _ = clusters(50, 1)
    means = np.stack([train.numpy()[target.numpy() == k].mean(0) for k in range(3)])
    centred = train.numpy() - means[target]
    fitted = (LedoitWolf if shrunk else EmpiricalCovariance)(assume_centered=True).fit(centred)
    expected = np.min([fitted.mahalanobis(features.numpy() - mean) for mean in means], axis=0)
    found = mahalanobis_distance(features, train, target, shrinkage=fitted.shrinkage_ if shrunk else 0.0)
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    if shrunk:
        estimated = mahalanobis_distance(features, train, target, shrinkage="ledoit_wolf")
        np.testing.assert_allclose(estimated, expected, rtol=1e-9)


def test_the_mahalanobis_distance_does_not_change_with_the_axes_and_a_flat_one_is_left_out():
    train, target = clusters(300, 2)
    features, _ = clusters(20, 3)
    axes = torch.randn(6, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = mahalanobis_distance(features, train, target)
    torch.testing.assert_close(mahalanobis_distance(features @ axes, train @ axes, target), found)
    flat = (torch.cat([x, x[:, :1]], 1) for x in (features, train))  # a singular covariance
    torch.testing.assert_close(mahalanobis_distance(*flat, target), found)
    torch.testing.assert_close(mahalanobis_distance(features, train, 7 - 3 * target), found)  # any ids


@pytest.mark.parametrize("k", [1, 5, 200])
def test_the_distance_to_neighbours_is_that_of_scikit_learn(k, monkeypatch):
    monkeypatch.setattr("beliefmatch.metrics.ood._BLOCK", 1000)  # several blocks
    train, features = clusters(200, 4)[0], clusters(30, 5)[0]
    unit = [x / x.norm(dim=1, keepdim=True) for x in (train, features)]
    expected = NearestNeighbors(n_neighbors=k).fit(unit[0]).kneighbors(unit[1])[0][:, -1]
    np.testing.assert_allclose(knn_distance(features, train, k=k), expected, rtol=1e-9)
    torch.testing.assert_close(knn_distance(3 * features, train, k=k), knn_distance(features, train, k=k))
    assert knn_distance(train[:5], train, k=1).tolist() == pytest.approx([0] * 5, abs=1e-12)


@pytest.mark.parametrize("score", ["mahalanobis_distance", "knn_distance"])
def test_scores_of_features_detect_what_is_far_from_the_classes(score):
    train, target = clusters(600, 6)
    far = 12 * torch.randn(200, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    of = {
        "mahalanobis_distance": lambda x: mahalanobis_distance(x, train, target),
        "knn_distance": lambda x: knn_distance(x, train, k=10),
    }[score]
    assert auroc(of(clusters(200, 7)[0]), of(far)) > 0.8


TRAIN, IDS = torch.eye(4, 3) + 1, torch.tensor([0, 0, 1, 1])


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: mahalanobis_distance(TRAIN[:, :2], TRAIN, IDS), "train_features"),
        (lambda: mahalanobis_distance(TRAIN, TRAIN * 0 + 0.1, IDS), "train_features"),
        (lambda: mahalanobis_distance(TRAIN, TRAIN[:1], IDS[:1]), "train_features"),
        (lambda: mahalanobis_distance(TRAIN, TRAIN, IDS[:3]), "train_target"),
        (lambda: mahalanobis_distance(TRAIN, TRAIN, IDS, shrinkage=2.0), "shrinkage"),
        (lambda: mahalanobis_distance(TRAIN, TRAIN, IDS, shrinkage="auto"), "shrinkage"),
        (lambda: mahalanobis_distance(TRAIN * math.inf, TRAIN, IDS), "features"),
        (lambda: knn_distance(TRAIN, TRAIN, k=5), "k"),
        (lambda: knn_distance(0 * TRAIN, TRAIN, k=1), "features"),
        (lambda: max_logit(TRAIN * math.nan), "logits"),
    ],
)
def test_invalid_features_and_options_are_named(call, argument):
    with pytest.raises(ValueError, match=rf"^\w+: `{argument}` [^\n]+\.$"):
        call()
    with pytest.raises(TypeError, match=r"^mahalanobis_distance: `train_target`"):
        mahalanobis_distance(TRAIN, TRAIN, IDS.float())
