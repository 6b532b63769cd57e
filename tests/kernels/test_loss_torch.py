"""The kernels of the loss under torch's machinery: derivatives, transforms, compilers, threads, modes."""

import os
import shutil
import subprocess
import sys
import threading
from contextlib import nullcontext
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from test_loss_contract import LOGITS as KINDS
from test_loss_contract import extreme_batches
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from beliefmatch import Belief, BeliefMatchingLoss, belief_matching_loss, dirichlet_kl, kernels
from beliefmatch._errors import ArgumentError
from beliefmatch.kernels import lean
from beliefmatch.loss import checked_inputs
from counts import count
from kernel_contract import (
    NEEDS_NATIVE,
    TYPES,
    assert_exact,
    assert_gradients_agree,
    assert_kernels_agree,
    assert_same_by_both,
    batch,
    computing_with,
    loss_and_gradient,
    native_only,
    not_the_reference,
    using,
)

DOUBLE = torch.float64
INF, NAN = float("inf"), float("nan")
LOGITS, TARGETS = batch(5, 7)
NEEDS_COMPILER = pytest.mark.skipif(
    " " in torch.__file__ or not (shutil.which("g++") or shutil.which("clang++")),
    reason="no C++ compiler, or torch in a path with a space",
)


def tracked(x=LOGITS):
    return x.clone().requires_grad_()


def loss_of(logits, **options):
    return belief_matching_loss(logits, TARGETS, **options)


# Derivatives


def double_batch():
    torch.manual_seed(0)
    logits = 2 * torch.randn(3, 4, dtype=DOUBLE)
    counts = 3 * torch.rand(3, 4, dtype=DOUBLE) + 0.1
    prior = torch.rand(3, 4, dtype=DOUBLE) + 0.3
    return logits.requires_grad_(), counts.requires_grad_(), prior.requires_grad_()


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_first_and_second_derivatives_by_logits_are_right(reduction, kernel):
    logits, targets = double_batch()[0], torch.tensor([2, 0, 3])
    posterior = torch.ones(3, 4, dtype=DOUBLE).scatter(1, targets[:, None], 1 + 1 / 0.1).log()
    near = (
        posterior + 0.1 * torch.randn(3, 4, dtype=DOUBLE)
    ).requires_grad_()  # the other form of the gradient
    for at, kl_weight in ((logits, 0.0), (logits, 0.01), (logits, 0.4), (near, 0.1)):

        def loss(z, kl_weight=kl_weight):
            return belief_matching_loss(z, targets, kl_weight=kl_weight, reduction=reduction)

        assert gradcheck(loss, at, check_forward_ad=True)
        assert gradgradcheck(loss, at)
    image = torch.randn(2, 3, 2, 2, dtype=DOUBLE, requires_grad=True)
    ids = torch.randint(3, (2, 2, 2))
    assert gradcheck(lambda z: belief_matching_loss(z, ids, reduction=reduction), image)
    assert gradgradcheck(lambda z: belief_matching_loss(z, ids, reduction=reduction), image)


@pytest.mark.parametrize("weighted", [False, True])
def test_first_and_second_derivatives_by_counts_and_prior_are_right(weighted):
    weight = torch.tensor([0.5, 1.0, 2.0, 3.0], dtype=DOUBLE) if weighted else None

    def loss(logits, counts, prior):
        return belief_matching_loss(logits, counts, prior=prior, kl_weight=0.2, weight=weight)

    assert gradcheck(loss, double_batch(), check_forward_ad=True)
    assert gradgradcheck(loss, double_batch())


def test_derivative_by_a_prior_shared_among_samples_is_summed():
    logits, targets = double_batch()[0].detach(), torch.tensor([2, 0, 3])
    for shape in ((), (4,), (1, 4), (3, 1)):
        prior = torch.full(shape, 0.7, dtype=DOUBLE, requires_grad=True)
        assert gradcheck(lambda b: belief_matching_loss(logits, targets, prior=b), prior)


def test_second_derivatives_are_finite_far_out():
    for level in (-100.0, -80.0, 80.0):
        logits = torch.tensor([level, 0.0, 1.0], requires_grad=True)
        loss = belief_matching_loss(logits, torch.tensor(1), kl_weight=1e-4)
        (first,) = torch.autograd.grad(loss, logits, create_graph=True)
        (second,) = torch.autograd.grad(first[1], logits)
        assert second.isfinite().all()


def test_hessian_by_forward_over_reverse_equals_reverse_over_reverse_and_is_symmetric():
    def loss(x):
        return belief_matching_loss(x, torch.tensor(1), kl_weight=0.3)

    z = torch.randn(5, dtype=DOUBLE)
    mixed = hessian(loss)(z)
    torch.testing.assert_close(mixed, jacrev(jacrev(loss))(z))
    torch.testing.assert_close(mixed, mixed.mT)
    torch.testing.assert_close(jacfwd(loss)(z), jacrev(loss)(z))


def test_function_transforms_agree_with_backward_and_with_batches():
    logits, counts, prior = (x.detach() for x in double_batch())
    targets = torch.tensor([2, 0, 3])
    _, expected = loss_and_gradient(logits, targets)
    torch.testing.assert_close(grad(lambda x: belief_matching_loss(x, targets))(logits), expected)
    torch.testing.assert_close(vmap(grad(belief_matching_loss))(logits, targets) / 3, expected)
    direction = torch.randn_like(logits)
    _, pushed = jvp(lambda x: belief_matching_loss(x, targets), (logits,), (direction,))
    torch.testing.assert_close(pushed, (expected * direction).sum())
    batched = belief_matching_loss(logits, counts, prior=prior, reduction="none")
    mapped = vmap(lambda z, c, b: belief_matching_loss(z, c, prior=b))(logits, counts, prior)
    torch.testing.assert_close(mapped, batched)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_computes_in_float32_and_returns_gradients_in_the_parameters_type(dtype, kernel):
    torch.manual_seed(0)
    model, x, y = torch.nn.Linear(6, 4), torch.randn(8, 6), torch.randint(4, (8,))
    with torch.autocast("cpu", dtype=dtype):
        logits = model(x)
        loss = belief_matching_loss(logits, y)
    loss.backward()
    assert logits.dtype == dtype and loss.dtype == torch.float32
    assert model.weight.grad.dtype == torch.float32
    assert torch.equal(belief_matching_loss(logits.detach(), y), loss.detach())


@pytest.mark.parametrize("options", [{}, {"target_confidence": 0.9}, {"reduction": "none"}])
def test_values_on_a_device_are_never_read(options):
    """The meta device has none to give: whatever would make a GPU wait fails here."""
    logits = torch.empty(4, 10, device="meta", requires_grad=True)
    per_class, counts = torch.empty(10, device="meta"), torch.empty(4, 10, device="meta")
    for targets in (torch.empty(4, dtype=torch.long, device="meta"), counts):
        for prior in (1.0, per_class, counts):
            belief_matching_loss(logits, targets, prior=prior, weight=per_class, **options).sum().backward()
            assert logits.grad.shape == (4, 10)
    belief = Belief(logits)
    for value in (belief.variance, belief.mutual_information(), belief.update(counts).probs):
        assert value.device.type == "meta"
    assert dirichlet_kl(logits, counts).shape == (4,)


@pytest.mark.parametrize("kernel", ["auto", "lean", "reference"])
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_tensors_without_values_have_a_loss_and_a_gradient(kernel, reduction, dtype):
    """On the meta device, and in a FakeTensorMode that follows calls with values."""
    criterion = BeliefMatchingLoss(reduction=reduction)

    def shapes(device):
        logits = torch.randn(5, 4, device=device, dtype=dtype, requires_grad=True)
        for targets in (torch.ones(5, dtype=torch.long, device=device), torch.ones(5, 4, device=device)):
            loss = criterion(logits, targets)
            loss.sum().backward()
            yield loss.shape, loss.dtype, loss.device.type
            yield logits.grad.shape, logits.grad.dtype, logits.grad.device.type

    with using(kernel):
        with_values, meta = list(shapes("cpu")), list(shapes("meta"))
        with FakeTensorMode():
            fake = list(shapes("cpu"))
    assert fake == with_values
    assert meta == [(shape, kind, "meta") for shape, kind, _ in with_values]
    assert with_values[0][:2] == (
        (5,) if reduction == "none" else (),
        torch.promote_types(dtype, torch.float32),
    )


# Compilers


WEIGHT = torch.tensor([0.5, 1.0, 2.0, 0.0, 3.0])
COMPILED = [
    ("ids", torch.float32, (16, 5), {"weight": WEIGHT, "ignore_index": 2}),
    ("ids", torch.bfloat16, (3, 5, 2), {"reduction": "none", "target_confidence": 0.9, "prior": 0.5}),
    ("ids", torch.float16, (5,), {"weight": WEIGHT, "reduction": "sum", "kl_weight": 0.0}),
    ("ids", torch.float32, (16, 5), {"prior": WEIGHT + 0.1, "reduction": "sum"}),
    ("counts", torch.bfloat16, (3, 5, 2), {"reduction": "none", "weight": WEIGHT, "prior": 0.5}),
]


SEEN_INTO = ["lean", pytest.param("native", marks=NEEDS_NATIVE)]
"""Kernels inside `torch.compile`: the one that it sees into, and one that is an operation."""


@pytest.mark.parametrize("kernel", SEEN_INTO)
@pytest.mark.parametrize(("kind", "dtype", "shape", "options"), COMPILED)
def test_compiled_loss_equals_the_eager_one_without_a_graph_break(kernel, kind, dtype, shape, options):
    torch._dynamo.reset()  # or all cases together would exceed the limit on recompilations
    torch.manual_seed(0)
    logits = (3 * torch.randn(shape)).to(dtype).requires_grad_()
    ids = torch.randint(5, shape[:1] + shape[2:] if len(shape) > 1 else ())
    targets = ids if kind == "ids" else torch.rand(shape)

    def loss(z, y):
        return belief_matching_loss(z, y, **options)

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    expected = loss(logits, targets)
    (exact,) = torch.autograd.grad(expected.sum(), logits)
    with using(kernel):
        value, alone = compiled(logits, targets), compiled(logits.detach(), targets)
        (gradient,) = torch.autograd.grad(value.sum(), logits)
    assert value.dtype == expected.dtype and gradient.dtype == dtype
    torch.testing.assert_close(value, expected, rtol=2e-6, atol=1e-30)
    rounding = max(2e-6, torch.finfo(dtype).eps)
    torch.testing.assert_close(gradient, exact, rtol=rounding, atol=rounding * exact.abs().max().item())
    torch.testing.assert_close(alone, expected.detach(), rtol=2e-6, atol=1e-30)


def operations_of(compiled):
    """Names of the operations in the graphs that `compiled(backend)` makes of what it compiles."""
    names = []

    def backend(graph, inputs):
        names.extend(f"{node.target}" for node in graph.graph.nodes if node.op == "call_function")
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    torch._dynamo.reset()
    compiled(backend)
    return names


@NEEDS_NATIVE
def test_compiled_code_has_the_native_kernel_as_one_operation_unless_it_is_seen_into():
    logits, ids = torch.randn(4, 5, requires_grad=True), torch.tensor([0, 1, 2, 4])
    prior = torch.ones(5, requires_grad=True)

    def ours(operations):
        return [name for name in operations if "beliefmatch" in name]

    with using("native"):
        plain = operations_of(
            lambda backend: torch.compile(belief_matching_loss, backend=backend)(logits, ids)
        )
        learnt = operations_of(
            lambda backend: torch.compile(belief_matching_loss, backend=backend)(logits, ids, prior=prior)
        )
        exported = torch.export.export(BeliefMatchingLoss(), (logits.detach(), ids))
    assert ours(plain) == ["beliefmatch.loss.default"] and not ours(learnt)
    assert not ours(f"{node.target}" for node in exported.graph.nodes)
    torch.testing.assert_close(exported.module()(logits, ids), belief_matching_loss(logits, ids))


@NEEDS_NATIVE
def test_the_operation_computes_what_its_kernel_leaves_to_the_reference_and_names_wrong_targets():
    torch._dynamo.reset()
    logits = torch.randn(5, 3)
    logits[1, 2], logits[2, 0], logits[3] = torch.nan, 1e30, -1e4
    ids, upstream = torch.tensor([0, 1, 2, 0, -100]), torch.tensor([1.0, 2.0, 3.0, 4.0, torch.inf])
    results = []
    for function in (belief_matching_loss, torch.compile(belief_matching_loss, backend="aot_eager")):
        z = logits.clone().requires_grad_()
        with using("native"):
            losses = function(z, ids, reduction="none")
            losses.backward(upstream)
        results.append((losses.detach(), z.grad))
    for expected, received in zip(*results, strict=True):
        torch.testing.assert_close(received, expected, equal_nan=True)
    assert (results[1][1][4] == 0).all()
    compiled = torch.compile(belief_matching_loss, backend="aot_eager")
    with using("native"), pytest.raises(ArgumentError) as error:
        compiled(logits[:1], torch.tensor([3]))
    assert error.value.argument == "targets"


@NEEDS_NATIVE
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # of torch's compiler
@pytest.mark.parametrize("kind", ["ids", "counts", "rows", "prior"])
@pytest.mark.parametrize("traced", [False, True], ids=["eager derivatives", "traced derivatives"])
def test_second_derivatives_behind_the_operation_are_those_of_the_reference(kind, traced):
    config = torch._dynamo.config
    if traced and not hasattr(config, "trace_autograd_ops"):
        pytest.skip("this torch does not compile torch.autograd.grad")
    torch._dynamo.reset()
    targets = torch.rand(5, 7) if kind == "counts" else TARGETS
    options = {"rows": {"reduction": "none"}, "prior": {"prior": torch.rand(7) + 0.5}}.get(kind, {})

    def penalised(z):
        loss = belief_matching_loss(z, targets, **options).sum()
        (first,) = torch.autograd.grad(loss, z, create_graph=True)
        return loss + 10 * first.square().sum()

    compiled = torch.compile(penalised, backend="eager", fullgraph=traced)
    gradients = []
    for kernel, function in (("reference", penalised), ("native", compiled)):
        z = tracked()
        with using(kernel), config.patch(trace_autograd_ops=True) if traced else nullcontext():
            function(z).backward()
        gradients.append(z.grad)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kernel", SEEN_INTO)
def test_function_transforms_inside_compiled_code_equal_those_outside(kernel):
    def pushed(z):
        return jvp(loss_of, (z,), (z.cos(),))[1]

    for function in (grad(loss_of), pushed, vmap(lambda z: loss_of(z.expand(5, 7)))):
        torch._dynamo.reset()
        with using(kernel):
            made = torch.compile(function, backend="aot_eager")(LOGITS)
        torch.testing.assert_close(made, function(LOGITS), rtol=1e-5, atol=1e-7)


@NEEDS_NATIVE
def test_batches_whose_size_depends_on_data_compile_without_a_graph_break():
    torch._dynamo.reset()
    kept = TARGETS > 0

    def masked(z):
        return belief_matching_loss(z[kept], TARGETS[kept])

    expected, received = tracked(), tracked()
    masked(expected).backward()
    with using("native"), torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        torch.compile(masked, backend="aot_eager", fullgraph=True)(received).backward()
    torch.testing.assert_close(received.grad, expected.grad)


@NEEDS_NATIVE
def test_a_gradient_scaler_behind_the_operation_leaves_ignored_rows_at_zero():
    torch._dynamo.reset()
    logits = torch.randn(2, 3, requires_grad=True)
    with using("native"):
        loss = torch.compile(belief_matching_loss, backend="aot_eager")(logits, torch.tensor([0, -100]))
    loss.backward(torch.tensor(torch.inf))
    assert logits.grad is not None and logits.grad[0].isinf().all() and (logits.grad[1] == 0).all()


OPTIONS = [
    ("ids", {"weight": WEIGHT, "ignore_index": 2, "prior": 0.5}),
    ("ids", {"prior": WEIGHT + 0.1}),
    ("counts", {"weight": WEIGHT + 0.1}),
    ("counts", {"prior": 1 + torch.rand(6, 5, 2)}),
]


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(("kind", "options"), OPTIONS)
def test_loss_and_gradient_outside_of_a_graph_are_those_of_autograd(kernel, kind, options, reduction):
    torch.manual_seed(0)
    logits = torch.randn(6, 5, 2, requires_grad=True)
    targets = torch.randint(5, (6, 2)) if kind == "ids" else 3 * torch.rand(6, 5, 2)
    settings = {
        "kl_weight": 0.1,
        "target_confidence": None,
        "prior": 1.0,
        "weight": None,
        "ignore_index": -100,
    }
    arguments = *(settings | options).values(), reduction
    inputs = checked_inputs("test", logits, 1, targets, *arguments)
    upstream = torch.rand(6, 2) if reduction == "none" else torch.tensor(2.5)
    with using("reference"):
        expected = belief_matching_loss(logits, targets, kl_weight=0.1, reduction=reduction, **options)
        (exact,) = torch.autograd.grad(expected, logits, upstream)
    with computing_with(kernel):
        value, gradient = kernels.loss_and_grad(inputs, upstream)
        _, unscaled = kernels.loss_and_grad(inputs)
    assert not value.requires_grad and not gradient.requires_grad and gradient.shape == logits.shape
    torch.testing.assert_close(value, expected.detach(), rtol=2e-6, atol=1e-6)
    torch.testing.assert_close(gradient, exact, rtol=2e-5, atol=2e-6)
    factor = upstream.unsqueeze(1) if reduction == "none" else upstream
    torch.testing.assert_close(unscaled * factor, exact, rtol=2e-5, atol=2e-6)


@pytest.mark.filterwarnings("ignore:belief_matching_loss. kl_weight")
@settings(max_examples=150, deadline=None)
@given(extreme_batches())
def test_the_lean_kernel_equals_the_reference(case):
    logits, targets, options = case
    logits = logits.clamp(-80, 1e4)
    options["kl_weight"] = options["kl_weight"] or 1e-6  # with 0, only shares are left, beyond float32
    options["reduction"] = "none"
    with computing_with("reference"):
        expected, exact = loss_and_gradient(logits, targets, **options)
    with computing_with("lean"):
        loss, gradient = loss_and_gradient(logits, targets, **options)
    double = logits.dtype == DOUBLE
    torch.testing.assert_close(loss, expected, rtol=1e-10 if double else 2e-5, atol=1e-30)
    largest = exact.double().abs().amax(1, keepdim=True).clamp(min=1e-30)
    error = (gradient.double() - exact.double()).abs() / largest
    error = error.masked_fill(largest >= torch.finfo(logits.dtype).max, 0.0)  # beyond the type
    assert (error < (1e-10 if double else max(4e-6, torch.finfo(logits.dtype).eps))).all()


def test_the_counter_counts_cross_entropy():
    operations, traffic, peak, doubles = count(F.cross_entropy)
    assert (operations, doubles) == (5, 0)
    assert traffic == pytest.approx(8, abs=0.1) and peak == pytest.approx(3, abs=0.1)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_the_lean_kernel_is_lean(device):
    """On the meta device nothing looks at values, as on a GPU."""
    with computing_with("lean"), not_the_reference():
        operations, traffic, peak, doubles = count(
            partial(belief_matching_loss, kl_weight=1e-4), device=device
        )
    assert operations <= 100 and traffic <= 80 and peak <= 6 and doubles == 0


@pytest.mark.parametrize(
    ("options", "votes", "most"),
    [({"prior": 0.7}, False, 85), ({"prior": torch.ones(1000)}, False, 125), ({}, True, 165)],
)
def test_the_lean_kernel_is_lean_for_other_priors_and_for_counts(options, votes, most):
    def loss(logits, ids):
        targets = F.one_hot(ids, 1000).float() if votes else ids
        return belief_matching_loss(logits, targets, kl_weight=1e-4, **options)

    with computing_with("lean"), not_the_reference():
        operations, traffic, peak, doubles = count(loss)
    assert operations <= 210 and traffic <= most and peak <= 11 and doubles == 0


def test_many_rows_are_computed_in_chunks(monkeypatch):
    logits, targets = batch(50, 7)
    for shape in ((50, 7), (25, 7, 2)):
        z, ids = logits.view(shape), targets.view(shape[0], *shape[2:])
        with computing_with("lean"):
            expected = loss_and_gradient(z, ids)
            monkeypatch.setitem(lean.LOGITS_AT_ONCE, "cpu", 30)
            made = loss_and_gradient(z, ids)
            monkeypatch.undo()
        torch.testing.assert_close(made, expected, rtol=1e-6, atol=1e-9)


@NEEDS_COMPILER
@pytest.mark.parametrize("kernel", SEEN_INTO)
def test_a_compiled_mean_of_nothing_is_nan_as_in_torch(kernel):
    torch._dynamo.reset()
    logits = torch.randn(0, 10, requires_grad=True)
    compiled = torch.compile(belief_matching_loss)
    with using(kernel):
        loss = compiled(logits, torch.zeros(0, dtype=torch.long))
        loss.backward()
    assert loss.isnan() and logits.grad is not None and logits.grad.shape == (0, 10)


@pytest.mark.parametrize("kernel", SEEN_INTO)
def test_neither_annealing_nor_other_batch_sizes_compile_again_and_again(kernel):
    compilations = []

    def backend(graph, inputs):
        compilations.append(graph)
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    criterion = BeliefMatchingLoss()
    compiled = torch.compile(criterion, fullgraph=True, backend=backend)
    for step in range(6):
        logits, targets = torch.randn(3 + step % 3, 5, requires_grad=True), torch.randint(5, (3 + step % 3,))
        criterion.kl_weight = 0.01 + 0.001 * step
        expected = belief_matching_loss(logits, targets, kl_weight=criterion.kl_weight)
        with using(kernel):
            torch.testing.assert_close(compiled(logits, targets), expected)
    assert len(compilations) <= 3


@NEEDS_COMPILER
def test_machine_code_matches_the_oracle():
    """Compilers change formulas: their e^x − 1, for one, is not accurate near zero."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    compiled = torch.compile(belief_matching_loss, fullgraph=True, dynamic=True)
    for kind in ("at optimum", "near optimum", "uniform 20", "label far ahead", "all -80"):
        with using("lean"):
            assert_exact(KINDS[kind](40, 7, 0.01).float(), torch.tensor(7), function=compiled)


# The native kernel, or the reference in its place, without a difference


def in_threads(work, count):
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@NEEDS_NATIVE
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("size", [0.0, -2.5, 1e-3, 1e30, INF, NAN])
def test_gradient_is_multiplied_by_the_upstream_gradient(size, dtype):
    logits, targets = batch(5, 7, dtype)
    targets[2] = -100
    assert_kernels_agree(logits, targets, torch.tensor(size), weight=torch.linspace(0.5, 2, 7))
    for arriving in ([1.0, size, size, -1.0, 0.0], [size] * 5):
        assert_kernels_agree(logits, targets, torch.tensor(arriving), reduction="none")


@NEEDS_NATIVE
def test_gradients_scale_and_accumulate():
    z = tracked()
    with native_only():
        (belief_matching_loss(z, TARGETS, reduction="none") * torch.arange(5.0)).sum().backward()
        _, expected = loss_and_gradient(LOGITS, TARGETS, torch.arange(5.0), reduction="none")
        assert torch.equal(z.grad, expected)
        for _ in range(3):
            loss_of(z).backward()
        _, once = loss_and_gradient(LOGITS, TARGETS)
    torch.testing.assert_close(z.grad, expected + 3 * once)


@NEEDS_NATIVE
@pytest.mark.parametrize("dtype", TYPES)
def test_backward_works_again_if_the_graph_is_retained(dtype):
    z = tracked(LOGITS.to(dtype))
    with native_only():
        loss = loss_of(z)
        passes = [torch.autograd.grad(loss, z, torch.tensor(3.0), retain_graph=True)[0] for _ in range(3)]
        torch.autograd.grad(loss, z)
        with pytest.raises(RuntimeError, match="second time"):
            torch.autograd.grad(loss, z)
    assert torch.equal(passes[1], passes[2])
    assert_gradients_agree(passes[0], passes[1])


@NEEDS_NATIVE
@pytest.mark.parametrize("dtype", TYPES)
def test_logits_overwritten_before_backward_are_never_mistaken_for_the_ones_before(dtype):
    z = tracked(LOGITS.to(dtype))
    with native_only():
        x = z * 1
        loss = loss_of(x)
        _, expected = loss_and_gradient(z, TARGETS)
        with torch.no_grad():
            x.zero_()
        if dtype != torch.float16:  # whose gradient is computed later
            assert torch.equal(torch.autograd.grad(loss, z, retain_graph=True)[0], expected)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(loss, z)


@NEEDS_NATIVE
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_logits_that_are_no_longer_supported_go_back_through_the_reference(dtype):
    logits = tracked(LOGITS.to(dtype))
    loss = loss_of(logits)
    torch.autograd.grad(loss, logits, retain_graph=True)
    logits.data[0, 0] = 1000.0
    assert torch.autograd.grad(loss, logits)[0].isfinite().all()


def penalty(reduction):
    z = tracked(LOGITS.double())
    loss = loss_of(z, reduction=reduction)
    upstream = torch.linspace(-1, 2, 5, dtype=DOUBLE) if reduction == "none" else torch.tensor(2.0).double()
    (gradient,) = torch.autograd.grad(loss, z, upstream, create_graph=True)
    return gradient.detach(), *torch.autograd.grad(gradient.square().sum(), z)


def hooked(create_graph):
    z = tracked()
    x = 2 * z
    x.register_hook(lambda g: 10 * g)
    x.retain_grad()
    return [g.detach() for g in torch.autograd.grad(loss_of(x), [x, z], create_graph=create_graph)]


def jacobian(reduction, upstream):
    z = tracked()
    return torch.autograd.grad(loss_of(z, reduction=reduction), z, upstream, is_grads_batched=True)[0]


def gradients_by_counts_prior_and_weight():
    z, counts, prior, weight = tracked(), LOGITS.exp(), LOGITS.abs() + 0.1, torch.ones(7)
    others = [tracked(x) for x in (counts, prior, weight)]
    loss = belief_matching_loss(z, others[0], prior=others[1]) + loss_of(z, weight=others[2])
    return torch.autograd.grad(loss, [z, *others])


def upstream_without_memory(dtype):
    z = tracked(LOGITS.to(dtype))
    return torch.autograd.grad(loss_of(z), z, torch._efficientzerotensor(()))


def forward_mode():
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(LOGITS, LOGITS.cos())
        return torch.autograd.forward_ad.unpack_dual(loss_of(dual)).tangent


def transformed_with_tracked_logits():
    z = tracked()
    return torch.autograd.grad(vmap(lambda s: s * loss_of(z))(torch.arange(3.0)).sum(), z)[0]


def targets_from_inference_mode():
    with torch.inference_mode():
        guessed, weight = LOGITS.argmax(1), torch.linspace(1, 2, 7)
    return loss_and_gradient(LOGITS, guessed, weight=weight)[1]


class Marked(torch.Tensor):
    pass


NEGATED = torch.complex(LOGITS, -LOGITS).conj().imag
NEGATED_COUNTS = torch.complex(LOGITS, -LOGITS.exp()).conj().imag
MEMORY = bytearray(b"\0" + LOGITS.numpy().tobytes())
MISALIGNED = torch.frombuffer(MEMORY, dtype=torch.float32, offset=1).view(LOGITS.shape)
MACHINERY = {
    "second derivatives": lambda: penalty("mean"),
    "second derivatives of rows": lambda: penalty("none"),
    "hooks": lambda: hooked(False),
    "hooks and a graph": lambda: hooked(True),
    "batched gradients": lambda: jacobian("mean", torch.arange(3.0)),
    "batched gradients of rows": lambda: jacobian("none", torch.eye(5)),
    "vectorised jacobian": lambda: torch.autograd.functional.jacobian(loss_of, LOGITS, vectorize=True),
    "gradients by other tensors": gradients_by_counts_prior_and_weight,
    "vmap": lambda: vmap(belief_matching_loss)(LOGITS, TARGETS),
    "vmap over ids": lambda: vmap(lambda y: belief_matching_loss(LOGITS, y))(TARGETS.expand(3, 5)),
    "vmap of grad": lambda: vmap(grad(belief_matching_loss))(LOGITS, TARGETS),
    "vmap with tracked logits": transformed_with_tracked_logits,
    "jacrev": lambda: jacrev(lambda z: loss_of(z, reduction="none"))(LOGITS),
    "jvp": lambda: jvp(loss_of, (LOGITS,), (LOGITS.cos(),)),
    "forward mode": forward_mode,
    "make_fx": lambda: make_fx(loss_of)(LOGITS)(2 * LOGITS),
    "jit": lambda: torch.jit.trace(loss_of, (LOGITS,), check_trace=False)(2 * LOGITS),
    "inference mode": targets_from_inference_mode,
    "subclasses": lambda: loss_of(LOGITS.as_subclass(Marked)).as_subclass(torch.Tensor),
    "negated logits": lambda: loss_of(NEGATED),
    "negated counts": lambda: belief_matching_loss(LOGITS, NEGATED_COUNTS),
    "negated upstream": lambda: loss_and_gradient(LOGITS.half(), TARGETS, NEGATED[:, 0], reduction="none"),
    "upstream without memory": lambda: upstream_without_memory(torch.float32),
    "upstream without memory, half precision": lambda: upstream_without_memory(torch.float16),
    "misaligned numbers": lambda: loss_of(MISALIGNED),
}


@NEEDS_NATIVE
@pytest.mark.filterwarnings("ignore:.*:torch.jit.TracerWarning")
@pytest.mark.parametrize("name", MACHINERY)
def test_machinery_does_not_depend_on_the_kernel(name):
    assert NEGATED.is_neg() and torch.equal(NEGATED, LOGITS)
    assert MISALIGNED.data_ptr() % 4 and torch.equal(MISALIGNED, LOGITS)
    assert_same_by_both(MACHINERY[name])


class Watch(TorchDispatchMode):
    seen = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        self.seen += 1
        return function(*arguments, **(options or {}))


class Passive(TorchFunctionMode):
    def __torch_function__(self, function, types, arguments=(), options=None):
        return function(*arguments, **(options or {}))


@NEEDS_NATIVE
def test_modes_wrappers_and_subclasses_see_the_operations():
    with using("native"):
        with Watch() as watch:
            loss_of(LOGITS)
        assert watch.seen > 10
        assert type(loss_of(LOGITS.as_subclass(Marked))) is Marked
        with pytest.raises(
            RuntimeError, match="Functionalize"
        ):  # torch has no rule for the reference's functions
            torch.func.functionalize(loss_of)(LOGITS)


@NEEDS_NATIVE
def test_gradients_need_not_be_tracked_and_a_default_device_changes_nothing():
    with native_only(), Passive():
        expected = loss_of(LOGITS)
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                value = loss_of(tracked())
            assert not value.requires_grad and torch.equal(value, expected)
        with torch.device("meta"):
            loss, gradient = loss_and_gradient(LOGITS, TARGETS)
    assert torch.equal(loss, expected) and gradient.device.type == "cpu"


@NEEDS_NATIVE
@pytest.mark.parametrize("dtype", TYPES)
def test_checkpoints_and_saved_tensor_hooks_change_nothing(dtype):
    weight = torch.eye(7, requires_grad=True)

    def loss():
        return loss_of((LOGITS @ weight).to(dtype))

    with native_only():
        (expected,) = torch.autograd.grad(loss(), weight)
        again = checkpoint(loss, use_reentrant=False)
        assert torch.equal(torch.autograd.grad(again, weight)[0], expected)
        with torch.autograd.graph.save_on_cpu():
            moved = loss()
        assert torch.equal(torch.autograd.grad(moved, weight, retain_graph=True)[0], expected)
        torch.testing.assert_close(torch.autograd.grad(moved, weight)[0], expected)


@NEEDS_NATIVE
def test_python_threads_may_call_at_once_and_go_back_through_one_graph():
    logits, targets = batch(40, 1000)
    z, results, received = tracked(logits), [], []
    with native_only():
        expected = loss_and_gradient(logits, targets, kl_weight=1e-4)
        loss = belief_matching_loss(z, targets, kl_weight=1e-4)

        def work():
            results.extend(loss_and_gradient(logits, targets, kl_weight=1e-4) for _ in range(5))
            received.extend(torch.autograd.grad(2 * loss, z, retain_graph=True))

        in_threads(work, 6)
    assert len(results) == 30 and len(received) == 6
    assert all(torch.equal(a, b) for result in results for a, b in zip(result, expected, strict=True))
    for gradient in received:
        torch.testing.assert_close(gradient, 2 * expected[1])


FORK = """
import os, torch
from beliefmatch import belief_matching_loss, kernels
kernels.use("native")
torch.manual_seed(0)
torch.set_num_threads(3)
logits, targets = torch.randn(61, 1000), torch.randint(1000, (61,))
before = belief_matching_loss(logits, targets, kl_weight=1e-4)
child = os.fork()
if child == 0:
    torch.set_num_threads(1)
    after = belief_matching_loss(logits, targets, kl_weight=1e-4)
    os._exit(0 if torch.equal(before, after) else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@NEEDS_NATIVE
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_works_in_a_forked_process():
    run = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=60)
    assert run.stdout.strip() == "0", run.stderr


def test_the_device_at_the_time_of_the_import_does_not_matter():
    code = (
        "import torch, beliefmatch\n"
        "with torch.device('meta'): criterion = beliefmatch.BeliefMatchingLoss()\n"
        "print(criterion(torch.zeros(4, 5), torch.arange(4)).item())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    expected = belief_matching_loss(torch.zeros(4, 5), torch.arange(4))
    assert float(done.stdout) == pytest.approx(expected.item(), rel=1e-6)


def largest_allocations(call):
    """Bytes of each tensor that torch allocates in a call, largest first."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        call()
    events = profile.profiler.kineto_results.events()
    return sorted((e.nbytes() for e in events if e.name() == "[memory]" and e.nbytes() > 0), reverse=True)


@NEEDS_NATIVE
@pytest.mark.parametrize("dtype", TYPES)
def test_allocates_one_gradient_and_little_else(dtype):
    logits, targets = batch(500, 90, dtype)
    with native_only():
        forward = largest_allocations(lambda: belief_matching_loss(logits, targets))
        both = largest_allocations(lambda: loss_and_gradient(logits, targets, torch.tensor(2.0)))
    rows = 8 * len(logits)
    assert sum(forward) <= rows
    assert both[0] == logits.nbytes and sum(both[1:]) <= 2 * rows
