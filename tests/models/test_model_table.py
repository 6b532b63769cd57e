"""Networks by name: ours, timm's and the user's own, each with errors that say what to mend."""

import subprocess
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional

from beliefmatch._utils import nearest, option_names, require_options
from beliefmatch.models import MODELS, build_model, fresh
from beliefmatch.models.digits import DigitsNet

SMALL = {"digits": {"width": 4}, "wide_resnet": {"depth": 10, "width": 2}}


def active_dropouts(network):
    return [module for module in network.modules() if isinstance(module, nn.Dropout) and module.p > 0]


def test_listing_the_networks_imports_no_torch():
    code = "import sys, beliefmatch.models; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


@pytest.mark.parametrize("name", MODELS)
def test_every_network_of_the_table_maps_images_to_logits(name):
    network = build_model(name, num_classes=7, channels=2, **SMALL.get(name, {"width": 2}))
    size = 8 if name == "digits" else 16
    assert network.eval()(torch.rand(3, 2, size, size)).shape == (3, 7)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("in_blocks", [False, True])
def test_every_network_of_the_table_takes_dropout(name, in_blocks):
    options = {**SMALL.get(name, {"width": 2}), "dropout": 0.3, "dropout_in_blocks": in_blocks}
    places = active_dropouts(build_model(name, num_classes=7, channels=2, **options))
    assert (len(places) > 1) is in_blocks and all(place.p == 0.3 for place in places)


@pytest.mark.parametrize(("name", "millions"), [("wrn28_2", 1.47), ("wrn28_10", 36.48)])
def test_wide_networks_have_the_size_of_their_papers(name, millions):
    with torch.device("meta"):
        network = build_model(name, num_classes=10, channels=3)
    assert sum(p.numel() for p in network.parameters()) / 1e6 == pytest.approx(millions, abs=0.005)


def test_dropout_changes_neither_the_initial_weights_nor_eval_mode():
    plain, dropped = (
        fresh(lambda r=rate: DigitsNet(dropout=r, dropout_in_blocks=True), 3) for rate in (0, 0.5)
    )
    x = torch.rand(4, 1, 8, 8)
    assert torch.equal(plain.eval()(x), dropped.eval()(x))
    assert not torch.equal(dropped.train()(x), plain.train()(x))


def test_equal_seeds_give_equal_weights_and_leave_the_callers_chance_alone():
    before = torch.get_rng_state()
    first, second, other = (fresh(lambda: nn.Linear(3, 4), seed) for seed in (5, 5, 6))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first.weight, second.weight)
    assert not torch.equal(first.weight, other.weight)


def test_a_build_that_fails_leaves_the_callers_chance_alone():
    def broken():
        torch.rand(3)
        raise RuntimeError("broken")

    before = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="broken"):
        fresh(broken, 0)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("preact_resnet81", {}, "got 'preact_resnet81'; did you mean preact_resnet18?"),
        ("zzz", {}, "timm:NAME or package.module:factory, got 'zzz'."),
        ("digits", {"widht": 3}, "build_model: digits has no option `widht`; did you mean `width`?"),
        ("preact_resnet18", {"dropuot": 0.1}, "has no option `dropuot`; did you mean `dropout`?"),
        ("wrn28_2", {"depth": 10}, "wrn28_2 has no option `depth`"),
        (
            "timm:resnet",
            {"dropout_in_blocks": True},
            "timm:resnet has dropout in front of the last layer",
        ),
        ("a b:c", {}, "`name` must be written package.module:factory, got 'a b:c'."),
        ("module:", {}, "`name` must be written package.module:factory"),
        (
            "no_such_package_here.x:f",
            {},
            "importing no_such_package_here.x failed (ModuleNotFoundError: No module",
        ),
    ],
)
def test_mistakes_are_told_in_one_line(name, options, words):
    with pytest.raises((ValueError, TypeError)) as caught:
        build_model(name, num_classes=3, channels=1, **options)
    assert words in str(caught.value) and "\n" not in str(caught.value)


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A module of the user's in the current directory, which is not on the path."""
    (tmp_path / "mine_for_tests.py").write_text(
        "from torch import nn\n"
        "SEEN = []\n"
        "def plain(num_classes): return nn.Linear(4, num_classes)\n"
        "def coloured(num_classes, channels, width=3):\n"
        "    SEEN.append((channels, width)); return nn.Linear(4, num_classes)\n"
        "def open_(num_classes, **rest):\n"
        "    SEEN.append(rest); return nn.Linear(4, num_classes)\n"
        "def dropping(num_classes, dropout):\n"
        "    return nn.Sequential(nn.Dropout(dropout), nn.Linear(4, num_classes))\n"
        "def broken(num_classes): raise KeyError('two\\nlines')\n"
        "def nothing(num_classes): return None\n"
        "def strange(): return None\n"
        "class House:\n    @staticmethod\n    def plain(num_classes): return nn.Linear(4, num_classes)\n"
        "NUMBER = 3\n"
    )
    (tmp_path / "broken_for_tests.py").write_text("import no_such_package_at_all\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    path = list(sys.path)
    yield
    assert sys.path == path
    for name in ("mine_for_tests", "broken_for_tests"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("mine")
def test_a_factory_of_the_users_gets_what_its_signature_takes():
    for name in ("plain", "House.plain"):
        assert build_model(f"mine_for_tests:{name}", num_classes=6, channels=2).out_features == 6
    build_model("mine_for_tests:coloured", num_classes=6, channels=2, width=9)
    build_model("mine_for_tests:open_", num_classes=6, channels=2, anything=1)
    assert sys.modules["mine_for_tests"].SEEN == [(2, 9), {"anything": 1}]


@pytest.mark.usefixtures("mine")
def test_dropout_in_no_block_need_not_be_understood():
    options = {"dropout": 0.2, "dropout_in_blocks": False}
    network = build_model("mine_for_tests:dropping", num_classes=6, channels=2, **options)
    assert active_dropouts(network)[0].p == 0.2
    with pytest.raises(TypeError, match="no option `dropout_in_blocks`"):
        build_model("mine_for_tests:dropping", num_classes=6, channels=2, dropout=0.2, dropout_in_blocks=True)


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("mine_for_tests:plian", ValueError, "mine_for_tests has no plian; did you mean plain?"),
        ("mine_for_tests:NUMBER", TypeError, "mine_for_tests:NUMBER must be callable, got int."),
        ("mine_for_tests:nothing", TypeError, "must return a torch.nn.Module, got NoneType."),
        ("mine_for_tests:strange", TypeError, "has no option `num_classes`; it has none."),
        ("mine_for_tests:dropping", TypeError, "must be given the option `dropout`."),
        ("mine_for_tests:broken", ValueError, "mine_for_tests:broken failed (KeyError: 'two"),
        (
            "broken_for_tests:f",
            ValueError,
            "importing broken_for_tests failed (ModuleNotFoundError: No",
        ),
    ],
)
def test_mistakes_in_the_users_code_are_told(name, kind, words):
    with pytest.raises(kind) as caught:
        build_model(name, num_classes=3, channels=1)
    assert words in str(caught.value) and "\n" not in str(caught.value)
    assert ("failed" in words) == (caught.value.__cause__ is not None)


class Functional(nn.Module):
    """Like timm's ResNets, which drop by a function."""

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
        calls.append(SimpleNamespace(name=name, pretrained=pretrained, in_chans=in_chans, rest=rest))
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
def test_timms_networks_drop_by_a_module(timm, name):
    network = build_model(f"timm:{name}", num_classes=3, channels=2, dropout=0.25)
    (place,) = active_dropouts(network)
    assert place.p == 0.25
    assert (timm[0].name, timm[0].pretrained, timm[0].in_chans) == (name, False, 2)
    x = torch.rand(5, 4)
    assert torch.equal(network.eval()(x), network(x))
    place.p = 1.0  # then nothing but the bias passes, and dropout by a function would have to add to it
    linear = next(module for module in network.modules() if isinstance(module, nn.Linear))
    assert torch.equal(network.train()(x), linear.bias.expand(5, 3))


def test_timms_networks_without_dropout_stay_as_they_are(timm):
    network = build_model("timm:functional", num_classes=3, channels=2, pretrained=True)
    assert isinstance(network.fc, nn.Linear) and timm[0].pretrained


def test_mistakes_with_timm_are_told(timm):
    with pytest.raises(ValueError, match=r"timm's networks, got 'modula'; did you mean timm:modular\?"):
        build_model("timm:modula", num_classes=3, channels=2)
    with pytest.raises(TypeError, match=r"build_model: timm:modular failed \(TypeError: __init__\(\) got an"):
        build_model("timm:modular", num_classes=3, channels=2, wrong=1)


def test_without_timm_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ModuleNotFoundError, match=r'needs timm: pip install "beliefmatch\[vision\]"'):
        build_model("timm:resnet18", num_classes=3, channels=2)


def test_options_are_those_of_the_function_and_of_what_it_passes_them_to():
    from beliefmatch.models.resnet import preact_resnet18

    assert option_names(lambda a, *, b=1: None) == ("a", "b")
    assert option_names(lambda a, **rest: None) is None
    own = {"activation", "dropout", "dropout_in_blocks", "stem_stride"}
    assert set(option_names(preact_resnet18)) == {"width", "num_classes", "channels"} | own
    with pytest.raises(TypeError, match="f: g must be given the option `a`"):
        require_options("f", "g", lambda a, *, b=1: None, {"b": 2})
    assert nearest("xyzzy", ["softmax"]) is None
