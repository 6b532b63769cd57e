"""Penultimate activations on the plane through the templates of three classes."""

import pytest
import torch
from torch import nn

from beliefmatch.reproduce.activations import class_ids, last_layer, penultimate, plane, project
from small_training import Examples, engine


def test_a_plane_goes_through_the_templates():
    templates = torch.randn(3, 7, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    basis = plane(templates)
    assert torch.allclose(basis.T @ basis, torch.eye(2, dtype=torch.float64))
    flat = templates @ basis
    assert torch.allclose(torch.pdist(flat), torch.pdist(templates))  # on their own plane nothing is lost
    first, second = flat[1] - flat[0], flat[2] - flat[0]
    assert first[0] > 0 and first[1].abs() < 1e-12 and second[1] > 0


def test_tightness_is_the_distance_within_classes_over_the_distance_between_them():
    targets = torch.tensor([4, 4, 9, 9, 30, 30])
    centres = torch.tensor([[0.0, 0, 0], [0, 0, 0], [6, 0, 0], [6, 0, 0], [0, 8, 0], [0, 8, 0]])
    apart = torch.tensor([[0.0, 0, 2], [0, 0, -2], [0, 0, 2], [0, 0, -2], [0, 0, 2], [0, 0, -2]])
    found = project((centres + apart).double(), targets, torch.eye(3, dtype=torch.float64)[:, :2])
    assert found.tightness == pytest.approx(2 / ((6 + 8 + 10) / 3))
    assert found.extent == 8
    assert found.points.tolist() == centres[:, :2].tolist()
    constant = project(torch.ones(6, 4), torch.arange(6) % 3, torch.eye(4)[:, :2])
    assert (constant.extent, constant.tightness) == (0.0, None)


def test_the_three_classes_are_the_papers_wherever_possible():
    assert class_ids([f"{index}" for index in range(100)]) == [4, 30, 55]  # CIFAR-100 in its own order
    assert class_ids(["otter", "x", "beaver", "dolphin"]) == [2, 3, 0]
    assert class_ids(list("0123456789")) == [0, 1, 2]


def test_penultimate_activations_are_the_inputs_of_the_last_layer():
    source = Examples(30)
    network = nn.Sequential(nn.Flatten(), nn.Linear(108, 5), nn.ReLU(), nn.Linear(5, 3))
    features, targets = penultimate(network, source, [0, 2], engine())
    chosen = torch.isin(source.targets, torch.tensor([0, 2]))
    assert torch.equal(targets, source.targets[chosen]) and 0 < len(targets) < 30
    with torch.no_grad():
        assert torch.allclose(features, network[:3](source.images[chosen]).double())
    assert last_layer(network) is network[3]
    with pytest.raises(ValueError, match="`model`"):
        last_layer(nn.ReLU())
