"""The loss of a linear layer in chunks: equal to that of its logits, with their memory saved."""

import pytest
import torch
from test_loss_torch import NEEDS_COMPILER, largest_allocations
from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, jvp, vmap
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint

from beliefmatch import (
    BeliefMatchingLoss,
    LinearBeliefMatchingLoss,
    belief_matching_loss,
    linear_belief_matching_loss,
)
from beliefmatch.loss import LowTargetConfidence
from kernel_contract import GRADIENT_BAR, LOSS_BAR, NEEDS_NATIVE, READERS, native_only, using

ROWS, WIDTH, CLASSES = 13, 5, 7
DOUBLE = torch.float64
CHUNKS = (1, 4, ROWS, None)
REDUCTIONS = ("mean", "sum", "none")
WEIGHT = torch.tensor([0.5, 1.0, 2.0, 0.0, 3.0, 1.0, 0.7])


@pytest.fixture(params=READERS)
def own_kernel(request):
    """The reference and, where it is installed, the native kernel: chunks are the same for all others."""
    with using(request.param):
        yield request.param


def layer(dtype=DOUBLE, *, bias=True, rows=ROWS, classes=CLASSES):
    torch.manual_seed(0)
    made = [torch.randn(rows, WIDTH), torch.randn(classes, WIDTH), torch.randn(classes)]
    return [x.to(dtype).requires_grad_() for x in made[: 3 if bias else 2]]


def ids(*, ignored=-100):
    torch.manual_seed(1)
    targets = torch.randint(CLASSES, (ROWS,))
    targets[[2, 11]] = ignored
    return targets


def counts():
    torch.manual_seed(2)
    votes = torch.randint(4, (ROWS, CLASSES)).double()
    votes[3] = 0  # a row without votes
    return votes


PER_CLASS, PER_ROW = 0.3 + torch.rand(CLASSES), 0.3 + torch.rand(ROWS, CLASSES)
CASES = {
    "ids": (ids(), {}),
    "ignore_index": (ids(ignored=4), {"ignore_index": 4}),
    "bytes": (ids(ignored=4).to(torch.uint8), {"ignore_index": 4}),
    "class weight": (ids(), {"class_weight": WEIGHT}),
    "counts": (counts(), {"prior": 0.5}),
    "weighted counts": (counts(), {"class_weight": WEIGHT, "target_confidence": 0.9}),
    "prior by class": (ids(), {"prior": PER_CLASS, "target_confidence": 0.8}),
    "prior by row": (counts(), {"prior": PER_ROW, "target_confidence": 0.8}),
    "prior of each row": (ids(), {"prior": PER_ROW[:, :1]}),
    "no prior": (ids(), {"kl_weight": 0.0}),
}


def of_logits(features, weight, targets, bias=None, *, class_weight=None, batch_chunk_size=None, **options):
    """What `linear_belief_matching_loss` is to equal."""
    logits = linear(features, weight, bias)
    return belief_matching_loss(logits, targets, weight=class_weight, **options)


def value_and_grads(function, tensors, targets, *, upstream=None, wanted=None, **options):
    features, weight, *bias = tensors
    value = function(features, weight, targets, *bias, **options)
    arriving = torch.full_like(value, 1.0) if upstream is None else upstream.to(value)
    return value.detach(), torch.autograd.grad(value, tensors if wanted is None else wanted, arriving)


def upstream_of(reduction):
    torch.manual_seed(3)
    return torch.randn(ROWS) if reduction == "none" else torch.tensor(-2.5)


@pytest.mark.parametrize("size", CHUNKS)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("case", CASES)
def test_equals_the_loss_of_the_logits_with_every_option(case, reduction, size, own_kernel):
    targets, options = CASES[case]
    options = {"reduction": reduction, "upstream": upstream_of(reduction), **options}
    expected = value_and_grads(of_logits, layer(), targets, **options)
    received = value_and_grads(
        linear_belief_matching_loss, layer(), targets, batch_chunk_size=size, **options
    )
    torch.testing.assert_close(received, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("case", CASES)
def test_float32_is_as_exact_as_the_contract_of_the_kernels(case, reduction, own_kernel):
    targets, options = CASES[case]
    options = {"reduction": reduction, "upstream": upstream_of(reduction), **options}
    exact = [x.detach().double().requires_grad_() for x in layer(torch.float32)]
    truth, true_grads = value_and_grads(of_logits, exact, targets, **options)
    value, grads = value_and_grads(
        linear_belief_matching_loss, layer(torch.float32), targets, batch_chunk_size=4, **options
    )
    assert value.dtype == torch.float32 and value.shape == truth.shape
    # logits of float32 products: their rounding is amplified by the terms of the loss
    torch.testing.assert_close(value.double(), truth, rtol=10 * LOSS_BAR[torch.float32], atol=0)
    for mine, true in zip(grads, true_grads, strict=True):
        allowed = 4 * GRADIENT_BAR[torch.float32] * true.abs().max()
        assert mine.dtype == torch.float32 and (mine - true).abs().max() <= allowed


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_half_precision_gives_the_loss_of_its_logits_and_gradients_in_the_tensors_type(
    dtype, autocast, reduction, own_kernel
):
    own = torch.float32 if autocast else dtype
    options = {"reduction": reduction, "upstream": upstream_of(reduction), "class_weight": WEIGHT}
    exact = [x.detach().to(dtype).double().requires_grad_() for x in layer(own)]
    _, true_grads = value_and_grads(of_logits, exact, ids(), **options)
    with torch.autocast("cpu", dtype=dtype, enabled=autocast):
        expected, _ = value_and_grads(of_logits, layer(own), ids(), **options)
        value, grads = value_and_grads(
            linear_belief_matching_loss, layer(own), ids(), batch_chunk_size=4, **options
        )
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, expected, rtol=1e-6, atol=0)
    for mine, true in zip(grads, true_grads, strict=True):
        allowed = 4 * torch.finfo(dtype).eps * true.abs().max()
        assert mine.dtype == own and (mine - true).abs().max() <= allowed


def test_backward_under_another_autocast_does_not_change_the_gradients():
    _, expected = value_and_grads(linear_belief_matching_loss, layer(), ids(), reduction="none")
    tensors = layer(torch.float32)
    value = linear_belief_matching_loss(*tensors[:2], ids(), tensors[2], reduction="none").sum()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        received = torch.autograd.grad(value, tensors)
    for mine, true in zip(received, expected, strict=True):
        torch.testing.assert_close(mine.double(), true, rtol=1e-5, atol=1e-5)


def test_float16_gradients_survive_until_a_gradient_scaler_has_scaled_them():
    features, weight = (x.detach().half().requires_grad_() for x in layer(rows=ROWS, bias=False))
    targets, scale = ids(), 2.0**16
    options = {"kl_weight": 1e-6, "prior": 1e-3}
    value = linear_belief_matching_loss(1e-3 * features, weight, targets, **options)
    (received,) = torch.autograd.grad(value * scale, weight)
    exact = [x.detach().double().requires_grad_() for x in (1e-3 * features, weight)]
    _, (_, true) = value_and_grads(of_logits, exact, targets, **options)
    torch.testing.assert_close(
        received.double() / scale, true, rtol=2e-2, atol=1e-2 * float(true.abs().max())
    )


# What is computed


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 1), (1, 2)])
def test_gradients_of_tensors_without_requires_grad_are_not_computed(wanted):
    expected = value_and_grads(of_logits, layer(), ids())[1]
    tensors = [x.requires_grad_(i in wanted) for i, x in enumerate(layer())]
    chosen = [tensors[i] for i in wanted]
    _, received = value_and_grads(linear_belief_matching_loss, tensors, ids(), wanted=chosen)
    torch.testing.assert_close(received, tuple(expected[i] for i in wanted), rtol=1e-12, atol=1e-12)
    features, weight, bias = tensors
    linear_belief_matching_loss(features, weight, ids(), bias).backward()
    assert [x.grad is not None for x in tensors] == [i in wanted for i in range(3)]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients_the_loss_is_the_same_and_part_of_no_graph(mode):
    features, weight, bias = layer()
    expected = of_logits(features, weight, ids(), bias)
    with mode():
        value = linear_belief_matching_loss(features, weight, ids(), bias, batch_chunk_size=4)
    assert not value.requires_grad
    torch.testing.assert_close(value, expected.detach(), rtol=1e-12, atol=0)


@NEEDS_NATIVE
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_the_logits_of_all_rows_are_never_in_memory(dtype, reduction):
    rows, size, classes = 1000, 10, 300
    features, weight, bias = layer(dtype, rows=rows, classes=classes)
    targets = torch.randint(classes, (rows,))

    def loss():
        options = {"kl_weight": 1e-4, "batch_chunk_size": size, "reduction": reduction}
        return linear_belief_matching_loss(features, weight, targets, bias, **options).sum()

    scratch = 50_000  # of products in half precision, whatever their size
    chunk = size * classes * dtype.itemsize
    with native_only():
        assert largest_allocations(lambda: loss().backward())[0] <= max(features.nbytes, scratch)
        with torch.no_grad():
            forward = largest_allocations(loss)[0]
    assert forward == chunk if dtype is torch.float32 else forward <= scratch


@pytest.mark.parametrize(
    ("rows", "classes", "expected"), [(600, 20_000, 512 * 20_000), (9000, 500, 4_000_000)]
)
def test_chunks_have_512_rows_or_four_million_logits(rows, classes, expected):
    features, weight, targets = torch.zeros(rows, 1), torch.zeros(classes, 1), torch.zeros(rows).long()
    with torch.no_grad():
        made = largest_allocations(
            lambda: linear_belief_matching_loss(features, weight, targets, kl_weight=1e-6)
        )
    assert made[0] == 4 * expected


# Derivatives


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_backward_can_be_repeated(reduction):
    tensors, upstream = layer(), upstream_of(reduction).double()
    features, weight, bias = tensors
    value = linear_belief_matching_loss(features, weight, ids(), bias, reduction=reduction)
    first = torch.autograd.grad(value, tensors, upstream, retain_graph=True)
    second = torch.autograd.grad(value, tensors, 2 * upstream, retain_graph=True)
    third = torch.autograd.grad(value, weight, upstream)
    expected = value_and_grads(of_logits, layer(), ids(), reduction=reduction, upstream=upstream)[1]
    torch.testing.assert_close(first, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(second, tuple(2 * x for x in expected), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(third[0], expected[1], rtol=1e-12, atol=1e-12)


def test_gradients_accumulate_over_backward_passes_of_a_shared_weight():
    features, weight, bias = layer()
    tied = linear_belief_matching_loss(weight.detach() + 0 * weight, weight, torch.arange(CLASSES), bias)
    (tied + linear_belief_matching_loss(features, weight, ids(), bias, batch_chunk_size=3)).backward()
    again = weight.detach().requires_grad_()
    expected = of_logits(again.detach(), again, torch.arange(CLASSES), bias.detach())
    (expected + of_logits(features.detach(), again, ids(), bias.detach())).backward()
    torch.testing.assert_close(weight.grad, again.grad, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_first_and_second_derivatives_are_right(reduction, own_kernel):
    targets = torch.tensor([1, -100, 0, 2])
    torch.manual_seed(0)
    tensors = [torch.randn(shape, dtype=DOUBLE).requires_grad_() for shape in ((4, 2), (3, 2), (3,))]

    def loss(features, weight, bias):
        options = {"reduction": reduction, "kl_weight": 0.1, "batch_chunk_size": 3}
        return linear_belief_matching_loss(features, weight, targets, bias, **options)

    # a repeated pass scales the rows before it sums them, and so may differ by a rounding
    assert gradcheck(loss, tensors, check_forward_ad=True, check_batched_grad=True, nondet_tol=1e-12)
    assert gradgradcheck(loss, tensors)


def test_derivatives_by_counts_and_prior_are_those_of_the_loss_of_the_logits():
    for name, options in (("counts", {}), ("prior", {"batch_chunk_size": 2})):
        found = []
        for function in (of_logits, linear_belief_matching_loss):
            features, weight, bias = layer()
            votes = (counts() + 0.1).requires_grad_(name == "counts")
            prior = PER_CLASS.double().requires_grad_(name == "prior")
            value = function(features, weight, votes, bias, prior=prior, **options)
            by = votes if name == "counts" else prior
            found.append(torch.autograd.grad(value, (by, features, weight, bias)))
        torch.testing.assert_close(*found, rtol=1e-12, atol=1e-12)


def test_function_transforms_agree_with_backward():
    features, weight, bias = (x.detach() for x in layer())
    targets = ids()

    def loss(weight):
        return linear_belief_matching_loss(features, weight, targets, bias, batch_chunk_size=4)

    expected = value_and_grads(of_logits, layer(), targets)[1][1]
    torch.testing.assert_close(grad(loss)(weight), expected)
    direction = torch.randn_like(weight)
    _, pushed = jvp(loss, (weight,), (direction,))
    torch.testing.assert_close(pushed, (expected * direction).sum())
    counted = targets.clamp(min=0)
    mapped = vmap(lambda x, y: linear_belief_matching_loss(x, weight, y, bias))(features, counted)
    torch.testing.assert_close(
        mapped, linear_belief_matching_loss(features, weight, counted, bias, reduction="none")
    )


@NEEDS_COMPILER
def test_compiled_without_a_graph_break_it_equals_the_eager_one():
    torch._dynamo.reset()
    targets, options = ids(), {"class_weight": WEIGHT, "kl_weight": 0.1}
    compiled = torch.compile(linear_belief_matching_loss, fullgraph=True)
    for reduction in ("mean", "none"):
        expected = value_and_grads(
            linear_belief_matching_loss, layer(torch.float32), targets, reduction=reduction, **options
        )
        received = value_and_grads(compiled, layer(torch.float32), targets, reduction=reduction, **options)
        torch.testing.assert_close(received, expected, rtol=1e-5, atol=1e-5)


def test_a_checkpoint_changes_nothing():
    tensors = layer()

    def loss(features, weight, bias):
        return linear_belief_matching_loss(features, weight, ids(), bias, batch_chunk_size=4)

    expected = torch.autograd.grad(loss(*tensors), tensors)
    received = torch.autograd.grad(checkpoint(loss, *tensors, use_reentrant=False), tensors)
    torch.testing.assert_close(received, expected, rtol=0, atol=0)


def test_targets_that_were_changed_in_place_are_not_used_in_a_later_backward_pass():
    features, weight, bias = layer()
    targets = ids()
    value = linear_belief_matching_loss(features, weight, targets, bias, reduction="none").sum()
    targets[0] = 0
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        value.backward()


# Shapes and values at the edge


@pytest.mark.parametrize("kind", ["ids", "counts"])
@pytest.mark.parametrize("shape", [(), (2,), (2, 3), (2, 1, 3)])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_features_may_have_any_number_of_dimensions(shape, kind, reduction):
    torch.manual_seed(0)
    features = torch.randn(*shape, WIDTH, dtype=DOUBLE, requires_grad=True)
    _, weight, bias = layer()
    targets = torch.randint(CLASSES, shape) if kind == "ids" else torch.rand(*shape, CLASSES, dtype=DOUBLE)
    prior = 0.3 + torch.rand(*shape[:1], *[1] * (len(shape) - 1), CLASSES, dtype=DOUBLE)
    options = {"reduction": reduction, "target_confidence": 0.8}
    received = value_and_grads(
        linear_belief_matching_loss,
        (features, weight, bias),
        targets,
        prior=prior,
        batch_chunk_size=2,
        **options,
    )
    rows = features.detach().reshape(-1, WIDTH).requires_grad_()
    in_rows = targets.reshape(len(rows), -1) if kind == "counts" else targets.reshape(-1)
    each = prior.expand(*shape, CLASSES).reshape(len(rows), CLASSES)
    value, expected = value_and_grads(of_logits, (rows, weight, bias), in_rows, prior=each, **options)
    assert received[0].shape == (shape if reduction == "none" else ())
    torch.testing.assert_close(received[0], value.view_as(received[0]), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        received[1], (expected[0].view_as(features), *expected[1:]), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("classes", [1, 2])
def test_few_classes_are_no_exception(classes):
    tensors = layer(classes=classes)
    targets = torch.arange(ROWS) % classes
    expected = value_and_grads(of_logits, layer(classes=classes), targets)
    received = value_and_grads(linear_belief_matching_loss, tensors, targets, batch_chunk_size=3)
    torch.testing.assert_close(received, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_no_rows_give_what_the_loss_of_the_logits_gives(reduction, own_kernel):
    targets = torch.zeros(0, dtype=torch.long)
    expected = value_and_grads(of_logits, layer(rows=0), targets, reduction=reduction)
    received = value_and_grads(linear_belief_matching_loss, layer(rows=0), targets, reduction=reduction)
    torch.testing.assert_close(received, expected, equal_nan=True)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_rows_that_are_all_ignored_give_what_the_loss_of_the_logits_gives(reduction, own_kernel):
    targets = torch.full((ROWS,), -100)
    expected = value_and_grads(of_logits, layer(), targets, reduction=reduction)
    received = value_and_grads(
        linear_belief_matching_loss, layer(), targets, reduction=reduction, batch_chunk_size=4
    )
    torch.testing.assert_close(received, expected, equal_nan=True)


def test_ignored_rows_have_no_gradient_even_if_the_upstream_gradient_is_not_finite():
    (_, (by_features, *_)) = value_and_grads(
        linear_belief_matching_loss, layer(), ids(), upstream=torch.tensor(torch.inf), batch_chunk_size=4
    )
    assert not by_features[[2, 11]].any()
    assert not by_features[0].isfinite().all()


def test_losses_at_the_end_of_the_range_have_a_finite_mean_and_a_sum_that_saturates():
    features, weight = torch.full((4, 1), 1e30), torch.tensor([[3e8], [0.0]])
    targets, largest = torch.ones(4, dtype=torch.long), torch.finfo(torch.float32).max
    for reduction, expected in (("mean", 3e38), ("sum", largest)):
        value = linear_belief_matching_loss(
            features, weight, targets, kl_weight=0.0, reduction=reduction, batch_chunk_size=1
        )
        assert value.item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("layout", ["transposed", "every other", "expanded"])
def test_weights_may_have_any_strides(layout):
    features, weight, bias = layer()
    if layout == "transposed":
        weight = weight.detach().t().contiguous().t()
    elif layout == "every other":
        weight = torch.stack([weight.detach()] * 2, 2)[:, :, 1]
    else:
        weight = weight.detach()[:1].expand(CLASSES, WIDTH)
    expected = value_and_grads(of_logits, (features, weight.clone().requires_grad_(), bias), ids())
    received = value_and_grads(
        linear_belief_matching_loss, (features, weight.requires_grad_(), bias), ids(), batch_chunk_size=4
    )
    torch.testing.assert_close(received, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_values_on_a_device_are_never_read(reduction):
    """The meta device has none to give: whatever would make a GPU wait fails here."""
    tensors = [x.detach().to("meta").requires_grad_() for x in layer()]
    features, weight, bias = tensors
    for targets in (ids(), counts()):
        value = linear_belief_matching_loss(
            features,
            weight,
            targets.to("meta"),
            bias,
            class_weight=WEIGHT.to("meta"),
            prior=PER_CLASS.to("meta"),
            target_confidence=0.9,
            reduction=reduction,
            batch_chunk_size=4,
        )
        value.sum().backward()
        assert all(x.grad.shape == x.shape for x in tensors)


# Arguments


FEATURES, LINEAR, TARGETS = torch.zeros(4, 5), torch.zeros(3, 5), torch.tensor([0, 1, 2, 0])
WRONG = [
    ("features", {"features": [[0.0]]}, TypeError),
    ("features", {"features": FEATURES.long()}, TypeError),
    ("features", {"features": torch.tensor(0.0)}, ValueError),
    ("weight", {"weight": LINEAR.t()}, ValueError),
    ("weight", {"weight": LINEAR[0]}, ValueError),
    ("weight", {"weight": torch.zeros(0, 5)}, ValueError),
    ("weight", {"weight": LINEAR.double()}, TypeError),
    ("weight", {"weight": LINEAR.to("meta")}, ValueError),
    ("bias", {"bias": torch.zeros(4)}, ValueError),
    ("bias", {"bias": torch.zeros(3, dtype=torch.bfloat16)}, TypeError),
    ("bias", {"bias": 0.0}, TypeError),
    ("targets", {"targets": TARGETS[:3]}, ValueError),
    ("targets", {"targets": TARGETS + 1}, ValueError),
    ("targets", {"targets": -torch.ones(4, 3)}, ValueError),
    ("class_weight", {"class_weight": torch.ones(4)}, ValueError),
    ("class_weight", {"class_weight": -torch.ones(3)}, ValueError),
    ("class_weight", {"class_weight": [1.0]}, TypeError),
    ("prior", {"prior": torch.ones(5)}, ValueError),
    ("prior", {"prior": torch.zeros(3)}, ValueError),
    ("prior", {"prior": -1.0}, ValueError),
    ("kl_weight", {"kl_weight": -1.0}, ValueError),
    ("kl_weight", {"kl_weight": 0.1, "target_confidence": 0.9}, ValueError),
    ("target_confidence", {"target_confidence": 0.1}, ValueError),
    ("ignore_index", {"ignore_index": 1.5}, TypeError),
    ("reduction", {"reduction": "avg"}, ValueError),
    ("batch_chunk_size", {"batch_chunk_size": 0}, ValueError),
    ("batch_chunk_size", {"batch_chunk_size": 1.5}, TypeError),
]


@pytest.mark.parametrize(("argument", "changed", "kind"), WRONG)
def test_a_wrong_argument_is_named_in_one_line(argument, changed, kind, own_kernel):
    arguments = {"features": FEATURES, "weight": LINEAR, "targets": TARGETS, **changed}
    with pytest.raises(kind) as caught:
        linear_belief_matching_loss(**arguments)
    message = str(caught.value)
    assert message.startswith("linear_belief_matching_loss: ") and f"`{argument}`" in message
    assert "\n" not in message


def test_a_low_target_confidence_is_warned_of_in_its_own_name():
    weight, targets = torch.zeros(500, 5), torch.tensor([0, 1, 2, 0])
    with pytest.warns(LowTargetConfidence, match=r"^linear_belief_matching_loss: "):
        linear_belief_matching_loss(FEATURES, weight, targets, kl_weight=0.1)


# The module


def test_the_module_is_its_linear_layer_and_the_loss():
    torch.manual_seed(0)
    options = {"prior": PER_CLASS, "target_confidence": 0.8, "reduction": "sum"}
    module = LinearBeliefMatchingLoss(
        WIDTH, CLASSES, bias=True, class_weight=WEIGHT, batch_chunk_size=4, **options
    )
    features, targets = torch.randn(ROWS, WIDTH), ids()
    expected = BeliefMatchingLoss(weight=WEIGHT, **options)(module.linear(features), targets)
    torch.testing.assert_close(module(features, targets), expected)
    expected_grads = torch.autograd.grad(expected, list(module.parameters()))
    module(features, targets).backward()
    for parameter, grad_of_it in zip(module.parameters(), expected_grads, strict=True):
        torch.testing.assert_close(parameter.grad, grad_of_it, rtol=1e-5, atol=1e-5)


def test_the_module_moves_saves_and_shows_what_it_holds():
    module = LinearBeliefMatchingLoss(
        WIDTH, CLASSES, class_weight=WEIGHT, prior=PER_CLASS, batch_chunk_size=9
    )
    assert module.linear.bias is None
    assert set(module.state_dict()) == {"linear.weight", "criterion.weight", "criterion.prior"}
    assert all(x.dtype == DOUBLE for x in module.double().state_dict().values())
    shown = repr(module)
    assert "in_features=5" in shown and "kl_weight=0.01" in shown and "batch_chunk_size=9" in shown
    with pytest.raises(ValueError, match=r"^LinearBeliefMatchingLoss: `kl_weight`"):
        LinearBeliefMatchingLoss(WIDTH, CLASSES, kl_weight=-1.0)
    with pytest.raises(ValueError, match=r"^LinearBeliefMatchingLoss: `batch_chunk_size`"):
        LinearBeliefMatchingLoss(WIDTH, CLASSES, batch_chunk_size=0)


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        ({"in_features": 0}, "`in_features` must be at least 1, got 0."),
        ({"in_features": 5.5}, "`in_features` must be an integer, got float 5.5."),
        ({"num_classes": 1}, "`num_classes` must be at least 2, got 1."),
        ({"num_classes": "4"}, "`num_classes` must be an integer, got str '4'."),
        ({"bias": "x"}, "`bias` must be True or False, got str 'x'."),
    ],
)
def test_the_module_refuses_a_layer_that_cannot_be(arguments, fact):
    with pytest.raises((ValueError, TypeError)) as error:
        LinearBeliefMatchingLoss(**{"in_features": WIDTH, "num_classes": CLASSES, **arguments})
    assert str(error.value) == f"LinearBeliefMatchingLoss: {fact}"


@pytest.mark.parametrize("shape", [(3, WIDTH + 1), (), (WIDTH, 3 * WIDTH)])
def test_features_of_another_width_are_blamed_for_it(shape):
    with pytest.raises(ValueError) as error:
        LinearBeliefMatchingLoss(WIDTH, CLASSES)(torch.zeros(shape), torch.tensor([0]))
    expected = f"shape (..., {WIDTH}) to match `weight` {(CLASSES, WIDTH)}, got {shape}."
    assert str(error.value) == f"linear_belief_matching_loss: `features` must have {expected}"


@NEEDS_NATIVE
def test_the_chunks_are_computed_by_the_native_kernel():
    with native_only():
        native = value_and_grads(linear_belief_matching_loss, layer(), ids(), batch_chunk_size=4)
    with using("reference"):
        reference = value_and_grads(linear_belief_matching_loss, layer(), ids(), batch_chunk_size=4)
    torch.testing.assert_close(native, reference, rtol=1e-11, atol=1e-11)
