"""BatchNorm layers follow the new head, and nothing else does."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from beliefmatch import adapt
from beliefmatch.adaptation import batchnorm
from beliefmatch.adaptation.batchnorm import batchnorm_layers, train_batchnorm
from beliefmatch.adaptation.fitted import Candidate
from beliefmatch.adaptation.streams import as_stream
from beliefmatch.experiments.adapted_directory import head_file
from beliefmatch.loss import belief_matching_loss
from beliefmatch.metrics import error, expected_calibration_error, nll
from beliefmatch.train.sampler import EpochSampler

CLASSES = 3
ONE = Candidate("belief_matching", {"kl_weight": 0.01}, seed=4)


class Net(nn.Module):
    """Two BatchNorm layers, one of them of an auxiliary head, and dropout."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6)
        self.dropout, self.fc = nn.Dropout(0.5), nn.Linear(6, CLASSES)
        self.aux = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, CLASSES))

    def forward(self, x):
        features = self.dropout(self.norm(self.conv(x)).relu().mean((2, 3)))
        return (self.fc(features), self.aux(features)) if self.training else self.fc(features)


def images(many, seed):
    """Stripes of three kinds, in noise."""
    rng = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, CLASSES, (many,), generator=rng)
    noise = torch.randn(many, 1, 6, 6, generator=rng)
    patterns = torch.stack([torch.eye(6), torch.ones(6, 6), torch.eye(6).flip(0)])
    return 1.5 * noise + patterns[ids][:, None], ids


TRAIN, VALIDATION, TEST = images(200, 1), images(150, 2), images(60, 3)


def network(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Net().eval()


def part(pair):
    return as_stream(pair, device=torch.device("cpu"))


def test_the_layers_to_train_are_those_that_a_batch_runs_through():
    model = network().train()
    model.frozen = nn.BatchNorm1d(6, affine=False, track_running_stats=False)
    model.group = nn.GroupNorm(2, 6)
    assert list(batchnorm_layers(model)) == ["norm", "aux.0"]
    assert batchnorm_layers(model, TRAIN[0][:4]) == {"norm": model.norm}
    assert model.training and int(model.norm.num_batches_tracked) == 0


def trained(model, **options):
    return train_batchnorm(model, model.fc, ONE, part(TRAIN), part(VALIDATION), **{"epochs": 3, **options})


def by_hand(model, epochs):
    """The same in a few plain lines."""
    wanted = [*model.norm.parameters(), *model.fc.parameters()]
    optimizer = torch.optim.Adam(wanted, 3e-4)
    for epoch in range(epochs):
        model.eval()
        model.norm.train()
        for batch in EpochSampler(len(TRAIN[1]), 64, seed=4).batches(epoch):
            model.zero_grad()
            belief_matching_loss(model(TRAIN[0][batch]), TRAIN[1][batch], kl_weight=0.01).backward()
            optimizer.step()
    return model.eval()


def test_it_is_a_plain_loop_over_norms_and_head():
    model, other = network(), by_hand(network(), 3)
    result = trained(model)
    assert result.epoch == 3 and result.layers == ("norm",)
    for name, value in other.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-4, atol=1e-6)


def test_only_norms_in_use_and_the_head_change():
    model = network()
    before = copy.deepcopy(model.state_dict())
    trained(model)
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    kinds = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    assert changed == {f"norm.{kind}" for kind in kinds} | {"fc.weight", "fc.bias"}


def test_modes_flags_and_chance_are_put_back():
    model = network().train()
    model.conv.eval()
    model.norm.weight.requires_grad_(False)
    modes = [module.training for module in model.modules()]
    flags = [parameter.requires_grad for parameter in model.parameters()]
    state = torch.get_rng_state()
    trained(model, epochs=1)
    assert [module.training for module in model.modules()] == modes
    assert [parameter.requires_grad for parameter in model.parameters()] == flags
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), state)


def test_the_best_epoch_is_kept_and_scored_as_by_the_metrics(monkeypatch):
    monkeypatch.setattr(batchnorm, "LEARNING_RATE", 0.1)  # so that it becomes worse again
    model = network()
    monkeypatch.setattr(batchnorm, "PATIENCE", 4)
    result = trained(model, epochs=30)
    values = [point.nll for point in result.curve]
    assert result.epoch == 1 + values.index(min(values))
    assert len(values) == min(30, result.epoch + 4) < 30
    with torch.no_grad():
        probs = model(VALIDATION[0]).double().softmax(1)
    assert result.after.nll == pytest.approx(nll(probs, VALIDATION[1]), rel=1e-5)
    assert result.after.error == pytest.approx(error(probs, VALIDATION[1]))
    assert result.after.ece == pytest.approx(expected_calibration_error(probs, VALIDATION[1]), rel=1e-4)
    assert result.curve[result.epoch - 1].nll == result.after.nll


def test_a_model_that_only_becomes_worse_stays_as_it_was(monkeypatch):
    model = by_hand(network(), 60)
    monkeypatch.setattr(batchnorm, "LEARNING_RATE", 30.0)
    before = copy.deepcopy(model.state_dict())
    monkeypatch.setattr(batchnorm, "PATIENCE", 2)
    result = trained(model)
    assert result.epoch == 0 and result.after == result.before and len(result.curve) <= 2
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_counts_and_priors_of_classes():
    model = network()
    one_hot = TRAIN[0], nn.functional.one_hot(TRAIN[1], CLASSES).float()
    uneven = Candidate("belief_matching", {"kl_weight": 0.01, "prior": [1.0, 1.0, 1.0]}, seed=4)
    train_batchnorm(model, model.fc, uneven, part(one_hot), part(VALIDATION), epochs=2)
    torch.testing.assert_close(model.fc.weight, by_hand(network(), 2).fc.weight, rtol=1e-4, atol=1e-6)


OPTIONS = {
    "epochs": 8,
    "controls": [],
    "kl_weights": [0.01],
    "labels": "new",
    "risks": (0.5,),
    "batch_size": 32,
}


@pytest.fixture(scope="module")
def better():
    model = network()
    state = copy.deepcopy(model.state_dict())
    given = {"test": TEST, "ood": {"noise": DataLoader(torch.randn(20, 1, 6, 6), 8)}}
    made = adapt(model, TRAIN, validation=VALIDATION, batchnorm=True, **given, **OPTIONS)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    return made


def test_the_adapted_model_is_the_best_epochs(better):
    made = better.adaptation
    result = made.batchnorm
    assert result.is_taken and result.after.nll < result.before.nll
    assert result.before.nll == pytest.approx(made.chosen.nll, rel=1e-4)
    probs = better.predict(VALIDATION[0]).probs
    assert nll(probs, VALIDATION[1]) == pytest.approx(result.after.nll, rel=1e-5)
    for features, pair in ((result.validation, VALIDATION), (result.test, TEST)):
        rows = torch.tensor(np.asarray(features.rows))
        torch.testing.assert_close(
            result.head.predict(rows).probs, better.predict(pair[0]).probs, rtol=1e-4, atol=1e-6
        )
        assert torch.equal(features.targets, pair[1])
    assert len(result.ood["noise"]) == 20
    assert set(made.seconds) == {"features", "heads", "batchnorm"} and made.adapt_config.batchnorm
    (found,) = made.risk_thresholds
    if found.threshold is not None:
        assert (probs.max(1).values >= found.threshold).double().mean() == pytest.approx(found.coverage)
    assert f"NLL {result.before.nll:.4f} -> {result.after.nll:.4f}" in better.summary()
    assert not any(module.training for module in better.modules())


def test_the_file_of_the_head_makes_the_network_that_is_delivered(better):
    load = pytest.importorskip("safetensors.torch").load
    fresh = network()
    with pytest.raises(AssertionError):
        torch.testing.assert_close(fresh(TEST[0]), better(TEST[0]))
    state = load(head_file(better.adaptation, better))
    assert not fresh.load_state_dict(state, strict=False).unexpected_keys
    torch.testing.assert_close(fresh.eval()(TEST[0]), better(TEST[0]))


@pytest.mark.filterwarnings("ignore:.* labelled rows for")
def test_without_validation_data_the_images_set_aside_choose():
    with pytest.warns(UserWarning, match="held out"):
        better = adapt(network(), TRAIN, batchnorm=True, **OPTIONS)
    made = better.adaptation
    assert made.batchnorm.before.nll == pytest.approx(made.chosen.nll, rel=1e-4)
    assert torch.equal(made.batchnorm.validation.targets, made.sets.validation.targets)
    rows = torch.tensor(np.asarray(made.batchnorm.validation.rows))
    probs = made.batchnorm.head.predict(rows).probs
    assert nll(probs, made.batchnorm.validation.targets) == pytest.approx(made.batchnorm.after.nll, rel=1e-4)


def test_data_parallel_is_trained_too():
    better = adapt(nn.DataParallel(network()), TRAIN, validation=VALIDATION, batchnorm=True, **OPTIONS)
    assert better.adaptation.batchnorm.layers == ("norm",)


def plain():
    return nn.Sequential(nn.Flatten(), nn.LayerNorm(36), nn.Linear(36, CLASSES))


def on_one_image():
    image = part(TRAIN).subset(np.arange(1))
    return train_batchnorm(network(), network().fc, ONE, image, part(VALIDATION), epochs=1)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: adapt(plain(), TRAIN, validation=VALIDATION, batchnorm=True), "`batchnorm`.*LayerNorm"),
        (lambda: adapt(network(), iter([TRAIN]), validation=VALIDATION, batchnorm=True), "`train`"),
        (lambda: adapt(network(), TRAIN, validation=[VALIDATION], batchnorm=True), "`validation`"),
        (lambda: adapt(network().double(), (TRAIN[0].double(), TRAIN[1]), batchnorm=True), "float64"),
        (on_one_image, "`batchnorm`"),
    ],
)
def test_models_and_data_that_cannot_be_trained_are_refused(call, named):
    with pytest.raises(ValueError, match=named):
        call()
