"""The native kernel under torch's machinery: it takes part, or leaves the work to the reference unnoticed."""

import os
import subprocess
import sys
import threading

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from beliefmatch import belief_matching_loss
from kernel_pair import (
    NEEDS_NATIVE,
    TYPES,
    assert_gradients_agree,
    assert_kernels_agree,
    assert_same_by_both,
    batch,
    loss_and_gradient,
    native_only,
)

pytestmark = NEEDS_NATIVE
INF, NAN = float("inf"), float("nan")
LOGITS, TARGETS = batch(5, 7)


def in_threads(work, count):
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def tracked(x=LOGITS):
    return x.clone().requires_grad_()


def loss_of(logits, **options):
    return belief_matching_loss(logits, TARGETS, **options)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("size", [0.0, -2.5, 1e-3, 1e30, INF, NAN])
def test_gradient_is_multiplied_by_what_arrives(size, dtype):
    logits, targets = batch(5, 7, dtype)
    targets[2] = -100
    assert_kernels_agree(logits, targets, torch.tensor(size), weight=torch.linspace(0.5, 2, 7))
    for arriving in ([1.0, size, size, -1.0, 0.0], [size] * 5):
        assert_kernels_agree(logits, targets, torch.tensor(arriving), reduction="none")


def test_a_scaled_loss_has_a_scaled_gradient():
    z = tracked()
    with native_only():
        rows = belief_matching_loss(z, TARGETS, reduction="none")
        (rows * torch.arange(5.0)).sum().backward()
        _, expected = loss_and_gradient(LOGITS, TARGETS, torch.arange(5.0), reduction="none")
    assert torch.equal(z.grad, expected)


@pytest.mark.parametrize("dtype", TYPES)
def test_backward_works_again_if_the_graph_is_retained(dtype):
    z = tracked(LOGITS.to(dtype))
    with native_only():
        loss = belief_matching_loss(z, TARGETS)
        passes = [torch.autograd.grad(loss, z, torch.tensor(3.0), retain_graph=True)[0] for _ in range(3)]
        torch.autograd.grad(loss, z)
        with pytest.raises(RuntimeError, match="second time"):
            torch.autograd.grad(loss, z)
    assert torch.equal(passes[1], passes[2])
    assert_gradients_agree(passes[0], passes[1])


def test_gradients_accumulate():
    z = tracked()
    with native_only():
        for _ in range(3):
            belief_matching_loss(z, TARGETS).backward()
        _, once = loss_and_gradient(LOGITS, TARGETS)
    torch.testing.assert_close(z.grad, 3 * once)


@pytest.mark.parametrize("dtype", TYPES)
def test_logits_overwritten_before_backward_are_never_mistaken_for_the_ones_before(dtype):
    z = tracked(LOGITS.to(dtype))
    with native_only():
        x = z * 1
        loss = belief_matching_loss(x, TARGETS)
        _, expected = loss_and_gradient(z, TARGETS)
        with torch.no_grad():
            x.zero_()
        if dtype != torch.float16:  # whose gradient is computed later
            assert torch.equal(torch.autograd.grad(loss, z, retain_graph=True)[0], expected)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(loss, z)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_second_derivatives_are_those_of_the_reference(reduction):
    z, upstream = tracked(LOGITS.double()), torch.linspace(-1, 2, 5, dtype=torch.float64)

    def penalty():
        loss = belief_matching_loss(z, TARGETS, reduction=reduction)
        arriving = upstream if reduction == "none" else upstream[-1]
        (slope,) = torch.autograd.grad(loss, z, arriving, create_graph=True)
        return slope.detach(), *torch.autograd.grad(slope.square().sum(), z)

    assert_same_by_both(penalty)


def test_hooks_on_the_logits_run_once():
    def hooked(differentiable):
        z = tracked()
        x = 2 * z
        x.register_hook(lambda g: 10 * g)
        x.retain_grad()
        loss = belief_matching_loss(x, TARGETS)
        gradients = torch.autograd.grad(loss, [x, z], create_graph=differentiable)
        return [g.detach() for g in gradients]

    for differentiable in (False, True):
        assert_same_by_both(lambda differentiable=differentiable: hooked(differentiable))


def test_a_batch_of_upstream_gradients_is_vectorized():
    def jacobian(reduction, size):
        z = tracked()
        loss = belief_matching_loss(z, TARGETS, reduction=reduction)
        upstream = torch.eye(5) if reduction == "none" else torch.arange(size)
        return torch.autograd.grad(loss, z, upstream, is_grads_batched=True)[0]

    assert_same_by_both(lambda: jacobian("none", 5))
    assert_same_by_both(lambda: jacobian("mean", 3.0))
    whole = torch.autograd.functional.jacobian
    assert_same_by_both(lambda: whole(lambda z: belief_matching_loss(z, TARGETS), LOGITS, vectorize=True))


def test_gradients_by_counts_prior_and_weight_are_left_to_the_reference():
    def slopes():
        z, counts, prior = tracked(), tracked(LOGITS.exp()), tracked(LOGITS.abs() + 0.1)
        loss = belief_matching_loss(z, counts, prior=prior)
        weight = tracked(torch.ones(7))
        weighted = belief_matching_loss(z, TARGETS, weight=weight)
        return *torch.autograd.grad(loss, [z, counts, prior]), *torch.autograd.grad(weighted, weight)

    assert_same_by_both(slopes)


def test_a_default_device_changes_nothing():
    with native_only(), torch.device("meta"):
        loss, gradient = loss_and_gradient(LOGITS, TARGETS)
    assert loss.device.type == gradient.device.type == "cpu"
    with native_only():
        assert torch.equal(loss, loss_of(LOGITS))


class Passive(TorchFunctionMode):
    def __torch_function__(self, function, types, arguments=(), options=None):
        return function(*arguments, **(options or {}))


def test_gradients_need_not_be_tracked():
    with native_only(), Passive():
        expected = loss_of(LOGITS)
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                value = loss_of(tracked())
            assert not value.requires_grad and torch.equal(value, expected)


def test_targets_and_weights_made_in_inference_mode_will_do():
    with torch.inference_mode():
        guessed, weight = LOGITS.argmax(1), torch.linspace(1, 2, 7)
    assert_same_by_both(lambda: loss_and_gradient(LOGITS, guessed, weight=weight)[1])


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


def test_python_threads_may_call_at_once():
    logits, targets = batch(40, 1000)
    results = []
    with native_only():
        expected = loss_and_gradient(logits, targets, kl_weight=1e-4)

        def work():
            results.extend(loss_and_gradient(logits, targets, kl_weight=1e-4) for _ in range(5))

        in_threads(work, 6)
    assert len(results) == 30
    assert all(torch.equal(a, b) for result in results for a, b in zip(result, expected, strict=True))


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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_works_in_a_forked_process():
    run = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=60)
    assert run.stdout.strip() == "0", run.stderr


def largest_allocations(call):
    """Bytes of each tensor that torch allocates in a call, largest first."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        call()
    events = profile.profiler.kineto_results.events()
    return sorted((e.nbytes() for e in events if e.name() == "[memory]" and e.nbytes() > 0), reverse=True)


@pytest.mark.parametrize("dtype", TYPES)
def test_allocates_one_gradient_and_little_else(dtype):
    logits, targets = batch(500, 90, dtype)
    with native_only():
        forward = largest_allocations(lambda: belief_matching_loss(logits, targets))
        both = largest_allocations(lambda: loss_and_gradient(logits, targets, torch.tensor(2.0)))
    rows = 8 * len(logits)
    assert sum(forward) <= rows
    assert both[0] == logits.nbytes and sum(both[1:]) <= 2 * rows


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_the_device_at_the_time_of_the_import_does_not_matter(device):
    code = (
        "import torch, beliefmatch\n"
        f"with torch.device('{device}'): criterion = beliefmatch.BeliefMatchingLoss()\n"
        "print(criterion(torch.zeros(4, 5), torch.arange(4)).item())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    expected = belief_matching_loss(torch.zeros(4, 5), torch.arange(4))
    assert float(done.stdout) == pytest.approx(expected.item(), rel=1e-6)


def test_threads_that_go_back_through_one_graph_get_the_same_gradient():
    logits = tracked()
    loss = loss_of(logits)
    (expected,) = torch.autograd.grad(loss_of(logits), logits)
    received = []

    def backward():
        received.extend(torch.autograd.grad(2 * loss, logits, retain_graph=True))

    in_threads(backward, 8)
    assert len(received) == 8
    for gradient in received:
        torch.testing.assert_close(gradient, 2 * expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_logits_that_are_no_longer_for_the_kernel_go_back_through_the_reference(dtype):
    logits = LOGITS.to(dtype).requires_grad_()
    loss = loss_of(logits)
    torch.autograd.grad(loss, logits, retain_graph=True)
    logits.data[0, 0] = 1000.0
    (gradient,) = torch.autograd.grad(loss, logits)
    assert gradient.isfinite().all()
