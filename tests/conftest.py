"""Test-wide settings."""

import os
import signal

import pytest
import torch

from beliefmatch.kernels import native as compiled
from reproduced import all_reproduced

# Tiny tensors gain nothing from threads, and waiting for busy cores makes them thirty times slower.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"  # for the commands that tests start
# An engine finds out by itself whether bfloat16 needs this, but only before torch has used oneDNN.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")


@pytest.fixture(params=["none"] if compiled.MISSING else compiled.extension.instruction_sets())
def instruction_set(request):
    """Each instruction set of the native kernel that this processor has, in turn."""
    if compiled.MISSING:
        pytest.skip(f"no native kernel: {compiled.MISSING}")
    before = compiled.extension.in_use()
    compiled.extension.use(request.param)
    yield request.param
    compiled.extension.use(before)


@pytest.fixture(autouse=True)
def answered_interrupts():
    """A shell starts what it runs in the background with interrupts ignored, tests too."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def everything(tmp_path_factory, worker_id):
    """Every reproduction at its tiny scale, one for all worker processes. To be read, not written."""
    own = tmp_path_factory.getbasetemp()
    return all_reproduced((own if worker_id == "master" else own.parent) / "reproduced")
