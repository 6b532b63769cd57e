"""Finding the last layer of a classifier, reading what it is given, and putting another in its place."""

import copy
import pickle
import warnings
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from beliefmatch.adaptation.believing import Believing
from beliefmatch.adaptation.heads import find_head, head_inputs, linear_layers
from beliefmatch.adaptation.modes import batch_norms, evaluating
from beliefmatch.adaptation.outputs import logits_of, output_of
from beliefmatch.adaptation.surgery import with_head
from beliefmatch.belief import Belief

N, WIDTH, K, NEW = 5, 6, 4, 3
IMAGES = torch.randn(N, 3, 4, 4, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """Convolution, batch norm, pooling, dropout, a hidden linear layer as wide as the logits, and a head."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, WIDTH, 3)
        self.norm = nn.BatchNorm2d(WIDTH)
        self.hidden = nn.Linear(WIDTH, K)
        self.back = nn.Linear(K, WIDTH)
        self.dropout = nn.Dropout(0.5)
        self.fc = nn.Linear(WIDTH, K)
        self.num_classes = K

    def features(self, x):
        return self.dropout(self.back(self.hidden(self.norm(self.conv(x)).relu().mean((2, 3))).relu()))

    def finish(self, logits):
        return logits

    def forward(self, x):
        return self.finish(self.fc(self.features(x)))


class Named(NamedTuple):
    logits: Tensor
    aux_logits: Tensor


@dataclass
class Output:
    logits: Tensor
    hidden: Tensor | None = None


def finishing(finish, base=Net):
    """A network that does something to its logits before it returns them."""
    net = base()
    net.finish = finish
    return net


class OnMap(nn.Module):
    """A 1x1 convolution on a map, and what comes after it."""

    def __init__(self, after, bias=True):
        super().__init__()
        self.body = nn.Conv2d(3, WIDTH, 3)
        self.head = nn.Conv2d(WIDTH, K, 1, bias=bias)
        self.after = after

    def forward(self, x):
        return self.after(self.head(self.body(x).tanh()))


class TwoHeads(Net):
    def __init__(self, choice):
        super().__init__()
        self.second = nn.Linear(WIDTH, K)
        self.choice = choice

    def forward(self, x):
        features = self.features(x)
        both = {"fc": self.fc(features), "second": self.second(features)}
        return both[self.choice]


class Tokens(nn.Module):
    """A head on every token of which one for each example is returned, another one for each."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(9, WIDTH)
        self.score = nn.Linear(WIDTH, K, bias=False)

    def forward(self, ids):
        logits = self.score(self.embed(ids))
        return Output(logits[torch.arange(len(ids)), (ids > 0).sum(1) - 1])


class Crops(Net):
    """One head, used twice, and the mean of both."""

    def forward(self, x):
        return (self.fc(self.features(x)) + self.fc(self.features(x.flip(-1)))) / 2


def squeezed(map_of_logits):
    return map_of_logits.mean((2, 3))


PLAIN = {
    "sequential": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(48, K), nn.ReLU(), nn.Linear(K, K)), "3"),
    "only a layer": (lambda: nn.Linear(4, K), ""),
    "residual": (Net, "fc"),
    "nested": (lambda: nn.Sequential(nn.Identity(), nn.Sequential(Net())), "1.0.fc"),
    "data parallel": (lambda: nn.DataParallel(Net()), "module.fc"),
    "tuple": (lambda: finishing(lambda logits: (logits, logits * 2)), "fc"),
    "named tuple": (lambda: finishing(lambda logits: Named(logits, logits * 2)), "fc"),
    "list with a loss": (lambda: finishing(lambda logits: [logits.sum(), logits]), "fc"),
    "mapping": (lambda: finishing(lambda logits: {"hidden": logits * 3, "logits": logits}), "fc"),
    "mapping with out": (lambda: finishing(lambda logits: {"out": logits, "aux": logits * 3}), "fc"),
    "object": (lambda: finishing(Output), "fc"),
    "reshaped": (lambda: finishing(lambda logits: logits[None].flatten().view(N, -1)), "fc"),
    "unit dimensions": (lambda: finishing(lambda logits: logits[:, :, None, None]), "fc"),
    "first of two": (lambda: TwoHeads("fc"), "fc"),
    "second of two": (lambda: TwoHeads("second"), "second"),
    "no bias": (lambda: OnMap(squeezed, bias=False), "head"),
    "convolution, mean": (lambda: OnMap(squeezed), "head"),
    "convolution, pooling": (lambda: OnMap(nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())), "head"),
    "pooling, convolution": (
        lambda: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(3, K, 1), nn.Flatten()),
        "1",
    ),
    "channels last": (lambda: nn.Sequential(Permuted(), nn.Linear(3, K), Averaged()), "1"),
    "twice": (Crops, "fc"),
}


class Permuted(nn.Module):
    def forward(self, x):
        return x.movedim(1, -1)


class Averaged(nn.Module):
    def forward(self, x):
        return x.mean((1, 2))


def made(name):
    """A network and its batch, the same at every call."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = PLAIN[name][0]().double()
    return model, IMAGES.double() if name != "only a layer" else IMAGES[:, 0, 0].double()


def returned(model, batch):
    with evaluating(model):
        return logits_of(model(batch))


@pytest.mark.parametrize("name", PLAIN)
def test_the_head_is_found_and_its_features_make_the_logits(name):
    model, batch = made(name)
    head = find_head(model, batch)
    assert head.name == PLAIN[name][1]
    assert head.module is model.get_submodule(head.name)
    features = head_inputs(model, head, batch)
    assert features.shape == (N, head.in_features)
    bias = 0 if head.bias is None else head.bias
    torch.testing.assert_close(features @ head.weight.T + bias, returned(model, batch))


@pytest.mark.parametrize("classes", [K, NEW])
@pytest.mark.parametrize("name", PLAIN)
def test_another_head_makes_of_the_features_what_the_copy_returns(name, classes):
    model, batch = made(name)
    head = find_head(model, batch)
    before = copy.deepcopy(model.state_dict())
    weight, bias = torch.randn(classes, head.in_features).double(), torch.randn(classes).double()
    better = with_head(model, head, weight, None if head.bias is None else bias)
    expected = head_inputs(model, head, batch) @ weight.T + (0 if head.bias is None else bias)
    torch.testing.assert_close(returned(better, batch), expected)
    torch.testing.assert_close(better.belief(batch).log_alpha, expected)
    assert list(better.state_dict()) == list(before)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    layer = better.get_submodule(head.name)
    assert type(layer) is type(head.module) or name == "only a layer"
    assert find_head(better, batch).out_features == classes


def test_how_features_are_read():
    poolings = {name: find_head(*made(name)).pooling for name in PLAIN}
    mapped = {"no bias", "convolution, mean", "convolution, pooling", "channels last"}
    assert {name for name, pooling in poolings.items() if pooling == "mean"} == mapped
    assert {name for name, pooling in poolings.items() if pooling == "other"} == {"twice"}


def test_a_head_on_tokens_of_which_one_is_chosen():
    model, ids = Tokens(), torch.tensor([[3, 4, 0], [5, 0, 0], [1, 2, 7]])
    head = find_head(model, {"ids": ids})
    assert (head.name, head.pooling, head.bias) == ("score", "other", None)
    last = torch.tensor([4, 5, 7])
    torch.testing.assert_close(head_inputs(model, head, {"ids": ids}), model.embed(last))
    better = with_head(model, head, torch.ones(NEW, WIDTH), None)
    torch.testing.assert_close(better.belief({"ids": ids}).log_alpha[:, 2], model.embed(last).sum(1))


def test_both_heads_on_the_same_features_are_listed():
    assert find_head(TwoHeads("fc"), IMAGES).siblings == ("second",)
    assert find_head(TwoHeads("second"), IMAGES).siblings == ("fc",)
    assert find_head(Net(), IMAGES).siblings == ()


def test_heads_that_are_all_zero_are_told_apart():
    model = TwoHeads("fc")
    for layer in (model.fc, model.second, model.hidden):
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
    assert find_head(model, IMAGES).name == "fc"


def test_the_network_stays_as_it_was():
    model = Net().train()
    model.norm.eval()
    before, modes = copy.deepcopy(model.state_dict()), [module.training for module in model.modules()]
    head = find_head(model, IMAGES)
    head_inputs(model, head, IMAGES)
    with_head(model, head, torch.zeros(NEW, WIDTH), None).belief(IMAGES)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())
    assert model.num_classes == K


def test_modes_come_back_after_an_error():
    model = Net().train()
    model.norm.eval()
    with pytest.raises(RuntimeError):
        find_head(model, torch.zeros(2, 1, 4, 4))
    assert model.training
    assert model.fc.training
    assert not model.norm.training


def test_features_are_in_eval_mode_and_the_callers_own():
    class Spoiling(Net):
        def forward(self, x):
            features = self.features(x)
            logits = self.fc(features)
            features.zero_()
            return logits

    model = Spoiling().train()
    head = find_head(model, IMAGES)
    features = head_inputs(model, head, IMAGES)
    assert not features.requires_grad
    assert features.any()
    assert torch.equal(features, head_inputs(model, head, IMAGES))


def test_half_precision():
    model = Net().half()
    head = find_head(model, IMAGES.half())
    better = with_head(model, head, torch.ones(NEW, WIDTH, dtype=torch.float64), torch.zeros(NEW))
    assert better.fc.weight.dtype == torch.float16
    assert better.belief(IMAGES.half()).log_alpha.dtype == torch.float32


def test_by_name():
    model = Net()
    assert find_head(model, IMAGES, name="fc").name == "fc"
    assert find_head(nn.DataParallel(model), IMAGES, name="fc").name == "module.fc"
    assert find_head(nn.DataParallel(model), IMAGES, name="module.fc").name == "module.fc"


def test_layers_are_listed_in_order_of_use():
    assert [str(layer) for layer in linear_layers(Net(), IMAGES)] == [
        "`hidden` (linear, 6 -> 4)",
        "`back` (linear, 4 -> 6)",
        "`fc` (linear, 6 -> 4)",
    ]


@pytest.mark.parametrize(
    ("name", "fact"),
    [
        ("fcc", "`name` must be that of a module, got 'fcc'; did you mean `fc`?"),
        (
            "norm",
            "linear layer or a 1x1 convolution, got `norm`, a BatchNorm2d; layers: `fc` (linear, 6 -> 4)",
        ),
        ("spare", "the batch does not go through `spare` (linear, 2 -> 4)"),
        ("hidden", "the layer whose output is returned, got 'hidden'"),
    ],
)
def test_a_wrong_name_is_told(name, fact):
    model = Net()
    model.spare = nn.Linear(2, K)
    with pytest.raises(ValueError) as caught:
        find_head(model, IMAGES, name=name)
    assert fact in str(caught.value)
    assert "\n" not in str(caught.value)


class Cosine(nn.Linear):
    def forward(self, input):
        return functional.linear(functional.normalize(input), functional.normalize(self.weight), self.bias)


class WithCosine(Net):
    def __init__(self):
        super().__init__()
        self.fc = Cosine(WIDTH, K)


class Both(TwoHeads):
    def __init__(self):
        super().__init__("fc")

    def forward(self, x):
        features = self.features(x)
        return (self.fc(features) + self.second(features)) / 2


def functional_head():
    class Functional(Net):
        def forward(self, x):
            return functional.linear(self.features(x), self.fc.weight[:3])

    return Functional()


REFUSED = {
    "log_softmax of the output of `fc`": lambda: finishing(lambda logits: logits.log_softmax(1)),
    " softmax of the output of `fc`": lambda: finishing(lambda logits: logits.softmax(1)),
    "sigmoid of the output of `fc`": lambda: finishing(lambda logits: logits.sigmoid()),
    "relu of the output of `fc`": lambda: finishing(lambda logits: logits.relu_()),
    "vectors of length one": lambda: finishing(functional.normalize),
    "multiplied by 0.5; put the factor": lambda: finishing(lambda logits: logits / 2),
    "relu of the output of `head`": lambda: OnMap(lambda out: nn.ReLU(inplace=True)(out).mean((2, 3))),
    "largest values that `head`": lambda: OnMap(lambda out: out.amax((2, 3))),
    "is bounded before": lambda: finishing(lambda logits: logits.clamp(-3, 3)),
    "no layer makes them; layers, last first: `fc` (linear, 6 -> 4), `back`": lambda: finishing(
        lambda logits: logits.square() + logits
    ),
    "last first: `back` (linear, 4 -> 6), `hidden`": functional_head,
    "the mean of `fc` (linear, 6 -> 4) and `second`": Both,
    "no layer makes them; layers, last first: `fc` (": WithCosine,
    "none was used": lambda: nn.Sequential(nn.AvgPool2d(4), nn.Flatten()),
}


@pytest.mark.parametrize("fact", REFUSED)
def test_what_is_no_head_is_refused_and_the_reason_told(fact):
    with torch.random.fork_rng():
        torch.manual_seed(4)
        model = REFUSED[fact]()
    with pytest.raises(ValueError) as caught:
        find_head(model, IMAGES)
    assert fact in str(caught.value)
    assert str(caught.value).startswith("find_head: `model` must return the output of a linear layer")
    assert "\n" not in str(caught.value)


class Lora(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.base_layer = layer
        self.lora_A = nn.ModuleDict({"default": nn.Linear(WIDTH, 2, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(2, K, bias=False)})

    def forward(self, x):
        return self.base_layer(x) + self.lora_B["default"](self.lora_A["default"](x))


class LoraInside(nn.Linear):
    def __init__(self):
        super().__init__(WIDTH, K)
        self.lora_A = nn.Parameter(torch.zeros(2, WIDTH))


def weight_normed_of_old(layer):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.utils.weight_norm(layer)


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        (weight_normed_of_old, "computed by a parametrization such as weight_norm; remove it first"),
        (nn.utils.parametrizations.weight_norm, "computed by a parametrization"),
        (nn.utils.parametrizations.spectral_norm, "computed by a parametrization"),
        (Lora, "`fc.base_layer` (linear, 6 -> 4) is changed by adapters (lora_A, lora_B); merge"),
        (lambda _: LoraInside(), "is changed by adapters (lora_A)"),
    ],
)
def test_layers_without_a_weight_of_their_own_are_refused(change, fact):
    model = Net()
    model.fc = change(model.fc)
    with pytest.raises(ValueError) as caught:
        find_head(model, IMAGES)
    assert fact in str(caught.value)


def test_weights_that_are_shared_are_parted_with_a_warning():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(9, WIDTH)
            self.score = nn.Linear(WIDTH, 9, bias=False)
            self.score.weight = self.embed.weight

        def forward(self, ids):
            return self.score(self.embed(ids).mean(1))

    model, ids = Tied(), torch.tensor([[1, 2], [3, 4], [5, 6]])
    head = find_head(model, ids)
    with pytest.warns(UserWarning, match="`score` shares its weights with embed.weight, which keeps the old"):
        better = with_head(model, head, torch.zeros(NEW, WIDTH), None)
    assert torch.equal(better.embed.weight, model.embed.weight)
    assert not returned(better, ids).any()


def test_wrappers_that_spread_or_compile_are_left_off():
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        spread = nn.parallel.DistributedDataParallel(Net())
        head = find_head(spread, IMAGES)
        better = with_head(spread, head, torch.zeros(NEW, WIDTH), torch.arange(3.0))
    finally:
        torch.distributed.destroy_process_group()
    assert head.name == "module.fc"
    assert isinstance(better, Net)
    assert better.belief(IMAGES).predictions.tolist() == [2] * N


def test_a_compiled_network_is_looked_into():
    compiled = torch.compile(Net())
    head = find_head(compiled, IMAGES)  # pyright: ignore
    assert head.name == "_orig_mod.fc"
    assert isinstance(with_head(compiled, head, torch.zeros(NEW, WIDTH), None), Net)  # pyright: ignore


@pytest.mark.parametrize(
    ("value", "fact"),
    [
        ({"hidden": torch.zeros(2, 3)}, "got dict with hidden (2, 3)."),
        (None, "got NoneType None."),
        (("a",), "got tuple ('a',)."),
        ((torch.tensor(1.0),), "got tuple"),
        (Output(torch.zeros(2, 3, 4)), None),
    ],
)
def test_what_holds_no_logits_is_told(value, fact):
    if fact is None:
        with pytest.raises(
            ValueError, match=r"one row of logits for each example, \(N, K\), got shape \(2, 3, 4\)"
        ):
            logits_of(value)
        return
    with pytest.raises(TypeError) as caught:
        output_of(value)
    assert fact in str(caught.value)
    with pytest.raises(TypeError, match=r"^find_head: the model must return logits"):
        find_head(finishing(lambda _: value), IMAGES)


def test_models_that_cannot_be_looked_into():
    with pytest.raises(TypeError, match=r"`model` must be an nn.Module that Python runs, got a function"):
        find_head(lambda x: x, IMAGES)  # pyright: ignore
    with pytest.raises(TypeError, match="got a RecursiveScriptModule"):
        find_head(torch.jit.script(nn.Linear(4, K)), IMAGES)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # older versions of torch call lazy layers new
        lazy = nn.Sequential(nn.Flatten(), nn.LazyLinear(K))
    with pytest.raises(ValueError, match=r"must have run once, but 1.weight has no shape yet"):
        find_head(lazy, IMAGES)
    with pytest.raises(ValueError, match="`batch` must hold at least one example"):
        find_head(Net(), IMAGES[:0])


def test_logits_that_are_not_finite_or_not_floating():
    with pytest.raises(ValueError, match="finite logits for `batch`"):
        find_head(Net(), IMAGES * torch.nan)
    with pytest.raises(TypeError, match="floating-point logits, got int64"):
        find_head(finishing(lambda logits: logits.argmax(1)), IMAGES)


@pytest.mark.parametrize(
    ("weight", "bias", "fact"),
    [
        (torch.zeros(NEW, WIDTH + 1), None, r"`weight` must have shape \(K, 6\), got \(3, 7\)"),
        (torch.zeros(0, WIDTH), None, r"`weight` must have shape \(K, 6\), got \(0, 6\)"),
        (torch.zeros(NEW, WIDTH), torch.zeros(K), r"`bias` must have shape \(3,\), got \(4,\)"),
        (torch.full((NEW, WIDTH), torch.nan), None, "`weight` must be finite"),
        (torch.zeros(NEW, WIDTH).long(), None, "`weight` must be a floating-point tensor, got int64"),
        ([[1.0]], None, "`weight` must be a floating-point tensor, got list"),
    ],
)
def test_weights_that_do_not_fit(weight, bias, fact):
    model = Net()
    with pytest.raises((ValueError, TypeError), match=fact):
        with_head(model, find_head(model, IMAGES), weight, bias)


def test_a_head_of_another_network_is_refused():
    head = find_head(Net(), IMAGES)
    other = nn.Sequential(nn.Flatten(), nn.Linear(48, K))
    with pytest.raises(ValueError, match="with_head: `head` must be of `model`"):
        with_head(other, head, torch.zeros(NEW, WIDTH), None)
    with pytest.raises(ValueError, match="head_inputs: `head` must be of this model"):
        head_inputs(other, head, IMAGES)


def test_a_map_where_one_vector_was_seen_is_refused():
    model = nn.Sequential(nn.Conv2d(3, K, 1), nn.Flatten())
    head = find_head(model, torch.randn(2, 3, 1, 1))
    with pytest.raises(
        ValueError, match=r"must be given what `find_head` saw, got shapes \[\(5, 3, 4, 4\)\]"
    ):
        head_inputs(model, head, IMAGES)


def test_counts_of_classes_follow_and_the_layer_keeps_its_ways():
    model = Net()
    model.config = type("Config", (), {"num_labels": K, "image_size": K})()
    model.fc.requires_grad_(False)
    better = with_head(model, find_head(model, IMAGES), torch.zeros(NEW, WIDTH), None)
    assert (better.num_classes, better.fc.out_features, better.config.num_labels) == (NEW, NEW, NEW)
    assert (better.config.image_size, model.config.num_labels, model.num_classes) == (K, K, K)
    assert not better.fc.weight.requires_grad
    assert not better.fc.bias.requires_grad
    assert better.training


def test_a_bias_can_be_added():
    model = OnMap(squeezed, bias=False)
    better = with_head(model, find_head(model, IMAGES), torch.zeros(NEW, WIDTH), torch.arange(3.0))
    assert set(better.state_dict()) - set(model.state_dict()) == {"head.bias"}
    assert returned(better, IMAGES)[1].tolist() == [0, 1, 2]


def better_net():
    model = Net()
    return with_head(model, find_head(model, IMAGES), torch.randn(NEW, WIDTH), torch.randn(NEW))


def test_the_copy_is_of_the_users_class_and_says_what_it_believes():
    better = better_net().train()
    assert isinstance(better, Net)
    assert isinstance(better, Believing)
    assert (type(better).__name__, type(better).__module__) == ("NetWithBelief", Net.__module__)
    assert type(better) is type(better_net())
    belief = better.belief(IMAGES, scale=0.1)
    assert isinstance(belief, Belief)
    assert better.training
    logits = returned(better, IMAGES)
    torch.testing.assert_close(belief.probs, logits.softmax(1))
    torch.testing.assert_close(belief.precision, 0.1 * logits.exp().sum(1))
    prediction = better.predict(IMAGES)
    torch.testing.assert_close(prediction.probs, logits.double().softmax(1))
    assert prediction.probs.dtype == torch.float64
    assert better.abstains(IMAGES, 0.5).tolist() == (belief.confidence < 0.5).tolist()


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_copies_of_the_copy_can_still_believe(duplicate):
    better = better_net()
    again = duplicate(better)
    assert type(again) is type(better)
    assert torch.equal(again.belief(IMAGES).log_alpha, better.belief(IMAGES).log_alpha)


def test_adapting_twice_adds_one_class():
    better = better_net()
    best = with_head(better, find_head(better, IMAGES), torch.zeros(2, WIDTH), None)
    assert type(best) is type(better)
    assert best.belief(IMAGES).num_classes == 2


def test_what_the_user_calls_predict_stays_the_users():
    class Own(Net):
        @staticmethod
        def predict(x):
            return "mine", x

    class Part(Net):
        def __init__(self):
            super().__init__()
            self.predict = nn.Linear(WIDTH, K)

        def forward(self, x):
            return self.predict(self.features(x))

    own, part = Own(), Part()
    assert with_head(own, find_head(own, IMAGES), torch.zeros(2, WIDTH), None).predict(1) == ("mine", 1)
    better = with_head(part, find_head(part, IMAGES), torch.zeros(2, WIDTH), None)
    assert copy.deepcopy(better).belief(IMAGES).num_classes == 2
    part.belief = nn.Identity()
    with pytest.raises(ValueError, match="no part of the name `belief`"):
        with_head(part, find_head(part, IMAGES), torch.zeros(2, WIDTH), None)


def test_the_copy_can_be_exported_and_its_weights_saved(tmp_path):
    better = better_net().eval()
    exported = torch.export.export(better, (IMAGES,))
    torch.testing.assert_close(exported.module()(IMAGES), better(IMAGES))
    safetensors = pytest.importorskip("safetensors.torch")
    safetensors.save_file(better.state_dict(), tmp_path / "net.safetensors")
    plain = Net()
    plain.fc = nn.Linear(WIDTH, NEW)
    plain.load_state_dict(safetensors.load_file(tmp_path / "net.safetensors"))
    assert torch.equal(plain.eval()(IMAGES), better(IMAGES))


def test_hooks_of_the_head_stay():
    model, seen = Net(), []
    model.fc.register_forward_hook(lambda _module, _args, out: seen.append(tuple(out.shape)))
    better = with_head(model, find_head(model, IMAGES), torch.zeros(NEW, WIDTH), None)
    seen.clear()
    better.belief(IMAGES)
    assert seen == [(N, NEW)]


def test_the_caller_s_chance_is_untouched():
    before = torch.random.get_rng_state()
    model = copy.deepcopy(NET)
    with_head(model, find_head(model, IMAGES), torch.zeros(NEW, WIDTH), None).belief(IMAGES)
    assert torch.equal(torch.random.get_rng_state(), before)


NET = Net()


def test_batch_norms_in_use():
    model = TwoHeads("fc")
    model.aux = nn.Sequential(nn.BatchNorm1d(WIDTH))
    model.frozen = nn.BatchNorm1d(WIDTH, affine=False, track_running_stats=False)
    model.group = nn.GroupNorm(2, WIDTH)
    assert list(batch_norms(model)) == ["norm", "aux.0"]
    assert batch_norms(model, IMAGES) == {"norm": model.norm}
    assert model.training
    assert int(model.norm.num_batches_tracked) == 0
