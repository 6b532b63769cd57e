"""Test-wide settings."""

import os
import signal

import pytest
import torch

import golden
import kernel_contract

# Tiny tensors gain nothing from threads, and waiting for busy cores makes them thirty times slower.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"  # for the commands that tests start
os.environ["HF_HUB_OFFLINE"] = "1"  # before huggingface_hub is imported, which reads it once
# An engine finds out by itself whether bfloat16 needs this, but only before torch has used oneDNN.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")


def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true", help="Rewrite the files in tests/golden.")


def pytest_configure(config):
    golden.updating = config.getoption("--update-golden")


@pytest.fixture(params=kernel_contract.KERNELS)
def kernel(request):
    """Each kernel of the loss in turn; the native one with each instruction set that this processor has."""
    with kernel_contract.computing_with(request.param):
        yield request.param


@pytest.fixture(params=["reference", *kernel_contract.NATIVE])
def eager_kernel(request):
    """Each kernel that runs eagerly, and so with counts and with priors that are tensors."""
    with kernel_contract.computing_with(request.param):
        yield request.param


@pytest.fixture(params=kernel_contract.INSTRUCTION_SETS or ["none"])
def instruction_set(request):
    """Each instruction set of the native kernel that this processor has, in turn."""
    if request.param == "none":
        pytest.skip(f"no native kernel: {kernel_contract.MISSING}")
    with kernel_contract.using_instruction_set(request.param):
        yield request.param


@pytest.fixture(autouse=True)
def answered_interrupts():
    """A shell starts what it runs in the background with interrupts ignored, tests too."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
