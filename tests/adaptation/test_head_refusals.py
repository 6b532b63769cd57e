"""What has no last layer that could be fitted anew is refused, and the reason told."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional

from beliefmatch.adaptation.heads import find_head, head_inputs
from beliefmatch.adaptation.outputs import logits_of, output_of
from beliefmatch.adaptation.surgery import with_head
from head_networks import IMAGES, NEW, WIDTH, K, Net, OnMap, Output, TwoHeads, finishing


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
