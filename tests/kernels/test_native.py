"""The native kernel equals the reference and the paper's formula, whatever the numbers."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import oracle
from beliefmatch import belief_matching_loss
from kernel_pair import (
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


def posterior(targets, classes, prior, kl_weight):
    """Logits of the optimum."""
    votes = torch.nn.functional.one_hot(targets, classes).double()
    return (prior + votes / kl_weight).log()


def assert_same_as_reference(logits, targets, **options):
    """Bit for bit: what the native kernel leaves to the reference."""
    with using("reference"):
        expected = loss_and_gradient(logits, targets, **options)
    with using("native"):
        received = loss_and_gradient(logits, targets, **options)
    torch.testing.assert_close(received, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(1, 2), (3, 1), (5, 16), (17, 33), (41, 401), (7, 1271), (1, 128000)])
def test_equals_the_reference_on_odd_shapes(shape, dtype):
    logits, targets = batch(*shape, dtype)
    assert_kernels_agree(logits, targets, torch.tensor(1.7), kl_weight=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [0.0, 1.0, 9.0])
def test_matches_sixty_digit_oracle(scale, dtype):
    logits, targets = batch(3, 37, dtype, scale=scale)
    with native_only():
        losses, gradients = loss_and_gradient(logits, targets, reduction="none")
    for row, label, loss, gradient in zip(logits, targets, losses, gradients, strict=True):
        votes = [float(k == label) for k in range(37)]
        arguments = (row.tolist(), votes, [1.0] * 37, 0.01)
        double = dtype == torch.float64
        assert oracle.relative_error(loss.item(), oracle.loss(*arguments)) < (1e-13 if double else 1e-6)
        truth = oracle.gradient(*arguments)
        assert oracle.relative_error(gradient.tolist(), truth) < (1e-13 if double else 2e-6)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("prior", [1e-3, 0.5, 1.0, 4.0, 5.0, 1e3, 1e6])
@pytest.mark.parametrize("kl_weight", [0.0, 1e-4, 0.1])
def test_equals_the_reference_for_a_prior_that_is_one_number(prior, kl_weight, dtype):
    logits, targets = batch(5, 23, dtype)
    options = {"prior": prior, "kl_weight": kl_weight}
    terms = size_of_terms(logits, targets, **options)
    assert_kernels_agree(logits, targets, terms=terms, **options)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(), (23,), (1, 23), (5, 1), (5, 23)])
@pytest.mark.parametrize("strength", [{"kl_weight": 0.02}, {"target_confidence": 0.8}])
def test_equals_the_reference_for_a_prior_that_is_a_tensor(shape, strength, dtype):
    logits, targets = batch(5, 23, dtype)
    prior = torch.rand(shape).mul(6).sub(4).exp()
    counts = 3 * torch.rand(5, 23)
    for labels, beta in ((targets, prior.to(dtype)), (counts, prior), (counts.bfloat16(), prior.double())):
        for weight in (None, torch.rand(23)):
            assert_kernels_agree(logits, labels, prior=beta, weight=weight, **strength)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("size", [0.0, 1e-6, 1.0, 1e9, 1e29])
def test_equals_the_reference_for_few_and_many_votes(size, dtype):
    logits, _ = batch(5, 23, dtype)
    counts = size * torch.rand(5, 23)
    counts[1] = 0
    counts[2, 1:] = 0
    for kl_weight in (0.0, 0.01, 1.0):
        terms = size_of_terms(logits, counts, kl_weight=kl_weight)
        assert_kernels_agree(logits, counts, terms=terms, kl_weight=kl_weight)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_equals_the_reference_with_class_weights_and_ignored_rows(reduction, dtype):
    logits, targets = batch(9, 5, dtype)
    targets[[1, 7]] = 3
    logits[[1, 7], 2] = torch.tensor([NAN, INF], dtype=dtype)  # nobody looks there
    weight = torch.tensor([0.0, 0.5, 1.0, 9.0, 2.0])
    upstream = torch.linspace(-2, 3, 9) if reduction == "none" else torch.tensor(-0.3)
    for given_weight in (None, weight, weight.double(), weight.bfloat16()):
        options = {"weight": given_weight, "ignore_index": 3, "reduction": reduction}
        assert_kernels_agree(logits, targets, upstream, **options)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_nothing_to_average_is_left_to_the_reference(reduction):
    logits, targets = batch(4, 3)
    nobody = torch.full_like(targets, -100)
    assert_same_as_reference(logits, nobody, reduction=reduction)
    assert_same_as_reference(logits, targets, weight=torch.zeros(3), reduction=reduction)
    assert_same_as_reference(logits[:0], targets[:0], reduction=reduction)
    assert_same_as_reference(torch.zeros(2, 3, 0), torch.zeros(2, 0).long(), reduction=reduction)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_takes_class_ids_of_every_integer_type(dtype):
    logits, targets = batch(6, 5)
    assert_kernels_agree(logits, targets.to(dtype))


@pytest.mark.parametrize("dtype", TYPES)
def test_rows_within_and_beyond_the_range_of_each_path_share_a_batch(dtype):
    levels = [0.0, 29.99, 30.01, -29.99, -30.01, 80.0, -85.0, 299.9, -299.9, 12.0]
    logits, targets = batch(2 * len(levels), 19, dtype)
    for row, level in enumerate(levels):
        logits[2 * row, targets[2 * row]] = level
        logits[2 * row + 1, targets[2 * row + 1] - 1] = level
    for kl_weight in (0.0, 1e-4, 0.3):
        assert_kernels_agree(logits, targets, reduction="none", kl_weight=kl_weight)
        votes = torch.nn.functional.one_hot(targets, 19).float()
        assert_kernels_agree(logits, votes, reduction="none", kl_weight=kl_weight)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("level", [304.0, -304.0, 1e4, INF, -INF, NAN])
def test_logits_out_of_range_are_left_to_the_reference(level, dtype):
    logits, targets = batch(4, 7, dtype)
    logits[2, 3] = level
    for reduction in ("mean", "none"):
        assert_same_as_reference(logits, targets, reduction=reduction)
        assert_same_as_reference(logits, torch.rand(4, 7), reduction=reduction)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("distance", [1e-3, 1e-2, 0.3])
@pytest.mark.parametrize("prior", [0.1, 1.0, 4.0, 20.0])
def test_keeps_its_digits_near_the_optimum(prior, distance, dtype):
    for kl_weight in (1e-4, 1e-2, 1.0):
        _, targets = batch(5, 40)
        logits = posterior(targets, 40, prior, kl_weight) + distance * torch.randn(5, 40).double()
        options = {"prior": prior, "kl_weight": kl_weight, "reduction": "none"}
        terms = size_of_terms(logits, targets, **options)
        assert_kernels_agree(logits.to(dtype), targets, terms=terms, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_keeps_its_digits_where_the_label_leaves_the_others_next_to_nothing(dtype):
    logits, targets = batch(6, 9, dtype, scale=0.5)
    for lead in (12.0, 20.0, 27.6, 29.5):  # e^−27.6 = 1e−12
        ahead = logits.scatter(1, targets[:, None], lead)
        for kl_weight in (0.0, 1e-12, 1e-4):
            options = {"kl_weight": kl_weight, "reduction": "none"}
            terms = size_of_terms(ahead, targets, **options) if lead == 12 else 0.0
            assert_kernels_agree(ahead, targets, terms=8 * terms, **options)


@pytest.mark.parametrize("dtype", TYPES)
def test_one_class_has_nothing_to_learn(dtype):
    logits = torch.tensor([[-90.0], [-3.0], [0.0], [2.0], [90.0]], dtype=dtype)
    for labels in (torch.zeros(5).long(), torch.rand(5, 1)):
        with native_only():
            loss, gradient = loss_and_gradient(logits, labels, reduction="none")
        assert not loss.any() and not gradient.any()


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


INVALID = {
    "an id too large": (torch.tensor([0, 5, 1]), {}),
    "a negative id": (torch.tensor([0, -1, 1]), {}),
    "a negative count": (torch.tensor([[1.0] * 5, [1.0, -1.0, 0.0, 0.0, 0.0], [0.0] * 5]), {}),
    "a count that is NaN": (torch.tensor([[1.0] * 5, [1.0, NAN, 0.0, 0.0, 0.0], [0.0] * 5]), {}),
    "an infinite count": (torch.tensor([[1.0] * 5, [1.0, INF, 0.0, 0.0, 0.0], [0.0] * 5]), {}),
    "a negative weight": (torch.tensor([0, 2, 1]), {"weight": torch.tensor([1.0, 1.0, 1.0, -1.0, 1.0])}),
    "a weight that is NaN": (torch.tensor([0, 2, 1]), {"weight": torch.tensor([1.0, 1.0, NAN, 1.0, 1.0])}),
    "a prior of zero": (torch.tensor([0, 2, 1]), {"prior": torch.tensor([1.0, 0.0, 1.0, 1.0, 1.0])}),
    "an infinite prior": (torch.tensor([0, 2, 1]), {"prior": torch.tensor([1.0, INF, 1.0, 1.0, 1.0])}),
}


@pytest.mark.parametrize("case", INVALID)
def test_what_is_not_allowed_is_named_as_the_reference_names_it(case):
    targets, options = INVALID[case]
    messages = []
    for kernel in ("reference", "native"):
        for tracked in (False, True):
            with using(kernel), pytest.raises(ValueError) as error:
                belief_matching_loss(torch.zeros(3, 5, requires_grad=tracked), targets, **options)
            messages.append(str(error.value))
    assert messages == [messages[0]] * 4


@pytest.mark.parametrize("options", [{"prior": 1e307}, {"prior": 1e-305}, {"kl_weight": 1e35}])
@pytest.mark.parametrize("ignore_index", [-100, 2**63 - 1, -(2**63)])
def test_numbers_too_large_for_the_kernel_are_left_to_the_reference(options, ignore_index):
    logits, targets = batch(3, 4)
    assert_same_as_reference(logits, targets, ignore_index=ignore_index, **options)


@st.composite
def problems(draw):
    rows, classes = draw(st.integers(1, 20)), draw(st.integers(1, 70))
    dtype, seed = draw(st.sampled_from(TYPES)), draw(st.integers(0, 999))
    torch.manual_seed(seed)
    scale = draw(st.sampled_from([0.1, 1.0, 5.0, 25.0]))
    logits = (scale * torch.randn(rows, classes)).clamp(-100, 100).to(dtype)
    targets = torch.randint(classes, (rows,))
    if draw(st.booleans()):
        targets = draw(st.sampled_from([1e-3, 1.0, 50.0])) * torch.rand(rows, classes)
    options = {
        "reduction": draw(st.sampled_from(["mean", "sum", "none"])),
        "kl_weight": draw(st.sampled_from([0.0, 1e-4, 0.01, 0.5])),
        "weight": draw(st.sampled_from([None, torch.rand(classes) + 0.1])),
    }
    shape = draw(st.sampled_from([None, (), (classes,), (rows, 1), (rows, classes)]))
    options["prior"] = 0.7 if shape is None else torch.rand(shape) + 0.05
    size = draw(st.sampled_from([1.0, -3.0, 0.0, 1e4]))
    upstream = size * (torch.rand(rows) if options["reduction"] == "none" else torch.ones(()))
    return logits, targets, upstream, options


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(problem=problems())
def test_equals_the_reference_for_any_combination_of_options(problem):
    logits, targets, upstream, options = problem
    with using("reference"):
        loss, gradient = loss_and_gradient(logits, targets, upstream, **options)
    with native_only():
        own_loss, own_gradient = loss_and_gradient(logits, targets, upstream, **options)
    assert_losses_agree(own_loss, loss, size_of_terms(logits, targets, **options))
    if logits.dtype != torch.float16 or upstream.abs().max() < 10:  # else it may or may not round to infinity
        assert_gradients_agree(own_gradient, gradient)


@pytest.mark.parametrize("prior", [0.25, 0.5, 2.0, 3.9])
def test_large_logits_keep_their_digits_under_priors_other_than_one(instruction_set, prior):
    generator = torch.Generator().manual_seed(int(100 * prior))
    for classes in (2, 5, 40, 100):
        logits = 29.9 * (2 * torch.rand(50, classes, generator=generator) - 1)
        targets = torch.randint(classes, (50,), generator=generator)
        assert_kernels_agree(logits, targets, prior=prior, kl_weight=0.02 / classes)
