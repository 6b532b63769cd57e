"""Networks by name: ours, timm's and the user's own, with errors of one line."""

import subprocess
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional

from beliefmatch._utils import nearest, option_names, require_options
from beliefmatch.cli import main
from beliefmatch.models import MODELS, build_model, build_seeded
from beliefmatch.models.digits import DigitsNet
from beliefmatch.models.resnet import preact_resnet18, wide_resnet

SHAPES = {"digits": ((8, 8),), "mlp": ((),), "small_cnn": ((5, 5), (16, 16), (28, 40))}
SMALL = {"digits": {"width": 4}, "wide_resnet": {"depth": 10, "width": 2}}


def active_dropouts(network):
    return [module for module in network.modules() if isinstance(module, nn.Dropout) and module.p > 0]


# Networks of this package


def test_listing_the_networks_imports_no_torch():
    code = "import sys, beliefmatch.models; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


@pytest.mark.parametrize("name", MODELS)
def test_every_network_maps_inputs_to_logits_one_by_one_and_takes_dropout(name):
    options = {"num_classes": 7, "channels": 2, **SMALL.get(name, {"width": 2})}
    network = build_model(name, **options).eval()
    for shape in SHAPES.get(name, ((16, 16), (28, 28))):
        images = torch.rand(3, 2, *shape)
        logits = network(images)
        assert logits.shape == (3, 7)
        torch.testing.assert_close(network(images[1:2]), logits[1:2], rtol=1e-4, atol=1e-5)
    assert not active_dropouts(network)
    for in_blocks in (False, True):
        dropouts = active_dropouts(build_model(name, **options, dropout=0.3, dropout_in_blocks=in_blocks))
        assert (len(dropouts) > 1) is in_blocks and all(dropout.p == 0.3 for dropout in dropouts)


@pytest.mark.parametrize("in_blocks", [False, True])
@pytest.mark.parametrize("layers", [0, 1, 3])
def test_a_perceptron_has_dropout_in_front_of_its_last_layer(layers, in_blocks):
    options = {"width": 5, "layers": layers, "dropout": 0.4, "dropout_in_blocks": in_blocks}
    *_, dropout, head = build_model("mlp", num_classes=2, channels=4, **options).layers
    assert dropout.p == 0.4 and head.in_features == (5 if layers else 4)
    network = build_model("mlp", num_classes=2, channels=4, **options)
    assert len(active_dropouts(network)) == (max(1, layers) if in_blocks else 1)
    first = next(iter(network.layers))
    assert isinstance(first, nn.Dropout if layers == 0 else nn.Linear)


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("preact_resnet18", 11.17),
        ("preact_resnet34", 21.28),
        ("preact_resnet50", 23.51),
        ("wrn28_2", 1.47),
        ("wrn28_10", 36.48),
    ],
)
def test_networks_have_the_size_that_their_papers_state(name, millions):
    with torch.device("meta"):
        network = build_model(name, num_classes=10, channels=3)
    assert sum(p.numel() for p in network.parameters()) / 1e6 == pytest.approx(millions, abs=0.005)


@pytest.mark.parametrize(("stride", "first"), [(1, 32), (2, 16)])
def test_resolution_halves_between_stages(stride, first):
    network = preact_resnet18(width=4, stem_stride=stride)
    x, sizes = network.stem(torch.rand(1, 3, 32, 32)), []
    for stage in network.stages:
        x = stage(x)
        sizes.append(tuple(x.shape[1:]))
    assert sizes == [(4 * 2**n, first // 2**n, first // 2**n) for n in range(4)]


def test_logits_are_the_head_of_the_features_and_activations_go_by_name():
    network, x = preact_resnet18(width=4).eval(), torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(network(x), network.head(network.features(x)))
    network = wide_resnet(depth=10, width=2, activation="leaky_relu")
    slopes = {module.negative_slope for module in network.modules() if isinstance(module, nn.LeakyReLU)}
    assert slopes == {0.1} and not any(isinstance(module, nn.ReLU) for module in network.modules())


def test_dropout_changes_neither_the_initial_weights_nor_eval_mode():
    plain, dropped = (
        build_seeded(lambda r=rate: DigitsNet(dropout=r, dropout_in_blocks=True), 3) for rate in (0, 0.5)
    )
    assert sum(p.numel() for p in plain.parameters()) == 21_482
    x = torch.rand(4, 1, 8, 8)
    assert torch.equal(plain.eval()(x), dropped.eval()(x))
    assert not torch.equal(dropped.train()(x), plain.train()(x))


def test_equal_seeds_give_equal_weights_and_the_callers_random_state_is_not_changed():
    def broken():
        torch.rand(3)
        raise RuntimeError("broken")

    before = torch.get_rng_state()
    first, second, other = (build_seeded(lambda: nn.Linear(3, 4), seed) for seed in (5, 5, 6))
    assert torch.equal(first.weight, second.weight) and not torch.equal(first.weight, other.weight)
    with pytest.raises(RuntimeError, match="broken"):
        build_seeded(broken, 0)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        *(
            (lambda stride=stride: wide_resnet(stem_stride=stride), "stem_stride")
            for stride in (0, 1.5, True, "2")
        ),
        (lambda: wide_resnet(depth=27), "depth"),
        (lambda: wide_resnet(activation="gelu"), "activation"),
        (lambda: DigitsNet()(torch.rand(3, 1, 28, 28)), "images"),
    ],
)
def test_impossible_networks_are_refused(call, argument):
    with pytest.raises((TypeError, ValueError), match=f"`{argument}` must"):
        call()


# Networks of the user's own, and their errors

OWN = """
from torch import nn
SEEN, NUMBER = [], 3
def plain(num_classes): return nn.Linear(4, num_classes)
def coloured(num_classes, channels, width=3): SEEN.append((channels, width)); return plain(num_classes)
def anything(num_classes, **rest): SEEN.append(rest); return plain(num_classes)
def dropping(num_classes, dropout): return nn.Sequential(nn.Dropout(dropout), plain(num_classes))
def broken(num_classes): raise KeyError('two\\nlines')
def leaving(num_classes): raise SystemExit(7)
def nothing(num_classes): return None
def strange(): return None
def empty(num_classes): return nn.Flatten()
def flat(num_classes): return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))
def too_many(num_classes): return flat(num_classes + 1)
def half(num_classes): return flat(num_classes).half()
class House:
    plain = staticmethod(plain)
class Pair(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.layer = flat(num_classes)
    def forward(self, x): return self.layer(x), x
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A module of the user's in the current directory, which is not on the path."""
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "broken_import.py").write_text("import no_such_package_at_all\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    path = list(sys.path)
    yield
    assert sys.path == path
    for name in ("own", "broken_import"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("own")
def test_a_factory_of_the_users_gets_what_its_signature_takes():
    for name in ("plain", "House.plain"):
        assert build_model(f"own:{name}", num_classes=6, channels=2).out_features == 6
    build_model("own:coloured", num_classes=6, channels=2, width=9)
    build_model("own:anything", num_classes=6, channels=2, option=1)
    assert sys.modules["own"].SEEN == [(2, 9), {"option": 1}]
    options = {"num_classes": 6, "channels": 2, "dropout": 0.2}
    assert active_dropouts(build_model("own:dropping", **options, dropout_in_blocks=False))[0].p == 0.2
    with pytest.raises(TypeError, match="`dropout_in_blocks`"):
        build_model("own:dropping", **options, dropout_in_blocks=True)


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("name", "options", "kind", "words"),
    [
        ("preact_resnet81", {}, ValueError, "did you mean preact_resnet18?"),
        ("zzz", {}, ValueError, "`name`"),
        ("hf:owner/net", {}, ValueError, "`name`"),
        ("torchvision:resnet18", {}, ValueError, "write torchvision.models:resnet18"),
        ("digits", {"widht": 3}, TypeError, "`widht`; did you mean `width`?"),
        ("preact_resnet18", {"dropuot": 0.1}, TypeError, "`dropuot`; did you mean `dropout`?"),
        ("wrn28_2", {"depth": 10}, TypeError, "`depth`"),
        ("timm:resnet", {"dropout_in_blocks": True}, ValueError, "timm:resnet"),
        ("a b:c", {}, ValueError, "`name`"),
        ("module:", {}, ValueError, "`name`"),
        ("no_such_package.x:f", {}, ValueError, "importing no_such_package.x failed (ModuleNotFoundError"),
        ("broken_import:f", {}, ValueError, "importing broken_import failed (ModuleNotFoundError"),
        ("own:plian", {}, ValueError, "own has no plian; did you mean plain?"),
        ("own:NUMBER", {}, TypeError, "own:NUMBER must be callable, got int."),
        ("own:nothing", {}, TypeError, "got NoneType."),
        ("own:strange", {}, TypeError, "`num_classes`"),
        ("own:dropping", {}, TypeError, "`dropout`"),
        ("own:broken", {}, ValueError, "own:broken failed (KeyError: 'two"),
    ],
)
def test_errors_are_one_line(name, options, kind, words):
    with pytest.raises(kind) as caught:
        build_model(name, num_classes=3, channels=1, **options)
    assert words in str(caught.value) and "\n" not in str(caught.value)
    assert ("failed" in words) == (caught.value.__cause__ is not None)


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--model", "own:too_many"], "must make logits of shape (2, 10)"),
        (["--model", "own:Pair"], "must make logits of shape (2, 10)"),
        (["--model", "own:empty"], "must be a network with something to train"),
        (["--model", "own:plain"], "failed (RuntimeError"),
        (["--model", "own:half"], "failed (RuntimeError"),
        (["--model", "own:leaving"], "failed (SystemExit: 7)"),
        *((["--set", f"model.options.width={w}"], f"got width={w} (") for w in ("-1", "100000000000", "abc")),
    ],
)
def test_a_network_that_does_not_fit_is_refused_before_training(tmp_path, capsys, options, words):
    assert main(["train", "--epochs", "1", "--limit", "100", *options, "--out", "run"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and words in err
    assert not (tmp_path / "run").exists()


def test_options_are_those_of_the_function_and_of_what_it_passes_them_to():
    assert option_names(lambda a, *, b=1: None) == ("a", "b")
    assert option_names(lambda a, **rest: None) is None
    inherited = {"activation", "dropout", "dropout_in_blocks", "stem_stride"}
    assert set(option_names(preact_resnet18)) == {"width", "num_classes", "channels"} | inherited
    with pytest.raises(TypeError, match="`a`"):
        require_options("f", "g", lambda a, *, b=1: None, {"b": 2})
    assert nearest("xyzzy", ["softmax"]) is None


# Networks of timm, whose place a small module takes


class Functional(nn.Module):
    """Like timm's ResNets, which use functional dropout."""

    def __init__(self, num_classes, drop_rate):
        super().__init__()
        self.drop_rate, self.fc = drop_rate, nn.Linear(4, num_classes)

    def get_classifier(self):
        return self.fc

    def forward(self, x):
        return self.fc(functional.dropout(x, self.drop_rate, self.training))


@pytest.fixture
def timm(monkeypatch):
    module, calls = ModuleType("timm"), []

    def create_model(name, *, pretrained, num_classes, in_chans, drop_rate, **rest):
        calls.append(SimpleNamespace(name=name, pretrained=pretrained, in_chans=in_chans))
        if rest:
            raise TypeError("__init__() got an unexpected keyword argument")
        if name == "functional":
            return Functional(num_classes, drop_rate)
        return nn.Sequential(nn.Dropout(drop_rate), nn.Linear(4, num_classes))

    module.create_model = create_model
    module.list_models = lambda: ["functional", "modular"]
    module.is_model = lambda name: name in module.list_models()
    monkeypatch.setitem(sys.modules, "timm", module)
    return calls


@pytest.mark.parametrize("name", ["functional", "modular"])
def test_networks_of_timm_have_dropout_as_a_module(timm, name):
    network = build_model(f"timm:{name}", num_classes=3, channels=2, dropout=0.25)
    (place,) = active_dropouts(network)
    assert place.p == 0.25
    assert (timm[0].name, timm[0].pretrained, timm[0].in_chans) == (name, False, 2)
    x = torch.rand(5, 4)
    assert torch.equal(network.eval()(x), network(x))
    place.p = 1.0  # then nothing but the bias passes, and functional dropout would have to add to it
    linear = next(module for module in network.modules() if isinstance(module, nn.Linear))
    assert torch.equal(network.train()(x), linear.bias.expand(5, 3))


def test_networks_of_timm_without_dropout_are_not_changed_and_errors_are_one_line(timm):
    network = build_model("timm:functional", num_classes=3, channels=2, pretrained=True)
    assert isinstance(network.fc, nn.Linear) and timm[0].pretrained
    with pytest.raises(ValueError, match=r"did you mean timm:modular\?"):
        build_model("timm:modula", num_classes=3, channels=2)
    with pytest.raises(TypeError, match=r"timm:modular failed \(TypeError"):
        build_model("timm:modular", num_classes=3, channels=2, wrong=1)


def test_without_timm_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ModuleNotFoundError, match=r'needs timm: pip install "beliefmatch\[vision\]"'):
        build_model("timm:resnet18", num_classes=3, channels=2)
