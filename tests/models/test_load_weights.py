"""Weights from files: taken out of their wrappings, in the network's types, or refused in one line."""

import pickle
import zipfile

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from beliefmatch.models import build_seeded
from beliefmatch.models.digits import DigitsNet
from beliefmatch.models.pretrained import load_weights, pretrained_model
from refusals import refusal


class Net(nn.Module):
    """A convolution, its normalisation and a head."""

    def __init__(self, classes=3):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4))
        self.head = nn.Linear(4, classes)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))


class Tied(nn.Module):
    """One matrix with two names."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
        self.two.weight = self.one.weight


class NeedsCode:
    """A class of ours, which torch does not unpickle."""


def net(seed, classes=3):
    return build_seeded(lambda: Net(classes), seed)


def state(classes=3):
    return net(1, classes).state_dict()


def save(path, tensors):
    save_file(dict(tensors), path) if path.suffix == ".safetensors" else torch.save(tensors, path)
    return path


def check_loaded(path, **expected):
    model = net(0)
    found = load_weights(model, path)
    for name, value in state().items():
        assert torch.equal(model.state_dict()[name], value), name
    for name, value in expected.items():
        assert getattr(found, name) == value
    assert found.missing == found.unexpected == ()


def complaint(path, *, model=None, **options):
    model = model or net(0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    message = refusal(load_weights, model, path, **options)
    assert message.startswith("load_weights: ")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    return message


@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".pth", ".th", ".bin"])
def test_every_format_is_read(tmp_path, suffix):
    check_loaded(save(tmp_path / f"a{suffix}", state()), container="", prefix="")


@pytest.mark.parametrize("container", ["state_dict", "model_state_dict", "model"])
@pytest.mark.parametrize(
    "prefix", ["", "module.", "_orig_mod.", "model.", "module._orig_mod.", "model.module."]
)
def test_wrappings_are_taken_off(tmp_path, container, prefix):
    named = {f"{prefix}{name}": value for name, value in state().items()}
    path = save(tmp_path / "a.pth", {"epoch": 3, container: named, "optimizer": {"lr": 0.1}})
    check_loaded(path, container=container, prefix=prefix)


def test_names_that_match_keep_their_prefix(tmp_path):
    own = nn.ModuleDict({"model": nn.Linear(2, 2)})
    path = save(tmp_path / "a.pt", {"model.weight": torch.ones(2, 2), "model.bias": torch.zeros(2)})
    assert load_weights(own, path).prefix == ""
    assert own["model"].weight.sum() == 4


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_floating_types_become_the_networks(tmp_path, dtype):
    given = {name: value.to(dtype) if value.is_floating_point() else value for name, value in state().items()}
    model = net(0)
    load_weights(model, save(tmp_path / "a.safetensors", given))
    assert {value.dtype for value in model.parameters()} == {torch.float32}
    assert torch.equal(model.head.weight, given["head.weight"].float())


def test_counters_of_batches_may_be_missing_and_tied_tensors_need_be_there_once(tmp_path):
    kept = {name: value for name, value in state().items() if "num_batches_tracked" not in name}
    check_loaded(save(tmp_path / "a.pt", kept))
    model = Tied()
    assert load_weights(model, save(tmp_path / "b.pt", {"one.weight": torch.eye(3)})).missing == ()
    assert torch.equal(model.two.weight, torch.eye(3))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda t: t | {"heads.weight": t.pop("head.weight")},
            "is head.weight named heads.weight in the file?",
        ),
        (lambda t: t.pop("head.weight") is None or t, "a.pt without head.weight."),
        (lambda t: t | {f"aux.{n}": torch.zeros(1) for n in range(5)}, "with aux.0, aux.1, aux.2 and 2 more"),
        (lambda t: t | {"body.0.weight": torch.zeros(4, 1, 3, 3)}, "`body.0.weight`"),
        (lambda t: t | {"head.bias": torch.zeros(3, dtype=torch.int8)}, "`head.bias`"),
        (lambda t: {"epoch": 3}, "got epoch in"),
        (lambda t: [torch.zeros(2)], "got a list in"),
        (lambda t: {}, "got nothing in"),
    ],
)
def test_tensors_that_do_not_fit_are_named(tmp_path, change, words):
    message = complaint(save(tmp_path / "a.pt", change(dict(state()))))
    assert words in message and "num_classes" not in message


@pytest.mark.parametrize("strict", [True, False])
def test_a_head_of_another_size_is_refused_with_a_remedy(tmp_path, strict):
    message = complaint(save(tmp_path / "a.pt", state(classes=7)), strict=strict)
    assert "`head.weight`" in message and "(3, 4), got (7, 4) and 1 more" in message
    assert "`--model-option num_classes=7`" in message


def test_without_strict_the_tensors_that_match_are_loaded(tmp_path):
    model, given = net(0), {"head.weight": torch.ones(3, 4), "aux": torch.zeros(2)}
    before = model.body[0].weight.clone()
    found = load_weights(model, save(tmp_path / "a.pt", given), strict=False)
    assert found.unexpected == ("aux",) and "head.bias" in found.missing
    assert model.head.weight.sum() == 12 and torch.equal(model.body[0].weight, before)
    assert "without" in complaint(save(tmp_path / "b.pt", {"aux": torch.zeros(2)}), model=model, strict=False)


@pytest.mark.parametrize("content", [net(1), {"state_dict": state(), "args": NeedsCode()}])
def test_a_pickle_that_needs_code_is_refused_and_not_run(tmp_path, content):
    message = complaint(save(tmp_path / "a.pt", content))
    assert "a pickle that needs code of" in message and "test_load_weights." in message


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_missing_and_damaged_files_are_refused(tmp_path, suffix):
    assert "`path`" in complaint(tmp_path / "a.ckpt")
    assert "got no file at" in complaint(tmp_path / f"a{suffix}")
    (tmp_path / f"d{suffix}").mkdir()
    assert "got the directory" in complaint(tmp_path / f"d{suffix}")
    path = save(tmp_path / f"a{suffix}", state())
    whole = path.read_bytes()
    for content in (whole[:-9], whole[: len(whole) // 2], b"", b"nothing of this kind", pickle.dumps(3)[:-1]):
        path.write_bytes(content)
        assert f"`path` must be a complete {suffix} file" in complaint(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme", "no tensors")
    assert "cannot read" in complaint(path)


@pytest.mark.parametrize(
    ("name", "options", "argument"),
    [
        ("digits", {}, "weights"),
        ("digist", {}, "name"),
        ("timm:net", {"pretrained": 3}, "pretrained"),
        ("hf:two words", {}, "name"),
        ("hf:owner/net", {"trust_remote_code": True}, "trust_remote_code"),
    ],
)
def test_impossible_pretrained_networks_are_refused(name, options, argument):
    assert f"pretrained_model: `{argument}`" in refusal(pretrained_model, name, options=options)


@pytest.mark.parametrize("name", ["digits", "beliefmatch.models.digits:DigitsNet"])
def test_a_network_of_ours_takes_its_weights_from_a_file(tmp_path, name):
    own = build_seeded(lambda: DigitsNet(width=4, num_classes=3), 1)
    path = save(tmp_path / "a.safetensors", own.state_dict())
    found = pretrained_model(name, options={"width": 4, "num_classes": 3}, weights=path)
    images = torch.rand(2, 1, 8, 8)
    assert not found.training and torch.equal(found(images), own.eval()(images))
    with pytest.raises(TypeError, match="`widht`"):
        pretrained_model(name, options={"widht": 4}, weights=path)
