"""Trained networks by name: the package's own from files, and those of the user's factories."""

import sys

import pytest
import torch
from torch import nn

from beliefmatch.experiments.build import trained_network
from beliefmatch.models import build_model, pretrained_model
from beliefmatch.models.digits import DigitsNet


def test_an_own_network_has_the_weights_of_a_file_and_the_classes_of_its_options(tmp_path):
    saved = DigitsNet(num_classes=7, width=4)
    file = tmp_path / "a.pt"
    torch.save(saved.state_dict(), file)
    found = pretrained_model("digits", options={"num_classes": 7, "width": 4}, weights=file)
    x = torch.rand(3, 1, 8, 8)
    assert torch.equal(found(x), saved.eval()(x))
    with pytest.raises(ValueError, match="`--model-option num_classes=7`"):
        pretrained_model("digits", options={"width": 4}, weights=file)
    with pytest.raises(TypeError, match=r"`widht`.*`width`"):
        pretrained_model("digits", options={"widht": 4}, weights=file)


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    (tmp_path / "own_for_adapting.py").write_text(
        "from torch import nn\n"
        "def alone(): return nn.Linear(4, 5)\n"
        "def optional(num_classes=3, channels=1): return nn.Linear(4 * channels, num_classes)\n"
        "def required(num_classes): return nn.Linear(4, num_classes)\n"
    )
    monkeypatch.chdir(tmp_path)
    yield "own_for_adapting"
    sys.modules.pop("own_for_adapting", None)


def test_a_factory_receives_only_its_options(own_module, tmp_path):
    assert pretrained_model(f"{own_module}:alone").out_features == 5
    assert pretrained_model(f"{own_module}:optional").out_features == 3
    options = {"num_classes": 8, "channels": 2}
    assert pretrained_model(f"{own_module}:optional", options=options).in_features == 8
    with pytest.raises(TypeError, match="`num_classes`"):
        pretrained_model(f"{own_module}:required")
    torch.save({"weight": torch.ones(5, 4), "bias": torch.zeros(5)}, tmp_path / "w.pth")
    found = trained_network(f"{own_module}:alone", weights=tmp_path / "w.pth")
    assert isinstance(found.network, nn.Linear) and found.network.weight.sum() == 20
    assert found.expected is None and found.class_names is None


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("digits", {}, "`weights`"),
        ("digitz", {}, r"`name`.*did you mean digits"),
        ("hf:a b/c", {}, "`name`"),
        ("hf:a/b", {"trust_remote_code": True}, "`trust_remote_code`"),
        ("timm:x", {"pretrained": "yes"}, "`pretrained`"),
    ],
)
def test_mistakes_are_named(name, options, words):
    with pytest.raises(ValueError, match=words):
        pretrained_model(name, options=options)


@pytest.mark.parametrize(
    ("name", "remedy"), [("torchvision:resnet18", "torchvision.models:resnet18"), ("hf:a/b", "timm:")]
)
def test_networks_that_can_only_be_adapted_are_not_trained(name, remedy):
    with pytest.raises(ValueError, match=rf"`name`.*{remedy}"):
        build_model(name, num_classes=3, channels=3)


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [("torchvision:resnet18", "torchvision.models", "vision"), ("hf:a/b", "transformers", "huggingface")],
)
def test_without_the_package_the_extra_is_named(monkeypatch, name, package, extra):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ModuleNotFoundError, match=rf"beliefmatch\[{extra}\]"):
        pretrained_model(name)
