"""Default type, default device and inference mode of the caller change no result."""

import warnings
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import nn

from beliefmatch import Belief, adapt, belief_matching_loss, choose_kl_weight, evaluate
from beliefmatch.kl_weight import kl_weight_path
from outside_packages import imported

RNG = np.random.default_rng(0)
TARGETS = RNG.integers(0, 3, 120)
FEATURES = RNG.normal(size=(120, 4)) + 2 * np.eye(4)[TARGETS]
LOGITS = 2 * FEATURES[:, :3].copy()


@contextmanager
def default_type():
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextmanager
def default_device():
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)


def tensors(values=FEATURES):
    """Made where the function is called: under inference mode they are of the kind that autograd refuses."""
    return torch.from_numpy(values).float(), torch.from_numpy(TARGETS).clone()


def loss():
    return belief_matching_loss(*tensors(LOGITS)).item()


def measures():
    belief = Belief(tensors(LOGITS)[0])
    found = [belief.entropy(), belief.mutual_information(), belief.variance, *belief.credible_interval()]
    return [
        one.tolist() for one in (*found, belief.prob_of_being_best(), belief.update(3 * belief.probs).probs)
    ]


def picture():
    return Belief(tensors(LOGITS)[0])._repr_html_()


def abstentions():
    logits, targets = tensors(LOGITS)
    return Belief(logits).abstain(risk=0.3, calibration=(logits, targets)).tolist()


def evaluation():
    found = evaluate(logits=LOGITS, targets=TARGETS, ood={"near": 0.1 * LOGITS}, resamples=1000)
    return {name: value for name, value in found.scores["model"].items() if value == value}  # no NaN


def kl_weight():
    return choose_kl_weight(*tensors()), kl_weight_path(FEATURES, TARGETS)


def classifier(hidden, **options):
    imported("sklearn")
    from beliefmatch.sklearn import BeliefClassifier

    return BeliefClassifier(hidden, random_state=0, max_iter=3, cv=2, **options)


def linear_classifier():
    return classifier((), prior=[1.0, 2.0, 0.5]).fit(*tensors()).predict_proba(FEATURES).tolist()


def perceptron():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "BeliefClassifier: the NLL of held-out rows was still falling")
        model = classifier((4,)).fit(FEATURES, TARGETS)
    return model.partial_fit(FEATURES, TARGETS).predict_proba(FEATURES).tolist()


def classifier_by_parts():
    model = classifier((4,)).partial_fit(FEATURES, TARGETS, classes=[0, 1, 2])
    return model.partial_fit(FEATURES, TARGETS).predict_proba(FEATURES).tolist()


NETWORK = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))


def adapted_network():
    imported("rich")
    inputs, targets = tensors()
    data, other = (inputs[:80], targets[:80]), (inputs[80:], targets[80:])
    better = adapt(NETWORK, data, validation=other, labels="new", heads=2)
    return better.belief(inputs).log_alpha.tolist(), better.adaptation.chosen.candidate, better.summary()


@pytest.mark.parametrize("state", [default_type, default_device, torch.inference_mode, torch.no_grad])
@pytest.mark.parametrize(
    "compute",
    [
        loss,
        measures,
        picture,
        abstentions,
        evaluation,
        kl_weight,
        linear_classifier,
        perceptron,
        classifier_by_parts,
        adapted_network,
    ],
)
@pytest.mark.filterwarnings("ignore:adapt")
def test_what_the_caller_has_set_in_torch_changes_no_result(compute, state):
    expected = compute()
    with state():
        assert compute() == expected
    assert not torch.is_inference_mode_enabled() and torch.is_grad_enabled()
