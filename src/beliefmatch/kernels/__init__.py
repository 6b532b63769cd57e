"""Kernels of the loss, of the Dirichlet measures and of the metrics' readings, and the choice between them.

`reference` is the definition, in double-precision tensor operations: every transform, every derivative.
`lean` is the loss in few tensor operations: every device.
`native` is compiled C++: plain tensors on the CPU.
`triton_kernel` is compiled by Triton when it is first called: CUDA, ROCm and XPU tensors.
`compiled` makes these one operation for `torch.compile`, which sees into `lean` and the reference only.

A kernel returns None for what it does not support; the reference computes that, on a GPU after `lean`. The
environment variable BELIEFMATCH_KERNEL chooses: "auto" (the default: the fastest that the device has),
"native" (the same, but an error where that kernel is not installed), "triton" (CPU tensors too, by Triton's
interpreter, if TRITON_INTERPRET=1 is set), "lean" or "reference".
"""

import os
import re
import warnings
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from beliefmatch import dirichlet
from beliefmatch._environment import rebuild_command
from beliefmatch._validate import fail
from beliefmatch.kernels import lean, native, readings, reference
from beliefmatch.kernels.native import MISSING, MeasureFunction, extension, is_traced
from beliefmatch.kernels.readings import LogitsReading, ProbsReading, blocks
from beliefmatch.kernels.reference import LossInputs, Options

__all__ = [
    "CheckedCall",
    "KernelStatus",
    "LogitsReading",
    "LossInputs",
    "ProbsReading",
    "blocks",
    "checked_call",
    "chosen",
    "divergence",
    "loss",
    "loss_and_grad",
    "loss_of_checked_call",
    "measure",
    "read_logits",
    "read_probs",
    "status",
    "triton",
    "use",
]

VARIABLE = "BELIEFMATCH_KERNEL"
CHOICES = ("auto", "native", "triton", "lean", "reference")
TRITON_DEVICES = ("cuda", "xpu")
"""Types of devices that Triton compiles for; torch calls ROCm "cuda"."""
OLDEST_TRITON = 3, 7
"""Older ones do not compile the kernel: their functions cannot return tuples that hold None."""


def _why_triton_is_missing() -> str | None:
    """Read from its file, since the import takes a second; its distribution has a name for each vendor."""
    found = find_spec("triton")
    if found is None or found.origin is None:
        return "triton is not installed"
    version = re.search(r"""__version__ = ['"](\d+)\.(\d+)""", Path(found.origin).read_text("utf-8"))
    if version is None or tuple(map(int, version.groups())) >= OLDEST_TRITON:
        return None
    return f"triton {'.'.join(version.groups())} is too old, it needs {'.'.join(map(str, OLDEST_TRITON))}"


TRITON_MISSING = _why_triton_is_missing()
"""Why that kernel is missing; None if it is there."""
_choice: str | None = None  # None until the environment variable has been read
_native_is_used = False


def loss(inputs: LossInputs) -> Tensor:
    """The loss by the fastest kernel that supports the inputs."""
    device = inputs.logits.device.type
    for kernel in _compiled_kernels(device) if torch.compiler.is_compiling() else _kernels(device):
        value = kernel.loss(inputs)
        if value is not None:
            return value
    return reference.loss(inputs)


def _kernels(device: str) -> tuple[ModuleType, ...]:
    """The modules that are asked before the reference, in this order."""
    choice = chosen()
    if choice in ("lean", "reference"):
        return (lean,) if choice == "lean" else ()
    if choice == "triton" and (device in TRITON_DEVICES or (device == "cpu" and triton().is_interpreting())):
        return (triton(),)
    if device == "cpu":
        return (native,) if MISSING is None else (lean,)
    usable = device in TRITON_DEVICES and TRITON_MISSING is None and triton_failure(device) is None
    return (triton(), lean) if usable else (lean,)


def _compiled_kernels(device: str) -> tuple[ModuleType, ...]:
    """The same for code that `torch.compile` compiles: it sees into the lean path alone."""
    eager = _kernels(device)
    return (_operation(), lean) if eager and eager[0] is not lean else eager


def triton_failure(device: str) -> str | None:
    """Why Triton does not work on a type of device, found out by one small launch; None if it does.

    It compiles with a C compiler and the drivers of the device, and either may be missing. Not tried where
    the machine has no such device, nor while a compiler or a mode of fake tensors looks on.
    """
    return None if is_traced() or not getattr(torch, device).is_available() else _failure_of_probe(device)


triton_failure._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]


@lru_cache(maxsize=8)
def _failure_of_probe(device: str) -> str | None:
    try:
        triton().probe(device)
    except Exception as error:  # of a C compiler, a driver, an assembler
        reason = f"triton does not work here ({type(error).__name__}: {' '.join(str(error).split())[:200]})"
        warnings.warn(f"beliefmatch: {reason}; the lean kernel is used on {device}.", stacklevel=2)
        return reason
    return None


def triton() -> ModuleType:
    """The kernel in Triton, whose import takes a second."""
    from beliefmatch.kernels import triton_kernel  # by a statement, which torch.compile sees through

    return triton_kernel


def _operation() -> ModuleType:
    """The loss as one operation, which is not registered before code is compiled."""
    from beliefmatch.kernels import compiled  # by a statement, as above

    return compiled


class CheckedCall(NamedTuple):
    """A call that has been checked: its options, and its plan where the native kernel has one."""

    options: Options
    plan: native.Plan | None


def checked_call(inputs: LossInputs) -> CheckedCall:
    """What `loss_of_checked_call` needs of a call with a prior that is one number and without weights."""
    return CheckedCall(inputs.options, native.plan(inputs))


def loss_of_checked_call(call: CheckedCall, logits: Tensor, targets: Tensor) -> Tensor | None:
    """The loss of dense CPU tensors of the same shapes and types; None for others."""
    options, plan = call
    if plan is not None and _native_is_used:
        value = native.planned_loss(plan, logits, targets)
        if value is not None:
            return value
    if not (logits.is_cpu and targets.is_cpu and logits.layout is targets.layout is torch.strided):
        return None
    return loss(LossInputs(logits, targets, None, None, None, options))


def loss_and_grad(inputs: LossInputs, upstream: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The loss and its gradient with respect to the logits, eagerly and outside of any graph.

    The gradient is multiplied by `upstream`, of the shape of the loss; None stands for ones.
    """
    inputs = inputs._replace(logits=inputs.logits.detach())
    for kernel in _kernels(inputs.logits.device.type):
        both = kernel.loss_and_grad(inputs, upstream)
        if both is not None:
            return both
    return reference.loss_and_grad(inputs, upstream)


def measure(function: MeasureFunction, logits: Tensor, dim: int) -> Tensor:
    """A measure of `dirichlet`, by the fastest kernel that supports the logits."""
    kernel = _dirichlet_kernel(logits.device.type)
    value = None if kernel is None else kernel.measure(function, logits, dim)
    return function(logits, dim) if value is None else value


def divergence(p_logits: Tensor, q_logits: Tensor, dim: int) -> Tensor:
    """`dirichlet.divergence`, by the fastest kernel that supports the logits."""
    kernel = _dirichlet_kernel(p_logits.device.type)
    value = None if kernel is None else kernel.divergence(p_logits, q_logits, dim)
    return dirichlet.divergence(p_logits, q_logits, dim) if value is None else value


def _dirichlet_kernel(device: str) -> ModuleType | None:
    """The kernel that is asked for measures and divergences; none inside `torch.compile`."""
    if torch.compiler.is_compiling():
        return None
    return next((kernel for kernel in _kernels(device) if kernel is not lean), None)


def read_probs(probs: Tensor, targets: Tensor, sum_tolerance: float, entropy: bool) -> ProbsReading | None:
    """`readings.read_probs`; None as well where the native kernel is not in use."""
    return readings.read_probs(probs, targets, sum_tolerance, entropy) if _runs_native() else None


def read_logits(logits: Tensor, targets: Tensor, entropy: bool) -> LogitsReading | None:
    """`readings.read_logits`; None as well where the native kernel is not in use."""
    return readings.read_logits(logits, targets, entropy) if _runs_native() else None


class KernelStatus(NamedTuple):
    """The kernel that computes the loss of tensors on a device, and why it is that one."""

    name: str
    reason: str


def status(device: str = "cpu") -> KernelStatus:
    """The kernel in use for a type of device."""
    choice = chosen()
    if choice in ("lean", "reference") or (choice == "triton" and _kernels(device) == (triton(),)):
        there = "; the native kernel is installed" if device == "cpu" and MISSING is None else ""
        return KernelStatus(choice, f"chosen by {VARIABLE}{there}")
    if device in TRITON_DEVICES:
        problem = f"{TRITON_MISSING}: pip install triton" if TRITON_MISSING else triton_failure(device)
        if problem is None:
            return KernelStatus("triton", "compiled at the first call; lean or reference for other types")
        return KernelStatus("lean", problem)
    if device != "cpu":
        return KernelStatus("lean", f"there is no compiled kernel for {device}; reference for float64")
    if MISSING is not None:
        return KernelStatus("lean", f"the native kernel is not installed ({MISSING}); {_remedy()}")
    return KernelStatus(
        "native", f"compiled for {extension.in_use()}; reference for what it does not support"
    )


def _remedy() -> str:
    return f"install a C++ compiler (g++ or clang++) and reinstall: {rebuild_command()}"


def use(choice: str) -> None:
    """Choose one of CHOICES from now on, as BELIEFMATCH_KERNEL does for a process."""
    global _choice, _native_is_used
    if choice not in CHOICES:
        raise fail("kernels.use", f"`{VARIABLE}` must be one of {', '.join(CHOICES)}, got {choice!r}.")
    if choice == "native" and MISSING is not None:
        fact = f"is native, but that kernel is not installed ({MISSING}); {_remedy()}."
        raise fail(VARIABLE, fact, ModuleNotFoundError)
    if choice == "triton" and TRITON_MISSING is not None:
        fact = f"is triton, but {TRITON_MISSING}; pip install triton."
        raise fail(VARIABLE, fact, ModuleNotFoundError)
    if choice == "triton" and not (triton().is_interpreting() or _has_triton_device()):
        raise fail(VARIABLE, "is triton, but there is no GPU; TRITON_INTERPRET=1 lets CPU tensors use it.")
    _choice, _native_is_used = choice, choice in ("auto", "native") and MISSING is None


def _has_triton_device() -> bool:
    return any(getattr(torch, device).is_available() for device in TRITON_DEVICES)


def chosen() -> str:
    """What `use` or BELIEFMATCH_KERNEL chose."""
    if _choice is None:
        use(os.environ.get(VARIABLE) or "auto")
    assert _choice is not None
    return _choice


def _runs_native() -> bool:
    chosen()
    return _native_is_used and not torch.compiler.is_compiling()
