"""A copy of a classifier with other weights in its head: what follows, what stays, and its methods."""

import copy
import pickle

import numpy as np
import pytest
import torch
from torch import nn

from beliefmatch import adapt
from beliefmatch._errors import ArgumentError
from beliefmatch.adaptation.heads import find_head
from beliefmatch.adaptation.surgery import BeliefMixin, add_belief, with_head
from beliefmatch.belief import Belief
from beliefmatch.experiments.adapted_directory import head_file
from beliefmatch.models import EncoderClassifier, PooledEncoder
from encoders import TokenEncoder
from head_networks import IMAGES, NEW, POOL, WIDTH, K, N, Net, OnMap, logits, with_new_head


def better_net():
    return with_new_head(Net(), weight=torch.randn(NEW, WIDTH), bias=torch.randn(NEW))


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
    head = find_head(half, IMAGES.half())
    better = add_belief(with_head(half, head, torch.ones(NEW, WIDTH).double(), torch.zeros(NEW)))
    assert better.fc.weight.dtype == torch.float16
    assert better.belief(IMAGES.half()).log_alpha.dtype == torch.float32


def test_a_bias_can_be_added():
    model = OnMap(POOL, bias=False)
    better = with_new_head(model, bias=torch.arange(3.0))
    assert set(better.state_dict()) - set(model.state_dict()) == {"head.bias"}
    assert logits(better, IMAGES)[1].tolist() == [0, 1, 2]


def test_the_copy_is_of_the_users_class_and_has_a_belief():
    better = better_net().train()
    assert isinstance(better, Net) and isinstance(better, BeliefMixin)
    assert (type(better).__name__, type(better).__module__) == ("NetWithBelief", Net.__module__)
    assert type(better) is type(better_net()) is type(with_new_head(better))
    belief = better.belief(IMAGES, scale=0.1)
    assert isinstance(belief, Belief) and better.training
    expected = logits(better, IMAGES)
    torch.testing.assert_close(belief.probs, expected.softmax(1))
    torch.testing.assert_close(belief.precision, 0.1 * expected.exp().sum(1))
    prediction = better.predict(IMAGES)
    torch.testing.assert_close(prediction.probs, expected.double().softmax(1))
    assert prediction.probs.dtype == torch.float64
    assert better.abstain(IMAGES, 0.5).tolist() == (belief.confidence < 0.5).tolist()


@pytest.mark.parametrize("has_belief", [True, False])
def test_a_risk_bounds_the_error_among_the_answers_of_an_adapted_network(has_belief):
    """Labels are drawn from the probabilities of the network itself, so that it is calibrated."""
    torch.manual_seed(0)
    network = add_belief(nn.Sequential(nn.Linear(5, 3)), has_belief=has_belief)
    with torch.no_grad():
        network[0].weight.mul_(8)
    held_out, new = torch.randn(4000, 5), torch.randn(20_000, 5)
    targets, truth = (
        torch.multinomial(network.predict(x).probs, 1, generator=torch.Generator().manual_seed(1))[:, 0]
        for x in (held_out, new)
    )
    answered = ~network.abstain(new, risk=0.05, calibration=(held_out, targets))
    wrong = network.predict(new).probs.argmax(1) != truth
    assert wrong.double().mean() > 0.1
    assert wrong[answered].double().mean() <= 0.05 < wrong[~answered].double().mean()
    assert answered.double().mean() > 0.2
    same = [
        network.abstain(new, risk=0.05, calibration=(held_out.numpy(), targets.numpy())),
        network.abstain(new, risk=0.05, calibration=(Belief(logits(network, held_out)), targets)),
        Belief(logits(network, new)).abstain(risk=0.05, calibration=(logits(network, held_out), targets)),
    ]
    assert all(torch.equal(~answered, one) for one in same)


@pytest.mark.parametrize(
    ("given", "argument"),
    [
        ({}, "threshold"),
        ({"threshold": 0.9, "delta": 0.1}, "delta"),
        ({"risk": 0.1}, "threshold"),
        ({"risk": 0.1, "calibration": IMAGES}, "calibration"),
        ({"risk": 0.1, "calibration": (IMAGES, torch.zeros(1).long())}, "calibration"),
        ({"risk": 0.1, "calibration": (IMAGES, torch.full((len(IMAGES),), NEW))}, "calibration"),
        ({"risk": 0.1, "calibration": (IMAGES, torch.full((len(IMAGES),), -1))}, "calibration"),
        ({"risk": 0.1, "calibration": (IMAGES, np.zeros(len(IMAGES)))}, "calibration"),
        ({"risk": 0.1, "calibration": (IMAGES[:, :2], torch.zeros(len(IMAGES)).long())}, "calibration"),
    ],
)
def test_abstention_that_an_adapted_network_cannot_decide_names_the_argument(given, argument):
    with pytest.raises(ArgumentError) as caught:
        better_net().abstain(IMAGES, **given)
    assert (caught.value.function, caught.value.argument) == ("abstain", argument)


@pytest.mark.parametrize(
    ("x", "kind", "words"),
    [
        (IMAGES[:, :1].repeat(1, 5, 1, 1), ValueError, ("takes 3 channels", "5")),
        (IMAGES.double(), ValueError, ("of float32", "float64")),
        (None, TypeError, ("NoneType",)),
    ],
)
def test_inputs_that_the_network_cannot_take_are_one_line_with_expected_and_received(x, kind, words):
    model = with_new_head(Net())
    for name, call in {"predict": model.predict, "belief": model.belief}.items():
        with pytest.raises(kind) as caught:
            call(x)
        message = f"{caught.value}"
        assert message.startswith(f"{name}: `x` must be ") and "\n" not in message
        assert all(word in message for word in words), message


def test_a_softmax_head_has_probabilities_and_no_belief():
    better = copy.deepcopy(add_belief(better_net(), has_belief=False))
    with pytest.raises(ValueError, match="`choose`"):
        better.belief(IMAGES)
    expected, found = logits(better, IMAGES).double(), better.predict(IMAGES)
    torch.testing.assert_close(found.probs, expected.softmax(1))
    torch.testing.assert_close(found.logits, expected)
    assert found.belief is None
    assert better.abstain(IMAGES, 0.5).tolist() == (found.probs.max(1).values < 0.5).tolist()
    with pytest.raises(ValueError, match="`measure`"):
        better.abstain(IMAGES, 0.5, measure="mutual_information")


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
    assert not logits(better, ids).any()


def test_wrappers_that_distribute_or_compile_are_removed():
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        better = with_new_head(nn.parallel.DistributedDataParallel(Net()), bias=torch.arange(3.0))
    finally:
        torch.distributed.destroy_process_group()
    assert isinstance(better, Net) and better.belief(IMAGES).predictions.tolist() == [2] * N
    assert isinstance(with_new_head(torch.compile(Net())), Net)  # pyright: ignore


def test_an_encoder_without_head_is_adapted_to_a_classifier_of_tokenised_sentences():
    rng = torch.Generator().manual_seed(1)

    def sentences(many):
        """One word, which gives the class, is repeated in front; half of the sentences are padded."""
        ids = torch.randint(1, 9, (many, 20), generator=rng)
        ids[:, :8] = ids[:, :1]
        classes, mask = (ids[:, 0] > 4).long() + (ids[:, 0] > 6), torch.ones_like(ids)
        mask[::2, 16:] = 0
        return {"input_ids": ids, "attention_mask": mask}, classes

    encoder = PooledEncoder(TokenEncoder(16), normalize=True)
    better = adapt(encoder, sentences(300), validation=sentences(200))
    assert isinstance(better, EncoderClassifier)
    inputs, classes = sentences(100)
    assert (better.predict(inputs).probs.argmax(1) == classes).double().mean() > 0.9
    assert better.adaptation.labels == "new" and better.adaptation.head.out_features == 0
    load = pytest.importorskip("safetensors.torch").load
    assert load(head_file(better.adaptation, better)).keys() == {"head.weight", "head.bias"}


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"weight": torch.zeros(NEW, WIDTH + 1)}, ValueError, "`weight`"),
        ({"weight": torch.zeros(0, WIDTH)}, ValueError, "`weight`"),
        ({"weight": torch.full((NEW, WIDTH), torch.nan)}, ValueError, "`weight`"),
        ({"weight": torch.zeros(NEW, WIDTH).long()}, TypeError, "`weight`"),
        ({"weight": [[1.0]]}, TypeError, "`weight`"),
        ({"bias": torch.zeros(K)}, ValueError, "`bias`"),
        ({"bias": 0.0}, TypeError, "`bias`"),
    ],
)
def test_weights_that_do_not_fit_are_refused(options, error, named):
    with pytest.raises(error, match=f"^with_head: {named}"):
        with_new_head(Net(), **options)
