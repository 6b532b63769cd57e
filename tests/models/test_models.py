"""Networks: the sizes that their papers state, the shapes that they promise."""

import pytest
import torch
from torch import nn

from beliefmatch.models.resnet import (
    preact_resnet18,
    preact_resnet34,
    preact_resnet50,
    wide_resnet,
)


def parameters(network):
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize(
    ("make", "millions"),
    [
        (preact_resnet18, 11.17),
        (preact_resnet34, 21.28),
        (preact_resnet50, 23.51),
        (lambda: wide_resnet(depth=28, factor=2), 1.47),
        (lambda: wide_resnet(depth=28, factor=10), 36.48),
    ],
    ids=["ResNet-18", "ResNet-34", "ResNet-50", "WRN-28-2", "WRN-28-10"],
)
def test_networks_have_the_size_of_the_papers(make, millions):
    with torch.device("meta"):
        assert parameters(make()) / 1e6 == pytest.approx(millions, abs=0.005)


@pytest.mark.parametrize("make", [preact_resnet18, preact_resnet50, lambda **o: wide_resnet(depth=10, **o)])
def test_images_become_logits(make):
    network = make(width=4, num_classes=7, channels=1)
    assert network(torch.rand(3, 1, 32, 32)).shape == (3, 7)
    assert network(torch.rand(2, 1, 28, 28)).shape == (2, 7)


@pytest.mark.parametrize(("stride", "first"), [(1, 32), (2, 16)])
def test_resolution_halves_between_stages(stride, first):
    network = preact_resnet18(width=4, stem_stride=stride)
    x, sizes = network.stem(torch.rand(1, 3, 32, 32)), []
    for stage in network.stages:
        x = stage(x)
        sizes.append(tuple(x.shape[1:]))
    assert sizes == [(4 * 2**n, first // 2**n, first // 2**n) for n in range(4)]


@pytest.mark.parametrize("stride", [0, -1, 1.5, True, "2"])
def test_a_stride_that_is_no_step_is_refused(stride):
    with pytest.raises((TypeError, ValueError), match="ResidualNetwork: `stem_stride` must be a"):
        preact_resnet18(width=4, stem_stride=stride)


def test_logits_are_the_head_of_the_features():
    network = preact_resnet18(width=4).eval()
    x = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(network(x), network.head(network.features(x)))


@pytest.mark.parametrize(("in_blocks", "places"), [(False, 1), (True, 9)])
def test_dropout_stands_before_the_last_layer_or_before_all(in_blocks, places):
    network = preact_resnet18(width=4, dropout=0.2, dropout_in_blocks=in_blocks)
    active = [m for m in network.modules() if isinstance(m, nn.Dropout) and m.p > 0]
    assert len(active) == places


def test_a_depth_that_no_wide_resnet_has_is_refused():
    with pytest.raises(ValueError, match="wide_resnet: `depth` must be 10, 16, 22, 28"):
        wide_resnet(depth=27)


def test_activations_go_by_name():
    network = wide_resnet(depth=10, width=2, activation="leaky_relu")
    slopes = {module.negative_slope for module in network.modules() if isinstance(module, nn.LeakyReLU)}
    assert slopes == {0.1} and not any(isinstance(module, nn.ReLU) for module in network.modules())
    with pytest.raises(ValueError, match="`activation` must be one of 'relu', 'leaky_relu', got 'gelu'"):
        wide_resnet(depth=10, width=2, activation="gelu")
