"""Kernels of the loss, of the Dirichlet measures and of the metrics' readings, and the choice between them.

`reference` is the definition, in double-precision tensor operations: every device, every function transform.
`fused` is a lean formula that compilers fuse: inside `torch.compile`, class ids, a prior that is one number.
`native` is compiled C++: plain tensors on the CPU.

A faster kernel returns None for what it does not support, and the reference computes it. The environment
variable BELIEFMATCH_KERNEL chooses: "auto" (the default: native where it is installed), "native" (an error
where it is not) or "reference".
"""

import os
from typing import NamedTuple

import torch
from torch import Tensor

from beliefmatch import dirichlet
from beliefmatch._validate import fail
from beliefmatch.kernels import fused, native, readings, reference
from beliefmatch.kernels.native import MISSING, MeasureFunction, extension
from beliefmatch.kernels.readings import LogitsReading, ProbsReading, blocks
from beliefmatch.kernels.reference import LossInputs

__all__ = [
    "KernelStatus",
    "LogitsReading",
    "LossInputs",
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
REMEDY = (
    "install a C++ compiler (g++ or clang++) and reinstall: "
    "pip install --force-reinstall --no-deps --no-cache-dir --no-binary beliefmatch beliefmatch"
)
_native_is_used: bool | None = None  # None until the environment variable has been read


def loss(inputs: LossInputs) -> Tensor:
    """The loss by the fastest kernel that supports the inputs."""
    if not torch.compiler.is_compiling():
        return eager_loss(inputs)
    value = fused.loss(inputs)
    return reference.loss(inputs) if value is None else value


def eager_loss(inputs: LossInputs) -> Tensor:
    """The same for callers that know that nothing is being compiled; a training step skips the check."""
    value = native.loss(inputs) if _native_is_used or _uses_native() else None
    return reference.loss(inputs) if value is None else value


def measure(function: MeasureFunction, logits: Tensor, dim: int) -> Tensor:
    """A measure of `dirichlet`, by the native kernel where that supports the logits."""
    value = native.measure(function, logits, dim) if _runs_native() else None
    return function(logits, dim) if value is None else value


def divergence(p_logits: Tensor, q_logits: Tensor, dim: int) -> Tensor:
    """`dirichlet.divergence`, by the native kernel where that supports the logits."""
    value = native.divergence(p_logits, q_logits, dim) if _runs_native() else None
    return dirichlet.divergence(p_logits, q_logits, dim) if value is None else value


def read_probs(probs: Tensor, targets: Tensor, sum_tolerance: float, entropy: bool) -> ProbsReading | None:
    """`readings.read_probs`; None as well where the native kernel is not in use."""
    return readings.read_probs(probs, targets, sum_tolerance, entropy) if _runs_native() else None


def read_logits(logits: Tensor, targets: Tensor, entropy: bool) -> LogitsReading | None:
    """`readings.read_logits`; None as well where the native kernel is not in use."""
    return readings.read_logits(logits, targets, entropy) if _runs_native() else None


class KernelStatus(NamedTuple):
    """The kernel that computes the loss of CPU tensors, and why it is that one."""

    name: str
    reason: str


def status() -> KernelStatus:
    """The kernel in use for CPU tensors."""
    if _uses_native():
        return KernelStatus(
            "native", f"compiled for {extension.in_use()}; reference for what it does not support"
        )
    if MISSING is None:
        return KernelStatus("reference", f"chosen by {VARIABLE}; the native kernel is installed")
    return KernelStatus("reference", f"the native kernel is not installed ({MISSING}); {REMEDY}")


def use(chosen: str) -> None:
    """Choose "auto", "native" or "reference" from now on, as BELIEFMATCH_KERNEL does for a process."""
    global _native_is_used
    if chosen not in CHOICES:
        raise fail(VARIABLE, f"must be one of {', '.join(CHOICES)}, got {chosen!r}.")
    if chosen == "native" and MISSING is not None:
        fact = f"is native, but that kernel is not installed ({MISSING}); {REMEDY}."
        raise fail(VARIABLE, fact, ModuleNotFoundError)
    _native_is_used = chosen != "reference" and MISSING is None


def _runs_native() -> bool:
    return not torch.compiler.is_compiling() and _uses_native()


def _uses_native() -> bool:
    if _native_is_used is None:
        use(os.environ.get(VARIABLE, "auto"))
    return bool(_native_is_used)
