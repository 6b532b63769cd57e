"""The loss under torch's machinery: higher derivatives, transforms, compilation, autocast, all types."""

import math
import shutil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap

from beliefmatch import Belief, BeliefMatchingLoss, belief_matching_loss, dirichlet_kl

DOUBLE = torch.float64
TARGETS = torch.tensor([2, 0, 3])


def double_batch(seed=0):
    torch.manual_seed(seed)
    logits = (2 * torch.randn(3, 4, dtype=DOUBLE)).requires_grad_()
    counts = (3 * torch.rand(3, 4, dtype=DOUBLE) + 0.1).requires_grad_()
    prior = (torch.rand(3, 4, dtype=DOUBLE) + 0.3).requires_grad_()
    return logits, counts, prior


def test_first_and_second_derivatives_by_logits_are_right():
    logits, _, _ = double_batch()
    for kl_weight in (0.0, 0.01, 0.4):
        for reduction in ("mean", "sum", "none"):

            def loss(z, kl_weight=kl_weight, reduction=reduction):
                return belief_matching_loss(z, TARGETS, kl_weight=kl_weight, reduction=reduction)

            assert gradcheck(loss, logits, check_forward_ad=True)
            assert gradgradcheck(loss, logits)


def test_derivatives_close_to_the_optimum_are_right():
    """Where the factored form of the gradient takes over."""
    posterior = torch.ones(3, 4, dtype=DOUBLE).scatter(1, TARGETS[:, None], 1 + 1 / 0.1).log()
    logits = (posterior + 0.1 * torch.randn(3, 4, dtype=DOUBLE)).requires_grad_()
    assert gradcheck(lambda z: belief_matching_loss(z, TARGETS, kl_weight=0.1), logits)
    assert gradgradcheck(lambda z: belief_matching_loss(z, TARGETS, kl_weight=0.1), logits)


@pytest.mark.parametrize("weighted", [False, True])
def test_first_and_second_derivatives_by_counts_and_prior_are_right(weighted):
    weight = torch.tensor([0.5, 1.0, 2.0, 3.0], dtype=DOUBLE) if weighted else None

    def loss(logits, counts, prior):
        return belief_matching_loss(logits, counts, prior=prior, kl_weight=0.2, weight=weight)

    assert gradcheck(loss, double_batch(), check_forward_ad=True)
    assert gradgradcheck(loss, double_batch())


def test_derivative_by_a_prior_shared_among_samples_is_summed():
    logits, _, _ = double_batch()
    for shape in ((), (4,), (1, 4), (3, 1)):
        prior = torch.full(shape, 0.7, dtype=DOUBLE, requires_grad=True)
        assert gradcheck(lambda b: belief_matching_loss(logits.detach(), TARGETS, prior=b), prior)


def test_spatial_layout_has_right_derivatives():
    logits = torch.randn(2, 3, 2, 2, dtype=DOUBLE, requires_grad=True)
    targets = torch.randint(3, (2, 2, 2))
    assert gradcheck(lambda z: belief_matching_loss(z, targets, reduction="none"), logits)
    assert gradgradcheck(lambda z: belief_matching_loss(z, targets), logits)


def test_functional_transforms_agree_with_backward():
    logits, _, _ = double_batch()
    (expected,) = torch.autograd.grad(belief_matching_loss(logits, TARGETS), logits)
    z = logits.detach()
    torch.testing.assert_close(grad(lambda x: belief_matching_loss(x, TARGETS))(z), expected)
    per_sample = vmap(grad(belief_matching_loss))(z, TARGETS)
    torch.testing.assert_close(per_sample / 3, expected)
    direction = torch.randn_like(z)
    _, slope = jvp(lambda x: belief_matching_loss(x, TARGETS), (z,), (direction,))
    torch.testing.assert_close(slope, (expected * direction).sum())


def test_hessian_by_forward_over_reverse_equals_reverse_over_reverse_and_is_symmetric():
    z = torch.randn(5, dtype=DOUBLE)

    def loss(x):
        return belief_matching_loss(x, torch.tensor(1), kl_weight=0.3)

    derive_seed = hessian(loss)(z)
    torch.testing.assert_close(derive_seed, jacrev(jacrev(loss))(z))
    torch.testing.assert_close(derive_seed, derive_seed.mT)
    torch.testing.assert_close(jacfwd(loss)(z), jacrev(loss)(z))


def test_vmap_over_samples_equals_a_batch():
    logits, counts, prior = (x.detach() for x in double_batch())
    batched = belief_matching_loss(logits, counts, prior=prior, reduction="none")
    mapped = vmap(lambda z, c, b: belief_matching_loss(z, c, prior=b))(logits, counts, prior)
    torch.testing.assert_close(mapped, batched)


def test_compiles_without_a_graph_break_and_agrees():
    torch.manual_seed(0)
    weight = torch.rand(10) + 0.5
    cases = [
        (torch.randn(16, 10), torch.randint(10, (16,)), {"weight": weight, "ignore_index": 3}),
        (torch.randn(16, 10), torch.rand(16, 10), {"prior": weight, "reduction": "sum"}),
        (torch.randn(4, 5, 3), torch.randint(5, (4, 3)), {"target_confidence": 0.9}),
    ]
    for logits, targets, options in cases:

        def loss(z, y, options=options):
            return belief_matching_loss(z, y, **options)

        z = logits.requires_grad_()
        (expected,) = torch.autograd.grad(loss(z, targets), z)
        compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
        value = compiled(z, targets)
        (gradient,) = torch.autograd.grad(value, z)
        torch.testing.assert_close(value, loss(z, targets), rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.skipif(shutil.which("g++") is None and shutil.which("clang++") is None, reason="no C++ compiler")
@pytest.mark.skipif(" " in torch.__file__, reason="torch's compiler cannot work in a path with a space")
def test_training_step_compiles_to_machine_code_with_its_module():
    torch.manual_seed(0)
    model, criterion = torch.nn.Linear(6, 4), BeliefMatchingLoss()

    @torch.compile(fullgraph=True)
    def step(x, y):
        return criterion(model(x), y)

    x, y = torch.randn(8, 6), torch.randint(4, (8,))
    step(x, y).backward()
    compiled = model.weight.grad.clone()
    model.zero_grad()
    criterion(model(x), y).backward()
    torch.testing.assert_close(compiled, model.weight.grad, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_computes_in_float32_and_returns_gradients_in_the_parameters_type(dtype):
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 4)
    x, y = torch.randn(8, 6), torch.randint(4, (8,))
    with torch.autocast("cpu", dtype=dtype):
        logits = model(x)
        loss = belief_matching_loss(logits, y)
    loss.backward()
    assert logits.dtype == dtype and loss.dtype == torch.float32
    assert model.weight.grad.dtype == torch.float32
    ood = belief_matching_loss(logits.detach(), y)
    assert torch.equal(ood, loss.detach())


@pytest.mark.parametrize("options", [{}, {"target_confidence": 0.9}, {"reduction": "none"}])
def test_devices_are_not_asked_for_values(options):
    """The meta device has none to give: whatever would make a GPU wait fails here."""
    logits = torch.empty(4, 10, device="meta", requires_grad=True)
    per_class, counts = torch.empty(10, device="meta"), torch.empty(4, 10, device="meta")
    for targets in (torch.empty(4, dtype=torch.long, device="meta"), counts):
        for prior in (1.0, per_class, counts):
            loss = belief_matching_loss(logits, targets, prior=prior, weight=per_class, **options)
            loss.sum().backward()
            assert logits.grad.shape == (4, 10)
    belief = Belief(logits)
    for value in (
        belief.variance,
        belief.mutual_information(),
        belief.update(counts).probs,
    ):
        assert value.device.type == "meta"
    assert dirichlet_kl(logits, counts).shape == (4,)


FLOATING = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@st.composite
def extreme_batches(draw):
    dtype = draw(st.sampled_from(FLOATING))
    classes = draw(st.integers(1, 6))
    largest = torch.finfo(dtype).max
    values = st.one_of(
        st.sampled_from([0.0, largest, -largest, 88.7, -88.7, -95.0, -104.0, 710.0, -746.0, 1e-30]),
        st.floats(-1e4, 1e4),
        st.floats(-30, 30),
        st.floats(-largest, largest),
    )
    rows = draw(st.lists(st.lists(values, min_size=classes, max_size=classes), min_size=3, max_size=5))
    logits = torch.tensor(rows, dtype=DOUBLE).clamp(-largest, largest).to(dtype)
    kl_weight = draw(st.sampled_from([0.0, 1e-4, 0.01, 1.0, 30.0]))
    prior = draw(st.sampled_from([1.0, 1e-3, 50.0]))
    label = draw(st.integers(0, classes - 1))
    counts = draw(st.booleans())
    return logits, label, kl_weight, prior, counts


@settings(max_examples=300, deadline=None)
@given(extreme_batches())
@pytest.mark.filterwarnings("ignore:belief_matching_loss. kl_weight")
def test_every_finite_input_gives_a_finite_loss_and_gradient(case):
    logits, label, kl_weight, prior, use_counts = case
    logits = logits.detach().requires_grad_()
    targets = torch.full((len(logits),), label)
    if use_counts:
        targets = 0.5 + torch.nn.functional.one_hot(targets, logits.shape[1]).to(logits.dtype)
    for reduction in ("mean", "sum", "none"):
        options = {"kl_weight": kl_weight, "prior": prior, "reduction": reduction}
        loss = belief_matching_loss(logits, targets, **options)
        (gradient,) = torch.autograd.grad(loss.sum(), logits)
        assert loss.isfinite().all() and (loss >= 0).all()
        assert gradient.isfinite().all() and gradient.dtype == logits.dtype


def test_loss_and_gradient_saturate_where_the_truth_leaves_the_type():
    logits = torch.tensor([[-200.0, 0.0, 1.0]], requires_grad=True)
    loss = belief_matching_loss(logits, torch.tensor([0]))
    loss.backward()
    largest = torch.finfo(torch.float32).max
    assert loss.item() == largest
    assert logits.grad[0, 0].item() == -largest


def test_gradient_is_scaled_by_what_comes_from_above():
    logits = torch.randn(3, 4, requires_grad=True)
    (unit,) = torch.autograd.grad(belief_matching_loss(logits, TARGETS), logits)
    (scaled,) = torch.autograd.grad(1024 * belief_matching_loss(logits, TARGETS), logits)
    torch.testing.assert_close(scaled, 1024 * unit, rtol=1e-6, atol=0)
    rows = belief_matching_loss(logits, TARGETS, reduction="none")
    (derive_seed,) = torch.autograd.grad(rows, logits, torch.tensor([1.0, 0.0, -2.0]))
    torch.testing.assert_close(derive_seed, unit * torch.tensor([[3.0], [0.0], [-6.0]]), rtol=1e-6, atol=0)


def test_a_prior_that_is_a_parameter_is_trained():
    module = BeliefMatchingLoss(prior=torch.nn.Parameter(torch.ones(4)))
    assert [name for name, _ in module.named_parameters()] == ["prior"]
    module(torch.randn(3, 4), TARGETS).backward()
    assert module.prior.grad.abs().sum() > 0


def test_infinite_logit_is_not_hidden():
    logits = torch.tensor([[math.inf, 0.0, 1.0], [0.0, 1.0, 2.0], [0.0, 0.0, 0.0]])
    rows = belief_matching_loss(logits, TARGETS.clamp(max=2), reduction="none")
    assert rows.isnan().tolist() == [True, False, False]


def test_compiles_without_gradients_too():
    logits, targets = torch.randn(6, 5), torch.randint(5, (6,))
    compiled = torch.compile(belief_matching_loss, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(logits, targets), belief_matching_loss(logits, targets))


def test_gradient_scaler_sees_that_its_scale_is_too_large():
    """Finite by itself; multiplied by a loss scale beyond the type it must overflow, not saturate."""
    logits = torch.tensor([[-8.0, 0.0, 1.0]], dtype=torch.float16, requires_grad=True)
    loss = belief_matching_loss(logits, torch.tensor([0]))
    (plain,) = torch.autograd.grad(loss, logits, retain_graph=True)
    (scaled,) = torch.autograd.grad(65536 * loss, logits)
    assert plain.isfinite().all() and plain.abs().max() > 1000
    assert scaled[0, 0].isinf()


def test_kl_weight_can_change_between_compiled_steps():
    """KL annealing: a changed number must not break the graph."""
    torch.manual_seed(0)
    criterion = BeliefMatchingLoss(kl_weight=0.01)
    compiled = torch.compile(criterion, fullgraph=True, backend="aot_eager")
    logits, targets = torch.randn(6, 5), torch.randint(5, (6,))
    for kl_weight in (0.01, 0.02, 0.03):
        criterion.kl_weight = kl_weight
        expected = belief_matching_loss(logits, targets, kl_weight=kl_weight)
        torch.testing.assert_close(compiled(logits, targets), expected)


def test_compiles_for_batches_of_any_size():
    compiled = torch.compile(belief_matching_loss, fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (3, 5, 9):
        logits, targets = torch.randn(rows, 4, requires_grad=True), torch.randint(4, (rows,))
        torch.testing.assert_close(compiled(logits, targets), belief_matching_loss(logits, targets))


@pytest.mark.filterwarnings("ignore:belief_matching_loss. kl_weight")
def test_saturates_upwards_and_not_to_zero_when_votes_meet_huge_logits():
    largest = torch.finfo(torch.float32).max
    for logits, counts in (([largest, 1.13e38, 0.0], [0.0, 4.0, 0.0]), ([1e37, 1e37, 0.0], [0.0, 40.0, 0.0])):
        for prior in (1.0, torch.tensor([2.0, 2.0, 2.0]), torch.tensor([1e6, 1e-6, 1.0])):
            loss = belief_matching_loss(torch.tensor(logits), torch.tensor(counts), prior=prior)
            assert loss.isfinite() and loss > 1e35
    huge = torch.tensor([3e38, 3e38])
    assert belief_matching_loss(torch.tensor([-11.0, 1.67]), huge).item() == largest
    assert belief_matching_loss(torch.zeros(3, 4), TARGETS, kl_weight=1e38, prior=1e39).isfinite()


def test_second_derivatives_are_finite_far_out():
    for level in (-100.0, -80.0, 80.0):
        logits = torch.tensor([level, 0.0, 1.0], requires_grad=True)
        (first,) = torch.autograd.grad(
            belief_matching_loss(logits, torch.tensor(1), kl_weight=1e-4), logits, create_graph=True
        )
        (second,) = torch.autograd.grad(first[1], logits)
        assert second.isfinite().all()
