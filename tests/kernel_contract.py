"""The kernels of the loss under one contract: each in turn, and how far its answers may be from the truth."""

from contextlib import contextmanager
from functools import lru_cache
from unittest.mock import patch

import numpy
import pytest
import torch
from hypothesis import HealthCheck

import oracle
from beliefmatch import belief_matching_loss, kernels
from beliefmatch.kernels import reference
from beliefmatch.kernels.native import MISSING, extension

INSTRUCTION_SETS = [] if MISSING else extension.instruction_sets()
NATIVE = [f"native {name}" for name in INSTRUCTION_SETS]
READERS = ("reference",) if MISSING else ("reference", "native")
"""Kernels that read predictions for metrics; the reference is numpy."""
TRITON = [] if kernels.TRITON_MISSING else ["triton"]
"""In Triton's interpreter; tests/environment.py asks for that before Triton is imported."""
QUICK_DIRICHLET = ["reference", *NATIVE]
DIRICHLET = [*QUICK_DIRICHLET, *TRITON]
"""Kernels that have measures and divergences of their own."""
QUICK = [*QUICK_DIRICHLET, "lean"]
KERNELS = [*QUICK, *TRITON]
NEEDS_NATIVE = pytest.mark.skipif(MISSING is not None, reason=f"no native kernel: {MISSING}")
HYPOTHESIS = {"deadline": None, "suppress_health_check": [HealthCheck.function_scoped_fixture]}
TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
LOSS_BAR = {torch.float32: 1e-6, torch.float64: 1e-12}
GRADIENT_BAR = {torch.float32: 2e-6, torch.float64: 1e-11, torch.bfloat16: 2e-6, torch.float16: 2e-6}


@contextmanager
def using(kernel):
    before = kernels.chosen()
    kernels.use(kernel)
    try:
        yield
    finally:
        kernels.use(before)


@contextmanager
def using_instruction_set(name):
    before = extension.in_use()
    extension.use(name)
    try:
        yield
    finally:
        extension.use(before)


@contextmanager
def computing_with(kernel):
    """One of KERNELS for whatever it supports, eagerly."""
    if kernel in kernels.CHOICES:
        with using(kernel), numpy.errstate(all="ignore"):  # Triton's interpreter is numpy
            yield
    else:
        with using("native"), using_instruction_set(kernel.split()[1]):
            yield


@contextmanager
def not_the_reference():
    """An error for what another kernel leaves to the reference."""
    with patch.object(reference, "loss", side_effect=AssertionError("left to the reference")):
        yield


@contextmanager
def native_only():
    with using("native"), not_the_reference():
        yield


exact_loss = lru_cache(maxsize=None)(oracle.loss)
exact_gradient = lru_cache(maxsize=None)(oracle.gradient)
EXACT_BAR = {torch.float32: (1e-5, 2e-6), torch.float64: (1e-11, 1e-11)}


def assert_exact(logits, targets, prior=1.0, kl_weight=0.01, function=belief_matching_loss):
    """Loss and gradient of one row equal the sixty-digit oracle's, by whatever kernel is in use."""
    loss_bar, gradient_bar = EXACT_BAR[logits.dtype]
    options = {"prior": prior, "kl_weight": kl_weight, "function": function}
    losses, gradients = loss_and_gradient(logits[None], targets[None], **options)
    beta = prior.tolist() if isinstance(prior, torch.Tensor) else [prior] * len(logits)
    votes = targets.tolist()
    if not targets.is_floating_point():
        votes = [float(k == targets) for k in range(len(logits))]
    arguments = tuple(logits.tolist()), tuple(votes), tuple(beta), kl_weight
    assert oracle.relative_error(gradients[0].tolist(), exact_gradient(*arguments)) < gradient_bar
    truth = exact_loss(*arguments)
    if truth < 1e30:
        assert oracle.relative_error(losses.item(), truth) < loss_bar


def assert_same_by_both(function):
    """`function()` is a tensor, or several, that do not depend on the kernel."""
    with using("reference"):
        expected = function()
    with using("native"):
        received = function()
    torch.testing.assert_close(received, expected, rtol=1e-5, atol=1e-7, equal_nan=True)


def batch(rows, classes, dtype=torch.float32, *, scale=3.0):
    """Logits of a normal distribution, and a class id for each row."""
    torch.manual_seed(rows * 1000 + classes)
    return (scale * torch.randn(rows, classes, dtype=torch.float64)).to(dtype), torch.randint(
        classes, (rows,)
    )


def loss_and_gradient(logits, targets, upstream=None, function=belief_matching_loss, **options):
    """Both by whatever kernel is in use; `upstream` is the gradient that arrives, one if it is None."""
    z = logits.detach().requires_grad_()
    loss = function(z, targets, **options)
    arriving = torch.ones_like(loss) if upstream is None else upstream.to(loss.dtype)
    (gradient,) = torch.autograd.grad(loss, z, arriving)
    return loss.detach(), gradient


def assert_losses_agree(actual, truth, terms=0.0):
    """Relative to the loss, and to the terms of whose sum little may be left."""
    assert actual.shape == truth.shape and actual.dtype == truth.dtype
    rounding = terms * torch.finfo(truth.dtype).eps
    torch.testing.assert_close(actual, truth, rtol=LOSS_BAR[truth.dtype], atol=rounding, equal_nan=True)


def size_of_terms(logits, targets, *, kl_weight=0.01, prior=1.0, reduction="mean", **_):
    """Σ (c + λβ)(1 + |z|) + λ(|z| + |lnΓ(β)|), of the largest row, or of all if they are summed."""
    size, beta = 1 + logits.double().abs(), torch.as_tensor(prior, dtype=torch.float64).expand(logits.shape)
    votes = targets.double() if targets.is_floating_point() else torch.ones(())
    rows = (votes * size).amax(1) + kl_weight * ((1 + beta) * size + beta.lgamma().abs()).sum(1)
    return float(rows.sum() if reduction == "sum" else rows.max())


def assert_gradients_agree(actual, truth, roundings=1):
    """To a share of the row's largest component, and to some roundings of the type."""
    assert actual.shape == truth.shape and actual.dtype == truth.dtype
    finite = truth.isfinite()
    torch.testing.assert_close(actual[~finite], truth[~finite], rtol=0, atol=0, equal_nan=True)
    exact = truth.double().masked_fill(~finite, 0.0)
    error = (actual.double() - exact).abs().masked_fill(~finite, 0.0)
    kind, rows = torch.finfo(truth.dtype), exact.abs().amax(min(truth.dim() - 1, 1), keepdim=True)
    rounding = roundings * kind.eps * exact.abs() + 2 * kind.smallest_normal * kind.eps
    allowed = GRADIENT_BAR[truth.dtype] * rows + rounding
    assert (error <= allowed).all(), f"{(error / allowed).max():.3g} times the error that is allowed"


def assert_kernels_agree(logits, targets, upstream=None, terms=0.0, **options):
    """The native kernel supports the call, and its loss and gradient are those of the reference."""
    with using("reference"):
        loss, gradient = loss_and_gradient(logits, targets, upstream, **options)
    with native_only():
        own_loss, own_gradient = loss_and_gradient(logits, targets, upstream, **options)
        with torch.no_grad():
            value = belief_matching_loss(logits, targets, **options)
    assert_losses_agree(own_loss, loss, terms)
    assert_gradients_agree(own_gradient, gradient)
    # with or without a gradient, but for a rounding: the two are compiled apart
    torch.testing.assert_close(value, own_loss, rtol=2 * torch.finfo(value.dtype).eps, atol=0, equal_nan=True)
