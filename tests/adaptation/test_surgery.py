"""A copy of the network with another head: what it returns, believes, keeps and leaves alone."""

import copy
import pickle

import pytest
import torch
from torch import nn

from beliefmatch.adaptation.belief_mixin import BeliefMixin
from beliefmatch.adaptation.heads import find_head, head_inputs
from beliefmatch.adaptation.surgery import with_head
from beliefmatch.belief import Belief
from head_networks import IMAGES, NEW, PLAIN, WIDTH, K, N, Net, OnMap, made, returned, squeezed


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
    assert isinstance(better, BeliefMixin)
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
    assert better.abstain(IMAGES, 0.5).tolist() == (belief.confidence < 0.5).tolist()


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
    with pytest.raises(ValueError, match="`belief`"):
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
