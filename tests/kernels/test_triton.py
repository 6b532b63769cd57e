"""The Triton kernel: values, layouts and autograd in its interpreter, and what it compiles to."""

import inspect
import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import numpy
import pytest
import torch
import torch.nn.functional as F

from beliefmatch import Belief, belief_matching_loss, dirichlet, kernels
from beliefmatch.kernels import reference, triton_kernel
from commands import python
from kernel_contract import (
    assert_gradients_agree,
    computing_with,
    loss_and_gradient,
    not_the_reference,
    using,
)

pytestmark = [
    pytest.mark.skipif(
        kernels.TRITON_MISSING is not None, reason=f"no Triton kernel: {kernels.TRITON_MISSING}"
    ),
    pytest.mark.filterwarnings("ignore:belief_matching_loss. kl_weight"),
]
FLOATING = [torch.float32, torch.bfloat16, torch.float16]
LOSS_BAR = 2e-6


@pytest.fixture(autouse=True)
def quiet_numpy():
    """The interpreter computes both sides of a choice."""
    with numpy.errstate(all="ignore"):
        yield


def assert_equals_reference(logits, targets, upstream=None, **options):
    """Loss and gradient, by the Triton kernel alone, are those of the reference."""
    with using("reference"):
        loss, gradient = loss_and_gradient(logits, targets, upstream, **options)
    with computing_with("triton"), not_the_reference():
        own_loss, own_gradient = loss_and_gradient(logits, targets, upstream, **options)
    assert own_loss.dtype == loss.dtype and own_loss.shape == loss.shape
    torch.testing.assert_close(own_loss, loss, rtol=LOSS_BAR, atol=0, equal_nan=True)
    # the interpreter truncates to bfloat16, where devices round
    assert_gradients_agree(own_gradient, gradient, roundings=2 if logits.dtype is torch.bfloat16 else 1)
    return own_loss, own_gradient


# Values


def extreme_rows(dtype, classes=5):
    """A level in one class of each row, and in all of them; three rows are ordinary."""
    largest = torch.finfo(dtype).max
    levels = [39.9, 40.1, -40.1, 88.7, -88.7, -95.0, 710.0, -746.0, 1e4, -1e4, largest, -largest]
    rows = torch.randn(
        len(levels) + 3, classes, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    for row, level in enumerate(levels):
        rows[row, :: 1 if row % 3 == 2 else classes] = max(min(level, largest), -largest)
    return rows.to(dtype)


@pytest.mark.parametrize("kl_weight", [0.0, 0.01])
@pytest.mark.parametrize("use_counts", [False, True])
@pytest.mark.parametrize("dtype", FLOATING, ids=str)
def test_extreme_logits_equal_the_reference_and_are_finite(dtype, use_counts, kl_weight):
    logits = extreme_rows(dtype)
    targets = torch.arange(len(logits)) % 2
    if use_counts:
        targets = 0.5 + F.one_hot(targets, logits.shape[1]).to(dtype)
    loss, gradient = assert_equals_reference(logits, targets, kl_weight=kl_weight, reduction="none")
    assert loss.isfinite().all() and gradient.isfinite().all()


@pytest.mark.parametrize("distance", [1e-3, 0.1, 1.0])
def test_rows_near_the_optimum_of_votes_equal_the_reference(distance):
    generator = torch.Generator().manual_seed(0)
    counts = 3 * torch.rand(4, 6, generator=generator)
    for prior in (1.0, 0.3 + torch.rand(6, generator=generator)):
        optimum = (prior + counts / 0.02).log()
        logits = optimum + distance * torch.randn(4, 6, generator=generator)
        assert_equals_reference(logits, counts, prior=prior, kl_weight=0.02, reduction="none")


def test_long_rows_in_blocks_equal_the_reference():
    """The largest class in the first block, in a later one and twice; the label in each."""
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(3, 150, generator=generator)
    logits[0, 3] = logits[1, 140] = logits[2, 3] = logits[2, 140] = 15.0
    ids, counts = torch.tensor([3, 70, 149]), torch.rand(3, 150, generator=generator)
    triton_kernel._tile.cache_clear()
    with patch.object(triton_kernel, "_LONGEST", 128):
        for targets in (ids, counts):
            assert_equals_reference(logits, targets, kl_weight=1e-3)
        assert_equals_reference(
            logits, counts, prior=0.1 + torch.rand(150, generator=generator), weight=torch.rand(150)
        )
        assert_equals_reference(logits - 50, ids)
    triton_kernel._tile.cache_clear()


LAYOUTS = {
    "images": lambda x: x,
    "classes last": lambda x: x.movedim(1, -1).contiguous().movedim(-1, 1),
    "every second class": lambda x: x[:, ::2],
    "a slice": lambda x: x[:, :, 1:3, 1:],
    "rows": lambda x: x[:, :, 0, 0],
    "a row": lambda x: x[0, :, 0, 0],
    "transposed rows": lambda x: x[0, :, :, 0].T,
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_equals_the_reference(layout):
    generator = torch.Generator().manual_seed(0)
    logits, counts = (LAYOUTS[layout](torch.randn(2, 6, 5, 4, generator=generator)) for _ in range(2))
    dim = min(logits.dim() - 1, 1)
    classes, one_a_row = logits.shape[dim], logits.shape[:dim] + logits.shape[dim + 1 :]
    ids = torch.randint(classes, one_a_row, generator=generator)
    assert_equals_reference(logits, ids, reduction="none")
    assert_equals_reference(logits, counts.abs(), prior=0.5 + torch.rand(logits.shape, generator=generator))
    for function in (dirichlet.entropy, dirichlet.differential_entropy):
        torch.testing.assert_close(triton_kernel.measure(function, logits, dim), function(logits, dim))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("dtype", FLOATING, ids=str)
def test_weights_ignored_rows_and_upstream_gradients_equal_the_reference(dtype, reduction):
    generator = torch.Generator().manual_seed(0)
    logits, ids = torch.randn(7, 5, generator=generator).to(dtype), torch.tensor([0, 3, 4, 3, 2, 1, 0])
    weight, upstream = (
        torch.rand(5, generator=generator),
        torch.linspace(-2, 3, 7) if reduction == "none" else torch.tensor(-0.3),
    )
    assert_equals_reference(logits, ids, upstream, weight=weight, ignore_index=3, reduction=reduction)
    assert_equals_reference(logits, ids, upstream, ignore_index=3, reduction=reduction, prior=0.4)
    assert_equals_reference(logits, F.one_hot(ids, 5).to(dtype), upstream, weight=weight, reduction=reduction)


def test_what_is_not_supported_is_left_to_others():
    logits, ids = torch.zeros(3, 4), torch.tensor([0, 1, 2])

    def answer(logits, ids, **changes):
        options = reference.Options(1.0, 0.01, 1, True, -100, "mean")._replace(**changes)
        return triton_kernel.loss(reference.LossInputs(logits, ids, None, None, None, options))

    assert answer(logits, ids) is not None
    assert answer(logits.double(), ids) is None  # float64
    assert answer(logits[:0], ids[:0]) is None  # nothing
    assert answer(logits, ids + 2) is None  # an id that the reference names
    assert answer(logits, ids, prior=1e30) is None and answer(logits, ids, kl_weight=1e30) is None
    assert answer(logits.to("meta"), ids.to("meta")) is None
    assert triton_kernel.measure(dirichlet.variance, logits, 1) is None
    assert triton_kernel.divergence(logits[:, :1], logits[:, :1], 1) is None


def test_ids_out_of_range_on_a_device_give_nan_in_their_row_and_touch_no_other_memory():
    """On a device nobody looks at the values first."""
    logits, ids = torch.randn(4, 5), torch.tensor([0, 5, -1, 4])
    with patch.object(triton_kernel, "_are_values_valid", lambda inputs: True), computing_with("triton"):
        loss, gradient = loss_and_gradient(logits, ids, reduction="none", weight=torch.rand(5))
    assert loss.isnan().tolist() == gradient.isnan().all(1).tolist() == [False, True, True, False]


# Autograd


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_a_graph_may_be_run_backwards_several_times_and_differentiated_again(dtype):
    logits, ids = torch.randn(4, 5).to(dtype).requires_grad_(), torch.tensor([0, 1, 2, 4])
    with computing_with("triton"):
        loss = belief_matching_loss(logits, ids)
        first, second = (
            torch.autograd.grad(loss, logits, factor, retain_graph=True)[0]
            for factor in loss.new_tensor([1, 3])
        )
        torch.testing.assert_close(3 * first, second, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)
        (grad,) = torch.autograd.grad(loss, logits, create_graph=True)
        (curvature,) = torch.autograd.grad(grad.sum(), logits)
    with using("reference"):
        (grad,) = torch.autograd.grad(belief_matching_loss(logits, ids), logits, create_graph=True)
        (expected,) = torch.autograd.grad(grad.sum(), logits)
    torch.testing.assert_close(curvature, expected)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_compiled_code_contains_the_kernel_as_one_operation(reduction):
    logits, ids = torch.randn(4, 5, requires_grad=True), torch.tensor([0, 1, 2, 4])

    def twice(z):
        return 2 * belief_matching_loss(z, ids, reduction=reduction)

    with computing_with("triton"), not_the_reference():
        compiled = torch.compile(twice, backend="aot_eager", fullgraph=True)(logits)
        (gradient,) = torch.autograd.grad(compiled.sum(), logits)
    with using("reference"):
        torch.testing.assert_close(compiled, twice(logits))
        (expected,) = torch.autograd.grad(twice(logits).sum(), logits)
    torch.testing.assert_close(gradient, expected)


def test_compiled_code_takes_batches_of_other_sizes_and_writes_to_none_of_its_inputs():
    batches = [(torch.randn(rows, 5, requires_grad=True), torch.arange(rows) % 5) for rows in (4, 7, 6, 1)]
    with using("reference"):
        expected = [loss_and_gradient(*batch) for batch in batches]
    with computing_with("triton"), not_the_reference():
        compiled = torch.compile(belief_matching_loss, backend="aot_eager", fullgraph=True)
        for (logits, ids), both in zip(batches, expected, strict=True):
            versions = logits._version, ids._version
            value = compiled(logits, ids)
            (gradient,) = torch.autograd.grad(value, logits)
            assert (logits._version, ids._version) == versions
            torch.testing.assert_close((value.detach(), gradient), both)


def test_every_kernel_is_launched_on_the_device_of_its_tensors():
    entered = []

    def on_device_of(x):
        entered.append(x.shape)
        return nullcontext()

    logits, ids = torch.randn(3, 5, requires_grad=True), torch.tensor([0, 1, 4])
    with patch.object(triton_kernel, "_on_device_of", on_device_of), computing_with("triton"):
        belief_matching_loss(logits, ids).backward()
        kernels.measure(dirichlet.entropy, logits.detach(), 1)
        kernels.divergence(logits.detach(), torch.zeros(3, 5), 1)
    assert len(entered) == 4  # loss, its factor, measure, divergence
    second = SimpleNamespace(device=torch.device("cuda:1"))
    assert triton_kernel._on_device_of(second).idx == 1


def _loss_of_three(logits):
    return belief_matching_loss(logits, torch.tensor([0, 1, 4]))


def test_tensors_that_are_not_plain_go_to_another_kernel():
    mirrored = torch.complex(torch.zeros(3, 5), torch.randn(3, 5)).conj().imag
    assert mirrored.is_neg()
    with computing_with("triton"):
        for function in (
            lambda z: belief_matching_loss(z, torch.tensor([0, 1, 4])),
            lambda z: Belief(z).entropy(),
        ):
            torch.testing.assert_close(function(mirrored), function(mirrored.clone().resolve_neg()))


# Without the interpreter, and without a device

AHEAD = Path(__file__).parents[1] / "triton_ahead.py"


def compiled_ahead(*arguments):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, AHEAD, *arguments], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    return {facts["call"]: facts for facts in map(json.loads, done.stdout.splitlines())}


NVIDIA = ("ids", "long rows", "votes", "few classes", "image")


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100"])
def test_compiled_for_a_device_the_loss_reads_and_writes_each_logit_as_designed(target):
    """Rows that fit are read once and written once; long rows are read twice."""
    names = NVIDIA if target == "sm_80" else NVIDIA[:2]
    for name, facts in compiled_ahead(target, *names).items():
        assert facts["spills"] == 0 and facts["registers"] <= 176 and facts["shared"] <= 2048, facts
        bits = {"long rows": 16}.get(name, 32) * facts["elements"]
        reads = {"long rows": 2, "votes": 2}.get(name, 1)  # of votes, logits and counts
        assert facts["ld"] == reads * bits and facts["st"] == bits, facts


def test_compiled_for_amd_nothing_is_spilled():
    for facts in compiled_ahead("gfx942", "ids", "long rows").values():
        assert facts["spills"] == 0 and facts["registers"] <= 512 and facts["shared"] <= 2048, facts


def test_measures_and_divergence_compile_for_a_device():
    for facts in compiled_ahead("sm_80", "mutual information", "differential entropy", "divergence").values():
        assert facts["spills"] == 0 and facts["registers"] <= 168, facts


def test_votes_of_any_length_and_weight_are_held_in_registers():
    for facts in compiled_ahead("sm_80", "weighted votes", "longest votes").values():
        assert facts["spills"] == 0 and facts["registers"] <= 255, facts


def test_importing_the_package_does_not_import_its_code_for_devices():
    loaded = "'beliefmatch.kernels.triton_loss' in sys.modules"
    done = python(f"import beliefmatch, sys; beliefmatch.belief_matching_loss; print({loaded})")
    assert done.stdout.strip() == "False" and not done.stderr


def test_numbers_that_change_from_step_to_step_do_not_compile_anew():
    parameters = inspect.signature(triton_kernel._loss_code().loss_kernel.fn).parameters.values()
    constants = {x.name for x in parameters if x.annotation is not inspect.Parameter.empty}
    assert constants == {"HAS_INNER", "ROWS", "ALIGN", "WIDE", "BLOCK", "FITS", "UNIT_PRIOR", "EXACT_BLOCK"}
