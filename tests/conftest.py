"""Test-wide settings."""

import random
import signal

import numpy as np
import pytest
import torch

import environment  # noqa: F401  # first: others are imported under it
import golden
import kernel_contract

# Tiny tensors gain nothing from threads, and waiting for busy cores makes them thirty times slower.
torch.set_num_threads(1)


def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true", help="Rewrite the files in tests/golden.")


def pytest_configure(config):
    golden.updating = config.getoption("--update-golden")


def pytest_runtest_setup(item):
    """Start every test from the same state of all generators, so that what fails once fails again."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)


@pytest.fixture(params=kernel_contract.KERNELS)
def kernel(request):
    """Each kernel of the loss in turn; the native one with each instruction set that this processor has."""
    with kernel_contract.computing_with(request.param):
        yield request.param


@pytest.fixture(params=kernel_contract.QUICK)
def quick_kernel(request):
    """Each kernel of the loss but Triton's, whose interpreter is too slow for hundreds of examples."""
    with kernel_contract.computing_with(request.param):
        yield request.param


@pytest.fixture(params=kernel_contract.QUICK_DIRICHLET)
def quick_dirichlet_kernel(request):
    """Each kernel of measures and divergences but Triton's."""
    with kernel_contract.computing_with(request.param):
        yield request.param


@pytest.fixture(params=kernel_contract.DIRICHLET)
def dirichlet_kernel(request):
    """Each kernel of measures and divergences."""
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
