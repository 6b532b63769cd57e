"""Test-wide settings."""

import os

import torch

# Tiny tensors gain nothing from threads, and waiting for busy cores makes them thirty times slower.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"  # for the commands that tests start
