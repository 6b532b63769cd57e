"""`choose_kl_weight`: λ from linear heads, and mistakes in its arguments."""

import numpy as np
import pandas as pd
import pytest
import torch

from beliefmatch import choose_kl_weight, kl_weight
from beliefmatch._labels import kl_weight_of, target_confidence_of
from beliefmatch.kl_weight import kl_weight_path


def gaussians(rows: int, *, distance: float, classes: int = 3, wrong: float = 0.0, seed: int = 0):
    """Gaussians around the corners of a simplex, some of whose labels are drawn anew."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.arange(rows) % classes
    features = distance * torch.nn.functional.one_hot(targets, classes) + torch.randn(
        rows, classes, generator=generator
    )
    drawn = torch.rand(rows, generator=generator) < wrong
    labels = torch.randint(classes, (rows,), generator=generator)
    return features, torch.where(drawn, labels, targets)


def test_wrong_labels_ask_for_a_larger_weight_than_clean_ones():
    clean = choose_kl_weight(*gaussians(400, distance=8.0))
    noisy = choose_kl_weight(*gaussians(400, distance=8.0, wrong=0.3))
    assert noisy > 3 * clean


def test_the_choice_is_the_largest_weight_near_the_lowest_nll():
    data = gaussians(300, distance=2.0)
    path = kl_weight_path(*data)
    assert [one.kl_weight for one in path] == sorted(one.kl_weight for one in path)
    lowest = min(one.nll for one in path)
    assert choose_kl_weight(*data) == max(one.kl_weight for one in path if one.nll <= 1.01 * lowest)
    for one in path:
        assert one.target_confidence == pytest.approx((1 + 1 / one.kl_weight) / (3 + 1 / one.kl_weight))


def test_a_weight_tried_with_several_weight_decays_has_the_lowest_nll_of_theirs(monkeypatch):
    searches = []

    class Recorded(kl_weight.HeadSearch):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            searches.append(self)

    monkeypatch.setattr(kl_weight, "HeadSearch", Recorded)
    data = gaussians(60, distance=2.0)
    path = kl_weight_path(*data)
    (search,) = searches
    nlls = {one.kl_weight: [] for one in path}
    for head in search.heads:
        if head.candidate.kind == "belief_matching":
            nlls[head.candidate.kl_weight].append(search.nll(head))
    assert any(found[-1] > min(found) for found in nlls.values())  # else this data tests nothing
    assert {one.kl_weight: one.nll for one in path} == {one: min(found) for one, found in nlls.items()}
    lowest = min(one.nll for one in path)
    assert choose_kl_weight(*data) == max(one.kl_weight for one in path if one.nll <= 1.01 * lowest)


def test_the_nll_of_the_path_is_that_of_rows_held_out():
    """A linear head can express the log-odds of these Gaussians; held-out rows are never predicted better."""
    features, targets = gaussians(600, distance=2.0)
    bayes = torch.nn.functional.cross_entropy(2.0 * features, targets).item()
    path = kl_weight_path(features, targets, kl_weights=[0.001])
    assert bayes < path[0].nll < 1.05 * bayes


def test_features_without_information_are_named():
    noise = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    with pytest.warns(UserWarning, match="`features`"):
        choose_kl_weight(noise, torch.arange(200) % 3)


def test_given_weights_are_the_only_ones():
    data = gaussians(120, distance=2.0)
    assert [one.kl_weight for one in kl_weight_path(*data, kl_weights=[1.0, 0.003])] == [0.003, 1.0]
    assert choose_kl_weight(*data, kl_weights=[5.0, 0.003]) == 0.003


def test_arrays_frames_tensors_and_one_hot_counts_choose_alike():
    features, targets = gaussians(150, distance=2.0)
    expected = choose_kl_weight(features, targets)
    frame = pd.DataFrame(features.double().numpy(), columns=list("abc"))
    assert choose_kl_weight(features.double().numpy(), targets.numpy().astype(np.int32)) == expected
    assert choose_kl_weight(frame, pd.Series(targets.numpy())) == expected
    assert choose_kl_weight(features.requires_grad_(), targets) == expected
    counts = torch.nn.functional.one_hot(targets, 3).float()
    assert choose_kl_weight(features, counts) == expected


@pytest.mark.parametrize(
    ("change", "argument"),
    [
        ({"features": torch.zeros(30)}, "features"),
        ({"features": torch.zeros(30, 2, dtype=torch.bool)}, "features"),
        ({"features": torch.full((30, 2), torch.nan)}, "features"),
        ({"features": torch.zeros(4, 2), "targets": torch.tensor([0, 1, 0, 1])}, "features"),
        ({"features": object()}, "features"),
        ({"targets": torch.zeros(30)}, "targets"),
        ({"targets": torch.zeros(29, dtype=torch.int64)}, "targets"),
        ({"targets": torch.zeros(30, dtype=torch.int64)}, "targets"),
        ({"targets": torch.eye(3).long().repeat(10, 1)}, "targets"),
        ({"targets": ["a"] * 30}, "targets"),
        ({"targets": np.array(["a", "b", 1] * 10, dtype=object)}, "targets"),
        ({"targets": pd.Series(["a", "b"] * 15)}, "targets"),
        ({"targets": 50 * (torch.arange(30) % 3)}, "targets"),
        ({"targets": 10**12 * (torch.arange(30) % 2)}, "targets"),
        ({"targets": torch.ones(30, dtype=torch.int64)}, "targets"),
        ({"targets": torch.zeros(30, 3)}, "targets"),
        ({"targets": torch.eye(3)[[0] * 30]}, "targets"),
        ({"targets": -torch.eye(3).repeat(10, 1)}, "targets"),
        ({"targets": torch.full((30, 3), torch.nan)}, "targets"),
        ({"targets": np.ma.array(np.arange(30) % 2, mask=[True] * 30)}, "targets"),
        ({"targets": torch.eye(3).repeat(10, 1).to_sparse()}, "targets"),
        ({"features": torch.zeros(30, 2, device="meta")}, "features"),
        ({"features": torch.eye(30).to_sparse()}, "features"),
        ({"features": pd.DataFrame({"a": ["x"] * 30, "b": range(30)})}, "features"),
        ({"kl_weights": 0.1}, "kl_weights"),
        ({"kl_weights": np.array(0.1)}, "kl_weights"),
        ({"kl_weights": "0.1"}, "kl_weights"),
        ({"kl_weights": []}, "kl_weights"),
        ({"kl_weights": [0.0]}, "kl_weights"),
        ({"prior": -1.0}, "prior"),
        ({"max_rise": -0.1}, "max_rise"),
    ],
)
def test_a_wrong_argument_is_named(change, argument):
    arguments = {"features": torch.randn(30, 2), "targets": torch.arange(30) % 2, **change}
    with pytest.raises((ValueError, TypeError), match=f"choose_kl_weight: `{argument}`"):
        choose_kl_weight(arguments.pop("features"), arguments.pop("targets"), **arguments)


def test_classes_without_an_example_need_counts_which_state_how_many_there_are():
    features, targets = gaussians(150, distance=2.0)
    with pytest.raises(
        ValueError, match="none of 1; number the classes from 0 without a gap, or give counts"
    ):
        choose_kl_weight(features, 50 * targets)
    counts = torch.nn.functional.one_hot(targets, 5).float()
    assert kl_weight_path(features, counts, kl_weights=[0.01])[0].target_confidence == 101 / 105


@pytest.mark.parametrize(("prior", "classes"), [(1.0, 2), (0.3, 7), (5.0, 1000)])
def test_confidence_and_weight_of_the_optimum_are_inverse(prior, classes):
    for confidence in (1.5 / classes, 0.9, 0.999):
        kl_weight = kl_weight_of(confidence, prior, classes)
        optimum = torch.full((classes,), prior, dtype=torch.float64)
        optimum[0] += 1 / kl_weight
        assert (optimum[0] / optimum.sum()).item() == pytest.approx(confidence, rel=1e-12)
        assert target_confidence_of(kl_weight, prior, classes) == pytest.approx(confidence, rel=1e-12)
