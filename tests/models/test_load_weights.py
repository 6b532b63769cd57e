"""Weights from files: taken out of their wrappings, in the network's types, or refused in one line."""

import pickle
import zipfile

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from beliefmatch.models.pretrained import load_weights

SUFFIXES = (".safetensors", ".pt", ".pth", ".th", ".bin")


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
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Net(classes)


def state(seed=1, classes=3):
    return net(seed, classes).state_dict()


def save(path, tensors):
    if path.suffix == ".safetensors":
        save_file(dict(tensors), path)
    else:
        torch.save(tensors, path)
    return path


def check_loaded(path, **expected):
    model = net(0)
    found = load_weights(model, path)
    for name, value in state().items():
        assert torch.equal(model.state_dict()[name], value), name
    for name, value in expected.items():
        assert getattr(found, name) == value
    assert found.missing == found.unexpected == ()


def complaint(model, path, **options):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ValueError) as caught:
        load_weights(model, path, **options)
    text = f"{caught.value}"
    assert text.startswith("load_weights: ") and "\n" not in text
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    return text


@pytest.mark.parametrize("suffix", SUFFIXES)
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


def test_what_is_missing_and_what_is_too_much_is_named_with_the_nearest(tmp_path):
    changed = state()
    changed["heads.weight"] = changed.pop("head.weight")
    text = complaint(net(0), save(tmp_path / "a.pt", changed))
    assert "the 9 tensors of the network" in text
    assert "without head.weight and with heads.weight" in text
    assert text.endswith("is head.weight named heads.weight in the file?")
    del changed["heads.weight"]
    assert complaint(net(0), save(tmp_path / "b.pt", changed)).endswith("b.pt without head.weight.")
    many = {**state(), **{f"aux.{n}": torch.zeros(1) for n in range(5)}}
    assert "with aux.0, aux.1, aux.2 and 2 more" in complaint(net(0), save(tmp_path / "c.pt", many))


def test_what_is_not_strict_loads_what_there_is(tmp_path):
    model, given = net(0), {"head.weight": torch.ones(3, 4), "aux": torch.zeros(2)}
    before = model.body[0].weight.clone()
    found = load_weights(model, save(tmp_path / "a.pt", given), strict=False)
    assert found.unexpected == ("aux",) and "head.bias" in found.missing
    assert model.head.weight.sum() == 12 and torch.equal(model.body[0].weight, before)
    assert "without" in complaint(model, save(tmp_path / "b.pt", {"aux": torch.zeros(2)}), strict=False)


@pytest.mark.parametrize("strict", [True, False])
def test_a_head_of_another_size_is_told_with_what_may_mend_it(tmp_path, strict):
    text = complaint(net(0), save(tmp_path / "a.pt", state(classes=7)), strict=strict)
    assert "`head.weight` must have the network's shape (3, 4), got (7, 4) and 1 more" in text
    assert "`--model-option num_classes=7`" in text


def test_other_shapes_and_kinds_are_told_without_that(tmp_path):
    narrow = {**state(), "body.0.weight": torch.zeros(4, 1, 3, 3)}
    text = complaint(net(0), save(tmp_path / "a.pt", narrow))
    assert "`body.0.weight`" in text and "got (4, 1, 3, 3)" in text and "num_classes" not in text
    whole = {**state(), "head.bias": torch.zeros(3, dtype=torch.int8)}
    text = complaint(net(0), save(tmp_path / "b.pt", whole))
    assert "`head.bias` must have a dtype like float32, got int8" in text


def test_a_pickle_that_needs_code_is_refused_and_not_run(tmp_path):
    for number, content in enumerate([net(1), {"state_dict": state(), "args": NeedsCode()}]):
        path = tmp_path / f"{number}.pt"
        torch.save(content, path)
        text = complaint(net(0), path)
        assert "a pickle that needs code of" in text and "test_load_weights." in text
        assert "save `model.state_dict()` alone" in text


def test_files_that_are_no_weights_are_told(tmp_path):
    assert "must end in .safetensors or .pt, .pth, .th, .bin" in complaint(net(0), tmp_path / "a.ckpt")
    assert "got no file at" in complaint(net(0), tmp_path / "a.pt")
    (tmp_path / "d.pt").mkdir()
    assert "got the directory" in complaint(net(0), tmp_path / "d.pt")
    assert "got epoch in" in complaint(net(0), save(tmp_path / "b.pt", {"epoch": 3}))
    assert "got a list in" in complaint(net(0), save(tmp_path / "c.pt", [torch.zeros(2)]))


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_broken_files_are_told(tmp_path, suffix):
    path = save(tmp_path / f"a{suffix}", state())
    whole = path.read_bytes()
    for content in (whole[:-9], whole[: len(whole) // 2], b"", b"nothing of this kind", pickle.dumps(3)[:-1]):
        path.write_bytes(content)
        assert f"must be a complete {suffix} file of tensors, " in complaint(net(0), path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme", "no tensors")
    assert "cannot read" in complaint(net(0), path)
