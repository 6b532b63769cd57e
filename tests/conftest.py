"""Test-wide settings."""

import os

import pytest
import torch

from beliefmatch.kernels import native

# Tiny tensors gain nothing from threads, and waiting for busy cores makes them thirty times slower.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"  # for the commands that tests start


@pytest.fixture(params=["none"] if native.MISSING else native._native.instruction_sets())
def instruction_set(request):
    """Each instruction set of the native kernel that this processor has, in turn."""
    if native.MISSING:
        pytest.skip(f"no native kernel: {native.MISSING}")
    before = native.instruction_set()
    native._native.use(request.param)
    yield request.param
    native._native.use(before)
