"""Passes without side effects: buffers, modes, random state, precision, wrappers."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

from beliefmatch.semi import adversarial_direction, pi_model, vat
from beliefmatch.semi.passes import keep_buffers, unwrap, without_dropout
from small_classifiers import DOUBLE, built, curved, drawn, normalising, seeded

LOSSES = {"vat": partial(vat, epsilon=0.7), "pi_model": pi_model}


class Counting(nn.Module):
    """A layer that writes to one buffer in place and replaces another."""

    def __init__(self):
        super().__init__()
        self.register_buffer("average", torch.zeros(6, dtype=DOUBLE))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("nothing", None)

    def forward(self, x):
        if self.training:
            self.average.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
            self.calls = self.calls + 1
        return x


def full(dropout=0.5):
    """A network with every kind of layer that has statistics."""
    return nn.Sequential(
        Counting(),
        nn.utils.parametrizations.spectral_norm(nn.Linear(6, 8).double()),
        nn.BatchNorm1d(8, momentum=None).double(),
        nn.Unflatten(1, (2, 4)),
        nn.InstanceNorm1d(2, track_running_stats=True).double(),
        nn.Flatten(),
        normalising(inputs=8, dropout=dropout),
    )


def snapshot(network):
    return [(buffer, buffer.clone(), buffer._version) for buffer in network.buffers()]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("loss", [*LOSSES, "direction"])
def test_buffers_and_modes_are_not_changed(loss, training):
    network, inputs = full().train(training), drawn(5, 6)
    network[2].eval()  # layers may be in different modes
    network(inputs)
    before, modes = snapshot(network), [module.training for module in network.modules()]
    {**LOSSES, "direction": adversarial_direction}[loss](network, inputs, generator=seeded())
    for (buffer, value, version), now in zip(before, network.buffers(), strict=True):
        assert now is buffer
        assert torch.equal(now, value) and now._version == version
    assert [module.training for module in network.modules()] == modes


def test_passes_use_the_batch_or_the_statistics_and_later_passes_update_them_again():
    network, twin, inputs = normalising().train(), normalising().train(), drawn(5, 6)
    for loss in LOSSES.values():
        loss(network, inputs, generator=seeded())
    for training in (True, False):
        with keep_buffers(network.train(training)):
            inside = network(inputs)
        assert torch.equal(inside, network(inputs))
        assert torch.equal(inside, twin.train(training)(inputs))
    for name, buffer in network.named_buffers():
        assert torch.equal(buffer, twin.get_buffer(name)), name
    dropping, plain = normalising(dropout=0.5).train(), normalising(dropout=0.0).train()
    with without_dropout(dropping):
        assert torch.equal(dropping(inputs), plain(inputs))
    assert all(module.training for module in dropping.modules())


def test_an_earlier_pass_can_still_be_differentiated():
    """Writing the old statistics back would fail: BatchNorm saved them for its backward pass."""
    network, inputs = full(dropout=0.0).train(), drawn(5, 6)
    supervised = functional.cross_entropy(network(inputs), torch.tensor([0, 1, 2, 3, 0]))
    consistency = LOSSES["vat"](network, drawn(7, 6, seed=1), generator=seeded())
    (supervised + consistency).backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


def test_all_passes_evaluate_one_function():
    """Spectral normalisation takes a step of its power method in each pass, from the same vectors."""
    network, inputs, seen = full(dropout=0.0).train(), drawn(5, 6), []
    network[1].register_forward_hook(lambda module, *_: seen.append(module.weight.detach().clone()))
    vat(network, inputs, iterations=2, generator=seeded())
    assert len(seen) == 4
    assert all(torch.equal(weight, seen[0]) for weight in seen)
    with torch.no_grad():
        network(inputs)
        network(inputs)
    assert not torch.equal(seen[-1], seen[0])  # or there would be nothing to test


def test_everything_is_restored_after_an_error():
    class Failing(nn.Module):
        def forward(self, x):
            raise RuntimeError("on purpose")

    network = nn.Sequential(full().train(), Failing())
    before, state = snapshot(network), torch.get_rng_state()
    for loss in LOSSES.values():
        with pytest.raises(RuntimeError, match="on purpose"):
            loss(network, drawn(5, 6), generator=seeded())
    assert all(now is buffer for (buffer, *_), now in zip(before, network.buffers(), strict=True))
    assert all(module.training for module in network.modules())
    assert torch.equal(torch.get_rng_state(), state)
    assert not unwrap(network)._forward_pre_hooks


@pytest.mark.parametrize("loss", LOSSES)
def test_the_global_generator_is_used_and_changed_only_if_none_is_given(loss):
    network, inputs = normalising(dropout=0.5).train(), drawn(5, 6)
    state = torch.get_rng_state()
    LOSSES[loss](network, inputs, generator=seeded())
    assert torch.equal(torch.get_rng_state(), state)
    with torch.random.fork_rng(devices=[]):
        values = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            values += [LOSSES[loss](network, inputs).item() for _ in range(2)]
    assert values[:2] == values[2:4]
    assert len(set(values)) == 4


class Masks(nn.Module):
    """Records the masks of dropout."""

    def __init__(self):
        super().__init__()
        self.dropout, self.seen = nn.Dropout(0.5), []

    def forward(self, x):
        self.seen.append(self.dropout(torch.ones_like(x)).detach())
        return x * self.seen[-1]


def test_all_passes_of_vat_have_the_same_dropout_mask():
    masks = Masks()
    network = nn.Sequential(masks, curved()).train()
    vat(network, drawn(5, 6), iterations=3, generator=seeded())
    assert len(masks.seen) == 5
    assert all(torch.equal(mask, masks.seen[0]) for mask in masks.seen)
    assert 0 < masks.seen[0].count_nonzero() < 30


@pytest.mark.parametrize(("target", "is_still"), [("still", True), ("stochastic", False)])
def test_the_target_of_the_pi_model_has_another_dropout_mask_or_none(target, is_still):
    masks = Masks()
    pi_model(nn.Sequential(masks, curved()).train(), drawn(5, 6), target=target, generator=seeded())
    prediction, aim = masks.seen
    assert not torch.equal(prediction, aim)
    assert torch.equal(aim, torch.ones_like(aim)) is is_still
    assert not torch.equal(prediction, torch.ones_like(aim))


class Spying(nn.Module):
    """Records autocast and the dtype of its inputs; computes no matrix product."""

    def __init__(self):
        super().__init__()
        self.weight, self.calls = nn.Parameter(drawn(6, 4, dtype=torch.float32)), []

    def forward(self, x):
        self.calls.append((torch.is_autocast_enabled("cpu"), x.dtype))
        return (x[:, :, None].float().tanh() * self.weight).sum(1)


HALF, SINGLE = torch.bfloat16, torch.float32


@pytest.mark.parametrize(
    ("autocast", "dtype", "calls"),
    [
        (False, SINGLE, [(False, SINGLE)] * 3),  # the search uses the logits of the clean pass
        (True, SINGLE, [(True, SINGLE), (False, SINGLE), (False, SINGLE), (True, SINGLE)]),
        (True, HALF, [(True, HALF), (False, SINGLE), (False, SINGLE), (True, HALF)]),
    ],
)
def test_target_and_prediction_are_computed_alike_and_the_search_in_full_precision(autocast, dtype, calls):
    network, inputs = Spying(), drawn(5, 6, dtype=dtype)
    with torch.autocast("cpu", dtype=HALF, enabled=autocast):
        loss = vat(network, inputs, generator=seeded())
    assert network.calls == calls
    assert loss.dtype == SINGLE and loss > 0


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_the_search_bypasses_the_precision_of_fabric(precision):
    fabric = pytest.importorskip("lightning_fabric")
    network, inputs = Spying(), drawn(5, 6, dtype=SINGLE)
    wrapped = fabric.Fabric(accelerator="cpu", devices=1, precision=precision).setup_module(network)
    assert unwrap(wrapped) is network
    loss = vat(wrapped, inputs, generator=seeded())
    autocast = [True, False, False, True] if precision == "bf16-mixed" else [False] * 3
    assert [enabled for enabled, _ in network.calls] == autocast
    assert [dtype for _, dtype in network.calls[1:-1]] == [SINGLE] * (len(autocast) - 2)
    torch.testing.assert_close(loss, vat(network, inputs, generator=seeded()), rtol=1e-2, atol=0)


def test_compiled_networks_give_the_same_loss():
    network, inputs = normalising().train(), drawn(5, 6)
    compiled = torch.compile(network, backend="eager")
    loss, plain = (vat(one, inputs, epsilon=0.7, generator=seeded()) for one in (compiled, network))
    torch.testing.assert_close(loss, plain)
    assert network[1].num_batches_tracked == 0
    compiled(inputs)
    assert network[1].num_batches_tracked == 1


class Overwriting(nn.Module):
    """Modifies its input in place, as networks that scale their images may."""

    def forward(self, x):
        return x.mul_(2)


@pytest.mark.parametrize("loss", [*LOSSES, "direction"])
def test_networks_may_modify_their_input_in_place(loss):
    function = {**LOSSES, "direction": adversarial_direction}[loss]
    network = built(lambda: nn.Sequential(Overwriting(), nn.Dropout(0.5, inplace=True), curved()))
    twin = built(lambda: nn.Sequential(nn.Dropout(0.5), curved()))
    inputs = drawn(5, 6)
    before = inputs.clone()
    own = network.state_dict()
    twin.load_state_dict({name.replace("2.", "1.", 1): value for name, value in own.items()})
    found = function(network.train(), inputs, generator=seeded())
    assert torch.equal(inputs, before)
    if loss == "pi_model":  # it does not differentiate with respect to the inputs
        torch.testing.assert_close(found, function(twin.train(), 2 * inputs, generator=seeded()))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("made", [torch.jit.script, partial(torch.jit.trace, example_inputs=drawn(5, 6))])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_is_refused(loss, made):
    with pytest.raises(TypeError, match="`model`"):
        LOSSES[loss](made(curved()), drawn(5, 6))


def test_pi_model_takes_token_ids():
    network = nn.Sequential(nn.Embedding(9, 4), nn.Dropout(0.5), nn.Flatten(), nn.Linear(12, 3))
    assert pi_model(network, torch.arange(6).view(2, 3), generator=seeded()) > 0
    with pytest.raises(TypeError, match="`inputs`"):
        vat(network, torch.arange(6).view(2, 3))


def test_the_mean_of_saturated_values_is_finite():
    def largest(first, second):
        return (first - second).sum(1) * 0 + torch.finfo(torch.float32).max

    assert pi_model(nn.Linear(6, 3), drawn(5, 6).float(), divergence=largest).isfinite()
