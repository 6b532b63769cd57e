"""A network that does not fit the data is told before training, in one line."""

import numpy as np
import pytest
import torch
from torch import nn

from beliefmatch.cli import main
from beliefmatch.data.decode import middle
from beliefmatch.models import build_model
from beliefmatch.train.config import EngineConfig
from beliefmatch.train.engine import Engine

MODULE = """
import torch
from torch import nn

def wrong(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes + 1))

def pair(num_classes):
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(64, num_classes)
        def forward(self, x):
            return self.layer(x.flatten(1)), x
    return Pair()

def empty(num_classes):
    return nn.Flatten()

def raising(num_classes):
    return nn.Linear(3, num_classes)

def half(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes)).half()

def leaving(num_classes):
    raise SystemExit(7)
"""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("wrong", "must make logits of shape (2, 10)"),
        ("pair", "must make logits of shape (2, 10)"),
        ("empty", "must be a network with something to train"),
        ("raising", "failed (RuntimeError"),
        ("half", "failed (RuntimeError"),
        ("leaving", "failed (SystemExit: 7)"),
    ],
)
def test_a_network_that_does_not_fit_is_told_before_training(tmp_path, monkeypatch, capsys, name, words):
    (tmp_path / f"own_{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    line = ["train", "--epochs", "1", "--limit", "100", "--model", f"own_{name}:{name}", "--out", "run"]
    assert main(line) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert words in err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("width", ["-1", "100000000000", "abc"])
def test_a_width_that_nothing_has_is_told_in_one_line(tmp_path, capsys, width):
    line = ["train", "--set", f"model.options.width={width}", "--out", f"{tmp_path / 'run'}"]
    assert main(line) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert f"must be such that digits can be built, got width={width} (" in told


def test_narrow_networks_stay_in_the_default_layout_and_compute_the_same():
    engine = Engine(EngineConfig(accelerator="cpu", precision="32", threads=1))
    network = build_model("preact_resnet18", num_classes=4, channels=3, width=4).eval()
    images = torch.randn(2, 3, 16, 16).to(memory_format=torch.channels_last)
    before = network(images.contiguous())
    seen = []
    network.stem.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    prepared = engine.prepare(engine.prepare(network))
    torch.testing.assert_close(prepared(images), before)
    assert seen[0].is_contiguous()
    wide = engine.prepare(nn.Sequential(nn.Conv2d(3, 16, 3)))
    assert wide[0].weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("size", [(160, 213), (213, 160), (240, 160), (161, 160), (97, 131)])
def test_the_middle_of_an_image_lies_inside_of_it(size):
    from PIL import Image

    image = Image.fromarray(np.zeros((size[1], size[0], 3), np.uint8))
    for wanted in range(8, 225, 3):
        assert middle(image, wanted, wanted).size == (wanted, wanted)
