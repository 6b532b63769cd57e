"""Which numbers to compute with, by the hardware.

On a CPU bfloat16 pays where there are matrix tiles (AMX); without them it was measured to be slower than
float32. Some virtual machines announce tiles without saying how large they are. torch then ends the process
with "illegal instruction" at the first linear layer in bfloat16. So where there are tiles, a child process
tries them; if it dies, float32 it is, or oneDNN, which torch computes with, is told to do without tiles.
"""

import faulthandler
import os
import time
import warnings
from functools import cache
from pathlib import Path
from typing import Literal

import torch

from beliefmatch.checks import fail

__all__ = ["Mixed", "has_fast_bf16", "resolved"]

Mixed = Literal["32-true", "bf16-mixed", "16-mixed"]
_NAMES: dict[str, Mixed] = {"32": "32-true", "bf16": "bf16-mixed", "16": "16-mixed"}
_TILES = "amx_bf16"
_LIMIT, _WITHOUT_TILES = "ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16"
_PATIENCE_SECONDS = 10.0


def resolved(precision: str, device_type: str) -> Mixed:
    """Lightning's name of a precision; "auto" is bf16 where the hardware is faster with it, else float32."""
    if precision == "auto":
        return "bf16-mixed" if has_fast_bf16(device_type) else "32-true"
    if precision == "bf16" and device_type == "cpu" and not _bf16_is_safe():
        raise fail(
            "Engine",
            "`precision` bf16 would end this process, whose processor announces tiles that it does not have; "
            f"set {_LIMIT}={_WITHOUT_TILES} in the environment, or take 32.",
        )
    return _NAMES[precision]


def has_fast_bf16(device_type: str) -> bool:
    """Whether bfloat16 is faster than float32."""
    if device_type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device_type == "cpu" and _tiles_work()


@cache
def _tiles_work() -> bool:
    return _TILES in _cpu_flags() and "AMX" in os.environ.get(_LIMIT, "AMX") and _survives()


@cache
def _bf16_is_safe() -> bool:
    """Whether there are no tiles, or they work, or can be done without."""
    return _TILES not in _cpu_flags() or _tiles_work() or _survives_without_tiles()


def _cpu_flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        return set()
    return set(next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), []))


def _survives_without_tiles() -> bool:
    """Whether a limit helps. It does not where torch has looked at the processor before."""
    if _LIMIT in os.environ:  # somebody has seen to it
        return _survives()
    os.environ[_LIMIT] = _WITHOUT_TILES
    if not _survives():
        del os.environ[_LIMIT]
    return _LIMIT in os.environ


def _survives() -> bool:
    """Whether a child that multiplies matrices of bfloat16 lives to tell."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads: the child starts none
        child = os.fork()
    if child == 0:
        _multiply_and_exit()
    end = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status == 0
        time.sleep(0.001)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return False


def _multiply_and_exit() -> None:
    try:
        faulthandler.disable()  # a death here is an answer, not a fault
        torch.set_num_threads(1)
        ones = torch.ones(64, 64, dtype=torch.bfloat16)
        right = bool((torch.nn.functional.linear(ones, ones) == 64).all())
        os._exit(0 if right else 1)
    finally:
        os._exit(1)
