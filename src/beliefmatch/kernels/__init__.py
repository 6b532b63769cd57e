"""Implementations of the loss, of measures of doubt and of reading predictions, and which one is in use.

`reference` defines the numbers in plain tensor operations, on every device and under every transform of
torch; `native` computes the same in compiled code for CPU tensors. The environment variable
BELIEFMATCH_KERNEL chooses: "auto" (the default: native where it is installed), "native" (an error where it
is not) or "reference".
"""

import os
from typing import NamedTuple

import torch
from torch import Tensor

from beliefmatch import dirichlet
from beliefmatch._validate import fail
from beliefmatch.kernels import fused as traceable
from beliefmatch.kernels import native, readings, reference
from beliefmatch.kernels import native as divergences
from beliefmatch.kernels import native as measures
from beliefmatch.kernels.native import MISSING, Measure, extension
from beliefmatch.kernels.readings import LogitsReading, ProbsReading, blocks
from beliefmatch.kernels.reference import Problem

__all__ = [
    "KernelStatus",
    "LogitsReading",
    "Problem",
    "ProbsReading",
    "blocks",
    "divergence",
    "eager_loss",
    "loss",
    "measure",
    "read_logits",
    "read_probs",
    "status",
    "use",
]

VARIABLE = "BELIEFMATCH_KERNEL"
CHOICES = ("auto", "native", "reference")
_native_is_used: bool | None = None  # None: not asked yet
REMEDY = (
    "install a C++ compiler (g++ or clang++) and reinstall: "
    "pip install --force-reinstall --no-deps --no-cache-dir --no-binary beliefmatch beliefmatch"
)


class KernelStatus(NamedTuple):
    """Which implementation computes the loss of CPU tensors, and why."""

    name: str
    reason: str


def loss(problem: Problem) -> Tensor:
    """The loss, by the fastest kernel that takes the problem."""
    if not torch.compiler.is_compiling():
        return eager_loss(problem)
    value = traceable.loss(problem)
    return reference.loss(problem) if value is None else value


def eager_loss(problem: Problem) -> Tensor:
    """The loss, where it is known that nothing is being compiled."""
    value = native.loss(problem) if _native_is_used or _uses_native() else None
    return reference.loss(problem) if value is None else value


def measure(function: Measure, logits: Tensor, dim: int) -> Tensor:
    """A function of `dirichlet` of one tensor of logits, by the fastest kernel that takes it."""
    if not torch.compiler.is_compiling() and _uses_native():
        value = measures.measure(function, logits, dim)
        if value is not None:
            return value
    return function(logits, dim)


def divergence(p_logits: Tensor, q_logits: Tensor, dim: int) -> Tensor:
    """`dirichlet.divergence`, by the fastest kernel that takes it."""
    if not torch.compiler.is_compiling() and _uses_native():
        value = divergences.divergence(p_logits, q_logits, dim)
        if value is not None:
            return value
    return dirichlet.divergence(p_logits, q_logits, dim)


def read_probs(probs: Tensor, targets: Tensor, sum_tolerance: float, entropy: bool) -> ProbsReading | None:
    """`readings.read_probs`; None too where the native kernel is not in use."""
    if torch.compiler.is_compiling() or not _uses_native():
        return None
    return readings.read_probs(probs, targets, sum_tolerance, entropy)


def read_logits(logits: Tensor, targets: Tensor, entropy: bool) -> LogitsReading | None:
    """`readings.read_logits`; None too where the native kernel is not in use."""
    if torch.compiler.is_compiling() or not _uses_native():
        return None
    return readings.read_logits(logits, targets, entropy)


def status() -> KernelStatus:
    """The kernel in use for CPU tensors."""
    if _uses_native():
        return KernelStatus(
            "native", f"compiled for {extension.in_use()}; reference for what it does not take"
        )
    if MISSING is None:
        return KernelStatus("reference", f"chosen by {VARIABLE}; the native kernel is installed")
    return KernelStatus("reference", f"the native kernel is not installed ({MISSING}); {REMEDY}")


def use(chosen: str) -> None:
    """Choose "auto", "native" or "reference" from now on, as BELIEFMATCH_KERNEL does for a process."""
    global _native_is_used
    _native_is_used = _means_native(chosen)


def _uses_native() -> bool:
    if _native_is_used is None:
        use(os.environ.get(VARIABLE, "auto"))
    return bool(_native_is_used)


def _means_native(chosen: str) -> bool:
    if chosen not in CHOICES:
        allowed = ", ".join(CHOICES)
        raise fail(VARIABLE, f"must be one of {allowed}, got {chosen!r}.")
    if chosen == "native" and MISSING is not None:
        fact = f"is native, but that kernel is not installed ({MISSING}); {REMEDY}."
        raise fail(VARIABLE, fact, ModuleNotFoundError)
    return chosen != "reference" and MISSING is None
