"""Features equal a plain call of the network, whatever holds the data, images or tokens, compiled or not."""

import shutil
from collections import UserDict

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, Subset, TensorDataset

from beliefmatch import adapt
from beliefmatch.adaptation import features
from beliefmatch.adaptation.cache import FeatureCache
from beliefmatch.adaptation.features import cache_key, extract, extract_sets, model_digest
from beliefmatch.adaptation.heads import Backbone, find_head
from beliefmatch.data.preprocessing import Preprocessing
from beliefmatch.data.sources import MemorySource
from small_features import CLASSES, FEATURES, ROWS, Tokens, data, direct, network, tokens


class Examples(Dataset):
    def __init__(self, inputs, targets):
        self.inputs, self.targets = inputs, targets

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return self.inputs[index], int(self.targets[index])


class Flowing(IterableDataset):
    def __iter__(self):
        return iter(zip(*data(), strict=True))


def read_only(tensor):
    array = tensor.numpy().copy()
    array.flags.writeable = False
    return array


def batches(inputs, targets):
    return list(zip(inputs.split(7), targets.split(7), strict=True))


SOURCES = {
    "tensors": lambda x, y: (x, y),
    "TensorDataset": TensorDataset,
    "Dataset": Examples,
    "Subset": lambda x, y: Subset(Examples(x, y), range(ROWS)),
    "shuffling loader": lambda x, y: DataLoader(Examples(x, y), batch_size=6, shuffle=True),
    "list of batches": batches,
    "generator": lambda x, y: (batch for batch in batches(x, y)),
    "mappings": lambda x, y: [{"pixel_values": a, "labels": b} for a, b in batches(x, y)],
    "IterableDataset": lambda x, y: Flowing(),
    "loader of batches": lambda x, y: DataLoader(Flowing(), batch_size=9),
    "arrays": lambda x, y: (x.numpy(), y.numpy()),
    "double arrays": lambda x, y: (x.numpy().astype(np.float64), y.numpy()),
    "read-only arrays": lambda x, y: (read_only(x), read_only(y)),
    "arrays of another byte order": lambda x, y: (x.numpy().astype(">f4"), y.numpy().astype(">i8")),
    "a tensor and an array": lambda x, y: (x, y.numpy()),
    "batches of arrays": lambda x, y: [(a.numpy(), b.numpy()) for a, b in batches(x, y)],
}


@pytest.mark.parametrize("kind", SOURCES)
def test_features_equal_a_plain_call(tmp_path, kind):
    model, (inputs, targets) = network(), data()
    source = SOURCES[kind](inputs, targets)
    state = torch.get_rng_state()
    options = {"key_parts": {"data": "a"}, "cache": FeatureCache(tmp_path), "batch_size": 6}
    found = extract(model, model, source, **options)
    assert torch.equal(state, torch.get_rng_state()) or kind in ("IterableDataset", "loader of batches")
    rows = np.asarray(found.rows)
    np.testing.assert_allclose(rows, direct(model, inputs), rtol=0, atol=1e-6)
    assert rows.dtype == np.float32 and torch.equal(found.targets, targets)
    assert model.training and model.inner[1].training


def rows_of(inputs, targets):
    """Examples as mappings, as Hugging Face datasets give them."""
    return [
        {**{name: one[row] for name, one in inputs.items()}, "labels": int(targets[row])}
        for row in range(len(targets))
    ]


def padded(examples):
    """Cut off what no sentence of a batch needs, as a collate function that pads would leave it."""
    inputs = {name: torch.stack([one[name] for one in examples]) for name in ("input_ids", "attention_mask")}
    length = int(inputs["attention_mask"].sum(1).max())
    cut = {name: one[:, :length] for name, one in inputs.items()}
    return UserDict(cut, labels=torch.tensor([one["labels"] for one in examples]))


def means(model, inputs):
    """The mean embedding of the tokens of each sentence, in double precision."""
    with torch.no_grad():
        rows = model.embedding(inputs["input_ids"]).double()
    return torch.stack(
        [row[:many].mean(0) for row, many in zip(rows, inputs["attention_mask"].sum(1), strict=True)]
    )


class Mappings(list, Dataset):
    """A dataset of mappings."""


TOKENS = {
    "mapping and targets": lambda x, y: (x, y),
    "one mapping": lambda x, y: UserDict(x, labels=y),
    "arrays": lambda x, y: ({name: one.numpy() for name, one in x.items()}, y.numpy()),
    "dataset": lambda x, y: Mappings(rows_of(x, y)),
    "loader that shuffles": lambda x, y: DataLoader(Mappings(rows_of(x, y)), 6, shuffle=True),
    "loader that pads": lambda x, y: DataLoader(Mappings(rows_of(x, y)), 6, collate_fn=padded),
    "batches": lambda x, y: [padded(rows_of(x, y)[at : at + 9]) for at in range(0, ROWS, 9)],
    "pairs": lambda x, y: [
        ({name: one[part] for name, one in x.items()}, y[part]) for part in (slice(40), slice(40, None))
    ],
}


@pytest.mark.parametrize("kind", TOKENS)
def test_networks_that_take_their_inputs_by_name_are_given_mappings(tmp_path, kind):
    model, (inputs, targets) = Tokens(), tokens()
    head = find_head(model, {name: one[:4] for name, one in inputs.items()})
    options = {"key_parts": {"data": "mine"}, "cache": FeatureCache(tmp_path)}
    for _ in range(2):
        found = extract_sets(model, head, {"train": TOKENS[kind](inputs, targets)}, **options)["train"]
        np.testing.assert_allclose(found.rows, means(model, inputs), atol=1e-6)
        assert torch.equal(found.targets, targets)


@pytest.mark.filterwarnings("ignore:adapt")
def test_adapt_takes_tokenised_batches(tmp_path):
    model, train, (other, labels) = Tokens(), tokens(200), tokens(60, seed=4)
    validation = DataLoader(Mappings(rows_of(other, labels)), 8, collate_fn=padded)
    options = {"labels": "new", "kl_weights": [0.01], "controls": [], "cache": tmp_path}
    made = adapt(model, train, validation=validation, ood=other, **options)
    rows = means(model, other)
    np.testing.assert_allclose(made.adaptation.sets.validation.rows[:], rows, atol=1e-6)
    np.testing.assert_allclose(made.adaptation.sets.ood["ood"].rows[:], rows, atol=1e-6)
    head = made.adaptation.chosen
    expected = rows @ head.weight.double().T + head.bias.double()
    torch.testing.assert_close(made(**other)["logits"].double(), expected, rtol=1e-4, atol=1e-4)


def test_mappings_are_known_by_their_names_and_values(tmp_path):
    model, (inputs, targets) = Tokens(), tokens()
    unmasked = {"input_ids": inputs["input_ids"]}
    renamed = {"input_ids": inputs["attention_mask"], "attention_mask": inputs["input_ids"]}
    digests = set()
    for one in (inputs, unmasked, renamed, tokens(seed=5)[0]):
        cache = FeatureCache(tmp_path)
        found = extract(model, lambda x: model(**x)["logits"], (one, targets), key_parts={}, cache=cache)
        digests.add(found.digest)
    assert len(digests) == 4 == len(FeatureCache(tmp_path).sets())


def test_a_beliefmatch_source_is_read_without_augmentation():
    how = Preprocessing((0.5,), (0.25,), "crop")
    images = np.random.default_rng(0).integers(0, 256, (40, 4, 4, 1), dtype=np.uint8)
    source = MemorySource(images, np.arange(40) % 3, preprocessing=how)
    found = extract(flat := nn.Flatten(), flat, source, key_parts={}, cache=None)
    expected = (images.reshape(40, 16) / 255 - 0.5) / 0.25
    np.testing.assert_allclose(np.asarray(found.rows), expected, atol=1e-5)
    assert torch.equal(found.targets, source.targets)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.float32, torch.float64])
def test_counts_stay_counts_and_inputs_alone_have_no_class(dtype):
    model, (inputs, _) = network(), data()
    counts = torch.randint(0, 9, (ROWS, 4), generator=torch.Generator().manual_seed(3)).to(dtype)
    for source in ((inputs, counts), [(inputs, counts)]):
        found = extract(model, model, source, key_parts={}, cache=None).targets
        assert found.dtype == torch.float32 and torch.equal(found, counts.float())
    ood = extract(model, model, TensorDataset(inputs), key_parts={}, cache=None)
    assert ood.targets.tolist() == [-1] * ROWS


def test_modes_and_weights_are_left_as_they_were():
    model = network()
    model.inner[1].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    extract(model, model, data(), key_parts={}, cache=None)
    assert model.training and not model.inner[1].training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with pytest.raises(ZeroDivisionError):
        extract(model, lambda inputs: 1 / 0, data(), key_parts={}, cache=None)
    assert model.training and not model.inner[1].training


INPUTS, IDS = (
    torch.randn(60, FEATURES, generator=torch.Generator().manual_seed(1)),
    torch.arange(60) % CLASSES,
)


@pytest.mark.parametrize(
    ("named", "train", "others"),
    [
        (r"`train`.*\(8, 3\)", (INPUTS[:, :3], IDS), {}),
        (r"`validation`.*\(60, 3\)", (INPUTS, IDS), {"validation": (INPUTS[:, :3], IDS)}),
        (
            r"`ood\['far'\]`.*\(60, 3\)",
            (INPUTS, IDS),
            {"validation": (INPUTS, IDS), "ood": {"far": INPUTS[:, :3]}},
        ),
        (
            r"`background`.*\(60, 3\)",
            (INPUTS, IDS),
            {"validation": (INPUTS, IDS), "background": INPUTS[:, :3]},
        ),
        (r"`test`.*\(n,\)", (INPUTS, IDS), {"validation": (INPUTS, IDS), "test": (INPUTS, INPUTS[:, 0])}),
        (r"`validation`.*got none", (INPUTS, IDS), {"validation": []}),
        (r"`validation`.*finite.* row 0", (INPUTS, IDS), {"validation": (INPUTS * torch.nan, IDS)}),
        ("`train`.* from -5 to -3", (INPUTS, IDS - 5), {}),
        ("`train`.* -5, -4, -3", (INPUTS, IDS - 5), {"validation": (INPUTS, IDS)}),
    ],
)
def test_data_that_the_network_cannot_take_are_refused_by_the_name_of_their_argument(named, train, others):
    with pytest.raises(ValueError, match=f"^adapt: {named}") as refused:
        adapt(nn.Linear(FEATURES, CLASSES), train, **others)
    assert "\n" not in f"{refused.value}"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_rows_that_are_not_finite_are_named(tmp_path, value):
    (inputs, targets), flat = data(), nn.Flatten()
    inputs[37, 1, 2, 2] = value
    with pytest.raises(ValueError, match=rf"`source`.*finite.*got {value:.6g} in row 37, feature 26"):
        extract(flat, flat, (inputs, targets), key_parts={}, cache=FeatureCache(tmp_path))


ONES = torch.ones(3, 2)


@pytest.mark.parametrize(
    "source",
    [
        7,
        [],
        (ONES, torch.ones(4)),
        (np.ones((3, 2)), np.array(["a", "b", "c"])),
        TensorDataset(torch.empty(0, 2), torch.empty(0)),
        [(ONES, torch.ones(3))],
        [(ONES, torch.full((3, 2), -1.0))],
        [(ONES, torch.full((3, 2), -1))],
        [(ONES, torch.zeros(4, dtype=torch.int64))],
        [(ONES, torch.tensor([[1], [0], [2]]))],
        [(ONES, ONES > 0)],
        [{"sound": ONES, "text": ["a", "b", "c"]}],
        [{"input_ids": ONES, "attention_mask": ONES[:2]}],
        [{"input_ids": torch.tensor(3)}],
        [{"labels": torch.arange(3)}],
        {"input_ids": ONES, "labels": torch.arange(4)},
        ({"input_ids": ONES}, torch.arange(4)),
        {"train": TensorDataset(ONES)},
        Mappings([{"input_ids": torch.arange(many), "labels": 0} for many in (3, 4)]),
        Examples([ONES, "text"], [0, 1]),
        [(ONES, torch.arange(3)), (ONES, ONES)],
    ],
    ids=lambda source: type(source).__name__,
)
def test_sources_without_inputs_and_targets_are_refused(source):
    with pytest.raises((ValueError, TypeError), match="`source`"):
        extract(same := nn.Identity(), same, source, key_parts={}, cache=None)


def test_features_of_another_shape_are_refused():
    model = network()
    wrong = (
        lambda inputs: inputs,
        lambda inputs: (inputs,),
        lambda inputs: inputs[:2].flatten(1),
        lambda inputs: inputs.flatten(1)[:, : 1 if len(inputs) < 64 else 5],  # in the last batch
    )
    for features_of in wrong:
        with pytest.raises((ValueError, TypeError), match="`model`"):
            extract(model, features_of, data(), key_parts={}, cache=None)


def test_bfloat16_is_taken_only_if_it_is_close(monkeypatch):
    model, seen = network(), []
    monkeypatch.setattr(features, "resolve_precision", lambda *_: seen.append("checked"))

    def rough(by):  # bfloat16 itself may not be there: what matters is what is done with the difference
        return lambda inputs: model(inputs) * (1 + by * torch.is_autocast_enabled("cpu"))

    monkeypatch.setattr(features, "has_fast_bf16", lambda _: False)
    exact = extract(model, rough(0.5), data(), key_parts={}, cache=None, precision="auto")
    np.testing.assert_allclose(np.asarray(exact.rows), direct(model, data()[0]), atol=1e-6)
    assert seen == []
    with pytest.warns(UserWarning, match=r"bfloat16 .* 0\.\d+"):
        found = extract(model, rough(0.1), data(), key_parts={}, cache=None, precision="bf16")
    assert np.array_equal(np.asarray(found.rows), np.asarray(exact.rows)) and seen == ["checked"]
    with pytest.raises(ValueError, match="`precision`"):
        extract(model, model, data(), key_parts={}, cache=None, precision="8")


def test_a_model_is_known_by_modules_code_settings_and_weights():
    def digest(change):
        model = network()
        change(model)
        return model_digest(model)

    class Other(type(network())):
        def forward(self, inputs):
            return -super().forward(inputs)

    def double(model):
        model.inner[0].weight.data *= 2

    changes = [
        lambda model: None,
        double,
        lambda model: model.inner[1].running_mean.add_(1),
        lambda model: setattr(model, "scale", 2.0),
        lambda model: model.inner.__setitem__(2, nn.ReLU()),
        lambda model: setattr(model, "__class__", Other),
    ]
    assert len({digest(change) for change in changes}) == len(changes)
    assert digest(lambda model: model.eval()) == digest(lambda model: None)


def test_a_key_has_any_names_that_json_can_hold(tmp_path):
    model, cache, names = network(), FeatureCache(tmp_path), ("../../etc", "a\0b", "ä" * 9999, "\ud800", "")
    for name in names:
        found = extract(model, model, data(), key_parts={"head": name}, cache=cache)
        assert cache.path(found.digest).parent == tmp_path
    assert len(cache.sets()) == len(names)
    for value in (object(), float("nan")):
        with pytest.raises(ValueError, match="`key_parts`"):
            cache_key({"a": value})


def test_a_loader_that_draws_with_replacement_is_taken_as_it_comes():
    examples = Examples(*data())
    sampler = RandomSampler(
        examples, replacement=True, num_samples=20, generator=torch.Generator().manual_seed(3)
    )
    model = network()
    found = extract(model, model, DataLoader(examples, 4, sampler=sampler), key_parts={}, cache=None)
    assert len(found) == 20 and found.width == FEATURES and found.targets.max() < CLASSES


# Compiled

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")


def classifier():
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Sequential(network().inner, nn.Linear(FEATURES, 3))


@needs_compiler
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_compiled_features_are_the_same_under_the_same_key(tmp_path):
    model, (inputs, targets) = classifier().eval(), data()
    features_of = Backbone(model, find_head(model, inputs[:4]))
    before = torch._inductor.config.freezing
    options = {"key_parts": {"head": "1"}, "batch_size": 16}
    cache = FeatureCache(tmp_path / "a")
    compiled = extract(model, features_of, (inputs, targets), cache=cache, compile=True, **options)
    eager = extract(model, features_of, (inputs, targets), cache=FeatureCache(tmp_path / "b"), **options)
    np.testing.assert_allclose(compiled.rows[:], eager.rows[:], rtol=1e-4, atol=1e-6)
    assert compiled.digest == eager.digest
    assert torch._inductor.config.freezing == before
    made = features._compiled[features_of]
    more = extract(model, features_of, (inputs[:32], targets[:32]), cache=None, compile=True, **options)
    assert features._compiled[features_of] is made  # compiled once for all sets
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
    features_of = Backbone(model, find_head(model, inputs[:4]))
    shapes = counted(monkeypatch, lambda batch: features_of(batch))
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
    features_of = Backbone(model, head)
    counted(monkeypatch, lambda batch: wrong(Backbone(model, head)(batch)))
    with pytest.warns(UserWarning, match=named):
        found = extract(model, features_of, (inputs, targets), key_parts={}, cache=None, compile=True)
    torch.testing.assert_close(torch.tensor(found.rows[:]), Backbone(model, head)(inputs))
