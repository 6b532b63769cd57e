"""Compiled features are the same features, and without a compiler they are computed eagerly."""

import shutil

import numpy as np
import pytest
import torch
from torch import nn

from beliefmatch.adaptation import compiling
from beliefmatch.adaptation.backbone import HeadInputs
from beliefmatch.adaptation.cache import FeatureCache
from beliefmatch.adaptation.features import extract
from beliefmatch.adaptation.heads import find_head, head_inputs
from small_features import FEATURES, data, network

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")


class OnMap(nn.Module):
    """A head of another form: a 1x1 convolution before or behind which the mean is taken."""

    def __init__(self, after):
        super().__init__()
        self.body, self.norm, self.head = nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6), nn.Conv2d(6, 3, 1)
        self.after = after

    def forward(self, x):
        return self.after(self.head(self.norm(self.body(x)).relu()))


def classifier():
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Sequential(network().inner, nn.Linear(FEATURES, 3))


MODELS = {
    "linear": classifier,
    "mean": lambda: OnMap(lambda logits: logits.mean((2, 3))),
    "other": lambda: OnMap(lambda logits: logits[:, :, 0, 1]),
    "only a layer": lambda: nn.Sequential(nn.Flatten(), nn.Linear(32, 3)),
}


@pytest.mark.parametrize("kind", MODELS)
def test_the_traceable_form_gives_what_the_head_is_given(kind):
    model, inputs = MODELS[kind]().train(), data()[0]
    head = find_head(model, inputs[:4])
    traceable = HeadInputs(model, head).traceable
    with torch.no_grad():
        torch.testing.assert_close(traceable(inputs), head_inputs(model, head, inputs))
    own = {tensor.data_ptr() for tensor in model.parameters()}
    assert {tensor.data_ptr() for tensor in traceable.parameters()} == own
    assert model.training and not any(module.training for module in traceable.modules())


def test_a_bare_layer_can_be_traced():
    layer, rows = nn.Linear(4, 3), torch.randn(5, 4)
    assert torch.equal(HeadInputs(layer, find_head(layer, rows)).traceable(rows), rows)


@needs_compiler
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_compiled_features_are_the_same_under_the_same_key(tmp_path):
    model, (inputs, targets) = classifier().eval(), data()
    features_of = HeadInputs(model, find_head(model, inputs[:4]))
    before = torch._inductor.config.freezing
    options = {"key_parts": {"head": "1"}, "batch_size": 16}
    cache = FeatureCache(tmp_path / "a")
    compiled = extract(model, features_of, (inputs, targets), cache=cache, compile=True, **options)
    eager = extract(model, features_of, (inputs, targets), cache=FeatureCache(tmp_path / "b"), **options)
    np.testing.assert_allclose(compiled.rows[:], eager.rows[:], rtol=1e-4, atol=1e-6)
    assert compiled.digest == eager.digest
    facts = [next(path.rglob("facts.json")).read_text() for path in (tmp_path / "a", tmp_path / "b")]
    assert ['"compiled": true' in text for text in facts] == [True, False]
    assert torch._inductor.config.freezing == before
    made = compiling._made[features_of]
    more = extract(model, features_of, (inputs[:32], targets[:32]), cache=None, compile=True, **options)
    assert compiling._made[features_of] is made  # compiled once for all sets
    np.testing.assert_allclose(more.rows[:], eager.rows[:32], rtol=1e-4, atol=1e-6)


def counted(monkeypatch, compiled):
    """`torch.compile` replaced; the shapes that its result was called with."""
    shapes = []

    def call(inputs):
        shapes.append(tuple(inputs.shape))
        return compiled(inputs)

    monkeypatch.setattr(torch, "compile", lambda *args, **options: call)
    return shapes


def test_only_whole_batches_are_compiled(monkeypatch):
    model, (inputs, targets) = classifier().eval(), data(83)
    features_of = HeadInputs(model, find_head(model, inputs[:4]))
    shapes = counted(monkeypatch, lambda batch: features_of.traceable(batch))
    extract(model, features_of, (inputs, targets), key_parts={}, cache=None, compile=True, batch_size=16)
    # compared with eager, called for the width, and then all but the last batch, of three rows
    assert shapes == [(16, 2, 4, 4)] * (1 + 1 + 5)


def no_compiler(rows):
    raise RuntimeError("InvalidCxxCompiler: no working C++ compiler found in g++\nand more")


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (lambda rows: rows * 1.001, "by 0.001 of its norm"),
        (lambda rows: 1 / 0, "ZeroDivisionError: division by zero"),
        (no_compiler, r"RuntimeError: InvalidCxxCompiler: no working .* g\+\+\)"),
    ],
    ids=["inexact", "fails", "no compiler"],
)
def test_features_are_computed_eagerly_where_compiling_fails_or_changes_them(monkeypatch, wrong, named):
    model, (inputs, targets) = classifier().eval(), data()
    head = find_head(model, inputs[:4])
    features_of = HeadInputs(model, head)
    counted(monkeypatch, lambda batch: wrong(head_inputs(model, head, batch)))
    with pytest.warns(UserWarning, match=named):
        found = extract(model, features_of, (inputs, targets), key_parts={}, cache=None, compile=True)
    torch.testing.assert_close(torch.tensor(found.rows[:]), head_inputs(model, head, inputs))
