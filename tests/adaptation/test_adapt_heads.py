"""Finding the last layer of a classifier, and reading what it is given."""

import copy

import pytest
import torch
from torch import nn

from beliefmatch.adaptation.heads import find_head, head_inputs
from beliefmatch.adaptation.modes import batchnorm_layers
from beliefmatch.adaptation.surgery import with_head
from head_networks import IMAGES, NEW, PLAIN, WIDTH, K, N, Net, Tokens, TwoHeads, made, returned


@pytest.mark.parametrize("name", PLAIN)
def test_the_head_is_found_and_its_features_make_the_logits(name):
    model, batch = made(name)
    head = find_head(model, batch)
    assert head.name == PLAIN[name][1]
    assert head.module is model.get_submodule(head.name)
    features = head_inputs(model, head, batch)
    assert features.shape == (N, head.in_features)
    bias = 0 if head.bias is None else head.bias
    torch.testing.assert_close(features @ head.weight.T + bias, returned(model, batch))


def test_how_features_are_read():
    poolings = {name: find_head(*made(name)).pooling for name in PLAIN}
    mapped = {"no bias", "convolution, mean", "convolution, pooling", "channels last"}
    assert {name for name, pooling in poolings.items() if pooling == "mean"} == mapped
    assert {name for name, pooling in poolings.items() if pooling == "other"} == {"twice"}


def test_a_head_on_tokens_of_which_one_is_chosen():
    model, ids = Tokens(), torch.tensor([[3, 4, 0], [5, 0, 0], [1, 2, 7]])
    head = find_head(model, {"ids": ids})
    assert (head.name, head.pooling, head.bias) == ("score", "other", None)
    last = torch.tensor([4, 5, 7])
    torch.testing.assert_close(head_inputs(model, head, {"ids": ids}), model.embed(last))
    better = with_head(model, head, torch.ones(NEW, WIDTH), None)
    torch.testing.assert_close(better.belief({"ids": ids}).log_alpha[:, 2], model.embed(last).sum(1))


def test_both_heads_on_the_same_features_are_listed():
    assert find_head(TwoHeads("fc"), IMAGES).siblings == ("second",)
    assert find_head(TwoHeads("second"), IMAGES).siblings == ("fc",)
    assert find_head(Net(), IMAGES).siblings == ()


def test_heads_that_are_all_zero_are_told_apart():
    model = TwoHeads("fc")
    for layer in (model.fc, model.second, model.hidden):
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
    assert find_head(model, IMAGES).name == "fc"


def test_the_network_stays_as_it_was():
    model = Net().train()
    model.norm.eval()
    before, modes = copy.deepcopy(model.state_dict()), [module.training for module in model.modules()]
    head = find_head(model, IMAGES)
    head_inputs(model, head, IMAGES)
    with_head(model, head, torch.zeros(NEW, WIDTH), None).belief(IMAGES)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())
    assert model.num_classes == K


def test_modes_come_back_after_an_error():
    model = Net().train()
    model.norm.eval()
    with pytest.raises(RuntimeError):
        find_head(model, torch.zeros(2, 1, 4, 4))
    assert model.training
    assert model.fc.training
    assert not model.norm.training


def test_features_are_in_eval_mode_and_the_callers_own():
    class Spoiling(Net):
        def forward(self, x):
            features = self.features(x)
            logits = self.fc(features)
            features.zero_()
            return logits

    model = Spoiling().train()
    head = find_head(model, IMAGES)
    features = head_inputs(model, head, IMAGES)
    assert not features.requires_grad
    assert features.any()
    assert torch.equal(features, head_inputs(model, head, IMAGES))


def test_half_precision():
    model = Net().half()
    head = find_head(model, IMAGES.half())
    better = with_head(model, head, torch.ones(NEW, WIDTH, dtype=torch.float64), torch.zeros(NEW))
    assert better.fc.weight.dtype == torch.float16
    assert better.belief(IMAGES.half()).log_alpha.dtype == torch.float32


def test_by_name():
    model = Net()
    assert find_head(model, IMAGES, name="fc").name == "fc"
    assert find_head(nn.DataParallel(model), IMAGES, name="fc").name == "module.fc"
    assert find_head(nn.DataParallel(model), IMAGES, name="module.fc").name == "module.fc"


@pytest.mark.parametrize(
    ("name", "fact"),
    [
        ("fcc", "`name` must be that of a module, got 'fcc'; did you mean `fc`?"),
        (
            "norm",
            "linear layer or a 1x1 convolution, got `norm`, a BatchNorm2d; layers: `fc` (linear, 6 -> 4)",
        ),
        ("spare", "the batch does not go through `spare` (linear, 2 -> 4)"),
        ("hidden", "the layer whose output is returned, got 'hidden'"),
    ],
)
def test_a_wrong_name_is_told(name, fact):
    model = Net()
    model.spare = nn.Linear(2, K)
    with pytest.raises(ValueError) as caught:
        find_head(model, IMAGES, name=name)
    assert fact in str(caught.value)
    assert "\n" not in str(caught.value)


def test_batch_norms_in_use():
    model = TwoHeads("fc")
    model.aux = nn.Sequential(nn.BatchNorm1d(WIDTH))
    model.frozen = nn.BatchNorm1d(WIDTH, affine=False, track_running_stats=False)
    model.group = nn.GroupNorm(2, WIDTH)
    assert list(batchnorm_layers(model)) == ["norm", "aux.0"]
    assert batchnorm_layers(model, IMAGES) == {"norm": model.norm}
    assert model.training
    assert int(model.norm.num_batches_tracked) == 0


def test_weights_that_are_shared_are_parted_with_a_warning():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(9, WIDTH)
            self.score = nn.Linear(WIDTH, 9, bias=False)
            self.score.weight = self.embed.weight

        def forward(self, ids):
            return self.score(self.embed(ids).mean(1))

    model, ids = Tied(), torch.tensor([[1, 2], [3, 4], [5, 6]])
    head = find_head(model, ids)
    with pytest.warns(UserWarning, match="`score` shares its weights with embed.weight, which keeps the old"):
        better = with_head(model, head, torch.zeros(NEW, WIDTH), None)
    assert torch.equal(better.embed.weight, model.embed.weight)
    assert not returned(better, ids).any()


def test_wrappers_that_spread_or_compile_are_left_off():
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        spread = nn.parallel.DistributedDataParallel(Net())
        head = find_head(spread, IMAGES)
        better = with_head(spread, head, torch.zeros(NEW, WIDTH), torch.arange(3.0))
    finally:
        torch.distributed.destroy_process_group()
    assert head.name == "module.fc"
    assert isinstance(better, Net)
    assert better.belief(IMAGES).predictions.tolist() == [2] * N


def test_a_compiled_network_is_looked_into():
    compiled = torch.compile(Net())
    head = find_head(compiled, IMAGES)  # pyright: ignore
    assert head.name == "_orig_mod.fc"
    assert isinstance(with_head(compiled, head, torch.zeros(NEW, WIDTH), None), Net)  # pyright: ignore
