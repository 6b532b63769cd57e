"""The last layer of a classifier: how it is found, read and replaced, and why it may be refused."""

import copy
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional

from beliefmatch.adaptation.backbone import HeadInputs
from beliefmatch.adaptation.belief_mixin import BeliefMixin
from beliefmatch.adaptation.heads import find_head, head_inputs, head_weights
from beliefmatch.adaptation.modes import batchnorm_layers
from beliefmatch.adaptation.outputs import logits_of
from beliefmatch.adaptation.surgery import with_head
from beliefmatch.belief import Belief
from beliefmatch.models import EncoderClassifier, PooledEncoder
from encoders import TOKENS, TokenEncoder
from golden import assert_golden
from head_networks import (
    IMAGES,
    NEW,
    PLAIN,
    WIDTH,
    K,
    N,
    Net,
    OnMap,
    Output,
    Tokens,
    TwoHeads,
    finishing,
    made,
    returned,
    squeezed,
)


def with_new_head(model, classes=NEW, weight=None, bias=None):
    head = find_head(model, IMAGES)
    return with_head(model, head, torch.zeros(classes, WIDTH) if weight is None else weight, bias)


def better_net():
    return with_new_head(Net(), weight=torch.randn(NEW, WIDTH), bias=torch.randn(NEW))


# Finding the head and its features


@pytest.mark.parametrize("classes", [K, NEW])
@pytest.mark.parametrize("name", PLAIN)
def test_features_times_a_head_are_the_logits_of_the_network_that_has_it(name, classes):
    model, batch = made(name)
    before = copy.deepcopy(model.state_dict())
    head = find_head(model, batch)
    assert head.name == PLAIN[name][1] and head.module is model.get_submodule(head.name)
    features = head_inputs(model, head, batch)
    assert features.shape == (N, head.in_features)
    bias = 0 if head.module.bias is None else head.module.bias
    torch.testing.assert_close(features @ head.module.weight.flatten(1).T + bias, returned(model, batch))

    weight = torch.randn(classes, head.in_features).double()
    bias = None if head.module.bias is None else torch.randn(classes).double()
    better = with_head(model, head, weight, bias)
    expected = features @ weight.T + (0 if bias is None else bias)
    torch.testing.assert_close(returned(better, batch), expected)
    torch.testing.assert_close(better.belief(batch).log_alpha, expected)
    assert list(better.state_dict()) == list(before)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert type(better.get_submodule(head.name)) is type(head.module) or name == "only a layer"
    assert find_head(better, batch).out_features == classes


def test_features_of_maps_are_pooled():
    poolings = {name: find_head(*made(name)).pooling for name in PLAIN}
    mapped = {"no bias", "convolution, mean", "convolution, pooling", "channels last"}
    assert {name for name, pooling in poolings.items() if pooling == "mean"} == mapped
    assert {name for name, pooling in poolings.items() if pooling == "other"} == {"twice"}


def test_a_head_on_tokens_of_which_one_is_chosen():
    model, ids = Tokens(), torch.tensor([[3, 4, 0], [5, 0, 0], [1, 2, 7]])
    head = find_head(model, {"ids": ids})
    assert (head.name, head.pooling, head.module.bias) == ("score", "other", None)
    last = torch.tensor([4, 5, 7])
    torch.testing.assert_close(head_inputs(model, head, {"ids": ids}), model.embed(last))
    better = with_head(model, head, torch.ones(NEW, WIDTH), None)
    torch.testing.assert_close(better.belief({"ids": ids}).log_alpha[:, 2], model.embed(last).sum(1))


@pytest.mark.parametrize("wrapped", [lambda encoder: encoder, nn.DataParallel])
def test_an_encoder_without_head_becomes_a_classifier(wrapped):
    encoder = PooledEncoder(TokenEncoder(WIDTH), normalize=True).double().train()
    before, state = copy.deepcopy(encoder.state_dict()), torch.random.get_rng_state()
    head = find_head(wrapped(encoder), TOKENS)
    assert (head.name, head.module, head.in_features, head.out_features) == ("head", None, WIDTH, 0)
    assert head_weights(head) is None
    features = head_inputs(encoder, head, TOKENS)
    torch.testing.assert_close(features, encoder.eval()(**TOKENS))
    assert not features.requires_grad and torch.equal(HeadInputs(encoder, head)(TOKENS), features)
    assert torch.equal(HeadInputs(encoder, head).traceable(**TOKENS), features)
    weight, bias = torch.full((NEW, WIDTH), 2.0), torch.arange(3.0)
    better = with_head(wrapped(encoder.train()), head, weight, bias)
    assert isinstance(better, EncoderClassifier) and better.training and encoder.training
    expected = features @ weight.double().T + bias
    torch.testing.assert_close(better.belief(TOKENS).log_alpha, expected)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert set(better.state_dict()) == {*(f"backbone.{key}" for key in before), "head.weight", "head.bias"}
    again = find_head(better, TOKENS)
    assert (again.name, again.module) == ("head", better.head)
    torch.testing.assert_close(head_inputs(better, again, TOKENS), features)
    with pytest.raises(ValueError, match="`name`"):
        find_head(encoder, TOKENS, name="fc")


def test_both_heads_on_the_same_features_are_listed():
    assert find_head(TwoHeads("fc"), IMAGES).siblings == ("second",)
    assert find_head(TwoHeads("second"), IMAGES).siblings == ("fc",)
    assert find_head(Net(), IMAGES).siblings == ()
    model = TwoHeads("fc")
    for layer in (model.fc, model.second, model.hidden):  # so that all give the same logits
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
    assert find_head(model, IMAGES).name == "fc"


def test_a_head_is_found_by_name():
    model = Net()
    assert find_head(model, IMAGES, name="fc").name == "fc"
    assert find_head(nn.DataParallel(model), IMAGES, name="fc").name == "module.fc"
    assert find_head(nn.DataParallel(model), IMAGES, name="module.fc").name == "module.fc"


def test_the_network_stays_as_it_was():
    model = Net().train()
    model.norm.eval()
    before, modes = copy.deepcopy(model.state_dict()), [module.training for module in model.modules()]
    state = torch.random.get_rng_state()
    with_new_head(model).belief(IMAGES)
    with pytest.raises(RuntimeError):
        find_head(model, torch.zeros(2, 1, 4, 4))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())
    assert model.num_classes == K


def test_features_are_in_eval_mode_and_belong_to_the_caller():
    class Spoiling(Net):
        def forward(self, x):
            features = self.features(x)
            logits = self.fc(features)
            features.zero_()
            return logits

    model = Spoiling().train()
    head = find_head(model, IMAGES)
    features = head_inputs(model, head, IMAGES)
    assert not features.requires_grad and features.any()
    assert torch.equal(features, head_inputs(model, head, IMAGES))


def test_batchnorm_layers_in_use():
    model = TwoHeads("fc")
    model.aux = nn.Sequential(nn.BatchNorm1d(WIDTH))
    model.frozen = nn.BatchNorm1d(WIDTH, affine=False, track_running_stats=False)
    model.group = nn.GroupNorm(2, WIDTH)
    assert list(batchnorm_layers(model)) == ["norm", "aux.0"]
    assert batchnorm_layers(model, IMAGES) == {"norm": model.norm}
    assert model.training and int(model.norm.num_batches_tracked) == 0


# The copy with another head


def test_class_counts_flags_hooks_and_types_follow():
    model, seen = Net(), []
    model.config = type("Config", (), {"num_labels": K, "image_size": K})()
    model.fc.requires_grad_(False)
    model.fc.register_forward_hook(lambda _module, _args, out: seen.append(tuple(out.shape)))
    better = with_new_head(model)
    assert (better.num_classes, better.fc.out_features, better.config.num_labels) == (NEW, NEW, NEW)
    assert (better.config.image_size, model.config.num_labels, model.num_classes) == (K, K, K)
    assert not better.fc.weight.requires_grad and not better.fc.bias.requires_grad
    assert better.training
    seen.clear()
    better.belief(IMAGES)
    assert seen == [(N, NEW)]

    half = Net().half()
    better = with_head(
        half, find_head(half, IMAGES.half()), torch.ones(NEW, WIDTH).double(), torch.zeros(NEW)
    )
    assert better.fc.weight.dtype == torch.float16
    assert better.belief(IMAGES.half()).log_alpha.dtype == torch.float32


def test_a_bias_can_be_added():
    model = OnMap(squeezed, bias=False)
    better = with_new_head(model, bias=torch.arange(3.0))
    assert set(better.state_dict()) - set(model.state_dict()) == {"head.bias"}
    assert returned(better, IMAGES)[1].tolist() == [0, 1, 2]


def test_the_copy_is_of_the_users_class_and_has_a_belief():
    better = better_net().train()
    assert isinstance(better, Net) and isinstance(better, BeliefMixin)
    assert (type(better).__name__, type(better).__module__) == ("NetWithBelief", Net.__module__)
    assert type(better) is type(better_net()) is type(with_new_head(better))
    belief = better.belief(IMAGES, scale=0.1)
    assert isinstance(belief, Belief) and better.training
    logits = returned(better, IMAGES)
    torch.testing.assert_close(belief.probs, logits.softmax(1))
    torch.testing.assert_close(belief.precision, 0.1 * logits.exp().sum(1))
    prediction = better.predict(IMAGES)
    torch.testing.assert_close(prediction.probs, logits.double().softmax(1))
    assert prediction.probs.dtype == torch.float64
    assert better.abstain(IMAGES, 0.5).tolist() == (belief.confidence < 0.5).tolist()


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_duplicates_of_the_copy_have_a_belief(duplicate):
    better = better_net()
    again = duplicate(better)
    assert type(again) is type(better)
    assert torch.equal(again.belief(IMAGES).log_alpha, better.belief(IMAGES).log_alpha)


def test_methods_and_layers_of_the_user_keep_their_names():
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

    assert with_new_head(Own()).predict(1) == ("mine", 1)
    part = Part()
    assert copy.deepcopy(with_new_head(part)).belief(IMAGES).num_classes == NEW
    part.belief = nn.Identity()
    with pytest.raises(ValueError, match="`belief`"):
        with_new_head(part)


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


def test_shared_weights_are_separated_with_a_warning():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(9, WIDTH)
            self.score = nn.Linear(WIDTH, 9, bias=False)
            self.score.weight = self.embed.weight

        def forward(self, ids):
            return self.score(self.embed(ids).mean(1))

    model, ids = Tied(), torch.tensor([[1, 2], [3, 4], [5, 6]])
    with pytest.warns(UserWarning, match=r"`score` .*embed\.weight"):
        better = with_head(model, find_head(model, ids), torch.zeros(NEW, WIDTH), None)
    assert torch.equal(better.embed.weight, model.embed.weight)
    assert not returned(better, ids).any()


def test_wrappers_that_distribute_or_compile_are_removed():
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        better = with_new_head(nn.parallel.DistributedDataParallel(Net()), bias=torch.arange(3.0))
    finally:
        torch.distributed.destroy_process_group()
    assert isinstance(better, Net) and better.belief(IMAGES).predictions.tolist() == [2] * N
    assert isinstance(with_new_head(torch.compile(Net())), Net)  # pyright: ignore


# Networks without such a layer


class Cosine(nn.Linear):
    def forward(self, input):
        return functional.linear(functional.normalize(input), functional.normalize(self.weight), self.bias)


class Both(TwoHeads):
    def forward(self, x):
        features = self.features(x)
        return (self.fc(features) + self.second(features)) / 2


class Functional(Net):
    def forward(self, x):
        return functional.linear(self.features(x), self.fc.weight[:3])


class Lora(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.base_layer = layer
        self.lora_A = nn.ModuleDict({"default": nn.Linear(WIDTH, 2, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(2, K, bias=False)})

    def forward(self, x):
        return self.base_layer(x) + self.lora_B["default"](self.lora_A["default"](x))


class LoraInside(nn.Linear):
    def __init__(self, _layer):
        super().__init__(WIDTH, K)
        self.lora_A = nn.Parameter(torch.zeros(2, WIDTH))


def with_layer(change):
    model = Net()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the old weight_norm is deprecated
        model.fc = change(model.fc)
    return model


REFUSED = {
    "log_softmax": lambda: finishing(lambda logits: logits.log_softmax(1)),
    "softmax": lambda: finishing(lambda logits: logits.softmax(1)),
    "sigmoid": lambda: finishing(lambda logits: logits.sigmoid()),
    "relu": lambda: finishing(lambda logits: logits.relu_()),
    "normalize": lambda: finishing(functional.normalize),
    "a factor": lambda: finishing(lambda logits: logits / 2),
    "clamp": lambda: finishing(lambda logits: logits.clamp(-3, 3)),
    "another function": lambda: finishing(lambda logits: logits.square() + logits),
    "relu on a map": lambda: OnMap(lambda out: nn.ReLU(inplace=True)(out).mean((2, 3))),
    "maximum of a map": lambda: OnMap(lambda out: out.amax((2, 3))),
    "a part of the weight": Functional,
    "the mean of two heads": lambda: Both("fc"),
    "cosine similarity": lambda: with_layer(lambda _: Cosine(WIDTH, K)),
    "no layer": lambda: nn.Sequential(nn.AvgPool2d(4), nn.Flatten()),
    "the old weight_norm": lambda: with_layer(nn.utils.weight_norm),
    "weight_norm": lambda: with_layer(nn.utils.parametrizations.weight_norm),
    "spectral_norm": lambda: with_layer(nn.utils.parametrizations.spectral_norm),
    "an adapter around the layer": lambda: with_layer(Lora),
    "an adapter inside of the layer": lambda: with_layer(LoraInside),
}


def test_networks_without_such_a_layer_are_refused_with_the_reason():
    lines = []
    for name, make in REFUSED.items():
        with torch.random.fork_rng():
            torch.manual_seed(4)
            model = make()
        with pytest.raises(ValueError, match=r"^find_head: ") as refused:
            find_head(model, IMAGES)
        lines.append(f"{name}: {refused.value}")
    for name in ("fcc", "norm", "spare", "hidden"):
        model = Net()
        model.spare = nn.Linear(2, K)
        with pytest.raises(ValueError, match=r"^find_head: ") as refused:
            find_head(model, IMAGES, name=name)
        lines.append(f"the name {name}: {refused.value}")
    assert not any("\n" in line for line in lines)
    assert_golden("adaptation/head_refusals.txt", "\n".join(lines))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({"hidden": torch.zeros(2, 3)}, "hidden (2, 3)"),
        (None, "NoneType"),
        (("a",), "tuple ('a',)"),
        ((torch.tensor(1.0),), "tuple"),
    ],
)
def test_outputs_without_logits_are_refused(value, shown):
    with pytest.raises(TypeError, match=r"^find_head: ") as refused:
        find_head(finishing(lambda _: value), IMAGES)
    assert shown in f"{refused.value}"


def lazy():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # older versions of torch call lazy layers new
        return nn.Sequential(nn.Flatten(), nn.LazyLinear(K))


@pytest.mark.parametrize(
    ("call", "error", "named"),
    [
        (lambda: logits_of(Output(torch.zeros(2, 3, 4))), ValueError, r"\(2, 3, 4\)"),
        (lambda: find_head(lambda x: x, IMAGES), TypeError, "`model`"),  # pyright: ignore
        (lambda: find_head(torch.jit.script(nn.Linear(4, K)), IMAGES), TypeError, "RecursiveScriptModule"),
        (lambda: find_head(lazy(), IMAGES), ValueError, "1.weight"),
        (lambda: find_head(Net(), IMAGES[:0]), ValueError, "`batch`"),
        (lambda: find_head(Net(), IMAGES * torch.nan), ValueError, "`batch`"),
        (lambda: find_head(finishing(lambda z: z.argmax(1)), IMAGES), TypeError, "int64"),
        (lambda: with_new_head(Net(), weight=torch.zeros(NEW, WIDTH + 1)), ValueError, "`weight`"),
        (lambda: with_new_head(Net(), weight=torch.zeros(0, WIDTH)), ValueError, "`weight`"),
        (lambda: with_new_head(Net(), bias=torch.zeros(K)), ValueError, "`bias`"),
        (lambda: with_new_head(Net(), weight=torch.full((NEW, WIDTH), torch.nan)), ValueError, "`weight`"),
        (lambda: with_new_head(Net(), weight=torch.zeros(NEW, WIDTH).long()), TypeError, "`weight`"),
        (lambda: with_new_head(Net(), weight=[[1.0]]), TypeError, "`weight`"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(call, error, named):
    with pytest.raises(error, match=named):
        call()


def test_a_head_of_another_network_or_input_is_refused():
    head = find_head(Net(), IMAGES)
    other = nn.Sequential(nn.Flatten(), nn.Linear(48, K))
    with pytest.raises(ValueError, match=r"^with_head: `head`"):
        with_head(other, head, torch.zeros(NEW, WIDTH), None)
    with pytest.raises(ValueError, match=r"^head_inputs: `head`"):
        head_inputs(other, head, IMAGES)
    convolution = nn.Sequential(nn.Conv2d(3, K, 1), nn.Flatten())
    head = find_head(convolution, torch.randn(2, 3, 1, 1))  # one vector, not a map
    with pytest.raises(ValueError, match=r"\(5, 3, 4, 4\)"):
        head_inputs(convolution, head, IMAGES)
