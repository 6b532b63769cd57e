"""A trained classifier is given a new last layer, and stays itself in everything else."""

import pytest
import torch
from torch import nn

from beliefmatch.adaptation.adapt import adapt
from beliefmatch.belief import Belief
from beliefmatch.data.digits import load_digits
from beliefmatch.metrics import error, nll
from beliefmatch.models.digits import DigitsNet


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
def better(network, digits):
    return adapt(network, pairs(digits.train), validation=pairs(digits.validation), epochs=15)


def test_only_the_last_layer_is_new(network, better):
    before, after = network.state_dict(), better.state_dict()
    assert list(before) == list(after)
    head = better.adaptation.head.name
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {f"{head}.weight", f"{head}.bias"}
    assert isinstance(better, DigitsNet)
    assert not hasattr(network, "belief")


def test_it_predicts_as_the_chosen_head_did_on_validation(better, digits):
    probs = better.predict(digits.validation.images).probs
    chosen = better.adaptation.chosen
    assert nll(probs, digits.validation.targets) == pytest.approx(chosen.nll, rel=1e-4)
    assert error(probs, digits.validation.targets) == pytest.approx(chosen.error)


def test_the_choice_is_the_lowest_of_its_kind(better):
    matched = [head for head in better.adaptation.fitted if head.candidate.kind == "belief_matching"]
    assert better.adaptation.chosen.nll == min(head.nll for head in matched)
    kinds = {head.candidate.kind for head in better.adaptation.fitted}
    assert kinds == {
        "untouched",
        "temperature",
        "softmax",
        "label_smoothing",
        "evidential",
        "belief_matching",
    }


def test_it_repairs_the_likelihood(network, better, digits):
    before = network(digits.test.images).softmax(1).double()
    assert better.adaptation.labels == "same"
    assert nll(better.predict(digits.test.images).probs, digits.test.targets) < nll(
        before, digits.test.targets
    )


def test_belief_and_summary(better, digits):
    belief = better.belief(digits.test.images[:4])
    assert isinstance(belief, Belief)
    torch.testing.assert_close(belief.log_alpha, better(digits.test.images[:4]))
    lines = better.summary().splitlines()
    starred = [line for line in lines if line.startswith("*")]
    assert len(starred) == 1
    assert better.adaptation.chosen.candidate.name in starred[0]
    assert len(lines) == 2 + len(better.adaptation.fitted)


def test_other_classes_get_a_new_head(network, digits):
    """Even or odd, from the features of a network that knows ten digits."""
    sets = [(part.images, part.targets % 2) for part in (digits.train, digits.validation)]
    better = adapt(network, sets[0], validation=sets[1], epochs=100, batch_size=32, controls=["softmax"])
    assert better.adaptation.labels == "new"
    assert better(digits.test.images).shape[1] == 2
    assert error(better.predict(digits.test.images).probs, digits.test.targets % 2) < 0.1


def test_shuffled_names_of_the_same_number_are_new_labels(network, digits):
    turned = torch.randperm(10, generator=torch.Generator().manual_seed(3))
    sets = [(part.images, turned[part.targets]) for part in (digits.train, digits.validation)]
    better = adapt(network, sets[0], validation=sets[1], epochs=15, controls=[])
    assert better.adaptation.labels == "new"


def test_validation_rows_that_were_trained_on_are_told(network, digits):
    with pytest.warns(UserWarning, match="data that the network was trained on"):
        adapt(network, pairs(digits.train), validation=pairs(digits.train), epochs=1, controls=[])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"labels": "old"}, "`labels` must be"),
        ({"classes": 5}, "`classes` must fit the targets, got 5"),
        ({"head": "layers.99"}, "`name` must be that of a module"),
    ],
)
def test_what_does_not_fit_is_told(network, digits, options, words):
    with pytest.raises(ValueError, match=words):
        adapt(network, pairs(digits.train), validation=pairs(digits.validation), epochs=1, **options)
