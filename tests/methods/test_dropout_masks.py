"""Masks of MC dropout are those that training would draw: one for every call, each of its module's kind."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional

from beliefmatch.methods.mc_dropout import DropoutPredictor
from beliefmatch.models import build_model, build_seeded

RATE = 0.3
WIDTH = 4000


class Recorder(nn.Module):
    """Calls one dropout module several times on ones, and keeps what comes out."""

    def __init__(self, dropout, calls=2, shape=(WIDTH,)):
        super().__init__()
        self.dropout, self.calls, self.shape, self.seen = dropout, calls, shape, []

    def forward(self, x):
        ones = x.new_ones(len(x), *self.shape)
        self.seen.append(torch.stack([self.dropout(ones) for _ in range(self.calls)]))
        return x


def masks_of(network, examples=1, **options):
    """What the calls of the pass with all masks received, (calls, masks · examples, ...)."""
    DropoutPredictor(network, **{"samples": 6, **options}).predict(torch.zeros(examples, 2))
    return network.seen[-1]


def test_masks_of_calls_masks_and_modules_are_independent():
    network = Recorder(nn.Dropout(RATE), calls=3)
    network.other = nn.Dropout(RATE)
    kept = masks_of(network).flatten(0, 1) > 0  # (calls · masks, WIDTH)
    expected = (1 - RATE) ** 2 + RATE**2
    standard_error = (expected * (1 - expected) / WIDTH) ** 0.5
    for row, one in enumerate(kept):
        assert one.double().mean().item() == pytest.approx(1 - RATE, abs=5 * (RATE * 0.7 / WIDTH) ** 0.5)
        for other in kept[:row]:
            agreement = (one == other).double().mean().item()
            assert agreement == pytest.approx(expected, abs=5 * standard_error)


def test_every_example_of_a_pass_has_the_same_masks_in_any_batch():
    network = Recorder(nn.Dropout(RATE), shape=(50,))
    alone = masks_of(network)
    several = masks_of(network, examples=3)
    for example in range(3):
        assert torch.equal(several.unflatten(1, (6, 3))[:, :, example], alone)
    network.seen.clear()
    DropoutPredictor(network, samples=6, at_once=1).predict(torch.zeros(3, 2))
    one_at_a_time = torch.cat(network.seen, 1)
    assert len(network.seen) >= 6 and torch.equal(one_at_a_time[:, -18:], several)


def plain_mc_dropout(network, x, samples):
    """Probabilities of every pass with torch's own dropout, as in training, with BatchNorm in eval mode."""
    network.eval()
    for module in network.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.train()
    with torch.no_grad():
        passes = torch.stack([network(x).double().softmax(-1) for _ in range(samples)])
    network.eval()
    return passes


class TwiceUsed(nn.Module):
    """A multilayer perceptron with one dropout module behind both hidden layers."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x):
        x = self.dropout(self.first(x).relu())
        return 4 * self.head(self.dropout(self.second(3 * x).relu()))


class Convolutions(nn.Module):
    """Dropout of channels and the alpha kinds, in two dimensions and in one."""

    def __init__(self):
        super().__init__()
        self.conv, self.channels, self.lines = nn.Conv2d(1, 6, 3), nn.Dropout2d(0.4), nn.Dropout1d(0.3)
        self.alpha, self.maps, self.head = nn.AlphaDropout(0.3), nn.FeatureAlphaDropout(0.2), nn.Linear(6, 3)

    def forward(self, x):
        x = self.channels(functional.selu(self.conv(x)))
        x = self.lines(self.maps(x).flatten(2)).mean(2)
        return 3 * self.head(self.alpha(x))


def resnet():
    return build_model(
        "preact_resnet18", num_classes=3, channels=1, width=4, dropout=0.2, dropout_in_blocks=True
    )


@pytest.mark.parametrize(
    ("make", "shape", "samples"),
    [(TwiceUsed, (4,), 2000), (Convolutions, (1, 6, 6), 2000), (resnet, (1, 8, 8), 200)],
)
def test_probabilities_are_those_of_passes_with_torchs_own_dropout(make, shape, samples):
    network = build_seeded(make, 3)
    x = torch.rand(5, *shape, generator=torch.Generator().manual_seed(4))
    with torch.random.fork_rng():
        torch.manual_seed(5)
        passes = plain_mc_dropout(network, x, samples)
    expected, deviation = passes.mean(0), passes.std(0) * (2 / samples) ** 0.5
    received = DropoutPredictor(network, samples=samples).predict(x)
    assert ((received.probs - expected).abs() < 5 * deviation).all()
    entropies = torch.special.entr(passes).sum(2)
    error = 5 * entropies.std(0) * (2 / samples) ** 0.5
    assert ((received.expected_entropy() - entropies.mean(0)).abs() < error).all()


@pytest.mark.parametrize(
    ("dropout", "shape"),
    [
        (nn.Dropout(RATE), (5, 4, 3)),
        (nn.Dropout1d(RATE), (300, 4)),
        (nn.Dropout2d(RATE), (300, 4, 3)),
        (nn.Dropout3d(RATE), (300, 2, 3, 2)),
        (nn.AlphaDropout(RATE), (5, 4, 3)),
        (nn.FeatureAlphaDropout(RATE), (300, 4, 3)),
    ],
)
def test_each_kind_drops_what_torch_drops_and_puts_the_same_values(dropout, shape):
    found = masks_of(Recorder(dropout, shape=shape))[0]  # (masks, *shape)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        torchs = dropout.train()(torch.ones(6, *shape))
    assert found.unique().numel() == 2  # dropped or kept
    torch.testing.assert_close(found.unique(), torchs.unique())
    whole = [one.flatten(2).std(2).eq(0).all() for one in (found, torchs)]
    assert whole[0] == whole[1] == ("Feature" in type(dropout).__name__ or type(dropout).__name__[-1] == "d")
    if not whole[0]:
        assert (found.flatten(2).std(2) > 0).any()
    share = (found == found.max()).double().mean().item()
    assert share == pytest.approx(1 - RATE, abs=0.1 if not whole[0] else 0.06)


@pytest.mark.parametrize("dropout", [nn.Dropout(1.0), nn.AlphaDropout(1.0), nn.Dropout2d(1.0)])
def test_a_rate_of_one_drops_all(dropout):
    assert not masks_of(Recorder(dropout, shape=(3, 4, 2)), samples=2).any()


class Tokens(nn.Module):
    """Tokens as rows of the batch, as networks with windows of attention have them."""

    def __init__(self):
        super().__init__()
        self.dropout, self.head = nn.Dropout(0.5), nn.Linear(6, 3)

    def forward(self, x):
        self.dropped = self.dropout(x.flatten(0, 1))
        return self.head(self.dropped).unflatten(0, x.shape[:2]).mean(1)


class TokensOfTail(Tokens):
    """The same, with dropout in a last module that is given the tokens."""

    def __init__(self):
        super().__init__()
        self.tail = Tail(self.dropout, self.head)

    def forward(self, x):
        found = self.tail(x.flatten(0, 1))
        self.dropped = self.tail.dropped
        return found


class Tail(nn.Module):
    def __init__(self, dropout, head):
        super().__init__()
        self.dropout, self.head = dropout, head

    def forward(self, tokens):
        self.dropped = self.dropout(tokens)
        return self.head(self.dropped).unflatten(0, (-1, 4)).mean(1)


@pytest.mark.parametrize("make", [Tokens, TokensOfTail])
def test_tokens_in_the_batch_have_masks_of_their_own(make):
    network, x = build_seeded(make, 0), torch.ones(3, 4, 6)
    predictor = DropoutPredictor(network, samples=5)
    together = predictor.predict(x).probs
    masks = network.dropped.unflatten(0, (5, 3, 4))
    assert torch.equal(masks[:, 0], masks[:, 2])
    assert not torch.equal(masks[:, 0, 0], masks[:, 0, 1])
    torch.testing.assert_close(torch.cat([predictor.predict(one).probs for one in x.split(1)]), together)


class Functional(nn.Module):
    def forward(self, x):
        return functional.dropout(x, 0.5, self.training)


class Doubling(nn.Dropout):
    def forward(self, input):
        return 2 * super().forward(input)


class Renamed(nn.Dropout):
    """A subclass that drops as its parent does."""


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Dropout(), nn.Dropout()

    def forward(self, x):
        return x


class SequenceFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.dropout, self.other = nn.Dropout(), nn.Dropout()

    def forward(self, x):
        return self.other(self.dropout(x.transpose(0, 1)).transpose(0, 1)).mean(1)


class TimeRows(SequenceFirst):
    """Rows of all examples, one time step after another."""

    def forward(self, x):
        rows = self.dropout(x.transpose(0, 1).flatten(0, 1))
        return self.other(rows.unflatten(0, (-1, len(x))).transpose(0, 1)).mean(1)


@pytest.mark.parametrize(
    ("network", "x", "named"),
    [
        (nn.Linear(3, 4), torch.zeros(2, 3), "functional"),
        (Functional(), torch.zeros(2, 3), "functional"),
        (nn.Dropout(0.0), torch.zeros(2, 3), "p > 0"),
        (nn.Sequential(nn.Linear(3, 3), Doubling(0.1)), torch.zeros(2, 3), "Doubling at `1`"),
        (Unused(), torch.zeros(2, 3), "`first`, `second`"),
        (SequenceFirst(), torch.zeros(3, 7, 4), "Dropout at `dropout`"),
        (SequenceFirst(), torch.zeros(2, 6, 4), "Dropout at `dropout`"),  # six is three masks of two
        (SequenceFirst(), torch.zeros(1, 6, 4), "Dropout at `dropout`"),
        (SequenceFirst(), torch.zeros(6, 6, 4), "Dropout at `dropout`"),
        (TimeRows(), torch.rand(2, 6, 4), "Dropout at `dropout`"),
        (TimeRows(), torch.rand(1, 6, 4), "Dropout at `dropout`"),
        (nn.Sequential(nn.Dropout1d(), nn.Dropout()), torch.zeros(2, 3), "Dropout1d at `0`"),
    ],
)
def test_dropout_that_cannot_be_sampled_is_refused_by_name(network, x, named):
    with pytest.raises(ValueError, match=r"mc_dropout: .*`network`") as error:
        DropoutPredictor(network, samples=3).predict(x)
    assert named in str(error.value) and "\n" not in str(error.value)


def test_the_layout_is_examined_once_for_each_shape_of_an_example():
    network, rows = build_seeded(TwiceUsed, 3), []
    network.first.register_forward_hook(lambda module, args, output: rows.append(len(output)))
    for examples in (4, 1, 4):
        DropoutPredictor(network, samples=1).predict(torch.rand(examples, 4))
    assert rows == [2, 3, 4, 4, 1, 1, 4, 4]  # observed, then with the mask
    assert not network.dropout._forward_hooks


def test_subclasses_that_change_nothing_are_known():
    network = build_seeded(lambda: nn.Sequential(nn.Linear(3, 4), Renamed(0.5), nn.Linear(4, 3)), 0)
    plain = build_seeded(lambda: nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 3)), 0)
    found, expected = (DropoutPredictor(one).predict(torch.ones(2, 3)).probs for one in (network, plain))
    assert torch.equal(found, expected)


def test_dropout_inside_attention_is_named_in_a_warning():
    """The other dropout of a transformer layer is sampled, for which torch's fused path must not be taken."""
    layer = nn.TransformerEncoderLayer(8, 2, 8, dropout=0.3, batch_first=True)
    network = nn.Sequential(layer, nn.Flatten(), nn.Linear(24, 3))
    with pytest.warns(UserWarning, match=r"MultiheadAttention at `0.self_attn`"):
        found = DropoutPredictor(network, samples=20).predict(torch.rand(4, 3, 8))
    assert (found.mutual_information() > 1e-4).all()


@pytest.mark.slow
def test_compiled_networks_are_sampled_like_others():
    network, x = build_seeded(TwiceUsed, 3), torch.rand(5, 4)
    expected = DropoutPredictor(network, samples=30, at_once=20).predict(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's compiler
        compiled = torch.compile(network)
        with torch.no_grad():
            compiled(x)
        for made in (compiled, network):
            found = DropoutPredictor(made, samples=30, at_once=20).predict(x)
            torch.testing.assert_close(found.probs, expected.probs)
