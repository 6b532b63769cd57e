"""Trained networks by name: of our runs, of files, of the user's factories; those of others in `families`."""

import sys

import pytest
import torch
from torch import nn

from beliefmatch.data import load
from beliefmatch.experiments.build import dataset, settings_for, trained_network
from beliefmatch.experiments.config import config_from, overridden, recipe, with_method
from beliefmatch.experiments.predict import restore
from beliefmatch.experiments.run import execute
from beliefmatch.models import build_model, pretrained_model
from beliefmatch.models.digits import DigitsNet

FAST = ["training.epochs=1", "data.limit=60", "model.options.width=4", "ood=[]", "engine.threads=1"]


def config(method="softmax", **options):
    return config_from(with_method(overridden(recipe("digits"), FAST), method, **options))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    place = tmp_path_factory.mktemp("run")
    execute(config(), place)
    return place


def test_a_run_gives_its_network_with_weights_and_preprocessing(run):
    found = trained_network(f"{run}")
    data = dataset(config().data)
    images = next(iter(data.test.batches([torch.arange(9)]))).inputs
    with torch.no_grad():
        said = restore(run).predictor.predict(images).probs
        torch.testing.assert_close(found.network(images).double().softmax(-1), said)
    assert not found.network.training
    assert found.class_names == tuple("0123456789")
    same = load(settings_for(config().data, found.expected)).test
    assert torch.equal(next(iter(same.batches([torch.arange(9)]))).inputs, images)


def test_a_run_takes_neither_options_nor_weights(run):
    with pytest.raises(ValueError, match=r"`weights` must not be given for .* a run has its own"):
        trained_network(f"{run}", weights="a.pt")
    with pytest.raises(ValueError, match="`options` must not be given"):
        trained_network(f"{run}", options={"width": 3})


def test_ensembles_and_unfinished_runs_are_refused(tmp_path):
    from beliefmatch.experiments.run_dir import RunDirectory

    RunDirectory(tmp_path / "a").begin(config())
    with pytest.raises(ValueError, match="must hold a finished run"):
        trained_network(f"{tmp_path / 'a'}")
    home = RunDirectory(tmp_path / "b")
    home.begin(config("ensemble", members=2))
    home.write_model({"class_names": ["a", "b"], "shape": [1, 8, 8], "preprocessing": {}, "learned": {}})
    with pytest.raises(ValueError, match=r"must be the run of one network, got .* an ensemble of 2"):
        trained_network(f"{tmp_path / 'b'}")


def test_a_network_of_ours_needs_weights_and_has_the_classes_of_its_options(tmp_path):
    with pytest.raises(ValueError, match="`weights` must be given for digits"):
        pretrained_model("digits")
    saved = DigitsNet(num_classes=7, width=4)
    torch.save(saved.state_dict(), tmp_path / "a.pt")
    options = {"num_classes": 7, "width": 4}
    found = pretrained_model("digits", options=options, weights=tmp_path / "a.pt")
    x = torch.rand(3, 1, 8, 8)
    assert torch.equal(found(x), saved.eval()(x))
    with pytest.raises(ValueError, match="`--model-option num_classes=7`"):
        pretrained_model("digits", options={"width": 4}, weights=tmp_path / "a.pt")
    with pytest.raises(TypeError, match="digits has no option `widht`; did you mean `width`"):
        pretrained_model("digits", options={"widht": 4}, weights=tmp_path / "a.pt")
    with pytest.raises(ValueError, match=r"hf:OWNER/NAME .* got 'digitz'; did you mean digits"):
        pretrained_model("digitz")


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    (tmp_path / "own_for_adapting.py").write_text(
        "from torch import nn\n"
        "def alone(): return nn.Linear(4, 5)\n"
        "def told(num_classes=3, channels=1): return nn.Linear(4 * channels, num_classes)\n"
        "def needy(num_classes): return nn.Linear(4, num_classes)\n"
    )
    monkeypatch.chdir(tmp_path)
    yield "own_for_adapting"
    sys.modules.pop("own_for_adapting", None)


def test_a_factory_is_told_nothing_but_its_options(own_module, tmp_path):
    assert pretrained_model(f"{own_module}:alone").out_features == 5
    assert pretrained_model(f"{own_module}:told").out_features == 3
    assert pretrained_model(f"{own_module}:told", options={"num_classes": 8, "channels": 2}).in_features == 8
    with pytest.raises(TypeError, match="must be given the option `num_classes`"):
        pretrained_model(f"{own_module}:needy")
    weights = {"weight": torch.ones(5, 4), "bias": torch.zeros(5)}
    torch.save(weights, tmp_path / "w.pth")
    found = trained_network(f"{own_module}:alone", weights=tmp_path / "w.pth")
    assert isinstance(found.network, nn.Linear) and found.network.weight.sum() == 20
    assert found.expected is None and found.class_names is None


@pytest.mark.parametrize(
    ("name", "words"), [("torchvision:resnet18", "torchvision.models:resnet18"), ("hf:a/b", "timm:")]
)
def test_networks_that_can_only_be_adapted_are_not_trained(name, words):
    with pytest.raises(ValueError, match=rf"`name` must be a network to train, got .* write {words}"):
        build_model(name, num_classes=3, channels=3)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("hf:a b/c", {}, "must be hf:OWNER/NAME or hf:DIRECTORY"),
        ("hf:a/b", {"trust_remote_code": True}, "`trust_remote_code` must be false"),
        ("timm:x", {"pretrained": "yes"}, "`pretrained` must be true or false, got 'yes'"),
    ],
)
def test_mistakes_are_told(name, options, words):
    with pytest.raises(ValueError, match=words):
        pretrained_model(name, options=options)


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [("torchvision:resnet18", "torchvision.models", "vision"), ("hf:a/b", "transformers", "huggingface")],
)
def test_without_the_package_the_extra_is_named(monkeypatch, name, package, extra):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ModuleNotFoundError, match=rf"beliefmatch\[{extra}\]"):
        pretrained_model(name)
