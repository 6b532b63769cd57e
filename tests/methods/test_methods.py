"""Methods: what they minimise and how they read a network."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from beliefmatch.belief import Belief
from beliefmatch.loss import belief_matching_loss
from beliefmatch.methods import METHODS, build

OPTIONS = {
    "belief_matching": {"kl_weight": 0.02},
    "belief_ensemble": {"kl_weight": 0.02, "members": 2},
    "ensemble": {"members": 2},
    "mc_dropout": {"samples": 7},
}
LOGITS = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
TARGETS = torch.tensor([0, 2, 1, 1, 0])


def every_method():
    return [pytest.param(build(name, **OPTIONS.get(name, {})), id=name) for name in METHODS]


def predictor_of(method, network):
    return method.predictor(*[network] * method.members)


def test_softmax_minimises_cross_entropy():
    assert build("softmax").objective(LOGITS, TARGETS) == functional.cross_entropy(LOGITS, TARGETS)


def test_belief_matching_minimises_its_loss():
    objective = build("belief_matching", kl_weight=0.02).objective
    assert objective(LOGITS, TARGETS) == belief_matching_loss(LOGITS, TARGETS, kl_weight=0.02)


@pytest.mark.parametrize("name", [name for name in METHODS if name != "evidential"])
def test_predictions_are_the_softmax_of_the_logits(name):
    prediction = predictor_of(build(name, **OPTIONS.get(name, {})), nn.Identity()).predict(LOGITS)
    torch.testing.assert_close(prediction.probs, LOGITS.double().softmax(1))


@pytest.mark.parametrize("method", every_method())
def test_rows_sum_to_one_and_do_not_depend_on_their_batch(method):
    torch.manual_seed(1)
    network = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))
    x = torch.rand(6, 4)
    predictor = predictor_of(method, network)
    before = torch.get_rng_state()
    whole = predictor.predict(x).probs
    assert torch.equal(torch.get_rng_state(), before)
    split = torch.cat([predictor.predict(x[:1]).probs, predictor.predict(x[1:]).probs])
    torch.testing.assert_close(split, whole)
    torch.testing.assert_close(whole.sum(1), torch.ones(6, dtype=torch.float64))


def test_only_belief_matching_has_a_belief():
    softmax = build("softmax").predictor(nn.Identity()).predict(LOGITS)
    matching = build("belief_matching", kl_weight=0.02).predictor(nn.Identity()).predict(LOGITS)
    assert softmax.belief is None
    assert matching.belief is not None
    expected = Belief(LOGITS.double()).mutual_information()
    torch.testing.assert_close(matching.belief.mutual_information(), expected)


@pytest.mark.parametrize("method", every_method())
def test_a_tiny_probability_keeps_a_finite_logarithm(method):
    logits = torch.tensor([[300.0, -300.0, 0.0], [0.0, 1.0, 2.0]])
    assert predictor_of(method, nn.Identity()).predict(logits).probs.log().isfinite().all()


@pytest.mark.parametrize("method", every_method())
def test_predicting_repeats_itself_and_builds_no_graph(method):
    network = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)).train()
    predictor = predictor_of(method, network)
    x = torch.rand(6, 4)
    first, second = predictor.predict(x).probs, predictor.predict(x).probs
    assert torch.equal(first, second)
    assert not first.requires_grad


def test_unknown_names_are_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"one of softmax, .*belief_matching.*, got 'sofmax'"):
        build("sofmax")


def test_a_negative_weight_is_refused_when_the_method_is_built():
    with pytest.raises(ValueError, match="`kl_weight`"):
        build("belief_matching", kl_weight=-1.0)
