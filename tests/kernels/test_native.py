"""The native kernel equals the reference, whatever the numbers, the layout and the number of threads."""

from itertools import product
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from beliefmatch import belief_matching_loss
from beliefmatch.kernels import native
from kernel_contract import (
    HYPOTHESIS,
    TYPES,
    assert_gradients_agree,
    assert_kernels_agree,
    assert_losses_agree,
    batch,
    loss_and_gradient,
    native_only,
    size_of_terms,
    using,
)

pytestmark = [
    pytest.mark.usefixtures("instruction_set"),
    pytest.mark.filterwarnings("ignore:belief_matching_loss. kl_weight"),
]
INF, NAN = float("inf"), float("nan")
REDUCTIONS = ["mean", "sum", "none"]


def assert_left_to_reference(logits, targets, *, left=True, **options):
    """The native kernel does not support the values (or does, if not `left`); the result is the same."""
    with using("reference"):
        expected = loss_and_gradient(logits, targets, **options)
    answers = []

    def recorded(function):
        def record(*arguments):
            answers.append(function(*arguments))
            return answers[-1]

        return patch.object(native, function.__name__, record)

    with using("native"), recorded(native.loss), recorded(native.planned_loss):
        received = loss_and_gradient(logits, targets, **options)
    assert {answer is None for answer in answers} == {left}
    torch.testing.assert_close(received, expected, rtol=0, atol=0, equal_nan=True)


def odd_shapes(dtype):
    for shape in ((1, 2), (3, 1), (5, 16), (17, 33), (41, 401), (7, 1271), (1, 128000)):
        yield *batch(*shape, dtype), torch.tensor(1.7), {"kl_weight": 1e-3}


def priors_of_one_number(dtype):
    for prior, kl_weight in product((1e-3, 0.5, 1.0, 4.0, 5.0, 1e3, 1e6), (0.0, 1e-4, 0.1)):
        yield *batch(5, 23, dtype), None, {"prior": prior, "kl_weight": kl_weight}


def priors_of_large_logits(dtype):
    for prior, classes in product((0.25, 0.5, 2.0, 3.9), (2, 5, 40, 100)):
        logits, targets = batch(50, classes, dtype)
        logits = (29.9 * (2 * torch.rand(50, classes) - 1)).to(dtype)
        yield logits, targets, None, {"prior": prior, "kl_weight": 0.02 / classes}


def priors_of_one_number_a_class(dtype):
    for classes, scale, of_votes in product((2, 5, 40, 100, 130), (0.3, 3.0, 9.0), (False, True)):
        logits, targets = batch(37, classes, dtype, scale=scale)
        labels = 3 * torch.rand(37, classes) if of_votes else targets
        prior = 0.25 + 3.75 * torch.rand(classes)
        yield logits, labels, None, {"prior": prior, "kl_weight": 0.02 / classes}
        yield logits, labels, None, {"prior": 3 * prior, "kl_weight": 0.02 / classes}
    positions, targets = torch.randn(2, 5, 7, 6).to(dtype), torch.randint(5, (2, 7, 6))
    upstream, prior = torch.rand(2, 7, 6), torch.linspace(0.25, 4, 5, dtype=torch.float64)
    for logits in (positions, positions.to(memory_format=torch.channels_last)):
        yield logits, targets, upstream, {"prior": prior, "kl_weight": 0.3, "reduction": "none"}


def few_and_many_votes(dtype):
    for size, kl_weight in product((0.0, 1e-6, 1.0, 1e9, 1e29), (0.0, 0.01, 1.0)):
        logits, _ = batch(5, 23, dtype)
        counts = size * torch.rand(5, 23)
        counts[1] = 0
        counts[2, 1:] = 0
        yield logits, counts, None, {"kl_weight": kl_weight}


def class_weights_and_ignored_rows(dtype):
    logits, targets = batch(9, 5, dtype)
    targets[[1, 7]] = 3
    logits[[1, 7], 2] = torch.tensor([NAN, INF], dtype=dtype)  # in ignored rows
    weight = torch.tensor([0.0, 0.5, 1.0, 9.0, 2.0])
    for class_weight, reduction in product((None, weight, weight.double(), weight.bfloat16()), REDUCTIONS):
        upstream = torch.linspace(-2, 3, 9) if reduction == "none" else torch.tensor(-0.3)
        yield logits, targets, upstream, {"weight": class_weight, "ignore_index": 3, "reduction": reduction}


def rows_within_and_beyond_the_range_of_single_precision_lanes(dtype):
    levels = [0.0, 29.99, 30.01, -29.99, -30.01, 80.0, -85.0, 299.9, -299.9, 12.0]
    logits, targets = batch(2 * len(levels), 19, dtype)
    for row, level in enumerate(levels):
        logits[2 * row, targets[2 * row]] = level
        logits[2 * row + 1, targets[2 * row + 1] - 1] = level
    for labels, kl_weight in product((targets, F.one_hot(targets, 19).float()), (0.0, 1e-4, 0.3)):
        yield logits, labels, None, {"reduction": "none", "kl_weight": kl_weight}


NUMBERS = (
    odd_shapes,
    priors_of_one_number,
    priors_of_large_logits,
    priors_of_one_number_a_class,
    few_and_many_votes,
    class_weights_and_ignored_rows,
    rows_within_and_beyond_the_range_of_single_precision_lanes,
)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("calls", NUMBERS)
def test_native_equals_the_reference_for(calls, dtype):
    torch.manual_seed(0)
    for logits, targets, upstream, options in calls(dtype):
        cancelling = calls in (priors_of_one_number, few_and_many_votes)
        terms = size_of_terms(logits, targets, **options) if cancelling else 0.0
        assert_kernels_agree(logits, targets, upstream, terms, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_digits_survive_where_the_label_leaves_the_others_next_to_nothing(dtype):
    logits, targets = batch(6, 9, dtype, scale=0.5)
    for lead, kl_weight in product((12.0, 20.0, 27.6, 29.5), (0.0, 1e-12, 1e-4)):  # e^−27.6 = 1e−12
        ahead = logits.scatter(1, targets[:, None], lead)
        options = {"kl_weight": kl_weight, "reduction": "none"}
        terms = 8 * size_of_terms(ahead, targets, **options) if lead == 12 else 0.0
        assert_kernels_agree(ahead, targets, terms=terms, **options)


def test_half_precision_gradients_of_a_mean_survive_with_a_gradient_scaler():
    """One row's share is below a half's smallest number; times the scale it is not."""
    logits, targets = batch(2048, 500, torch.float16, scale=2.0)
    scale = torch.tensor(65536.0)
    assert_kernels_agree(logits, targets, scale)
    with native_only():
        _, scaled = loss_and_gradient(logits, targets, scale, kl_weight=1e-4)
        _, unscaled = loss_and_gradient(logits.double(), targets, kl_weight=1e-4)
    assert (unscaled.abs() < torch.finfo(torch.float16).smallest_normal * 2**-10).any()
    assert_gradients_agree(scaled, (65536 * unscaled).half())


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("level", [304.0, -304.0, 1e4, INF, -INF, NAN])
def test_logits_out_of_range_are_left_to_the_reference(level, dtype):
    logits, targets = batch(4, 7, dtype)
    logits[2, 3] = level
    for reduction in ("mean", "none"):
        assert_left_to_reference(logits, targets, reduction=reduction)
        assert_left_to_reference(logits, torch.rand(4, 7), reduction=reduction)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_empty_batches_and_means_of_nothing_are_left_to_the_reference(reduction):
    logits, targets = batch(4, 3)
    assert_left_to_reference(logits[:0], targets[:0], reduction=reduction)
    assert_left_to_reference(torch.zeros(2, 3, 0), torch.zeros(2, 0).long(), reduction=reduction)
    is_mean = reduction == "mean"
    ignored, without_weight = torch.full_like(targets, -100), torch.zeros(3)
    assert_left_to_reference(logits, ignored, left=is_mean, reduction=reduction)
    assert_left_to_reference(logits, targets, left=is_mean, weight=without_weight, reduction=reduction)


@pytest.mark.parametrize("values", [0.0, -1.0, INF, NAN])
def test_priors_of_classes_that_are_not_valid_are_named(values):
    logits, targets = batch(5, 3)
    with using("native"), pytest.raises(ValueError, match="`prior`"):
        belief_matching_loss(logits, targets, prior=torch.tensor([1.0, values, 2.0]))


def misaligned(x):
    """x in memory that begins one byte late."""
    memory = bytearray(b"." + x.numpy().tobytes())
    return torch.frombuffer(memory, dtype=x.dtype, offset=1).view(x.shape)


def negated_twice(x):
    """x as a view that torch negates when it reads it."""
    return torch.complex(torch.zeros_like(x), -x).conj().imag


@pytest.mark.parametrize(
    "change", [lambda x: x.t().contiguous().t(), misaligned, negated_twice, torch.nn.Parameter]
)
@pytest.mark.parametrize("shape", [(6, 4), (1, 1)])
def test_a_repeated_call_looks_at_its_tensors_again(shape, change):
    logits, targets = batch(*shape)
    with using("native"):
        expected = loss_and_gradient(logits, targets)
        torch.testing.assert_close(loss_and_gradient(change(logits), targets), expected)
        torch.testing.assert_close(belief_matching_loss(change(logits), targets), expected[0])
        if shape[1] > 1:
            with torch.inference_mode():
                copied = targets.clone()
            torch.testing.assert_close(loss_and_gradient(change(logits), copied), expected)


def test_a_repeated_call_names_what_is_wrong_with_its_tensors():
    logits, targets = batch(6, 4)
    with using("native"):
        belief_matching_loss(logits, targets)
        with pytest.raises(ValueError, match="`targets`"):
            belief_matching_loss(logits, targets + 4)
        with pytest.raises((TypeError, ValueError), match="`logits`"):
            belief_matching_loss(logits.to_sparse(), targets)


@pytest.mark.parametrize("options", [{"prior": 1e307}, {"prior": 1e-305}, {"kl_weight": 1e35}])
@pytest.mark.parametrize("ignore_index", [-100, 2**63 - 1, -(2**63)])
def test_numbers_too_large_for_the_kernel_are_left_to_the_reference(options, ignore_index):
    logits, targets = batch(3, 4)
    assert_left_to_reference(logits, targets, ignore_index=ignore_index, **options)


@st.composite
def calls(draw):
    def pick(*choices):
        return draw(st.sampled_from(choices))

    rows, classes = draw(st.integers(1, 20)), draw(st.integers(2, 70))
    torch.manual_seed(draw(st.integers(0, 999)))
    logits = (pick(0.1, 1.0, 5.0, 25.0) * torch.randn(rows, classes)).clamp(-100, 100).to(pick(*TYPES))
    targets = torch.randint(classes, (rows,))
    if draw(st.booleans()):
        targets = (pick(1e-3, 1.0, 50.0) * torch.rand(rows, classes)).to(pick(torch.float32, torch.bfloat16))
    shape = pick(None, (), (classes,), (1, classes), (rows, 1), (rows, classes))
    prior = 0.7 if shape is None else torch.rand(shape).mul(6).sub(3).exp().to(pick(*TYPES))
    options = {
        "reduction": pick(*REDUCTIONS),
        "weight": pick(None, torch.rand(classes) + 0.1),
        "prior": prior,
        **pick({"target_confidence": 0.99}, *({"kl_weight": weight} for weight in (0.0, 1e-4, 0.01, 0.5))),
    }
    upstream = torch.rand(rows) if options["reduction"] == "none" else torch.ones(())
    return logits, targets, pick(1.0, -3.0, 0.0, 1e4) * upstream, options


@settings(max_examples=100, **HYPOTHESIS)
@given(call=calls())
def test_native_equals_the_reference_for_any_combination_of_options(call):
    logits, targets, upstream, options = call
    with using("reference"):
        loss, gradient = loss_and_gradient(logits, targets, upstream, **options)
    with native_only():
        own_loss, own_gradient = loss_and_gradient(logits, targets, upstream, **options)
    assert_losses_agree(own_loss, loss, size_of_terms(logits, targets, **options))
    if logits.dtype != torch.float16 or upstream.abs().max() < 10:  # else it may or may not round to infinity
        assert_gradients_agree(own_gradient, gradient)


# Layouts


def stepped(x):
    """The same numbers, every second one in each dimension of a larger tensor of NaN."""
    room = torch.full([2 * size for size in x.shape], NAN, dtype=x.dtype)
    return room[tuple(slice(1, None, 2) for _ in x.shape)].copy_(x)


def reversed_order(x):
    """The same numbers, dimensions in the opposite order in memory."""
    order = list(range(x.dim() - 1, -1, -1))
    return x.permute(order).contiguous().permute(order)


def classes_last(x):
    return x.movedim(1, -1).contiguous().movedim(-1, 1)


def inner_swapped(x):
    return x.transpose(-1, -2).contiguous().transpose(-1, -2)


def shifted(x):
    """The same numbers, one element away from where memory was allocated."""
    return torch.cat([torch.zeros(1, dtype=x.dtype), x.flatten()])[1:].view(x.shape)


def window(x):
    """The same numbers, the first of longer rows."""
    return torch.cat([x, x], -1)[..., : x.shape[-1]]


LAYOUTS = (stepped, reversed_order, classes_last, inner_swapped, shifted, window)
SHAPES = [(7, 19), (3, 5, 6), (2, 19, 3, 4), (2, 5, 2, 3, 4), (2, 5, 4, 1), (2, 5, 4, 1, 3), (3, 1, 2, 2)]
SHAPES += [(2, 5, 1, 1, 5)]  # one voxel deep and high


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_layout_changes_no_bit(shape, layout, dtype):
    torch.manual_seed(0)
    logits = (4 * torch.randn(shape)).to(dtype)
    rows = shape[:1] + shape[2:]
    ids, counts, prior = torch.randint(shape[1], rows), torch.rand(shape), torch.rand(shape) + 0.1
    upstream = torch.randn(rows)
    for targets, beta in ((ids, 1.0), (counts, 1.0), (ids, prior), (counts, prior)):
        moved = ids if targets is ids else layout(targets)
        moved_beta = layout(beta) if isinstance(beta, torch.Tensor) else beta
        with native_only():
            plain = loss_and_gradient(logits, targets, upstream, prior=beta, reduction="none")
            other = loss_and_gradient(layout(logits), moved, upstream, prior=moved_beta, reduction="none")
        assert torch.equal(plain[0], other[0]) and torch.equal(plain[1], other[1])
    assert_kernels_agree(layout(logits), ids, upstream, reduction="none")


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("narrow", [(1, 6, 3, 4), (2, 1, 3, 4), (2, 6, 1, 4), (2, 6, 3, 1), (1, 1, 1, 1)])
def test_expanded_tensors_agree(narrow, dtype):
    torch.manual_seed(0)
    shape, ids = (2, 6, 3, 4), torch.randint(6, (2, 3, 4))
    logits, wide = torch.randn(narrow).to(dtype).expand(shape), torch.randn(shape).to(dtype)
    assert_kernels_agree(logits, ids)
    assert_kernels_agree(wide, torch.rand(narrow).expand(shape))
    assert_kernels_agree(wide, ids, prior=torch.rand(narrow) + 0.5)
    assert_kernels_agree(wide, torch.tensor(2).expand(2, 3, 4))


def test_strided_ids_class_weights_and_single_samples_agree():
    logits, targets = batch(8, 5)
    weight = torch.rand(10)[::2]
    assert_kernels_agree(logits, torch.stack([targets, targets], 1)[:, 0], weight=weight)
    volume, ids = torch.randn(2, 5, 3, 4), torch.randint(5, (2, 4, 3)).transpose(1, 2)
    assert_kernels_agree(volume, ids, weight=weight.expand(5))
    assert_kernels_agree(volume, ids.int(), weight=torch.tensor(0.5).expand(5))
    for logits in (torch.randn(9), torch.randn(18)[::2], torch.tensor(0.3).expand(9)):
        for targets in (torch.tensor(4), torch.rand(9), torch.rand(18)[1::2]):
            assert_kernels_agree(logits, targets, torch.tensor(3.0), reduction="none")
            assert_kernels_agree(logits, targets, prior=torch.rand(9) + 0.1, target_confidence=0.7)


def test_gradients_lie_as_the_logits_do_and_touch_no_neighbours():
    image = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    frame = torch.full((9, 21), 7.0)
    window = frame[1:8, 1:20].copy_(torch.randn(7, 19))
    before = frame.clone()
    with native_only():
        _, gradient = loss_and_gradient(image, torch.randint(3, (2, 4, 5)))
        loss_and_gradient(window, torch.randint(19, (7,)))
    assert gradient.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(frame, before)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("classes", [3, 17, 150, 3000])
def test_a_row_is_the_same_alone_in_a_batch_and_anywhere_in_it(classes, dtype):
    logits, targets = batch(37, classes, dtype, scale=9.0)
    logits[5, 1], logits[6] = 77.0, logits[30]
    targets[6] = targets[30]
    order = torch.randperm(37)
    with native_only():
        losses, gradients = loss_and_gradient(logits, targets, reduction="none")
        moved = loss_and_gradient(logits[order], targets[order], reduction="none")
        for row in (0, 5, 6, 15, 16, 36):
            alone = loss_and_gradient(logits[row : row + 1], targets[row : row + 1], reduction="none")
            assert torch.equal(alone[0][0], losses[row]) and torch.equal(alone[1][0], gradients[row])
    assert torch.equal(moved[0], losses[order]) and torch.equal(moved[1], gradients[order])
    assert torch.equal(losses[6], losses[30]) and torch.equal(gradients[6], gradients[30])


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(61, 1000), (2, 50, 29, 23), (3, 20000)])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_number_of_threads_changes_no_bit(reduction, shape, dtype):
    torch.manual_seed(0)
    logits = (3 * torch.randn(shape)).to(dtype)
    rows = shape[:1] + shape[2:]
    targets = torch.randint(shape[1], rows)
    upstream = torch.rand(rows) if reduction == "none" else torch.tensor(0.7)
    options = {"reduction": reduction, "weight": torch.rand(shape[1]), "kl_weight": 1e-5}
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            with native_only():
                results.append(loss_and_gradient(logits, targets, upstream, **options))
        assert_kernels_agree(logits, torch.rand(shape), kl_weight=1e-4)
    finally:
        torch.set_num_threads(1)
    for loss, gradient in results[1:]:
        assert torch.equal(loss, results[0][0]) and torch.equal(gradient, results[0][1])
