"""`beliefmatch.adapt`: the user's own network comes back with its doubt, and tells what changed."""

import inspect
import json
import re
import subprocess
import sys

import pytest
import torch
from msgspec import structs
from torch import nn

import beliefmatch
from adaptations import CLASSES, WIDTH, rows
from beliefmatch.adaptation.adapt_config import AdaptConfig
from beliefmatch.adapting import Adapted
from beliefmatch.experiments import adapted_evaluation
from beliefmatch.experiments.adapt_record import AdaptRecord
from beliefmatch.metrics import nll
from beliefmatch.report import adaptation_figures


class Cloudy(nn.Module):
    """A network whose last layer is all there is to adapt."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh())
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x):
        return self.head(self.body(x))


def pairs(many, seed, **options):
    found = rows(many, seed, **options)
    return torch.from_numpy(found.rows), found.targets


@pytest.fixture(scope="module")
def better():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = Cloudy()
    given = {"kl_weights": (0.1, 0.01), "epochs": 5, "labels": "new", "batch_size": 32}
    sets = {"test": pairs(90, 2), "ood": {"noise": pairs(40, 3, ood=True)}}
    return beliefmatch.adapt(network, pairs(150, 0), validation=pairs(100, 1), **sets, **given)


def test_it_is_the_network_with_a_belief(better):
    assert isinstance(better, Cloudy) and isinstance(better, Adapted)
    assert better.belief(pairs(4, 5)[0]).probs.shape == (4, CLASSES)


def test_its_signature_has_the_documented_options_and_no_other():
    signature = inspect.signature(beliefmatch.adapt)
    documented = re.findall(r"^        (\w+): [A-Z\"]", beliefmatch.adapt.__doc__, re.MULTILINE)
    assert list(signature.parameters) == documented
    assert signature.return_annotation is Adapted
    defaults = structs.asdict(AdaptConfig())
    assert defaults.items() <= {name: one.default for name, one in signature.parameters.items()}.items()


def test_the_summary_is_of_the_test_data(better):
    text = better.summary()
    inputs, targets = pairs(90, 2)
    assert "On 90 test examples, one seed." in text
    (starred,) = (line for line in text.splitlines() if line.startswith("*"))
    assert f"{nll(better.predict(inputs).probs, targets):.4f}" in starred


def test_the_report_holds_all_files_and_the_head(better, tmp_path, monkeypatch):
    monkeypatch.setattr(adaptation_figures, "_KINDS", ("svg",))
    load_file = pytest.importorskip("safetensors.torch").load_file
    page = better.report(tmp_path / "out", class_names=["a", "b", "c"], data_facts={"clouds": 3})
    place = tmp_path / "out"
    assert page == place / "report.html" and "Cloudy" in page.read_text("utf-8")
    made = AdaptRecord.from_json((place / "record.json").read_text("utf-8"))
    assert (made.model, made.head.name, made.class_names) == ("Cloudy", "head", ["a", "b", "c"])
    assert made.data == {"clouds": 3}
    assert {one.set: one.rows for one in made.features} == {
        "train": 150,
        "validation": 100,
        "test": 90,
        "noise": 40,
    }
    fresh = Cloudy()
    assert not fresh.load_state_dict(load_file(place / "head.safetensors"), strict=False).unexpected_keys
    assert torch.equal(fresh.head.weight, better.head.weight)


def test_a_report_that_cannot_be_made_leaves_nothing(better, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="`class_names`"):
        better.report(tmp_path / "out", class_names=["a", "b"])
    assert not (tmp_path / "out").exists()
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match="`out`"):
        better.report(tmp_path / "file")

    def fails(*_, **__):
        raise OSError("no room")

    monkeypatch.setattr("beliefmatch.report.adaptation_files.atomic_write_dir", fails)
    monkeypatch.setattr(adaptation_figures, "_KINDS", ())
    with pytest.raises(OSError, match="no room"):
        better.report(tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_convolution_keeps_the_shape_of_its_weight(better):
    from beliefmatch.experiments.adapted_head import _shaped

    assert _shaped(torch.zeros(3, 8), 4).shape == (3, 8, 1, 1)
    assert _shaped(torch.zeros(3, 8), 2).shape == (3, 8)


def test_the_record_of_a_network_is_json(better):
    made = adapted_evaluation.adapt_record(better.adaptation, model_name="x")
    assert json.loads(made.to_json())["head"] == {
        "name": "head",
        "in_features": 8,
        "out_features": 3,
        "kind": made.head.kind,
    }


def test_a_script_with_a_cache_ends_without_a_word(tmp_path):
    script = f"""
import torch, beliefmatch
net = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 2))
x = torch.randn(200, 4, generator=torch.Generator().manual_seed(0)); y = (x[:, 0] > 0).long()
data = {{"validation": (x[100:], y[100:]), "cache": {str(tmp_path)!r}, "labels": "new"}}
better = beliefmatch.adapt(net, (x[:100], y[:100]), epochs=1, controls=(), **data)
"""
    for _ in range(2):  # features computed, then found
        ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert (ended.returncode, ended.stderr) == (0, "")
