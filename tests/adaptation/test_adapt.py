"""A trained classifier is given a new last layer, and stays itself in everything else."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from beliefmatch import adapt
from beliefmatch.adaptation.cache import FeatureCache
from beliefmatch.adaptation.refit import shown
from beliefmatch.belief import Belief
from beliefmatch.data.digits import load_digits
from beliefmatch.metrics import error, nll
from beliefmatch.models.digits import DigitsNet


@pytest.fixture(scope="module")
def digits():
    return load_digits()


@pytest.fixture(scope="module")
def network(digits):
    """BatchNormTraining with cross-entropy until it fits."""
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


def test_the_belief_is_that_of_its_logits(better, digits):
    belief = better.belief(digits.test.images[:4])
    assert isinstance(belief, Belief)
    torch.testing.assert_close(belief.log_alpha, better(digits.test.images[:4]))


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
    [({"labels": "old"}, "`labels`"), ({"classes": 5}, "`classes`"), ({"head": "layers.99"}, "`name`")],
)
def test_what_does_not_fit_is_told(network, digits, options, words):
    with pytest.raises(ValueError, match=words):
        adapt(network, pairs(digits.train), validation=pairs(digits.validation), epochs=1, **options)


def test_without_validation_data_a_fifth_is_set_aside_and_told(network, digits):
    with pytest.warns(UserWarning, match="20% of `train`, on which the network has probably been trained"):
        made = adapt(network, pairs(digits.train), epochs=2, controls=[]).adaptation
    many = len(digits.train)
    assert len(made.sets.validation) == round(0.2 * many) == many - len(made.sets.train)
    shares = [one.targets.bincount() / len(one) for one in (made.sets.validation, made.sets.train)]
    torch.testing.assert_close(*shares, rtol=0.05, atol=0.005)
    odd = (digits.train.images, digits.train.targets % 2)
    with pytest.warns(UserWarning, match="are held out to choose λ"):
        made = adapt(network, odd, epochs=1, controls=[]).adaptation
    assert made.labels == "new"


def test_test_and_ood_sets_are_kept_and_choose_nothing(network, digits, better):
    noise = torch.rand(30, *digits.test.images.shape[1:], generator=torch.Generator().manual_seed(2))
    given = {"test": pairs(digits.test), "ood": {"noise": DataLoader(noise, 16)}}
    made = adapt(network, pairs(digits.train), validation=pairs(digits.validation), epochs=15, **given)
    sets = made.adaptation.sets
    assert torch.equal(sets.test.targets, digits.test.targets)
    assert sets.ood["noise"].targets.tolist() == [-1] * 30
    assert torch.equal(made.adaptation.chosen.weight, better.adaptation.chosen.weight)
    head = made.adaptation.chosen
    rows = torch.from_numpy(np.asarray(sets.ood["noise"].rows))
    torch.testing.assert_close(head.predict(rows).probs, made.predict(noise).probs, rtol=1e-4, atol=1e-7)
    assert set(made.adaptation.seconds) == {"features", "heads"}


def test_batches_that_come_only_once_all_count(network, digits):
    def once(examples):
        yield from zip(examples.images.split(100), examples.targets.split(100), strict=True)

    options = {"epochs": 3, "controls": []}
    one = adapt(network, once(digits.train), validation=once(digits.validation), **options)
    two = adapt(network, pairs(digits.train), validation=pairs(digits.validation), **options)
    assert len(one.adaptation.sets.train) == len(digits.train)
    torch.testing.assert_close(
        one.adaptation.chosen.weight, two.adaptation.chosen.weight, rtol=1e-3, atol=1e-4
    )


def test_modes_and_device_are_put_back_even_after_an_error(digits, network):
    copied = copy.deepcopy(network).train()
    inner = next(module for module in copied.modules() if isinstance(module, nn.Conv2d)).eval()
    modes = [module.training for module in copied.modules()]
    adapt(copied, pairs(digits.train), validation=pairs(digits.validation), epochs=1, controls=[])
    assert [module.training for module in copied.modules()] == modes and not inner.training
    with pytest.raises(ValueError, match="must"):
        adapt(copied, pairs(digits.train), validation=pairs(digits.validation), classes=3)
    assert [module.training for module in copied.modules()] == modes


def test_five_trials_of_a_repair(network, digits):
    made = adapt(
        network,
        pairs(digits.train),
        validation=pairs(digits.validation),
        epochs=2,
        seeds=range(5),
        kl_weights=[0.01, 0.001],
        controls=["softmax"],
    ).adaptation
    rows = shown(made)
    assert made.labels == "same"
    assert [len(rows[label]) for label in ("softmax", "belief matching")] == [5, 5]
    assert len({head.nll for head in rows["belief matching"]}) == 5


def test_progress_is_told_of_features_and_heads(network, digits):
    told = []
    adapt(
        network,
        pairs(digits.train),
        validation=pairs(digits.validation),
        epochs=2,
        controls=[],
        on_progress=lambda *news: told.append(news),
    )
    texts = [text for _, text in told]
    assert all(0 <= share <= 1 for share, _ in told)
    many = len(digits.train)
    assert f"features of train: {many} of {many} rows" in texts
    assert any("epoch 2" in text for text in texts)


def test_data_without_batches_and_models_that_are_none_are_told(network, digits):
    with pytest.raises(ValueError, match="`train`"):
        adapt(network, iter([]), validation=pairs(digits.validation))
    with pytest.raises(TypeError, match="`model`"):
        adapt("resnet50", pairs(digits.train))
    with pytest.raises(ValueError, match="seeds"):
        adapt(network, None, seeds=())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"validation": 7}, "`validation`"),
        ({"test": [(torch.ones(3, 1, 8, 8), torch.ones(3))]}, "`test`"),
        ({"ood": {"noise": 7}}, r"`ood\['noise'\]`"),
        ({"ood": {"noise": []}}, r"`ood\['noise'\]`"),
        ({"ood": [torch.ones(3, 1, 8, 8)]}, "`ood`"),
        ({"ood": {"a": np.array(["x"])}}, r"`ood\['a'\]`"),
        ({"cache": 7}, "`cache`"),
        ({"precision": "8"}, "`precision`"),
    ],
)
def test_errors_name_what_was_given(network, digits, options, words):
    few = pairs(digits.validation)
    with pytest.raises((ValueError, TypeError), match=words):
        adapt(network, few, **{"validation": few, "epochs": 1, **options})
    with pytest.raises(TypeError, match="`train`"):
        adapt(network, 7)


@pytest.mark.parametrize("kind", ["tensor", "array", "by name"])
def test_images_alone_are_ood_and_a_path_is_a_cache(network, digits, kind, tmp_path):
    noise = torch.rand(30, *digits.test.images.shape[1:], generator=torch.Generator().manual_seed(2))
    ood = {"tensor": noise, "array": noise.numpy(), "by name": {"ood": noise}}[kind]
    given = {"validation": pairs(digits.validation), "epochs": 1, "controls": [], "ood": ood}
    made = adapt(network, pairs(digits.train), cache=f"{tmp_path}", **given).adaptation
    assert made.sets.ood["ood"].targets.tolist() == [-1] * 30
    assert len(FeatureCache(tmp_path).sets()) == 3
