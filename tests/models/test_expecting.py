"""What publishers say of a network's images, in their words and in ours."""

import numpy as np
import pytest
import torch
from torch import nn

from beliefmatch.data.config import DataConfig
from beliefmatch.experiments.networks import settings_for
from beliefmatch.models.pretrained import Expected, expecting, of_processor, of_timm, preprocessing_of

IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
HALF = (0.5, 0.5, 0.5)
TIMM = {"input_size": (3, 224, 224), "crop_pct": 0.875, "mean": IMAGENET[0], "std": IMAGENET[1]}


def test_timms_configuration():
    found = of_timm({**TIMM, "interpolation": "bicubic"})
    assert found == Expected(*IMAGENET, 224, pytest.approx(256 / 224), "bicubic")
    assert of_timm({**TIMM, "crop_pct": 1.0}).margin == 1
    assert of_timm({**TIMM, "crop_mode": "squash"}).margin == 1
    assert of_timm({**TIMM, "input_size": (3, 224, 192)}).size is None
    assert of_timm({"mean": HALF, "std": HALF}) == Expected(HALF, HALF, None, None)


@pytest.mark.parametrize(
    ("facts", "size", "margin"),
    [
        ({"size": {"height": 224, "width": 224}}, 224, 1.0),
        ({"size": 224}, 224, 1.0),
        ({"size": [224, 224]}, 224, 1.0),
        ({"size": {"shortest_edge": 256}, "do_center_crop": True, "crop_size": 224}, 224, 256 / 224),
        (
            {
                "size": {"shortest_edge": 256},
                "do_center_crop": True,
                "crop_size": {"height": 224, "width": 224},
            },
            224,
            256 / 224,
        ),
        ({"size": {"shortest_edge": 224}, "crop_pct": 0.875}, 224, 256 / 224),
        ({"size": {"shortest_edge": 384}, "crop_pct": 0.875}, 384, 1.0),
        ({"size": {"height": 224, "width": 200}}, None, 1.0),
        ({"size": 224, "do_resize": False}, None, None),
        ({"size": {"longest_edge": 3}}, None, None),
        ({}, None, None),
    ],
)
def test_sizes_of_hugging_face(facts, size, margin):
    found = of_processor({"image_mean": HALF, "image_std": HALF, **facts})
    assert found.size == size
    assert found.margin == (None if margin is None else pytest.approx(margin))


@pytest.mark.parametrize(
    "facts",
    [
        {"image_mean": IMAGENET[0], "image_std": IMAGENET[1]},
        {"image_mean": [0.5], "image_std": [0.25]},
        {"image_mean": 0.5, "image_std": 0.25},
        {"do_normalize": False},
        {"image_mean": HALF, "image_std": HALF, "do_rescale": False},
        {"image_mean": HALF, "image_std": HALF, "rescale_factor": 1 / 127.5},
        {"image_mean": HALF, "image_std": HALF, "rescale_factor": 1 / 127.5, "rescale_offset": True},
    ],
)
def test_scaling_of_hugging_face_does_to_bytes_what_its_processors_do(facts):
    pixels = np.arange(0, 256, 5.0)
    theirs = pixels * (facts.get("rescale_factor", 1 / 255) if facts.get("do_rescale", True) else 1)
    theirs = theirs - 1 if facts.get("rescale_offset") else theirs
    found = of_processor(facts)
    if facts.get("do_normalize", True):
        theirs = (theirs - np.ravel(facts["image_mean"])[0]) / np.ravel(facts["image_std"])[0]
    np.testing.assert_allclose((pixels / 255 - found.mean[0]) / found.std[0], theirs, rtol=1e-9, atol=1e-9)


def test_networks_tell_what_they_were_told_or_carry_with_them():
    network = nn.Linear(2, 2)
    assert preprocessing_of(network) is None
    network.pretrained_cfg = TIMM
    assert preprocessing_of(network).size == 224
    said = Expected(HALF, HALF, 32, 1.0)
    assert preprocessing_of(expecting(network, said)) is said
    assert list(network.state_dict()) == ["weight", "bias"]
    other = nn.Linear(2, 2)
    other.name_or_path = "nobody/nothing-of-this-name"
    assert preprocessing_of(other) is None
    assert torch.equal(expecting(other, None).weight, other.weight)


def test_data_are_brought_to_what_the_network_expects_where_the_user_says_nothing():
    expected = Expected(HALF, HALF, 224, 1.2)
    assert settings_for(DataConfig(), None) == DataConfig()
    found = settings_for(DataConfig(name="cifar10", limit=7), expected)
    assert found == DataConfig(name="cifar10", limit=7, mean=HALF, std=HALF, size=224, margin=1.2)
    own = DataConfig(mean=(0.1,), std=(0.2,), size=96, margin=1.0)
    assert settings_for(own, expected) == own
    assert settings_for(DataConfig(size=96), expected).margin == 1.2
    nothing = settings_for(DataConfig(), Expected(None, None, None, 1.2))
    assert nothing == DataConfig()
