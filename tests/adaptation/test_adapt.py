"""`beliefmatch.adapt`: the user's network with a new last layer, a belief, a summary and a report."""

import copy
import errno
import inspect
import re

import numpy as np
import pytest
import torch
from msgspec import structs
from torch import nn
from torch.utils.data import DataLoader

import beliefmatch
from adaptations import CLASSES, WIDTH, rows
from beliefmatch import adapt
from beliefmatch.adaptation.adapt_config import AdaptConfig
from beliefmatch.adaptation.cache import FeatureCache
from beliefmatch.adaptation.surgery import EnsembleLinear
from beliefmatch.adapting import Adapted
from beliefmatch.data.digits import load_digits
from beliefmatch.experiments.adapt_record import AdaptRecord
from beliefmatch.experiments.adapted_directory import head_file
from beliefmatch.metrics import error, nll
from beliefmatch.models.digits import DigitsNet
from commands import python
from rendered import figures_drawn


@pytest.fixture(scope="module")
def digits():
    return load_digits()


@pytest.fixture(scope="module")
def network(digits):
    """Trained with cross-entropy until it fits."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = DigitsNet(width=8)
        optimizer = torch.optim.Adam(made.parameters(), 3e-3)
        for _ in range(15):
            for batch in torch.randperm(len(digits.train)).split(64):
                optimizer.zero_grad()
                logits = made(digits.train.images[batch])
                nn.functional.cross_entropy(logits, digits.train.targets[batch]).backward()
                optimizer.step()
    return made.eval()


def pairs(examples):
    return examples.images, examples.targets


@pytest.fixture(scope="module")
def quickly(network, digits):
    """An adaptation of one epoch and no controls; options replace those of the call."""

    def adapted(model=network, **options):
        given = {"validation": pairs(digits.validation), "epochs": 1, "controls": [], **options}
        return adapt(model, given.pop("train", pairs(digits.train)), **given)

    return adapted


@pytest.fixture(scope="module")
def better(network, digits):
    return adapt(network, pairs(digits.train), validation=pairs(digits.validation), epochs=15)


# The network


def test_only_the_last_layer_is_new(network, better):
    before, after = network.state_dict(), better.state_dict()
    assert list(before) == list(after)
    head = better.adaptation.head.name
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {f"{head}.weight", f"{head}.bias"}
    assert isinstance(better, DigitsNet) and isinstance(better, Adapted)
    assert not hasattr(network, "belief")


def test_it_predicts_as_the_chosen_head_did_on_validation(network, better, digits):
    probs = better.predict(digits.validation.images).probs
    chosen = better.adaptation.chosen
    rows = torch.tensor(np.asarray(better.adaptation.sets.validation.rows))
    torch.testing.assert_close(probs, chosen.predict(rows).probs, rtol=1e-3, atol=1e-5)
    crossed = 0.05 if chosen.candidate.calibration else 1e-4  # by cross-fitting
    assert nll(probs, digits.validation.targets) == pytest.approx(chosen.nll, rel=crossed)
    assert error(probs, digits.validation.targets) == pytest.approx(chosen.error)
    belief = better.belief(digits.test.images[:4])
    torch.testing.assert_close(belief.log_alpha, better(digits.test.images[:4]))
    after = nll(better.predict(digits.test.images).probs, digits.test.targets)
    assert after < nll(network(digits.test.images).softmax(1).double(), digits.test.targets)


def test_the_choice_is_the_lowest_of_its_kind(better):
    matched = [head for head in better.adaptation.fitted if head.candidate.kind == "belief_matching"]
    assert better.adaptation.labels == "same"
    assert better.adaptation.chosen in matched and better.adaptation.chosen.converged
    assert better.adaptation.chosen.nll <= 1.02 * min(head.nll for head in matched)
    kinds = {head.candidate.kind for head in better.adaptation.fitted}
    assert kinds == {"untouched", "softmax", "label_smoothing", "belief_matching"}


def test_other_classes_get_a_new_head(network, digits):
    """Even or odd, from the features of a network that knows ten digits."""
    sets = [(part.images, part.targets % 2) for part in (digits.train, digits.validation)]
    better = adapt(network, sets[0], validation=sets[1], controls=["softmax"])
    assert better.adaptation.labels == "new"
    assert better(digits.test.images).shape[1] == 2
    assert error(better.predict(digits.test.images).probs, digits.test.targets % 2) < 0.1


def test_permuted_labels_are_new_labels(quickly, digits):
    permuted = torch.randperm(10, generator=torch.Generator().manual_seed(3))
    sets = [(part.images, permuted[part.targets]) for part in (digits.train, digits.validation)]
    assert quickly(train=sets[0], validation=sets[1]).adaptation.labels == "new"


@pytest.mark.filterwarnings("ignore:.*not converged")
def test_five_seeds_of_a_repair(quickly):
    options = {"protocol": "paper", "epochs": 2, "seeds": range(5), "learning_rate": 1e-3}
    made = quickly(**options, kl_weights=[0.01, 0.001], controls=["softmax"]).adaptation
    heads = made.table
    assert made.labels == "same"
    assert [len(heads[label]) for label in ("softmax", "belief matching")] == [5, 5]
    assert len({head.nll for head in heads["belief matching"]}) == 5


def test_modes_are_put_back_even_after_an_error(quickly, network):
    copied = copy.deepcopy(network).train()
    next(module for module in copied.modules() if isinstance(module, nn.Conv2d)).eval()
    modes = [module.training for module in copied.modules()]
    quickly(copied)
    assert [module.training for module in copied.modules()] == modes
    with pytest.raises(ValueError, match="`classes`"):
        quickly(copied, classes=3)
    assert [module.training for module in copied.modules()] == modes


# Data


def test_validation_rows_that_were_trained_on_are_warned_of(quickly, digits):
    with pytest.warns(UserWarning, match="trained on"):
        quickly(validation=pairs(digits.train))


def test_without_validation_data_a_fifth_is_held_out_with_a_warning(quickly, digits):
    with pytest.warns(UserWarning, match="20% of `train`"):
        made = quickly(validation=None).adaptation
    many = len(digits.train)
    assert len(made.sets.validation) == round(0.2 * many) == many - len(made.sets.train)
    shares = [one.targets.bincount() / len(one) for one in (made.sets.validation, made.sets.train)]
    torch.testing.assert_close(*shares, rtol=0.05, atol=0.005)


def test_test_and_ood_sets_are_kept_and_choose_nothing(quickly, digits):
    noise = torch.rand(30, *digits.test.images.shape[1:], generator=torch.Generator().manual_seed(2))
    without = quickly()
    made = quickly(test=pairs(digits.test), ood={"noise": DataLoader(noise, 16)})
    sets, head = made.adaptation.sets, made.adaptation.chosen
    assert torch.equal(sets.test.targets, digits.test.targets)
    assert sets.ood["noise"].targets.tolist() == [-1] * 30
    assert torch.equal(head.weight, without.adaptation.chosen.weight)
    noise_rows = torch.tensor(np.array(sets.ood["noise"].rows))
    torch.testing.assert_close(
        head.predict(noise_rows).probs, made.predict(noise).probs, rtol=1e-4, atol=1e-7
    )
    assert set(made.adaptation.seconds) == {"features", "heads"}


def test_batches_that_come_only_once_all_count(quickly, digits):
    def once(examples):
        yield from zip(examples.images.split(100), examples.targets.split(100), strict=True)

    one = quickly(
        train=once(digits.train),
        validation=once(digits.validation),
    ).adaptation
    two = quickly().adaptation
    assert len(one.sets.train) == len(digits.train)
    torch.testing.assert_close(one.chosen.weight, two.chosen.weight, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", ["tensor", "array", "by name"])
def test_images_alone_are_ood_and_a_path_is_a_cache(quickly, digits, kind, tmp_path):
    noise = torch.rand(30, *digits.test.images.shape[1:], generator=torch.Generator().manual_seed(2))
    ood = {"tensor": noise, "array": noise.numpy(), "by name": {"ood": noise}}[kind]
    made = quickly(ood=ood, cache=f"{tmp_path}").adaptation
    assert made.sets.ood["ood"].targets.tolist() == [-1] * 30
    assert len(FeatureCache(tmp_path).sets()) == 3


@pytest.mark.parametrize("batchnorm", [False, True])
def test_progress_grows_over_features_heads_and_batchnorm(quickly, digits, batchnorm):
    news = []
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))
    given = {"model": network, "labels": "new", "batchnorm": True} if batchnorm else {}
    quickly(test=pairs(digits.test), on_progress=lambda *progress: news.append(progress), **given)
    fractions = [fraction for fraction, _ in news]
    assert fractions == sorted(fractions) and fractions[0] == 0 and fractions[-1] <= 1
    assert batchnorm == news[-1][1].startswith("BatchNorm")
    texts, many = [text for _, text in news], len(digits.train)
    assert f"features of train: {many} of {many} rows" in texts
    assert any("fitting belief_matching" in text for text in texts)


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"labels": "old"}, "labels"),
        ({"classes": 5}, "classes"),
        ({"head": "layers.99"}, "head"),
        ({"head": 7}, "head"),
        ({"device": "nowhere"}, "device"),
        ({"priors": (0.0,)}, "priors"),
        ({"seeds": ()}, "seeds"),
        ({"model": "resnet50"}, "model"),
        ({"train": 7}, "train"),
        ({"train": iter([])}, "train"),
        ({"validation": 7}, "validation"),
        ({"test": [(torch.ones(3, 1, 8, 8), torch.ones(3))]}, "test"),
        ({"test": (torch.full((3, 1, 8, 8), torch.nan), torch.arange(3))}, "test"),
        ({"ood": {"noise": 7}}, "ood['noise']"),
        ({"ood": {"noise": []}}, "ood['noise']"),
        ({"ood": [torch.ones(3, 1, 8, 8)]}, "ood"),
        ({"ood": {"a": np.array(["x"])}}, "ood['a']"),
        ({"cache": 7}, "cache"),
        ({"precision": "8"}, "precision"),
        ({"batchnorm": True, "background": torch.rand(9, 1, 8, 8)}, "batchnorm"),
        ({"device": "abacus"}, "device"),
        ({"train": (torch.full((30, 1, 8, 8), torch.nan), torch.arange(30) % 10)}, "train"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(quickly, options, argument):
    with pytest.raises((ValueError, TypeError), match=re.escape(f"`{argument}`")):
        quickly(**options)


# Its signature, summary and report


class Cloudy(nn.Module):
    """A network of a few numbers; `head` may be a convolution."""

    def __init__(self, head=None):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh())
        self.head = head or nn.Linear(8, CLASSES)

    def forward(self, x):
        features = self.body(x)
        if isinstance(self.head, nn.Linear):
            return self.head(features)
        return self.head(features[:, :, None, None]).flatten(1)


def clouds(many, seed, **options):
    found = rows(many, seed, **options)
    return torch.from_numpy(found.rows), found.targets


def adapted_clouds(head=None, **options):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = Cloudy(head)
    given = {"kl_weights": (0.1, 0.01), "labels": "new", **options}
    sets = {"test": clouds(90, 2), "ood": {"noise": clouds(40, 3, ood=True)}}
    return adapt(network, clouds(150, 0), validation=clouds(100, 1), **sets, **given)


@pytest.fixture(scope="module")
def cloudy():
    return adapted_clouds()


def test_its_signature_has_the_documented_options_and_no_other():
    signature = inspect.signature(beliefmatch.adapt)
    documented = re.findall(r"^        (\w+): [A-Z\"]", beliefmatch.adapt.__doc__, re.MULTILINE)
    assert list(signature.parameters) == documented
    assert signature.return_annotation is Adapted
    defaults = structs.asdict(AdaptConfig())
    assert defaults.items() <= {name: one.default for name, one in signature.parameters.items()}.items()


def test_the_summary_is_of_the_test_data(cloudy):
    inputs, targets = clouds(90, 2)
    (chosen,) = (line for line in cloudy.summary().splitlines() if line.strip().startswith("→"))
    assert f"{nll(cloudy.predict(inputs).probs, targets):.4f}" in chosen
    assert "90 test examples" in cloudy.summary()


def test_the_report_holds_all_files_and_the_head(cloudy, tmp_path):
    load_file = pytest.importorskip("safetensors.torch").load_file
    place = tmp_path / "out"
    with figures_drawn("svg"):
        page = cloudy.report(place, class_names=["a", "b", "c"], data_facts={"clouds": 3})
    assert page == place / "report.html" and "Cloudy" in page.read_text("utf-8")
    made = AdaptRecord.from_json((place / "record.json").read_text("utf-8"))
    assert (made.model, made.class_names, made.data) == ("Cloudy", ["a", "b", "c"], {"clouds": 3})
    assert (made.head.name, made.head.in_features, made.head.out_features) == ("head", 8, 3)
    sizes = {"train": 150, "validation": 100, "test": 90, "noise": 40}
    assert {one.set: one.rows for one in made.features} == sizes
    fresh = Cloudy()
    assert not fresh.load_state_dict(load_file(place / "head.safetensors"), strict=False).unexpected_keys
    assert torch.equal(fresh.head.weight, cloudy.head.weight)


def test_the_file_of_a_convolution_keeps_the_shape_of_its_weight():
    load = pytest.importorskip("safetensors.torch").load
    better = adapted_clouds(nn.Conv2d(8, CLASSES, 1))
    assert load(head_file(better.adaptation, better))["head.weight"].shape == (CLASSES, 8, 1, 1)


def test_a_report_that_cannot_be_made_leaves_nothing(cloudy, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="`class_names`"):
        cloudy.report(tmp_path / "out", class_names=["a", "b"])
    assert not (tmp_path / "out").exists()
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match="`directory`"):
        cloudy.report(tmp_path / "file")

    def fails(*_, **__):
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr("os.replace", fails)
    with figures_drawn("svg"), pytest.raises(OSError, match="no room"):
        cloudy.report(tmp_path / "out")
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file()]


def test_a_script_with_a_cache_ends_silently(tmp_path):
    ended = python(f"""
import torch, beliefmatch
net = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 2))
x = torch.randn(200, 4, generator=torch.Generator().manual_seed(0)); y = (x[:, 0] > 0).long()
data = {{"validation": (x[100:], y[100:]), "cache": {str(tmp_path)!r}, "labels": "new"}}
for _ in range(2):  # features computed, then found
    better = beliefmatch.adapt(net, (x[:100], y[:100]), controls=(), **data)
""")
    assert (ended.returncode, ended.stderr) == (0, "")


# Bootstrap heads and background


def test_bootstrap_heads_are_delivered_as_one_layer(quickly, digits):
    better = quickly(heads=3, kl_weights=(1e-3,))
    chosen = better.adaptation.chosen
    layer = better.get_submodule(better.adaptation.head.name)
    assert isinstance(layer, EnsembleLinear) and layer.weight.shape[0] == 3
    images = digits.validation.images
    rows = torch.tensor(np.asarray(better.adaptation.sets.validation.rows))
    torch.testing.assert_close(better.predict(images).probs, chosen.predict(rows).probs, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(
        better.belief(images).mutual_information().double(),
        chosen.predict(rows).belief.mutual_information(),
        rtol=1e-2,
        atol=1e-5,
    )
    assert nll(better.predict(images).probs, digits.validation.targets) == pytest.approx(chosen.nll, rel=1e-4)
    again = copy.deepcopy(better)
    torch.testing.assert_close(again(images), better(images))


class OnLastToken(nn.Sequential):
    """A linear layer on every token, of which the last gives the logits."""

    def forward(self, x):
        return super().forward(x)[:, -1]


@pytest.mark.parametrize(
    ("network", "inputs"),
    [
        (Cloudy(nn.Conv2d(8, CLASSES, 1)), torch.zeros(9, WIDTH)),
        (OnLastToken(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, CLASSES)), torch.rand(9, 5, WIDTH)),
    ],
    ids=["convolution", "tokens"],
)
def test_bootstrap_heads_need_a_linear_last_layer_of_rows_before_any_work(network, inputs):
    def no_work(*progress):
        raise AssertionError(progress)

    data = inputs, torch.arange(9) % CLASSES
    with pytest.raises(ValueError, match="`heads`"):
        adapt(network, data, validation=data, heads=2, on_progress=no_work)


def test_a_softmax_head_that_is_the_best_is_delivered_without_a_belief(quickly, digits):
    better = quickly(choose="best", kl_weights=(10.0,), controls=("softmax",))
    assert better.adaptation.chosen.candidate.kind in ("softmax", "untouched")
    assert better.predict(digits.test.images).belief is None
    with pytest.raises(ValueError, match="`choose`"):
        better.belief(digits.test.images)


def test_a_background_takes_part_in_the_fit(quickly, digits):
    noise = torch.rand(60, *digits.test.images.shape[1:], generator=torch.Generator().manual_seed(2))
    made = quickly(background=noise, kl_weights=(0.01,), controls=["softmax"]).adaptation
    assert made.label.startswith("belief matching with background") and len(made.sets.background) == 60
    rows = torch.tensor(np.asarray(made.sets.background.rows))
    doubts = [
        made.table[label][0].predict(rows).belief.mutual_information().mean()
        for label in ("belief matching", "belief matching with background")
    ]
    assert doubts[1] > doubts[0]


def test_a_report_does_not_replace_the_directory_of_the_command(better, tmp_path):
    (tmp_path / "model.json").write_text("{}")
    with pytest.raises(ValueError, match="`directory` must not be"):
        better.report(tmp_path)
    assert [one.name for one in tmp_path.iterdir()] == ["model.json"]
    with pytest.raises(TypeError, match=r"^report: `directory`"):
        better.report(None)


def test_arrays_are_predicted_like_tensors(better, digits):
    images = digits.test.images[:5]
    torch.testing.assert_close(better.predict(images.numpy()).probs, better.predict(images).probs)
    torch.testing.assert_close(better.belief(images.double().numpy()).probs, better.belief(images).probs)


def test_a_head_that_always_answers_the_most_frequent_class_knows_no_classes():
    targets = torch.from_numpy(np.random.default_rng(0).permutation(np.repeat([0, 1], [130, 70])))
    inputs = torch.randn(200, WIDTH, generator=torch.Generator().manual_seed(0)) + targets[:, None]
    model = nn.Linear(WIDTH, 2)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.copy_(torch.tensor([1.0, 0.0]))
    better = adapt(model, (inputs[:100], targets[:100]), validation=(inputs[100:], targets[100:]))
    assert better.adaptation.labels == "new"
