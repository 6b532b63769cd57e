"""Belief matching in skorch."""

import pickle
from functools import partial

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from beliefmatch import Belief, BeliefMatchingLoss, belief_matching_loss
from outside_packages import imported

skorch = imported("skorch")
from beliefmatch.integrations.skorch import BeliefNetClassifier  # noqa: E402

INPUTS, LABELS = (column[np.random.default_rng(0).permutation(150)] for column in load_iris(return_X_y=True))
INPUTS = StandardScaler().fit_transform(INPUTS).astype(np.float32)
LAMBDA = 0.05


def votes(seed=0):
    """Five votes for each flower, one in five of them for any class."""
    chance = np.random.default_rng(seed)
    probs = 0.8 * np.eye(3)[LABELS] + 0.2 / 3
    return np.stack([chance.multinomial(5, row) for row in probs])


class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 3))

    def forward(self, x):
        return self.layers(x)


OPTIONS = {"max_epochs": 15, "lr": 0.3, "batch_size": 30, "verbose": 0}


def net(kind=BeliefNetClassifier, module=Net, **options):
    given = {"criterion__kl_weight": LAMBDA} if "criterion" not in options else {}
    return kind(module, **{**given, **OPTIONS, **options})


def fit(classifier, labels=LABELS):
    torch.manual_seed(0)
    return classifier.fit(INPUTS, labels)


def logits_of(fitted):
    with torch.no_grad():
        return fitted.module_.eval()(torch.from_numpy(INPUTS))


def test_without_the_class_skorch_returns_logits_as_probabilities():
    plain = fit(net(skorch.NeuralNetClassifier, criterion=BeliefMatchingLoss, criterion__kl_weight=LAMBDA))
    np.testing.assert_array_equal(plain.predict_proba(INPUTS), logits_of(plain).numpy())


def test_a_softmax_as_nonlinearity_makes_them_probabilities_of_the_plain_net():
    softmax = partial(torch.softmax, dim=-1)
    plain = net(
        skorch.NeuralNetClassifier,
        criterion=BeliefMatchingLoss,
        criterion__kl_weight=LAMBDA,
        predict_nonlinearity=softmax,
    )
    np.testing.assert_array_equal(fit(plain).predict_proba(INPUTS), fit(net()).predict_proba(INPUTS))


def test_probabilities_are_the_mean_of_the_belief():
    fitted = fit(net())
    logits = logits_of(fitted)
    probs = fitted.predict_proba(INPUTS)
    np.testing.assert_allclose(probs, logits.softmax(1).numpy(), rtol=1e-6)
    np.testing.assert_allclose(fitted.belief(INPUTS).probs.numpy(), probs, rtol=1e-5)
    assert isinstance(fitted.belief(INPUTS), Belief)
    assert fitted.score(INPUTS, LABELS) == np.mean(probs.argmax(1) == LABELS) > 0.9
    assert log_loss(LABELS, probs) < 0.5


def test_the_losses_that_are_printed_are_those_of_belief_matching():
    fitted = fit(net(max_epochs=1, lr=0.0, train_split=None, batch_size=len(LABELS)))
    expected = belief_matching_loss(logits_of(fitted), torch.from_numpy(LABELS), kl_weight=LAMBDA)
    assert fitted.history[-1, "train_loss"] == pytest.approx(expected.item())


def test_a_grid_search_chooses_kl_weight_by_log_loss():
    grid = {"criterion__kl_weight": [0.001, 0.05, 0.9]}
    search = GridSearchCV(net(), grid, scoring="neg_log_loss", cv=3).fit(INPUTS, LABELS)
    scores = dict(zip(grid["criterion__kl_weight"], search.cv_results_["mean_test_score"], strict=True))
    assert search.best_params_["criterion__kl_weight"] == max(scores, key=scores.get) != 0.9
    confidence = (1 + 1 / 0.9) / (3 + 1 / 0.9)  # of the optimum for one label
    assert scores[0.9] < np.log(confidence) + 0.05
    assert search.best_estimator_.criterion_.kl_weight == search.best_params_["criterion__kl_weight"]


def test_it_works_in_a_pipeline_and_in_cross_validation():
    whole = make_pipeline(StandardScaler(), net())
    probs = cross_val_predict(whole, INPUTS, LABELS, cv=3, method="predict_proba")
    np.testing.assert_allclose(probs.sum(1), 1, rtol=1e-5)
    assert log_loss(LABELS, probs) < 0.6


@pytest.mark.parametrize("kind", [np.int64, np.float32, np.float64])
def test_votes_train_like_votes_in_a_loop_by_hand(kind):
    counts = votes()
    fitted = fit(net(max_epochs=3, train_split=None, batch_size=len(counts)), counts.astype(kind))
    torch.manual_seed(0)
    network = Net()
    optimizer = torch.optim.SGD(network.parameters(), lr=OPTIONS["lr"])
    for _ in range(3):
        optimizer.zero_grad()
        loss = belief_matching_loss(
            network(torch.from_numpy(INPUTS)), torch.from_numpy(counts).float(), kl_weight=LAMBDA
        )
        loss.backward()
        optimizer.step()
    torch.testing.assert_close(logits_of(fitted), network(torch.from_numpy(INPUTS)).detach())


def test_votes_are_split_and_scored_by_the_class_with_most_of_them():
    counts = votes()
    fitted = fit(net(), counts)
    assert fitted.classes_.tolist() == [0, 1, 2]
    assert fitted.score(INPUTS, counts) == np.mean(fitted.predict(INPUTS) == counts.argmax(1))
    train, valid = fitted.get_split_datasets(INPUTS, counts)
    share = np.bincount(counts.argmax(1)[valid.indices]) / np.bincount(counts.argmax(1))
    np.testing.assert_allclose(share, 0.2, atol=0.03)
    assert len(train) + len(valid) == len(counts)
    assert fitted.history[-1, "valid_acc"] > 0.8


def test_votes_go_through_a_grid_search():
    search = GridSearchCV(net(max_epochs=5), {"criterion__kl_weight": [0.01, 0.1]}, cv=3).fit(INPUTS, votes())
    assert search.best_score_ > 0.6
    np.testing.assert_allclose(search.predict_proba(INPUTS).sum(1), 1, rtol=1e-5)


def test_other_criteria_are_treated_as_by_skorch():
    own = fit(net(criterion=nn.CrossEntropyLoss))
    plain = fit(net(skorch.NeuralNetClassifier, criterion=nn.CrossEntropyLoss))
    np.testing.assert_array_equal(own.predict_proba(INPUTS), plain.predict_proba(INPUTS))
    likelihood = fit(net(module=nn.Sequential(Net(), nn.Softmax(1)), criterion=nn.NLLLoss))
    np.testing.assert_allclose(likelihood.predict_proba(INPUTS), logits_of(likelihood).numpy(), rtol=1e-6)


def test_an_explicit_nonlinearity_is_respected():
    fitted = fit(net(predict_nonlinearity=None))
    np.testing.assert_array_equal(fitted.predict_proba(INPUTS), logits_of(fitted).numpy())


def test_clones_copies_and_saved_parameters_predict_the_same(tmp_path):
    fitted = fit(net())
    expected = fitted.predict_proba(INPUTS)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).predict_proba(INPUTS), expected)
    fitted.save_params(f_params=tmp_path / "net.safetensors", use_safetensors=True)
    again = clone(fitted).initialize()
    again.load_params(f_params=tmp_path / "net.safetensors", use_safetensors=True)
    np.testing.assert_array_equal(again.predict_proba(INPUTS), expected)


def test_the_first_output_of_a_module_with_several_holds_the_logits():
    class Two(Net):
        def forward(self, x):
            return super().forward(x), x

    class FirstLoss(BeliefNetClassifier):
        def get_loss(self, y_pred, *args, **options):
            return super().get_loss(y_pred[0], *args, **options)

    fitted = fit(net(FirstLoss, module=Two))
    np.testing.assert_allclose(fitted.belief(INPUTS).probs.numpy(), fitted.predict_proba(INPUTS), rtol=1e-5)


@pytest.mark.parametrize("kind", [str, object])
@pytest.mark.parametrize("train_split", [None, skorch.dataset.ValidSplit(5, stratified=True)])
def test_labels_of_text_are_refused_with_a_remedy(kind, train_split):
    texts = np.array(["setosa", "versicolor", "virginica"])[LABELS].astype(kind)
    with pytest.raises(TypeError, match=r"^BeliefNetClassifier: `y` .*LabelEncoder"):
        fit(net(train_split=train_split), texts)


def test_before_fitting_probabilities_are_refused():
    with pytest.raises(skorch.exceptions.NotInitializedError):
        net().predict_proba(INPUTS)
    with pytest.raises(skorch.exceptions.NotInitializedError):
        net().belief(INPUTS)
