"""The last layer of a classifier: how it is found, the features it is given, and why there may be none."""

import copy
import threading
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional

from beliefmatch.adaptation.heads import Backbone, find_head, head_weights, logits_of
from beliefmatch.adaptation.surgery import add_belief, with_head
from beliefmatch.models import EncoderClassifier, PooledEncoder
from encoders import TOKENS, TokenEncoder
from golden import assert_golden
from head_networks import (
    CLASSIFIERS,
    IMAGES,
    NEW,
    POOLED,
    WIDTH,
    K,
    N,
    Net,
    OnMap,
    TwoHeads,
    classifier,
    finishing,
    logits,
)


@pytest.mark.parametrize("classes", [K, NEW])
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_features_times_a_head_are_the_logits_of_the_network_that_has_it(name, classes):
    model, batch = classifier(name)
    before = copy.deepcopy(model.state_dict())
    head = find_head(model, batch)
    assert (head.name, head.pooling) == (CLASSIFIERS[name][1], POOLED.get(name, "none"))
    features = Backbone(model, head)(batch)
    assert features.shape == (N, head.in_features)
    weight, bias = head_weights(model, head)
    torch.testing.assert_close(features.float() @ weight.T + bias, logits(model, batch).float())
    if name == "wired to its classes" and classes != K:
        return

    weight = torch.randn(classes, head.in_features).double()
    bias = torch.randn(classes).double() if f"{head.name}.bias".strip(".") in before else None
    better = with_head(model, head, weight, bias)
    expected = features @ weight.T + (0 if bias is None else bias)
    torch.testing.assert_close(logits(better, batch), expected)
    assert type(better) is type(model)
    assert list(better.state_dict()) == list(before)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert find_head(better, batch).out_features == classes


class TokenScores(nn.Module):
    """A head on every token; the mean over the tokens of a sentence, or its last token, is returned."""

    def __init__(self, pooling):
        super().__init__()
        self.embed, self.score = nn.Embedding(9, WIDTH), nn.Linear(WIDTH, K, bias=False)
        self.pooling = pooling

    def forward(self, input_ids, attention_mask):
        scores, mask = self.score(self.embed(input_ids)), attention_mask[:, :, None]
        if self.pooling == "mean":
            return (scores * mask).sum(1) / mask.sum(1)
        return scores[torch.arange(len(scores)), attention_mask.sum(1) - 1]


@pytest.mark.parametrize("rows", [slice(0, 3), slice(0, 1)], ids=["padded", "without padding"])
@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_features_of_tokens_leave_out_padding(pooling, rows):
    model = TokenScores(pooling)
    head = find_head(model, {name: value[rows] for name, value in TOKENS.items()})
    assert (head.name, head.pooling) == ("score", "network")
    sentences = [model.embed(torch.tensor(ids)) for ids in ([2, 5, 7, 1], [3, 4], [6, 2, 8])]
    expected = [one.mean(0) if pooling == "mean" else one[-1] for one in sentences]
    torch.testing.assert_close(Backbone(model, head)(TOKENS), torch.stack(expected))


@pytest.mark.parametrize("wrapped", [lambda encoder: encoder, nn.DataParallel])
def test_an_encoder_without_head_becomes_a_classifier(wrapped):
    encoder = PooledEncoder(TokenEncoder(WIDTH), normalize=True).double().train()
    before, state = copy.deepcopy(encoder.state_dict()), torch.random.get_rng_state()
    head = find_head(wrapped(encoder), TOKENS)
    assert (head.name, head.in_features, head.out_features) == ("head", WIDTH, 0)
    assert head_weights(encoder, head) is None
    features = Backbone(wrapped(encoder), head)(TOKENS)
    torch.testing.assert_close(features, copy.deepcopy(encoder).eval()(**TOKENS))
    weight, bias = torch.full((NEW, WIDTH), 2.0), torch.arange(3.0)
    better = with_head(wrapped(encoder), head, weight, bias)
    assert isinstance(better, EncoderClassifier) and better.training and encoder.training
    torch.testing.assert_close(logits(better, TOKENS), features @ weight.double().T + bias)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert set(better.state_dict()) == {*(f"backbone.{key}" for key in before), "head.weight", "head.bias"}
    again = find_head(better, TOKENS)
    assert (again.name, again.out_features) == ("head", NEW)
    torch.testing.assert_close(Backbone(better, again)(TOKENS), features)
    with pytest.raises(ValueError, match="`name`"):
        find_head(encoder, TOKENS, name="fc")


def test_the_head_in_use_is_found_among_layers_that_give_the_same_logits():
    model = TwoHeads("fc")
    for layer in (model.fc, model.second, model.hidden):
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
    assert find_head(model, IMAGES).name == "fc"


def test_the_head_of_a_network_whose_dropout_is_always_on():
    model = Net()
    model.dropout.forward = functional.dropout
    assert find_head(model, IMAGES).name == "fc"


@pytest.mark.parametrize("name", [None, "fc", "module.fc"])
def test_names_are_those_inside_of_wrappers(name):
    model = nn.DataParallel(Net())
    head = find_head(model, IMAGES, name=name)
    assert head == find_head(model.module, IMAGES, name="fc")
    torch.testing.assert_close(Backbone(model, head)(IMAGES), Backbone(model.module, head)(IMAGES))


def test_the_network_stays_as_it_was():
    model = Net().train()
    model.norm.eval()
    before, modes = copy.deepcopy(model.state_dict()), [module.training for module in model.modules()]
    state = torch.random.get_rng_state()
    head = find_head(model, IMAGES)
    Backbone(model, head)(IMAGES)
    add_belief(with_head(model, head, torch.zeros(NEW, WIDTH), None)).belief(IMAGES)
    with pytest.raises(RuntimeError):
        find_head(model, torch.zeros(2, 1, 4, 4))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())
    assert (type(model.fc), model.num_classes) == (nn.Linear, K)


def test_a_backbone_shares_the_weights_of_its_model_also_after_they_were_replaced():
    model = Net().double().train()
    backbone = Backbone(model, find_head(model, IMAGES.double()))
    assert model.training and not any(module.training for module in backbone.modules())
    assert {id(one) for one in model.parameters()} == {id(one) for one in backbone.parameters()}
    model.half().float()  # replaces buffers
    model.norm.running_mean += 1
    expected = Backbone(model, backbone.head)(IMAGES)
    assert torch.equal(backbone(IMAGES), expected)
    torch.testing.assert_close(expected, copy.deepcopy(model).eval().features(IMAGES))


def test_features_belong_to_the_caller():
    class Overwriting(Net):
        def forward(self, x):
            features = self.features(x)
            logits = self.fc(features)
            features.zero_()
            return logits

    model = Overwriting().train()
    backbone = Backbone(model, find_head(model, IMAGES))
    features = backbone(IMAGES)
    assert not features.requires_grad and features.any()
    kept = features.clone()
    backbone(IMAGES * 2)
    assert torch.equal(features, kept)


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


def lazy():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # older versions of torch call lazy layers new
        return nn.Sequential(nn.Flatten(), nn.LazyLinear(K))


def with_lock():
    model = Net()
    model.lock = threading.Lock()
    return model


@pytest.mark.parametrize(
    ("call", "error", "named"),
    [
        (lambda: logits_of((torch.zeros(2, 3, 4),)), ValueError, r"\(2, 3, 4\)"),
        (lambda: logits_of({"hidden": torch.zeros(2, 3)}), TypeError, r"hidden \(2, 3\)"),
        (lambda: logits_of(("a", torch.tensor(1.0))), TypeError, "tuple"),
        (lambda: logits_of(SimpleNamespace(last_hidden_state=1)), TypeError, "PooledEncoder"),
        (lambda: find_head(finishing(lambda _: None), IMAGES), TypeError, "^find_head: .*NoneType"),
        (lambda: find_head(lambda x: x, IMAGES), TypeError, "`model`"),  # pyright: ignore
        (lambda: find_head(torch.jit.script(nn.Linear(4, K)), IMAGES), TypeError, "RecursiveScriptModule"),
        (lambda: find_head(lazy(), IMAGES), ValueError, "1.weight"),
        (lambda: find_head(Net(), IMAGES[:0]), ValueError, "`batch`"),
        (lambda: find_head(Net(), IMAGES * torch.nan), ValueError, "`batch`"),
        (lambda: find_head(finishing(lambda z: z.argmax(1)), IMAGES), TypeError, "int64"),
        (lambda: find_head(with_lock(), IMAGES), TypeError, "`model`.*deepcopy"),
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
    for call in (Backbone, head_weights):
        with pytest.raises(ValueError, match="`head`"):
            call(other, head)
    convolution = nn.Sequential(nn.Conv2d(3, K, 1), nn.Flatten())
    head = find_head(convolution, torch.randn(2, 3, 1, 1))  # one vector, not a map
    with pytest.raises(ValueError, match=r"\(5, 3, 4, 4\)"):
        Backbone(convolution, head)(IMAGES)
